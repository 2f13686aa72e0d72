"""The operator as a process against a real API server, with a fake broker behind a
BrokerConnection. For the API tests of the operator."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from brokerd_operator.specs import registry

from tests.cluster_fixtures import Kubernetes
from tests.operator.fake_broker import PASSWORD, USER
from tests.operator.resources import resource
from tests.operator.warm_operators import Forked, WarmOperators
from tests.ports import free_ports

#: Two busy cores and a full test run beside it.
DEADLINE_S = 60.0


def wait_for(
    what: str,
    check: Callable[[], Any],
    deadline_s: float = DEADLINE_S,
    poll_s: float = 0.05,
) -> Any:
    """Poll until the check gives something true; fails with `what`."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end, f"timed out: {what}"
        pause.wait(poll_s)


@dataclass
class Namespace:
    """One namespace of the API server, with kubectl for it."""

    cluster: Kubernetes
    name: str

    def apply(self, *bodies: dict[str, Any]) -> None:
        named = [_in_namespace(body, self.name) for body in bodies]
        self.cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(named))

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        text = self.cluster.kubectl(
            "-n", self.name, "get", full(kind), name, "-o", "json", "--ignore-not-found"
        )
        return json.loads(text) if text.strip() else None

    def list(self, kind: str) -> list[dict[str, Any]]:
        text = self.cluster.kubectl("-n", self.name, "get", full(kind), "-o", "json")
        found: list[dict[str, Any]] = json.loads(text)["items"]
        return found

    def delete(self, kind: str, name: str) -> None:
        self.cluster.kubectl("-n", self.name, "delete", full(kind), name, "--wait=false")

    def condition(self, kind: str, name: str, type_: str = "Ready") -> dict[str, Any]:
        """A condition that was observed at the present generation; else nothing."""
        body = self.get(kind, name)
        status = (body or {}).get("status") or {}
        if body is None or status.get("observedGeneration") != body["metadata"]["generation"]:
            return {}
        found = [item for item in status.get("conditions", ()) if item["type"] == type_]
        return found[0] if found else {}

    def wait_reason(self, kind: str, name: str, reason: str) -> dict[str, Any]:
        def check() -> dict[str, Any] | None:
            found = self.condition(kind, name)
            return found if found.get("reason") == reason else None

        last: dict[str, Any] = {}

        def noting() -> dict[str, Any] | None:
            last.update(self.condition(kind, name))
            return check()

        try:
            found: dict[str, Any] = wait_for(f"{kind} {name} {reason}", noting)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {last}") from error
        return found

    def wait_gone(self, kind: str, name: str, deadline_s: float = DEADLINE_S) -> None:
        wait_for(f"{kind} {name} gone", lambda: self.get(kind, name) is None, deadline_s)

    def events(self, reason: str) -> list[dict[str, Any]]:
        return [item for item in self.list("events") if item["reason"] == reason]

    def connect(self, address: str) -> None:
        """A BrokerConnection `prod` to a broker."""
        login = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "login"},
            "stringData": {"username": USER, "password": PASSWORD},
        }
        self.apply(login, resource("BrokerConnection", "prod", endpoints=[address]))


def full(kind: str) -> str:
    """The name of a kind with its group: Kubernetes has a Binding of its own."""
    plurals = {name.lower(): plural for name, plural in registry.PLURALS.items()}
    return f"{plurals[kind]}.brokerd.io" if kind in plurals else kind


def _in_namespace(body: dict[str, Any], namespace: str) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "namespace": namespace}}


def of_connection(kind: str, metadata_name: str, /, **spec: Any) -> dict[str, Any]:
    """A resource of the BrokerConnection `prod`."""
    reference = {"name": "prod", "kind": "BrokerConnection"}
    return resource(kind, metadata_name, brokerRef=reference, **spec)


@dataclass
class OperatorProcess:
    """One operator; `restart` may kill it."""

    kubeconfig: Path
    namespaces: str
    log: Path
    identity: str = "operator-a"
    role_binding: str = ""
    port: int = field(default_factory=lambda: free_ports(1)[0])
    process: subprocess.Popen[bytes] | Forked | None = None
    #: More settings, by the names of BROKERD_OPERATOR_ variables.
    settings: dict[str, str] = field(default_factory=dict)
    #: Where it is forked off instead of being started with all its imports.
    warm: WarmOperators | None = None

    def start(self) -> None:
        settings = {
            "NAMESPACE": self.namespaces.split(",")[0],
            "WATCH_NAMESPACES": self.namespaces,
            "HTTP_PORT": str(self.port),
            "HTTP_BIND": "127.0.0.1",
            "IDENTITY": self.identity,
            "LEASE_SECONDS": "10",
            "ROLE_BINDING": self.role_binding,
            **self.settings,
        }
        environment = {name: v for name, v in os.environ.items() if "BROKERD_" not in name}
        environment |= {f"BROKERD_OPERATOR_{name}": value for name, value in settings.items()}
        environment["KUBECONFIG"] = str(self.kubeconfig)
        root = Path(__file__).parents[2]
        environment["PYTHONPATH"] = f"{root}:{root / 'operator'}"
        if self.warm is not None:
            self.process = self.warm.start(environment, self.log)
            return
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "brokerd_operator"],
                env=environment,
                stdout=output,
                stderr=output,
            )

    def wait_leading(self) -> None:
        """Until it holds the Lease and has listed everything."""
        wait_for("operator leads", lambda: "lease acquired" in self.log.read_text())
        wait_for("operator is ready", self.is_ready)

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self.fetch("readyz") == "ok\n"
        return False

    def fetch(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=20) as reply:
            return str(reply.read().decode())

    def metric(self, name: str) -> float:
        """Sum over all labels."""
        lines = self.fetch("metrics").splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@contextlib.contextmanager
def running(process: OperatorProcess) -> Iterator[OperatorProcess]:
    """The process for a with-block; it is always ended."""
    process.start()
    try:
        process.wait_leading()
        yield process
    except AssertionError as error:
        raise AssertionError(f"{error}\n{process.log.read_text()[-4000:]}") from error
    finally:
        if process.process is not None and process.process.poll() is None:
            process.stop(signal.SIGKILL)
