"""Real AMQP traffic through the pods of a BrokerCluster, also while a pod is taken away."""

from __future__ import annotations

import pika
import pytest

from tests.e2e.namespace import Namespace, until
from tests.e2e.reach import Reach
from tests.e2e.traffic import load, take

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1800)]

MEMBERS = 3


def publish(reach: Reach, exchange: str, key: str, *names: str, ordinal: int | None = None) -> None:
    """Publish, each message confirmed and routed somewhere."""
    connection = reach.connect(ordinal)
    channel = connection.channel()
    channel.confirm_delivery()
    for name in names:
        properties = pika.BasicProperties(delivery_mode=2, message_id=name)
        channel.basic_publish(exchange, key, name.encode(), properties, mandatory=True)
    connection.close()


def test_every_member_takes_orders_and_hands_out_all_of_them(orders: Reach) -> None:
    names = [f"every-{ordinal}" for ordinal in range(MEMBERS)]
    for ordinal, name in enumerate(names):
        publish(orders, "orders.in", "order.de", name, ordinal=ordinal)
    assert {properties.message_id for properties, _ in take(orders, "orders", 3)} == set(names)


def test_amqps_shows_a_certificate_for_the_names_of_the_service(orders: Reach) -> None:
    for ordinal in (None, 0):
        connection = orders.connect(ordinal, is_tls=True)
        assert connection.channel().queue_declare("orders", passive=True).method.queue == "orders"
        connection.close()


def test_order_that_nobody_has_bound_goes_to_the_alternate_exchange(orders: Reach) -> None:
    """R-AE: by the Policy of the example."""
    publish(orders, "orders.in", "return.request", "alternate")
    [(properties, body)] = take(orders, "unrouted", 1)
    assert (properties.message_id, body) == ("alternate", b"alternate")


def test_order_that_nobody_can_handle_is_dead_lettered(orders: Reach) -> None:
    """deliveryLimit 3 of the example's queue: delivered four times, then dead-lettered."""
    publish(orders, "orders.in", "order.de", "poison")
    connection = orders.connect()
    channel = connection.channel()
    deliveries = 0

    def give_back() -> bool:
        nonlocal deliveries
        method, _, _ = channel.basic_get("orders")
        if method is not None:
            deliveries += 1
            channel.basic_nack(method.delivery_tag, requeue=True)
        return deliveries > 3

    until(give_back, "four deliveries")
    connection.close()
    [(properties, _)] = take(orders, "orders.dead", 1)
    assert properties.message_id == "poison"
    [death] = properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == ("orders", "delivery_limit", 1)


def test_stock_of_the_warehouse_arrives_by_federation(shop: Namespace, orders: Reach) -> None:
    warehouse = Reach(shop, "warehouse")
    shop.wait_condition("federationupstream", "warehouse", "AllRunning", "LinksUp")
    publish(warehouse, "stock", "stock.de", "federated")
    [(properties, body)] = take(orders, "stock", 1)
    assert body == b"federated"
    assert properties.headers["x-received-from"]
    warehouse.close()


def test_pod_deleted_with_grace_0_under_load_loses_nothing(shop: Namespace, orders: Reach) -> None:
    with load(orders, "orders.in", "order.load", "orders", MEMBERS) as running:
        running.wait_confirmed(300)
        for ordinal in range(MEMBERS):
            pod = f"orders-{ordinal}"
            before = shop.get("pod", pod)
            shop.kubectl("delete", "pod", pod, "--grace-period=0", "--force")

            def is_back(pod: str = pod, old: str = before["metadata"]["uid"]) -> bool:
                found = shop.find("pod", pod)
                if found is None or found["metadata"]["uid"] == old:
                    return False
                states = found["status"].get("containerStatuses", [{}])
                return bool(states[0].get("ready"))

            until(is_back, f"a new {pod} that is ready", 240)
            running.wait_confirmed(200)
        notes = running.stop()
    assert notes.lost == set()
    assert len(notes.confirmed) > 900
    shop.wait_ready("brokercluster/orders")
