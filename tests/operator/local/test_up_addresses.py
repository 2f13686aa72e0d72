"""Where to connect, as `brokerctl up` says it when its start ends."""

from __future__ import annotations

import re
from pathlib import Path

from brokerd_operator.local import table
from brokerd_operator.local.cluster import LocalCluster
from brokerd_operator.local.member import Member
from brokerd_operator.local.ports import Ports


def cluster(folder: Path, name: str, *offsets: int) -> LocalCluster:
    """Return a cluster whose members are not started."""
    found = LocalCluster(name, "default", folder / name, "a secret")
    for number, offset in enumerate(offsets):
        member = f"{name}-{number}"
        data_dir = found.data_dir / member
        found.members.append(Member(member, Ports(offset), data_dir, {}, lambda _: None))
    return found


def test_each_cluster_has_a_row_and_lines_to_copy(tmp_path: Path) -> None:
    clusters = {"orders": cluster(tmp_path, "orders", 0, 100, 200)}
    clusters["warehouse"] = cluster(tmp_path, "warehouse", 300)
    header, orders, warehouse, *rest = table.addresses(clusters, lambda port: True)
    assert header.split("  ")[0] == "CLUSTER"
    assert re.split(" {2,}", orders) == [
        "orders",
        "127.0.0.1:5672, :5772, :5872",
        "http://127.0.0.1:15672/",
        "http://127.0.0.1:15692/metrics",
        "guest",
        "guest",
    ]
    assert "127.0.0.1:5972 " in warehouse
    assert header.index("PASSWORD") == orders.rindex("guest") == warehouse.rindex("guest")
    assert "for clients of orders:" in rest
    assert "  export AMQP_URL=amqp://guest:guest@127.0.0.1:5672/" in rest
    assert f"for brokerctl of orders (logs: {tmp_path}/orders/*/brokerd.log):" in rest
    assert "  export BROKERD_ADDRESS=127.0.0.1:5980" in rest


def test_what_does_not_listen_is_not_named(tmp_path: Path) -> None:
    _, row, *rest = table.addresses({"one": cluster(tmp_path, "one", 0)}, lambda port: False)
    assert "15672" not in row
    assert "  -  " in row
    assert "for clients:" in rest, "there is only one"
