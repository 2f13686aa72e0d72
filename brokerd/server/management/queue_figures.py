"""Figures of single queues, in RabbitMQ's names: from the replica here, else from who has one.

Every replica applies the same commands, so that a member answers for each queue that it holds, from
the table that it keeps (queues/table.py); of the others it asks those who lead them
(figures.py).  Deliveries are counted as one figure by the queue: `deliver` has gets and deliveries
without acknowledgement in it, too (docs/compatibility.md).
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.queue.queue_summary import UNKNOWN
from brokerd.server.listings import memory_breakdown
from brokerd.server.loop.chunks import in_chunks
from brokerd.server.management.call import Json
from brokerd.server.management.figures import Rows
from brokerd.server.management.rates import Sample
from brokerd.server.queues.table import AT, PLACES

if TYPE_CHECKING:
    from brokerd.server.listings.ports import Sources
    from brokerd.server.management.ports import ManagementServices
    from brokerd.server.queues.table import QueueTable

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
#: What a sample has of a row (queues/table.py), and beside it the figures of a list.
_SAMPLED = ("messages", "ready", "unacked", *COUNTERS)
_sample = operator.itemgetter(*(AT[name] for name in _SAMPLED))
_LISTED = (
    *("ready_bytes", "unacked_bytes", "dl_pending", "consumers"),
    *("memory_bytes", "head_ms", "used_ms", "delivery_limit", "delayed"),
    *("returned", "publishers"),
)
_listed = operator.itemgetter(*(AT[name] for name in _LISTED))
_CONSUMERS = AT["consumers"]


def sample(sources: Sources, uid: int) -> Sample | None:
    """Return what rates are made of; None where no replica is here."""
    row = _row(sources, uid)
    return None if row is None else _sample(row)


def _row(sources: Sources, uid: int) -> array[int] | None:
    """Return a queue's row; None where no replica is here, or it is deleted."""
    return sources.queues.table.row_of(uid) if _is_here(sources, uid) else None


def _is_here(sources: Sources, uid: int) -> bool:
    return sources.groups.has_group(uid) and sources.queues.queue_of(uid) is not None


def figures(services: ManagementServices, queue: Queue) -> Figures | None:
    """Return the figures of a queue that has a replica here, None of others."""
    sources, uid = services.listed, queue.uid
    row = _row(sources, uid)
    if row is None:
        return None
    ready_bytes, unacked_bytes, letters, consumers, *more = _listed(row)
    memory_bytes, head_ms, used_ms, limit, delayed, returned, publishers = more
    bodies = ready_bytes + unacked_bytes
    return {
        "leader": sources.groups.leader_of(uid) or "",
        "sample": _sample(row),
        "rates": services.rates.of(uid) or STILL,
        "ready_bytes": ready_bytes,
        "unacked_bytes": unacked_bytes,
        "dlx": letters,
        "delayed": delayed,
        "returned": returned,
        "publishers": publishers,
        "levels": sources.queues.table.levels_of(uid),
        "consumers": consumers,
        "memory": memory_breakdown.queue_bytes(memory_bytes, bodies, is_durable=queue.durable),
        "head_ms": None if head_ms == UNKNOWN else head_ms,
        "used_ms": None if used_ms == UNKNOWN else used_ms,
        "limit": None if limit == UNKNOWN else limit,
        "single": sources.queues.table.single_of(uid),
    }


def orders(services: ManagementServices, queue: Queue) -> Figures | None:
    """Return those of the figures that lists are sorted by: a third of the work."""
    row = _row(services.listed, queue.uid)
    if row is None:
        return None
    return {
        "sample": _sample(row),
        "rates": services.rates.of(queue.uid) or STILL,
        "consumers": row[_CONSUMERS],
    }


async def _values(
    services: ManagementServices, queues: Sequence[Queue], column: str
) -> list[float | None]:
    """Return the value of each of these queues in one of ORDERS; None where no replica is here.

    A list of 10,000 is sorted by it, so nothing but that value is looked at.
    """
    rates, table = services.rates, services.listed.queues.table
    part, at = _PLACES[column]
    uids: list[int] = []
    async for some in in_chunks(queues, PLACES):
        uids += [queue.uid for queue in some]
    name = "consumers" if part == "consumers" else _SAMPLED[at]
    found: list[float | None] = [*await table.values_of(uids, name)]
    if part == "rates":
        moving = rates.moving
        async for places in in_chunks(range(len(uids)), PLACES):
            for place in places:
                uid = uids[place]
                if found[place] is not None:
                    found[place] = (rates.of(uid) or STILL)[at] if uid in moving else 0.0
    return found


async def column_of_all(
    services: ManagementServices, queues: Sequence[Queue], column: str
) -> list[float | None]:
    """Return the value of each of these queues in one of ORDERS, None where it is not known."""
    found = await _values(services, queues, column)
    if None in found:
        rows = {row["uid"]: row for row in (await services.figures.everywhere(QUEUES)).all()}
        for place, queue in enumerate(queues):
            if found[place] is None and queue.uid in rows:
                found[place] = ORDERS[column](rows[queue.uid])
    return found


#: Figures of a queue that has a replica here: `figures`, or some of them.
Take: TypeAlias = Callable[["ManagementServices", Queue], Figures | None]


async def known(
    services: ManagementServices, queues: Sequence[Queue], take: Take = figures
) -> Callable[[Queue], Figures | None]:
    """Return what gives the figures of one of these queues, None for one of which none are known.

    Those of replicas here are taken on request and not kept: 10,000 dicts at once would be looked
    at by Python's collector, which takes 7 ms.
    """
    sources = services.listed
    sources.queues.table.take()
    missing: set[int] = set()
    async for part in in_chunks(queues):
        missing.update(queue.uid for queue in part if not _is_here(sources, queue.uid))
    there: dict[int, Figures] = {}
    if missing:
        rows = (await services.figures.everywhere(QUEUES)).all()
        there = {row["uid"]: row for row in rows if row["uid"] in missing}
    return lambda queue: take(services, queue) or there.get(queue.uid)


@dataclass(slots=True)
class _Sums:
    """Over the queues of a vhost: samples, rates, consumers."""

    values: list[int]
    consumers: int
    rates: list[float] = field(default_factory=lambda: list(STILL))


async def _add_up(table: QueueTable) -> dict[str, _Sums]:
    """Return the sums of the queues led here, by vhost, without their rates."""
    return {
        vhost: _Sums(list(_sample(sums.values)), sums.values[_CONSUMERS])
        for vhost, sums in (await table.sums_led()).items()
    }


async def _add_rates(services: ManagementServices, sums: Mapping[str, _Sums]) -> None:
    """Add the rates of the queues led here, which are 0 but for those that move."""
    queues, rates = services.listed.queues, services.rates
    async for uids in in_chunks(list(rates.moving & queues.led.keys())):
        for uid in uids:
            record = queues.queue_of(uid)
            into = None if record is None else sums.get(record.vhost)
            if into is not None:
                into.rates = list(map(operator.add, into.rates, rates.of(uid) or STILL))


def register(services: ManagementServices) -> None:
    """Answer other members what only this one knows of queues."""

    async def queues() -> Rows:
        """Queues led here of which not every member has a replica."""
        services.rates.want()
        services.listed.queues.table.take()
        rows: Rows = []
        members = len(services.catalog.view.members())
        async for uids in in_chunks(list(services.listed.queues.led)):
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
        sums = await _add_up(services.listed.queues.table)
        await _add_rates(services, sums)
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


#: What stands in `…_details` where nothing moves: one for all rows, which is never changed.
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
