"""Hash and random exchanges, as clients see them; each message by itself and in batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.members import Member, cluster, eventually

QUEUES = ("s1", "s2", "s3")


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("spreading"), 1) as [started]:
        yield started


@pytest.fixture
def channel(member: Member) -> Iterator[BlockingChannel]:
    with member.connect() as connection:
        made = connection.channel()
        made.confirm_delivery()
        yield made
        if made.is_open:
            for name in ("spread", *QUEUES):
                made.exchange_delete(name)
                made.queue_delete(name)


def declare(channel: BlockingChannel, exchange_type: str, key: str, **arguments: Any) -> None:
    channel.exchange_declare("spread", exchange_type, durable=True, arguments=arguments)
    for queue in QUEUES:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "spread", key)


def places(channel: BlockingChannel) -> dict[bytes, set[str]]:
    """Take all messages; return which queues had each body."""
    found: dict[bytes, set[str]] = {}
    for queue in QUEUES:
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.setdefault(got[2], set()).add(queue)
    return found


def publish(channel: BlockingChannel, key: str, body: bytes, **fields: Any) -> None:
    channel.basic_publish("spread", key, body, pika.BasicProperties(**fields), mandatory=True)


def test_a_key_has_one_queue_before_and_after_a_restart(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as [member]:
        with member.connect() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            declare(channel, "x-consistent-hash", "5")
            for number in (*range(30), *range(30)):
                publish(channel, f"key-{number}", b"%d" % number)
            before = places(channel)
        assert {len(queues) for queues in before.values()} == {1}
        assert set.union(*before.values()) == set(QUEUES)
        member.stop()
        member.start()
        member.wait_ready()
        with member.connect() as connection:
            again = connection.channel()
            again.confirm_delivery()
            for number in range(30):
                publish(again, f"key-{number}", b"%d" % number)
            assert places(again) == before


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"hash-property": "message_id"}, "message_id"),
        ({"hash-property": "correlation_id"}, "correlation_id"),
        ({"hash-header": "tenant"}, "headers"),
    ],
)
def test_what_is_named_is_hashed_and_the_key_is_not(
    channel: BlockingChannel, arguments: dict[str, str], field: str
) -> None:
    declare(channel, "x-consistent-hash", "1", **arguments)
    for number in range(30):
        for key in ("one", "two", "three"):
            text = f"t{number}"
            value: Any = {"tenant": text} if field == "headers" else text
            publish(channel, key, text.encode(), **{field: value})
    found = places(channel)
    assert {len(queues) for queues in found.values()} == {1}
    assert set.union(*found.values()) == set(QUEUES)
    for key in ("one", "two", "three"):
        publish(channel, key, b"without")
    assert len(places(channel)[b"without"]) == 1


def test_a_timestamp_is_hashed(channel: BlockingChannel) -> None:
    declare(channel, "x-consistent-hash", "1", **{"hash-property": "timestamp"})
    for number in range(30):
        publish(channel, f"{number}", b"%d" % (number % 3), timestamp=1_700_000_000 + number % 3)
    assert {len(queues) for queues in places(channel).values()} == {1}


def test_random_uses_all_queues_for_one_key(channel: BlockingChannel) -> None:
    declare(channel, "x-random", "")
    for _ in range(60):
        publish(channel, "same", b"x")
    assert places(channel) == {b"x": set(QUEUES)}


def test_dead_letters_keep_the_order_of_their_key(channel: BlockingChannel) -> None:
    declare(channel, "x-modulus-hash", "")
    letters = {"x-dead-letter-exchange": "spread", "x-message-ttl": 1}
    channel.queue_declare("dying", arguments=letters)
    for number in range(30):
        channel.basic_publish("", "dying", b"%d" % number)
    counts = lambda: sum(  # noqa: E731
        channel.queue_declare(queue, passive=True).method.message_count for queue in QUEUES
    )
    eventually(lambda: counts() == 30, "all have died")
    # They died with the key they were published with, which is one.
    assert len({next(iter(queues)) for queues in places(channel).values()}) == 1
    channel.queue_delete("dying")


@pytest.mark.parametrize(
    ("arguments", "key"),
    [({"hash-header": "a", "hash-property": "message_id"}, "1"), ({}, "heavy"), ({}, "0")],
)
def test_what_makes_no_sense_is_refused(
    channel: BlockingChannel, arguments: dict[str, str], key: str
) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        declare(channel, "x-consistent-hash", key, **arguments)
    assert refused.value.reply_code == 406
    with channel.connection.channel() as again:
        again.exchange_delete("spread")
        again.queue_delete("s1")


def test_local_random_stays_at_the_publishers_member(tmp_path: Path) -> None:
    """And is unroutable where no queue is led."""
    with cluster(tmp_path, 3) as members:
        connections = [member.connect() for member in members]
        channels = [connection.channel() for connection in connections]
        for channel in channels:
            channel.confirm_delivery()
        channels[0].exchange_declare("near", "x-local-random", durable=True)
        mine = []
        # A server beside each client but the last, with two queues of its own.
        for channel in channels[:2]:
            names = [channel.queue_declare("", exclusive=True).method.queue for _ in range(2)]
            for name in names:
                channel.queue_bind(name, "near", "")
            mine.append(names)

        def count(at: int, name: str) -> int:
            found: int = channels[at].queue_declare(name, passive=True).method.message_count
            return found

        for at in (0, 1):
            for _ in range(40):
                channels[at].basic_publish("near", "any", b"", mandatory=True)
        for at in (0, 1):
            counts = [count(at, name) for name in mine[at]]
            assert sum(counts) == 40
            assert all(counts), "both queues of the member have some"
        with pytest.raises(pika.exceptions.UnroutableError):
            channels[2].basic_publish("near", "any", b"", mandatory=True)
        channels[2].queue_declare("plain", durable=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channels[2].queue_bind("plain", "near", "a key")
        assert refused.value.reply_code == 406
        for connection in connections:
            connection.close()


def test_two_members_choose_alike(tmp_path: Path) -> None:
    """The choice is a function of the bindings; a client may be anywhere."""
    with cluster(tmp_path, 3) as members:
        with members[0].connect() as connection:
            declare(connection.channel(), "x-consistent-hash", "3")
        for member in members:
            with member.connect() as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                for number in range(30):
                    publish(channel, f"key-{number}", b"%d" % number)
        with members[2].connect() as connection:
            found = places(connection.channel())
        assert len(found) == 30
        assert {len(queues) for queues in found.values()} == {1}
