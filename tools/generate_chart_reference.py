"""Writes the tables of values in the charts' READMEs from the comments of values.yaml.

python tools/generate_chart_reference.py [--check]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHARTS = ("brokerd-operator", "brokerd-cluster")
BEGIN, END = "<!-- values: begin -->\n", "<!-- values: end -->"
_LINE = re.compile(r"(?P<indent> *)(?:# ?(?P<comment>.*)|(?P<key>[A-Za-z]+): *(?P<value>.*))?$")


def rows(text: str) -> list[tuple[str, str, str]]:
    """Path, default and what the comment above it says, of every value; a map that is nothing but
    its keys has a row only where something is said of it."""
    found: list[tuple[str, str, str]] = []
    path: list[str] = []
    comments: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.match(line)
        if match is None:
            raise SystemExit(f"line {number}: neither a comment nor `key: value`: {line}")
        if match["comment"] is not None:
            comments.append(match["comment"])
        elif match["key"] is None:
            # What stands by itself is about the file.
            comments = []
        else:
            path[len(match["indent"]) // 2 :] = [match["key"]]
            said = " ".join(comments)
            if match["value"] or said:
                found.append((".".join(path), match["value"], said))
            comments = []
    return found


def table(text: str) -> str:
    lines = ["| value | default | |", "|---|---|---|"]
    for path, default, said in rows(text):
        shown = f"`{default}`" if default else ""
        lines.append(f"| `{path}` | {shown} | {said.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def leaves(values: Any, prefix: str = "") -> set[str]:
    """Paths of all values, for the test that none is left out."""
    if not isinstance(values, dict) or not values:
        return {prefix}
    return {
        leaf
        for key, value in values.items()
        for leaf in leaves(value, f"{prefix}.{key}" if prefix else key)
    }


def expected(chart: str) -> str:
    """The README with a fresh table."""
    folder = ROOT / "charts" / chart
    text = (folder / "values.yaml").read_text()
    shown = {path for path, _, _ in rows(text)}
    for leaf in leaves(yaml.safe_load(text)):
        parts = leaf.split(".")
        if not any(".".join(parts[:length]) in shown for length in range(1, len(parts) + 1)):
            raise SystemExit(f"{chart}: values.yaml: {leaf} is not understood")
    readme = (folder / "README.md").read_text()
    head, rest = readme.split(BEGIN)
    return head + BEGIN + table(text) + END + rest.split(END, 1)[1]


def main() -> int:
    stale = []
    for chart in CHARTS:
        path = ROOT / "charts" / chart / "README.md"
        wanted = expected(chart)
        if path.read_text() == wanted:
            continue
        stale.append(path.relative_to(ROOT))
        if "--check" not in sys.argv[1:]:
            path.write_text(wanted)
    for path in stale:
        print(f"stale: {path}" if "--check" in sys.argv[1:] else f"written: {path}")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
