"""Telemetry rows of federation links (design/telemetry.md §6, kind `fed`): what was counted since
the last time.

PURE.  Links count from their start; a link that starts anew, or came from another member, begins
at zero.  Called by the server at each telemetry interval with `Supervisor.rows()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]

_COUNTERS = (
    "in", "in_bytes", "drop_maxhops", "drop_loop", "drop_malformed", "refused", "reconnects",
)  # fmt: skip
_STATES = {"shutdown": "stopped"}
ERROR_CHARACTERS_MAX = 256


class LinkRows:
    """Owns the figures of each link as of the last call; links that are gone are forgotten."""

    def __init__(self) -> None:
        self._before: dict[str, Mapping[str, Any]] = {}

    def rows(self, links: Iterable[Mapping[str, Any]], t0_us: int, t1_us: int) -> list[Row]:
        """Return one row per link."""
        before, self._before = self._before, {}
        result = []
        for link in links:
            if link.get("type") == "shovel":
                # What it moves is counted where it is published; its figures are metrics.
                continue
            self._before[link["id"]] = link
            known = before.get(link["id"], {})
            if link.get("in", 0) < known.get("in", 0):
                known = {}
            state = str(link["status"])
            row: Row = {
                "k": "fed",
                "t0": t0_us,
                "t1": t1_us,
                "link": link["id"],
                "upstream": link["upstream"],
                "vhost": link["vhost"],
                "exchange": link["exchange"],
                "queue": link["queue"],
                "remote": link["uri"],
                "state": _STATES.get(state, state),
                "err": str(link["error"])[:ERROR_CHARACTERS_MAX],
                "in_flight": link.get("in_flight", 0),
            }
            for name in _COUNTERS:
                row[name] = link.get(name, 0) - known.get(name, 0)
            hops = link.get("hops", [])
            previous = known.get("hops", [0] * len(hops))
            row["hops"] = [now - then for now, then in zip(hops, previous, strict=True)]
            result.append(row)
        return result
