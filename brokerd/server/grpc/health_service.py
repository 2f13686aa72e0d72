"""grpc.health.v1 at the gRPC port: Kubernetes' probes and clients' own look at a member.

Without login, as probes have none: rpc_connection.py says what strangers may ask.  What "serving"
means is said by observe/health.py alone.  The protocol: https://grpc.io/docs/guides/health-checking/
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from brokerd.server.grpc.ports import Health

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

#: Time between two looks at the health, whose changes are not announced.
POLL_S = 1.0
MESSAGES, ADMIN, TELEMETRY = "brokerd.v1.Messages", "brokerd.v1.Admin", "brokerd.v1.Telemetry"

_Status = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):
    """Answers for the member (no name) and for each service."""

    def __init__(self, state: Health) -> None:
        self._state = state

    def _status(self, service: str) -> Any:
        if service in (ADMIN, TELEMETRY):
            # They answer while the member waits for others, and in maintenance.
            return _Status.SERVING
        if service not in ("", MESSAGES):
            return _Status.SERVICE_UNKNOWN
        is_ready = self._state.ready and not self._state.hindrance()
        return _Status.SERVING if is_ready else _Status.NOT_SERVING

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Tell whether it serves now."""
        status = self._status(request.service)
        if status == _Status.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Tell it now, and each time that it changes."""
        told: int | None = None
        while True:
            status = self._status(request.service)
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status)
            await asyncio.sleep(POLL_S)
