"""What a failed end-to-end test shows: resources, events, and the last lines of all pods."""

from __future__ import annotations

import json

from tests.cluster_fixtures import Kubernetes
from tests.e2e.namespace import LABEL

LOG_LINES = 40
EVENT_LINES = 40
PODS_MAX = 24


def diagnose(kube: Kubernetes) -> str:
    """Everything that helps, of the namespaces that the tests made."""
    parts = [_said(kube, "get", "nodes", "-o", "wide"), _said(kube, "get", "broker", "-A")]
    said = kube.kubectl("get", "namespaces", "-l", LABEL, "-o", "name", check=False)
    names = [line.removeprefix("namespace/") for line in said.split() if "/" in line]
    for name in names:
        parts.append(f"===== namespace {name}")
        parts.append(_said(kube, "-n", name, "get", "pods,jobs,pvc", "-o", "wide"))
        parts.append(_said(kube, "-n", name, "describe", "broker", lines=120))
        parts.append(_events(kube, name))
        parts += [_log(kube, name, pod) for pod in _pods(kube, name)[:PODS_MAX]]
    return "\n".join(parts)


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
