"""Figures of single queues, in RabbitMQ's names: from the replica here, else from who has one.

Every replica applies the same commands, so that a member answers for each queue that it holds; of
the others it asks those who lead them (figures.py).  Deliveries are counted as one figure by the
queue: `deliver` has gets and deliveries without acknowledgement in it, too (docs/compatibility.md).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.server import memory_breakdown
from brokerd.server.management.call import Json
from brokerd.server.management.figures import Rows
from brokerd.server.management.rates import Sample
from brokerd.server.slices import in_slices

if TYPE_CHECKING:
    from brokerd.core.queue.queue_machine import QueueMachine
    from brokerd.server.listings.ports import Sources
    from brokerd.server.management.ports import ManagementServices

#: Figures of a queue that travel between members: see `figures`.
Figures: TypeAlias = dict[str, Any]

#: The kinds of rows that this room asks the members for.
QUEUES, TOTALS = "queues", "totals"

#: The order in a sample: gauges, then counters of a queue's books.
GAUGES = ("messages", "messages_ready", "messages_unacknowledged")
COUNTERS = ("enq", "dlv", "ack", "redlv", "get_empty")
#: RabbitMQ's message_stats, each from a counter of ours; None: not counted apart.
STATS: tuple[tuple[str, str | None], ...] = (
    ("ack", "ack"),
    ("deliver", "dlv"),
    ("deliver_get", "dlv"),
    ("deliver_no_ack", None),
    ("get", None),
    ("get_empty", "get_empty"),
    ("get_no_ack", None),
    ("publish", "enq"),
    ("redeliver", "redlv"),
)
#: The same, each with its place in a sample.
_STATS_AT = tuple(
    (name, None if counter is None else len(GAUGES) + COUNTERS.index(counter))
    for name, counter in STATS
)
#: Of rates, where nothing is known yet.
STILL = (0.0,) * (len(GAUGES) + len(COUNTERS))


def sample(sources: Sources, uid: int) -> Sample | None:
    """Return what rates are made of; None where no replica is here."""
    machine = _machine(sources, uid)
    return None if machine is None else _sample(machine)


def _machine(sources: Sources, uid: int) -> QueueMachine | None:
    """Return a queue's state; None where no replica is here, or its queue is deleted."""
    if not sources.groups.has_group(uid) or sources.queues.queue_of(uid) is None:
        return None
    return sources.queues.machine(uid)


def _sample(machine: QueueMachine) -> Sample:
    ready, unacked = machine.store.ready, machine.unacked
    return (
        ready + unacked + machine.letters.count,
        ready,
        unacked,
        *map(machine.counters.__getitem__, COUNTERS),
    )


def figures(services: ManagementServices, queue: Queue) -> Figures | None:
    """Return the figures of a queue that has a replica here, None of others."""
    sources, uid = services.listed, queue.uid
    machine = _machine(sources, uid)
    if machine is None:
        return None
    head = machine.store.head()
    return {
        "leader": sources.groups.leader_of(uid) or "",
        "sample": _sample(machine),
        "rates": services.rates.of(uid) or STILL,
        "ready_bytes": machine.store.ready_bytes,
        "unacked_bytes": machine.unacked_bytes,
        "dlx": machine.letters.count,
        "consumers": machine.consumers.registered,
        "memory": memory_breakdown.queue_bytes(machine, is_durable=queue.durable),
        "head_ms": head.entry.enqueued_ms if head else None,
        "used_ms": machine.last_used_ms,
        "limit": machine.options.delivery_limit,
        "single": _single_active(machine),
    }


def orders(services: ManagementServices, queue: Queue) -> Figures | None:
    """Return those of the figures that lists are sorted by: a tenth of the work."""
    machine = _machine(services.listed, queue.uid)
    if machine is None:
        return None
    uid = queue.uid
    return {
        "sample": _sample(machine),
        "rates": services.rates.of(uid) or STILL,
        "consumers": machine.consumers.registered,
    }


def value_of(services: ManagementServices, column: str) -> Callable[[int], float | None]:
    """Return what gives a queue's value in one of ORDERS by its uid; None where no replica is here.

    A list of 10,000 is sorted by it, so it looks at nothing but that value.
    """
    sources, rates = services.listed, services.rates
    part, at = _PLACES[column]

    def gained(uid: int) -> float | None:
        return (rates.of(uid) or STILL)[at] if sources.groups.has_group(uid) else None

    def counted(uid: int) -> float | None:
        machine = _machine(sources, uid)
        return None if machine is None else take(machine)

    if part == "rates":
        return gained
    take = _consumers if part == "consumers" else _TAKES[at]
    return counted


def _consumers(machine: QueueMachine) -> int:
    return machine.consumers.registered


def _counter(name: str) -> Callable[[QueueMachine], int]:
    return lambda machine: machine.counters[name]


#: Each figure of a sample by itself.
_TAKES: tuple[Callable[[QueueMachine], int], ...] = (
    lambda machine: machine.store.ready + machine.unacked + machine.letters.count,
    lambda machine: machine.store.ready,
    lambda machine: machine.unacked,
    *map(_counter, COUNTERS),
)


