"""Windows, holds, volumes, resizing and the words of the status: what is decided without I/O."""

from __future__ import annotations

import dataclasses
import datetime
from decimal import Decimal
from typing import Any

import pytest
from brokerd_operator.broker import members
from brokerd_operator.broker.client import Target
from brokerd_operator.engine import cluster_pass
from brokerd_operator.manifests import cluster, naming
from brokerd_operator.manifests.remembered import Remembered
from brokerd_operator.reconcile import lifecycle, resizing, rollout, volumes, windows
from brokerd_operator.reconcile.lifecycle import Pass
from brokerd_operator.reconcile.resizing import State
from brokerd_operator.reconcile.rollout import Hold, Image
from brokerd_operator.reconcile.scaling import Step, StepKind
from brokerd_operator.reconcile.volumes import Claim, Plan
from brokerd_operator.settings import Settings
from brokerd_operator.sources import serving_certificates
from brokerd_operator.sources.api import ApiError
from brokerd_operator.sources.cluster_objects import APPLIED_HASH, SHOWN_MAX, Refusals
from brokerd_operator.sources.kubernetes_clusters import KubernetesClusters
from brokerd_operator.sources.secret_reads import SecretReads
from brokerd_operator.specs import broker_cluster, units
from brokerd_operator.specs.arguments import digest
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.model import Invalid, Meta

from tests.operator.fake_broker import PASSWORD, USER, FakeBroker
from tests.operator.manifests.test_manifests import context


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(f"2026-{text}Z")


def spec(**fields: Any) -> BrokerClusterSpec:
    parsed = broker_cluster.parse({"spec": fields})
    assert not isinstance(parsed, Invalid), parsed
    return parsed


def window(start: str, duration: str, *days: str) -> dict[str, Any]:
    return {"start": start, "duration": duration, "days": list(days)}


# ---- windows ------------------------------------------------------------------------------------

#: A Wednesday.
NIGHT = spec(maintenanceWindows=[window("23:00", "2h", "Wed"), window("04:30", "30m")])


@pytest.mark.parametrize(
    ("now", "is_open"),
    [
        ("11-25T22:59:59", False),
        ("11-25T23:00:00", True),
        ("11-26T00:59:59", True),  # it began yesterday
        ("11-26T01:00:00", False),
        ("11-26T23:30:00", False),  # a Thursday
        ("11-26T04:30:00", True),  # any day
        ("11-26T05:00:00", False),
    ],
)
def test_a_window_is_open_from_its_start_for_its_duration(now: str, is_open: bool) -> None:
    assert windows.is_open(NIGHT.maintenance_windows, at(now)) is is_open


def test_without_windows_it_is_always_open() -> None:
    assert windows.is_open((), at("11-25T12:00:00"))
    assert windows.next_opening((), at("11-25T12:00:00")) is None


def test_the_next_window_is_the_earliest_that_has_not_begun() -> None:
    assert windows.next_opening(NIGHT.maintenance_windows, at("11-25T12:00:00")) == at(
        "11-25T23:00:00"
    )
    assert windows.next_opening(NIGHT.maintenance_windows, at("11-25T23:00:00")) == at(
        "11-26T04:30:00"
    )
    weekly = spec(maintenanceWindows=[window("02:00", "1h", "Wed")]).maintenance_windows
    assert windows.next_opening(weekly, at("11-25T02:00:00")) == at("12-02T02:00:00")


def test_a_whole_day_is_a_window_and_more_is_none() -> None:
    whole = spec(maintenanceWindows=[window("12:00", "24h", "Sat")])
    assert whole.problem(Meta("shop", "orders")) is None
    assert windows.is_open(whole.maintenance_windows, at("11-29T11:59:00"))
    for duration in ("25h", "30s"):
        wrong = spec(maintenanceWindows=[window("12:00", duration)])
        assert wrong.problem(Meta("shop", "orders")) is not None


def test_members_that_are_well_wait_for_a_window_and_for_fenced_ones() -> None:
    hold = rollout.hold(NIGHT, (), at("11-25T12:00:00"))
    assert hold is not None
    assert (hold.reason, "2026-11-25T23:00:00Z" in hold.message) == ("WaitingForWindow", True)
    assert rollout.hold(NIGHT, (), at("11-25T23:30:00")) is None
    fenced = rollout.hold(NIGHT, ["b", "a"], at("11-25T23:30:00"))
    assert fenced is not None
    assert fenced.reason == "MemberFenced"
    assert rollout.seconds_to_window(NIGHT, at("11-25T22:59:00")) == 60
    assert rollout.seconds_to_window(spec(), at("11-25T22:59:00")) is None


