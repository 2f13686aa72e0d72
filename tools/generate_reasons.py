"""Writes what reasons of Ready mean and what to do into two pages, from `docs/reasons.yaml`.

The table of docs/reference/conditions.md and the sections of docs/runbook/reasons.md; the verdict
of each reason is the operator's own (conditions.py). A test runs `--check`.

    python tools/generate_reasons.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "operator"))

from brokerd_operator import conditions  # noqa: E402
from brokerd_operator.conditions import Meaning  # noqa: E402

SOURCE = ROOT / "docs" / "reasons.yaml"
TABLE = ROOT / "docs" / "reference" / "conditions.md"
RUNBOOK = ROOT / "docs" / "runbook" / "reasons.md"
BEGIN = "<!-- reasons: begin; made by tools/generate_reasons.py from docs/reasons.yaml -->\n"
END = "<!-- reasons: end -->"


def load() -> list[dict[str, Any]]:
    """The rows, each reason once."""
    rows: list[dict[str, Any]] = yaml.safe_load(SOURCE.read_text())
    named = [reason for row in rows for reason in row["reasons"]]
    if sorted(named) != sorted(conditions.REASONS):
        odd = sorted(set(named) ^ set(conditions.REASONS)) or "one of them twice"
        raise SystemExit(f"{SOURCE.name} and conditions.REASONS differ: {odd}")
    for row in rows:
        if list(row["more"]) != row["reasons"]:
            raise SystemExit(f"{SOURCE.name}: `more` is not about {row['reasons']}")
        if len({conditions.REASONS[reason] for reason in row["reasons"]}) > 1:
            raise SystemExit(f"{SOURCE.name}: {row['reasons']} do not mean the same")
    return rows


def verdict(meaning: Meaning) -> str:
    found = [meaning.ready]
    found += ["Reconciling"] if meaning.is_reconciling else []
    found += ["Stalled"] if meaning.is_stalled else []
    return ", ".join(found)


def heading(meaning: Meaning) -> str:
    if meaning.is_reconciling:
        return "Reconciling"
    if meaning.is_stalled:
        return "Stalled"
    return "Neither" if meaning.ready == conditions.FALSE else "All is well"


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| reason | Ready | what it means | what to do |", "|---|---|---|---|"]
    for row in rows:
        names = ", ".join(f"`{reason}`" for reason in row["reasons"])
        state = verdict(conditions.REASONS[row["reasons"][0]])
        done = f" {row['do']} |" if "do" in row else " |"
        lines.append(f"| {names} | {state} | {row['means']} |{done}")
    return "\n".join(lines) + "\n"


def sections(rows: list[dict[str, Any]]) -> str:
    more = {reason: text for row in rows for reason, text in row["more"].items()}
    found: dict[str, list[str]] = {}
    for reason, meaning in conditions.REASONS.items():
        found.setdefault(heading(meaning), []).append(f"### {reason}\n\n{more[reason]}\n")
    return "\n".join(f"## {name}\n\n" + "\n".join(parts) for name, parts in found.items())


def replaced(page: Path, part: str) -> str:
    head, begin, rest = page.read_text().partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page.name} has lost its marks")
    return f"{head}{BEGIN}\n{part}\n{END}{tail}"


def main() -> int:
    rows = load()
    is_check = "--check" in sys.argv[1:]
    stale = []
    for page, part in ((TABLE, table(rows)), (RUNBOOK, sections(rows))):
        wanted = replaced(page, part)
        if page.read_text() == wanted:
            continue
        stale.append(page)
        if not is_check:
            page.write_text(wanted)
    for page in stale:
        print(f"{'stale' if is_check else 'written'}: {page.relative_to(ROOT)}")
    return 1 if stale and is_check else 0


if __name__ == "__main__":
    sys.exit(main())
