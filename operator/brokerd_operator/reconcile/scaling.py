"""The next step from the members a BrokerCluster has to those it is to have. PURE.

One step at a time from what is observed now, so that any pass goes on where another one stopped.
Members are numbered; the highest ordinals come last and go first. A newcomer is on the broker's
list before it runs, a leaver is off the list before it stops: then no majority is ever counted over
members that are only starting or already gone. A member with an old template is restarted when
everybody else is well and the broker says that no queue loses its majority (design/operator.md
§5.10), unless something holds that back (rollout.py). Where the members cannot be asked because of
the certificate that they are to be rid of, the first one goes by their readiness (ADR 71). For the
cluster drivers of `sources/` and `local/`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

#: Bounds of the CRD on what `status.operation` says.
STEP_MAX = 256
BLOCKED_MAX = 1024


class StepKind(Enum):
    """What is to be done next."""

    DONE = "done"
    #: Something has to happen first; `reason` says what.
    WAIT = "wait"
    #: Put `member` on the broker's list, or take it off.
    ADD = "add"
    REMOVE = "remove"
    #: Run `count` members.
    RESIZE = "resize"
    #: Restart `member`, if the broker says that it may stop.
    RESTART = "restart"
    #: Members are outdated, and stay so until what `reason` says has passed.
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Step:
    """One step."""

    kind: StepKind
    member: str = ""
    count: int = 0
    reason: str = ""
    #: Why the broker is not asked before a restart; "": it is.
    unasked: str = ""


@dataclass(frozen=True, slots=True)
class Distrust:
    """TLS to every member fails because of the certificate that it shows."""

    #: Whose certificate, what is wrong with it, and what it is, in words.
    problem: str
    #: Why no restart is tried for it, in words; "": one gives the member another certificate.
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A BrokerCluster as it is."""

    #: Members are called `<name>-<ordinal>`.
    name: str
    desired: int
    #: How many members are to run now, ready or not.
    current: int
    #: How many ran before the cluster was stopped (replicas 0); 0: it never ran.
    before: int = 0
    #: The broker's list; None: it cannot be asked now.
    listed: frozenset[str] | None = None
    #: Why it cannot be asked, where certificates are why.
    distrust: Distrust | None = None
    ready: frozenset[str] = frozenset()
    #: Members that run with an old template, in any order.
    outdated: Collection[str] = ()
    #: Members that are kept as they are, ready or not.
    fenced: Collection[str] = ()
    #: Why no member that is well may be restarted now; "": it may.
    held: str = ""
    #: What is about to change in the template by which members are outdated, in words; "": nothing.
    template: str = ""

    def member(self, ordinal: int) -> str:
        """The name of a member."""
        return f"{self.name}-{ordinal}"

    @property
    def running(self) -> list[str]:
        """Names of the members that are to run now."""
        return [self.member(ordinal) for ordinal in range(self.current)]


def next_step(fleet: Fleet) -> Step:
    """Return what is to be done next."""
    step = _next_step(fleet)
    if step.kind is StepKind.RESTART and fleet.template:
        # It would come back with a template that is no longer wanted, and restart once again.
        reason = f"the template of the members changes first ({fleet.template})"
        return Step(StepKind.WAIT, reason=reason)
    return step


def _next_step(fleet: Fleet) -> Step:
    if not fleet.desired:
        return Step(StepKind.RESIZE, count=0) if fleet.current else Step(StepKind.DONE)
    if not fleet.current:
        # As many as there were, since a majority of those must be back before any change.
        return Step(StepKind.RESIZE, count=fleet.before or fleet.desired)
    if fleet.listed is None:
        if fleet.current == fleet.desired and not fleet.outdated:
            return Step(StepKind.DONE)
        return _restart_down(fleet) or _unasked(fleet)
    step = _scale(fleet, fleet.listed)
    return step or _roll(fleet)


