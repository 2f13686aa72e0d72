"""Links as the brokers report them, for the status of FederationUpstreams and Shovels.

design/operator.md §5.5: Ready does not depend on links, the condition LinksUp does. The engine
fetches rows now and then; a listing is thin: it holds what the member that answered knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.specs import arguments
from brokerd_operator.specs.model import JsonObject, Meta, Reference, TopologySpec

LINKS_MAX = 32
#: Kinds with links, and what the broker calls the rows of theirs.
LISTINGS = {"FederationUpstream": "links", "Shovel": "shovels"}


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
        # Members answer in any order, and a status that only differs in it says nothing new.
        known = sorted((_shape(row) for row in rows), key=arguments.canonical_json)
        if self._rows.get(broker) == known:
            return False
        self._rows[broker] = known
        return True

    def is_known(self, broker: Reference) -> bool:
        """Whether links were ever listed."""
        return broker in self._rows

    def of(self, broker: Reference, spec: TopologySpec, meta: Meta) -> LinkStatus:
        """The links of one upstream, or the one of a shovel, once they were listed."""
        wanted = (LISTINGS[spec.KIND] == "shovels", spec.resolved_name(meta), spec.vhost)
        rows = [row for row in self._rows.get(broker, ()) if row["of"] == wanted]
        running = sum(1 for row in rows if row.get("state") == "running")
        links = [row["shown"] for row in rows[:LINKS_MAX]]
        up = bool(rows) and running == len(rows)
        reason = "AllRunning" if up else ("SomeDown" if rows else "NoLinks")
        message = f"{running} of {len(rows)} links run"
        condition = conditions.build(conditions.LINKS_UP, up, reason, message, meta.generation)
        return LinkStatus({"links": links, "linksRunning": f"{running}/{len(rows)}"}, (condition,))


def _shape(row: JsonObject) -> JsonObject:
    state = str(row.get("status") or row.get("state") or "starting")
    places = ("exchange", "queue", "object", "source_queue", "source_exchange")
    item = next((row[place] for place in places if row.get(place)), "")
    shown: JsonObject = {"object": str(item), "state": state}
    error = row.get("error") or row.get("last_error")
    if error:
        shown["lastError"] = conditions.scrub(str(error))[:1024]
    return {
        "of": (row.get("type") == "shovel", row.get("upstream"), row.get("vhost")),
        "state": state,
        "shown": shown,
    }
