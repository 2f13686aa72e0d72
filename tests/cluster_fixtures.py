"""Kubernetes for tests, from tools/cluster: the API level and the node level.

`kube_api` and `kube_nodes` are session fixtures: tests/operator/conftest.py takes the first,
tests/e2e/conftest.py the second, and nobody else does, so that no level starts twice. Every test
makes a namespace of its own. Not for anything that a pure room's test could show.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CLUSTER = Path(__file__).resolve().parents[1] / "tools" / "cluster"
CACHE = Path(
    os.environ.get("CLUSTER_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brokerd-cluster"
)
BIN = CACHE / "bin"
#: What tools/cluster/images.sh builds, by the name it takes.
IMAGES = {
    "broker": "localhost/brokerd:dev",
    "operator": "localhost/brokerd-operator:dev",
    "telemetry": "localhost/brokerd-telemetry:dev",
}
#: The first build fetches Java and Spark; later ones take seconds.
BUILD_TIMEOUT_S = 900
#: The slowest start seen is 25 s, on two cores with a build beside it; more than all that the
#: scripts wait for.
START_TIMEOUT_S = 900
KUBECTL_TIMEOUT_S = 120


@dataclass(slots=True)
class Kubernetes:
    """A cluster that answers: where its kubeconfig lies, and kubectl and helm for it."""

    kubeconfig: Path
    #: False for a cluster named by KUBECONFIG: it was there before and stays.
    is_ours: bool = True

    def kubectl(
        self,
        *args: str,
        input: str | None = None,
        check: bool = True,
        timeout_s: float = KUBECTL_TIMEOUT_S,
    ) -> str:
        """Standard output; with check=False standard output and error, whatever the exit status."""
        return self._tool("kubectl", args, input=input, check=check, timeout_s=timeout_s)

    def helm(self, *args: str, check: bool = True, timeout_s: float = KUBECTL_TIMEOUT_S) -> str:
        return self._tool("helm", args, input=None, check=check, timeout_s=timeout_s)

    def load(self, *archives: Path) -> None:
        """Import image archives into every node.

        A cluster that is not ours gets them by CLUSTER_LOAD, a command that takes an archive
        (`kind load image-archive`); without it the images must be there already.
        """
        if self.is_ours:
            run_script("node.sh", "load", *map(str, archives))
        elif command := os.environ.get("CLUSTER_LOAD"):
            for archive in archives:
                subprocess.run([*shlex.split(command), str(archive)], check=True)

    def _tool(
        self, name: str, args: tuple[str, ...], *, input: str | None, check: bool, timeout_s: float
    ) -> str:
        command = [str(BIN / name), "--kubeconfig", str(self.kubeconfig), *args]
        done = subprocess.run(
            command, input=input, text=True, capture_output=True, timeout=timeout_s
        )
        if check and done.returncode:
            pytest.fail(f"{name} {' '.join(args)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout if check else done.stdout + done.stderr


def run_script(
    name: str, *args: str, state: Path | None = None, timeout_s: float = START_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """One script of tools/cluster; fails the test with what the script said."""
    env = os.environ | ({"CLUSTER_STATE": str(state)} if state else {})
    done = subprocess.run(
        [str(CLUSTER / name), *args],
        env=env,
        text=True,
        capture_output=True,
        timeout=timeout_s,
    )
    if done.returncode:
        pytest.fail(f"{name} {' '.join(args)}: {done.stderr.strip()}")
    return done


def api_up(state: Path, *flags: str) -> Kubernetes:
    """An API level of one's own, for a test that breaks it; the caller calls api_down(state)."""
    printed = run_script("api.sh", "up", *flags, state=state).stdout
    return Kubernetes(Path(printed.splitlines()[-1]))


def api_down(state: Path) -> None:
    run_script("api.sh", "down", state=state)


def require_binaries(level: str = "api") -> None:
    """Missing binaries are a failure, not a skip: `make test` builds them before pytest."""
    check = [str(CLUSTER / "build.sh"), "check", level]
    if subprocess.run(check, capture_output=True).returncode:
        pytest.fail("the Kubernetes binaries are not built: run tools/cluster/build.sh, once")


def why_no_nodes() -> str | None:
    """Why this machine cannot run the node level, in words for the skip; None if it can."""
    if os.geteuid():
        return "the node level needs root (or KUBECONFIG of a running cluster)"
    packages = subprocess.run(
        [str(CLUSTER / "setup.sh"), "check", "node"], text=True, capture_output=True
    )
    if packages.returncode:
        return packages.stderr.strip()
    probe = "mount -t tmpfs none /mnt && ip link add brokerdk-probe type bridge"
    allowed = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", probe], text=True, capture_output=True
    )
    if allowed.returncode:
        return f"this root may not make mounts and network devices: {allowed.stderr.strip()}"
    return None


@pytest.fixture(scope="session")
def kube_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    """etcd, API server and controllers on loopback; pods are never run."""
    require_binaries()
    state = tmp_path_factory.mktemp("kube-api") / "state"
    cluster = api_up(state)
    yield cluster
    api_down(state)


@pytest.fixture(scope="session")
def kube_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    """Two nodes that run containers; the cluster of KUBECONFIG instead where that is set."""
    if given := os.environ.get("KUBECONFIG"):
        require_binaries("api")  # for kubectl and helm
        yield Kubernetes(Path(given), is_ours=False)
        return
    if reason := why_no_nodes():
        pytest.skip(reason)
    require_binaries("all")
    state = tmp_path_factory.mktemp("kube-nodes") / "state"
    printed = run_script("node.sh", "up", "2", state=state).stdout
    yield Kubernetes(Path(printed.splitlines()[-1]))
    run_script("node.sh", "down")


@pytest.fixture(scope="session")
def images(kube_nodes: Kubernetes) -> dict[str, str]:
    """The project's images, built from this checkout and loaded into every node, by name.

    `make e2e` builds them before it starts pytest, so that here only a change costs time.
    """
    if kube_nodes.is_ours or os.environ.get("CLUSTER_LOAD"):
        built = run_script("images.sh", "build", *IMAGES, timeout_s=BUILD_TIMEOUT_S)
        kube_nodes.load(*map(Path, built.stdout.split()))
    return IMAGES