# ---- image --------------------------------------------------------------------------------------


def test_which_image_members_get() -> None:
    careful = spec(upgradePolicy="OnApproval")
    assert rollout.image(spec(), "new", "old", "") == Image("new")
    assert rollout.image(careful, "new", "old", "") == Image("old", "new")
    assert rollout.image(careful, "new", "old", "new") == Image("new")
    # Consent is for one image, not for all that come.
    assert rollout.image(careful, "newer", "old", "new") == Image("old", "newer")
    assert rollout.image(careful, "new", "new", "") == Image("new")
    assert rollout.image(careful, "new", "", "") == Image("new"), "there are no members yet"
    named = spec(upgradePolicy="OnApproval", image="mine@sha256:0")
    assert rollout.image(named, "new", "old", "") == Image("mine@sha256:0")


# ---- pods ---------------------------------------------------------------------------------------


def pod(name: str = "a", **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "creationTimestamp": "2026-01-01T10:00:00Z"}
    return {"metadata": metadata, "status": status}


def said(type_: str, status: str, **more: str) -> dict[str, str]:
    return {"type": type_, "status": status, **more}


def test_a_member_has_its_time_from_when_it_was_made_or_became_unready() -> None:
    fresh = pod()
    assert not rollout.overdue(fresh, None, at("01-01T10:09:59"), 600)
    assert rollout.overdue(fresh, None, at("01-01T10:10:00"), 600)
    turned = said("Ready", "False", lastTransitionTime="2026-01-01T11:00:00Z")
    assert not rollout.overdue(pod(conditions=[turned]), None, at("01-01T11:09:00"), 600)
    assert rollout.overdue(pod(conditions=[turned]), None, at("01-01T11:10:00"), 600)
    assert rollout.overdue(None, at("01-01T09:00:00"), at("01-01T10:00:00"), 600)
    assert not rollout.overdue(None, None, at("01-01T10:00:00"), 600)
    assert not rollout.overdue({"metadata": {}}, None, at("01-01T10:00:00"), 600)


def waiting(reason: str, **more: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": f"{reason}, in 10 s"}}
    return pod(containerStatuses=[{"image": "b:1", "state": state, **more}])


def test_what_keeps_a_member_from_starting_has_one_text_for_each_cause() -> None:
    assert rollout.obstacle(pod()) == ""
    assert rollout.obstacle(waiting("ContainerCreating")) == ""
    assert rollout.obstacle(pod(containerStatuses=[{"state": {"running": {}}}])) == ""
    unpullable = "its node cannot pull the image b:1"
    assert rollout.obstacle(waiting("ErrImagePull")) == unpullable
    assert rollout.obstacle(waiting("ImagePullBackOff")) == unpullable
    ended = {"terminated": {"reason": "Error", "exitCode": 78, "finishedAt": "noon"}}
    assert rollout.obstacle(waiting("CrashLoopBackOff", lastState=ended)) == (
        "it ends again and again: Error (exit status 78)"
    )
    found = rollout.obstacle(waiting("CreateContainerConfigError"))
    assert found == "CreateContainerConfigError: CreateContainerConfigError, in 10 s"
    homeless = said("PodScheduled", "False", reason="Unschedulable", message="no room")
    assert rollout.obstacle(pod(conditions=[homeless])) == "Unschedulable: no room"


def test_a_pod_whose_volumes_are_not_mounted_yet_is_being_made() -> None:
    assert rollout.is_made(waiting("ContainerCreating"))
    first = {"name": "wait", "state": {"waiting": {"reason": "PodInitializing"}}}
    assert rollout.is_made(pod(initContainerStatuses=[first]))
    assert not rollout.is_made(pod(initContainerStatuses=[{**first, "state": {"running": {}}}]))
    assert not rollout.is_made(waiting("ImagePullBackOff"))
    assert not rollout.is_made(pod())


def test_a_container_of_the_pod_template_that_keeps_a_member_from_starting_is_named() -> None:
    ended = {"terminated": {"reason": "Error", "exitCode": 1, "finishedAt": "noon"}}
    backing_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "in 10 s"}}
    broker = {"name": "broker", "state": {"waiting": {"reason": "PodInitializing"}}}

    def said(state: dict[str, Any], **more: Any) -> str:
        first = {"name": "wait", "image": "w:1", "state": state, "lastState": ended, **more}
        return rollout.obstacle(pod(initContainerStatuses=[first], containerStatuses=[broker]))

    text = "container wait ends again and again: Error (exit status 1)"
    assert said(backing_off) == text
    # Between two tries.
    assert said(ended, restartCount=1) == text
    assert said({"running": {}}) == ""
    # It may have failed once only.
    assert said(ended, restartCount=0, lastState={}) == ""
    assert said({"terminated": {"exitCode": 0, "reason": "Completed"}}, lastState={}) == ""
    pulled = {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}
    assert said(pulled, lastState={}) == "its node cannot pull the image w:1"
    assert rollout.is_unpullable(pod(initContainerStatuses=[{"name": "wait", "state": pulled}]))
    other = {"waiting": {"reason": "CreateContainerConfigError", "message": "no such key"}}
    assert said(other, lastState={}) == "container wait CreateContainerConfigError: no such key"


