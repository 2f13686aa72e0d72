"""Rings of dead letters in dlx_graph_1h: which there are, and how often messages go round.  PURE.

design/telemetry.md §8.  A ring is nothing bad by itself: work that is rejected into a queue with
a TTL, and comes back when that is over, is how retries are made.  What counts is the number of
rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Row = dict[str, Any]
#: Queues that the name of a ring has; a longer one is cut.
NAMED_MAX = 8


def rows(edges: Iterable[Row], queues: Iterable[Row]) -> list[Row]:
    """Return dlx_cycle_1h from the edges of dlx_graph_1h and queue_1h of the same hours.

    n: letters within the ring; messages: those that were in it or came from outside; rounds: how
    often each of them went round.
    """
    graphs: dict[tuple[str, int, str], list[Row]] = {}
    for edge in edges:
        graphs.setdefault((edge["cluster"], _hour_us(edge), edge["vhost"]), []).append(edge)
    depths: dict[tuple[str, int, str, str], Row] = {
        (row["cluster"], _hour_us(row), row["vhost"], row["queue"]): row for row in queues
    }
    found = []
    for (cluster, hour_us, vhost), own in graphs.items():
        for ring in _rings(own):
            inner = [edge for edge in own if edge["queue"] in ring and edge["target"] in ring]
            n = sum(edge["n"] for edge in inner)
            known = [depths.get((cluster, hour_us, vhost, name)) for name in ring]
            messages = max(sum(_came(row) for row in known if row is not None) - n, 1)
            found.append(
                {
                    "cluster": cluster,
                    "hour_us": hour_us,
                    "vhost": vhost,
                    "ring": _name(ring, inner),
                    "queues": sorted(ring),
                    "reasons": sorted({edge["reason"] for edge in inner}),
                    "n": n,
                    "messages": messages,
                    "rounds": n / len(ring) / messages,
                }
            )
    return found


def _came(row: Row) -> int:
    """Return what was in a queue at the start of its hour and what came in it."""
    return int(row["ready_last"] + row["unacked_last"] + row["gone"])


def _hour_us(row: Row) -> int:
    return int(row["window_start"].timestamp()) * 1_000_000


def _rings(edges: Iterable[Row]) -> list[set[str]]:
    """Return the strongly connected queues (Kosaraju), less those alone without an edge to
    themselves.
    """
    ahead: dict[str, set[str]] = {}
    behind: dict[str, set[str]] = {}
    for edge in edges:
        ahead.setdefault(edge["queue"], set()).add(edge["target"])
        behind.setdefault(edge["target"], set()).add(edge["queue"])
    order: list[str] = []
    seen: set[str] = set()
    for name in sorted(ahead):
        _visit(name, ahead, seen, order)
    seen.clear()
    found = []
    for name in reversed(order):
        ring: list[str] = []
        _visit(name, behind, seen, ring)
        if len(ring) > 1 or (ring and name in ahead.get(name, ())):
            found.append(set(ring))
    return found


def _visit(first: str, graph: Mapping[str, set[str]], seen: set[str], order: list[str]) -> None:
    """Add what can be reached from a queue and was not seen, the last reached first."""
    if first in seen:
        return
    seen.add(first)
    path = [(first, iter(sorted(graph.get(first, ()))))]
    while path:
        name, following = path[-1]
        target = next((each for each in following if each not in seen), None)
        if target is None:
            order.append(name)
            path.pop()
        else:
            seen.add(target)
            path.append((target, iter(sorted(graph.get(target, ())))))


def _name(ring: set[str], edges: list[Row]) -> str:
    """Return a ring in words, along the edges that most letters take."""
    name = first = min(ring)
    names = [name]
    while len(names) <= NAMED_MAX:
        _, name = max((edge["n"], edge["target"]) for edge in edges if edge["queue"] == name)
        names.append(name)
        if name == first or name in names[:-1]:
            return " → ".join(names)
    return " → ".join([*names, "…"])
