"""Federation with a real RabbitMQ at the other end, in both directions (chapter 10, Interop)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.federation_rig import Admin, Rabbit, admin, amqp, rabbit, take, uri
from tests.integration.members import Member, cluster, eventually

CLUSTER = "warehouse-on-rabbit"
pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]


@dataclass
class Ends:
    """A RabbitMQ and a brokerd."""

    rabbit: Rabbit
    member: Member
    admin: Admin


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    with (
        rabbit(tmp_path_factory.mktemp("rabbit") / "node") as node,
        cluster(tmp_path_factory.mktemp("down"), 1, BROKERD_CLUSTER_NAME="orders") as (member,),
        admin(member) as client,
    ):
        node.control("set_cluster_name", CLUSTER)
        node.control("add_vhost", "up")
        node.control("set_permissions", "-p", "up", "guest", ".*", ".*", ".*")
        yield Ends(node, member, client)


def follow(ends: Ends, exchange: str, kind: str = "topic", /, **definition: Any) -> None:
    with amqp(ends.member.amqp_port) as channel:
        channel.exchange_declare(exchange, kind, durable=True)
        channel.queue_declare(exchange, durable=True)
        channel.queue_bind(exchange, exchange, "key.#" if kind == "topic" else "key")
    definition.setdefault("uri", uri(ends.rabbit.amqp_port))
    ends.admin.federate(exchange, definition.pop("uri"), f"^{exchange}$", **definition)
    ends.admin.wait_link(exchange)


def exchanges(node: Rabbit, vhost: str = "/") -> dict[str, tuple[str, str]]:
    """Name to (type, arguments) of RabbitMQ's exchanges."""
    lines = node.control("list_exchanges", "-p", vhost, "name", "type", "arguments").splitlines()
    rows = [line.split("\t") for line in lines]
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}


def test_messages_come_from_rabbitmq(ends: Ends) -> None:
    """R-FX-13; the upstream's cluster name is RabbitMQ's."""
    follow(ends, "stock")
    with amqp(ends.rabbit.amqp_port) as up, amqp(ends.member.amqp_port) as down:
        for i in range(200):
            up.basic_publish("stock", f"key.{i}", b"%d" % i)
        up.basic_publish("stock", "other", b"not bound")
        for i in range(200):
            method, properties, body = take(down, "stock")
            assert (method.routing_key, body) == (f"key.{i}", b"%d" % i)
        (entry,) = properties.headers["x-received-from"]
        assert entry["cluster-name"] == CLUSTER
        assert entry["vhost"] == "/"


def test_rabbitmq_gets_the_exchange_type_of_federation(ends: Ends) -> None:
    """R-FX-2, R-FX-4, R-FX-8: the plugin is there, so the type is known."""
    follow(ends, "typed", uri=uri(ends.rabbit.amqp_port, "up"), exchange="source", max_hops=3)
    names = exchanges(ends.rabbit, "up")
    kind, arguments = names["federation: source -> orders:/:typed B"]
    assert kind == "x-federation-upstream"
    assert '{"x-max-hops",3}' in arguments
    assert '{"x-downstream-name","orders"}' in arguments
    assert '{"x-downstream-vhost","/"}' in arguments
    bindings = ends.rabbit.control(
        "list_bindings", "-p", "up", "source_name", "routing_key", "arguments"
    )
    (line,) = [line for line in bindings.splitlines() if line.startswith("source\t")]
    assert "key.#" in line
    assert '{"exchange","/:typed B"}' in line
    assert '{"hops",3}' in line


def test_the_link_comes_back_with_the_other_letter_and_what_was_buffered(ends: Ends) -> None:
    """R-FX-5, R-FX-17: a lost connection costs no message."""
    follow(ends, "dropped")
    ends.rabbit.control("close_all_connections", "--vhost", "/", "test")
    with amqp(ends.rabbit.amqp_port) as up, amqp(ends.member.amqp_port) as down:
        # The link may be away or back already: the queue is bound all the time.
        up.basic_publish("dropped", "key.1", b"meanwhile")
        assert take(down, "dropped")[2] == b"meanwhile"
    eventually(lambda: ends.admin.wait_link("dropped")["reconnects"] >= 1, "the link reconnected")
    eventually(
        lambda: (
            [name for name in exchanges(ends.rabbit) if "dropped -> orders" in name]
            == ["federation: dropped -> orders A"]
        ),
        "only the letter A is left",
    )


def test_removal_cleans_rabbitmq_up(ends: Ends) -> None:
    """R-FX-17."""
    follow(ends, "removed", "direct")
    assert "federation: removed -> orders" in ends.rabbit.control("list_queues", "name")
    ends.admin.delete("policy", "federate-removed")
    eventually(
        lambda: "federation: removed" not in ends.rabbit.control("list_queues", "name"),
        "upstream queue gone",
    )
    assert not [name for name in exchanges(ends.rabbit) if "federation: removed" in name]


def test_rabbitmq_follows_brokerd(ends: Ends, tmp_path: Path) -> None:
    """R-FX-4, brokerd as the upstream: RabbitMQ 3.10 falls back to fanout on a 503 only."""
    with cluster(tmp_path, 1, BROKERD_CLUSTER_NAME="orders") as (member,), admin(member) as client:
        outward(ends.rabbit, member, client)


def outward(node: Rabbit, member: Member, client: Admin) -> None:
    """Follow brokerd's exchange from RabbitMQ, publish here, take there."""
    with amqp(member.amqp_port) as up:
        up.exchange_declare("outward", "topic", durable=True)
    with amqp(node.amqp_port) as down:
        down.exchange_declare("outward", "topic", durable=True)
        down.queue_declare("outward", durable=True)
        down.queue_bind("outward", "outward", "key.#")
    upstream = {"uri": uri(member.amqp_port), "reconnect-delay": 1}
    node.control("set_parameter", "federation-upstream", "brokerd", json.dumps(upstream))
    definition = json.dumps({"federation-upstream": "brokerd"})
    node.control("set_policy", "--apply-to", "exchanges", "out", "^outward$", definition)

    def bound() -> bool:
        found = client.objects("binding").values()
        return any(item["source"] == "outward" for item in found)

    eventually(bound, "RabbitMQ's link has bound its queue here")
    with amqp(member.amqp_port) as up, amqp(node.amqp_port) as down:
        up.basic_publish("outward", "key.1", b"to RabbitMQ")
        _, properties, body = take(down, "outward")
        assert body == b"to RabbitMQ"
        assert properties.headers["x-received-from"][0]["cluster-name"] == "orders"
