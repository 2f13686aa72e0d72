"""Namespaces that go and come while the operator watches several, with the chart's own rights.

Against a real API server, its authoriser and its namespace controller. The operator runs as the
chart's ServiceAccount, so that it has the rendered rights and no others.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator.sources import rights

from tests.cluster_fixtures import BIN, CLUSTER, Kubernetes
from tests.operator.broker_thread import BrokerThread
from tests.operator.operator_process import (
    Namespace,
    OperatorProcess,
    of_connection,
    running,
    wait_for,
)

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

ROOT = CLUSTER.parents[1]
CHART = ROOT / "charts" / "brokerd-operator"
#: The namespace controller looks again with a back-off of its own.
GONE_S = 120.0
OWN, GOES, STAYS = "nsop", "nsop-goes", "nsop-stays"
BINDING = "r-brokerd-operator-watched"


@pytest.fixture(scope="module")
def installed(kube_api: Kubernetes) -> Iterator[Kubernetes]:
    """The chart, watching its own namespace and two others; its pods never run here."""
    kube_api.kubectl("apply", "-f", str(ROOT / "crds"))
    kube_api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=100s")
    for name in (OWN, GOES, STAYS):
        kube_api.kubectl("create", "namespace", name)
    _helm(kube_api, "install", OWN, GOES, STAYS)
    yield kube_api
    for name in (GOES, STAYS, OWN):
        kube_api.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def _helm(kubernetes: Kubernetes, verb: str, *watched: str) -> None:
    values = f"{{{','.join(watched)}}}"
    kubernetes.helm(
        verb,
        "r",
        str(CHART),
        f"--namespace={OWN}",
        "--set=crds.create=false,rbac.aggregate=false",
        f"--set=watchNamespaces={values}",
    )


@pytest.fixture
def kubeconfig(installed: Kubernetes, tmp_path: Path) -> Path:
    """A kubeconfig of the chart's ServiceAccount."""
    token = installed.kubectl("-n", OWN, "create", "token", "r-brokerd-operator").strip()
    return _kubeconfig(installed, token, tmp_path)


def _kubeconfig(kubernetes: Kubernetes, token: str, folder: Path) -> Path:
    found = yaml.safe_load(kubernetes.kubeconfig.read_text())
    for user in found["users"]:
        user["user"] = {"token": token}
    file = folder / "kubeconfig"
    file.write_text(json.dumps(found))
    return file


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    thread = BrokerThread()
    yield thread
    thread.close()


def test_namespaces_go_and_come_without_stopping_the_operator(
    installed: Kubernetes, kubeconfig: Path, broker: BrokerThread, tmp_path: Path
) -> None:
    operator = OperatorProcess(
        kubeconfig, f"{OWN},{GOES},{STAYS}", tmp_path / "log", role_binding=BINDING
    )
    goes, stays, own = (Namespace(installed, name) for name in (GOES, STAYS, OWN))
    with running(operator):
        for place in (goes, stays):
            place.connect(broker.broker.address)
            place.apply(of_connection("Queue", place.name), of_connection("Policy", place.name))
            place.wait_reason("queue", place.name, "Applied")
            place.wait_reason("policy", place.name, "Applied")
        # The rights of an earlier release, or made anew by hand, were held by nobody.
        for place in (goes, stays):
            _take_finalizers_off(place)
        wait_for("the rights are held again", lambda: _is_held(goes) and _is_held(stays))
        # So they are by one that starts, whose resources have their finalizers already.
        operator.stop(9)
        _take_finalizers_off(goes)
        operator.start()
        operator.wait_leading()
        wait_for("the rights are held by the next one", lambda: _is_held(goes))
        # The restart in the middle: the namespace begins to go while nobody watches.
        operator.stop(9)
        installed.kubectl("delete", "namespace", GOES, "--wait=false")
        wait_for("its binding is being deleted", lambda: _is_ending(goes))
        operator.start()
        operator.wait_leading()
        stays.apply(of_connection("Queue", "more"))
        stays.wait_reason("queue", "more", "Applied")
        wait_for("the namespace is gone", lambda: not _exists(installed, GOES), GONE_S)
        # Its BrokerConnection went with it, and with that the way to its objects
        # (design/operator.md §10).
        assert {"more", STAYS} <= set(broker.broker.named("queue"))
        wait_for("it is said", lambda: _unavailable(operator) == 1)
        assert operator.is_ready()
        wait_for("an Event", lambda: own.events("NamespaceUnavailable"))
        stays.apply(of_connection("Queue", "more", maxLength=3))
        stays.wait_reason("queue", "more", "Applied")
        # Made anew, with its rights: watched again without a restart.
        installed.kubectl("create", "namespace", GOES)
        _helm(installed, "upgrade", OWN, GOES, STAYS)
        goes.connect(broker.broker.address)
        goes.apply(of_connection("Queue", "anew"))
        goes.wait_reason("queue", "anew", "Applied")
        assert _unavailable(operator) == 0
        assert len(own.events("NamespaceUnavailable")) == 1, "said once"
        # A shorter list of watched namespaces takes the rights there away, and nothing hangs.  (An
        # uninstallation takes the ServiceAccount at the same moment: the next test.)
        _helm(installed, "upgrade", OWN)
        wait_for("the bindings are gone", lambda: not _binding(goes) + _binding(stays))
        assert len(stays.list("queue")) == 2


