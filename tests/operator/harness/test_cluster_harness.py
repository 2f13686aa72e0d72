"""The API level of tools/cluster does what tests rely on, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster_fixtures import (
    BIN,
    CLUSTER,
    Kubernetes,
    api_down,
    api_up,
    require_binaries,
    run_script,
)

# The first test pays for the start of the API level, and one starts two of its own.
pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.harness.brokerd.io}
spec:
  group: harness.brokerd.io
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties: {size: {type: integer}}
            x-kubernetes-validations: [{rule: self.size < 10, message: size must be below ten}]
"""


def widget(size: int) -> str:
    return json.dumps(
        {
            "apiVersion": "harness.brokerd.io/v1",
            "kind": "Widget",
            "metadata": {"name": f"w{size}", "namespace": "default"},
            "spec": {"size": size},
        }
    )


def recorded_pids(state: Path) -> dict[str, int]:
    return {file.name: int(file.read_text()) for file in (state / "pids").iterdir()}


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def test_kubectl_and_server_are_the_pinned_version(kube_api: Kubernetes) -> None:
    pinned = next(
        line.split()[1]
        for line in (CLUSTER / "binaries" / "go.mod").read_text().splitlines()
        if line.strip().startswith("k8s.io/kubernetes v")
    )
    versions = json.loads(kube_api.kubectl("version", "-o", "json"))
    assert versions["serverVersion"]["gitVersion"] == pinned
    assert versions["clientVersion"]["gitVersion"] == pinned


def test_cel_rule_of_a_custom_resource_is_enforced(kube_api: Kubernetes) -> None:
    kube_api.kubectl("apply", "-f", "-", input=WIDGETS)
    kube_api.kubectl(
        "wait", "--for=condition=Established", "crd/widgets.harness.brokerd.io", "--timeout=100s"
    )
    kube_api.kubectl("apply", "-f", "-", input=widget(9))
    refused = kube_api.kubectl("apply", "-f", "-", input=widget(10), check=False)
    assert "size must be below ten" in refused
    assert kube_api.kubectl("get", "widgets", "-o", "name").split() == [
        "widget.harness.brokerd.io/w9"
    ]


def test_dependents_of_a_deleted_owner_are_collected(kube_api: Kubernetes) -> None:
    kube_api.kubectl("create", "configmap", "owner")
    uid = kube_api.kubectl("get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    metadata = {"name": "owned", "ownerReferences": [owner]}
    owned = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    kube_api.kubectl("apply", "-f", "-", input=json.dumps(owned))
    kube_api.kubectl("delete", "configmap", "owner")
    kube_api.kubectl("wait", "--for=delete", "configmap/owned", "--timeout=100s")


def test_two_clusters_at_once_are_apart_and_leave_nothing(tmp_path: Path) -> None:
    require_binaries()
    first, second = tmp_path / "first", tmp_path / "second"
    try:
        one, other = api_up(first, "--bare"), api_up(second, "--bare")
        one.kubectl("create", "namespace", "only-here")
        assert "NotFound" in other.kubectl("get", "namespace", "only-here", check=False)
        pids = [*recorded_pids(first).values(), *recorded_pids(second).values()]
        assert len(pids) == 4
        assert all(is_running(pid) for pid in pids)
    finally:
        api_down(first)
        api_down(second)
    assert [pid for pid in pids if is_running(pid)] == []
    assert list(tmp_path.iterdir()) == []


def test_up_where_a_cluster_is_up_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "pki").mkdir(parents=True)
    with pytest.raises(pytest.fail.Exception, match=r"a cluster is up there; api\.sh down ends it"):
        api_up(state)
    assert (state / "pki").is_dir()


def test_interrupted_up_ends_what_it_started(tmp_path: Path) -> None:
    """The API server here never comes, so that the script is still waiting when it is ended."""
    require_binaries()
    cache = tmp_path / "cache"
    (cache / "bin").mkdir(parents=True)
    for name in ("etcd", "kubectl"):
        (cache / "bin" / name).symlink_to(BIN / name)
    broken = cache / "bin" / "kube-apiserver"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    state = tmp_path / "state"
    script = subprocess.Popen(
        [str(CLUSTER / "api.sh"), "up"],
        env=os.environ | {"CLUSTER_CACHE": str(cache), "CLUSTER_STATE": str(state)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 120
        while not (state / "pids" / "kube-apiserver").exists():
            assert time.monotonic() < deadline, "etcd was never started"
        etcd = int((state / "pids" / "etcd").read_text())
        script.terminate()
        script.communicate(timeout=120)
        assert script.returncode != 0
        assert not is_running(etcd)
        assert not state.exists()
    finally:
        script.kill()
        script.communicate()
        api_down(state)


def test_down_deletes_nothing_that_is_not_a_clusters_folder(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    run_script("api.sh", "down", state=precious)
    assert (precious / "thesis.txt").exists()


def test_missing_binaries_are_named_with_the_command_that_builds_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(CLUSTER / "api.sh"), "up"],
        env=os.environ | {"CLUSTER_CACHE": str(tmp_path), "CLUSTER_STATE": str(tmp_path / "s")},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 1
    assert "etcd is not built yet: run tools/cluster/build.sh" in done.stderr


def test_packed_image_is_the_same_bytes_for_the_same_folder(tmp_path: Path) -> None:
    rootfs = tmp_path / "rootfs"
    (rootfs / "bin").mkdir(parents=True)
    shutil.copy(CLUSTER / "mkimage.py", rootfs / "bin" / "thing")
    archives = []
    for name in ("a.tar", "b.tar"):
        out = tmp_path / name
        command = [str(CLUSTER / "mkimage.py"), "--rootfs", str(rootfs), "--name", "localhost/t:1"]
        subprocess.run(["python3", *command, "--out", str(out)], check=True)
        archives.append(out.read_bytes())
        os.utime(rootfs / "bin" / "thing", (0, 0))
    assert archives[0] == archives[1]
