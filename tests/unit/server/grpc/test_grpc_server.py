"""Calls at the gRPC port with gRPC's own client: all four kinds, how they end, what holds them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from brokerd.config import BrokerConfig
from brokerd.http2 import framing, many_streams
from brokerd.server.grpc import rpc_auth, rpc_call, rpc_connection
from brokerd.server.grpc.grpc_server import GrpcServer
from brokerd.server.grpc.rpc_connection import RpcConnection
from tests.ports import free_ports
from tests.unit.server.grpc.fakes import OneCaller, servicers

MIB = 1024 * 1024
WAIT_S = 60.0
GOOD = (("authorization", "good"),)
#: Nobody is sent away for not having logged in in time.
PATIENT = {"handshake_timeout_ms": 600_000}


class Service:
    """Methods of each kind; what one was asked stands in `asked`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.was_cancelled = asyncio.Event()
        self.may_read = asyncio.Event()

    async def one(self, request: bytes, context: Any) -> bytes:
        self.asked.append(context.caller.user)
        if request == b"abort":
            await context.abort(grpc.StatusCode.NOT_FOUND, "nothing: 100 % ü")
        if request == b"fail":
            raise ValueError("a bug")
        if request == b"wait":
            try:
                await asyncio.Event().wait()
            finally:
                self.was_cancelled.set()
        return request[:100] + str(len(request)).encode()

    async def many(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            yield bytes(MIB - 1) + bytes([number])

    async def gather(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        await self.may_read.wait()
        sizes = [len(request) async for request in requests]
        return repr(sizes).encode()

    async def echo(self, requests: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata(())
        async for request in requests:
            await context.write(request)

    async def watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.Event().wait()

    def handlers(self) -> dict[str, Any]:
        return {
            "One": grpc.unary_unary_rpc_method_handler(self.one, bytes, bytes),
            "Many": grpc.unary_stream_rpc_method_handler(self.many, bytes, bytes),
            "Number": grpc.unary_unary_rpc_method_handler(self.one, int, bytes),
            "Watch": grpc.unary_stream_rpc_method_handler(self.watch, bytes, bytes),
            "Gather": grpc.stream_unary_rpc_method_handler(self.gather, bytes, bytes),
            "Echo": grpc.stream_stream_rpc_method_handler(self.echo, bytes, bytes),
        }


@contextlib.asynccontextmanager
async def served(
    state: Any = None, **limits: Any
) -> AsyncIterator[tuple[Service, Any, GrpcServer]]:
    (port,) = free_ports(1)
    config = BrokerConfig.model_validate(
        {
            "node": {"bind": "127.0.0.1"},
            "listeners": {"grpc": port},
            "limits": {"grpc_request_bytes": 32 * MIB, **limits},
        }
    )

    callers: Any = OneCaller("good")
    server = GrpcServer(config.limits, callers, servicers(state=state), [])
    service = Service()
    server.add_registered_method_handlers("t.T", service.handlers())
    await server.start(config)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield service, channel, server
    finally:
        await server.stop()


def unary(channel: Any, request: bytes, **more: Any) -> Any:
    return channel.unary_unary("/t.T/One")(request, timeout=WAIT_S, **{"metadata": GOOD, **more})


async def until(check: Callable[[], bool]) -> None:
    """Poll with a deadline: nothing tells."""
    async with asyncio.timeout(WAIT_S):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_calls_of_all_kinds_end_when_the_member_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A status that says so, not a connection that breaks."""
    monkeypatch.setattr(rpc_call, "ANSWERS_S", 0.05)
    async with served() as (service, channel, server):
        one = channel.unary_unary("/t.T/One")(b"wait", metadata=GOOD, timeout=WAIT_S)
        watch = channel.unary_stream("/t.T/Watch")(b"", metadata=GOOD, timeout=WAIT_S)
        assert await watch.read() == b"first"
        echo = channel.stream_stream("/t.T/Echo")(metadata=GOOD, timeout=WAIT_S)
        await echo.write(b"read")
        assert await echo.read() == b"read"
        await until(lambda: service.asked == ["somebody"])
        await asyncio.wait_for(server.stop(), WAIT_S)
        for call in (one, watch, echo):
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert await call.details() == "this member stops: try again, elsewhere"
        assert service.was_cancelled.is_set()


async def test_calls_of_all_kinds() -> None:
    async with served() as (service, channel, server):
        assert await unary(channel, b"x" * 500_000) == b"x" * 100 + b"500000"
        many = channel.unary_stream("/t.T/Many")(b"20", metadata=GOOD, timeout=WAIT_S)
        assert [message[-1] async for message in many] == list(range(20))
        service.may_read.set()
        sizes = [0, 1, 300_000, 70_000, 5, 1_000_000]
        gather = channel.stream_unary("/t.T/Gather")
        sent = iter([bytes(size) for size in sizes])
        assert await gather(sent, metadata=GOOD, timeout=WAIT_S) == repr(sizes).encode()
        echo = channel.stream_stream("/t.T/Echo")(metadata=GOOD, timeout=WAIT_S)
        for size in sizes:
            await echo.write(bytes(size))
            assert await echo.read() == bytes(size)
        await echo.done_writing()
        assert await echo.read() is grpc.aio.EOF
        assert server.budget.used == 0


async def test_how_calls_fail() -> None:
    async with served() as (service, channel, _):
        code = grpc.StatusCode
        nobody = await failure(unary(channel, bytes(MIB), metadata=()))
        assert nobody == (code.UNAUTHENTICATED, "nobody")
        assert service.asked == []
        assert await failure(unary(channel, b"abort")) == (code.NOT_FOUND, "nothing: 100 % ü")
        assert await failure(unary(channel, b"fail")) == (
            code.INTERNAL,
            "Unexpected <class 'ValueError'>: a bug",
        )
        # Known by now: another call is refused for itself.
        assert (await failure(unary(channel, b"", metadata=())))[0] is code.UNAUTHENTICATED
        large = bytes(rpc_call.RECEIVE_BYTES_MAX + 1)
        assert (await failure(unary(channel, large)))[0] is code.RESOURCE_EXHAUSTED
        unknown = channel.unary_unary("/t.T/Two")(b"", metadata=GOOD, timeout=WAIT_S)
        assert (await failure(unknown))[0] is code.UNIMPLEMENTED
        packed = unary(channel, bytes(5000), compression=grpc.Compression.Gzip)
        assert (await failure(packed))[0] is code.UNIMPLEMENTED
        twice = channel.stream_unary("/t.T/One")
        assert (await failure(twice(iter([b"", b""]), metadata=GOOD)))[0] is code.INTERNAL
        assert (await failure(twice(iter([]), metadata=GOOD)))[0] is code.INTERNAL


async def test_calls_end_at_their_deadline_or_when_they_are_given_up() -> None:
    async with served() as (service, channel, _):
        call = channel.unary_unary("/t.T/One")
        code, _ = await failure(call(b"wait", metadata=GOOD, timeout=0.2))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(service.was_cancelled.wait(), WAIT_S)
        service.was_cancelled.clear()
        pending = call(b"wait", metadata=GOOD)
        await until(lambda: len(service.asked) == 2)
        pending.cancel()
        await asyncio.wait_for(service.was_cancelled.wait(), WAIT_S)


async def test_large_requests_have_turns_and_small_ones_pass_them() -> None:
    """SEC-44: three of 15 MiB, where there is room for one; what is not read is bounded."""
    async with served() as (service, channel, server):
        gather = channel.stream_unary("/t.T/Gather")
        calls = [gather(iter([bytes(15 * MIB)] * 2), metadata=GOOD) for _ in range(3)]
        await until(lambda: server.budget.used >= 15 * MIB)
        assert await unary(channel, b"small") == b"small5"
        assert server.budget.used <= 32 * MIB
        service.may_read.set()
        for call in calls:
            assert await asyncio.wait_for(call, WAIT_S) == repr([15 * MIB] * 2).encode()
        assert server.budget.used == 0


def dial(server: GrpcServer, address: str = "127.0.0.1") -> socket.socket:
    """Come from one of this machine's addresses and say nothing."""
    port = server._listeners[0].getsockname()[1]
    sock = socket.create_connection(("127.0.0.1", port), WAIT_S, (address, 0))
    sock.setblocking(False)
    return sock


def is_closed(sock: socket.socket) -> bool:
    """Read what is there; tell whether that was the end."""
    try:
        while sock.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def standing() -> int:
    """Return how many connections are remembered by anybody."""
    gc.collect()
    return sum(isinstance(each, RpcConnection) for each in gc.get_objects())


async def is_greeted(sock: socket.socket) -> bool:
    """Tell whether the settings come that every client hears, or the end."""
    async with asyncio.timeout(WAIT_S):
        try:
            return bool(await asyncio.get_running_loop().sock_recv(sock, 65_536))
        except OSError:
            return False


async def test_connections_have_limits_and_known_ones_never_make_room() -> None:
    """SEC-34: of one address, and in all."""
    limits = {"grpc_connections": 2, "grpc_connections_per_address": 1, **PATIENT}
    async with served(**limits) as (_, channel, server):
        assert await unary(channel, b"x") == b"x1"
        with dial(server) as refused:
            await until(lambda: is_closed(refused))
        with dial(server, "127.0.0.2") as second, contextlib.ExitStack() as stack:
            assert await is_greeted(second)
            third = stack.enter_context(dial(server, "127.0.0.3"))
            await until(lambda: is_closed(second))
            assert await is_greeted(third)
            assert await unary(channel, b"x") == b"x1"
            # Who goes gives the place back.
            await channel.close()
            async with asyncio.timeout(WAIT_S):
                while not await is_greeted(stack.enter_context(dial(server))):
                    pass


async def test_strangers_who_come_all_at_once_leave_nothing_behind() -> None:
    """SEC-34: most of them make room before anything was done for them."""
    async with served(unauthenticated_per_address=5, **PATIENT) as (
        _,
        channel,
        server,
    ):
        assert await unary(channel, b"x") == b"x1"
        before = standing()
        socks = [dial(server) for _ in range(60)]
        await until(lambda: sum(map(is_closed, socks)) == 55)
        assert await unary(channel, b"x") == b"x1"
        assert standing() <= before + 5
        for sock in socks:
            sock.close()


async def test_when_the_port_closes_calls_end() -> None:
    async with served() as (service, channel, server):
        pending = channel.unary_unary("/t.T/One")(b"wait", metadata=GOOD)
        await until(lambda: len(service.asked) == 1)
        await server.stop()
        code, _ = await failure(pending)
        assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        await asyncio.wait_for(service.was_cancelled.wait(), WAIT_S)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"5S", 5.0),
        (b"200m", 0.2),
        (b"1H", 3600.0),
        (b"99999999H", None),
        (b"", None),
        (b"5", None),
        (b"-1S", None),
        (b"123456789S", None),
    ],
)
def test_deadlines(text: bytes, seconds: float | None) -> None:
    assert rpc_call.parse_timeout(text) == seconds


