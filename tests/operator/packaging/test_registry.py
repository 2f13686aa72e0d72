"""The charts as OCI artifacts: pushed to a real registry, installed from it into a real API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_fixtures import Kubernetes
from tests.operator.charts import CLUSTER, OPERATOR, helm
from tests.registry import registry

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

VERSION = "0.1.0"
NAMESPACE = "oci-charts"


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Address of each chart, with the digest that the registry gave it."""
    folder = tmp_path_factory.mktemp("registry")
    with registry(folder) as host:
        found = {}
        for chart in (OPERATOR, CLUSTER):
            packed = run("package", str(chart), "--destination", str(folder))
            archive = packed.strip().rpartition(" ")[2]
            assert Path(archive).name == f"{chart.name}-{VERSION}.tgz"
            said = run("push", archive, f"oci://{host}/charts", "--plain-http")
            digest = re.search(r"Digest: (sha256:[0-9a-f]{64})", said)
            assert digest is not None, said
            found[chart.name] = f"oci://{host}/charts/{chart.name}@{digest[1]}"
        yield found


def run(*args: str) -> str:
    done = helm(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("chart", [OPERATOR, CLUSTER], ids=lambda chart: chart.name)
def test_what_comes_out_of_the_registry_is_what_went_in(
    pushed: dict[str, str], chart: Path
) -> None:
    by_version = pushed[chart.name].partition("@")[0]
    ours = helm("template", "r", str(chart), "--namespace=n").stdout
    for args in ([pushed[chart.name]], [by_version, "--version", VERSION]):
        done = helm("template", "r", *args, "--plain-http", "--namespace=n")
        assert done.returncode == 0, done.stderr
        assert done.stdout == ours
    done = helm("template", "r", by_version, "--version", "9.9.9", "--plain-http")
    assert done.returncode != 0
    assert "not found" in done.stderr


def test_the_operator_is_installed_from_the_registry(
    pushed: dict[str, str], kube_api: Kubernetes
) -> None:
    address = pushed[OPERATOR.name]
    settings = ["--set=crds.create=false", "--set=rbac.aggregate=false"]
    where = [f"--namespace={NAMESPACE}", "--plain-http", *settings]
    kube_api.helm("install", "oci", address, "--create-namespace", *where)
    kube_api.helm("upgrade", "oci", address, "--set=replicas=2", *where)
    shown = kube_api.kubectl(
        *("get", "deployment", f"--namespace={NAMESPACE}", "--output=jsonpath={..spec.replicas}")
    )
    assert shown.strip() == "2"
    kube_api.helm("uninstall", "oci", f"--namespace={NAMESPACE}")
    kube_api.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
