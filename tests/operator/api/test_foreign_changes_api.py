"""A roll goes on whatever others have put into the StatefulSet, against a real API server.

Pods are made and never run here: members with an older template that are down are restarted at
once, which shows by their pods being made anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster_fixtures import Kubernetes
from tests.operator.api.test_cluster_lifecycle_api import Members
from tests.operator.api_fixtures import api as api
from tests.operator.operator_process import Namespace, OperatorProcess, running, wait_for

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

NAMESPACE = "op-foreign"
IMAGES = ("localhost/brokerd:1", "localhost/brokerd:2", "localhost/brokerd:3")


@pytest.fixture(scope="module")
def space(api: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    api.kubectl("create", "namespace", NAMESPACE)
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    settings = {"BROKER_IMAGE": IMAGES[0]}
    with running(OperatorProcess(api.kubeconfig, NAMESPACE, log, settings=settings)):
        yield Namespace(api, NAMESPACE)
    api.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def broker(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def values(pod: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item.get("value", "") for item in broker(pod)["env"]}


def template(members: Members) -> dict[str, Any]:
    found: dict[str, Any] = members.stateful_set["spec"]["template"]
    return found


def wait_rolled(members: Members, image: str, **env: str) -> None:
    """Until every member runs an image with these variables."""

    def is_rolled() -> bool:
        members.look()
        pods = [members.space.get("pod", f"{members.name}-{ordinal}") for ordinal in range(2)]
        return all(
            pod is not None
            and not pod["metadata"].get("deletionTimestamp")
            and broker(pod)["image"] == image
            and env.items() <= values(pod).items()
            for pod in pods
        )

    wait_for(f"{members.name} with {image} {env}", is_rolled, poll_s=0.5)


def test_a_new_image_rolls_past_a_variable_of_somebody_elses(space: Namespace) -> None:
    """As `kubectl set env` does it."""
    made = Members(space, "set", replicas=2)
    made.wait("WaitingForMembers")
    made.kubectl("set", "env", "statefulset", "set", "TEAM=shop")
    wait_rolled(made, IMAGES[0], TEAM="shop")
    made.patch(image=IMAGES[1])
    wait_rolled(made, IMAGES[1], TEAM="shop")
    before = made.uids(2)
    made.kubectl("rollout", "restart", "statefulset", "set")
    wait_for("new pods", lambda: _all_new(made, before), poll_s=0.5)
    made.patch(image=IMAGES[2])
    wait_rolled(made, IMAGES[2], TEAM="shop")
    made.delete()


def _all_new(members: Members, before: list[str]) -> bool:
    members.look()
    return not set(before) & set(members.uids(2))


def test_a_new_image_rolls_past_the_fields_of_another_manager(space: Namespace) -> None:
    """Server-side apply: a variable, a container, a volume and an annotation, all in lists or maps
    of ours."""
    made = Members(space, "managed", replicas=2)
    made.wait("WaitingForMembers")
    pod = {
        "containers": [
            {"name": "broker", "env": [{"name": "AGENT", "value": "on"}]},
            {"name": "agent", "image": "localhost/agent:1"},
        ],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "managed", "namespace": space.name},
        "spec": {"template": {"metadata": {"annotations": {"agent": "on"}}, "spec": pod}},
    }
    apply = ["apply", "--server-side", "--field-manager=agent", "-f", "-"]
    made.kubectl(*apply, input=json.dumps(theirs))
    made.patch(image=IMAGES[1], resources={"limits": {"cpu": "0.5"}})
    wait_rolled(made, IMAGES[1], AGENT="on")
    names = [item["name"] for item in template(made)["spec"]["containers"]]
    assert names == ["broker", "agent"]
    assert template(made)["metadata"]["annotations"]["agent"] == "on"
    made.delete()


def test_what_is_the_operators_is_repaired(space: Namespace) -> None:
    made = Members(space, "robbed", replicas=2)
    made.wait("WaitingForMembers")
    kept = broker(template(made))
    name, other = [item["name"] for item in kept["env"] if item.get("value")][:2]
    gone = {"name": name, "$patch": "delete"}
    changed = {"name": other, "value": "somebody's"}
    body = {"name": "broker", "image": "localhost/else:1", "env": [gone, changed]}
    patch = {"spec": {"template": {"spec": {"containers": [body]}}}}
    # The operator may have repaired it before another look.
    said = made.kubectl("patch", "statefulset", "robbed", "-p", json.dumps(patch), "-o", "json")
    assert broker(json.loads(said)["spec"]["template"])["image"] == "localhost/else:1"
    made.look()

    def is_repaired() -> bool:
        now = broker(template(made))
        by_name = {item["name"]: item for item in now["env"]}
        return now["image"] == kept["image"] and by_name == {
            item["name"]: item for item in kept["env"]
        }

    wait_for("the template is as before", is_repaired)
    made.delete()


def test_a_variable_of_a_secret_that_others_gave_a_value_is_the_secrets_again(
    space: Namespace,
) -> None:
    """A value beside its source would make the operator's next write invalid."""
    made = Members(space, "overwritten", replicas=2)
    made.wait("WaitingForMembers")
    kept = broker(template(made))["env"]
    change = ["set", "env", "statefulset", "overwritten", "BROKERD_CLUSTER_SECRET=known"]
    said = made.kubectl(*change, "-o", "json")
    assert broker(json.loads(said)["spec"]["template"])["env"] != kept

    def is_repaired() -> bool:
        made.look()
        return bool(broker(template(made))["env"] == kept)

    wait_for("the variable is as before", is_repaired, poll_s=0.5)
    made.wait("WaitingForMembers")
    made.delete()


def test_a_roll_that_waits_says_for_what_and_since_when(space: Namespace) -> None:
    made = Members(space, "waiting", replicas=2)
    made.serve(0, 1)
    made.patch(image=IMAGES[1])

    def waits() -> Any:
        made.look()
        found = made.condition("UpgradePending")
        return found if "no member can be asked yet" in found.get("message", "") else None

    found = wait_for("what it waits for", waits, poll_s=0.5)
    assert found["message"].startswith("waiting-0, waiting-1 to be restarted; ")
    assert found["reason"] == "Rolling"
    body = space.get("brokercluster", "waiting")
    assert body is not None
    operation = body["status"]["operation"]
    assert operation["blockedBy"] == "no member can be asked yet"
    assert operation["blockedSince"] >= operation["startedAt"]
    made.delete()
