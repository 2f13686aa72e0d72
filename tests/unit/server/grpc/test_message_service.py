"""How calls of the Messages service end, with gRPC's own server and client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from brokerd.core.catalog.identity import Identity
from brokerd.rpc.v1 import messages_pb2, messages_pb2_grpc
from brokerd.server.access.connections import GuestCall
from brokerd.server.grpc import message_service, rpc_errors
from brokerd.server.grpc.message_service import MessageService
from brokerd.server.grpc.publish_channel import Caller
from brokerd.server.queues.identity import Process
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.server.fakes import Nobody

GUEST = Identity("guest")
RESPONSE = messages_pb2.ConsumeResponse(cancelled="first")


class Calls:
    """A register in which nobody looks."""

    call_count = 0

    def call_opened(self, call: GuestCall) -> None:
        """Nobody counts it."""

    def call_gone(self, call: GuestCall) -> None:
        """Nobody counts it."""


class Services:
    """What a call that does nothing asks for."""

    identity = Process("n0", 1)
    clock_ms = staticmethod(lambda: 0)


class CutOff(MessageService):
    """Calls that end while their first response is being written."""

    async def _open(self, context: Any) -> Any:
        return Caller(GUEST, GUEST.access(CatalogDriver().view, "/"), "a test")

    async def Consume(self, request_iterator: AsyncIterator[Any], context: Any) -> None:
        await self._serve(context, lambda caller: self._work(context))

    async def _work(self, context: Any) -> None:
        writing = asyncio.create_task(context.write(RESPONSE))
        # It has begun, and gRPC has not said yet that it is done.
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        refused = rpc_errors.CallRefused(grpc.StatusCode.INVALID_ARGUMENT, "a mistake")
        await rpc_errors.abort(context, refused)


async def test_a_call_that_ends_within_a_write_has_its_status() -> None:
    """SEC-53: a client that heard nothing waited until its own deadline."""
    nobody: Any = Nobody()
    services: Any = Services()
    service = CutOff(services, nobody, nobody, Calls(), lambda: True)
    server = grpc.aio.server()
    messages_pb2_grpc.add_MessagesServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = messages_pb2_grpc.MessagesStub(channel)  # type: ignore[no-untyped-call]
            call = stub.Consume(timeout=30)
            assert await call.read() == RESPONSE
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert await call.details() == "a mistake"
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("metadata", "vhost"),
    [
        ({}, "/"),
        ({"vhost": "v"}, "v"),
        ({"vhost-bin": "w7w="}, "ü"),
        ({"vhost-bin": "w7w"}, "ü"),
        ({"vhost-bin": ""}, ""),
    ],
)
def test_a_call_names_its_vhost(metadata: dict[str, str], vhost: str) -> None:
    assert message_service._vhost_of(metadata) == vhost


@pytest.mark.parametrize(
    "metadata", [{"vhost-bin": "w7w!"}, {"vhost-bin": "/w"}, {"vhost-bin": "w7w", "vhost": "v"}]
)
def test_a_vhost_that_cannot_be_read_is_not_the_default_one(metadata: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="vhost-bin"):
        message_service._vhost_of(metadata)
