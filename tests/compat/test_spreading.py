"""x-consistent-hash and x-random beside RabbitMQ's plug-ins: shares, one queue for a key, refusals.

Which queue a key has differs on purpose, so what is compared is what a program can count on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.compat.rabbitmq_server import RabbitAdmin
from tests.compat.servers import Differs, Server, expected
from tests.rabbitmq_node import MANAGEMENT, rabbit_node

HASH, RANDOM = "x-consistent-hash", "x-random"
QUEUES = ("qa", "qb", "qc")
WEIGHTS = ("1", "1", "2")


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """RabbitMQ 3.10.8 with the plug-ins of these types."""
    plugins = f"{MANAGEMENT},rabbitmq_consistent_hash_exchange,rabbitmq_random_exchange"
    with rabbit_node(tmp_path_factory.mktemp("spreading") / "node", plugins) as node:
        admin = RabbitAdmin(node.http_port)
        yield Server("rabbitmq", node.amqp_port, admin, node.http_port)
        admin.close()


def declared(channel: Any, kind: str, weights: tuple[str, ...] = WEIGHTS, **arguments: Any) -> None:
    channel.confirm_delivery()
    channel.exchange_declare("spread", kind, arguments=arguments)
    for name, weight in zip(QUEUES, weights, strict=True):
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, "spread", weight)


def publish(channel: Any, key: str, **fields: Any) -> None:
    channel.basic_publish("spread", key, b"", pika.BasicProperties(**fields), mandatory=True)


def shares(channel: Any) -> list[int]:
    """Return how many messages each queue has, and take them away."""
    found = [channel.queue_declare(name, passive=True).method.message_count for name in QUEUES]
    for name in QUEUES:
        channel.queue_purge(name)
    return found


def test_queues_have_keys_by_their_weights(channel: Any) -> None:
    declared(channel, HASH)
    for number in range(1000):
        publish(channel, f"key-{number}")
    first, second, third = shares(channel)
    assert first + second + third == 1000
    assert 180 < first < 320
    assert 180 < second < 320
    assert 430 < third < 570


def test_a_key_has_one_queue_and_cc_adds_none(channel: Any) -> None:
    declared(channel, HASH)
    for _ in range(10):
        publish(channel, "same")
    found = shares(channel)
    assert sorted(found) == [0, 0, 10]
    for _ in range(5):
        publish(channel, "same", headers={"CC": ["other", "more", "third", "fourth"]})
    assert [bool(count) for count in shares(channel)] == [bool(count) for count in found]


def test_the_first_binding_of_a_queue_says_its_weight(channel: Any) -> None:
    declared(channel, HASH)
    channel.queue_bind("qa", "spread", "50")
    for number in range(400):
        publish(channel, f"key-{number}")
    assert shares(channel)[0] < 150


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"hash-header": "h"}, "headers"),
        ({"hash-property": "message_id"}, "message_id"),
        ({"hash-property": "correlation_id"}, "correlation_id"),
        ({"hash-property": "timestamp"}, "timestamp"),
    ],
)
def test_what_is_named_is_hashed(channel: Any, arguments: dict[str, str], field: str) -> None:
    declared(channel, HASH, ("1", "1", "1"), **arguments)
    for number in range(150):
        value: Any = {"headers": {"h": f"v{number}"}, "timestamp": number}.get(field, f"v{number}")
        publish(channel, "same", **{field: value})
    assert min(shares(channel)) > 20
    for number in range(10):
        publish(channel, f"key-{number}")
    assert sorted(shares(channel)) == [0, 0, 10], "what is missing has one place"


def refused(channel: Any, ask: Any) -> int:
    """Return the code with which the server refuses; 0: it does not."""
    try:
        ask(channel)
    except (
        pika.exceptions.ChannelClosedByBroker,
        pika.exceptions.ConnectionClosedByBroker,
    ) as error:
        return int(error.reply_code)
    return 0


@pytest.mark.parametrize(
    ("weight", "code"),
    [
        *((weight, 406) for weight in ("0", "-1", "", "a", "1.5")),
        *((weight, 0) for weight in ("1", "10000")),
        ("10001", Differs(0, 406, "D-64")),
    ],
)
def test_a_binding_key_is_a_weight(server: Server, channel: Any, weight: str, code: Any) -> None:
    declared(channel, HASH)
    channel.queue_declare("more", durable=True)
    found = refused(channel, lambda c: c.queue_bind("more", "spread", weight))
    assert found == expected(server, code)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"hash-header": "a", "hash-property": "message_id"}, 406),
        ({"hash-property": "app_id"}, 406),
        ({"hash-header": ""}, 0),
        ({"hash-header": 7}, Differs(541, 406, "D-65")),
        ({"hash-property": 7}, Differs(541, 406, "D-65")),
    ],
)
def test_arguments_say_what_is_hashed(
    server: Server, channel: Any, arguments: dict[str, Any], code: Any
) -> None:
    found = refused(channel, lambda c: c.exchange_declare("spread", HASH, arguments=arguments))
    assert found == expected(server, code)


def test_another_argument_of_a_redeclaration_changes_nothing(channel: Any) -> None:
    """R-EX-4"""
    declared(channel, HASH, ("1", "1", "1"), **{"hash-header": "h"})
    channel.exchange_declare("spread", HASH, arguments={"hash-header": "other"})
    for number in range(10):
        publish(channel, f"key-{number}", headers={"other": f"v{number}"})
    assert sorted(shares(channel)) == [0, 0, 10]


def test_a_random_exchange_uses_all_queues(channel: Any) -> None:
    declared(channel, RANDOM)
    for _ in range(300):
        publish(channel, "same")
    found = shares(channel)
    assert sum(found) == 300
    assert min(found) > 60


def test_without_a_queue_a_message_is_unroutable(channel: Any) -> None:
    channel.confirm_delivery()
    channel.exchange_declare("spread", HASH)
    with contextlib.suppress(pika.exceptions.UnroutableError):
        publish(channel, "key")
        raise AssertionError("it was routed")
