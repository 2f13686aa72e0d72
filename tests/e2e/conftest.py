"""What the end-to-end tests share: two real nodes with the project's images, the operator installed
by its chart, the example's brokers, and namespaces.

Everything is made once per session. On a cluster of tools/cluster the end of the nodes takes all of
it away; on a given cluster (KUBECONFIG) each fixture takes back what it made.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster_fixtures import Kubernetes
from tests.cluster_fixtures import images as images
from tests.cluster_fixtures import kube_nodes as kube_nodes
from tests.e2e.diagnostics import diagnose, node_complaints
from tests.e2e.namespace import LABEL, READY_TIMEOUT_S, Namespace, until
from tests.e2e.reach import Reach

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "brokerd-operator"
ORDERS = ROOT / "examples" / "orders"

SYSTEM = "brokerd-system"
RELEASE = "brokerd-operator"
TAG = "dev"
#: Minutes more than CI has.
nightly = pytest.mark.skipif(
    "E2E_NIGHTLY" not in os.environ, reason="takes long: make e2e-nightly runs it"
)
#: Namespaces and what they hold go; a pod may take its 30 s of grace.
GONE_TIMEOUT_S = 240


#: A node that a test before cut off is back within this.
NODES_TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def sound_nodes(kube_nodes: Kubernetes) -> None:
    """Without them every test that runs a pod waits for minutes, and says nothing of why."""
    until(
        lambda: not node_complaints(kube_nodes),
        "the nodes are sound (what is not: see Kubernetes)",
        NODES_TIMEOUT_S,
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure comes with what Kubernetes knows."""
    report = yield
    kube = getattr(item, "funcargs", {}).get("kube_nodes")
    if report.failed and isinstance(kube, Kubernetes):
        report.sections.append(("Kubernetes", diagnose(kube)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests measured (`record_property`), a line each, passed or failed."""
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if report.when == "call" and report.user_properties
    ]
    for report in reports:
        told = ", ".join(f"{name}: {value}" for name, value in report.user_properties)
        terminalreporter.write_line(f"{report.location[2]}: {told}")


@pytest.fixture(scope="session")
def make_namespace(
    kube_nodes: Kubernetes, installed: Namespace
) -> Iterator[Callable[[str], Namespace]]:
    """Namespaces that refuse whatever the restricted pod profile does not allow.

    They go before the operator does, whichever test came first: nobody else removes finalizers.
    """
    made: list[str] = []
    numbers = itertools.count(1)

    def make(purpose: str) -> Namespace:
        name = f"e2e-{purpose}-{next(numbers)}"
        manifest = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "labels": {LABEL: "true", "pod-security.kubernetes.io/enforce": "restricted"},
            },
        }
        kube_nodes.kubectl("apply", "-f", "-", input=json.dumps(manifest))
        made.append(name)
        return Namespace(kube_nodes, name)

    yield make
    for name in made:
        kube_nodes.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")
    for name in made:
        kube_nodes.kubectl(
            "wait",
            "--for=delete",
            f"namespace/{name}",
            f"--timeout={GONE_TIMEOUT_S}s",
            timeout_s=GONE_TIMEOUT_S + 10,
        )


@pytest.fixture(scope="session")
def installed(kube_nodes: Kubernetes, images: dict[str, str]) -> Iterator[Namespace]:
    """The operator, by `helm install` of its chart, for all namespaces; with its chart's rights."""
    crds_before = kube_nodes.kubectl("get", "crds", "-o", "name")
    values = [f"images.{name}.tag={TAG}" for name in images]
    flags = [part for value in values for part in ("--set", value)]
    kube_nodes.helm(
        *("install", RELEASE, str(CHART), "--namespace", SYSTEM, "--create-namespace"),
        *("--wait", "--timeout", f"{READY_TIMEOUT_S:.0f}s", *flags),
        *("--set", "watchNamespaces={*}", "--set", "images.telemetry.tag=dev"),
        timeout_s=READY_TIMEOUT_S + 10,
    )
    label = ("pod-security.kubernetes.io/enforce=restricted", f"{LABEL}=true")
    kube_nodes.kubectl("label", "namespace", SYSTEM, *label)
    system = Namespace(kube_nodes, SYSTEM)
    yield system
    forbidden = forbidden_lines(system)
    kube_nodes.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait")
    kube_nodes.kubectl("delete", "namespace", SYSTEM, "--timeout=100s")
    if "brokerclusters.brokerd.io" not in crds_before:
        kube_nodes.kubectl("delete", "-f", str(ROOT / "crds"))
    assert not forbidden, "the operator wanted more than its chart allows:\n" + "\n".join(forbidden)


def forbidden_lines(system: Namespace) -> list[str]:
    """What the operator complained about for want of a right."""
    log = system.kubectl("logs", f"deployment/{RELEASE}", "--tail=-1")
    # The API server says "forbidden" also for a namespace that just began to go.
    return [
        line
        for line in log.splitlines()
        if "forbidden" in line.lower() and "being terminated" not in line
    ]


@pytest.fixture
def space(
    request: pytest.FixtureRequest,
    installed: Namespace,
    make_namespace: Callable[[str], Namespace],
) -> Iterator[Namespace]:
    """A namespace of a test's own, with the operator at work; taken away without waiting."""
    made = make_namespace(request.node.originalname.removeprefix("test_").split("_")[0])
    yield made
    made.kube.kubectl("delete", "namespace", made.name, "--ignore-not-found", "--wait=false")


@pytest.fixture(scope="session")
def shop(installed: Namespace, make_namespace: Callable[[str], Namespace]) -> Namespace:
    """The example's two brokers and their topology, everything Ready."""
    made = make_namespace("shop")
    made.apply(ORDERS)
    # Its hour may begin while the tests run: a second run would count the segments of its own only.
    made.patch("brokercluster", "orders", {"telemetry": {"suspend": True}})
    made.wait_ready("brokercluster/orders", "brokercluster/warehouse")
    made.wait_ready("exchange", "queue", "bindings.brokerd.io", "policy", "federationupstream")
    return made


@pytest.fixture
def orders(shop: Namespace) -> Iterator[Reach]:
    """The endpoints of the example's broker of three members."""
    reach = Reach(shop, "orders")
    yield reach
    reach.close()
