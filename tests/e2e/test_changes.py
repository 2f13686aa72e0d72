"""A changed resource changes the broker; a change behind the operator's back does not last."""

from __future__ import annotations

import pika
import pika.exceptions
import pytest

from tests.e2e.namespace import Namespace, resource, until
from tests.e2e.reach import Reach

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1800)]

BROKER = {"name": "orders"}
#: "At once": the event comes by push; polling every 30 minutes would not do.
REPAIR_S = 60.0


def test_new_limit_of_a_queue_is_in_force_without_a_new_queue(
    shop: Namespace, orders: Reach
) -> None:
    shop.apply(resource("Queue", "limited", brokerRef=BROKER, type="quorum", maxLength=10))
    shop.wait_applied("queue", "limited")
    assert orders.topology("queue")["limited"]["settings"]["max-length"] == 10
    connection = orders.connect()
    connection.channel().basic_publish("", "limited", b"stays")
    connection.close()
    shop.patch("queue", "limited", {"maxLength": 20, "overflow": "reject-publish"})
    shop.wait_applied("queue", "limited")
    settings = orders.topology("queue")["limited"]["settings"]
    assert (settings["max-length"], settings["overflow"]) == (20, "reject-publish")
    connection = orders.connect()
    channel = connection.channel()

    def is_there() -> bool:
        method, _, body = channel.basic_get("limited", auto_ack=True)
        return method is not None and body == b"stays"

    until(is_there, "the message that was there before the change")
    connection.close()
    shop.delete("queue", "limited")
    assert not orders.has_queue("limited")


def test_queue_deleted_behind_the_operators_back_comes_back_at_once(
    shop: Namespace, orders: Reach
) -> None:
    shop.apply(resource("Queue", "drifting", brokerRef=BROKER, type="quorum"))
    shop.wait_applied("queue", "drifting")
    connection = orders.connect()
    connection.channel().queue_delete("drifting")
    connection.close()
    until(lambda: orders.has_queue("drifting"), "the queue is there again", REPAIR_S)
    until(lambda: shop.events("DriftRepaired", "drifting"), "an Event DriftRepaired")
    shop.delete("queue", "drifting")


def test_protected_queue_cannot_be_deleted_by_clients(shop: Namespace, orders: Reach) -> None:

    made = resource("Queue", "kept", brokerRef=BROKER, type="quorum", protection="Managed")
    shop.apply(made)
    shop.wait_applied("queue", "kept")
    connection = orders.connect()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        connection.channel().queue_delete("kept")
    assert refused.value.reply_code in (403, 405)
    connection.close()
    shop.delete("queue", "kept")


def test_binding_and_its_exchange_may_come_in_any_order(shop: Namespace, orders: Reach) -> None:
    binding = resource(
        "Binding",
        "late",
        brokerRef=BROKER,
        source="late.in",
        destination={"kind": "Queue", "name": "unrouted"},
        routingKeys=["a", "b"],
    )
    shop.apply(binding)
    shop.wait_condition("bindings.brokerd.io", "late", "WaitingForSource")
    shop.apply(resource("Exchange", "late.in", brokerRef=BROKER, type="direct"))
    shop.wait_applied("bindings.brokerd.io", "late")
    keys = {
        spec["routing_key"]
        for spec in orders.topology("binding").values()
        if spec["source"] == "late.in"
    }
    assert keys == {"a", "b"}
    shop.delete("bindings.brokerd.io", "late")
    shop.delete("exchange", "late.in")


def test_generated_credentials_of_a_user_let_it_in(shop: Namespace, orders: Reach) -> None:

    shop.apply(resource("User", "clerk", brokerRef=BROKER))
    permission = {"user": "clerk", "configure": "", "write": "^$", "read": ".*"}
    shop.apply(resource("Permission", "clerk", brokerRef=BROKER, vhost="/", **permission))
    shop.wait_applied("user", "clerk")
    shop.wait_applied("permission", "clerk")
    secret = shop.secret("clerk-credentials")
    credentials = pika.PlainCredentials(secret["username"].decode(), secret["password"].decode())
    host, port = orders.address(5672)
    parameters = pika.ConnectionParameters(host, port, credentials=credentials)
    connection = pika.BlockingConnection(parameters)
    assert connection.is_open
    connection.close()
    shop.delete("permission", "clerk")
    shop.delete("user", "clerk")
