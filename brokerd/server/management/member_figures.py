"""Figures of one member since its start, in RabbitMQ's names: churn, and messages by their fate.

The overview adds up those of all members, which its rows of nodes bring along (nodes.py).  Rates
come from the same samples as those of queues (rates.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from brokerd.raft.messages import CATALOG_GROUP
from brokerd.server.management import queue_figures
from brokerd.server.management.call import Json
from brokerd.server.management.queue_figures import rate
from brokerd.server.management.rates import Rates, Sample

if TYPE_CHECKING:
    from brokerd.server.listings.ports import Sources
    from brokerd.server.listings.totals import MemberTotals
    from brokerd.server.management.ports import ManagementServices

#: Under which the member itself stands among the samples; no queue has it.
MEMBER = CATALOG_GROUP
CHURN = (
    *("channel_closed", "channel_created", "connection_closed", "connection_created"),
    *("queue_created", "queue_declared", "queue_deleted"),
)
MESSAGES = (
    *("ack", "confirm", "deliver", "deliver_get", "deliver_no_ack", "drop_unroutable", "get"),
    *("get_empty", "get_no_ack", "publish", "redeliver", "return_unroutable"),
)


def make_rates(sources: Sources, totals: MemberTotals) -> Rates:
    """Return samples of the member and of its queues."""
    return Rates(
        lambda: [MEMBER, *sources.queues.queue_uids()],
        functools.partial(_sample, sources, totals),
        sources.groups.watch(),
        always=(MEMBER,),
        begin=sources.queues.table.take,
    )


def _sample(sources: Sources, totals: MemberTotals, uid: int) -> Sample | None:
    return _figures(totals) if uid == MEMBER else queue_figures.sample(sources, uid)


def _figures(totals: MemberTotals) -> Sample:
    churn, messages = totals.churn(), totals.messages()
    return *(churn[name] for name in CHURN), *(messages[name] for name in MESSAGES)


def own(services: ManagementServices) -> tuple[Json, Json]:
    """Return this member's churn and messages, each with its rate."""
    values = _figures(services.totals)
    rates = services.rates.of(MEMBER) or (0.0,) * len(values)
    found = dict(zip((*CHURN, *MESSAGES), zip(values, rates, strict=True), strict=True))
    return _shown(found, CHURN), _shown(found, MESSAGES)


def added(rows: Iterable[Json], names: Iterable[str]) -> Json:
    """Return the sums of these figures over rows, and of their rates."""
    given = list(rows)
    found = {}
    for name in names:
        rates: list[float] = [row[f"{name}_details"]["rate"] for row in given]
        found[name] = sum(int(row[name]) for row in given), sum(rates)
    return _shown(found, names)


def _shown(found: Mapping[str, tuple[int, float]], names: Iterable[str]) -> Json:
    made: Json = {}
    for name in names:
        value, gained = found[name]
        made |= {name: value, f"{name}_details": rate(gained)}
    return made
