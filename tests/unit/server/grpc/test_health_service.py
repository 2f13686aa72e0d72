"""grpc.health.v1 and reflection with their packages' own clients: who may ask, and what."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from brokerd.server.grpc import health_service
from brokerd.server.observe.health import HealthState
from tests.unit.server.grpc.test_grpc_server import GOOD, WAIT_S, failure, served, unary

Request = health_pb2.HealthCheckRequest
Response = health_pb2.HealthCheckResponse
NO_LOGIN = grpc.StatusCode.UNAUTHENTICATED


def health(channel: Any) -> Any:
    return health_pb2_grpc.HealthStub(channel)


async def status(channel: Any, service: str = "") -> Any:
    return (await health(channel).Check(Request(service=service), timeout=WAIT_S)).status


async def test_probes_need_no_login() -> None:
    hindrance = ""
    state = HealthState(hindrance=lambda: hindrance)
    async with served(state) as (_, channel, server):
        assert await status(channel) == Response.NOT_SERVING
        assert await status(channel, "brokerd.v1.Admin") == Response.SERVING
        state.ready = True
        assert await status(channel) == Response.SERVING
        assert await status(channel, "brokerd.v1.Messages") == Response.SERVING
        hindrance = "the log waits for descriptors"
        assert await status(channel) == Response.NOT_SERVING
        code, _ = await failure(health(channel).Check(Request(service="x"), timeout=WAIT_S))
        assert code is grpc.StatusCode.NOT_FOUND
        # That was no login: other calls need theirs.
        (connection,) = server._connections
        assert connection.is_stranger
        assert (await failure(unary(channel, b"x", metadata=())))[0] is NO_LOGIN


async def test_a_watch_hears_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_service, "POLL_S", 0.01)
    state = HealthState()
    async with served(state) as (_, channel, __):
        watch = health(channel).Watch(Request(), timeout=WAIT_S)
        assert (await watch.read()).status == Response.NOT_SERVING
        state.ready = True
        assert (await watch.read()).status == Response.SERVING
        state.ready = False
        assert (await watch.read()).status == Response.NOT_SERVING
        # The client of a channel that is watched logs in on the same connection.
        assert await unary(channel, b"x") == b"x1"
        unknown = health(channel).Watch(Request(service="x"), timeout=WAIT_S)
        assert (await unknown.read()).status == Response.SERVICE_UNKNOWN


async def test_strangers_hold_no_more_than_one_check_for_no_longer_than_their_time() -> None:
    """SEC-33: health checks are no way in."""
    async with served(handshake_timeout_ms=1000) as (_, channel, server):
        watch = health(channel).Watch(Request(), timeout=WAIT_S)
        await watch.read()
        code, text = await failure(health(channel).Check(Request(), timeout=WAIT_S))
        assert (code, text) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "one health check at a time without a login",
        )
        assert await watch.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(server._empty.wait(), WAIT_S)


async def listed(channel: Any, **more: Any) -> Any:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(**more)
    call = stub.ServerReflectionInfo(iter([request]), metadata=GOOD, timeout=WAIT_S)
    return await call.read()


async def test_reflection_shows_the_services_to_who_has_logged_in() -> None:
    async with served() as (_, channel, __):
        answer = await listed(channel, list_services="")
        assert [service.name for service in answer.list_services_response.service] == [
            "brokerd.v1.Admin",
            "brokerd.v1.Messages",
            "brokerd.v1.Telemetry",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        ]
        for service in ("Admin", "Messages", "Telemetry"):
            answer = await listed(channel, file_containing_symbol=f"brokerd.v1.{service}")
            (raw,) = answer.file_descriptor_response.file_descriptor_proto
            file = descriptor_pb2.FileDescriptorProto.FromString(raw)
            assert service in [each.name for each in file.service]
            # Go and Java make no stubs without them.
            assert file.options.go_package == "brokerd.io/rpc/v1;brokerdv1"
            assert file.options.java_package == "io.brokerd.rpc.v1"
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        assert await stub.ServerReflectionInfo(timeout=WAIT_S).code() is NO_LOGIN
