"""Endpoints that show exchanges: all, of a vhost, one; of those that keep messages, what waits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from brokerd.core.catalog import names, policy
from brokerd.core.catalog.catalog_objects import Exchange
from brokerd.server.listings import delayed_exchanges
from brokerd.server.loop.chunks import in_chunks
from brokerd.server.management import listing, objects
from brokerd.server.management.call import Answer, Call, Json, not_found
from brokerd.server.management.figures import Rows
from brokerd.server.management.routes import Right, Route

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.server.management.ports import ManagementServices

#: Who made what the cluster has from its beginning.
INTERNAL_USER = "rmq-internal"
#: The kind of rows that this module asks the members for.
WAITING = "delayed_exchanges"


def row(view: CatalogState, exchange: Exchange) -> Json:
    """Return an exchange as RabbitMQ shows it; who declared it is not kept."""
    found: Json = {
        "name": exchange.name,
        "vhost": exchange.vhost,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": exchange.arguments,
        "user_who_performed_action": INTERNAL_USER,
    }
    name = policy.effective_exchange(view, exchange).policy
    if name is not None:
        found["policy"] = name
    return found


def register(services: ManagementServices) -> None:
    """Answer other members what waits in the exchanges whose queues are led here."""
    listed = services.listed

    async def waiting() -> Rows:
        rows: Rows = []
        async for uids in in_chunks(list(listed.queues.led)):
            listed.queues.table.take()
            for uid in uids:
                queue = listed.queues.queue_of(uid)
                if queue is None or not names.is_delayed_queue(queue.name):
                    continue
                found = delayed_exchanges.waiting(listed, uid, time.time_ns() // 1_000_000)
                if found is not None:
                    rows.append({"uid": uid, **found.as_json()})
        return rows

    services.figures.register(WAITING, waiting)


async def _with_waiting(call: Call, rows: list[Json], exchanges: Sequence[Exchange]) -> None:
    """Add what waits to the rows of exchanges that keep messages, as the plug-in does."""
    view = call.services.catalog.view
    queues = [delayed_exchanges.queue_of(view, exchange) for exchange in exchanges]
    if not any(queues):
        return
    found = (await call.services.figures.everywhere(WAITING)).all()
    by_uid = {each.pop("uid"): each for each in ({**each} for each in found)}
    for row, queue in zip(rows, queues, strict=True):
        if queue is not None:
            row |= by_uid.get(queue.uid, {})


async def _list(call: Call) -> Answer:
    view = call.services.catalog.view
    if "vhost" in call.parts and call.vhost not in view.vhosts:
        raise not_found()
    exchanges = [
        each[name]
        for vhost in call.visible_vhosts()
        for each in (view.vhosts[vhost].exchanges,)
        for name in sorted(each)
    ]
    rows = [row(view, exchange) for exchange in exchanges]
    await _with_waiting(call, rows, exchanges)
    return Answer(value=await listing.answer(rows, call.query))


async def _get(call: Call) -> Answer:
    exchange = objects.existing_exchange(call)
    found = row(call.services.catalog.view, exchange)
    await _with_waiting(call, [found], [exchange])
    found |= {"incoming": [], "outgoing": []}
    return Answer(value=listing.chosen(found, listing.columns_of(call.query)))


ROUTES = (
    Route("GET", "/api/exchanges", Right.MANAGEMENT, _list, "All exchanges"),
    Route("GET", "/api/exchanges/{vhost}", Right.VHOST_VISIBLE, _list, "Exchanges of a vhost"),
    Route("GET", "/api/exchanges/{vhost}/{name}", Right.VHOST_VISIBLE, _get, "One exchange"),
)