def test_a_member_that_is_not_ready_has_the_container_that_waits_named() -> None:
    done = {"name": "first", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    bad = {"name": "wait", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    broker = {"name": "broker", "state": {"waiting": {"reason": "PodInitializing"}}}
    found = pod(initContainerStatuses=[done, bad], containerStatuses=[broker])
    assert rollout.why_not_ready(found) == "container wait Error"
    found = pod(initContainerStatuses=[done], containerStatuses=[broker])
    assert rollout.why_not_ready(found) == "PodInitializing"


def test_restarts_of_a_sidecar_are_not_those_of_the_member() -> None:
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "noon"}}
    sidecar = {"name": "agent", "restartCount": 7, "lastState": ended}
    broker = {"name": "broker", "restartCount": 1}
    assert rollout.restarts(pod(containerStatuses=[sidecar, broker])) == rollout.Restarts(1)
    assert rollout.restarts(pod(containerStatuses=[sidecar])) == rollout.Restarts()


def test_why_a_member_is_not_ready_is_said_in_the_words_of_kubernetes() -> None:
    assert rollout.why_not_ready(None) == "it has no pod"
    ending = {"metadata": {"name": "a", "deletionTimestamp": "now"}}
    assert rollout.why_not_ready(ending) == "its pod does not end"
    homeless = said("PodScheduled", "False", reason="Unschedulable", message="no room")
    assert rollout.why_not_ready(pod(conditions=[homeless])) == "Unschedulable: no room"
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    found = rollout.why_not_ready(pod(containerStatuses=[waiting]))
    assert found == "ImagePullBackOff: no such image"
    assert rollout.why_not_ready(pod(containerStatuses=[{"state": {"running": {}}}])) == (
        "its pod is not ready"
    )


# ---- volumes ------------------------------------------------------------------------------------


def claim(size: str = "10Gi", capacity: str = "10Gi", phase: str = "Bound", **more: Any) -> Claim:
    return Claim("data-a-0", size, capacity, phase, **more)


def test_volumes_grow_before_the_stateful_set_is_made_anew() -> None:
    assert volumes.plan("20Gi", None, []) == Plan("20Gi")
    assert volumes.plan("10Gi", "10Gi", [claim()]) == Plan("10Gi")
    assert volumes.plan("20Gi", "10Gi", [claim()]) == Plan("20Gi", ("data-a-0",), True)
    # An operator that was killed in between goes on.
    assert volumes.plan("20Gi", "10Gi", [claim("20Gi")]) == Plan("20Gi", (), True)
    assert volumes.plan("20Gi", "20Gi", [claim()]) == Plan("20Gi", ("data-a-0",))
    assert volumes.plan("20Gi", "10Gi", [claim(phase="Pending")]) == Plan("20Gi", (), True)
    # A claim that is larger already, and the same size in other words.
    assert volumes.plan("10Gi", "10Gi", [claim("20Gi")]) == Plan("10Gi")
    assert volumes.plan("10240Mi", "10Gi", [claim()]) == Plan("10Gi")


def test_volumes_never_shrink_and_a_refusal_keeps_the_old_size() -> None:
    shrink = volumes.plan("5Gi", "10Gi", [claim()])
    assert (shrink.size, shrink.reason, shrink.grow) == ("10Gi", "ShrinkNotSupported", ())
    wanted = volumes.plan("20Gi", "10Gi", [claim()])
    for is_class, reason in ((True, "VolumeExpansionNotSupported"), (False, "ApiRefused")):
        left = volumes.refused(wanted, "10Gi", "it said no", is_class=is_class)
        assert (left.size, left.reason, left.is_recreated) == ("10Gi", reason, False)
        assert "it said no" in left.message


