"""Writes `docs/reference/files.md` from the first sentence of each module.

A room is a package; its files are named once, in its table. A test runs `--check`, so a file that
comes, goes or moves shows, and so does a first sentence that changes. All else on the page is
written by hand.

    python tools/generate_files.py [--check]
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "reference" / "files.md"
BEGIN = "<!-- begin: tools/generate_files.py -->"
END = "<!-- end: tools/generate_files.py -->"
SOURCES = ("brokerd", "operator/brokerd_operator", "telemetry/brokerd_telemetry")
#: Made by `make protos`.
GENERATED = "brokerd/rpc"

#: References and remarks for those who read the code: the page links to documents by itself.
_REFERENCE = re.compile(r" ?\([^()]*(?:\.md|ADR |§)[^()]*\)")
_REMARK = re.compile(r"[ :]*\bPURE\b.*$")
#: The end of a sentence: a stop, and a new one behind it.
_STOP = re.compile(r"(?<=[.?!])\s+(?=[A-Z`])")


def first_sentence(docstring: str) -> str:
    """Return what a module is for, in one line that fits into a table."""
    text = " ".join(docstring.split("\n\n")[0].split())
    sentence = _REMARK.sub("", _REFERENCE.sub("", _STOP.split(text)[0]))
    return sentence.rstrip(" .").replace("|", "\\|")


def packages() -> list[Path]:
    """Return the folders that hold modules, high ones before what is in them."""
    found = {path.parent for source in SOURCES for path in (ROOT / source).rglob("*.py")}
    kept = [folder for folder in found if not _name(folder).startswith(GENERATED)]
    return sorted(kept, key=lambda folder: (_rank(folder), folder))


def _name(folder: Path) -> str:
    return folder.relative_to(ROOT).as_posix()


def _rank(folder: Path) -> int:
    return next(i for i, source in enumerate(SOURCES) if _name(folder).startswith(source))


def table(folder: Path) -> list[str]:
    """Return the heading, what the package says of itself, and a row for each module."""
    rows, about = [], ""
    for path in sorted(folder.glob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        if path.name == "__init__.py":
            about = " ".join(docstring.split())
        else:
            rows.append(f"| `{path.name}` | {first_sentence(docstring)} |")
    if not rows:
        return []
    lines = [f"## `{_name(folder)}`", ""]
    if about:
        lines += [about, ""]
    return [*lines, "| file | |", "|---|---|", *rows, ""]


def page(text: str) -> str:
    """Return the page with its tables made anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    lines = [line for folder in packages() for line in table(folder)]
    return head + "\n".join([BEGIN, "", *lines, END]) + tail


def main() -> int:
    before = TARGET.read_text()
    if BEGIN not in before or END not in before:
        print(f"{TARGET.name} has lost its marks {BEGIN} and {END}")
        return 1
    after = page(before)
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(after)
        return 0
    if before == after:
        return 0
    old, new = set(before.splitlines()), set(after.splitlines())
    print(f"{TARGET.name} is stale:")
    for line in sorted(old ^ new):
        print(("- " if line in old else "+ ") + line)
    return 1


if __name__ == "__main__":
    sys.exit(main())
