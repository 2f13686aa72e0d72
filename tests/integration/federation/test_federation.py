"""Federation between brokerd processes: warehouse (one member) upstream, orders downstream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.integration.federation_rig import Admin, Pair, amqp, brokerd_pair, take, uri
from tests.integration.members import eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with brokerd_pair(tmp_path_factory, BROKERD_TELEMETRY_INTERVAL_MS="200") as found:
        yield found


def names_of(broker: Admin, kind: str) -> set[str]:
    return set(broker.objects(kind))


def upstream_keys(pair: Pair, exchange: str) -> list[str]:
    """Routing keys that the link has bound upstream."""
    return sorted(
        binding["routing_key"]
        for binding in pair.upstream.objects("binding").values()
        if binding["source"] == exchange and binding["destination"].startswith("federation: ")
    )


def follow(pair: Pair, exchange: str, key: str = "#", /, **definition: Any) -> None:
    """Federate a topic exchange with one bound queue of its name downstream."""
    with amqp(pair.orders.amqp_port) as channel:
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_declare(exchange, durable=True)
        channel.queue_bind(exchange, exchange, key)
    definition.setdefault("uri", uri(pair.warehouse.amqp_port))
    pair.downstream.federate(exchange, definition.pop("uri"), f"^{exchange}$", **definition)


def wait_flow(pair: Pair, exchange: str, key: str = "#") -> None:
    pair.downstream.wait_link(exchange)
    eventually(lambda: key in upstream_keys(pair, exchange), f"binding of {exchange} upstream")


@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish", "no-ack"])
def test_a_message_published_upstream_arrives_with_x_received_from(
    pair: Pair, ack_mode: str
) -> None:
    """R-FX-13, R-FED-5, R-FX-19: the demo's path, in order."""
    name = f"stock-{ack_mode}"
    follow(pair, name, ack_mode=ack_mode)
    wait_flow(pair, name)
    with amqp(pair.warehouse.amqp_port) as up, amqp(pair.orders.amqp_port) as down:
        properties = pika.BasicProperties(
            content_type="text/plain", headers={"own": 1}, message_id="m", user_id="guest"
        )
        for i in range(50):
            up.basic_publish(name, f"item.{i}", b"%d" % i, properties)
        for i in range(50):
            method, got, body = take(down, name)
            assert (method.exchange, method.routing_key, body) == (name, f"item.{i}", b"%d" % i)
        assert got.headers["own"] == 1
        assert got.content_type == "text/plain"
        assert got.message_id == "m"
        assert got.user_id is None
        assert got.headers["x-received-from"] == [
            {
                "uri": f"amqp://127.0.0.1:{pair.warehouse.amqp_port}",
                "exchange": name,
                "redelivered": False,
                "cluster-name": "warehouse",
                "vhost": "/",
            }
        ]
    eventually(lambda: pair.downstream.wait_link(name)["in"] == 50, "all are counted")
    row = pair.downstream.wait_link(name)
    assert row["uri"] == f"amqp://127.0.0.1:{pair.warehouse.amqp_port}"
    assert row["error"] == ""


def test_only_bound_keys_flow_and_never_back(pair: Pair) -> None:
    """R-FX-7, R-FX-15."""
    follow(pair, "keys", "wanted.#")
    wait_flow(pair, "keys", "wanted.#")
    with amqp(pair.warehouse.amqp_port) as up, amqp(pair.orders.amqp_port) as down:
        up.queue_declare("keys-up", durable=True)
        up.queue_bind("keys-up", "keys", "local.#")
        down.basic_publish("keys", "local.1", b"stays downstream")
        up.basic_publish("keys", "other.1", b"not bound")
        up.basic_publish("keys", "wanted.1", b"first")
        assert take(down, "keys")[2] == b"first"
        # A second binding downstream shows upstream, and goes again with it.
        down.queue_bind("keys", "keys", "other.#")
        eventually(lambda: "other.#" in upstream_keys(pair, "keys"), "new binding")
        up.basic_publish("keys", "other.2", b"second")
        assert take(down, "keys")[2] == b"second"
        down.queue_unbind("keys", "keys", "other.#")
        eventually(lambda: "other.#" not in upstream_keys(pair, "keys"), "binding gone")
        up.basic_publish("keys", "other.3", b"not bound any more")
        up.basic_publish("keys", "wanted.2", b"third")
        assert take(down, "keys")[2] == b"third"
        assert up.queue_declare("keys-up", passive=True).method.message_count == 0


