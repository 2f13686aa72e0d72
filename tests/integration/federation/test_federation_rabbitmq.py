"""Federation with a real RabbitMQ at the other end, in both directions (chapter 10, Interop)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.federation_rig import (
    RABBIT_CLUSTER,
    Admin,
    Ends,
    admin,
    amqp,
    rabbit_and_brokerd,
    take,
    uri,
)
from tests.integration.members import Member, cluster, eventually
from tests.rabbitmq_node import RabbitNode

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    with rabbit_and_brokerd(tmp_path_factory) as found:
        yield found


def follow(ends: Ends, exchange: str, kind: str = "topic", /, **definition: Any) -> None:
    with amqp(ends.member.amqp_port) as channel:
        channel.exchange_declare(exchange, kind, durable=True)
        channel.queue_declare(exchange, durable=True)
        channel.queue_bind(exchange, exchange, "key.#" if kind == "topic" else "key")
    definition.setdefault("uri", uri(ends.rabbit.amqp_port))
    ends.admin.federate(exchange, definition.pop("uri"), f"^{exchange}$", **definition)
    ends.admin.wait_link(exchange)


def exchanges(node: RabbitNode, vhost: str = "/") -> dict[str, tuple[str, str]]:
    """Name to (type, arguments) of RabbitMQ's exchanges."""
    lines = node.control("list_exchanges", "-p", vhost, "name", "type", "arguments").splitlines()
    rows = [line.split("\t") for line in lines]
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}


def test_messages_come_from_rabbitmq(ends: Ends) -> None:
    """R-FX-13, R-FED-8: the upstream is known by the cluster name that it announces."""
    follow(ends, "stock")
    with amqp(ends.rabbit.amqp_port) as up, amqp(ends.member.amqp_port) as down:
        for i in range(200):
            up.basic_publish("stock", f"key.{i}", b"%d" % i)
        up.basic_publish("stock", "other", b"not bound")
        for i in range(200):
            method, properties, body = take(down, "stock")
            assert (method.routing_key, body) == (f"key.{i}", b"%d" % i)
        (entry,) = properties.headers["x-received-from"]
        assert entry["cluster-name"] == RABBIT_CLUSTER
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
    eventually(
        lambda: not [name for name in exchanges(ends.rabbit) if "federation: removed" in name],
        "internal exchange gone",
    )


def test_rabbitmq_follows_brokerd(ends: Ends, tmp_path: Path) -> None:
    """R-FX-4, R-FX-12, brokerd as the upstream: it has the type that RabbitMQ's links ask for."""
    with cluster(tmp_path, 1, BROKERD_CLUSTER_NAME="orders") as (member,), admin(member) as client:
        outward(ends.rabbit, member, client)
        kinds = {
            item["type"]
            for name, item in client.objects("exchange").items()
            if name.startswith("federation: outward -> ")
        }
        assert kinds == {"x-federation-upstream"}
        assert "ERROR" not in member.log()


def outward(node: RabbitNode, member: Member, client: Admin) -> None:
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


def rows_of(node: RabbitNode, what: str, vhost: str, *columns: str) -> list[dict[str, Any]]:
    """List something of RabbitMQ's with these columns."""
    text = node.control(f"list_{what}", "-p", vhost, "--formatter", "json", *columns)
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def test_names_arguments_and_headers_are_those_of_rabbitmqs_own_links(ends: Ends) -> None:
    """R-TEST-3, R-TEST-2, R-FX-2, R-FX-3, R-FX-4, R-FX-8, R-FX-13, R-FED-11: the golden vector."""
    ends.admin.put("vhost", "down", {}, "")
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    ends.admin.put("permission", "guest", everything, "down")
    with amqp(ends.member.amqp_port, "down") as channel:
        channel.exchange_declare("fx", "topic", durable=True)
        channel.queue_declare("fx", durable=True)
        channel.queue_bind("fx", "fx", "a.#")
    address = uri(ends.rabbit.amqp_port, "up")
    ends.admin.federate("fx", address, "^fx$", "down", max_hops=2)
    ends.admin.wait_link("fx")
    name = "federation: fx -> orders:down:fx"
    queues = rows_of(ends.rabbit, "queues", "up", "name", "durable", "arguments")
    (queue,) = [row for row in queues if row["name"] == name]
    assert queue["durable"]
    assert _table(queue["arguments"])["x-internal-purpose"] == "federation"
    columns = ("name", "type", "durable", "auto_delete", "internal", "arguments")
    (inner,) = [
        row
        for row in rows_of(ends.rabbit, "exchanges", "up", *columns)
        if row["name"].startswith(name)
    ]
    assert inner.pop("name") == f"{name} B"
    assert _table(inner.pop("arguments")) == {
        "x-max-hops": 2,
        "x-downstream-name": "orders",
        "x-downstream-vhost": "down",
        "x-internal-purpose": "federation",
    }
    assert inner == {
        "type": "x-federation-upstream",
        "durable": True,
        "auto_delete": True,
        "internal": True,
    }
    with amqp(ends.rabbit.amqp_port, "up") as up, amqp(ends.member.amqp_port, "down") as down:
        sent = pika.BasicProperties(user_id="guest", headers={"CC": ["a.copy"]}, priority=3)
        up.basic_publish("fx", "a.b", b"over", sent)
        method, properties, _ = take(down, "fx")
        assert (method.exchange, method.routing_key) == ("fx", "a.b")
        assert (properties.user_id, properties.priority) == (None, 3)
        assert properties.headers == {
            "CC": ["a.copy"],
            "x-received-from": [
                {
                    "uri": f"amqp://127.0.0.1:{ends.rabbit.amqp_port}/up",
                    "exchange": "fx",
                    "redelivered": False,
                    "cluster-name": RABBIT_CLUSTER,
                    "vhost": "up",
                }
            ],
        }