async def column_of_all(
    services: ManagementServices, queues: Sequence[Queue], column: str
) -> list[float | None]:
    """Return the value of each of these queues in one of ORDERS, None where nobody knows it."""
    value = value_of(services, column)
    found: list[float | None] = []
    async for some in in_slices(queues):
        found += [value(queue.uid) for queue in some]
    if None in found:
        rows = {row["uid"]: row for row in (await services.figures.everywhere(QUEUES)).all()}
        for place, queue in enumerate(queues):
            if found[place] is None and queue.uid in rows:
                found[place] = ORDERS[column](rows[queue.uid])
    return found


def _single_active(machine: QueueMachine) -> str | None:
    """Return the tag of the consumer that is active alone (R-CS-7)."""
    active = machine.consumers.active if machine.options.single_active_consumer else None
    return active.id.tag if active is not None else None


#: Figures of a queue that has a replica here: `figures`, or some of them.
Take: TypeAlias = Callable[["ManagementServices", Queue], Figures | None]


async def known(
    services: ManagementServices, queues: Sequence[Queue], take: Take = figures
) -> Callable[[Queue], Figures | None]:
    """Return what gives the figures of one of these queues, None of one of which nobody knows any.

    Those of replicas here are taken when they are asked for and nobody keeps them: 10,000 dicts at
    once would be looked at by Python's collector, which takes 7 ms.
    """
    sources = services.listed
    missing: set[int] = set()
    async for part in in_slices(queues):
        missing.update(queue.uid for queue in part if _machine(sources, queue.uid) is None)
    there: dict[int, Figures] = {}
    if missing:
        rows = (await services.figures.everywhere(QUEUES)).all()
        there = {row["uid"]: row for row in rows if row["uid"] in missing}
    return lambda queue: take(services, queue) or there.get(queue.uid)


@dataclass(slots=True)
class _Sums:
    """Over the queues of a vhost: samples, rates, consumers."""

    values: list[int]
    rates: list[float]
    consumers: int = 0


def register(services: ManagementServices) -> None:
    """Answer other members what only this one knows of queues."""

    async def queues() -> Rows:
        """Queues led here of which not every member has a replica."""
        services.rates.want()
        rows: Rows = []
        members = len(services.catalog.view.members())
        async for uids in in_slices(list(services.listed.queues.led)):
            for uid in uids:
                record = services.listed.queues.queue_of(uid)
                if record is not None and len(record.members) < members:
                    here = figures(services, record)
                    if here is not None:
                        rows.append({"uid": uid, **here})
        return rows

    async def totals() -> Rows:
        """Sums of the queues led here, a row for each vhost: [sums], [rates]."""
        services.rates.want()
        sums: dict[str, _Sums] = {}
        async for uids in in_slices(list(services.listed.queues.led)):
            for uid in uids:
                record = services.listed.queues.queue_of(uid)
                taken = sample(services.listed, uid) if record is not None else None
                if record is None or taken is None:
                    continue
                into = sums.get(record.vhost)
                if into is None:
                    into = sums[record.vhost] = _Sums([0] * len(taken), [0.0] * len(taken))
                into.values = list(map(operator.add, into.values, taken))
                rates = services.rates.of(uid)
                if rates and rates is not STILL:
                    into.rates = list(map(operator.add, into.rates, rates))
                into.consumers += services.listed.queues.machine(uid).consumers.registered
        return [
            {"vhost": vhost, "sums": of.values, "rates": of.rates, "consumers": of.consumers}
            for vhost, of in sums.items()
        ]

    services.figures.register(QUEUES, queues)
    services.figures.register(TOTALS, totals)


def _value(part: str, at: int) -> Callable[[Figures], float]:
    if part == "consumers":
        return lambda found: found["consumers"]
    return lambda found: found[part][at]


# ---- in RabbitMQ's names ------------------------------------------------------------------------


def rate(value: float) -> Json:
    """Return what stands in `…_details`."""
    return {"rate": value}


#: What stands in `…_details` where nothing moves: one for all rows, which nobody changes.
_AT_REST = rate(0.0)


def stats(values: Sample, rates: Sequence[float]) -> Json:
    """Return message_stats, whose figures are there though nothing has happened yet."""
    made: Json = {}
    for name, at in _STATS_AT:
        made[name] = 0 if at is None else values[at]
        gained = 0.0 if at is None else rates[at]
        made[f"{name}_details"] = rate(gained) if gained else _AT_REST
    return made


def gauges(values: Sample, rates: Sequence[float]) -> Json:
    """Return the depths with their rates."""
    made: Json = {}
    for at, name in enumerate(GAUGES):
        made[name] = values[at]
        made[f"{name}_details"] = rate(rates[at]) if rates[at] else _AT_REST
    return made


#: What a list may be sorted by from `orders` alone: column, which part of them, and where in it.
_PLACES: Mapping[str, tuple[str, int]] = {
    "consumers": ("consumers", 0),
    **{name: ("sample", at) for at, name in enumerate(GAUGES)},
    **{f"{name}_details.rate": ("rates", at) for at, name in enumerate(GAUGES)},
    **{f"message_stats.{name}": ("sample", at) for name, at in _STATS_AT if at is not None},
    **{
        f"message_stats.{name}_details.rate": ("rates", at)
        for name, at in _STATS_AT
        if at is not None
    },
}
#: The same, with its value.
ORDERS: Mapping[str, Callable[[Figures], float]] = {
    column: _value(part, at) for column, (part, at) in _PLACES.items()
}
