"""How calls of Messages end when a part of them fails, and when they are cancelled in between."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest

from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.config import BrokerConfig, LimitConfig
from brokerd.core.catalog.identity import Identity
from brokerd.core.queue import enqueue_commands
from brokerd.rpc.v1 import messages_pb2, messages_pb2_grpc
from brokerd.server.access.blocked_clients import BlockedClients
from brokerd.server.grpc import rpc_auth, rpc_call
from brokerd.server.grpc.consume_stream import ConsumeStream
from brokerd.server.grpc.grpc_server import GrpcServer
from brokerd.server.grpc.message_service import MessageService
from brokerd.server.grpc.publish_channel import Caller
from brokerd.server.grpc.publish_stream import PublishStream
from brokerd.server.messages.reply_to import Replies
from brokerd.server.queues.client import QueueClient
from brokerd.server.queues.identity import Process
from tests.ports import free_ports
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.server.fakes import Nobody
from tests.unit.server.grpc.fakes import OneCaller, servicers
from tests.unit.server.grpc.test_message_service import Calls
from tests.unit.server.messages import fakes

GUEST = Identity("guest")
GOOD = (("authorization", "good"),)
WAIT_S = 60.0
REQUEST = messages_pb2.PublishRequest(
    publications=[messages_pb2.Publication(sequence=1, routing_key="q", body=b"body")]
)
REQUEST_2 = messages_pb2.PublishRequest(
    publications=[messages_pb2.Publication(sequence=2, routing_key="q", body=b"body")]
)


class Groups:
    """Keeps what queues are sent; fails instead where a defect is planted."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.ended: list[int] = []
        self.defect: Exception | None = None

    def refuses_lines(self, uid: int) -> bool:
        return False

    def send(self, uid: int, command: bytes, done: Any, once: bool = False, **_: object) -> None:
        if once:
            self.ended.append(uid)
            return
        if self.defect is not None:
            raise self.defect
        self.sent.append((enqueue_commands.EnqueueView(command).count, done))

    def answer(self, taken: int | None = None) -> None:
        """Take over what came first, or so much of it."""
        count, done = self.sent.pop(0)
        ok = enqueue_commands.EnqueueStatus.OK
        accepted = count if taken is None else taken
        done(ReplyStatus.OK, enqueue_commands.encode_enqueue_reply(ok, accepted))


@dataclass
class Queues:
    """The way to the queues' leaders."""

    groups: Groups


class Services:
    """What a call asks of a member, over one catalog with a queue `q`."""

    def __init__(self) -> None:
        self.catalog = CatalogDriver()
        self.catalog.queue("q")
        groups: Any = Groups()
        nobody: Any = Nobody()
        self.queues = Queues(groups)
        self.limits = LimitConfig()
        self.identity = Process("n0", 1)
        self.messages = fakes.Routing(self.catalog)
        self.replies = Replies(fakes.Identity("n0"), nobody, self.catalog.view)
        self.queue_client = QueueClient(fakes.turn(groups, "n0"), 1)
        self.blocked = BlockedClients()
        self.topology = self
        self.topology_revision = 1

    @staticmethod
    def clock_ms() -> int:
        return 0

    @staticmethod
    def blocking_reason() -> str:
        return ""

    def caller(self) -> Caller:
        return Caller(GUEST, GUEST.access(self.catalog.view, "/"), "a test")


class AnyCaller:
    """Callers of whom each is guest."""

    async def authenticate(self, context: Any, needed: Any) -> rpc_auth.Caller:
        return rpc_auth.Caller(GUEST)


class Door(MessageService):
    """Lets everybody in as guest."""

    async def _open(self, context: Any) -> Any:
        services: Any = self._services
        return services.caller()


@contextlib.asynccontextmanager
async def served(services: Any) -> AsyncIterator[tuple[Any, GrpcServer]]:
    """Serve Messages at the port that clients know; yield its stub and the server."""
    (port,) = free_ports(1)
    config = BrokerConfig.model_validate(
        {"node": {"bind": "127.0.0.1"}, "listeners": {"grpc": port}}
    )
    nobody: Any = Nobody()
    callers: Any = OneCaller("good")
    anybody: Any = AnyCaller()
    messages = Door(services, anybody, nobody, Calls(), lambda: True)
    others = servicers()
    server = GrpcServer(config.limits, callers, replace(others, messages=messages), [])
    await server.start(config)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield messages_pb2_grpc.MessagesStub(channel), server  # type: ignore[no-untyped-call]
    finally:
        await server.stop()


def broken_clock() -> int:
    """Stand for a defect in what counts confirms."""
    raise RuntimeError("a bug")


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    async with asyncio.timeout(WAIT_S):
        return await call.code(), await call.details()


