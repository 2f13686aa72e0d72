"""Publishers and consumers of a chaos run: they never give up, and note what they saw.

Exact AMQP over one socket each (raw_client), because a client library's own reconnecting and
resending would hide what the brokers do.  Nobody publishes a number twice.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from brokerd.amqp import methods
from brokerd.amqp.channel import decode_method, method_class
from tests.chaos.history import (
    PREFETCH,
    Delivery,
    History,
    MessageKey,
    must_be_rejected,
    must_be_returned,
)
from tests.integration.raw_client import RawClient, publish

Address = tuple[str, int]

#: What a broken or refused connection raises (raw_client asserts on what it does not expect).
LOST = (OSError, AssertionError, struct.error, ValueError, KeyError)
CONNECT_TIMEOUT_S = 5.0
#: Unconfirmed messages per publisher.
WINDOW = 50
#: A publisher sends this often, unless its rate is lower.
TURN_S = 0.02
#: A publisher that hears nothing for so long goes to the next member.
PATIENCE_S = 3.0
#: A restless consumer that gets nothing for so long goes to the next member; others stay for ever.
IDLE_S = 10.0
#: Persistent, no other property (AMQP 0-9-1 §4.2.6.1: flag 12, delivery-mode).
PERSISTENT = b"\x10\x00\x02"
PADDING = b"." * 100

_channels = itertools.count(1)


def connect(address: Address, timeout_s: float = CONNECT_TIMEOUT_S) -> RawClient:
    """Log in as guest; raises one of LOST."""
    sock = socket.create_connection(address, timeout=timeout_s)
    try:
        client = RawClient(0, sock=sock)
        client.open(1)
    except BaseException:
        sock.close()
        raise
    return client


def frames(client: RawClient, seconds: float) -> Iterator[tuple[int, bytes]]:
    """Yield (kind, payload) of what comes on channel 1 within the time; raises at the end."""
    deadline = time.monotonic() + seconds
    while (rest := deadline - time.monotonic()) > 0:
        client.socket.settimeout(rest)
        try:
            found = client.next_frame()
        except TimeoutError:
            return
        if found is None:
            raise ConnectionResetError("the broker closed the connection")
        yield found[0], found[2]


def send(client: RawClient, *parts: methods.Method | bytes) -> None:
    """Send on channel 1; one that is not taken within the time-out breaks the connection."""
    client.socket.settimeout(CONNECT_TIMEOUT_S)
    client.send(1, *parts)


class Worker(threading.Thread):
    """A client that connects to one member after the other until it is stopped."""

    def __init__(self, addresses: Sequence[Address], first: int) -> None:
        super().__init__(daemon=True)
        self._addresses = addresses
        self._turn = first
        self.stopped = threading.Event()
        self.connections = 0

    def run(self) -> None:
        while not self.stopped.is_set():
            client = None
            with contextlib.suppress(*LOST):
                client = connect(self._addresses[self._turn % len(self._addresses)])
                self.connections += 1
                self.session(client)
            if client is not None:
                client.close()
            self._turn += 1
            self.stopped.wait(0.1)

    def session(self, client: RawClient) -> None:
        """Work until stopped, or raise one of LOST to go to the next member."""
        raise AssertionError("each kind of worker has its own")


class Publisher(Worker):
    """Publishes to one queue with confirms, up to WINDOW in flight, at a given rate."""

    def __init__(
        self,
        number: int,
        queue: str,
        per_second: float,
        addresses: Sequence[Address],
        first: int,
        history: History,
    ) -> None:
        super().__init__(addresses, first)
        self._publisher, self._queue, self._history = number, queue, history
        self._per_turn = max(1, round(per_second * TURN_S))
        self._pause_s = self._per_turn / per_second
        self._number = 0
        self.paused = threading.Event()
        #: True while nothing is in flight: `paused` has taken effect.
        self.is_quiet = True

    def session(self, client: RawClient) -> None:
        send(client, methods.ConfirmSelect())
        client.expect(methods.ConfirmSelectOk)
        epoch, tag = self.connections, 0
        waiting: dict[int, MessageKey] = {}
        last_s = time.monotonic()
        while not (self.stopped.is_set() and not waiting):
            is_sending = not (self.paused.is_set() or self.stopped.is_set())
            if is_sending and len(waiting) < WINDOW:
                if not waiting:
                    last_s = time.monotonic()
                parts: list[bytes] = []
                for _ in range(self._per_turn):
                    tag += 1
                    waiting[tag] = self._next(epoch, parts)
                self.is_quiet = False
                send(client, *parts)
            for kind, payload in frames(client, self._pause_s):
                assert kind == 1, "publishers get methods only"
                self._answer(decode_method(method_class(payload), payload), waiting)
                last_s = time.monotonic()
            self.is_quiet = not waiting
            if waiting and time.monotonic() - last_s > PATIENCE_S:
                raise TimeoutError("no confirm for too long")
        self.is_quiet = True

    def _next(self, epoch: int, parts: list[bytes]) -> MessageKey:
        key = MessageKey(self._publisher, self._number)
        self._number += 1
        body = b"%d:%d:%d:" % (key.publisher, key.number, epoch) + PADDING
        # Before it is sent: a message that arrives was attempted.
        self._history.attempted[key] = self._queue
        parts.append(publish(1, "", self._queue, body, PERSISTENT))
        return key

    def _answer(self, method: methods.Method, waiting: dict[int, MessageKey]) -> None:
        assert isinstance(method, methods.BasicAck | methods.BasicNack), method
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in waiting if tag <= method.delivery_tag]
        at_s = time.monotonic()
        if isinstance(method, methods.BasicAck):
            self._history.latest[self._queue] = at_s
        for tag in tags:
            key = waiting.pop(tag)
            if isinstance(method, methods.BasicAck):
                self._history.confirmed[key] = at_s
            else:
                self._history.nacked.add(key)

    def quiet(self) -> bool:
        """Tell whether it was paused and nothing is in flight any more."""
        return self.is_quiet or not self.is_alive()


@dataclass(slots=True)
class _Content:
    """A delivery of which not all frames have come yet."""

    method: methods.BasicDeliver
    size: int = -1
    parts: list[bytes] = field(default_factory=list)

    def is_whole(self) -> bool:
        return sum(map(len, self.parts)) == self.size


class Consumer(Worker):
    """Takes everything of one queue with manual acknowledgements."""

    def __init__(
        self,
        queue: str,
        addresses: Sequence[Address],
        first: int,
        history: History,
        *,
        is_restless: bool,
    ) -> None:
        super().__init__(addresses, first)
        self._queue, self._history, self._is_restless = queue, history, is_restless

    def session(self, client: RawClient) -> None:
        channel = next(_channels)
        send(client, methods.BasicQos(0, PREFETCH, False))
        client.expect(methods.BasicQosOk)
        send(client, methods.BasicConsume(0, self._queue))
        client.expect(methods.BasicConsumeOk)
        last_s = time.monotonic()
        content: _Content | None = None
        while not self.stopped.is_set():
            answers: list[methods.Method] = []
            for kind, payload in frames(client, 0.05):
                content = self._frame(content, kind, payload)
                if content is not None and content.is_whole():
                    answers.append(self._take(content, channel))
                    content = None
                    last_s = time.monotonic()
                    if len(answers) >= PREFETCH // 2:
                        break
            if answers:
                send(client, *answers)
            if self._is_restless and time.monotonic() - last_s > IDLE_S:
                raise TimeoutError("nothing for too long")

    @staticmethod
    def _frame(content: _Content | None, kind: int, payload: bytes) -> _Content | None:
        if kind == 1:
            method = decode_method(method_class(payload), payload)
            # Anything else (cancel, close) ends this connection; there is no half of one.
            assert isinstance(method, methods.BasicDeliver), method
            return _Content(method)
        assert content is not None, "content without a deliver"
        if kind == 2:
            (content.size,) = struct.unpack_from(">Q", payload, 4)
        else:
            content.parts.append(payload)
        return content

    def _take(self, content: _Content, channel: int) -> methods.Method:
        method, body = content.method, b"".join(content.parts)
        tag = method.delivery_tag
        try:
            publisher, number, epoch = map(int, body.split(b":")[:3])
        except ValueError:
            self._history.strange.append(body)
            return methods.BasicAck(tag, False)
        key = MessageKey(publisher, number)
        self._history.deliveries.append(
            Delivery(self._queue, channel, key, epoch, method.redelivered, time.monotonic())
        )
        if self._queue != self._history.dead_queue:
            if must_be_rejected(number):
                return methods.BasicReject(tag, False)
            if must_be_returned(number) and not method.redelivered:
                return methods.BasicReject(tag, True)
        return methods.BasicAck(tag, False)


def ready_messages(address: Address, queue: str) -> int | None:
    """Return what a member says about a queue, None if it says nothing."""
    try:
        client = connect(address)
        try:
            return client.count(1, queue)
        finally:
            client.close()
    except LOST:
        return None


def wait_until(check: Callable[[], bool], seconds: float, pause_s: float = 0.1) -> bool:
    """Poll until `check` is true or the time is over; return what it said last."""
    waiter = threading.Event()
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        waiter.wait(pause_s)
    return True