def _scale(fleet: Fleet, listed: frozenset[str]) -> Step | None:
    kept = range(min(fleet.current, fleet.desired))
    for ordinal in kept:
        # It was on its way out when the number was raised again.
        if fleet.member(ordinal) not in listed:
            return Step(StepKind.ADD, fleet.member(ordinal))
    if fleet.desired > fleet.current:
        newcomer = fleet.member(fleet.current)
        if newcomer not in listed:
            return Step(StepKind.ADD, newcomer)
        return Step(StepKind.RESIZE, newcomer, fleet.current + 1)
    leavers = _above(fleet, listed, fleet.desired)
    if leavers:
        return Step(StepKind.REMOVE, leavers[0])
    if fleet.desired < fleet.current:
        return Step(StepKind.RESIZE, count=fleet.desired)
    return None


def _above(fleet: Fleet, names: Collection[str], count: int) -> Sequence[str]:
    """Names with an ordinal of at least `count`, the highest first."""
    found = []
    for name in names:
        prefix, _, ordinal = name.rpartition("-")
        if prefix == fleet.name and ordinal.isdecimal() and int(ordinal) >= count:
            found.append((int(ordinal), name))
    return [name for _, name in sorted(found, reverse=True)]


def _unasked(fleet: Fleet) -> Step:
    """The first restart to a certificate by which members can be asked: by readiness alone."""
    if fleet.distrust is None:
        return Step(StepKind.WAIT, reason="no member can be asked yet")
    problem = f"no member can be asked: {fleet.distrust.problem}"
    step = _roll(fleet)
    if step.kind is not StepKind.RESTART:
        return step if step.reason else Step(StepKind.WAIT, reason=problem)
    if fleet.distrust.obstacle:
        return Step(StepKind.WAIT, reason=f"{problem}; {fleet.distrust.obstacle}")
    return Step(StepKind.RESTART, step.member, unasked=problem)


def _roll(fleet: Fleet) -> Step:
    outdated = _above(fleet, fleet.outdated, 0)
    if not outdated:
        return Step(StepKind.DONE)
    down = _restart_down(fleet)
    if down is not None:
        return down
    if fleet.held:
        return Step(StepKind.HOLD, reason=fleet.held)
    for name in fleet.running:
        if name not in fleet.ready:
            return Step(StepKind.WAIT, name, reason=f"{name} is not ready yet")
    return Step(StepKind.RESTART, outdated[0])


def _restart_down(fleet: Fleet) -> Step | None:
    """Who is down with an old template gets the new one at once: nothing is lost by it, and the old
    one may be why.
    """
    for name in _above(fleet, fleet.outdated, 0):
        if name not in fleet.ready and name not in fleet.fenced:
            return Step(StepKind.RESTART, name)
    return None


_SAID = {
    StepKind.ADD: "{member} is added to the cluster",
    StepKind.REMOVE: "{member} leaves the cluster",
    StepKind.RESIZE: "{count} members are to run",
    StepKind.RESTART: "{member} is restarted with the new template",
    StepKind.WAIT: "{reason}",
    StepKind.HOLD: "{reason}",
    StepKind.DONE: "",
}


def said(step: Step) -> str:
    """Return a step in words, for a condition."""
    text = _SAID[step.kind].format(member=step.member, count=step.count, reason=step.reason)
    if step.unasked:
        text += f", since Kubernetes says that all members are ready; {step.unasked}"
    return text


_PHASES = {
    StepKind.ADD: "Adding",
    StepKind.REMOVE: "Removing",
    StepKind.RESIZE: "Resizing",
    StepKind.RESTART: "Restarting",
    StepKind.WAIT: "Waiting",
    StepKind.HOLD: "Held",
}


def operation(step: Step, desired: int, current: int, problem: str) -> dict[str, str] | None:
    """Return what `status.operation` says of a step; None when there is nothing to do.

    problem: why the step could not be taken, in the broker's words.
    """
    if step.kind is StepKind.DONE:
        return None
    is_roll = step.kind in (StepKind.RESTART, StepKind.HOLD) or (
        step.kind is StepKind.WAIT and desired == current
    )
    found = {"type": "Roll" if is_roll else "Scale", "phase": _PHASES[step.kind]}
    found["step"] = said(step)[:STEP_MAX]
    blocked = problem or step.reason
    if blocked:
        found["blockedBy"] = blocked[:BLOCKED_MAX]
    return found