def test_progress_names_the_volumes_that_are_on_their_way() -> None:
    assert volumes.progress([claim(), claim(phase="Pending", capacity="")]) == ""
    assert "from 10Gi to 20Gi" in volumes.progress([claim("20Gi")])
    assert "file system" in volumes.progress([claim("20Gi", is_file_system_pending=True)])
    assert "quota" in volumes.progress([claim("20Gi", problem="quota")])
    assert volumes.progress([claim("20Gi")] * 5).endswith("and 2 more")


def test_a_claim_is_read_as_kubernetes_writes_it() -> None:
    body = {
        "metadata": {"name": "data-a-0"},
        "spec": {"resources": {"requests": {"storage": "20Gi"}}},
        "status": {
            "phase": "Bound",
            "capacity": {"storage": "10Gi"},
            "conditions": [
                said("FileSystemResizePending", "True"),
                said("ControllerResizeError", "True", message="no room"),
            ],
        },
    }
    read = volumes.claim_of(body)
    assert read == claim("20Gi", is_file_system_pending=True, problem="no room")
    assert volumes.claim_of({"metadata": {"name": "data-a-0"}}) == Claim("data-a-0", "")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10Gi", 10 * 2**30),
        ("10240Mi", 10 * 2**30),
        ("1.5Gi", 3 * 2**29),
        (".5k", 500),
        ("1e3", 1000),
        ("2E", 2 * 10**18),
        ("1Pi", 2**50),
        ("1500m", Decimal("1.5")),
        ("7", 7),
        ("", 0),
        ("ten", 0),
        ("-1Gi", 0),
    ],
)
def test_quantities_are_compared_exactly(text: str, value: Any) -> None:
    assert units.decimal_quantity(text) == value


# ---- resizing -----------------------------------------------------------------------------------


def template(label: str = "", **resources: Any) -> dict[str, Any]:
    container = {"name": "broker", "image": "x", "resources": resources}
    return {"metadata": {"labels": {"l": label}}, "spec": {"containers": [container]}}


def test_only_other_amounts_reach_running_pods() -> None:
    old = template(limits={"memory": "1Gi"})
    assert resizing.is_possible(old, template(limits={"memory": "2Gi"}))
    assert resizing.is_possible(old, template(limits={"memory": "1Gi"}, requests={"cpu": "1"}))
    assert not resizing.is_possible(old, template("other", limits={"memory": "2Gi"}))
    assert not resizing.is_possible(old, template()), "a limit cannot be taken away"
    assert resizing.is_possible(template(), template(limits={"memory": "1Gi"}))
    two = template(limits={"memory": "1Gi"})
    two["spec"]["containers"] *= 2
    assert not resizing.is_possible(old, two)


def test_a_pod_requests_what_it_has_only_a_limit_for() -> None:
    (container,) = resizing.patch(template(limits={"memory": "2Gi"}))["spec"]["containers"]
    amounts = {"memory": "2Gi"}
    assert container == {"name": "broker", "resources": {"requests": amounts, "limits": amounts}}


@pytest.mark.parametrize(
    ("conditions", "state", "words"),
    [
        ([], State.DONE, ""),
        ([said("PodResizeInProgress", "False")], State.DONE, ""),
        ([said("PodResizeInProgress", "True")], State.PENDING, ""),
        ([said("PodResizePending", "True", reason="Deferred")], State.PENDING, "Deferred"),
        (
            [said("PodResizePending", "True", reason="Infeasible", message="too much")],
            State.IMPOSSIBLE,
            "Infeasible: too much",
        ),
        ([said("Ready", "True")], State.DONE, ""),
    ],
)
def test_what_the_node_says_of_a_resize(conditions: Any, state: State, words: str) -> None:
    wanted = template(limits={"memory": "2Gi"})
    amounts = {"memory": "2Gi"}
    has = template(limits=amounts, requests={**amounts, "cpu": "1"})
    running = {"spec": has["spec"], "status": {"conditions": conditions}}
    assert resizing.state(running, wanted) == (state, words)


def test_a_pod_with_other_amounts_has_to_be_asked() -> None:
    running = {"spec": template(limits={"memory": "1Gi"})["spec"]}
    assert resizing.state(running, template(limits={"memory": "2Gi"})) == (State.ASK, "")


# ---- what outlives the StatefulSet --------------------------------------------------------------


