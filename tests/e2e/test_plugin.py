"""`kubectl brokerd` against the example's cluster: through real port-forwards to real members."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cluster_fixtures import BIN
from tests.e2e.conftest import ROOT
from tests.e2e.namespace import Namespace, until

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(900)]

#: A drained member comes back to be ready after its probe has asked again.
BACK_S = 120.0
TIMEOUT_S = 150


def plugin(shop: Namespace, *args: str) -> subprocess.CompletedProcess[str]:
    """The plugin as kubectl runs it."""
    paths = (ROOT, ROOT / "operator", ROOT / "telemetry")
    where = {
        "KUBECONFIG": str(shop.kube.kubeconfig),
        "KUBECTL": str(BIN / "kubectl"),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }
    return subprocess.run(
        [sys.executable, "-m", "brokerd_operator.plugin", "-n", shop.name, *args],
        env=os.environ | where,
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
    )


def said(shop: Namespace, *args: str) -> str:
    done = plugin(shop, *args)
    assert done.returncode == 0, f"{args}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_plugin_sees_and_administers_a_cluster(shop: Namespace) -> None:
    until(lambda: plugin(shop, "status", "orders").returncode == 0, "orders is healthy", BACK_S)
    [body] = json.loads(said(shop, "status", "orders", "-o", "json"))["clusters"]
    assert [item["state"] for item in body["members"]] == ["Ready"] * 3
    assert all(item["node"] for item in body["members"])
    assert [item["phase"] for item in body["volumes"]] == ["Bound"] * 3
    assert body["topologyTotal"] > 5
    assert body["unseen"] == []
    assert "orders-2" in said(shop, "status")

    assert "orders.dead" in said(shop, "queues", "orders")
    names = said(shop, "ctl", "orders", "--", "list_queues", "--formatter", "json", "name")
    assert {"name": "orders"} in json.loads(names)
    shown = said(shop, "top", "orders", "--once")
    for part in ("orders-0", "orders-1", "orders-2", "orders.dead", "IN/S"):
        assert part in shown
    assert "orders-admin" in said(shop, "connect", "orders")


def test_the_plugin_drains_and_revives_a_member(shop: Namespace) -> None:
    assert plugin(shop, "ctl", "orders", "--", "drain").returncode == 2, "which member?"
    try:
        assert "leaderships moved" in said(shop, "drain", "orders", "2")
        status = said(shop, "ctl", "orders", "-m", "orders-2", "--", "cluster_status")
        assert "Node: orders-2, status: marked for maintenance" in status
    finally:
        # The shop is everybody's.
        done = plugin(shop, "revive", "orders", "2")
        until(lambda: plugin(shop, "status", "orders").returncode == 0, "orders is healthy", BACK_S)
    assert done.returncode == 0, done.stderr
