"""Endpoints that show exchanges: all, of a vhost, one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.core.catalog import policy
from brokerd.core.catalog.catalog_objects import Exchange
from brokerd.server.management import listing, objects
from brokerd.server.management.call import Answer, Call, Json, not_found
from brokerd.server.management.routes import Right, Route

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_state import CatalogState

#: Who made what the cluster has from its beginning.
INTERNAL_USER = "rmq-internal"


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


async def _list(call: Call) -> Answer:
    view = call.services.catalog.view
    if "vhost" in call.parts and call.vhost not in view.vhosts:
        raise not_found()
    rows = [
        row(view, exchanges[name])
        for vhost in call.visible_vhosts()
        for exchanges in (view.vhosts[vhost].exchanges,)
        for name in sorted(exchanges)
    ]
    return Answer(value=await listing.answer(rows, call.query))


async def _get(call: Call) -> Answer:
    found = row(call.services.catalog.view, objects.existing_exchange(call))
    found |= {"incoming": [], "outgoing": []}
    return Answer(value=listing.chosen(found, listing.columns_of(call.query)))


ROUTES = (
    Route("GET", "/api/exchanges", Right.MANAGEMENT, _list, "All exchanges"),
    Route("GET", "/api/exchanges/{vhost}", Right.VHOST_VISIBLE, _list, "Exchanges of a vhost"),
    Route("GET", "/api/exchanges/{vhost}/{name}", Right.VHOST_VISIBLE, _get, "One exchange"),
)
