"""What a member takes out of a queue for its consumers, and what becomes of what it has not sent
them (ADR 69).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd.amqp import methods
from tests.integration.federation_rig import Admin, admin
from tests.integration.members import Member, cluster, eventually
from tests.integration.messages_client import Client, credit, deliveries, settle
from tests.integration.raw_client import client

pytestmark = pytest.mark.timeout(300)
M = methods
QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("credit"), 1) as members:
        yield members[0]


@pytest.fixture
def calls(member: Member) -> Iterator[Client]:
    made = Client(member.grpc_port)
    yield made
    made.channel.close()


@pytest.fixture
def channel(member: Member) -> Iterator[Any]:
    connection = member.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


@contextlib.contextmanager
def queue_of(channel: Any, name: str, **arguments: Any) -> Iterator[str]:
    channel.queue_declare(name, durable=True, arguments=QUORUM | arguments)
    try:
        yield name
    finally:
        if channel.is_open:
            channel.queue_delete(name)


def fill(channel: Any, queue: str, count: int, body: bytes = b"") -> None:
    for number in range(count):
        channel.basic_publish("", queue, body or b"%d" % number)


def counts(channel: Any, queue: str) -> tuple[int, int]:
    """Return how many messages are ready, and how many consumers there are."""
    method = channel.queue_declare(queue, passive=True).method
    return method.message_count, method.consumer_count


def ready(channel: Any, queue: str) -> int:
    return counts(channel, queue)[0]


def left(listing: Admin, queue: str) -> int:
    """Return how many messages are in a queue, held ones included."""
    [found] = [row["messages"] for row in listing.rows("queues") if row["name"] == queue]
    assert isinstance(found, int)
    return found


def test_a_message_that_no_client_was_sent_is_not_counted(calls: Client, channel: Any) -> None:
    """R-DL-2, G1: consumers without credit come and go more often than the default limit is."""
    with queue_of(channel, "unseen") as queue:
        fill(channel, queue, 1)
        for _ in range(25):
            assert calls.consume(queue=queue, credit=0).rest() == []
        eventually(lambda: ready(channel, queue) == 1, "it is back")
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        assert (body, method.redelivered, properties.headers) == (b"0", False, None)


def test_workers_that_take_one_message_each_lose_none_of_the_others(
    member: Member, channel: Any
) -> None:
    """R-DL-3: what was not sent to a worker that goes does not come nearer to its limit."""
    count, workers = 200, 5
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "unseen-dead"}
    channel.queue_declare("unseen-dead", durable=True, arguments=QUORUM)
    with queue_of(channel, "taken", **{"x-delivery-limit": 2}, **dead) as queue:
        fill(channel, queue, count)
        taken: list[bytes] = []

        def work() -> None:
            calls = Client(member.grpc_port)
            for _ in range(count // workers):
                call = calls.consume(queue=queue, credit=1)
                [message] = deliveries(call, 1)
                taken.append(message.body)
                call.send(settle("ACCEPT", message.delivery_tag))
                assert call.rest() == []
            calls.channel.close()

        threads = [threading.Thread(target=work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
        assert sorted(taken, key=int) == [b"%d" % number for number in range(count)]
        assert (ready(channel, queue), ready(channel, "unseen-dead")) == (0, 0)
    channel.queue_delete("unseen-dead")


def test_spent_credit_takes_nothing_from_other_consumers(
    member: Member, calls: Client, channel: Any
) -> None:
    """One that has settled all it was sent, and has granted no more, gets no more."""
    with queue_of(channel, "starved") as queue:
        first = calls.consume(queue=queue, credit=10)
        fill(channel, queue, 10)
        taken = deliveries(first, 10)
        first.send(settle("ACCEPT", taken[-1].delivery_tag, multiple=True))
        with admin(member) as listing:
            eventually(lambda: left(listing, queue) == 0, "they are settled")
        fill(channel, queue, 10)
        second = calls.consume(queue=queue, credit=100)
        others = deliveries(second, 10)
        assert [message.body for message in others] == [b"%d" % number for number in range(10)]
        assert not any(message.redelivered for message in others)
        second.send(settle("ACCEPT", 0, multiple=True))
        assert second.rest() == []
        # Granted some more, it gets so many and leaves the rest.
        first.send(credit(2))
        fill(channel, queue, 4)
        assert [message.body for message in deliveries(first, 2)] == [b"0", b"1"]
        assert ready(channel, queue) == 2
        first.cancel()


def test_a_consumer_without_credit_withholds_no_message(calls: Client, channel: Any) -> None:
    with queue_of(channel, "withheld") as queue:
        first = calls.consume(queue=queue, credit=0)
        eventually(lambda: counts(channel, queue) == (0, 1), "it consumes")
        fill(channel, queue, 1)
        second = calls.consume(queue=queue, credit=1)
        assert [message.body for message in deliveries(second, 1)] == [b"0"]
        second.send(settle("ACCEPT", 1))
        # It is a consumer all the same, and gets what it grants credit for.
        fill(channel, queue, 2)
        first.send(credit(2))
        assert [message.body for message in deliveries(first, 2)] == [b"0", b"1"]
        for call in (first, second):
            call.cancel()


@pytest.mark.parametrize("arguments", [QUORUM, {}], ids=["quorum", "classic"])
def test_what_a_connection_was_not_written_returns_as_it_was(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    """R-ACK-8, R-DL-2: the client reads nothing, and its connection is cut."""
    size, count = 100_000, 200
    limits = {"BROKERD_LIMITS_WRITE_BUFFER_BYTES": "100000"}
    with cluster(tmp_path, 1, **limits) as members:
        connection = members[0].connect()
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("cut", durable=True, arguments=arguments)
        for number in range(count):
            channel.basic_publish("", "cut", b"%d " % number + bytes(size))
        for _ in range(3):
            with client(members[0].amqp_port) as raw:
                raw.open(1)
                raw.send(1, M.BasicConsume(0, "cut", "c"))
                # All of them wait for a socket that takes some.
                eventually(lambda: ready(channel, "cut") == 0, "all is taken out")
            eventually(lambda: ready(channel, "cut") == count, "all is back")
        found = []
        for _ in range(count):
            method, _, body = channel.basic_get("cut", auto_ack=True)
            found.append((int(body.split(b" ", 1)[0]), method.redelivered))
        again = [number for number, redelivered in found if redelivered]
        # No socket takes as much as that: the rest was never sent to anybody.
        assert 0 < len(again) < count // 2
        assert found == [(number, number in again) for number in range(count)]
        connection.close()
