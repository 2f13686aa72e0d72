"""Queues of each kind on a member that then goes away, and what clients of the others are told.

Used by test_home_member_down.py and test_home_member_back.py.  A queue is named KIND.PURPOSE, so
that no test meets another's.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import quote

import pika
import pika.exceptions

from brokerd.amqp import methods
from brokerd.amqp.channel import decode_method, method_class
from tests.integration.members import REPOSITORY, Member, eventually
from tests.integration.raw_client import client, publish

M = methods
#: How long a home is silent before its queues are taken for down, in these tests; 5 s by default.
AFTER_MS = 2_000
AFTER_SECONDS = AFTER_MS / 1000
AFTER = "BROKERD_QUEUES_HOME_DOWN_AFTER_MS"
#: How long a queue that did not outlive its home is kept for it; 60 s by default.
DELETE = "BROKERD_QUEUES_HOME_DOWN_DELETE_MS"
#: Longer than any of these tests.
NEVER_MS = 600_000
#: "At once", on two busy cores; what is to be told from it takes 20 s and more.
AT_ONCE_SECONDS = 4.0
QUORUM = {"x-queue-type": "quorum"}
MEMORY_ONLY = {"durable": False}

#: What of a queue does not outlive its home: as if it were not there, and made anew by a declare.
GONE: Mapping[str, dict[str, Any]] = {
    "exclusive": {"exclusive": True},
    "transient": {},
    "auto-delete": {"auto_delete": True},
    "expires": {"arguments": {"x-expires": NEVER_MS}},
    # With a consumer: `consumed` says which kinds get one.
    "durable-auto-delete": {"durable": True, "auto_delete": True},
}
#: What is there again with its home.
KEPT: Mapping[str, dict[str, Any]] = {
    "durable": {"durable": True},
    "durable-auto-delete-unused": {"durable": True, "auto_delete": True},
}
KINDS = {**GONE, **KEPT}
CONSUMED = "durable-auto-delete"


def down_text(queue: str, member: str = "n0") -> str:
    """Return what clients are told of a queue whose home is down."""
    return f"home member {member} of queue '{queue}' in vhost '/' is down"


def declare(channel: Any, kind: str, purpose: str) -> str:
    """Declare a queue of a kind, with a consumer where the kind has one; return its name."""
    name = f"{kind}.{purpose}"
    channel.queue_declare(name, **KINDS[kind])
    if kind == CONSUMED:
        channel.basic_consume(name, lambda *_: None)
    return name


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


@contextlib.contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """Fail when the block takes longer."""
    clock = Clock()
    yield
    assert clock.seconds < seconds, f"{what} took {clock.seconds:.1f} s"


class Reached(Protocol):
    """A member that clients can connect to, wherever it runs."""

    name: str

    def connect(self, **settings: Any) -> pika.BlockingConnection:
        """Connect a client as guest."""


def refusal(member: Reached, act: Callable[[Any], Any]) -> tuple[int, str] | None:
    """Return the code and text with which the channel is closed for an act; None if it is not.

    A closed connection is never right, and raises.
    """
    with member.connect(heartbeat=0) as connection:
        channel = connection.channel()
        try:
            act(channel)
        except pika.exceptions.ChannelClosedByBroker as closed:
            assert connection.is_open
            return closed.reply_code, closed.reply_text
    return None


#: What clients ask of a queue by its name.
OPERATIONS: Mapping[str, Callable[[Any, str], Any]] = {
    "passive": lambda channel, queue: channel.queue_declare(queue, passive=True),
    "consume": lambda channel, queue: channel.basic_consume(queue, lambda *_: None),
    "get": lambda channel, queue: channel.basic_get(queue),
    "purge": lambda channel, queue: channel.queue_purge(queue),
}


def published(
    member: Member, exchange: str, key: str, *, mandatory: bool = False, body: bytes = b"x"
) -> list[str]:
    """Publish one message in confirm mode; return the answers up to its ack or nack."""
    answers: list[str] = []
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.send(1, M.ConfirmSelect())
        raw.expect(M.ConfirmSelectOk)
        raw.socket.settimeout(AFTER_SECONDS + 2 * AT_ONCE_SECONDS)
        raw.send(1, publish(1, exchange, key, body, mandatory=mandatory))
        while True:
            try:
                found = raw.next_frame()
            except TimeoutError:
                return [*answers, "nothing"]
            assert found is not None, "the connection was closed"
            kind, _, payload = found
            if kind != 1:
                continue
            method = decode_method(method_class(payload), payload)
            if isinstance(method, M.BasicReturn):
                answers.append(f"return {method.reply_code}")
            else:
                return [*answers, {M.BasicAck: "ack", M.BasicNack: "nack"}[type(method)]]


def messages(member: Reached, queue: str) -> int | None:
    """Return how many are ready, None where the queue is not (or not yet again) there."""
    with contextlib.suppress(pika.exceptions.AMQPError), member.connect(heartbeat=0) as connection:
        found = connection.channel().queue_declare(queue, passive=True)
        return int(found.method.message_count)
    return None


def bodies(member: Reached, queue: str) -> list[bytes]:
    """Take everything out of a queue."""
    with member.connect(heartbeat=0) as connection:
        channel = connection.channel()
        found = []
        while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
            found.append(body)
    return found


def wait_down(member: Reached, queue: str) -> None:
    """Wait until a member takes the home of this durable queue for down."""

    def is_down() -> bool:
        told = refusal(member, lambda channel: channel.queue_declare(queue, passive=True))
        return told is not None and down_text(queue) in told[1]

    eventually(is_down, f"{member.name} says that the home of {queue} is down", 30)


def http_call(member: Member, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Call the management API as guest; return status and value."""
    connection = http.client.HTTPConnection("127.0.0.1", member.management_port, timeout=60)
    try:
        headers = {"Authorization": f"Basic {b64encode(b'guest:guest').decode()}"}
        text = None if body is None else json.dumps(body)
        connection.request(method, f"/api/{path}", text, headers)
        answer = connection.getresponse()
        raw = answer.read()
    finally:
        connection.close()
    return answer.status, json.loads(raw) if raw else None


