"""What a BrokerCluster's status says after a pass: Ready's reason, and its own conditions. PURE.

For the Kubernetes driver, which brings what it saw and did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.conditions import Condition
from brokerd_operator.reconcile import rollout, scaling
from brokerd_operator.reconcile.rollout import Hold
from brokerd_operator.reconcile.scaling import Step, StepKind
from brokerd_operator.reconcile.volumes import Plan
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec

#: Reasons of Ready while members come and go: they last until everybody is back.
_MOVING = frozenset(("Progressing", "MemberNotReady"))
#: Obstacles that a message names in full; the others are counted.
_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass saw and did."""

    #: Members that are to run.
    total: int
    step: Step
    pods: tuple[Mapping[str, Any], ...] = ()
    ready: frozenset[str] = frozenset()
    #: Members in maintenance because the spec says so.
    fenced: tuple[str, ...] = ()
    #: Why the step failed.
    problem: str = ""
    #: Members that have to be restarted.
    outdated: tuple[str, ...] = ()
    #: Members that get other resources without a restart, in words.
    resizing: tuple[str, ...] = ()
    hold: Hold | None = None
    #: What is wrong with the certificates that members show, where that is why none can be asked.
    distrust: str = ""
    #: Members that have had their time to become ready, in words.
    late: tuple[str, ...] = ()
    #: Why members cannot start until somebody does something, in words.
    obstacles: tuple[str, ...] = ()
    #: Pods that the API server refuses to the StatefulSet's controller, in words.
    refused_pods: tuple[str, ...] = ()
    #: Ready's reason before.
    was: str = ""
    #: Reason and message of what the API server does not take.
    refused: tuple[str, str] = ("", "")
    volumes: Plan = field(default_factory=lambda: Plan(""))
    #: Volumes that are growing, in words.
    growing: str = ""
    #: The StatefulSet is being made anew.
    is_between: bool = False
    #: The operator's newer image, which waits for approval.
    pending_image: str = ""
    #: What is wrong with the certificate of the spec, in words; "": nothing.
    unusable_certificate: str = ""
    seconds_to_window: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether everybody is ready who shall be."""
        return len(self.ready | set(self.fenced)) >= self.total

    @property
    def count(self) -> str:
        said = f"{len(self.ready)} of {self.total} members are ready"
        return f"{said}, {', '.join(self.fenced)} fenced" if self.fenced else said

    @property
    def text(self) -> str:
        """How many are ready, and what keeps the others from it."""
        more = len(self.obstacles) - _SHOWN_MAX
        shown = [*self.obstacles[:_SHOWN_MAX], *([f"and {more} more"] if more > 0 else ())]
        return "; ".join((self.count, *shown))


def verdict(spec: BrokerClusterSpec, state: Pass) -> tuple[str, str]:
    """Ready's reason and message: the first thing that somebody has to know."""
    reason, message = _of_members(spec, state)
    if state.refused[0]:
        return (state.refused[0], f"{state.refused[1]}; {message}")
    if state.volumes.reason:
        return (state.volumes.reason, f"{state.volumes.message}; {message}")
    if state.unusable_certificate:
        return ("CertificateUnusable", f"{state.unusable_certificate}; {message}")
    if reason != "Available":
        return (reason, message)
    if state.is_between:
        return ("Resizing", f"{message}; the StatefulSet is made anew for larger volumes")
    if state.growing:
        return ("Resizing", f"{message}; {state.growing}")
    return (reason, message)


def _of_members(spec: BrokerClusterSpec, state: Pass) -> tuple[str, str]:
    if not spec.members_wanted:
        why = "hibernated" if spec.hibernated else "replicas is 0"
        return ("Stopped", f"{why}; the volumes are kept")
    text = state.text
    is_moving = state.step.kind not in (StepKind.DONE, StepKind.HOLD)
    if state.late and (is_moving or state.outdated or state.was in _MOVING):
        return (
            "MemberNotReady",
            f"{state.count}; {'; '.join(state.late)}; no other is restarted before",
        )
    if state.problem:
        said = scaling.said(state.step)
        return ("BrokerRefused", f"{text}; {f'{said}: ' if said else ''}{state.problem}")
    if len(state.ready) * 2 <= state.total:
        return ("WaitingForMembers", text)
    if is_moving:
        return ("Progressing", f"{text}; {scaling.said(state.step)}")
    if state.was in _MOVING and not state.is_whole:
        # The last one that was restarted is part of the roll until it is back.
        return ("Progressing", text)
    if state.distrust:
        return ("WaitingForBroker", f"{text}; no member can be asked: {state.distrust}")
    if state.resizing:
        return ("Available", f"{text}; {'; '.join(state.resizing)}")
    return ("Available", text)