def test_operator_of_the_whole_cluster_takes_what_comes_and_lets_go_of_what_goes(
    installed: Kubernetes, broker: BrokerThread, tmp_path: Path
) -> None:
    operator = OperatorProcess(installed.kubeconfig, "default,*", tmp_path / "log")
    with running(operator):
        place = Namespace(installed, "nsop-late")
        installed.kubectl("create", "namespace", place.name)
        place.connect(broker.broker.address)
        place.apply(of_connection("Queue", "late"))
        place.wait_reason("queue", "late", "Applied")
        installed.kubectl("delete", "namespace", place.name, "--wait=false")
        wait_for("the namespace is gone", lambda: not _exists(installed, place.name), GONE_S)
        assert operator.stop() == 0


def test_what_an_uninstallation_without_an_operator_leaves_is_let_go_as_documented(
    kube_api: Kubernetes,
) -> None:
    """By the command of docs/operations.md, which touches nothing that is not being deleted."""
    own, held, other = "nsop-bye", "nsop-bye-held", "nsop-bye-other"
    for name in (own, held, other):
        kube_api.kubectl("create", "namespace", name)
    for release, watched in (("bye", held), ("stays", other)):
        kube_api.helm(
            *("install", release, str(CHART), f"--namespace={own}"),
            *(
                "--set=crds.create=false,rbac.aggregate=false",
                f"--set=watchNamespaces={{{watched}}}",
            ),
        )
    bindings = {
        namespace: f"{release}-brokerd-operator-watched"
        for release, namespace in (("bye", held), ("stays", other))
    }
    for namespace, name in bindings.items():
        patch = json.dumps({"metadata": {"finalizers": [rights.FINALIZER]}})
        where = ("-n", namespace, "patch", "rolebinding", name)
        kube_api.kubectl(*where, "--type=merge", "--patch", patch)

    def left() -> dict[str, bool]:
        """Bindings, and whether they are being deleted."""
        text = kube_api.kubectl("get", "rolebindings", "--all-namespaces", "-o", "json")
        return {
            item["metadata"]["namespace"]: "deletionTimestamp" in item["metadata"]
            for item in json.loads(text)["items"]
            if bindings.get(item["metadata"]["namespace"]) == item["metadata"]["name"]
        }

    kube_api.helm("uninstall", "bye", f"--namespace={own}", "--no-hooks")
    assert left() == {held: True, other: False}
    page = (ROOT / "docs" / "operations.md").read_text()
    _, _, rest = page.partition("bindings stay Terminating")
    command = rest.partition("```sh\n")[2].partition("```")[0]
    environment = os.environ | {"KUBECONFIG": str(kube_api.kubeconfig)}
    environment["PATH"] = f"{BIN}:{environment['PATH']}"
    subprocess.run(["sh", "-ec", command], env=environment, check=True, timeout=60)
    assert left() == {other: False}
    kept = json.loads(
        kube_api.kubectl("-n", other, "get", "rolebinding", bindings[other], "-o", "json")
    )
    assert kept["metadata"]["finalizers"] == [rights.FINALIZER]
    kube_api.kubectl(
        *("-n", other, "patch", "rolebinding", bindings[other], "--type=merge"),
        *("--patch", '{"metadata":{"finalizers":null}}'),
    )
    kube_api.helm("uninstall", "stays", f"--namespace={own}", "--no-hooks")
    for name in (own, held, other):
        kube_api.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize("waits", [False, True])