def queue_path(queue: str) -> str:
    """Return the path of a queue in the management API."""
    return f"queues/%2F/{quote(queue)}"


def listed(member: Member) -> set[str]:
    """Return the names of the queues that the management API of a member lists."""
    status, rows = http_call(member, "GET", "queues?columns=name")
    assert status == 200, rows
    return {row["name"] for row in rows}


def brokerctl(member: Member, *words: str) -> subprocess.CompletedProcess[str]:
    """Run brokerctl against a member."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from brokerd.ctl.main import main; main()",
            "--node",
            f"127.0.0.1:{member.grpc_port}",
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=REPOSITORY,
    )


def metric(member: Member, name: str) -> float:
    """Return the sum of a metric's samples at a member; 0 where it has none."""
    connection = http.client.HTTPConnection("127.0.0.1", member.http_port, timeout=60)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    samples = [line.rsplit(" ", 1) for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(value) for _, value in samples)


class Watcher:
    """A client whose consumers are watched: what they got, and which were cancelled.

    State: its connection at one member, open until `close`.
    """

    def __init__(self, member: Reached) -> None:
        self.connection = member.connect(heartbeat=0)
        self.channel = self.connection.channel()
        self.channel.add_on_cancel_callback(
            lambda frame: self.cancelled.add(frame.method.consumer_tag)
        )
        self.cancelled: set[str] = set()
        self.got: list[bytes] = []

    def consume(self, queue: str) -> None:
        """Consume; the consumer's tag is the queue's name."""
        self.channel.basic_consume(
            queue, lambda *args: self.got.append(args[3]), auto_ack=True, consumer_tag=queue
        )

    def hears(self, check: Callable[[], Any], what: str, seconds: float) -> None:
        """Poll until something holds that its connection is told of."""
        eventually(lambda: self.connection.process_data_events() or check(), what, seconds)

    def close(self) -> None:
        """Close the connection, if its member is still there."""
        with contextlib.suppress(pika.exceptions.AMQPError, OSError):
            self.connection.close()
