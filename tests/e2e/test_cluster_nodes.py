"""The node level of tools/cluster runs real pods, as the end-to-end tests need them."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest

from tests.cluster_fixtures import CLUSTER, Kubernetes
from tests.e2e.namespace import LABEL

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(900)]

IMAGE = "localhost/brokerd-busybox:1"
APPLETS = ("sh", "wget", "httpd", "cat", "id", "tail")
NAMESPACE = "harness"

# Three non-root pods with a volume each, which they may write by fsGroup alone, and their Services.
WORKLOAD = """
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: db}}
---
apiVersion: v1
kind: Service
metadata: {name: db-client}
spec: {selector: {app: db}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 3
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext:
        runAsUser: 10001
        runAsGroup: 10001
        runAsNonRoot: true
        fsGroup: 10001
        seccompProfile: {type: RuntimeDefault}
      containers:
      - name: c
        image: localhost/brokerd-busybox:1
        imagePullPolicy: IfNotPresent
        command:
        - sh
        - -c
        - id > /data/id && echo $HOSTNAME > /data/index.html && exec httpd -f -p 8080 -h /data
        readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}
        resources: {limits: {memory: 64Mi}}
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL]}
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""


@pytest.fixture(scope="module")
def workload(kube_nodes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("busybox")
    (folder / "rootfs" / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", folder / "rootfs" / "bin")
    for applet in APPLETS:
        (folder / "rootfs" / "bin" / applet).symlink_to("busybox")
    archive = folder / "busybox.tar"
    command = [CLUSTER / "mkimage.py", "--rootfs", folder / "rootfs", "--out", archive]
    subprocess.run(["python3", *map(str, command), "--name", IMAGE], check=True)
    kube_nodes.load(archive)
    kube_nodes.kubectl("create", "namespace", NAMESPACE)
    kube_nodes.kubectl("label", "namespace", NAMESPACE, f"{LABEL}=true")
    kube_nodes.kubectl("-n", NAMESPACE, "apply", "-f", "-", input=WORKLOAD)
    kube_nodes.kubectl("-n", NAMESPACE, "rollout", "status", "statefulset/db", "--timeout=100s")
    yield
    kube_nodes.kubectl("delete", "namespace", NAMESPACE, "--timeout=100s")
    volumes = json.loads(kube_nodes.kubectl("get", "pv", "-o", "json"))["items"]
    ours = (v for v in volumes if v["spec"].get("claimRef", {}).get("namespace") == NAMESPACE)
    for name in (volume["metadata"]["name"] for volume in ours):
        kube_nodes.kubectl("wait", "--for=delete", f"pv/{name}", "--timeout=100s")


def in_pod(cluster: Kubernetes, pod: str, *command: str) -> str:
    return cluster.kubectl("-n", NAMESPACE, "exec", pod, "--", *command)


@pytest.mark.usefixtures("workload")
def test_pods_find_each_other_by_their_own_dns_names(kube_nodes: Kubernetes) -> None:
    for caller in ("db-0", "db-1", "db-2"):
        for called in ("db-0", "db-1", "db-2"):
            assert in_pod(kube_nodes, caller, "wget", "-qO-", f"http://{called}.db:8080/") == (
                f"{called}\n"
            )


@pytest.mark.usefixtures("workload")
def test_pods_run_on_more_than_one_node(kube_nodes: Kubernetes) -> None:
    pods = json.loads(kube_nodes.kubectl("-n", NAMESPACE, "get", "pods", "-o", "json"))["items"]
    assert len({pod["spec"]["nodeName"] for pod in pods}) > 1


@pytest.mark.usefixtures("workload")
def test_volume_honours_fs_group_and_outlives_its_pod(kube_nodes: Kubernetes) -> None:
    assert "uid=10001 gid=10001 groups=10001" in in_pod(kube_nodes, "db-1", "cat", "/data/id")
    in_pod(kube_nodes, "db-1", "sh", "-c", "echo kept > /data/kept")
    before = kube_nodes.kubectl(
        "-n", NAMESPACE, "get", "pod", "db-1", "-o", "jsonpath={.metadata.uid}"
    )
    kube_nodes.kubectl("-n", NAMESPACE, "delete", "pod", "db-1", "--grace-period=0", "--force")
    # A pod of this name does not exist for a moment, and `kubectl wait` calls that an error.
    kube_nodes.kubectl("-n", NAMESPACE, "wait", "--for=create", "pod/db-1", "--timeout=100s")
    kube_nodes.kubectl(
        "-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/db-1", "--timeout=100s"
    )
    after = kube_nodes.kubectl(
        "-n", NAMESPACE, "get", "pod", "db-1", "-o", "jsonpath={.metadata.uid}"
    )
    assert after != before
    assert in_pod(kube_nodes, "db-1", "cat", "/data/kept") == "kept\n"


@pytest.mark.usefixtures("workload")
def test_cluster_ip_is_reachable_from_this_machine(kube_nodes: Kubernetes) -> None:
    if not kube_nodes.is_ours:
        pytest.skip("only the nodes of tools/cluster are reachable from outside without a tunnel")
    address = kube_nodes.kubectl(
        "-n", NAMESPACE, "get", "service", "db-client", "-o", "jsonpath={.spec.clusterIP}"
    )
    with urllib.request.urlopen(f"http://{address}/", timeout=60) as response:
        assert response.read().startswith(b"db-")


@pytest.mark.usefixtures("workload")
def test_memory_limit_of_a_pod_is_enforced(kube_nodes: Kubernetes) -> None:
    container = {
        "name": "oom",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["tail", "/dev/zero"],
        "resources": {"limits": {"memory": "32Mi"}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "oom"},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    kube_nodes.kubectl("-n", NAMESPACE, "apply", "-f", "-", input=json.dumps(pod))
    failed = "--for=jsonpath={.status.phase}=Failed"
    kube_nodes.kubectl("-n", NAMESPACE, "wait", failed, "pod/oom", "--timeout=100s")
    reason = "jsonpath={.status.containerStatuses[0].state.terminated.reason}"
    assert kube_nodes.kubectl("-n", NAMESPACE, "get", "pod", "oom", "-o", reason) == "OOMKilled"
