"""Federation into a cluster of three: one link, which outlives its member; alarms pause it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.federation_rig import admin, amqp, take, uri
from tests.integration.members import Member, cluster, eventually

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@dataclass
class Clusters:
    """One member upstream, three downstream."""

    warehouse: Member
    orders: list[Member]


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    up = cluster(tmp_path / "up", 1, BROKERD_CLUSTER_NAME="warehouse")
    down = cluster(tmp_path / "down", 3, BROKERD_CLUSTER_NAME="orders")
    (tmp_path / "up").mkdir()
    (tmp_path / "down").mkdir()
    with up as (warehouse,), down as orders:
        yield Clusters(warehouse, orders)


def link_rows(members: list[Member]) -> list[dict[str, Any]]:
    """The links of all these members."""
    rows = []
    for member in members:
        with admin(member) as client:
            rows += client.rows("links")
    return rows


def running(members: list[Member], count: int = 1) -> list[dict[str, Any]]:
    """Wait until exactly so many links run."""

    def found() -> list[dict[str, Any]]:
        rows = link_rows(members)
        return rows if [row["status"] for row in rows] == ["running"] * count else []

    rows: list[dict[str, Any]] = eventually(found, f"{count} running links")
    return rows


def test_one_member_runs_the_link_and_another_takes_over_without_loss(clusters: Clusters) -> None:
    """R-FED-7, R-FX-17: what is published while nobody runs the link waits upstream."""
    warehouse, orders = clusters.warehouse, clusters.orders
    with amqp(orders[0].amqp_port) as down, admin(orders[0]) as client:
        down.exchange_declare("stock", "topic", durable=True)
        down.queue_declare("stock", durable=True, arguments={"x-queue-type": "quorum"})
        down.queue_bind("stock", "stock", "#")
        client.federate("warehouse", uri(warehouse.amqp_port), "^stock$")
    (row,) = running(orders)
    owner = next(member for member in orders if member.name == row["node"])
    others = [member for member in orders if member is not owner]
    with amqp(warehouse.amqp_port) as up:
        for i in range(20):
            up.basic_publish("stock", "item", b"%d" % i)
        owner.kill()
        for i in range(20, 40):
            up.basic_publish("stock", "item", b"%d" % i)
    (after,) = running(others)
    assert after["node"] != row["node"]
    with amqp(others[0].amqp_port) as down:
        seen: set[int] = set()
        while len(seen) < 40:
            _, properties, body = take(down, "stock")
            assert properties.headers["x-received-from"][0]["cluster-name"] == "warehouse"
            seen.add(int(body))
    assert seen == set(range(40))


def test_an_alarm_anywhere_pauses_the_link_and_its_end_resumes_it(tmp_path: Path) -> None:
    """R-ALM-9."""
    for name in ("up", "down"):
        (tmp_path / name).mkdir()
    with (
        cluster(tmp_path / "up", 1, BROKERD_CLUSTER_NAME="warehouse") as (warehouse,),
        cluster(tmp_path / "down", 1, BROKERD_CLUSTER_NAME="orders") as (orders,),
        admin(orders) as client,
        amqp(orders.amqp_port) as down,
        amqp(warehouse.amqp_port) as up,
    ):
        down.exchange_declare("stock", "fanout", durable=True)
        down.queue_declare("stock", durable=True)
        down.queue_bind("stock", "stock", "")
        client.federate("warehouse", uri(warehouse.amqp_port), "^stock$")
        client.wait_link("stock")

        def held() -> Any:
            return up.queue_declare("federation: stock -> orders", passive=True).method

        eventually(lambda: held().consumer_count == 1, "the link consumes")
        client.set("vm_memory_high_watermark", "0.00001")
        client.wait_link("stock", "blocked")
        eventually(lambda: held().consumer_count == 0, "the link's consumer is cancelled")
        up.basic_publish("stock", "k", b"waits upstream")
        assert held().message_count == 1
        client.set("vm_memory_high_watermark", "0.6")
        client.wait_link("stock")
        assert take(down, "stock")[2] == b"waits upstream"
