"""Federated queues between brokerd processes: warehouse upstream, orders downstream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.integration.federated_queue_rig import (
    STILL_SECONDS,
    consumer_rows,
    count_of,
    federate_queue,
    wait_queue_link,
    worker,
)
from tests.integration.federation_rig import Pair, amqp, brokerd_pair, uri
from tests.integration.members import Member, eventually

pytestmark = pytest.mark.timeout(300)

QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with brokerd_pair(tmp_path_factory) as found:
        yield found


def declare(member: Member, queue: str, arguments: dict[str, Any] | None = None) -> None:
    with amqp(member.amqp_port) as channel:
        channel.queue_declare(queue, durable=True, arguments=arguments)


def link(pair: Pair, queue: str, /, **definition: Any) -> dict[str, Any]:
    """Federate a queue of orders with the one of the warehouse."""
    definition.setdefault("uri", uri(pair.warehouse.amqp_port))
    federate_queue(pair.downstream, queue, definition.pop("uri"), f"^{queue}$", **definition)
    return wait_queue_link(pair.downstream, queue)


def publish(member: Member, queue: str, count: int, first: int = 0) -> None:
    with amqp(member.amqp_port) as channel:
        for i in range(first, first + count):
            channel.basic_publish("", queue, b"%d" % i)


@pytest.mark.parametrize(
    ("here", "there"), [({}, {}), (QUORUM, QUORUM), ({}, QUORUM)], ids=["classic", "quorum", "both"]
)
@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish", "no-ack"])
def test_messages_move_to_where_the_consumer_is(
    pair: Pair, ack_mode: str, here: dict[str, Any], there: dict[str, Any]
) -> None:
    """R-FQ-1, R-FQ-2, R-FQ-4: in order, and none is left behind."""
    queue = f"move-{ack_mode}-{len(here)}{len(there)}"
    declare(pair.orders, queue, here)
    declare(pair.warehouse, queue, there)
    publish(pair.warehouse, queue, 300)
    row = link(pair, queue, ack_mode=ack_mode)
    assert (row["type"], row["exchange"], row["upstream_queue"]) == ("queue", "", queue)
    with worker(pair.orders.amqp_port, queue) as consumer:
        consumer.wait(300)
        assert consumer.bodies == [b"%d" % i for i in range(300)]
    with amqp(pair.warehouse.amqp_port) as channel:
        eventually(lambda: count_of(channel, queue) == 0, "the upstream queue is empty")


def test_nothing_moves_without_a_consumer_and_get_does_not_pull(pair: Pair) -> None:
    """R-FQ-2, R-FQ-3."""
    declare(pair.orders, "waiting")
    declare(pair.warehouse, "waiting")
    publish(pair.warehouse, "waiting", 5)
    link(pair, "waiting")
    with amqp(pair.orders.amqp_port) as down, amqp(pair.warehouse.amqp_port) as up:
        deadline = time.monotonic() + STILL_SECONDS
        while time.monotonic() < deadline:
            assert down.basic_get("waiting")[0] is None
        assert consumer_rows(pair.upstream, "waiting") == []
        eventually(
            lambda: wait_queue_link(pair.downstream, "waiting")["backlog"] == 5,
            "the listing says what waits",
        )
        # A consumer below 0, another broker's link say, is no demand either.
        low = {"x-priority": -1}
        with worker(pair.orders.amqp_port, "waiting", arguments=low) as consumer:
            consumer.idle(STILL_SECONDS)
            assert consumer.got == []
        assert count_of(up, "waiting") == 5
        with worker(pair.orders.amqp_port, "waiting") as consumer:
            consumer.wait(5)


def test_the_link_consumes_below_all_others_and_says_who_it_is(pair: Pair) -> None:
    """R-FQ-2: priority -1, the prefetch count, the tag; a key of the upstream names another."""
    for queue, definition, tag in (
        ("tagged", {}, "federation-link-tagged"),
        ("renamed", {"consumer_tag": "orders", "prefetch_count": 7}, "orders"),
    ):
        declare(pair.orders, queue)
        declare(pair.warehouse, queue)
        link(pair, queue, **definition)
        with worker(pair.orders.amqp_port, queue):
            (row,) = eventually(
                lambda queue=queue: consumer_rows(pair.upstream, queue), "the link consumes"
            )
            assert row["consumer_tag"] == tag
            assert row["priority"] == -1
            assert row["prefetch_count"] == definition.get("prefetch_count", 1000)
        eventually(
            lambda queue=queue: not consumer_rows(pair.upstream, queue), "the link has cancelled"
        )


def test_local_consumers_of_the_upstream_come_first(pair: Pair) -> None:
    """R-FQ-2: what they have room for is theirs."""
    declare(pair.orders, "shared")
    declare(pair.warehouse, "shared")
    link(pair, "shared")
    with (
        worker(pair.orders.amqp_port, "shared") as far,
        worker(pair.warehouse.amqp_port, "shared", 1000) as near,
    ):
        eventually(lambda: len(consumer_rows(pair.upstream, "shared")) == 2, "the link consumes")
        publish(pair.warehouse, "shared", 100)
        near.wait(100)
        far.idle(STILL_SECONDS)
        assert far.got == []


def test_a_queue_with_ready_messages_wants_no_more(pair: Pair) -> None:
    """R-FQ-2: consumers that are full are no demand; the overshoot is the prefetch count."""
    declare(pair.orders, "full")
    declare(pair.warehouse, "full")
    link(pair, "full", prefetch_count=10)
    publish(pair.warehouse, "full", 500)
    with (
        amqp(pair.warehouse.amqp_port) as up,
        worker(pair.orders.amqp_port, "full", 1) as consumer,
    ):
        consumer.acknowledges = False
        consumer.wait(1)
        eventually(lambda: not consumer_rows(pair.upstream, "full"), "the link has cancelled")
        assert count_of(up, "full") >= 400
        consumer.acknowledges = True
        consumer.channel.basic_ack(consumer.got[0][0].delivery_tag)
        consumer.wait(500)
    assert sorted(map(int, consumer.bodies)) == list(range(500))


def test_headers_say_where_a_message_was_and_how_often(pair: Pair) -> None:
    """R-FQ-5, R-FQ-6: it goes to and fro between two queues that are each other's upstream."""
    declare(pair.orders, "wander")
    declare(pair.warehouse, "wander")
    link(pair, "wander")
    federate_queue(pair.upstream, "wander", uri(pair.orders.amqp_port), "^wander$")
    wait_queue_link(pair.upstream, "wander")
    with amqp(pair.warehouse.amqp_port) as channel:
        channel.exchange_declare("source", "topic", durable=True)
        channel.queue_bind("wander", "source", "key")
        properties = pika.BasicProperties(headers={"CC": ["other"]}, user_id="guest")
        channel.basic_publish("source", "key", b"m", properties)
    places = {
        pair.orders.amqp_port: f"amqp://127.0.0.1:{pair.warehouse.amqp_port}",
        pair.warehouse.amqp_port: f"amqp://127.0.0.1:{pair.orders.amqp_port}",
    }
    for visit, port in enumerate([*places, *places]):
        with worker(port, "wander", 1) as consumer:
            consumer.acknowledges = False
            consumer.wait(1)
            method, properties, _ = consumer.got[0]
            headers = properties.headers
            assert (method.exchange, method.routing_key) == ("", "wander")
            assert headers["x-original-exchange"] == "source"
            assert headers["x-original-routing-key"] == "key"
            assert headers["x-original-cc"] == ["other"]
            assert "CC" not in headers
            assert properties.user_id is None
            newest = headers["x-received-from"][0]
            assert (newest["uri"], newest["queue"]) == (places[port], "wander")
            assert newest["visit-count"] == 1 + visit // 2
            assert len(headers["x-received-from"]) == min(2, visit + 1)


