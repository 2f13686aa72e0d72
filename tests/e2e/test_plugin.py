"""`kubectl brokerd` against the example's cluster: through real port-forwards to real members."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

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
    return subprocess.run(
        command(shop, *args),
        env=environment(shop),
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
    )


def command(shop: Namespace, *args: str) -> list[str]:
    return [sys.executable, "-m", "brokerd_operator.plugin", "-n", shop.name, *args]


def environment(shop: Namespace) -> dict[str, str]:
    paths = (ROOT, ROOT / "operator", ROOT / "telemetry")
    return os.environ | {
        "KUBECONFIG": str(shop.kube.kubeconfig),
        "KUBECTL": str(BIN / "kubectl"),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }


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


def test_the_plugin_leads_to_the_page(shop: Namespace) -> None:
    line = command(shop, "manage", "orders")
    with subprocess.Popen(
        line, env=environment(shop), text=True, stdout=subprocess.PIPE, preexec_fn=heed_ctrl_c
    ) as lead:
        try:
            assert lead.stdout is not None
            url = lead.stdout.readline().split()[0]
            assert page_status(url) == 401
            secret = shop.secret("orders-admin")
            login = b":".join((secret["username"], secret["password"]))
            assert page_status(url, login) == 200
            assert page_status(f"{url}api/nodes/orders-2", login) == 200
        finally:
            lead.send_signal(signal.SIGINT)
            try:
                assert lead.wait(TIMEOUT_S) == 128 + signal.SIGINT
            finally:
                lead.kill()


def heed_ctrl_c() -> None:
    """A shell has what it runs in the background ignore it, these tests too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def page_status(url: str, login: bytes = b"") -> int:
    request = urllib.request.Request(url)
    if login:
        request.add_header("Authorization", "Basic " + base64.b64encode(login).decode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
