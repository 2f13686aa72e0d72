"""Which policies hold for what: how many objects each fits and wins, and what is under none.

Pure; reads `CatalogState` and decides nothing itself: who wins is `policy.py`'s answer.  For the
rows of telemetry (design/telemetry.md 8.14), which look at one object after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from brokerd.core.catalog import names, policy
from brokerd.core.catalog.catalog_objects import Entry, Exchange, Queue
from brokerd.core.catalog.catalog_state import CatalogState

#: (vhost, "policy" or "operator_policy", name)
PolicyKey: TypeAlias = tuple[str, str, str]
#: What a policy can be for; queues by their type.
EXCHANGE = "exchange"


@dataclass(slots=True)
class PolicyUse:
    """What one policy is good for."""

    apply_to: str
    priority: int
    #: Objects whose name and kind it fits, by kind (classic, quorum, exchange).
    matched: dict[str, int] = field(default_factory=dict)
    #: Of these, those that it holds for.
    won: dict[str, int] = field(default_factory=dict)
    #: By key: of these, those whose own argument or setting holds in its place.
    overridden: dict[str, int] = field(default_factory=dict)
    #: Who wins the first object that it fits and does not hold for; "" if there is none.
    lost_to: str = ""


@dataclass(slots=True)
class Objects:
    """The objects of one vhost and kind."""

    count: int = 0
    #: Under no policy of a user; those of operators do not count.
    without_policy: int = 0


def is_built_in(exchange: str) -> bool:
    """Say whether every virtual host starts with an exchange of this name, or could."""
    return exchange == names.DEFAULT_EXCHANGE or names.is_reserved(exchange)


class PolicyCoverage:
    """Adds up objects as they are looked at, each once."""

    __slots__ = ("_view", "objects", "policies")

    def __init__(self, view: CatalogState) -> None:
        self._view = view
        #: By vhost and kind; exchanges that no client made are not counted.
        self.objects: dict[tuple[str, str], Objects] = {}
        #: All of them, whether or not they fit anything.
        self.policies: dict[PolicyKey, PolicyUse] = {
            (vhost, kind, entry.name): PolicyUse(entry.value["apply-to"], entry.value["priority"])
            for vhost, topology in view.vhosts.items()
            for kind, entries in (
                ("policy", topology.policies),
                ("operator_policy", topology.operator_policies),
            )
            for entry in entries.values()
        }

    def look(self, record: Exchange | Queue) -> None:
        """Add an object that is there."""
        view = self._view
        if isinstance(record, Queue):
            kind: str = record.type
            winners: dict[str, str | None]
            own: dict[str, Any] | None
            settings = policy.effective_queue(view, record)
            winners = {"policy": settings.policy, "operator_policy": settings.operator_policy}
            values, own = settings.values, policy.declared(record)
        else:
            kind = EXCHANGE
            options = policy.effective_exchange(view, record)
            winners = {"policy": options.policy}
            values = {
                "alternate-exchange": options.alternate_exchange,
                "federation-upstream": options.federation_upstream,
                "federation-upstream-set": options.federation_upstream_set,
                "federation-upstream-pattern": options.federation_upstream_pattern,
            }
            own = None
        if kind != EXCHANGE or not is_built_in(record.name):
            objects = self.objects.setdefault((record.vhost, kind), Objects())
            objects.count += 1
            objects.without_policy += winners["policy"] is None
        for entry in policy.matching(view, record):
            use = self.policies.get((record.vhost, entry.kind, entry.name))
            if use is None:
                # It came while others were looked at; the next time it is there from the start.
                continue
            use.matched[kind] = use.matched.get(kind, 0) + 1
            winner = winners[entry.kind]
            if winner == entry.name:
                use.won[kind] = use.won.get(kind, 0) + 1
                for key in _overridden(entry, values, own):
                    use.overridden[key] = use.overridden.get(key, 0) + 1
            else:
                use.lost_to = use.lost_to or winner or ""


def _overridden(entry: Entry, values: dict[str, Any], own: dict[str, Any] | None) -> list[str]:
    """Return the keys of a policy that holds in whose place the object's own value does.

    values: what holds.  own: what a queue declares.  Of an exchange nothing else can hold in place
    of its policy.
    """
    return [
        key
        for key, value in entry.value["definition"].items()
        if key in values
        and values[key] != value
        and (own is None or (key in own and own[key] == values[key]))
    ]