def test_a_missing_upstream_queue_is_made_like_ours(pair: Pair) -> None:
    """R-FQ-1: durable, its arguments, its type; under the name that the upstream's key gives."""
    declare(pair.orders, "made", QUORUM | {"x-max-length": 9})
    link(pair, "made", queue="stock")
    spec = pair.upstream.objects("queue")["stock"]
    assert (spec["type"], spec["durable"]) == ("quorum", True)
    assert spec["arguments"]["x-max-length"] == 9
    pair.downstream.delete("policy", "queues-made")
    eventually(
        lambda: not [row for row in pair.downstream.rows("links") if row["queue"] == "made"],
        "the link has ended",
    )
    assert "stock" in pair.upstream.objects("queue")


def test_exclusive_and_internal_queues_are_not_federated(pair: Pair) -> None:
    """R-FQ-7."""
    federate_queue(pair.downstream, "all", uri(pair.warehouse.amqp_port), "^some-")
    with amqp(pair.orders.amqp_port) as channel:
        channel.queue_declare("some-exclusive", exclusive=True)
        purpose = {"x-internal-purpose": "federation"}
        channel.queue_declare("some-internal", durable=True, arguments=purpose)
        channel.queue_declare("some-plain", durable=True)
        wait_queue_link(pair.downstream, "some-plain")
        names = {row["queue"] for row in pair.downstream.rows("links")}
        assert not names & {"some-exclusive", "some-internal"}