def test_upstream_objects_have_the_names_and_arguments_of_federation(pair: Pair) -> None:
    """R-FX-2, R-FX-3, R-FX-4, R-FX-8."""
    follow(pair, "named", expires=60_000, message_ttl=50_000)
    wait_flow(pair, "named")
    queue = "federation: named -> orders"
    assert pair.upstream.objects("queue")[queue]["arguments"] == {
        "x-internal-purpose": "federation",
        "x-expires": 60_000,
        "x-message-ttl": 50_000,
    }
    bindings = pair.upstream.objects("binding").values()
    (bound,) = [binding for binding in bindings if binding["source"] == "named"]
    assert bound["destination"] == f"{queue} B"
    assert bound["arguments"]["x-bound-from"] == [
        {"cluster-name": "orders", "vhost": "/", "exchange": "/:named B", "hops": 1}
    ]


def test_removing_the_policy_removes_what_the_link_made(pair: Pair) -> None:
    """R-FX-17: queue and internal exchange go, the upstream exchange stays."""
    follow(pair, "removed")
    wait_flow(pair, "removed")
    queue = "federation: removed -> orders"
    assert queue in names_of(pair.upstream, "queue")
    pair.downstream.delete("policy", "federate-removed")
    eventually(lambda: queue not in names_of(pair.upstream, "queue"), "upstream queue gone")
    eventually(
        lambda: not any(name.startswith(queue) for name in names_of(pair.upstream, "exchange")),
        "internal exchange gone",
    )
    assert "removed" in names_of(pair.upstream, "exchange")
    eventually(
        lambda: not [row for row in pair.downstream.rows("links") if row["exchange"] == "removed"],
        "link gone",
    )


def test_cleanup_never_leaves_the_upstream_queue(pair: Pair) -> None:
    """R-FED-2 resource-cleanup-mode."""
    follow(pair, "kept", resource_cleanup_mode="never")
    wait_flow(pair, "kept")
    pair.downstream.delete("policy", "federate-kept")
    eventually(
        lambda: not [row for row in pair.downstream.rows("links") if row["exchange"] == "kept"],
        "link gone",
    )
    assert "federation: kept -> orders" in names_of(pair.upstream, "queue")


def test_a_lost_consumer_makes_the_link_start_anew_with_the_other_letter(pair: Pair) -> None:
    """R-FX-4, R-FX-5, R-FED-6: the first retry is immediate."""
    follow(pair, "again")
    wait_flow(pair, "again")
    queue = "federation: again -> orders"
    with amqp(pair.warehouse.amqp_port) as up:
        up.queue_delete(queue)

    def switched() -> bool:
        links = [row for row in pair.downstream.rows("links") if row["exchange"] == "again"]
        return [(row["reconnects"] >= 1, row["status"]) for row in links] == [(True, "running")]

    eventually(switched, "link is back")
    with amqp(pair.warehouse.amqp_port) as up, amqp(pair.orders.amqp_port) as down:
        up.basic_publish("again", "k", b"after")
        assert take(down, "again")[2] == b"after"


def test_an_unreachable_upstream_is_listed_and_hurts_nobody(pair: Pair) -> None:
    """R-FED-6, SEC-22: the row has no credentials."""
    follow(pair, "dark", uri="amqp://me:secret@127.0.0.1:1")
    row = pair.downstream.wait_link("dark", "error")
    assert "secret" not in str(row)
    assert row["error"]
    with amqp(pair.orders.amqp_port) as down:
        down.basic_publish("dark", "k", b"local")
        assert take(down, "dark")[2] == b"local"


def test_wrong_credentials_are_said(pair: Pair) -> None:
    follow(pair, "wrong", uri=f"amqp://guest:nonsense@127.0.0.1:{pair.warehouse.amqp_port}")
    row = pair.downstream.wait_link("wrong", "error")
    assert "ACCESS_REFUSED" in row["error"]
    assert "nonsense" not in str(row)


