"""Writes `spec.settings` of `crds/brokerclusters.yaml`: the broker's settings that are the user's.

From the sections of `brokerd/config.py`, so that the API server refuses what a member would refuse
at its start, and `kubectl explain` describes it. What the operator sets itself, and what another
field of the spec says, is left out (ADR 77). A test runs `--check`; afterwards run
`tools/generate_resource_reference.py` and `tools/sync_chart_crds.py`.

    python tools/generate_settings_schema.py [--check]
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
TARGET = ROOT / "crds" / "brokerclusters.yaml"
BEGIN, END = (
    f"              # settings {word}: made by {Path(__file__).name}\n" for word in ("from", "to")
)

#: Sections and settings that are the operator's, or have a field of their own.
OWNED = frozenset(
    (
        *("node", "tls", "peer_tls", "secrets"),
        *(f"cluster.{key}" for key in ("name", "members", "initial_members", "address", "secret")),
        *("cluster.when_removed", "cluster.vote_with_empty_disk"),
        *(f"listeners.{key}" for key in ("amqp", "amqps", "grpc", "peer", "http", "management")),
        "listeners.management_tls",
        *(f"auth.{key}" for key in ("create_guest", "loopback_users", "operator_ca_file")),
        *(f"auth.{key}" for key in ("admin_user", "admin_password", "admin_password_file")),
        *(f"kubernetes.{key}" for key in ("issuer", "jwks_url", "cacertfile", "token_file")),
        "kubernetes.allow_http",
        *("memory.high_watermark", "queues.default_type"),
        *("telemetry.enabled", "telemetry.interval_ms"),
        # A variable for each, of which none can be optional.
        "compat.switches",
    )
)
TEXT_MAX, ENTRIES_MAX = 4096, 64


def schema(setting: dict[str, Any], description: str) -> dict[str, Any]:
    """Return one setting as a CRD has it."""
    # A setting that may be absent has a second type for that.
    typed = {**setting, **next(iter(setting.get("anyOf", ())), {})}
    found = {"description": description or "See the configuration's reference."}
    kept = ("type", "enum", "minimum", "maximum", "pattern", "maxLength")
    found |= {key: typed[key] for key in kept if key in typed}
    if found["type"] == "object":
        text = {"description": "A value.", "type": "string", "maxLength": TEXT_MAX}
        return found | {"maxProperties": ENTRIES_MAX, "additionalProperties": text}
    if found["type"] == "string" and "enum" not in found:
        found.setdefault("maxLength", TEXT_MAX)
    return found


def sections() -> dict[str, Any]:
    """Return the schemas of all sections that have something for the user."""
    from brokerd import config
    from tools.generate_config_reference import SOURCE, comments

    source = SOURCE.read_text()
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    found = {}
    for section, field in config.BrokerConfig.model_fields.items():
        model: Any = field.annotation
        above = comments(classes[model.__name__], source.splitlines())
        known = model.model_json_schema()["properties"]
        properties = {
            key: schema(known[key], _sentence(setting.description or above.get(key, "")))
            for key, setting in model.model_fields.items()
            if not OWNED & {section, f"{section}.{key}"}
        }
        if properties:
            text = f"Settings of the section {section}."
            found[section] = {"description": text, "type": "object", "properties": properties}
    return found


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".").replace("`", "")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def rendered() -> str:
    """The block of the CRD, one line for each setting."""
    lines = [
        "              settings:\n",
        "                description: Further settings of the members, by section, as in a file of"
        " the broker's configuration. Another value restarts the members one by one.\n",
        "                type: object\n",
        "                properties:\n",
    ]
    for section, found in sections().items():
        lines.append(f"                  {section}:\n")
        lines.append(f"                    description: {_flow(found['description'])}\n")
        lines.append("                    type: object\n")
        lines.append("                    properties:\n")
        for key, setting in found["properties"].items():
            lines.append(f"                      {key}: {_flow(setting)}\n")
    return "".join(lines)


def _flow(value: Any) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=100_000, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def main() -> int:
    page = TARGET.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    fresh = f"{before}{BEGIN}{rendered()}{END}{after}"
    if "--check" in sys.argv[1:]:
        if page != fresh:
            print(f"stale: {TARGET.relative_to(ROOT)}")
        return 0 if page == fresh else 1
    TARGET.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