def test_what_the_next_stateful_set_needs_stands_on_the_service() -> None:
    made = context()
    objects = {item["kind"] + item["metadata"]["name"]: item for item in cluster.objects(made)}
    first = objects["StatefulSetorders"]
    assert Remembered.of(None, objects["Serviceorders-nodes"]) == Remembered(), "nobody ran yet"
    known = Remembered.of(first, None)
    assert known == Remembered(3, 3, made.broker_image, "", "10Gi")
    later = naming.Context(
        *(made.meta, made.spec, made.images, made.operator_namespace),
        initial_replicas=3,
        members=5,
        image="kept:1",
        restarted_at="noon",
    )
    objects = {item["kind"] + item["metadata"]["name"]: item for item in cluster.objects(later, 5)}
    assert Remembered.of(None, objects["Serviceorders-nodes"]) == Remembered(3, 5, "kept:1", "noon")
    seen = Remembered.of(objects["StatefulSetorders"], None)
    assert seen == Remembered(3, 5, "kept:1", "noon", "10Gi")


# ---- the status ---------------------------------------------------------------------------------


def passed(kind: StepKind = StepKind.DONE, ready: int = 3, **fields: Any) -> Pass:
    names = frozenset(f"a-{ordinal}" for ordinal in range(ready))
    return Pass(3, Step(kind, "a-2", 3, "it waits"), ready=names, **fields)


LATE = ("a-2 is not ready",)


STUCK = "a-2: its node cannot pull the image b:1"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (passed(ready=1, obstacles=(STUCK,)), f"1 of 3 members are ready; {STUCK}"),
        # A quota leaves a majority: nothing waits, and the cause is said all the same.
        (passed(ready=2, obstacles=(STUCK,)), f"2 of 3 members are ready; {STUCK}"),
        (passed(ready=2, obstacles=(STUCK,), was="Progressing"), STUCK),
        (passed(ready=0, obstacles=("a", "b", "c", "d", "e")), "ready; a; b; c; and 2 more"),
    ],
)
def test_what_keeps_members_from_starting_is_said_at_once(state: Pass, said: str) -> None:
    assert said in lifecycle.verdict(spec(), state)[1]
    by_type = {item.type: item for item in lifecycle.found_conditions(spec(), state, 1)}
    assert said in by_type["AllReplicasReady"].message


def test_a_member_that_is_late_is_told_of_once() -> None:
    state = passed(StepKind.WAIT, ready=2, late=LATE, obstacles=(STUCK,))
    assert STUCK not in lifecycle.verdict(spec(), state)[1]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (passed(), "Available"),
        (passed(ready=2), "Available"),
        (passed(ready=1), "WaitingForMembers"),
        (passed(StepKind.RESTART), "Progressing"),
        (passed(StepKind.HOLD), "Available"),
        # The Event after a roll said that two of three are ready.
        (passed(ready=2, was="Progressing"), "Progressing"),
        (passed(ready=2, was="Progressing", fenced=("a-2",)), "Available"),
        (passed(was="Progressing"), "Available"),
        (passed(StepKind.WAIT, ready=2, late=LATE), "MemberNotReady"),
        (passed(ready=2, late=LATE, was="MemberNotReady"), "MemberNotReady"),
        (passed(ready=2, late=LATE, outdated=("a-0",)), "MemberNotReady"),
        (passed(ready=2, late=LATE, was="Available"), "Available"),
        (passed(problem="no"), "BrokerRefused"),
        (passed(refused=("ApiRefused", "no")), "ApiRefused"),
        (passed(volumes=Plan("1Gi", reason="ShrinkNotSupported")), "ShrinkNotSupported"),
        (passed(growing="it grows"), "Resizing"),
        (passed(is_between=True), "Resizing"),
        (passed(ready=1, growing="it grows"), "WaitingForMembers"),
        (passed(resizing=("a-0 gets it",)), "Available"),
    ],
)
def test_ready_says_the_first_thing_that_somebody_has_to_know(state: Pass, reason: str) -> None:
    found, message = lifecycle.verdict(spec(), state)
    assert found == reason
    assert "of 3 members are ready" in message


def test_a_cluster_that_rests_says_why() -> None:
    empty = Pass(0, Step(StepKind.DONE))
    assert lifecycle.verdict(spec(replicas=0), empty) == (
        "Stopped",
        "replicas is 0; the volumes are kept",
    )
    assert "hibernated" in lifecycle.verdict(spec(hibernated=True), empty)[1]


def conditions_of(made: BrokerClusterSpec, state: Pass) -> dict[str, tuple[str, str]]:
    found = lifecycle.found_conditions(made, state, 7)
    assert all(item.observed_generation == 7 for item in found)
    return {item.type: (item.status, item.reason) for item in found}


