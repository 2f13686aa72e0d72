"""Three real members: remote leaders, failover by SIGKILL, nothing confirmed is lost."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pika.exceptions
import pytest

from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(600)

QUORUM = {"x-queue-type": "quorum"}
LOST = (pika.exceptions.AMQPError, OSError)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    with cluster(tmp_path_factory.mktemp("three"), 3) as members:
        yield members


@pytest.mark.parametrize("arguments", [{}, QUORUM], ids=["classic", "quorum"])
def test_a_queue_is_used_through_any_member(
    members: list[Member], arguments: dict[str, str]
) -> None:
    """R-QQ-5: the leader is where it was declared; others reach it over the peer streams."""
    queue = f"anywhere-{arguments.get('x-queue-type')}"
    connections = [member.connect() for member in members]
    first, second, third = [connection.channel() for connection in connections]
    first.queue_declare(queue, durable=True, arguments=arguments)
    second.confirm_delivery()
    for i in range(100):
        second.basic_publish("", queue, b"%d" % i, mandatory=True)
    method, _, body = third.basic_get(queue)
    assert body == b"0"
    third.basic_ack(method.delivery_tag)
    third.basic_qos(prefetch_count=7)
    got = []
    for method, _, body in third.consume(queue, inactivity_timeout=60):
        got.append(body)
        third.basic_ack(method.delivery_tag)
        if len(got) == 99:
            break
    assert got == [b"%d" % i for i in range(1, 100)]
    third.cancel()
    assert second.queue_declare(queue, passive=True).method.message_count == 0
    first.queue_delete(queue)
    for connection in connections:
        connection.close()


def test_an_ack_that_a_get_took_along_outlives_the_member_that_leads(
    members: list[Member],
) -> None:
    """ADR 23: the channel at another member takes its message for settled, and lives on."""
    there, here = members[1], members[0]
    with there.connect() as connection:
        connection.channel().queue_declare("taken-along", durable=True)
    with here.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(3):
            channel.basic_publish("", "taken-along", b"%d" % number, mandatory=True)
        method, _, body = channel.basic_get("taken-along")
        assert body == b"0"
        channel.basic_ack(method.delivery_tag)
        assert channel.basic_get("taken-along")[2] == b"1"
        there.kill()
        there.start()
        there.wait_ready()
    with there.connect() as connection:
        channel = connection.channel()
        got: list[bytes] = []

        def all_got() -> bool:
            body = channel.basic_get("taken-along", auto_ack=True)[2]
            got.extend([] if body is None else [body])
            return b"1" in got and b"2" in got

        eventually(all_got, "what was not acknowledged is back")
        assert sorted(got) == [b"1", b"2"]
        assert channel.basic_get("taken-along")[0] is None
        channel.queue_delete("taken-along")


class _Publisher(threading.Thread):
    """Publishes numbers with confirms, at whichever member answers."""

    def __init__(self, members: list[Member], queue: str, first_number: int) -> None:
        super().__init__(daemon=True)
        self.members, self.queue, self.first_number = members, queue, first_number
        self.confirmed: set[int] = set()
        self.stopped = threading.Event()

    def run(self) -> None:
        number, turn = self.first_number, 0
        while not self.stopped.is_set():
            try:
                channel = self.members[turn % len(self.members)].connect().channel()
                channel.confirm_delivery()
                while not self.stopped.is_set():
                    channel.basic_publish("", self.queue, b"%d" % number, mandatory=True)
                    self.confirmed.add(number)
                    number += 1
            except LOST:
                turn += 1
                number += 1


class _Consumer(threading.Thread):
    """Acknowledges what it gets; counts copies."""

    def __init__(self, members: list[Member], queue: str) -> None:
        super().__init__(daemon=True)
        self.members, self.queue = members, queue
        self.got: Counter[int] = Counter()
        self.unflagged = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        turn = 0
        while not self.stopped.is_set():
            with contextlib.suppress(*LOST):
                channel = self.members[turn % len(self.members)].connect().channel()
                channel.basic_qos(prefetch_count=50)
                for method, _, body in channel.consume(self.queue, inactivity_timeout=0.2):
                    if method is not None:
                        number = int(body)
                        self.unflagged += bool(self.got[number]) and not method.redelivered
                        self.got[number] += 1
                        channel.basic_ack(method.delivery_tag)
                    if self.stopped.is_set():
                        break
            turn += 1


def test_killing_members_loses_no_confirmed_message(tmp_path: Path) -> None:
    """G1, G4, G9; R-QQ-10: five SIGKILLs of the leader under load."""
    with cluster(tmp_path, 3) as members:
        setup = members[0].connect()
        setup.channel().queue_declare("orders", durable=True, arguments=QUORUM)
        setup.close()
        # Numbers of their own: a lost message of one must not hide behind another's.
        publishers = [
            _Publisher(members[i:] + members[:i], "orders", i * 1_000_000) for i in range(3)
        ]
        consumers = [_Consumer(members[i:] + members[:i], "orders") for i in range(2)]
        for thread in (*publishers, *consumers):
            thread.start()
        for round_number in range(5):
            victim = members[round_number % 3]
            before = sum(len(publisher.confirmed) for publisher in publishers)
            eventually(
                lambda before=before: sum(len(p.confirmed) for p in publishers) > before + 100,
                "publishing goes on",
            )
            victim.kill()
            after = sum(len(publisher.confirmed) for publisher in publishers)
            eventually(
                lambda after=after: sum(len(p.confirmed) for p in publishers) > after + 50,
                "publishing goes on without the killed member",
            )
            victim.start()
            victim.wait_ready()
        for publisher in publishers:
            publisher.stopped.set()
        for publisher in publishers:
            publisher.join(60)
        confirmed = set().union(*(publisher.confirmed for publisher in publishers))
        got: Counter[int] = Counter()

        def all_consumed() -> bool:
            got.clear()
            for consumer in consumers:
                got.update(dict(consumer.got))
            return confirmed <= set(got)

        eventually(all_consumed, "every confirmed message is consumed", 90)
        for consumer in consumers:
            consumer.stopped.set()
        for consumer in consumers:
            consumer.join(60)
        assert [consumer.unflagged for consumer in consumers] == [0, 0]


def test_a_minority_confirms_nothing_and_goes_on_after_the_majority_is_back(
    tmp_path: Path,
) -> None:
    """R-QQ-9, G9: no majority means neither ack nor nack."""
    with cluster(tmp_path, 3) as members:
        connection = members[0].connect(heartbeat=0)
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments=QUORUM)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"before")
        for member in members[1:]:
            member.kill()
        done = threading.Event()

        def publish() -> None:
            channel.basic_publish("", "q", b"alone")
            done.set()

        thread = threading.Thread(target=publish, daemon=True)
        thread.start()
        assert not done.wait(3)
        began = time.monotonic()
        members[1].start()
        members[1].wait_ready()
        assert done.wait(60), f"no confirm {time.monotonic() - began:.1f} s after the heal"
        thread.join(5)
        connection.close()
