"""What a failed end-to-end test shows: nodes and their machine, resources, events, and the last
lines of all pods."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.cluster_fixtures import Kubernetes
from tests.e2e.namespace import LABEL

LOG_LINES = 40
EVENT_LINES = 40
PODS_MAX = 24
#: Conditions of a node that takes pods.
HEALTHY = {
    "Ready": "True",
    "MemoryPressure": "False",
    "DiskPressure": "False",
    "PIDPressure": "False",
    "NetworkUnavailable": "False",
}
OF_KUBERNETES = "node.kubernetes.io/"
#: Of what a daemon complained about.
DAEMON_LINES = 15
LINE_MAX = 300


def diagnose(kube: Kubernetes) -> str:
    """Everything that helps, of the namespaces that the tests made."""
    parts = [
        _said(kube, "get", "nodes", "-o", "wide"),
        *node_complaints(kube),
        *_machine(kube),
        _said(kube, "get", "broker", "-A"),
    ]
    said = kube.kubectl("get", "namespaces", "-l", LABEL, "-o", "name", check=False)
    names = [line.removeprefix("namespace/") for line in said.split() if "/" in line]
    for name in names:
        parts.append(f"===== namespace {name}")
        parts.append(_said(kube, "-n", name, "get", "pods,jobs,pvc", "-o", "wide"))
        parts.append(_said(kube, "-n", name, "describe", "broker", lines=120))
        parts.append(_events(kube, name))
        parts += [_log(kube, name, pod) for pod in _pods(kube, name)[:PODS_MAX]]
    return "\n".join(parts)


def node_complaints(kube: Kubernetes) -> list[str]:
    """Why pods do not run: nodes that are not Ready, under pressure or closed; [] if none is."""
    found = []
    for node in json.loads(kube.kubectl("get", "nodes", "-o", "json"))["items"]:
        name = node["metadata"]["name"]
        for condition in node["status"].get("conditions", ()):
            wanted = HEALTHY.get(condition["type"])
            if wanted is not None and condition["status"] != wanted:
                found.append(f"{name} {_condition(condition)}")
        keys = (taint["key"] for taint in node["spec"].get("taints", ()))
        # Others, such as a control plane's, are somebody's intention.
        found += [f"{name} has the taint {key}" for key in keys if key.startswith(OF_KUBERNETES)]
    return found


def _condition(condition: dict[str, Any]) -> str:
    told = condition.get("reason"), condition.get("message")
    return f"{condition['type']} is {condition['status']}: {', '.join(filter(None, told))}"


def _machine(kube: Kubernetes) -> list[str]:
    """What is left of this machine, where the nodes run on it, and what their daemons say."""
    if not kube.is_ours:
        return []
    state = kube.kubeconfig.parent
    disk = shutil.disk_usage(state)
    load = Path("/proc/loadavg").read_text().strip()
    memory = Path("/proc/meminfo").read_text().splitlines()[:3]
    parts = [f"machine: {disk.free >> 20} MB free of {disk.total >> 20}; load {load}", *memory]
    for log in sorted((state / "logs").glob("*.log")):
        lines = [line for line in log.read_text(errors="replace").splitlines() if _is_error(line)]
        parts += [f"{log.name}: {line[:LINE_MAX]}" for line in lines[-DAEMON_LINES:]]
    return parts


def _is_error(line: str) -> bool:
    """klog's errors, containerd's, and what ends a process."""
    return line.startswith(("E", "F", "panic")) or "level=error" in line or "level=fatal" in line


def _said(kube: Kubernetes, *args: str, lines: int = 60) -> str:
    said = kube.kubectl(*args, check=False).strip().splitlines()
    return "\n".join([f"$ kubectl {' '.join(args)}", *said[-lines:]])


def _events(kube: Kubernetes, name: str) -> str:
    args = ("-n", name, "get", "events", "--sort-by=.lastTimestamp")
    return _said(kube, *args, lines=EVENT_LINES)


def _pods(kube: Kubernetes, name: str) -> list[str]:
    said = kube.kubectl("-n", name, "get", "pods", "-o", "json", check=False)
    try:
        items = json.loads(said)["items"]
    except ValueError:
        return []
    return [item["metadata"]["name"] for item in items]


def _log(kube: Kubernetes, name: str, pod: str) -> str:
    args = ("-n", name, "logs", pod, "--all-containers", f"--tail={LOG_LINES}")
    before = kube.kubectl(*args, "--previous", check=False)
    text = _said(kube, *args, lines=LOG_LINES)
    if "previous terminated" not in before:
        text = f"{pod}, before its restart:\n{before}\n{text}"
    return text
