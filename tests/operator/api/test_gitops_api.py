"""What a GitOps controller does, against a real API server: it applies as a manager of its own,
applies again, and brings Secrets late (design/operator.md §16)."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator import conditions
from brokerd_operator.conditions import Verdict

from tests.cluster_fixtures import Kubernetes
from tests.operator.api_fixtures import api as api
from tests.operator.api_fixtures import broker as broker
from tests.operator.broker_thread import BrokerThread
from tests.operator.gitops import argo_health, argo_word, flux_verdict
from tests.operator.operator_process import (
    Namespace,
    OperatorProcess,
    full,
    of_connection,
    running,
)
from tests.operator.operator_process import wait_for as wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

MANAGER = "gitops"
#: In no order that would help: the binding before its ends, the permission before its user.
FOLDER = (
    of_connection("Permission", "web", userRef={"name": "web"}, user=None, read=".*"),
    of_connection("Binding", "b", source="in", destination={"name": "q"}, routingKeys=["a", "b"]),
    of_connection("Queue", "q", maxLength=5),
    of_connection("Exchange", "in", type="topic"),
    of_connection("Policy", "p"),
    of_connection("OperatorPolicy", "op"),
    of_connection("Vhost", "team"),
    of_connection("User", "web"),
)


@pytest.fixture
def space(
    api: Kubernetes, broker: BrokerThread, request: pytest.FixtureRequest
) -> Iterator[Namespace]:
    name = f"gitops-{abs(hash(request.node.name)) % 10**8}"
    api.kubectl("create", "namespace", name)
    yield Namespace(api, name)
    api.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def operator(api: Kubernetes, space: Namespace, tmp_path: Path) -> Iterator[OperatorProcess]:
    with running(OperatorProcess(api.kubeconfig, space.name, tmp_path / "log")) as process:
        yield process


@pytest.fixture
def connected(space: Namespace, broker: BrokerThread, operator: OperatorProcess) -> Namespace:
    space.connect(broker.broker.address)
    space.wait_reason("brokerconnection", "prod", "Available")
    return space


def server_side(space: Namespace, *bodies: dict[str, Any]) -> str:
    """Apply as Argo CD and Flux do, never forcing a conflict; what kubectl said."""
    named = [{**body, "metadata": {**body["metadata"], "namespace": space.name}} for body in bodies]
    flags = ["--server-side", f"--field-manager={MANAGER}", "--force-conflicts=false"]
    return space.cluster.kubectl("apply", *flags, "-f", "-", input=yaml.safe_dump_all(named))


def applied(space: Namespace) -> list[dict[str, Any]]:
    """The folder as it lies in the API server, once all of it is applied, and once what policies
    match has been looked at, which is told a moment later.
    """
    for body in FOLDER:
        kind, name = body["kind"].lower(), body["metadata"]["name"]
        space.wait_reason(kind, name, "Applied")
        if "policy" in kind:
            matches = partial(_has_matches, space, kind, name)
            wait_until("what it matches has been told", matches)
    found = [space.get(body["kind"].lower(), body["metadata"]["name"]) for body in FOLDER]
    return [body for body in found if body is not None]


def _has_matches(space: Namespace, kind: str, name: str) -> bool:
    body = space.get(kind, name)
    return body is not None and "matches" in body["status"]


def versions(bodies: list[dict[str, Any]]) -> dict[str, str]:
    return {
        f"{body['kind']}/{body['metadata']['name']}": body["metadata"]["resourceVersion"]
        for body in bodies
    }


def managed(space: Namespace, kind: str, name: str) -> dict[str, Any]:
    """A resource with the managers of its fields, which kubectl hides unless asked."""
    flags = ("--output=json", "--show-managed-fields")
    found: dict[str, Any] = json.loads(
        space.cluster.kubectl("-n", space.name, "get", full(kind), name, *flags)
    )
    return found


def fields_of(body: dict[str, Any], manager: str) -> set[str]:
    """Which fields a manager owns, down to two levels."""
    found = set()
    for entry in body["metadata"]["managedFields"]:
        if entry["manager"] == manager:
            for top, below in entry["fieldsV1"].items():
                found |= {f"{top.removeprefix('f:')}.{name.removeprefix('f:')}" for name in below}
    return found


def managers(body: dict[str, Any]) -> set[str]:
    return {entry["manager"] for entry in body["metadata"]["managedFields"]}


def test_a_second_manager_applies_without_force_and_again_without_a_write(
    connected: Namespace, operator: OperatorProcess, broker: BrokerThread
) -> None:
    server_side(connected, *FOLDER)
    settled = applied(connected)
    for item in FOLDER:
        body = managed(connected, item["kind"].lower(), item["metadata"]["name"])
        (other,) = managers(body) - {MANAGER}
        owned = fields_of(body, other)
        assert all(name.startswith(("status.", "metadata.finalizers")) for name in owned), owned
    before, writes = versions(settled), broker.broker.writes
    server_side(connected, *FOLDER)
    assert versions(applied(connected)) == before

    # The operator that comes after a crash writes nothing either, and then the folder changes.
    operator.stop(9)
    operator.log.write_text("")
    operator.start()
    operator.wait_leading()
    passes = "brokerd_operator_passes_total"
    wait_until("all were looked at", lambda: operator.metric(passes) > len(FOLDER))
    connected.wait_reason("brokerconnection", "prod", "Available")
    server_side(connected, *FOLDER)
    assert versions(applied(connected)) == before
    # The User's password cannot be read back: it alone may be set again.
    assert broker.broker.writes - writes <= 1

    changed = of_connection("Queue", "q", maxLength=7)
    server_side(connected, changed)
    connected.wait_reason("queue", "q", "Applied")
    (stored,) = (
        item["settings"] for identity, item in broker.broker.objects.items() if identity.name == "q"
    )
    assert stored == {"max-length": 7}
    # A field that Git no longer has goes: the operator has not taken it over.
    server_side(connected, of_connection("Queue", "q"))
    body = connected.get("queue", "q")
    assert body is not None
    assert "maxLength" not in body["spec"]


def test_what_argo_cd_and_flux_see_is_what_kstatus_sees(connected: Namespace) -> None:
    """Recorded from the operator itself: sound, waiting and refused resources."""
    server_side(
        connected,
        of_connection("Queue", "sound"),
        of_connection("User", "late", credentialsSecretRef={"name": "late"}),
        of_connection("Policy", "wrong", pattern="("),
    )
    expected = {
        ("queue", "sound", "Applied"): Verdict.CURRENT,
        ("user", "late", "WaitingForSecret"): Verdict.IN_PROGRESS,
        ("policy", "wrong", "InvalidPattern"): Verdict.FAILED,
    }
    for (kind, name, reason), verdict in expected.items():
        connected.wait_reason(kind, name, reason)
        body = connected.get(kind, name)
        assert body is not None
        assert conditions.verdict(body)[0] is verdict
        assert flux_verdict(body) is verdict
        if importlib.util.find_spec("lupa") is not None:
            lua51 = importlib.import_module("lupa.lua51")
            assert argo_health(lua51, body)[0] == argo_word(body, verdict)


def test_a_secret_that_comes_later_makes_a_user_ready(
    connected: Namespace, broker: BrokerThread
) -> None:
    user = of_connection("User", "app", credentialsSecretRef={"name": "app"})
    permission = of_connection("Permission", "app", userRef={"name": "app"}, user=None, read=".*")
    server_side(connected, permission, user)
    connected.wait_reason("user", "app", "WaitingForSecret")
    assert connected.get("secret", "app") is None, "the operator makes none in its place"
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "app"}}
    server_side(connected, {**secret, "stringData": {"password": "from the vault"}})
    connected.wait_reason("user", "app", "Applied")
    connected.wait_reason("permission", "app", "Applied")
    body = managed(connected, "secret", "app")
    assert managers(body) == {MANAGER}, "a Secret of others is read and left alone"
    assert "ownerReferences" not in body["metadata"]


def test_a_dry_run_on_the_server_shows_no_difference(connected: Namespace) -> None:
    """ServerSideDiff of Argo CD: what it would get is what is there."""
    server_side(connected, *FOLDER)
    settled = {item["metadata"]["uid"]: item for item in applied(connected)}
    named = [{**b, "metadata": {**b["metadata"], "namespace": connected.name}} for b in FOLDER]
    shown = connected.cluster.kubectl(
        *("apply", "--server-side", f"--field-manager={MANAGER}", "--dry-run=server"),
        *("-o", "json", "-f", "-"),
        input=yaml.safe_dump_all(named),
    )
    for item in json.loads(shown)["items"]:
        there = settled[item["metadata"]["uid"]]
        assert item["spec"] == there["spec"]
        assert item["metadata"].get("annotations") == there["metadata"].get("annotations")
        assert item["metadata"].get("labels") == there["metadata"].get("labels")