def test_hibernation_and_fencing_are_conditions_only_while_asked_for() -> None:
    found = conditions_of(spec(), passed())
    assert sorted(found) == ["AllReplicasReady", "Available", "UpgradePending"]
    resting = spec(hibernated=True)
    stopping = Pass(0, Step(StepKind.DONE), pods=({},))
    assert conditions_of(resting, stopping)["Hibernated"] == ("False", "Stopping")
    asleep = conditions_of(resting, Pass(0, Step(StepKind.DONE)))
    assert asleep["Hibernated"] == ("True", "Hibernated")
    fenced = spec(fenced=["a-1"])
    assert conditions_of(fenced, passed())["Fenced"] == ("False", "NotFenced")
    assert conditions_of(fenced, passed(fenced=("a-1",)))["Fenced"] == ("True", "Fenced")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (passed(), ("False", "UpToDate")),
        (passed(outdated=("a-0",)), ("True", "Rolling")),
        (passed(pending_image="new"), ("True", "WaitingForApproval")),
        (
            passed(StepKind.HOLD, outdated=("a-0",), hold=Hold("WaitingForWindow", "later")),
            ("True", "WaitingForWindow"),
        ),
    ],
)
def test_upgrade_pending_says_what_it_waits_for(state: Pass, expected: tuple[str, str]) -> None:
    assert conditions_of(spec(), state)["UpgradePending"] == expected


def test_upgrade_pending_says_what_the_next_member_waits_for() -> None:
    waiting = passed(StepKind.WAIT, outdated=("a-0",))
    waiting = dataclasses.replace(waiting, step=Step(StepKind.WAIT, reason="a-1 is not ready yet"))
    refused = passed(StepKind.RESTART, outdated=("a-0",), problem="queue q would lose its majority")
    for state, why in (
        (waiting, "a-1 is not ready yet"),
        (refused, "queue q would lose its majority"),
    ):
        (found,) = (
            item
            for item in lifecycle.found_conditions(spec(), state, 1)
            if item.type == "UpgradePending"
        )
        assert found.message == f"a-0 to be restarted; {why}"


def test_a_wait_is_dated_from_when_its_cause_was_first_told() -> None:
    told = {"type": "Roll", "phase": "Waiting", "step": "s", "blockedBy": "a"}
    before = {"operation": {**told, "startedAt": "then", "blockedSince": "later"}}

    def dated(blocked_by: str) -> dict[str, str]:
        fields: dict[str, Any] = {"operation": {**told, "blockedBy": blocked_by}}
        cluster_pass._date_operation(fields, before)
        found: dict[str, str] = fields["operation"]
        return found

    assert (dated("a")["startedAt"], dated("a")["blockedSince"]) == ("then", "later")
    assert dated("b")["startedAt"] == "then"
    assert dated("b")["blockedSince"] not in ("then", "later")
    first: dict[str, Any] = {"operation": dict(told)}
    cluster_pass._date_operation(first, {})
    assert first["operation"]["blockedSince"] == first["operation"]["startedAt"]


def test_refusals_are_collected_and_what_passes_by_itself_is_waited_out() -> None:
    refusals = Refusals()
    assert not refusals
    refusals.add("Service a", ApiError(503, "busy", "PATCH"))
    assert (refusals.reason, refusals.message) == ("WaitingForApi", "Service a: busy")
    for number in range(SHOWN_MAX):
        refusals.add(f"Service {number}", ApiError(422, "invalid", "PATCH"))
    assert refusals.reason == "ApiRefused"
    assert refusals.message.endswith("and 1 more")
    for error in (ApiError(0, "no answer", "PATCH"), ApiError(429, "later", "GET")):
        with pytest.raises(ApiError):
            refusals.add("x", error)
    refusals.add("x", ApiError(403, "you may not look", "GET"))


# ---- fencing ------------------------------------------------------------------------------------


class FencingClusters(KubernetesClusters):
    """Every member is the same fake broker."""

    def __init__(self, broker: FakeBroker) -> None:
        nothing: Any = None
        super().__init__(nothing, Settings(), nothing, nothing)
        self.broker = broker

    async def _target(self, *_: Any, **__: Any) -> Target:
        return Target((self.broker.address,), USER, PASSWORD, None)


