"""What brokers say of their members, as conditions of BrokerClusters and BrokerConnections.

MemoryAlarm, DiskAlarm, DiskStalled and QuorumCritical, and how many members there are for a
queue's replicas.
The engine asks each broker now and then, with one call.  Until a broker was asked for the first
time nothing is said of it, so that a restart of the operator writes no status.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.engine.keys import Body
from brokerd_operator.engine.ports import Store
from brokerd_operator.specs.model import Reference

#: The types that this module sets; the alarms have Events.
ALARMS = (conditions.MEMORY_ALARM, conditions.DISK_ALARM, conditions.DISK_STALLED)
TYPES = (*ALARMS, conditions.QUORUM_CRITICAL)
#: Members that one message names; a cluster has nine at most.
NAMED_MAX = 9

_ALARMS = {
    "memory": (
        conditions.MEMORY_ALARM,
        ("AboveWatermark", "{} above the memory watermark: publishers of all members are blocked"),
        ("BelowWatermark", "no member is above its memory watermark"),
    ),
    "disk": (
        conditions.DISK_ALARM,
        ("LowDisk", "{} low on disk: publishers of all members are blocked"),
        ("EnoughDisk", "no member is low on disk"),
    ),
    "disk_stalled": (
        conditions.DISK_STALLED,
        (
            "DiskDoesNotAnswer",
            "{} waiting for a disk that does not answer: the others go on, durable classic queues "
            "there wait; stop no other member",
        ),
        ("DisksAnswer", "no member waits for its disk"),
    ),
}
_CRITICAL = (
    "MajorityAtRisk",
    "without {} the catalog or a queue has no majority; brokerctl check_if_node_is_quorum_critical "
    "names the queues",
)
_SAFE = ("MajoritySafe", "any one member may stop")
_ALONE = ("MajoritySafe", "there is one member only: nothing works while it is stopped")


@dataclass(frozen=True, slots=True)
class Members:
    """What matters of a broker's members; names in order."""

    all: tuple[str, ...] = ()
    #: Names by resource: memory, disk, disk_stalled.
    alarms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    critical: tuple[str, ...] = ()


class Health:
    """Owns what was said last, by broker; None for one that does not answer."""

    def __init__(self) -> None:
        self._said: dict[Reference, Members | None] = {}

    def replace(self, broker: Reference, members: Iterable[Any]) -> bool:
        """Take an answer (admin_pb2.Member); whether it differs from the one before."""
        return self._take(broker, summary(members))

    def lost(self, broker: Reference) -> bool:
        """A broker does not answer any more."""
        return self._take(broker, None)

    def forget(self, broker: Reference) -> None:
        self._said.pop(broker, None)

    def _take(self, broker: Reference, said: Members | None) -> bool:
        changed = broker not in self._said or self._said[broker] != said
        self._said[broker] = said
        return changed

    def is_known(self, broker: Reference) -> bool:
        return broker in self._said

    def member_count(self, broker: Reference) -> int | None:
        """How many members a broker has, up or not; None while that is not known."""
        said = self._said.get(broker)
        return len(said.all) if said is not None and said.all else None

    def of_broker(
        self, broker: Reference, body: Body, generation: int
    ) -> tuple[conditions.Condition, ...]:
        """The conditions of a broker; those that it has while it was not asked yet."""
        if broker not in self._said:
            return conditions.carried(body, TYPES)
        said = self._said[broker]
        if said is None:
            message = "the broker does not answer the operator"
            return tuple(
                conditions.build(type_, conditions.UNKNOWN, "NoAnswer", message, generation)
                for type_ in TYPES
            )
        return of_members(said, generation)


def summary(members: Iterable[Any]) -> Members:
    """What matters of an answer."""
    ordered = sorted(members, key=lambda item: item.name)
    return Members(
        tuple(item.name for item in ordered),
        tuple(
            (resource, tuple(item.name for item in ordered if resource in item.alarms))
            for resource in _ALARMS
        ),
        tuple(item.name for item in ordered if item.quorum_critical),
    )


def of_members(said: Members, generation: int) -> tuple[conditions.Condition, ...]:
    """The conditions of a broker that answers."""
    found = []
    for resource, names in said.alarms:
        type_, on, off = _ALARMS[resource]
        reason, message = on if names else off
        text = message.format(f"{_listed(names)} {'is' if len(names) == 1 else 'are'}")
        found.append(conditions.build(type_, bool(names), reason, text, generation))
    well = _ALONE if len(said.all) == 1 else _SAFE
    reason, message = _CRITICAL if said.critical else well
    some = "one of " if len(said.critical) > 1 else ""
    text = message.format(f"{some}{_listed(said.critical)}")
    found.append(
        conditions.build(conditions.QUORUM_CRITICAL, bool(said.critical), reason, text, generation)
    )
    return tuple(found)


async def tell(store: Store, body: Body, found: Iterable[conditions.Condition]) -> None:
    """Emit an Event for each alarm that began or ended since the status was written."""
    for condition in found:
        if condition.type not in ALARMS:
            continue
        before = conditions.find(body, condition.type)
        was_on = before is not None and before.status == conditions.TRUE
        is_on = condition.status == conditions.TRUE
        if is_on and not was_on:
            await store.emit(body, "Warning", condition.type, condition.message)
        elif was_on and condition.status == conditions.FALSE:
            await store.emit(body, "Normal", f"{condition.type}Over", condition.message)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:NAMED_MAX])
