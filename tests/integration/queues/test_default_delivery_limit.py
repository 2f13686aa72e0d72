"""The delivery limit that nobody set, at a real member: what it drops, and where that shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

from tests.integration.management.test_metrics import scrape
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(240)

QUORUM = {"x-queue-type": "quorum"}
#: More often than the default of 20 allows.
RETURNS = 25


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("limit"), 1) as members:
        yield members[0]


@pytest.fixture
def connection(member: Member) -> Iterator[pika.BlockingConnection]:
    with member.connect() as opened:
        yield opened


def filled(connection: pika.BlockingConnection, name: str, **arguments: Any) -> None:
    """Declare a quorum queue that holds one message."""
    channel = connection.channel()
    channel.confirm_delivery()
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments=QUORUM | table)
    channel.basic_publish("", name, b"order", pika.BasicProperties(delivery_mode=2))
    channel.close()


def got(channel: Any, name: str) -> tuple[Any, dict[str, Any]] | None:
    method, properties, _ = channel.basic_get(name)
    return None if method is None else (method, properties.headers or {})


def taken(channel: Any, name: str) -> tuple[Any, dict[str, Any]]:
    found: tuple[Any, dict[str, Any]] = eventually(
        lambda: got(channel, name), f"a message in {name}"
    )
    return found


def is_empty(connection: pika.BlockingConnection, name: str) -> bool:
    channel = connection.channel()
    count = channel.queue_declare(name, passive=True).method.message_count
    channel.close()
    return bool(count == 0)


def dropped(member: Member) -> tuple[float, float]:
    """Return what any limit dropped, and what the default did without a dead letter exchange."""
    found = scrape(member)
    return (
        found["brokerd_queue_messages_over_delivery_limit_total", ()],
        found["brokerd_queue_messages_dropped_default_delivery_limit_total", ()],
    )


GIVE_BACK: dict[str, Callable[[Any, int], None]] = {
    "nack": lambda channel, tag: channel.basic_nack(tag, requeue=True),
    "recover": lambda channel, tag: channel.basic_recover(requeue=True),
}


@pytest.mark.parametrize("how", GIVE_BACK)
def test_who_gives_a_message_back_keeps_it(
    member: Member, connection: pika.BlockingConnection, how: str
) -> None:
    """R-DL-2, R-DL-4, R-DL-6: 25 returns are no failure; the headers say both counts."""
    name, before = f"given-back-{how}", dropped(member)
    filled(connection, name)
    channel = connection.channel()
    for returns in range(RETURNS):
        method, headers = taken(channel, name)
        assert headers.get("x-acquired-count", 0) == returns
        assert "x-delivery-count" not in headers
        GIVE_BACK[how](channel, method.delivery_tag)
    channel.basic_ack(taken(channel, name)[0].delivery_tag)
    assert dropped(member) == before


def test_a_message_with_which_consumers_went_away_is_dropped_and_that_shows(
    member: Member, connection: pika.BlockingConnection
) -> None:
    """R-DL-2, R-DL-3: 21 times; the metric counts it."""
    before = dropped(member)
    filled(connection, "crashes")
    for failures in range(21):
        channel = connection.channel()
        _, headers = taken(channel, "crashes")
        assert headers.get("x-delivery-count", 0) == failures
        channel.close()
    eventually(lambda: dropped(member) == (before[0] + 1, before[1] + 1), "it is dropped")
    assert is_empty(connection, "crashes")


def test_with_a_dead_letter_exchange_nothing_is_dropped(
    member: Member, connection: pika.BlockingConnection
) -> None:
    """R-DL-3, R-DLX-35: and whoever looks at the letter does not lose it, though its count is 21.

    The queue of dead letters has a default limit of its own, and it is not the letter's fault.
    """
    before = dropped(member)
    connection.channel().queue_declare("crash-letters", durable=True, arguments=QUORUM)
    target = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "crash-letters"}
    filled(connection, "crashes-with-dlx", **target)
    for _ in range(21):
        channel = connection.channel()
        taken(channel, "crashes-with-dlx")
        channel.close()
    for looks in range(3):
        channel = connection.channel()
        method, headers = taken(channel, "crash-letters")
        assert headers["x-death"][0]["reason"] == "delivery_limit"
        if looks:
            assert headers["x-delivery-count"] == 20 + looks + 1
        if looks == 2:
            channel.basic_ack(method.delivery_tag)
        channel.close()
    assert dropped(member) == (before[0] + 1, before[1])


def test_a_limit_that_somebody_set_counts_every_return_and_is_nobodys_surprise(
    member: Member, connection: pika.BlockingConnection
) -> None:
    """R-DL-1, R-DL-2: 20 set is not 20 by default."""
    before = dropped(member)
    filled(connection, "set", x_delivery_limit=20)
    channel = connection.channel()
    for returns in range(21):
        method, headers = taken(channel, "set")
        assert headers.get("x-delivery-count", 0) == returns
        channel.basic_nack(method.delivery_tag, requeue=True)
    eventually(lambda: dropped(member) == (before[0] + 1, before[1]), "it is dropped")
    assert is_empty(connection, "set")
