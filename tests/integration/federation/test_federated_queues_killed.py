"""Federated queues whose brokers are killed: what was confirmed is not lost (R-FED-5, R-FED-7)."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest

from tests.integration.federated_queue_rig import (
    consumer_rows,
    federate_queue,
    worker,
)
from tests.integration.federation_rig import admin, amqp, uri
from tests.integration.members import Member, cluster, eventually

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

QUORUM = {"x-queue-type": "quorum"}
MESSAGES = 1500


def fill(member: Member, queue: str) -> None:
    """Publish, confirmed, as persistent messages."""
    with amqp(member.amqp_port) as channel:
        durable = pika.BasicProperties(delivery_mode=2)
        for i in range(MESSAGES):
            channel.basic_publish("", queue, b"%d" % i, durable)


def drain(member: Member, queue: str, seen: set[int], until: int) -> None:
    """Consume until so many different ones have been seen."""
    with worker(member.amqp_port, queue, 50) as consumer:
        eventually(
            lambda: consumer.idle(0.05) or len(seen.union(map(int, consumer.bodies))) >= until,
            f"{until} messages",
            120.0,
        )
        seen.update(map(int, consumer.bodies))


@pytest.mark.parametrize("victim", ["upstream", "downstream"])
def test_either_end_is_killed_while_messages_move(tmp_path: Path, victim: str) -> None:
    """R-FED-5, R-FED-6: three kills each; what was taken over comes back with its queue."""
    for name in ("up", "down"):
        (tmp_path / name).mkdir()
    queues: dict[str, dict[str, str]] = {"classic": {}, "quorum": QUORUM}
    with (
        cluster(tmp_path / "up", 1, BROKERD_CLUSTER_NAME="warehouse") as (warehouse,),
        cluster(tmp_path / "down", 1, BROKERD_CLUSTER_NAME="orders") as (orders,),
    ):
        for queue, arguments in queues.items():
            for member in (warehouse, orders):
                with amqp(member.amqp_port) as channel:
                    channel.queue_declare(queue, durable=True, arguments=arguments)
            fill(warehouse, queue)
        with admin(orders) as client:
            address = uri(warehouse.amqp_port)
            federate_queue(client, "jobs", address, "^(classic|quorum)$", reconnect_delay=0.2)
        seen: dict[str, set[int]] = {queue: set() for queue in queues}
        for share in (200, 600, 1000):
            for queue in queues:
                drain(orders, queue, seen[queue], share)
            killed = warehouse if victim == "upstream" else orders
            killed.kill()
            killed.start()
            killed.wait_ready()
        for queue in queues:
            drain(orders, queue, seen[queue], MESSAGES)
            assert seen[queue] == set(range(MESSAGES))


def test_the_link_follows_the_leader_of_the_queue(tmp_path: Path) -> None:
    """R-FED-7: one member runs it, the one that leads; the next leader when that is lost."""
    for name in ("up", "down"):
        (tmp_path / name).mkdir()
    with (
        cluster(tmp_path / "up", 1, BROKERD_CLUSTER_NAME="warehouse") as (warehouse,),
        cluster(tmp_path / "down", 3, BROKERD_CLUSTER_NAME="orders") as orders,
    ):
        with amqp(orders[0].amqp_port) as channel:
            channel.queue_declare("jobs", durable=True, arguments=QUORUM)
        with amqp(warehouse.amqp_port) as channel:
            channel.queue_declare("jobs", durable=True, arguments=QUORUM)
        with admin(orders[0]) as client:
            federate_queue(client, "jobs", uri(warehouse.amqp_port), "^jobs$", reconnect_delay=0.2)

        def runs_on(members: list[Member]) -> list[Member]:
            found = []
            for member in members:
                with admin(member) as client:
                    rows = [row for row in client.rows("links") if row["queue"] == "jobs"]
                found += [member for row in rows if row["status"] == "running"]
            return found

        eventually(lambda: len(runs_on(orders)) == 1, "one link")
        (first,) = runs_on(orders)
        fill(warehouse, "jobs")
        seen: set[int] = set()
        others = [member for member in orders if member is not first]
        drain(others[0], "jobs", seen, 500)
        first.kill()
        eventually(lambda: len(runs_on(others)) == 1, "one link of another member")
        with admin(warehouse) as client:
            drain(others[0], "jobs", seen, MESSAGES)
            eventually(lambda: not consumer_rows(client, "jobs"), "the link has cancelled")
        assert seen == set(range(MESSAGES))