async def test_fenced_members_rest_until_they_are_let_in_again() -> None:
    broker = FakeBroker()
    await broker.start()
    driver = FencingClusters(broker)
    ready = {"status": {"conditions": [said("Ready", "True")]}}
    pods = [{"metadata": {"name": f"orders-{ordinal}"}, **ready} for ordinal in range(3)]
    fencing = context(fenced=["orders-1", "orders-7"])

    async def fence(made: naming.Context, *before: str) -> tuple[list[str], str]:
        return await driver._fence({"status": {"fenced": list(before)}}, made, pods)

    try:
        assert await fence(fencing) == (["orders-1"], ""), "orders-7 is nobody"
        assert broker.resting == {"orders-1"}
        # A member that restarted is out of maintenance, and ready: it is asked again.
        broker.resting.clear()
        assert await fence(fencing, "orders-1") == (["orders-1"], "")
        assert broker.resting == {"orders-1"}
        assert await fence(context(fenced=["orders-1"], hibernated=True), "orders-1") == ([], "")
        assert await fence(context(), "orders-1") == ([], "")
        assert not broker.resting
        assert await fence(context(), "orders-9") == ([], ""), "it has no pod"
        broker.is_down = True
        fenced, problem = await fence(context(), "orders-1")
        assert fenced == ["orders-1"], "not forgotten before it is done"
        assert "orders-1" in problem
        fenced, problem = await fence(fencing)
        assert (fenced, "fenced" in problem) == ([], True)
        assert await members.set_fenced(None, "orders-1", is_fenced=True)
    finally:
        await broker.stop()


# ---- the template that members are outdated by -------------------------------------------------


class Pods:
    """An API server with one member that runs an older template, and is down."""

    def __init__(self, stateful_set: dict[str, Any]) -> None:
        self.stateful_set = stateful_set
        self.deleted: list[str] = []

    async def get(self, path: str) -> None:
        return None

    async def list(self, path: str, selector: str = "") -> Any:
        labels = {rollout.REVISION_LABEL: "orders-old"}
        return [{"metadata": {"name": "orders-0", "labels": labels}}], ""

    async def delete(self, path: str) -> None:
        self.deleted.append(path.rpartition("/")[2])

    async def apply(self, manifest: dict[str, Any], *, is_dry: bool) -> dict[str, Any]:
        assert is_dry, "members are restarted by what is there"
        return manifest


def applied(made: naming.Context, count: int = 1) -> dict[str, Any]:
    """The StatefulSet as the API server has it once it was applied, with a newer template."""
    (found,) = [item for item in cluster.objects(made, count) if item["kind"] == "StatefulSet"]
    marks = {**(found["metadata"].get("annotations") or {}), APPLIED_HASH: digest(found, 32)}
    metadata = {**found["metadata"], "annotations": marks, "generation": 2}
    status = {"updateRevision": "orders-new", "observedGeneration": 2}
    return {**found, "metadata": metadata, "status": status}


async def restarted(live: dict[str, Any], wanted: naming.Context) -> list[str]:
    """Who is restarted by one pass."""
    api: Any = Pods(live)
    nothing: Any = None
    driver = KubernetesClusters(api, Settings(), nothing, SecretReads(api))
    await driver._next_step({}, wanted, live, Refusals())
    return list(api.deleted)


async def test_a_member_is_restarted_once_its_new_template_is_there_and_not_before() -> None:
    before, after = context(replicas=1), context(replicas=1, podTemplate={"labels": {"a": "b"}})
    assert await restarted(applied(after), after) == ["orders-0"]
    assert await restarted(applied(before), after) == [], "the same pass replaces it"
    # Somebody else changed it: this pass puts it back.
    drifted = applied(after)
    container = drifted["spec"]["template"]["spec"]["containers"][0]
    drifted["spec"] = {
        **drifted["spec"],
        "template": {"spec": {"containers": [{**container, "image": "other"}]}},
    }
    assert await restarted(drifted, after) == []


# ---- certificates while members change them -----------------------------------------------------


class Mounting:
    """An API server with two members' pods, and Secrets with one authority each."""

    def __init__(self, *secrets: str) -> None:
        self.mounted = secrets
        #: False: the system's authorities have signed what members show.
        self.has_authority = True
        #: Of the BrokerCluster of this name that is gone.
        self.stale = ""

    async def get(self, path: str) -> Any:
        name = path.rpartition("/")[2]
        data = naming.encoded({"ca.crt": f"who signed {name}"})
        before = {"kind": "BrokerCluster", "name": "orders", "uid": "before"}
        owners = [before] if name == self.stale else []
        return {"metadata": {"name": name, "ownerReferences": owners}, "data": data}

    async def list(self, path: str, selector: str = "") -> Any:
        def pod(ordinal: int, secret: str) -> dict[str, Any]:
            others = [{"name": "tmp", "emptyDir": {}}, naming.secret_volume("keys", "orders-keys")]
            volumes = [*others, naming.secret_volume("tls", secret)]
            if self.has_authority:
                volumes.append(naming.secret_volume("tls-ca", secret))
            return {"metadata": {"name": f"orders-{ordinal}"}, "spec": {"volumes": volumes}}

        return [pod(ordinal, secret) for ordinal, secret in enumerate(self.mounted)], ""


