"""A namespace of a test, and waiting for what becomes true in it.

For the end-to-end tests. Waiting polls with a deadline and then says what was there instead.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.cluster_fixtures import Kubernetes

Resource = dict[str, Any]
T = TypeVar("T")

#: Every namespace that a test makes bears it; diagnostics and the clean-up go by it.
LABEL = "brokerd.io/e2e"
#: Two cores, two nodes and a Spark job beside it: generous.
READY_TIMEOUT_S = 300.0
POLL_S = 0.2


def until(check: Callable[[], T], what: str, timeout_s: float = 120.0) -> T:
    """Return the first true answer of `check`; fail the test with the last one."""
    pause = threading.Event()
    deadline = time.monotonic() + timeout_s
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:.0f} s: {what}; last seen: {answer!r}")
        pause.wait(POLL_S)


@dataclass(slots=True)
class Namespace:
    """Resources of one namespace, by kubectl."""

    kube: Kubernetes
    name: str

    def kubectl(self, *args: str, **options: Any) -> str:
        return self.kube.kubectl("-n", self.name, *args, **options)

    def apply(self, source: Resource | Path) -> str:
        if isinstance(source, Path):
            return self.kubectl("apply", "-f", str(source))
        return self.kubectl("apply", "-f", "-", input=json.dumps(source))

    def refusal(self, resource: Resource) -> str:
        """What the API server says to a resource that it does not take."""
        said = self.kubectl("apply", "-f", "-", input=json.dumps(resource), check=False)
        assert "is invalid" in said, said
        return said

    def find(self, kind: str, name: str) -> Resource | None:
        said = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(said) if said.strip() else None

    def get(self, kind: str, name: str) -> Resource:
        found = self.find(kind, name)
        assert found is not None, f"there is no {kind} {name} in {self.name}"
        return found

    def items(self, kind: str, selector: str = "") -> list[Resource]:
        args = ("-l", selector) if selector else ()
        found: list[Resource] = json.loads(self.kubectl("get", kind, *args, "-o", "json"))["items"]
        return found

    def patch(self, kind: str, name: str, spec: Resource) -> None:
        body = json.dumps({"spec": spec})
        self.kubectl("patch", kind, name, "--type=merge", "-p", body)

    def delete(self, kind: str, name: str, timeout_s: float = 120.0) -> None:
        """Delete and wait until it is gone."""
        self.kubectl("delete", kind, name, f"--timeout={timeout_s:.0f}s", timeout_s=timeout_s + 10)

    def wait_ready(self, *references: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait for Ready as a person would; `references` are kind/name, or kinds with --all."""
        for reference in references:
            target = (reference,) if "/" in reference else (reference, "--all")
            self.kubectl(
                "wait",
                "--for=condition=Ready",
                *target,
                f"--timeout={timeout_s:.0f}s",
                timeout_s=timeout_s + 10,
            )

    def condition(self, kind: str, name: str, type_: str = "Ready") -> Resource:
        """A condition as of the resource's current generation; {} while there is none."""
        body = self.get(kind, name)
        for condition in body.get("status", {}).get("conditions", []):
            is_current = condition.get("observedGeneration") == body["metadata"]["generation"]
            if condition["type"] == type_ and is_current:
                found: Resource = condition
                return found
        return {}

    def wait_condition(
        self, kind: str, name: str, reason: str, type_: str = "Ready", timeout_s: float = 120.0
    ) -> Resource:
        """Wait until the condition stands there for this reason."""
        seen: list[Resource] = [{}]

        def check() -> Resource | None:
            seen[0] = self.condition(kind, name, type_)
            return seen[0] if seen[0].get("reason") == reason else None

        deadline_text = f"{type_} of {kind}/{name} with reason {reason}"
        return until(check, deadline_text, timeout_s) or {}

    def wait_applied(self, kind: str, name: str) -> None:
        """Wait until the broker has the current generation."""

        def check() -> bool:
            body = self.get(kind, name)
            is_seen = (
                body.get("status", {}).get("observedGeneration") == (body["metadata"]["generation"])
            )
            return is_seen and self.condition(kind, name).get("status") == "True"

        until(check, f"{kind}/{name} applied in its current generation")

    def events(self, reason: str, name: str) -> list[Resource]:
        """Events of a reason about an object of this name."""
        selector = f"reason={reason},involvedObject.name={name}"
        said = self.kubectl("get", "events", "--field-selector", selector, "-o", "json")
        items: list[Resource] = json.loads(said)["items"]
        return items

    def secret(self, name: str) -> dict[str, bytes]:
        data = self.get("secret", name)["data"]
        return {key: base64.b64decode(value) for key, value in data.items()}


def resource(kind: str, name: str, /, **spec: Any) -> Resource:
    """A brokerd resource."""
    return {
        "apiVersion": "brokerd.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def small_cluster(name: str = "tiny") -> Resource:
    """A BrokerCluster of one member, for tests that break or remove it."""
    return resource(
        "BrokerCluster",
        name,
        replicas=1,
        storage={"size": "1Gi", "retention": "Delete"},
        resources={"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        telemetry={"enabled": False},
    )
