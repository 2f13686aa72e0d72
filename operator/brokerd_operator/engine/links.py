"""Federation links as the brokers report them, for the status of FederationUpstreams.

Operator.md section 5.5: Ready does not depend on links, the condition LinksUp does. The engine
fetches rows now and then; a listing is thin: it holds what the member that answered knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.specs.model import JsonObject, Meta, Reference, TopologySpec

LINKS_MAX = 32
_FIELDS = ("exchange", "queue", "status", "node")


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """What goes into one status."""

    fields: dict[str, Any] = field(default_factory=dict)
    conditions: tuple[conditions.Condition, ...] = ()


class Links:
    """Owns the rows that were fetched last, by broker."""

    def __init__(self) -> None:
        self._rows: dict[Reference, list[JsonObject]] = {}

    def replace(self, broker: Reference, rows: list[JsonObject]) -> bool:
        """Take rows; whether they differ from those before."""
        known = [_shape(row) for row in rows]
        if self._rows.get(broker) == known:
            return False
        self._rows[broker] = known
        return True

    def of(self, broker: Reference, vhost: str, spec: TopologySpec, meta: Meta) -> LinkStatus:
        """The links of one upstream; nothing when none were ever listed."""
        if broker not in self._rows:
            return LinkStatus()
        name = spec.resolved_name(meta)
        rows = [
            row
            for row in self._rows[broker]
            if row.get("upstream") == name and row.get("vhost") == vhost
        ]
        running = sum(1 for row in rows if row.get("state") == "running")
        links = [row["shown"] for row in rows[:LINKS_MAX]]
        up = bool(rows) and running == len(rows)
        reason = "AllRunning" if up else ("SomeDown" if rows else "NoLinks")
        message = f"{running} of {len(rows)} links run"
        condition = conditions.build(conditions.LINKS_UP, up, reason, message, meta.generation)
        return LinkStatus({"links": links, "linksRunning": f"{running}/{len(rows)}"}, (condition,))


def _shape(row: JsonObject) -> JsonObject:
    state = str(row.get("status") or row.get("state") or "starting")
    item = row.get("exchange") or row.get("queue") or row.get("object") or ""
    shown: JsonObject = {"object": str(item), "state": state}
    error = row.get("error") or row.get("last_error")
    if error:
        shown["lastError"] = conditions.scrub(str(error))[:1024]
    return {
        "upstream": row.get("upstream"),
        "vhost": row.get("vhost"),
        "state": state,
        "shown": shown,
    }
