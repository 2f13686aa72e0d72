"""Shovels with a real RabbitMQ at the other end, both ways, and RabbitMQ's shovels into brokerd."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.integration.federation.test_shovels import Ends, bodies, count, fill
from tests.integration.federation_rig import admin, amqp, take, uri
from tests.integration.members import cluster, eventually
from tests.rabbitmq_node import RabbitNode, rabbit_node

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
SHOVEL = "rabbitmq_shovel"
MESSAGES = 3000


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    with rabbit_node(tmp_path_factory.mktemp("rabbit") / "node", SHOVEL) as node:
        yield node


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    with (
        cluster(tmp_path_factory.mktemp("here"), 1, BROKERD_CLUSTER_NAME="here") as (here,),
        admin(here) as client,
    ):
        yield Ends(here, here, client)


def hops(properties: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = properties.headers["x-shovelled"]
    return found


def test_messages_go_to_rabbitmq_and_come_back(ends: Ends, rabbit: RabbitNode) -> None:
    far = uri(rabbit.amqp_port)
    ends.shovel("out", dest_uri=far, dest_queue="out-far", dest_add_forward_headers=True)
    ends.shovel("back", src_uri=far, src_queue="out-far", dest_uri="amqp://", dest_queue="out-back")
    ends.wait("out")
    ends.wait("back")
    with amqp(ends.here.amqp_port) as near:
        fill(near, "out", 500, user_id="guest")
        for i in range(500):
            _, properties, body = take(near, "out-back")
            assert body == b"%d" % i
        (hop,) = hops(properties)
        assert hop["shovelled-by"] == "here"
        assert hop["dest-uri"] == f"amqp://127.0.0.1:{rabbit.amqp_port}"


def test_the_headers_are_those_that_rabbitmq_writes(ends: Ends, rabbit: RabbitNode) -> None:
    """The same definition at both: entries differ in who wrote them and in nothing else."""
    own = uri(ends.here.amqp_port)
    definition = {
        "src-uri": own,
        "src-exchange": "amq.topic",
        "src-exchange-key": "both.#",
        "dest-uri": own,
        "dest-queue": "both",
        "dest-add-forward-headers": True,
        "dest-add-timestamp-header": True,
        "dest-publish-properties": {"app_id": "a", "delivery_mode": 2},
        "reconnect-delay": 0.1,
    }
    ends.admin.put("parameter", "shovel/both", {"value": definition})
    rabbit.control("set_parameter", "shovel", "both", json.dumps(definition))
    ends.wait("both")
    with amqp(ends.here.amqp_port) as near:

        def two_follow() -> bool:
            bindings = [item for item in ends.admin.bindings("/") if item["source"] == "amq.topic"]
            return len([item for item in bindings if item["routing_key"] == "both.#"]) == 2

        eventually(two_follow, "both shovels are bound")
        eventually(lambda: ends.row("both")["status"] == "running", "ours runs")  # type: ignore[index]
        near.basic_publish("amq.topic", "both.1", b"one", pika.BasicProperties(headers={"o": 1}))
        found = [take(near, "both") for _ in range(2)]
    rabbit.control("clear_parameter", "shovel", "both")
    ends.admin.delete("parameter", "shovel/both")
    entries = [hops(properties)[0] for _, properties, _ in found]
    assert {entry.pop("shovelled-by") for entry in entries} >= {"here"}
    assert entries[0] == entries[1]
    first, second = (properties for _, properties, _ in found)
    assert (first.app_id, first.delivery_mode) == (second.app_id, second.delivery_mode)
    assert first.headers.keys() == second.headers.keys()
    assert (
        abs(first.headers["x-shovelled-timestamp"] - second.headers["x-shovelled-timestamp"]) <= 60
    )


def test_what_rabbitmq_routes_nowhere_is_kept_and_comes_when_it_does(
    ends: Ends, rabbit: RabbitNode
) -> None:
    """Among messages with equal bodies and with properties that RabbitMQ gives back."""
    with amqp(ends.here.amqp_port) as near, amqp(rabbit.amqp_port) as far:
        far.exchange_declare("sorts", "headers", durable=True)
        for parity in ("even", "odd"):
            far.queue_declare(parity, durable=True)
        far.queue_bind("even", "sorts", arguments={"x-match": "all", "parity": 0})
        near.queue_declare("mixed", durable=True)
        for i in range(400):
            marked = pika.BasicProperties(headers={"parity": i % 2, "n": i}, content_type="text/a")
            near.basic_publish("", "mixed", b"same", marked)
        ends.shovel("mixed", dest_uri=uri(rabbit.amqp_port), dest_exchange="sorts")
        found = [take(far, "even")[1].headers["n"] for _ in range(200)]
        assert found == list(range(0, 400, 2))
        row = ends.wait("mixed", "unroutable")
        assert "exchange 'sorts', routing key 'mixed'" in row["error"]
        eventually(lambda: (ends.row("mixed") or {}).get("unrouted") == 200, "all odd are held")
        far.queue_bind("odd", "sorts", arguments={"x-match": "all", "parity": 1})
        found = [take(far, "odd")[1].headers["n"] for _ in range(200)]
        assert found == list(range(1, 400, 2))
        eventually(lambda: count(near, "mixed") == 0, "nothing is left")
        assert ends.wait("mixed")["reconnects"] == 0
        ends.admin.delete("parameter", "shovel/mixed")


@pytest.mark.parametrize("is_out", [True, False])
def test_a_shovel_that_empties_a_queue_ends(ends: Ends, rabbit: RabbitNode, is_out: bool) -> None:
    near, far = uri(ends.here.amqp_port), uri(rabbit.amqp_port)
    source, destination = (near, far) if is_out else (far, near)
    ports = (ends.here.amqp_port, rabbit.amqp_port)
    name = f"emptied-{is_out}"
    with amqp(ports[not is_out]) as at_source, amqp(ports[is_out]) as at_destination:
        fill(at_source, name, 400)
        ends.shovel(
            name,
            src_uri=source,
            dest_uri=destination,
            dest_queue=f"{name}-to",
            src_delete_after="queue-length",
        )
        ends.wait_gone(name)
        assert bodies(at_destination, f"{name}-to", 400) == [b"%d" % i for i in range(400)]
        assert count(at_source, name) == 0


def test_a_wrong_password_at_rabbitmq_is_told(ends: Ends, rabbit: RabbitNode) -> None:
    ends.shovel(
        "wrong",
        src_uri=f"amqp://guest:hunter2@127.0.0.1:{rabbit.amqp_port}",
        dest_queue="wrong",
    )
    row = ends.wait("wrong", "error")
    assert "ACCESS_REFUSED" in row["error"]
    assert "hunter2" not in json.dumps(row)
    ends.admin.delete("parameter", "shovel/wrong")


@pytest.mark.parametrize("is_out", [True, False])
def test_no_confirmed_message_is_lost_when_connections_are_killed(
    ends: Ends, rabbit: RabbitNode, is_out: bool
) -> None:
    """on-confirm: RabbitMQ drops its connections again and again while messages pass.

    Each third of the messages has a cut of its own, however fast the machine is.
    """
    name = f"killed-{is_out}"
    near, far = uri(ends.here.amqp_port), uri(rabbit.amqp_port)
    source, destination = (near, far) if is_out else (far, near)
    ports = (ends.here.amqp_port, rabbit.amqp_port)
    ends.shovel(name, src_uri=source, dest_uri=destination, dest_queue=f"{name}-to")
    ends.wait(name)
    with amqp(ports[not is_out]) as channel:
        channel.queue_declare(name, durable=True)
    for third in range(3):
        cut = threading.Thread(
            target=rabbit.control, args=("close_all_connections", "--vhost", "/", "test")
        )
        cut.start()
        try:
            publish(ports[not is_out], name, third * MESSAGES // 3, (third + 1) * MESSAGES // 3)
        finally:
            cut.join()
    received = drained(ports[is_out], f"{name}-to")
    assert set(received) == set(range(MESSAGES))

    def was_disturbed() -> bool:
        row = ends.row(name)
        return row is not None and row["reconnects"] >= 1

    eventually(was_disturbed, "the shovel came back")


def publish(port: int, queue: str, i: int, end: int) -> None:
    """Publish the numbers from i to end, each until it is confirmed."""
    while i < end:
        with contextlib.suppress(pika.exceptions.AMQPError), amqp(port) as channel:
            while i < end:
                channel.basic_publish("", queue, b"%d" % i)
                i += 1


def drained(port: int, queue: str) -> list[int]:
    """Take until all numbers have come."""
    found: list[int] = []

    def all_there() -> bool:
        with amqp(port) as channel:
            while True:
                method, _, body = channel.basic_get(queue, auto_ack=True)
                if method is None:
                    return len(set(found)) == MESSAGES
                found.append(int(body))

    eventually(all_there, "all messages have come", 120)
    return found


def test_no_confirmed_message_is_lost_when_brokerd_is_killed(
    tmp_path: Any, rabbit: RabbitNode
) -> None:
    """on-confirm: the member that runs the shovel, and holds its source, is killed three times."""
    with cluster(tmp_path, 1, BROKERD_CLUSTER_NAME="killed") as (member,):
        with admin(member) as client:
            ends = Ends(member, member, client)
            ends.shovel(
                "k", dest_uri=uri(rabbit.amqp_port), dest_queue="k-to", src_prefetch_count=50
            )
            ends.wait("k")
            with amqp(member.amqp_port) as channel:
                fill(channel, "k", MESSAGES, delivery_mode=2)
        for _ in range(3):
            _some_arrive(rabbit)
            member.kill()
            member.start()
            member.wait_ready()
        received = drained(rabbit.amqp_port, "k-to")
        assert set(received) == set(range(MESSAGES))


def _some_arrive(rabbit: RabbitNode) -> None:
    with amqp(rabbit.amqp_port) as channel:
        eventually(lambda: count(channel, "k-to") > 0, "some have come")
