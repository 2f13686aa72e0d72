"""Queues that frameworks make for delays: TTL, dead letter exchange, expiry, and no consumer.

R-Q-11.  The arguments are those of Laravel's queue (vyuldashev), of Symfony's messenger and of the
like, with times for a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.integration.management.test_brokerctl import Ctl
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(240)

DELAY_MS = 1500
TYPES = ("classic", "quorum")


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("delays"), 1) as [started]:
        yield started


@pytest.fixture(scope="module")
def as_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    settings = {"BROKERD_COMPAT_PROFILE": "rabbitmq-4.3"}
    with cluster(tmp_path_factory.mktemp("as-rabbitmq"), 1, **settings) as [started]:
        yield started


def later(channel: Any, kind: str, expires_ms: int, **message: Any) -> str:
    """Send a message by a queue of its delay to `work`; return that queue."""
    channel.confirm_delivery()
    channel.queue_declare("work", durable=True)
    channel.queue_purge("work")
    name = f"work.delay.{kind}"
    channel.queue_declare(
        name,
        durable=True,
        arguments={
            "x-queue-type": kind,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "work",
            "x-expires": expires_ms,
        }
        | ({} if message else {"x-message-ttl": DELAY_MS}),
    )
    channel.basic_publish("", name, b"task", pika.BasicProperties(**message))
    return name


def listed(member: Member, name: str) -> bool:
    """Tell whether there is such a queue; a passive declare would be a use of it."""
    ctl = Ctl(f"127.0.0.1:{member.grpc_port}")
    return name in ctl("-s", "list_queues", "name").splitlines()


def count(channel: Any, name: str) -> int:
    found: int = channel.queue_declare(name, passive=True).method.message_count
    return found


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("message", [{}, {"expiration": str(DELAY_MS)}], ids=["queue", "message"])
def test_a_delay_that_is_longer_than_the_expiry_loses_nothing(
    member: Member, kind: str, message: dict[str, str]
) -> None:
    """R-Q-11: the queue goes too, when the message has gone."""
    with member.connect() as connection:
        channel = connection.channel()
        name = later(channel, kind, 300, **message)
        eventually(lambda: count(channel, "work") == 1, "the task has come")
    eventually(lambda: not listed(member, name), "the queue of the delay has expired")


@pytest.mark.parametrize("kind", TYPES)
def test_in_profiles_of_rabbitmq_it_is_lost(as_rabbitmq: Member, kind: str) -> None:
    """R-Q-11; counted and told."""
    with as_rabbitmq.connect() as connection:
        channel = connection.channel()
        name = later(channel, kind, 300)
        eventually(lambda: not listed(as_rabbitmq, name), "it has expired")
        # Longer than the message's time.
        later(channel, kind, 60_000)
        eventually(lambda: count(channel, "work") == 1, "the second task has come")
    assert f"'{name}'" in as_rabbitmq.log()


@pytest.mark.parametrize("kind", TYPES)
def test_a_declare_keeps_a_queue(member: Member, kind: str) -> None:
    """R-Q-11: as a program does that declares its queue before each message."""
    arguments = {"x-queue-type": kind, "x-expires": 1000}
    with member.connect() as connection:
        channel = connection.channel()
        name = f"leased.{kind}"
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.basic_publish("", name, b"kept")
        used = [0]

        def declared() -> bool:
            used[0] += 1
            found = channel.queue_declare(name, durable=True, arguments=arguments)
            assert found.method.message_count == 1, "it was made anew"
            connection.sleep(0.2)
            return used[0] > 12

        eventually(declared, "far longer than its expiry")
    eventually(lambda: not listed(member, name), "it expires when that ends")