def found_conditions(spec: BrokerClusterSpec, state: Pass, generation: int) -> list[Condition]:
    """A BrokerCluster's own conditions, as far as its pods tell."""
    ready, total = len(state.ready), state.total
    has_majority = ready * 2 > total and ready > 0
    is_whole = ready == total and total > 0
    found = [
        conditions.build(
            conditions.AVAILABLE,
            has_majority,
            "Majority" if has_majority else "NoMajority",
            state.text,
            generation,
        ),
        conditions.build(
            conditions.ALL_REPLICAS_READY,
            is_whole,
            "AllReady" if is_whole else "NotAllReady",
            state.text,
            generation,
        ),
        _upgrade_pending(state, generation),
    ]
    if spec.hibernated:
        running = len(state.pods)
        found.append(
            conditions.build(
                conditions.HIBERNATED,
                not running,
                "Stopping" if running else "Hibernated",
                f"{running} members are still stopping"
                if running
                else "no member runs; the volumes"
                " are kept, and hibernated: false starts as many as there were",
                generation,
            )
        )
    if spec.fenced:
        missing = sorted(set(spec.fenced) - set(state.fenced))
        found.append(
            conditions.build(
                conditions.FENCED,
                not missing,
                "Fenced" if not missing else "NotFenced",
                f"not fenced (yet, or no members): {', '.join(missing)}"
                if missing
                else f"{', '.join(state.fenced)}: no clients, no leaders, no restarts",
                generation,
            )
        )
    return found


def staying(
    pods: Iterable[Mapping[str, Any]], is_member: Callable[[str], bool]
) -> list[Mapping[str, Any]]:
    """The pods of members: one that leaves the cluster ends by itself, and is started again in its
    pod until that is gone; it is no reason for an alert.
    """
    return [pod for pod in pods if is_member(rollout.pod_name(pod))]


def restarted(status: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Members that were started again since the status was written, and how they ended."""
    before = {
        item.get("podUID"): int(item.get("restarts") or 0) for item in status.get("members") or ()
    }
    found = []
    for pod in pods:
        now = rollout.restarts(pod)
        # A pod that is new may have failed already.
        if now.count > before.get(pod["metadata"].get("uid"), 0) and now.last_end:
            found.append(f"{rollout.pod_name(pod)} was started again: {now.last_end}")
    return found


def ends(pods: Iterable[Mapping[str, Any]]) -> dict[tuple[str, ...], float]:
    """When members that were started again had ended, by member and reason."""
    found = {rollout.pod_name(pod): rollout.restarts(pod) for pod in pods}
    return {
        (name, item.reason): item.ended_s
        for name, item in found.items()
        if item.ended_s is not None
    }


def _upgrade_pending(state: Pass, generation: int) -> Condition:
    """Whether members run with something older than what they are to run with, and why."""
    type_ = conditions.UPGRADE_PENDING
    if state.pending_image:
        message = (
            f"the operator brings {state.pending_image}: annotate with"
            f" brokerd.io/approved-image={state.pending_image} to take it"
        )
        return conditions.build(type_, True, "WaitingForApproval", message, generation)
    names = ", ".join(sorted(state.outdated))
    if state.step.kind is StepKind.HOLD and state.hold is not None:
        message = f"{names} to be restarted; {state.hold.message}"
        return conditions.build(type_, True, state.hold.reason, message, generation)
    if names:
        waits = state.problem or state.step.reason
        message = f"{names} to be restarted{waits and f'; {waits}'}"
        return conditions.build(type_, True, "Rolling", message, generation)
    return conditions.build(type_, False, "UpToDate", "all members are up to date", generation)
