"""Writes `docs/reference/configuration.md` from the sections and comments of `brokerd/config.py`.

A setting's text is its `description`, or the `#:` comment above it. A test runs `--check`, so the
page cannot say something else than the code.

    python tools/generate_config_reference.py [--check]
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
SOURCE = ROOT / "brokerd" / "config.py"
TARGET = ROOT / "docs" / "reference" / "configuration.md"

HEAD = """<!-- Made by tools/generate_config_reference.py from brokerd/config.py; do not edit. -->

# Configuration

Every setting of a member. Sources, later ones win: the defaults below, a TOML file
(`brokerd serve --config FILE`), environment variables `BROKERD_<SECTION>_<KEY>`, the flags of
`brokerd serve`. A setting that does not exist or has a value of the wrong kind is refused at the
start, with a sentence per setting. Units stand last in a setting's name.

```toml
# brokerd.toml
[node]
data_dir = "/var/lib/brokerd"

[memory]
high_watermark = "0.5"
```

The same in the environment: `BROKERD_NODE_DATA_DIR=/var/lib/brokerd` and
`BROKERD_MEMORY_HIGH_WATERMARK=0.5`. With `OPTIONAL_` before its name
(`OPTIONAL_BROKERD_MEMORY_HIGH_WATERMARK=0.5`) a setting that the member's release does not know is
left out with a line in the log instead; the name without it wins over the name with it.
"""


def comments(node: ast.ClassDef, lines: list[str]) -> dict[str, str]:
    """Return the `#:` comment above each field of a class."""
    found = {}
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        above: list[str] = []
        number = statement.lineno - 2
        while lines[number].strip().startswith("#:"):
            above.insert(0, lines[number].strip().removeprefix("#:").strip())
            number -= 1
        found[statement.target.id] = " ".join(above)
    return found


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def shown(value: Any) -> str:
    """Return a default as one would write it in TOML."""
    if value is None or value == "":
        return ""
    if isinstance(value, dict):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def kind(field: Any) -> str:
    """Return type and bounds of a field in a few words."""
    annotation = field.annotation
    choices = getattr(annotation, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        return " or ".join(f"`{choice}`" for choice in choices)
    if str(annotation).startswith("dict"):
        return "table"
    names = {str: "text", int: "integer", bool: "boolean"}
    text = names.get(annotation) or "boolean"
    low = next((bound.ge for bound in field.metadata if hasattr(bound, "ge")), None)
    high = next((bound.le for bound in field.metadata if hasattr(bound, "le")), None)
    if low is not None and high is not None:
        return f"{text}, {low} to {high}"
    return f"{text}, at least {low}" if low is not None else text


def switches() -> str:
    """The table of compat switches, one column per profile."""
    from brokerd.core import profiles

    tables = {name: profiles.effective(profiles.profile(name)) for name in profiles.NAMES}
    columns = [name for name in profiles.NAMES if name != "mrg"]
    lines = [
        "\nThe switches and what the profiles set; profile `mrg` sets `queue_ae` and "
        "`mrg.mark_on_exchange_ae`, and is meant to be laid over another one (`reference+mrg`).\n",
        f"| switch | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for switch in tables["brokerd"]:
        values = [_switch_value(tables[name][switch]) for name in columns]
        lines.append(f"| `{switch}` | {' | '.join(values)} |")
    return "\n".join(lines)


def _switch_value(value: Any) -> str:
    return "none" if value is None else str(value).lower()


def rendered() -> str:
    """The page."""
    from brokerd import config

    source = SOURCE.read_text()
    lines = source.splitlines()
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    page = [HEAD]
    for section, field in config.BrokerConfig.model_fields.items():
        model: Any = field.annotation
        above = comments(classes[model.__name__], lines)
        summary = " ".join((model.__doc__ or "").split())
        page.append(f"\n## [{section}]\n\n{summary}\n")
        page.append("| setting | environment | type | default | |\n|---|---|---|---|---|")
        for key, setting in model.model_fields.items():
            variable = f"`BROKERD_{section}_{key}`".upper()
            if key == "switches":
                variable = "`BROKERD_COMPAT_<SWITCH>`"
            text = cell(setting.description or above.get(key, ""))
            default = setting.get_default(call_default_factory=True)
            page.append(f"| `{key}` | {variable} | {kind(setting)} | {shown(default)} | {text} |")
        if section == "compat":
            page.append(switches())
    return "\n".join(page) + "\n"


def main() -> int:
    page = rendered()
    if "--check" in sys.argv[1:]:
        fresh = TARGET.exists() and TARGET.read_text() == page
        if not fresh:
            print(f"stale: {TARGET.relative_to(ROOT)}")
        return 0 if fresh else 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
