"""The images run as the restricted pod profile wants: non-root, read-only root (SEC-29)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cluster_fixtures import CACHE, Kubernetes
from tests.e2e.namespace import LABEL

# The first test pays for loading more than a GiB of images into two nodes.
pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1200)]

NAMESPACE = "images"
#: Runs a Spark job in the telemetry image's own Java, and names who ran it.
SPARK = """
import getpass
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("counted", spark.range(1000).count(), "as", getpass.getuser())
spark.stop()
"""
#: Megabytes of an archive, as `stat` counts them: what was reached, and a little for what Debian
#: and the packages add from one version to the next.
SIZES_MB = {"broker": 208, "operator": 241, "telemetry": 631}
WRITE_PROBE = "touch /opt/probe 2>&1; touch /tmp/probe && id -u && id -g"


def run_pod(cluster: Kubernetes, name: str, image: str, command: list[str]) -> str:
    """What a pod printed that ran one command to its end, under the restricted profile."""
    container = {
        "name": "c",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster.kubectl("-n", NAMESPACE, "apply", "-f", "-", input=json.dumps(pod))
    ended = "--for=jsonpath={.status.containerStatuses[0].state.terminated}"
    cluster.kubectl("-n", NAMESPACE, "wait", ended, f"pod/{name}", "--timeout=90s")
    exit_code = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"
    status = cluster.kubectl("-n", NAMESPACE, "get", "pod", name, "-o", exit_code)
    said = cluster.kubectl("-n", NAMESPACE, "logs", name)
    assert status == "0", said
    return said


@pytest.fixture(scope="module", autouse=True)
def namespace(kube_nodes: Kubernetes, images: dict[str, str]) -> Iterator[None]:
    """A namespace that itself refuses whatever the restricted profile does not allow."""
    kube_nodes.kubectl("create", "namespace", NAMESPACE)
    labels = ("pod-security.kubernetes.io/enforce=restricted", f"{LABEL}=true")
    kube_nodes.kubectl("label", "namespace", NAMESPACE, *labels)
    yield
    kube_nodes.kubectl("delete", "namespace", NAMESPACE, "--timeout=100s")


@pytest.mark.parametrize("name", ["broker", "operator", "telemetry"])
def test_image_is_non_root_and_writes_only_to_tmp(
    kube_nodes: Kubernetes, images: dict[str, str], name: str
) -> None:
    said = run_pod(kube_nodes, f"probe-{name}", images[name], ["sh", "-c", WRITE_PROBE])
    assert "Read-only file system" in said
    assert said.split()[-2:] == ["10001", "10001"]


@pytest.mark.parametrize(
    ("name", "module"),
    [("broker", "brokerd"), ("operator", "brokerd_operator"), ("telemetry", "brokerd_telemetry")],
)
def test_image_holds_its_package(
    kube_nodes: Kubernetes, images: dict[str, str], name: str, module: str
) -> None:
    command = ["python", "-c", f"import {module}; print({module}.__file__)"]
    said = run_pod(kube_nodes, f"import-{name}", images[name], command)
    assert said.strip() == f"/usr/local/lib/python3.11/site-packages/{module}/__init__.py"


@pytest.mark.parametrize("name", ["broker", "operator", "telemetry"])
def test_image_is_no_larger_than_it_was(
    kube_nodes: Kubernetes, images: dict[str, str], name: str
) -> None:
    archive = CACHE / "images" / f"{name}.tar"
    if not archive.exists():
        pytest.skip("the images of this cluster were not built here")
    assert archive.stat().st_size <= SIZES_MB[name] * 1_000_000


def test_broker_image_knows_its_command_line(
    kube_nodes: Kubernetes, images: dict[str, str]
) -> None:
    said = run_pod(kube_nodes, "help", images["broker"], ["python", "-m", "brokerd", "--help"])
    assert "serve" in said


def test_telemetry_image_runs_spark(kube_nodes: Kubernetes, images: dict[str, str]) -> None:
    command = ["/opt/brokerd/entrypoint.sh", "python", "-c", SPARK]
    said = run_pod(kube_nodes, "spark", images["telemetry"], command)
    assert "counted 1000 as brokerd" in said
