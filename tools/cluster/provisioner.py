#!/usr/bin/env python3
"""Makes `local` PersistentVolumes for claims of two StorageClasses: one folder per claim.

"standard" is the default and cannot expand; "expandable" can, and then a volume is as large as its
claim asks for: a folder has no size.

Part of node.sh. The in-tree host-path provisioner ignores fsGroup, which is what lets a broker that
is not root write its data; these volumes honour it, and are pinned to the node that the scheduler
chose, as a cloud disk is pinned to its zone.

Usage: provisioner.py KUBECTL KUBECONFIG FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROVISIONER = "brokerd.io/test-folder"
Resource = dict[str, Any]


def storage_class(name: str, **fields: Any) -> Resource:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": name,
            "annotations": {
                "storageclass.kubernetes.io/is-default-class": json.dumps(name == "standard")
            },
        },
        "provisioner": PROVISIONER,
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete",
        **fields,
    }


EXPANDABLE = "expandable"
CLASSES = {
    "standard": storage_class("standard"),
    EXPANDABLE: storage_class(EXPANDABLE, allowVolumeExpansion=True),
}


class Kubectl:
    """The one way to the API: the cluster's own kubectl."""

    def __init__(self, binary: str, kubeconfig: str) -> None:
        self._command = [binary, "--kubeconfig", kubeconfig]

    def run(self, *args: str, resource: Resource | None = None) -> bool:
        body = None if resource is None else json.dumps(resource)
        done = subprocess.run([*self._command, *args], input=body, text=True, capture_output=True)
        if done.returncode:
            print(*args, done.stderr.strip(), file=sys.stderr, flush=True)
        return done.returncode == 0

    def stream(self, kind: str) -> Iterator[Resource]:
        """Every resource of a kind, then every change of one; a new watch when one ends."""
        decoder = json.JSONDecoder()
        while True:
            watch = subprocess.Popen(
                [*self._command, "get", kind, "-A", "--watch", "-o", "json"], stdout=subprocess.PIPE
            )
            assert watch.stdout is not None
            buffer = ""
            while chunk := os.read(watch.stdout.fileno(), 65536):
                buffer += chunk.decode(errors="replace")
                while buffer := buffer.lstrip():
                    try:
                        resource, end = decoder.raw_decode(buffer)
                    except ValueError:
                        break  # half a document: the rest is on its way
                    buffer = buffer[end:]
                    yield from resource.get("items", [resource])
            watch.wait()
            time.sleep(0.5)


def volume_for(claim: Resource, path: Path, node: str) -> Resource:
    metadata, spec = claim["metadata"], claim["spec"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": path.name,
            "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
        },
        "spec": {
            "capacity": spec["resources"]["requests"],
            "accessModes": spec["accessModes"],
            "storageClassName": spec["storageClassName"],
            "persistentVolumeReclaimPolicy": "Delete",
            "volumeMode": "Filesystem",
            "local": {"path": str(path)},
            "claimRef": {
                "kind": "PersistentVolumeClaim",
                "apiVersion": "v1",
                **{key: metadata[key] for key in ("namespace", "name", "uid")},
            },
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {
                                    "key": "kubernetes.io/hostname",
                                    "operator": "In",
                                    "values": [node],
                                }
                            ]
                        }
                    ]
                }
            },
        },
    }


def expand(kubectl: Kubectl, claim: Resource) -> None:
    """What a resizer does: the volume first, then the claim's status."""
    metadata, wanted = claim["metadata"], claim["spec"]["resources"]["requests"]
    if claim["spec"].get("storageClassName") != EXPANDABLE or "storage" not in wanted:
        return
    if claim.get("status", {}).get("capacity", {}).get("storage") in (None, wanted["storage"]):
        return
    volume = ("patch", "pv", claim["spec"]["volumeName"], "-p")
    if kubectl.run(*volume, json.dumps({"spec": {"capacity": wanted}})):
        claimed = ("patch", "pvc", metadata["name"], "-n", metadata["namespace"])
        status = {"status": {"capacity": wanted, "conditions": []}}
        kubectl.run(*claimed, "--subresource=status", "--type=merge", "-p", json.dumps(status))


def provision(kubectl: Kubectl, folder: Path) -> None:
    for claim in kubectl.stream("persistentvolumeclaims"):
        metadata, spec = claim["metadata"], claim["spec"]
        if spec.get("volumeName"):
            expand(kubectl, claim)
        node = metadata.get("annotations", {}).get("volume.kubernetes.io/selected-node")
        pending = claim.get("status", {}).get("phase") == "Pending"
        ours = spec.get("storageClassName") in CLASSES and not spec.get("volumeName")
        if not (pending and ours and node):
            continue
        path = folder / f"pvc-{metadata['uid']}"
        if path.exists():
            continue  # the claim has changed once more while its volume is being bound
        path.mkdir(parents=True)
        path.chmod(0o777)
        if not kubectl.run("create", "-f", "-", resource=volume_for(claim, path, node)):
            shutil.rmtree(path)


def reclaim(kubectl: Kubectl, folder: Path) -> None:
    for volume in kubectl.stream("persistentvolumes"):
        path = Path(volume["spec"].get("local", {}).get("path", "/"))
        released = volume.get("status", {}).get("phase") in ("Released", "Failed")
        if released and path.parent == folder:
            shutil.rmtree(path, ignore_errors=True)
            kubectl.run(
                "delete", "pv", volume["metadata"]["name"], "--wait=false", "--ignore-not-found"
            )


def main() -> None:
    binary, kubeconfig, folder = sys.argv[1:]
    kubectl = Kubectl(binary, kubeconfig)
    for item in CLASSES.values():
        while not kubectl.run("apply", "-f", "-", resource=item):
            time.sleep(0.5)
    threading.Thread(target=reclaim, args=(kubectl, Path(folder)), daemon=True).start()
    provision(kubectl, Path(folder))


if __name__ == "__main__":
    main()
