"""A wrong resource is refused in words by the API server, or is Stalled with a reason."""

from __future__ import annotations

import pytest

from tests.e2e.namespace import Namespace, resource
from tests.e2e.reach import Reach

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1800)]

BROKER = {"name": "orders"}


def test_contradiction_in_a_queue_is_refused_with_a_clear_message(shop: Namespace) -> None:
    wrong = resource("Queue", "wrong", brokerRef=BROKER, type="quorum", durable=False)
    assert "a quorum queue is durable, not autoDelete" in shop.refusal(wrong)
    assert shop.find("queue", "wrong") is None


def test_immutable_field_is_refused_with_a_clear_message(shop: Namespace) -> None:
    changed = resource("Exchange", "orders.in", brokerRef={"name": "warehouse"}, type="topic")
    assert "brokerRef is immutable" in shop.refusal(changed)


def test_plain_amqp_is_never_exposed_by_a_load_balancer(shop: Namespace) -> None:
    wrong = resource("BrokerCluster", "open", listeners={"serviceType": "LoadBalancer"})
    assert "never exposes plain AMQP" in shop.refusal(wrong)


def test_resource_of_a_namespace_without_a_grant_is_stalled(
    shop: Namespace, space: Namespace, orders: Reach
) -> None:
    foreign = {"name": "orders", "namespace": shop.name}
    space.apply(resource("Queue", "stranger", brokerRef=foreign))
    condition = space.wait_condition("queue", "stranger", "NotGranted", "Stalled")
    assert condition["status"] == "True"
    assert condition["message"]
    assert not orders.has_queue("stranger")
    space.delete("queue", "stranger")


def test_queue_that_exists_differently_is_stalled_until_it_is_gone(
    shop: Namespace, orders: Reach
) -> None:
    connection = orders.connect()
    connection.channel().queue_declare(
        "older", durable=True, arguments={"x-queue-type": "quorum", "x-max-length": 5}
    )
    shop.apply(resource("Queue", "older", brokerRef=BROKER, type="quorum"))
    condition = shop.wait_condition("queue", "older", "ExistsDifferently", "Stalled")
    assert condition["status"] == "True"
    connection.channel().queue_delete("older")
    connection.close()
    shop.wait_applied("queue", "older")
    shop.delete("queue", "older")


def test_second_resource_of_the_same_name_is_stalled(shop: Namespace) -> None:
    spec = {"brokerRef": BROKER, "type": "topic", "name": "orders.in"}
    shop.apply(resource("Exchange", "second", **spec))
    condition = shop.wait_condition("exchange", "second", "NameConflict", "Stalled")
    assert "orders.in" in condition["message"]
    shop.delete("exchange", "second")
    assert shop.condition("exchange", "orders.in")["status"] == "True"
