"""Another operator in the place of the one that all tests share, which rests meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster_fixtures import IMAGES, Kubernetes
from tests.e2e.conftest import CHART, RELEASE, TAG
from tests.e2e.namespace import LABEL, READY_TIMEOUT_S, Namespace, until

OPS = "e2e-ops"
#: Three members end one after the other, a minute each at most.
GONE_S = 200.0


def make(kube: Kubernetes, name: str) -> Namespace:
    """A namespace that refuses whatever the restricted pod profile does not allow."""
    labels = {LABEL: "true", "pod-security.kubernetes.io/enforce": "restricted"}
    manifest = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }
    kube.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    return Namespace(kube, name)


def helm(verb: str, kube: Kubernetes, watched: Sequence[str], chart: Path, tag: str) -> None:
    """Install or upgrade the release in OPS that watches these namespaces."""
    tags = [part for name in IMAGES for part in ("--set", f"images.{name}.tag={tag}")]
    kube.helm(
        *(verb, RELEASE, str(chart), "--namespace", OPS, "--wait", *tags),
        *("--set", f"watchNamespaces={{{','.join(watched)}}}", "--set", "crds.create=false"),
        timeout_s=READY_TIMEOUT_S,
    )


@contextmanager
def in_place_of(
    installed: Namespace, watched: Sequence[str], chart: Path = CHART, tag: str = TAG
) -> Iterator[Namespace]:
    """An operator of these namespaces alone; everything of it goes in the end."""
    kube = installed.kube
    installed.kubectl("scale", "deployment", RELEASE, "--replicas=0")
    until(lambda: not installed.items("pods"), "the other operator is gone")
    try:
        for name in (OPS, *watched):
            make(kube, name)
        helm("install", kube, watched, chart, tag)
        yield Namespace(kube, OPS)
        # All of it has been seen to work; after a failure the operator of all namespaces has them.
        for name in watched:
            kube.kubectl("delete", "namespace", name, "--ignore-not-found", timeout_s=GONE_S)
    finally:
        kube.helm("uninstall", RELEASE, "--namespace", OPS, "--wait", check=False)
        kube.kubectl("delete", "clusterrole", f"{OPS}-{RELEASE}-watched", "--ignore-not-found")
        installed.kubectl("scale", "deployment", RELEASE, "--replicas=1")
        for name in (OPS, *watched):
            kube.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")
        installed.kubectl("rollout", "status", f"deployment/{RELEASE}", "--timeout=100s")
