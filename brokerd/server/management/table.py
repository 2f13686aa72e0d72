"""All endpoints of the management API: a module of endpoints adds its ROUTES here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.server.management import (
    bindings,
    browse,
    clients,
    definitions,
    exchanges,
    health_checks,
    identity,
    links,
    logins,
    messages,
    nodes,
    objects,
    parameters,
    permissions,
    policies,
    queue_figures,
    queue_jobs,
    queues,
    reference,
    replicas,
    users,
    vhosts,
)
from brokerd.server.management.pages import messages as message_pages
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
    *vhosts.ROUTES,
    *users.ROUTES,
    *permissions.ROUTES,
    *policies.ROUTES,
    *parameters.ROUTES,
    *definitions.ROUTES,
    *clients.ROUTES,
    *health_checks.ROUTES,
    *links.ROUTES,
    *replicas.ROUTES,
    *logins.ROUTES,
    *messages.ROUTES,
    *browse.ROUTES,
    *queue_jobs.ROUTES,
    *site.ROUTES,
    *message_pages.ROUTES,
)

TABLE = Table((*_ENDPOINTS, *reference.routes(_ENDPOINTS)))


def register(services: ManagementServices) -> None:
    """Have this member answer what others ask it for their rows."""
    queue_figures.register(services)
    exchanges.register(services)
    nodes.register(services)
    clients.register(services)
    logins.register(services)
