"""Exchanges of type x-delayed-message, as clients see them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from tests.integration.federation_rig import admin
from tests.integration.home_down_rig import http_call
from tests.integration.members import Member, cluster, eventually

LATER, QUEUE = "later", "q"
#: What a loaded machine may be late by.
LATE_S = 5.0


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("delayed"), 1) as [started]:
        yield started


@pytest.fixture
def channel(member: Member) -> Iterator[BlockingChannel]:
    with member.connect() as connection:
        made = connection.channel()
        made.confirm_delivery()
        yield made
    with member.connect() as connection:
        channel = connection.channel()
        for name in (LATER, "front", "aside"):
            channel.exchange_delete(name)
        for name in (QUEUE, "other"):
            channel.queue_delete(name)


def declare(channel: BlockingChannel, delayed_type: str = "direct", **arguments: Any) -> None:
    arguments["x-delayed-type"] = delayed_type
    channel.exchange_declare(LATER, "x-delayed-message", durable=True, arguments=arguments)
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, LATER, "k")


def publish(
    channel: BlockingChannel, body: bytes, delay: object, exchange: str = LATER, **fields: Any
) -> None:
    headers = {} if delay is None else {"x-delay": delay}
    properties = pika.BasicProperties(headers=headers, **fields)
    channel.basic_publish(exchange, "k", body, properties, mandatory=True)


def take(channel: BlockingChannel, queue: str = QUEUE) -> tuple[Any, Any, bytes]:
    """Return the next message, which may have to come."""
    found: list[tuple[Any, Any, bytes]] = []

    def is_there() -> bool:
        got = channel.basic_get(queue, auto_ack=True)
        if got[0] is not None:
            found.append(got)
        return bool(found)

    eventually(is_there, f"a message in {queue}")
    return found[0]


def test_messages_come_when_they_are_due_with_the_delay_negated(channel: BlockingChannel) -> None:
    declare(channel)
    began = time.monotonic()
    publish(channel, b"late", 900)
    publish(channel, b"soon", 300, message_id="m")
    publish(channel, b"now", None)
    publish(channel, b"again", -300)
    assert [take(channel)[2] for _ in range(2)] == [b"now", b"again"]
    method, properties, body = take(channel)
    assert (body, properties.headers, properties.message_id) == (b"soon", {"x-delay": -300}, "m")
    assert (method.exchange, method.routing_key, method.redelivered) == (LATER, "k", False)
    assert time.monotonic() - began >= 0.3
    assert take(channel)[2] == b"late"
    assert 0.9 <= time.monotonic() - began < 0.9 + LATE_S


@pytest.mark.parametrize("delay", ["250", "+250"])
def test_texts_of_digits_delay_too(channel: BlockingChannel, delay: object) -> None:
    declare(channel)
    began = time.monotonic()
    publish(channel, b"m", delay)
    assert take(channel)[1].headers == {"x-delay": -250}
    assert time.monotonic() - began >= 0.25


def test_what_is_no_number_goes_at_once(channel: BlockingChannel) -> None:
    declare(channel)
    for delay in ("soon", True, [1000], 0):
        publish(channel, b"m", delay)
        assert take(channel)[1].headers == {"x-delay": delay}


def test_a_delay_that_is_too_long_is_refused(channel: BlockingChannel) -> None:
    declare(channel)
    with pytest.raises(ChannelClosedByBroker) as caught:
        publish(channel, b"m", 2**32)
    assert caught.value.reply_code == 406
    assert "x-delay is 4294967296 ms; at most 4294967295" in caught.value.reply_text


def test_it_routes_as_the_type_that_it_is_declared_with(channel: BlockingChannel) -> None:
    declare(channel, "topic")
    channel.queue_declare("other", durable=True)
    channel.queue_bind("other", LATER, "a.#")
    properties = pika.BasicProperties(headers={"x-delay": 100})
    channel.basic_publish(LATER, "a.b.c", b"m", properties)
    method, _, body = take(channel, "other")
    assert (method.routing_key, body) == ("a.b.c", b"m")
    assert channel.basic_get(QUEUE)[0] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "'x-delayed-type' must be an existing exchange type"),
        ({"x-delayed-type": 5}, "'x-delayed-type' must be an existing exchange type"),
        ({"x-delayed-type": "x-delayed-message"}, "must be an existing exchange type"),
        ({"x-delayed-type": "x-consistent-hash", "hash-header": 7}, "hash-header must be"),
    ],
)
def test_a_declaration_says_how_it_routes(
    channel: BlockingChannel, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.exchange_declare("wrong", "x-delayed-message", arguments=arguments)
    assert caught.value.reply_code == 406
    assert said in caught.value.reply_text


def test_an_expiration_counts_from_when_it_is_due(channel: BlockingChannel) -> None:
    declare(channel)
    publish(channel, b"m", 500, expiration="200")
    # Were it from the publish on, it would be gone when it is due.
    assert take(channel)[2] == b"m"


def test_what_has_no_route_when_it_is_due_goes_to_the_alternate_exchange(
    channel: BlockingChannel,
) -> None:
    channel.exchange_declare("aside", "fanout")
    declare(channel, "direct", **{"alternate-exchange": "aside"})
    channel.queue_declare("other", durable=True)
    channel.queue_bind("other", "aside")
    properties = pika.BasicProperties(headers={"x-delay": 200})
    channel.basic_publish(LATER, "nowhere", b"m", properties, mandatory=True)
    assert take(channel, "other")[2] == b"m"


def test_mandatory_returns_only_what_is_not_delayed(channel: BlockingChannel) -> None:
    declare(channel)
    properties = pika.BasicProperties(headers={"x-delay": 100})
    channel.basic_publish(LATER, "nowhere", b"m", properties, mandatory=True)
    with pytest.raises(UnroutableError):
        channel.basic_publish(LATER, "nowhere", b"m", mandatory=True)


def test_messages_delay_that_come_over_another_exchange_or_as_dead_letters(
    channel: BlockingChannel,
) -> None:
    declare(channel, "fanout")
    channel.exchange_declare("front", "fanout")
    channel.exchange_bind(LATER, "front")
    began = time.monotonic()
    publish(channel, b"over", 300, "front")
    assert take(channel)[2] == b"over"
    assert time.monotonic() - began >= 0.3
    channel.queue_declare(
        "other", durable=True, arguments={"x-dead-letter-exchange": LATER, "x-message-ttl": 0}
    )
    properties = pika.BasicProperties(headers={"x-delay": 300})
    began = time.monotonic()
    channel.basic_publish("", "other", b"dead", properties)
    _, found, body = take(channel)
    assert body == b"dead"
    assert time.monotonic() - began >= 0.3
    assert found.headers["x-death"][0]["reason"] == "expired"
    assert found.headers["x-delay"] == -300


def test_its_queue_is_its_own(member: Member, channel: BlockingChannel) -> None:
    declare(channel)
    for act in (
        lambda c: c.queue_delete("amq.delayed.later"),
        lambda c: c.queue_bind("amq.delayed.later", "amq.fanout"),
        lambda c: c.queue_declare("amq.delayed.mine"),
    ):
        with pytest.raises(ChannelClosedByBroker) as caught:
            act(channel)
        assert caught.value.reply_code == 403
        channel = channel.connection.channel()
        channel.confirm_delivery()
    with pytest.raises(UnroutableError):
        channel.basic_publish("", "amq.delayed.later", b"m", mandatory=True)


def test_it_is_in_use_while_messages_wait_and_they_go_with_it(channel: BlockingChannel) -> None:
    declare(channel)
    channel.queue_unbind(QUEUE, LATER, "k")
    publish(channel, b"m", 700)
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.exchange_delete(LATER, if_unused=True)
    assert "in use: messages wait in it" in caught.value.reply_text
    channel = channel.connection.channel()
    channel.confirm_delivery()
    channel.exchange_delete(LATER)
    declare(channel)
    publish(channel, b"new", 1000)
    assert take(channel)[2] == b"new"
    channel.exchange_delete(LATER, if_unused=False)


def test_it_is_made_and_deleted_by_the_http_api_and_comes_with_definitions(
    member: Member, channel: BlockingChannel
) -> None:
    body = {"type": "x-delayed-message", "durable": True, "arguments": {"x-delayed-type": "topic"}}
    assert http_call(member, "PUT", "exchanges/%2F/later", body)[0] == 201
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, LATER, "#")
    publish(channel, b"m", 100)
    assert take(channel)[2] == b"m"
    _, exported = http_call(member, "GET", "definitions")
    assert not [queue for queue in exported["queues"] if queue["name"].startswith("amq.")]
    publish(channel, b"kept", 60_000)
    status, answer = http_call(member, "DELETE", "exchanges/%2F/later?if-unused=true")
    assert (status, answer["reason"]) == (400, "exchange 'later' in vhost '/' in use")
    channel.queue_unbind(QUEUE, LATER, "#")
    status, answer = http_call(member, "DELETE", "exchanges/%2F/later?if-unused=true")
    assert (status, answer["reason"]) == (
        400,
        "exchange 'later' in vhost '/' in use: messages wait in it",
    )
    assert http_call(member, "DELETE", "exchanges/%2F/later")[0] == 204
    _, rows = http_call(member, "GET", "queues?disable_stats=true&enable_queue_totals=true")
    assert [row["name"] for row in rows if row["name"].startswith("amq.delayed.")] == []
    assert http_call(member, "POST", "definitions", exported)[0] in (201, 204)
    publish(channel, b"again", 100)
    assert take(channel)[2] == b"again"


def test_the_admin_service_makes_it_and_leaves_its_queue_alone(
    member: Member, channel: BlockingChannel
) -> None:
    with admin(member) as client:
        with pytest.raises(AssertionError, match="x-delayed-type"):
            client.put("exchange", LATER, {"type": "x-delayed-message", "durable": True})
        assert "amq.delayed.later" not in client.objects("queue")
        spec = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "direct"}}
        client.put("exchange", LATER, spec)
        client.put("exchange", LATER, spec)
        declare(channel)
        publish(channel, b"m", 200)
        for act in (
            lambda: client.put("queue", "amq.delayed.later", {"type": "classic"}),
            lambda: client.delete("queue", "amq.delayed.later"),
        ):
            with pytest.raises(AssertionError, match="is kept by exchange 'later'"):
                act()
        assert take(channel)[2] == b"m"
        client.delete("exchange", LATER)
        assert "amq.delayed.later" not in client.objects("queue")


def test_nothing_is_lost_or_early_when_members_are_killed(tmp_path: Path) -> None:
    count = 300
    with cluster(tmp_path, 3) as members:
        with members[0].connect() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            arguments = {"x-delayed-type": "direct"}
            channel.exchange_declare(LATER, "x-delayed-message", durable=True, arguments=arguments)
            channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_bind(QUEUE, LATER, "k")
            due = {}
            for number in range(count):
                delay = 2000 + 10 * number
                due[number] = time.time() + delay / 1000
                publish(channel, str(number).encode(), delay)
        members[1].kill()
        members[1].start()
        members[1].wait_ready()
        members[2].kill()
        members[2].start()
        seen: set[int] = set()
        with members[0].connect() as connection:
            channel = connection.channel()

            def all_came() -> bool:
                method, _, body = channel.basic_get(QUEUE, auto_ack=True)
                if method is not None:
                    number = int(body)
                    assert time.time() >= due[number], "early"
                    seen.add(number)
                return len(seen) == count

            eventually(all_came, "every message")


def test_a_key_replaces_and_cancels_what_waits(channel: BlockingChannel) -> None:
    declare(channel)

    def keyed(body: bytes, key: str, delay: int) -> None:
        headers = {"x-delay": delay, "x-delay-key": key}
        channel.basic_publish(LATER, "k", body, pika.BasicProperties(headers=headers))

    keyed(b"first", "a", 400)
    keyed(b"to be cancelled", "b", 400)
    keyed(b"second", "a", 600)
    keyed(b"", "b", -1)
    keyed(b"last", "c", 800)
    assert [take(channel)[2] for _ in range(2)] == [b"second", b"last"]
    # What came out is not a cancellation of what waits.
    keyed(b"soon", "d", 1)
    assert take(channel)[2] == b"soon"
    keyed(b"late", "d", 300)
    assert take(channel)[2] == b"late"


def test_a_key_that_is_too_long_is_refused(channel: BlockingChannel) -> None:
    declare(channel)
    properties = pika.BasicProperties(headers={"x-delay": 5, "x-delay-key": "k" * 256})
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.basic_publish(LATER, "k", b"m", properties)
    assert "x-delay-key is longer than 255 bytes" in caught.value.reply_text


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_queue_keeps_a_message_until_its_delivery_time(
    member: Member, channel: BlockingChannel, kind: str
) -> None:
    channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": kind})
    due_s = time.time() + 1.5

    def send(body: bytes, at: object) -> None:
        headers = {} if at is None else {"x-opt-delivery-time": at}
        properties = pika.BasicProperties(headers=headers, delivery_mode=2)
        channel.basic_publish("", QUEUE, body, properties, mandatory=True)

    send(b"later", int(due_s * 1000))
    send(b"past", 1)
    send(b"no time", "tomorrow")
    send(b"plain", None)
    assert [take(channel)[2] for _ in range(3)] == [b"past", b"no time", b"plain"]
    assert channel.basic_get(QUEUE)[0] is None
    browsed = http_call(member, "GET", f"queues/%2F/{QUEUE}/messages?state=delayed")[1]
    assert [row["due_ms"] for row in browsed["messages"]] == [int(due_s * 1000)]
    method, _, body = take(channel)
    assert time.time() >= due_s - 0.001, "early"
    assert time.time() < due_s + LATE_S
    assert (body, method.redelivered) == (b"later", False)
    assert "x-opt-delivery-time is not an integer" in member.log()
