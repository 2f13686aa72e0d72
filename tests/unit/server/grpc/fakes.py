"""What the services of the gRPC port ask for, made up, for the tests of this room."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from brokerd.core import profiles
from brokerd.core.catalog.identity import Identity
from brokerd.server.grpc import rpc_auth, rpc_errors
from brokerd.server.grpc.grpc_server import Servicers
from brokerd.server.grpc.health_service import HealthService
from brokerd.server.grpc.ports import AdminServices
from brokerd.server.observe.health import HealthState
from tests.unit.server.access.fakes import authenticator
from tests.unit.server.fakes import Nobody


class OneCaller:
    """Callers of whom one is known, by the whole of the authorization header."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def log_in(self, metadata: Any, peer: str) -> rpc_auth.Caller:
        assert peer.startswith("ipv4:127.0.0.1:")
        # Checking takes its time.
        await asyncio.sleep(0)
        if metadata.get("authorization") != self._token:
            raise rpc_errors.CallRefused(grpc.StatusCode.UNAUTHENTICATED, "nobody")
        return rpc_auth.Caller(Identity("somebody"))


class Servicer:
    """One whose methods nobody calls."""

    def __getattr__(self, name: str) -> Any:
        return None


def servicers(admin: Any = None, state: HealthState | None = None) -> Servicers:
    """Return services that do nothing, Admin aside where it is given, and the one of health."""
    nothing: Any = Servicer()
    health = HealthService(HealthState() if state is None else state)
    return Servicers(nothing if admin is None else admin, nothing, nothing, health)


def admin_services(catalog: Any, **parts: Any) -> AdminServices:
    """Return what the Admin service shares: this catalog, and nobody behind the other parts."""
    who = authenticator(catalog.view)
    made: dict[str, Any] = dict.fromkeys(AdminServices.__slots__, Nobody())
    made |= {
        "callers": rpc_auth.Callers(who, catalog.view),
        "authenticator": who,
        "node": "n0",
        "incarnation": 1,
        "profile": profiles.configured("rabbitmq-4.3", {}),
        "catalog": catalog,
    }
    return AdminServices(**made | parts)