@pytest.mark.parametrize(
    ("mounted", "trusted"),
    [
        (("orders-tls", "orders-tls"), {"company-ca", "orders-tls"}),
        (("company", "orders-tls"), {"company-ca", "company", "orders-tls"}),
        (("company", "company"), {"company-ca", "company"}),
    ],
)
async def test_old_and_new_authorities_are_trusted_while_members_change_certificates(
    mounted: tuple[str, ...], trusted: set[str]
) -> None:
    """A member that still shows the old certificate could not be asked, nor restarted."""
    made = context(replicas=2, tls={"secretName": "company", "caSecretName": "company-ca"})
    api: Any = Mounting(*mounted)
    nothing: Any = None
    driver = KubernetesClusters(api, Settings(), nothing, SecretReads(api))
    await driver._next_step({}, made, applied(made), Refusals())
    found = (await driver._authorities(made)).decode()
    assert set(found.split("\n")) == {f"who signed {name}" for name in trusted}
    assert found.startswith("who signed company-ca")
    api.stale = "orders-tls"
    found = (await driver._authorities(made)).decode()
    assert set(found.split("\n")) == {f"who signed {name}" for name in trusted - {"orders-tls"}}


@pytest.mark.parametrize(
    ("tls", "has_authority", "is_system"),
    [
        ({"secretName": "company", "caSecretName": "company-ca"}, True, False),
        # To a certificate that the system's authorities have signed, and away from one.
        ({"secretName": "public"}, True, True),
        ({}, False, True),
    ],
)
async def test_the_systems_authorities_are_trusted_beside_others_in_a_roll_to_or_from_them(
    tls: dict[str, str], has_authority: bool, is_system: bool
) -> None:
    made = context(replicas=1, tls=tls)
    api: Any = Mounting("orders-tls")
    api.has_authority = has_authority
    nothing: Any = None
    driver = KubernetesClusters(api, Settings(), nothing, SecretReads(api))
    await driver._next_step({}, made, applied(made), Refusals())
    found = await driver._authorities(made)
    assert b"who signed" in found
    assert (serving_certificates.system_authorities() in found) == is_system


# ---- members that were started again ------------------------------------------------------------


def restarted_pod(count: int, uid: str = "u1") -> dict[str, Any]:
    ended = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-11-23T01:00:00Z"}
    container = {"restartCount": count, "lastState": {"terminated": ended} if count else {}}
    return {
        "metadata": {"name": "prod-1", "uid": uid},
        "status": {"containerStatuses": [container]},
    }


def test_restart_of_a_member_is_told_once_and_with_its_cause() -> None:
    said = "prod-1 was started again: OOMKilled (exit status 137) at 2026-11-23T01:00:00Z"
    status: dict[str, Any] = {"members": [{"name": "prod-1", "podUID": "u1"}]}
    assert lifecycle.restarted(status, [restarted_pod(0)]) == []
    assert lifecycle.restarted(status, [restarted_pod(1)]) == [said]
    status["members"][0]["restarts"] = 1
    assert lifecycle.restarted(status, [restarted_pod(1)]) == []
    assert lifecycle.restarted(status, [restarted_pod(2)]) == [said]
    assert lifecycle.ends([restarted_pod(1)]) == {("prod-1", "OOMKilled"): 1795395600.0}
    assert lifecycle.ends([restarted_pod(0)]) == {}
    # Another pod, which counts from 0 and may have failed before anybody looked.
    assert lifecycle.restarted(status, [restarted_pod(1, "u2")]) == [said]
    assert lifecycle.restarted({}, [{"metadata": {"name": "prod-1", "uid": "u1"}}]) == []


def test_nobody_is_told_that_a_member_was_started_again_which_leaves_the_cluster() -> None:
    """It ends by itself (exit status 78), and Kubernetes starts it again until its pod is gone."""
    three = dataclasses.replace(context(), spec=spec(replicas=3))
    pods = [
        {**restarted_pod(1), "metadata": {"name": f"{three.name}-{number}", "uid": f"u{number}"}}
        for number in range(4)
    ]
    assert lifecycle.staying(pods, three.is_member) == pods[:3]