async def until(check: Callable[[], bool]) -> None:
    """Poll with a deadline: nothing tells."""
    async with asyncio.timeout(WAIT_S):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_defect_behind_the_reader_ends_the_call(caplog: pytest.LogCaptureFixture) -> None:
    """What was read is sent when the loop comes to it: nobody awaits that, the client least."""
    services = Services()
    clock, services.messages.counters.clock_us = services.messages.counters.clock_us, broken_clock
    async with served(services) as (stub, server):
        call = stub.Publish(metadata=GOOD)
        # The client keeps its side open, and has no deadline.
        await call.write(REQUEST)
        code, text = await status_of(call)
        assert (code, text) == (
            grpc.StatusCode.INTERNAL,
            "Unexpected <class 'RuntimeError'>: a bug",
        )
        assert server.budget.used == 0
        (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
        assert record.getMessage() == "gRPC /brokerd.v1.Messages/Publish failed"
        assert record.exc_info is not None
        # The next call is another one.
        services.messages.counters.clock_us = clock
        call = stub.Publish(metadata=GOOD)
        await call.write(REQUEST)
        await until(lambda: bool(services.queues.groups.sent))
        services.queues.groups.answer()
        assert [(each.first, each.last) for each in (await call.read()).confirmed] == [(1, 1)]
        await call.done_writing()
        assert (await status_of(call))[0] is grpc.StatusCode.OK


async def test_a_defect_of_the_writer_ends_the_call(caplog: pytest.LogCaptureFixture) -> None:
    services = Services()
    async with served(services) as (stub, _):
        call = stub.Publish(metadata=GOOD)
        await call.write(REQUEST)
        await until(lambda: bool(services.queues.groups.sent))
        services.messages.counters.clock_us = broken_clock
        services.queues.groups.answer()
        assert (await status_of(call))[0] is grpc.StatusCode.INTERNAL
    assert "gRPC /brokerd.v1.Messages/Publish failed" in caplog.text


async def test_a_member_that_stops_answers_what_it_has_read() -> None:
    services = Services()
    async with served(services) as (stub, server):
        call = stub.Publish(metadata=GOOD)
        await call.write(REQUEST)
        await until(lambda: bool(services.queues.groups.sent))
        stopping = asyncio.create_task(server.stop())
        # The client has heard that no further call is taken: nothing that it sends now is read.
        (connection,) = server._connections
        await until(lambda: connection.http2.is_leaving)
        await call.write(REQUEST_2)
        services.queues.groups.answer()
        assert [(each.first, each.last) for each in (await call.read()).confirmed] == [(1, 1)]
        code, text = await status_of(call)
        assert (code, text) == (
            grpc.StatusCode.UNAVAILABLE,
            "this member stops: try again, elsewhere",
        )
        await stopping
        assert services.queues.groups.sent == []


async def test_a_member_that_stops_does_not_wait_for_ever_for_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpc_call, "ANSWERS_S", 0.05)
    services = Services()
    async with served(services) as (stub, server):
        call = stub.Publish(metadata=GOOD)
        await call.write(REQUEST)
        await until(lambda: bool(services.queues.groups.sent))
        await asyncio.wait_for(server.stop(), WAIT_S)
        assert (await status_of(call))[0] is grpc.StatusCode.UNAVAILABLE


class BrokenContext:
    """A call whose answers cannot be written."""

    async def write(self, message: Any) -> None:
        raise RuntimeError("a bug")


async def test_a_defect_of_a_consumers_writer_is_not_a_call_that_went_well() -> None:
    services: Any = Services()
    context: Any = BrokenContext()
    stream = ConsumeStream(services, services.caller(), context)

    async def requests() -> AsyncIterator[messages_pb2.ConsumeRequest]:
        await asyncio.Event().wait()
        yield messages_pb2.ConsumeRequest()

    nobody: Any = Nobody()
    stream.consumer_cancelled(nobody, "its queue is deleted")
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(stream.run(requests()), WAIT_S)


@pytest.mark.parametrize("is_read_first", [True, False])
async def test_nothing_stays_of_a_call_that_is_cancelled_between_read_and_offer(
    is_read_first: bool,
) -> None:
    """The connection brings a request and the end of its call at once, or one after the other."""
    services = Services()
    groups = services.queues.groups
    arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def requests() -> AsyncIterator[list[bytes]]:
        await arrived
        yield [REQUEST.SerializeToString()]
        if is_read_first:
            running.cancel()
        await asyncio.Event().wait()

    made: Any = services
    context: Any = Nobody()
    stream = PublishStream(made, services.caller(), context)
    before = asyncio.all_tasks()
    running = asyncio.create_task(stream.run(requests()))
    # Reader and writer wait.
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() > before
    arrived.set_result(None)
    if not is_read_first:
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == before
    # What was read goes to its queue all the same, once, and counts until that has answered.
    await asyncio.sleep(0)
    assert len(groups.sent) == 1
    assert stream._bytes > 0
    assert groups.ended == []
    groups.answer()
    assert stream._bytes == 0
    assert len(groups.ended) == 1
    assert groups.sent == []
    assert len(services.blocked) == 0