def test_a_message_that_moved_did_not_die(pair: Pair) -> None:
    """R-FQ-8: the upstream's dead letter exchange sees nothing; lengths count by themselves."""
    declare(pair.orders, "letters", {"x-max-length": 5})
    declare(
        pair.warehouse,
        "letters",
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    )
    declare(pair.warehouse, "dead")
    link(pair, "letters")
    publish(pair.warehouse, "letters", 20)
    with worker(pair.orders.amqp_port, "letters", 50) as consumer:
        consumer.wait(20)
        assert "x-death" not in consumer.got[-1][1].headers
    with amqp(pair.warehouse.amqp_port) as up:
        assert count_of(up, "dead") == 0


def test_what_the_queue_refuses_stays_upstream(pair: Pair) -> None:
    """R-FED-5: requeued there, and moved when there is room."""
    limit = {"x-max-length": 1, "x-overflow": "reject-publish"}
    declare(pair.orders, "narrow", limit)
    declare(pair.warehouse, "narrow")
    link(pair, "narrow")
    publish(pair.warehouse, "narrow", 10)
    with worker(pair.orders.amqp_port, "narrow", 1) as consumer:
        consumer.wait(10)
    assert sorted(map(int, consumer.bodies)) == list(range(10))


def test_a_queue_that_is_deleted_loses_no_message_of_the_other(pair: Pair) -> None:
    """R-FED-4: its link ends; a new one of the name has a new link."""
    declare(pair.orders, "again")
    declare(pair.warehouse, "again")
    link(pair, "again")
    with amqp(pair.orders.amqp_port) as channel:
        channel.queue_delete("again")
    eventually(
        lambda: not [row for row in pair.downstream.rows("links") if row["queue"] == "again"],
        "the link has ended",
    )
    publish(pair.warehouse, "again", 3)
    declare(pair.orders, "again")
    wait_queue_link(pair.downstream, "again")
    with worker(pair.orders.amqp_port, "again") as consumer:
        consumer.wait(3)


def test_an_upstream_queue_that_is_deleted_is_made_again(pair: Pair) -> None:
    """R-FQ-1, R-FED-6: the cancelled consumer ends the session, the next one declares."""
    declare(pair.orders, "vanished")
    declare(pair.warehouse, "vanished")
    link(pair, "vanished")
    with worker(pair.orders.amqp_port, "vanished") as consumer:
        eventually(lambda: consumer_rows(pair.upstream, "vanished"), "the link consumes")
        with amqp(pair.warehouse.amqp_port) as channel:
            channel.queue_delete("vanished")
        eventually(lambda: "vanished" in pair.upstream.objects("queue"), "the queue is back")
        publish(pair.warehouse, "vanished", 1)
        consumer.wait(1)


def test_two_vhosts_of_one_broker(pair: Pair) -> None:
    """R-FED-2: a broker may be its own upstream."""
    pair.downstream.put("vhost", "depot", {}, "")
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    pair.downstream.put("permission", "guest", everything, "depot")
    declare(pair.orders, "twins")
    with amqp(pair.orders.amqp_port, "depot") as channel:
        channel.queue_declare("twins", durable=True)
        channel.basic_publish("", "twins", b"over")
    link(pair, "twins", uri=uri(pair.orders.amqp_port, "depot"))
    with worker(pair.orders.amqp_port, "twins") as consumer:
        consumer.wait(1)
        assert consumer.bodies == [b"over"]