async def test_a_call_beyond_those_of_a_connection_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not wait in the client until its deadline: HTTP/2's own limit is farther."""
    monkeypatch.setattr(rpc_connection, "CALLS_MAX", 3)
    async with served() as (service, channel, _):
        one = channel.unary_unary("/t.T/One")
        waiting = [one(b"wait", metadata=GOOD, timeout=WAIT_S) for _ in range(3)]
        await until(lambda: len(service.asked) == 3)
        code, text = await failure(unary(channel, b"x"))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert text == "3 calls are open on this connection: open another one"
        waiting[0].cancel()
        await service.was_cancelled.wait()
        assert await unary(channel, b"x") == b"x1"
        for call in waiting[1:]:
            call.cancel()


def test_http2_has_room_for_the_refusal() -> None:
    assert many_streams.CONCURRENT_STREAMS_MAX >= 2 * rpc_connection.CALLS_MAX


async def test_a_call_whose_answers_are_not_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-45: the others of its connection go on."""
    monkeypatch.setattr(rpc_connection, "CHECK_S", 0.3)
    async with served() as (_, channel, server):
        server.write_timeout_s = 0.5
        unread = channel.unary_stream("/t.T/Many")(b"100", metadata=GOOD, timeout=WAIT_S)
        assert len(await unread.read()) == MIB
        (connection,) = server._connections
        # One that is read goes on for longer than that.
        slow = channel.stream_stream("/t.T/Echo")(metadata=GOOD, timeout=WAIT_S)
        await slow.write(b"x")
        assert await slow.read() == b"x"
        while len(connection.calls) != 1:
            await slow.write(b"x")
            assert await slow.read() == b"x"
            await asyncio.sleep(0.02)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_all(unread)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "not read for 0.5 seconds" in str(caught.value.details())
        await slow.done_writing()
        assert await slow.code() is grpc.StatusCode.OK


async def test_a_request_that_cannot_be_read_is_the_clients_mistake() -> None:
    async with served() as (_, channel, __):
        number = channel.unary_unary("/t.T/Number")
        code, text = await failure(number(b"x", metadata=GOOD, timeout=WAIT_S))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text.startswith("the request cannot be read: invalid literal for int()")


async def test_peers_are_named_as_people_read_them() -> None:
    async with served() as (_, __, server):
        for address, peer, text in (
            ("127.0.0.1", "ipv4:127.0.0.1:5", "127.0.0.1:5"),
            ("::ffff:127.0.0.1", "ipv4:127.0.0.1:5", "127.0.0.1:5"),
            ("::1", "ipv6:%5B::1%5D:5", "[::1]:5"),
        ):
            connection = RpcConnection(server, address, 5)
            assert connection.peer == peer
            assert rpc_auth.peer_text(peer) == text


async def test_a_connection_that_ends_is_closed_by_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it is still sending resets nothing that it has yet to read."""
    monkeypatch.setattr(rpc_connection, "FAREWELL_S", WAIT_S)
    async with served(**PATIENT) as (_, __, server):
        (listener,) = server._listeners
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(framing.PREFACE + framing.settings_frame([]))
        await until(lambda: bool(server._connections))
        stopping = asyncio.create_task(server.stop())
        await asyncio.wait_for(reader.readuntil(b"this member stops"), WAIT_S)
        for _ in range(5):
            writer.write(bytes(100))
            await writer.drain()
            await asyncio.sleep(0.02)
        assert not stopping.done()
        writer.close()
        await asyncio.wait_for(stopping, WAIT_S)
