"""The report's sections on what is declared: policies and what they hold for, idle exchanges.

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
    reported = newest(rows)
    if not reported:
        return page.empty("It is not known what is declared.")
    own = [row for row in reported if row["policy"] is not None]
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
            (row for row in reported if row["policy"] is None),
            key=lambda row: (row["vhost"], row["object_kind"]),
        )
    ]  # fmt: skip
    text = page.table(heads, lines, raw=(8,), right=(4,)) if lines else page.empty("No policy.")
    if bare:
        text += page.table(("vhost", "objects", "there are", "under no policy"), bare, right=(2, 3))
    return text


def exchanges(rows: list[Row]) -> str:
    """Return the section on exchanges without publishes and those that lead nowhere, as of the last
    hour with any.
    """
    reported = newest(rows)
    if not reported:
        return page.nothing("No exchange is known to be idle or without a binding.")
    lines = [
        (
            row["exchange"], row["vhost"], row["xtype"] or "", f"{row['bindings']:,}",
            _idle(row["idle_in_s"]),
            page.badge("leads nowhere", "bad") if row["is_unbound"] else "",
        )
        for row in sorted(
            reported,
            key=lambda row: (-(row["idle_in_s"] or 0), row["vhost"], row["exchange"]),
        )
    ]  # fmt: skip
    heads = ("exchange", "vhost", "type", "bindings", "nothing published for", "")
    return page.table(heads, lines, raw=(5,), right=(3, 4))


def _idle(idle_s: float | None) -> str:
    if idle_s is None:
        return "others lead to it"
    return f"{idle_s / 86_400:.1f} days" if idle_s >= 86_400 else f"{idle_s / 3600:.1f} h"
