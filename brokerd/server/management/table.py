"""All endpoints of the management API: a module of endpoints adds its ROUTES here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.server.management import (
    bindings,
    exchanges,
    identity,
    messages,
    nodes,
    objects,
    queue_figures,
    queues,
    reference,
)
from brokerd.server.management.pages import site
from brokerd.server.management.routes import Table

if TYPE_CHECKING:
    from brokerd.server.management.ports import ManagementServices

_ENDPOINTS = (
    *identity.ROUTES,
    *nodes.ROUTES,
    *queues.ROUTES,
    *exchanges.ROUTES,
    *bindings.ROUTES,
    *objects.ROUTES,
    *messages.ROUTES,
    *site.ROUTES,
)

TABLE = Table((*_ENDPOINTS, *reference.routes(_ENDPOINTS)))


def register(services: ManagementServices) -> None:
    """Have this member answer what others ask it for their rows."""
    queue_figures.register(services)
    nodes.register(services)