def test_a_definition_that_cannot_be_used_is_listed(pair: Pair) -> None:
    """R-FED-2: what only shows when the link connects, or depends on what else is there."""
    follow(pair, "strange", uri=uri(pair.warehouse.amqp_port, query="?heartbeat=often"))
    row = pair.downstream.wait_link("strange", "error")
    assert "heartbeat must be a number" in row["error"]
    assert row["upstream"] == "strange"
    pair.downstream.delete("parameter", "federation-upstream/strange")

    def errors() -> list[str]:
        rows = pair.downstream.rows("links")
        return [row["error"] for row in rows if row["exchange"] == "strange"]

    eventually(lambda: errors() == ["there is no upstream of this name"], "the link is told")


def test_two_exchanges_that_follow_each_other_see_each_message_once(pair: Pair) -> None:
    """R-FX-16 with max-hops 1, R-FX-12: the fallback's loop check is the link's."""
    follow(pair, "mutual")
    with amqp(pair.warehouse.amqp_port) as up:
        up.exchange_declare("mutual", "topic", durable=True)
        up.queue_declare("mutual", durable=True)
        up.queue_bind("mutual", "mutual", "#")
    pair.upstream.federate("mutual", uri(pair.orders.amqp_port), "^mutual$")
    wait_flow(pair, "mutual")
    pair.upstream.wait_link("mutual")
    with amqp(pair.warehouse.amqp_port) as up, amqp(pair.orders.amqp_port) as down:
        for i in range(10):
            up.basic_publish("mutual", "u", b"u%d" % i)
            down.basic_publish("mutual", "d", b"d%d" % i)
        expected = sorted([b"u%d" % i for i in range(10)] + [b"d%d" % i for i in range(10)])
        for channel in (up, down):
            assert sorted(take(channel, "mutual")[2] for _ in range(20)) == expected
        up.basic_publish("mutual", "u", b"last")
        assert take(down, "mutual")[2] == b"last"
        assert take(up, "mutual")[2] == b"last"
        for channel in (up, down):
            assert channel.basic_get("mutual", auto_ack=True)[0] is None


def test_another_vhost_and_exchange_name_upstream(pair: Pair) -> None:
    """R-FX-2, R-FED-2: vhost of the URI, exchange of the definition."""
    pair.upstream.put("vhost", "up", {}, "")
    pair.upstream.put("permission", "guest", {"configure": ".*", "write": ".*", "read": ".*"}, "up")
    follow(pair, "renamed", uri=uri(pair.warehouse.amqp_port, "up"), exchange="source")
    pair.downstream.wait_link("renamed")
    assert "federation: source -> orders:/:renamed" in names_of(pair.upstream, "queue")
    with amqp(pair.warehouse.amqp_port, "up") as up, amqp(pair.orders.amqp_port) as down:
        eventually(lambda: "#" in upstream_keys(pair, "source"), "binding upstream")
        up.basic_publish("source", "k", b"across")
        method, properties, body = take(down, "renamed")
        assert (method.exchange, body) == ("renamed", b"across")
        assert properties.headers["x-received-from"][0]["vhost"] == "up"
        assert properties.headers["x-received-from"][0]["exchange"] == "source"


def test_telemetry_counts_what_the_links_brought(pair: Pair) -> None:
    """Telemetry rows `fed` add up to what was published."""
    follow(pair, "measured")
    wait_flow(pair, "measured")
    with amqp(pair.warehouse.amqp_port) as up, amqp(pair.orders.amqp_port) as down:
        for i in range(7):
            up.basic_publish("measured", "k", b"%d" % i)
            take(down, "measured")

    def counted() -> bool:
        rows = [
            json.loads(line)
            for file in (pair.orders.data_dir / "telemetry" / "open").glob("*.jsonl")
            for line in file.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        found = [row for row in rows if row.get("k") == "fed" and row["exchange"] == "measured"]
        return sum(int(row["in"]) for row in found) == 7

    eventually(counted, "fed rows")
