"""What `helm test` of the operator runs, on a real API server with the rights of the chart."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator import selftest
from brokerd_operator.sources.api import ApiError
from brokerd_operator.specs import registry

from tests.cluster_fixtures import Kubernetes
from tests.operator.charts import OPERATOR, ROOT, is_of_uninstallation, of_kind, render
from tests.operator.operator_process import wait_for
from tests.ports import free_ports

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

NAMESPACE = "selftest"
ACCOUNT = "r-brokerd-operator"


def arguments(pod: dict[str, Any]) -> list[str]:
    """What the pod of `helm test` is told, but for the operator, which does not run here."""
    args = pod["spec"]["containers"][0]["args"]
    return [item for item in args if not item.startswith("--ready-url=")]


def run(kubeconfig: Path, *args: str) -> tuple[int, str]:
    environment = {name: v for name, v in os.environ.items() if "BROKERD_" not in name}
    environment |= {"KUBECONFIG": str(kubeconfig), "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"}
    done = subprocess.run(
        [sys.executable, "-m", "brokerd_operator", *args],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def pod(kube_api: Kubernetes) -> Iterator[dict[str, Any]]:
    """The pod of `helm test`, as the installed release has it."""
    kube_api.kubectl("apply", "-f", str(ROOT / "crds"))
    kube_api.kubectl(
        "wait", "--for=condition=Established", "--timeout=100s", "-f", str(ROOT / "crds")
    )
    kube_api.kubectl("create", "namespace", NAMESPACE)
    values = ("--set=crds.create=false", "--set=rbac.aggregate=false")
    kube_api.helm("install", "r", str(OPERATOR), f"--namespace={NAMESPACE}", *values)
    hooks = kube_api.helm("get", "hooks", "r", f"--namespace={NAMESPACE}")
    found: dict[str, Any] = yaml.safe_load(hooks)
    yield found
    # A release of all namespaces would be refused beside it.
    kube_api.helm("uninstall", "r", f"--namespace={NAMESPACE}")


def as_account(cluster: Kubernetes, account: str, directory: Path) -> Path:
    """A kubeconfig with a token of this ServiceAccount."""
    token = cluster.kubectl("create", "token", account, f"--namespace={NAMESPACE}").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def test_selftest_passes_with_the_rights_of_the_chart(
    kube_api: Kubernetes, pod: dict[str, Any], tmp_path: Path
) -> None:
    assert pod["kind"] == "Pod"
    assert pod["spec"]["serviceAccountName"] == ACCOUNT
    status, said = run(as_account(kube_api, ACCOUNT, tmp_path), *arguments(pod))
    assert status == 0, said
    kinds = len(registry.KINDS)
    assert f"kinds: {kinds} of {kinds} served" in said
    assert "selftest passed" in said


def test_helm_test_passes_again_and_leaves_its_pod_for_the_logs(
    kube_api: Kubernetes, pod: dict[str, Any]
) -> None:
    """The test plays the kubelet: no pod runs here."""
    name, where = pod["metadata"]["name"], f"--namespace={NAMESPACE}"
    ended = json.dumps({"status": {"phase": "Succeeded"}})

    def uid() -> str:
        shown = ("-o", "jsonpath={.metadata.uid}", "--ignore-not-found")
        return kube_api.kubectl("get", "pod", name, where, *shown).strip()

    seen = [""]
    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            testing = thread.submit(kube_api.helm, "test", "r", where)
            made = wait_for("another pod", lambda: (now := uid()) not in seen and now)
            status = ("--subresource=status", "--type=merge", "--patch", ended)
            kube_api.kubectl("patch", "pod", name, where, *status)
            said = testing.result(100)
        assert "Phase:          Succeeded" in said
        assert uid() == made
        seen.append(made)
    kube_api.kubectl("delete", "pod", name, where)


def test_selftest_names_the_right_that_is_missing(
    kube_api: Kubernetes, pod: dict[str, Any], tmp_path: Path
) -> None:
    config = as_account(kube_api, ACCOUNT, tmp_path)
    more = json.dumps(
        [
            {
                "namespace": NAMESPACE,
                "rules": [
                    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["delete"]},
                    {"apiGroups": ["apps"], "resources": ["statefulsets/scale"], "verbs": ["get"]},
                    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
                ],
            },
            {
                "namespace": "",
                "rules": [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list"]}],
            },
        ]
    )
    status, said = run(config, "selftest", "--patience=1", f"--rights={more}")
    assert status == 1
    assert "FAILED: not allowed: delete secrets in namespace selftest\n" in said
    assert "FAILED: not allowed: get statefulsets/scale.apps in namespace selftest\n" in said
    assert "FAILED: not allowed: list namespaces in all namespaces\n" in said
    assert "rights: 1 of 4 granted" in said


def test_selftest_of_an_account_without_rights_stays_readable(
    kube_api: Kubernetes, pod: dict[str, Any], tmp_path: Path
) -> None:
    kube_api.kubectl("create", "serviceaccount", "nobody", f"--namespace={NAMESPACE}")
    config = as_account(kube_api, "nobody", tmp_path)
    status, said = run(config, *arguments(pod), "--patience=0")
    assert status == 1
    assert said.count("FAILED: not allowed: ") == selftest.SHOWN_MAX + 1
    assert "rights: 0 of" in said


def test_selftest_says_when_the_api_server_is_not_reached(tmp_path: Path) -> None:
    cluster = {"server": f"http://127.0.0.1:{free_ports(1)[0]}"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    status, said = run(path, "selftest")
    assert status == 1
    assert "FAILED: the API server cannot be reached" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("text", ["{", "[1]", '[{"namespace": "a"}]', '[{"rules": null}]'])
def test_rights_that_cannot_be_read_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        selftest.rights(text)


def test_same_right_is_asked_once() -> None:
    role = {"namespace": "a", "rules": [{"apiGroups": [""], "resources": ["x"], "verbs": ["get"]}]}
    assert selftest.rights(json.dumps([role, role])) == [selftest.Right("get", "", "x", "a")]


@pytest.mark.parametrize("is_made", [True, False], ids=["rbac", "no rbac"])
@pytest.mark.parametrize("watched", [["shop", "team-b"], ["*"]], ids=["namespaces", "all"])
def test_pod_asks_for_the_rights_that_the_chart_grants(watched: list[str], is_made: bool) -> None:
    """Also where somebody else is to grant them."""
    values = {"watchNamespaces": watched, "crds": {"create": False}}
    granted = [item for item in render(OPERATOR, values) if not is_of_uninstallation(item)]
    roles = {
        (kind, role["metadata"].get("namespace", ""), role["metadata"]["name"]): role["rules"]
        for kind in ("Role", "ClusterRole")
        for role in of_kind(granted, kind)
    }
    rights = set()
    for binding in [*of_kind(granted, "RoleBinding"), *of_kind(granted, "ClusterRoleBinding")]:
        namespace, role = binding["metadata"].get("namespace", ""), binding["roleRef"]
        where = namespace if role["kind"] == "Role" else ""
        rules = roles[role["kind"], where, role["name"]]
        rights.add((namespace, json.dumps(rules, sort_keys=True)))
    asked = render(OPERATOR, values | {"rbac": {"create": is_made}})
    (pod,) = of_kind(asked, "Pod")
    (text,) = [item for item in arguments(pod) if item.startswith("--rights=")]
    found = json.loads(text.removeprefix("--rights="))
    # The Lease's role, too.
    assert len(found) == len(watched) + 1
    assert {(item["namespace"], json.dumps(item["rules"], sort_keys=True)) for item in found} == (
        rights
    )


class FakeApi:
    """Serves some kinds and grants everything."""

    def __init__(self, kinds: list[str]) -> None:
        self.kinds = kinds

    async def request(self, method: str, path: str, body: Any = None) -> Mapping[str, Any]:
        return {"gitVersion": "v1.99.0"} if method == "GET" else {"status": {"allowed": True}}

    async def get(self, path: str) -> Mapping[str, Any] | None:
        if not self.kinds:
            raise ApiError(503, "no")
        return {"resources": [{"name": name} for name in self.kinds]}


def problems(api: FakeApi, url: str = "") -> list[str]:
    async def collect() -> list[str]:
        needed = [selftest.Right("get", "", "secrets", "a")]
        return [item async for item in selftest.problems(api, needed, url, 0.0)]  # type: ignore[arg-type]

    return asyncio.run(collect())


def test_kinds_that_are_not_served_are_named() -> None:
    plurals = sorted(registry.PLURALS.values())
    assert problems(FakeApi(plurals)) == []
    (said,) = problems(FakeApi(plurals[2:]))
    assert said.endswith(f": {plurals[0]}.brokerd.io, {plurals[1]}.brokerd.io")


@pytest.fixture
def ready_url() -> Iterator[tuple[str, list[int]]]:
    """An operator that answers with the first of these statuses."""
    statuses = [503]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses[0])
            self.end_headers()
            self.wfile.write(b"resources are not listed yet\n")

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/readyz", statuses
    server.shutdown()
    thread.join()
    server.server_close()


def test_operator_that_is_not_ready_is_told_with_its_reason(
    ready_url: tuple[str, list[int]],
) -> None:
    url, statuses = ready_url
    plurals = sorted(registry.PLURALS.values())
    (said,) = problems(FakeApi(plurals), url)
    assert said == f"the operator is not ready: {url}: resources are not listed yet"
    statuses[0] = 200
    assert problems(FakeApi(plurals), url) == []
