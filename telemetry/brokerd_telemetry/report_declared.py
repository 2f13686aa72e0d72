"""The report's sections on what is declared: policies and what they hold for.

Functions from rows of tables to HTML; used by `report.py`.  Everything that came from outside is
escaped.
"""

from __future__ import annotations

from typing import Any

from brokerd_telemetry import page

Row = dict[str, Any]

_STATES = {
    "wins": ("holds", "good"),
    "shadowed": ("never wins", "bad"),
    "matches_nothing": ("matches nothing", "bad"),
    "unknown": ("not looked at to the end", "dim"),
}
_KINDS = {"classic": "classic queues", "quorum": "quorum queues", "exchange": "exchanges"}


def newest(rows: list[Row]) -> list[Row]:
    """Return the rows of the last hour that has some."""
    last = max((row["window_start"] for row in rows), default=None)
    return [row for row in rows if row["window_start"] == last]


def _kind(name: str) -> str:
    return _KINDS.get(name, name)


def _counts(entries: list[Row] | None) -> str:
    """Return counts by name in words."""
    return ", ".join(f"{entry['value']:,} {_kind(entry['key'])}" for entry in entries or ())


def policies(rows: list[Row]) -> str:
    """Return the section on policies as they were in the last hour that is known, those that are
    of no use first, and how much is under none.
    """
    told = newest(rows)
    if not told:
        return page.nothing("No member has said what is declared.")
    own = [row for row in told if row["policy"] is not None]
    lines = [
        (
            row["policy"], row["vhost"], row["policy_kind"].replace("_", " "),
            row["apply_to"] or "", f"{row['priority'] or 0}", _counts(row["matched_by"]) or "–",
            _counts(row["won_by"]) or "–", _counts(row["overridden"]) or "–",
            page.badge(*_STATES[row["state"]]), row["lost_to"] or "",
        )
        for row in sorted(
            own,
            key=lambda row: (row["state"] == "wins", row["vhost"], row["policy"]),
        )
    ]  # fmt: skip
    heads = ("policy", "vhost", "of", "applies to", "priority", "matches", "holds for",
             "objects with a value of their own, by key", "", "loses to")  # fmt: skip
    bare = [
        (row["vhost"] or "", _kind(row["object_kind"]), f"{row['objects']:,}",
         f"{row['without_policy'] or 0:,}")
        for row in sorted(
            (row for row in told if row["policy"] is None),
            key=lambda row: (row["vhost"], row["object_kind"]),
        )
    ]  # fmt: skip
    text = page.table(heads, lines, raw=(8,), right=(4,)) if lines else page.nothing("No policy.")
    if bare:
        text += page.table(("vhost", "objects", "there are", "under no policy"), bare, right=(2, 3))
    return text
