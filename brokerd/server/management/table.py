"""All endpoints of the management API: a module of endpoints adds its ROUTES here."""

from __future__ import annotations

from brokerd.server.management import identity, reference
from brokerd.server.management.routes import Table

_ENDPOINTS = (*identity.ROUTES,)

TABLE = Table((*_ENDPOINTS, *reference.routes(_ENDPOINTS)))
