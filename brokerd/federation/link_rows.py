"""Telemetry rows of federation links and shovels (design/telemetry.md §6, kinds `fed`, `shovel`):
what was counted since the last time.

PURE.  Links count from their start; a link that starts anew, or came from another member, begins
at zero.  Called by the server at each telemetry interval with `Supervisor.rows()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]

#: lag: of messages that were stamped on their way in.
_COUNTERS = (
    "in", "in_bytes", "drop_maxhops", "drop_loop", "drop_malformed", "refused", "reconnects",
    "lag_count", "lag_sum_ms",
)  # fmt: skip
_SHOVEL_COUNTERS = (
    "in", "in_bytes", "moved", "refused", "reconnects", "lag_count", "lag_sum_ms",
)  # fmt: skip
_STATES = {"shutdown": "stopped"}
ERROR_CHARACTERS_MAX = 256


class LinkRows:
    """Owns the figures of each link as of the last call; links that are gone are forgotten."""

    def __init__(self) -> None:
        self._before: dict[str, Mapping[str, Any]] = {}

    def rows(self, links: Iterable[Mapping[str, Any]], t0_us: int, t1_us: int) -> list[Row]:
        """Return one row per link and shovel."""
        before, self._before = self._before, {}
        result = []
        for link in links:
            self._before[link["id"]] = link
            known = before.get(link["id"], {})
            if link.get("in", 0) < known.get("in", 0):
                known = {}
            state = str(link["status"])
            is_shovel = link.get("type") == "shovel"
            row: Row = {
                "k": "shovel" if is_shovel else "fed",
                "t0": t0_us,
                "t1": t1_us,
                "link": link["id"],
                "vhost": link["vhost"],
                "remote": link["uri"],
                "state": _STATES.get(state, state),
                "err": str(link["error"])[:ERROR_CHARACTERS_MAX],
                "in_flight": link.get("in_flight", 0),
            }
            for name in _SHOVEL_COUNTERS if is_shovel else _COUNTERS:
                row[name] = link.get(name, 0) - known.get(name, 0)
            result.append(row | (_of_shovel(link) if is_shovel else _of_link(link, known)))
        return result


def _of_link(link: Mapping[str, Any], known: Mapping[str, Any]) -> Row:
    hops = link.get("hops", [])
    previous = known.get("hops", [0] * len(hops))
    row: Row = {
        "upstream": link["upstream"],
        "exchange": link["exchange"],
        "queue": link["queue"],
        "hops": [now - then for now, then in zip(hops, previous, strict=True)],
    }
    backlog = link.get("backlog")
    if backlog is not None:
        # The upstream may have fallen silent since it said so.
        row |= {"backlog": backlog, "backlog_age_ms": link.get("backlog_age_ms", 0)}
    return row


def _of_shovel(link: Mapping[str, Any]) -> Row:
    """Return its two ends; one that never was has none.  `remote` is where the source is."""
    return {
        "shovel": link["upstream"],
        "queue": link.get("source_queue", ""),
        "exchange": link.get("source_exchange", ""),
        "dest": link.get("destination", ""),
        "dest_queue": link.get("destination_queue", ""),
        "dest_exchange": link.get("destination_exchange", ""),
    }
