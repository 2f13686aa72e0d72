"""Figures of single queues, in RabbitMQ's names: from the replica here, else from who has one.

Every replica applies the same commands, so that a member answers for each queue that it holds; of
the others it asks those who lead them (figures.py).  Deliveries are counted as one figure by the
queue: `deliver` has gets and deliveries without acknowledgement in it, too (docs/compatibility.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import NodeId
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
#: Of rates, where nothing is known yet.
_STILL = (0.0,) * (len(GAUGES) + len(COUNTERS))


def sample(sources: Sources, uid: int) -> Sample | None:
    """Return what rates are made of; None where no replica is here."""
    if not sources.groups.has_group(uid) or sources.queues.queue_of(uid) is None:
        return None
    machine = sources.queues.machine(uid)
    ready, unacked = machine.store.ready, machine.unacked
    counters = machine.counters
    return (
        ready + unacked + machine.letters.count,
        ready,
        unacked,
        *(counters[name] for name in COUNTERS),
    )


def figures(services: ManagementServices, queue: Queue) -> Figures | None:
    """Return the figures of a queue that has a replica here, None of others."""
    sources, uid = services.listed, queue.uid
    if not sources.groups.has_group(uid):
        return None
    machine = sources.queues.machine(uid)
    found = sample(sources, uid)
    if found is None:
        return None
    head = machine.store.head()
    return {
        "leader": sources.groups.leader_of(uid) or "",
        "sample": found,
        "rates": services.rates.of(uid) or _STILL,
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


def _single_active(machine: QueueMachine) -> str | None:
    """Return the tag of the consumer that is active alone (R-CS-7)."""
    active = machine.consumers.active if machine.options.single_active_consumer else None
    return active.id.tag if active is not None else None


async def of_all(
    services: ManagementServices, queues: Iterable[Queue]
) -> tuple[list[Queue], dict[int, Figures]]:
    """Return these queues, and the figures of those of which anybody knows any, by uid."""
    records = list(queues)
    found: dict[int, Figures] = {}
    missing = False
    async for part in in_slices(range(len(records))):
        for i in part:
            record = records[i]
            here = figures(services, record)
            if here is None:
                missing = True
            else:
                found[record.uid] = here
    if missing:
        wanted = {record.uid for record in records} - found.keys()
        rows = (await services.figures.everywhere(QUEUES)).all()
        found |= {row["uid"]: row for row in rows if row["uid"] in wanted}
    return records, found


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
        sums: dict[str, tuple[list[int], list[float], list[int]]] = {}
        async for uids in in_slices(list(services.listed.queues.led)):
            for uid in uids:
                record = services.listed.queues.queue_of(uid)
                taken = sample(services.listed, uid) if record is not None else None
                if record is None or taken is None:
                    continue
                into = sums.get(record.vhost)
                if into is None:
                    into = sums[record.vhost] = ([0] * len(taken), [0.0] * len(taken), [0])
                for i, value in enumerate(taken):
                    into[0][i] += value
                for i, rate in enumerate(services.rates.of(uid)):
                    into[1][i] += rate
                into[2][0] += services.listed.queues.machine(uid).consumers.registered
        return [
            {"vhost": vhost, "sums": values, "rates": rates, "consumers": consumers[0]}
            for vhost, (values, rates, consumers) in sums.items()
        ]

    services.figures.register(QUEUES, queues)
    services.figures.register(TOTALS, totals)


# ---- in RabbitMQ's names ------------------------------------------------------------------------


def rate(value: float) -> Json:
    """Return what stands in `…_details`."""
    return {"rate": value}


def stats(values: Sample, rates: Iterable[float]) -> Json:
    """Return message_stats, whose figures are there though nothing has happened yet."""
    count = len(GAUGES)
    counted = dict(zip(COUNTERS, values[count:], strict=True))
    gained = dict(zip(COUNTERS, tuple(rates)[count:], strict=True))
    made: Json = {}
    for name, counter in STATS:
        made[name] = 0 if counter is None else counted[counter]
        made[f"{name}_details"] = rate(0.0 if counter is None else gained[counter])
    return made


def gauges(values: Sample, rates: Iterable[float]) -> Json:
    """Return the depths with their rates."""
    made: Json = {}
    for name, value, gained in zip(GAUGES, values, rates, strict=False):
        made[name] = value
        made[f"{name}_details"] = rate(gained)
    return made


def online(services: ManagementServices, queue: Queue) -> list[str]:
    """Return the members of a queue that are up."""
    alive = services.listed.groups.alive() | {NodeId(services.node)}
    return [node for node in queue.members if NodeId(node) in alive]