def test_an_uninstallation_without_an_operator_leaves_nothing_but_the_definitions(
    kube_api: Kubernetes, tmp_path: Path, waits: bool
) -> None:
    """The chart's hooks, with their own rights; the test plays the kubelet that runs their pods.

    Helm that waits for the bindings' end runs the last hook after that only.
    """
    own = f"nsop-hook-{waits}".lower()
    held, gone = f"{own}-held", f"{own}-gone"
    for name in (own, held, gone):
        kube_api.kubectl("create", "namespace", name)
    where = f"--namespace={own}"
    kube_api.helm(
        *("install", "hook", str(CHART), where),
        *(
            "--set=crds.create=false,rbac.aggregate=false",
            f"--set=watchNamespaces={{{held},{gone}}}",
        ),
    )
    patch = json.dumps({"metadata": {"finalizers": [rights.FINALIZER]}})
    binding = "hook-brokerd-operator-watched"
    kube_api.kubectl(
        *("-n", held, "patch", "rolebinding", binding, "--type=merge", "--patch", patch)
    )
    kube_api.kubectl("delete", "namespace", gone)
    kubelet = Kubelet(kube_api, own, tmp_path)
    with ThreadPoolExecutor(1) as thread:
        flags = ("--wait", "--timeout=60s") if waits else ()
        uninstalling = thread.submit(kube_api.helm, "uninstall", "hook", where, *flags)
        with kubelet.runs("ReplicaSet") if waits else contextlib.nullcontext():
            said = kubelet.finish("Job")
        uninstalling.result(100)
    assert f"{held}: {'nothing to let go of' if waits else 'let go'}" in said
    assert f"{gone}: nothing to let go of" in said
    kinds = "roles,rolebindings,serviceaccounts,jobs,deployments,services"
    for namespace in (own, held):
        found = kube_api.kubectl("-n", namespace, "get", kinds, "-o", "name")
        assert "brokerd" not in found
    of_cluster = kube_api.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    assert own not in of_cluster
    for name in (own, held):
        kube_api.kubectl("delete", "namespace", name, "--wait=false")


@dataclass
class Kubelet:
    """Runs pods of the chart's uninstallation here, as their ServiceAccount."""

    kubernetes: Kubernetes
    namespace: str
    folder: Path

    @contextlib.contextmanager
    def runs(self, owner: str) -> Iterator[None]:
        """A pod that does not end by itself."""
        _, command, environment = self._pod(owner)
        process = subprocess.Popen(command, env=environment)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)

    def finish(self, owner: str) -> str:
        """A pod that comes to its end; what it said."""
        name, command, environment = self._pod(owner)
        done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        ended = json.dumps({"status": {"phase": "Succeeded"}})
        self.kubernetes.kubectl(
            *("-n", self.namespace, "patch", "pod", name, "--subresource=status"),
            *("--type=merge", "--patch", ended),
        )
        return done.stdout

    def _pod(self, owner: str) -> tuple[str, list[str], dict[str, str]]:
        """The one pod of the uninstallation with such an owner: its name, and how it is run."""

        def pending() -> Any:
            chosen = ("--selector=app.kubernetes.io/name=brokerd-operator-uninstall", "-o", "json")
            text = self.kubernetes.kubectl("-n", self.namespace, "get", "pods", *chosen)
            items = json.loads(text)["items"]
            return [i for i in items if i["metadata"]["ownerReferences"][0]["kind"] == owner]

        (pod,) = wait_for(f"the pod of a {owner}", pending)
        account = pod["spec"]["serviceAccountName"]
        token = self.kubernetes.kubectl("-n", self.namespace, "create", "token", account).strip()
        kubeconfig = _kubeconfig(self.kubernetes, token, self.folder)
        (container,) = pod["spec"]["containers"]
        command = [sys.executable, "-m", "brokerd_operator", *container["args"]]
        return pod["metadata"]["name"], command, os.environ | {"KUBECONFIG": str(kubeconfig)}


def _exists(kubernetes: Kubernetes, name: str) -> bool:
    return bool(kubernetes.kubectl("get", "namespace", name, "--ignore-not-found").strip())


def _binding(place: Namespace) -> str:
    return place.cluster.kubectl(
        "-n", place.name, "get", "rolebinding", BINDING, "-o", "json", "--ignore-not-found"
    )


def _is_held(place: Namespace) -> bool:
    return "brokerd.io/rights" in _binding(place)


def _take_finalizers_off(place: Namespace) -> None:
    change = ("--type=merge", "-p", json.dumps({"metadata": {"finalizers": None}}))
    place.cluster.kubectl("-n", place.name, "patch", "rolebinding", BINDING, *change)


def _is_ending(place: Namespace) -> bool:
    return "deletionTimestamp" in _binding(place)


def _unavailable(operator: OperatorProcess) -> float:
    return operator.metric("brokerd_operator_namespace_unavailable")