def _table(value: Any) -> dict[str, Any]:
    """Return arguments as a table, however this rabbitmqctl writes them."""
    if isinstance(value, dict):
        return value
    return {row[0]: row[-1] for row in value}


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_all_types_of_exchanges_are_followed_and_made_upstream_where_missing(
    ends: Ends, kind: str
) -> None:
    """R-FX-1, R-FX-11, R-FED-1: nothing is configured upstream."""
    name = f"kind-{kind}"
    with amqp(ends.member.amqp_port) as channel:
        channel.exchange_declare(name, kind, durable=True)
        channel.queue_declare(name, durable=True)
        match = {"x-match": "all", "colour": "red"} if kind == "headers" else {}
        channel.queue_bind(name, name, "key", match)
    ends.admin.federate(name, uri(ends.rabbit.amqp_port), f"^{name}$")
    ends.admin.wait_link(name)
    assert exchanges(ends.rabbit)[name][0] == kind
    assert "federation-upstream" not in ends.rabbit.control("list_parameters", "-p", "up")
    with amqp(ends.rabbit.amqp_port) as up, amqp(ends.member.amqp_port) as down:
        red = pika.BasicProperties(headers={"colour": "red"})

        def crossed() -> bool:
            up.basic_publish(name, "key", b"over", red)
            return bool(down.queue_declare(name, passive=True).method.message_count)

        eventually(crossed, "bindings are upstream")
        assert take(down, name)[2] == b"over"


def test_what_nobody_bound_downstream_goes_to_the_alternate_there(ends: Ends) -> None:
    """R-FX-14, R-AE-17: the link's publish is no mandatory one."""
    with amqp(ends.member.amqp_port) as channel:
        channel.exchange_declare("caught", "fanout", durable=True)
        channel.queue_declare("caught", durable=True)
        channel.queue_bind("caught", "caught")
        alternate = {"alternate-exchange": "caught"}
        channel.exchange_declare("lean", "headers", durable=True, arguments=alternate)
        channel.queue_declare("lean", durable=True)
        channel.queue_bind("lean", "lean", "", {"x-match": "all", "colour": "red"})
        ends.admin.federate("lean", uri(ends.rabbit.amqp_port), "^lean$")
        ends.admin.wait_link("lean")
        with amqp(ends.rabbit.amqp_port) as up:
            # The binding goes while its message is on the way: the upstream queue has it.
            channel.queue_unbind("lean", "lean", "", {"x-match": "all", "colour": "red"})
            queue = "federation: lean -> orders"
            up.basic_publish("", queue, b"late", pika.BasicProperties(headers={"colour": "red"}))
        assert take(channel, "caught")[2] == b"late"


def test_a_link_needs_rights_on_its_own_objects_and_read_on_the_exchange(ends: Ends) -> None:
    """R-FX-18, R-FED-9: no more than that; the user of the URI counts."""
    node = ends.rabbit
    with amqp(node.amqp_port) as up:
        up.exchange_declare("guarded", "fanout", durable=True)
    node.control("add_user", "link", "secret")
    node.control("set_permissions", "link", "^federation: ", "^federation: ", "^federation: ")
    with amqp(ends.member.amqp_port) as channel:
        channel.exchange_declare("guarded", "fanout", durable=True)
        channel.queue_declare("guarded", durable=True)
        channel.queue_bind("guarded", "guarded")
    address = f"amqp://link:secret@127.0.0.1:{node.amqp_port}/%2F"
    ends.admin.federate("guarded", address, "^guarded$")

    def failed() -> bool:
        rows = [row for row in ends.admin.rows("links") if row["exchange"] == "guarded"]
        return any("ACCESS_REFUSED" in (row.get("error") or "") for row in rows)

    eventually(failed, "the link says what it may not")
    rights = ("^federation: ", "^federation: ", "^(federation: |guarded$)")
    node.control("set_permissions", "link", *rights)
    ends.admin.wait_link("guarded")
    with amqp(node.amqp_port) as up, amqp(ends.member.amqp_port) as down:
        up.basic_publish("guarded", "", b"let through")
        assert take(down, "guarded")[2] == b"let through"
