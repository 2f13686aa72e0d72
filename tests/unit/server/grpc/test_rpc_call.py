"""What a call may have on the way: its window, and what it is counted for."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.cluster.peer import grpc_messages
from brokerd.http2.many_streams import Stream
from brokerd.server.grpc import rpc_call
from brokerd.server.grpc.rpc_budget import Budget
from brokerd.server.grpc.rpc_call import STREAM_BYTES, WIDE_BYTES, RpcCall

LIMIT = 32 * 1024 * 1024
KNOWN: Any = object()
#: The call is not served.
NOTHING: Any = None


class Connection:
    """What a call came on; windows are opened at once."""

    peer = "ipv4:127.0.0.1:1"

    def __init__(self) -> None:
        self.budget = Budget(LIMIT, Budget(LIMIT))
        self.http2: Any = self

    def allow(self, stream: Stream, size: int) -> None:
        stream.room += size

    def flush_soon(self) -> None:
        """Nothing is written."""

    def has_to_send(self, call: RpcCall) -> None:
        raise AssertionError

    def call_ended(self, call: RpcCall) -> None:
        """Nobody looks."""

    def watch(self, lost: Any) -> Any:
        raise AssertionError

    def let_in(self, call: RpcCall) -> None:
        raise AssertionError

    async def log_in(self, call: RpcCall) -> Any:
        raise AssertionError


class Sender:
    """A client that sends as much as the window lets, in whole messages, which are handled."""

    def __init__(self, connection: Connection) -> None:
        self.stream = Stream(1, STREAM_BYTES)
        self.call = RpcCall(connection, self.stream, NOTHING, {})
        self.call.caller = KNOWN
        self.call.ask_for_more()
        self._batches = self.call._batches()

    async def send(self, size: int) -> None:
        """Send messages of so many octets until the window is too small, and have them handled."""
        self.call._release()
        count = self.stream.room // size
        message = bytes(size - grpc_messages.PREFIX_BYTES)
        data = (grpc_messages.prefix(len(message)) + message) * count
        self.stream.room -= len(data)
        self.call.data_received(data, False)
        assert self.stream.room >= 0
        assert await anext(self._batches) == [message] * count

    async def asked_for_more(self) -> None:
        """What was handed out last is handled: the call looks for what comes next."""
        self.call._release()


async def test_a_fast_call_gets_a_wider_window_which_it_is_counted_for() -> None:
    connection = Connection()
    sender = Sender(connection)
    assert sender.stream.room == STREAM_BYTES
    for _ in range(3):
        await sender.send(1000)
    await sender.asked_for_more()
    assert sender.stream.room > WIDE_BYTES // 2
    assert connection.budget.used == WIDE_BYTES
    # It stays that wide, and is counted once.
    for _ in range(3):
        await sender.send(100_000)
    assert connection.budget.used <= WIDE_BYTES + rpc_call.MESSAGE_BYTES * 20
    sender.call.cancel()
    assert connection.budget.used == 0


async def test_a_slow_call_keeps_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_call, "FAST_S", -1.0)
    connection = Connection()
    sender = Sender(connection)
    for _ in range(5):
        await sender.send(1000)
    await sender.asked_for_more()
    assert sender.stream.room <= STREAM_BYTES
    assert connection.budget.used == 0


async def test_nothing_is_reserved_while_others_have_a_quarter() -> None:
    connection = Connection()
    assert connection.budget.take(LIMIT // 4)
    sender = Sender(connection)
    for _ in range(5):
        await sender.send(1000)
    await sender.asked_for_more()
    assert sender.stream.room <= STREAM_BYTES
    assert connection.budget.used == LIMIT // 4


async def test_a_large_message_of_a_fast_call_is_promised_what_it_needs_beyond_that() -> None:
    connection = Connection()
    sender = Sender(connection)
    for _ in range(3):
        await sender.send(1000)
    await sender.asked_for_more()
    size = 8 * WIDE_BYTES
    begin = grpc_messages.prefix(size) + bytes(1000)
    sender.stream.room -= len(begin)
    sender.call.data_received(begin, False)
    assert sender.stream.room >= size - 1000
    assert size < connection.budget.used < size + WIDE_BYTES
    sender.call.cancel()
    assert connection.budget.used == 0
