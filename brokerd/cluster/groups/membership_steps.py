"""The next step on the way from the members that a group has to those that it is to have.  PURE.

One step at a time, decided from what holds now and nothing else, so that any leader can go on where
another one stopped (R-QQ-23).  server/members/group_membership.py asks and does.

The way of a new member: the catalog names it, so that its node opens an empty replica; it learns
(Raft thesis §4.2.1); it votes once it holds what was committed when it came.  The way out is the
reverse: the group lets go of it first, the catalog second, and then its node forgets the replica.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from brokerd.raft.messages import Configuration, NodeId, configuration_of

#: Entries that a learner may lack when it gets its vote: a busy leader is never without some on the
#: way (RaftConfig.inflight_max APPENDs), and the rest takes it a moment.
LAG_MAX = 64
_NOBODY = NodeId("")


class StepKind(Enum):
    """What is to be done next."""

    #: Nothing: the members are those that are wanted.
    DONE = "done"
    #: Something has to happen elsewhere first; `reason` says what.
    WAIT = "wait"
    #: The catalog is to name `node` as a member, or not any more.
    RECORD_ADD = "record_add"
    RECORD_REMOVE = "record_remove"
    #: Changes of the group's configuration.
    ADD_LEARNER = "add_learner"
    PROMOTE = "promote"
    REMOVE = "remove"
    #: `node` is to lead, because this member is to leave.
    HAND_OVER = "hand_over"


@dataclass(slots=True, frozen=True)
class Step:
    """One step; `node` is whom it concerns."""

    kind: StepKind
    node: NodeId = _NOBODY
    reason: str = ""


@dataclass(slots=True, frozen=True)
class GroupView:
    """A group as its leader sees it, with its record."""

    leader: NodeId
    #: The record: who holds a replica, and who is to.
    members: Sequence[NodeId]
    wanted: Sequence[NodeId]
    configuration: Configuration
    #: The leader may change the configuration now: the last change is committed, and so is an
    #: entry of its own term (Raft thesis §4.1).
    may_change: bool
    alive: frozenset[NodeId]
    #: Index of the entry that brought the configuration in force (0: not known), and of the last.
    configuration_index: int = 0
    last_index: int = 0
    #: Up to which index each other member is known to hold the log.
    match: Mapping[NodeId, int] = field(default_factory=dict)
    #: So many of the wanted members vote, the first ones of `wanted` that can; the others learn and
    #: take a place when it is free.  None: all.
    voters_max: int | None = None


def next_step(view: GroupView) -> Step:
    """Return what is to be done next."""
    if not view.may_change:
        return Step(StepKind.WAIT, reason="the last change is being committed")
    waiting: Step | None = None
    # What is wanted comes before what is not, so that the group has its strength all the time.
    for node in view.wanted:
        step = _towards(view, node)
        if step is not None and (step.kind is not StepKind.WAIT or node in view.alive):
            return step
        waiting = waiting or step
    for node in _leaving(view):
        step = _away(view, node)
        if step.kind is not StepKind.WAIT:
            return step
        waiting = waiting or step
    known = view.configuration.voters + view.configuration.learners
    for node in view.members:
        if node not in view.wanted and node not in known:
            return Step(StepKind.RECORD_REMOVE, node)
    return waiting or Step(StepKind.DONE)


def _towards(view: GroupView, node: NodeId) -> Step | None:
    """Return the next step of a wanted member, None if it is all that it is to be."""
    if node in view.configuration.voters and node in view.members:
        return None
    if node not in view.alive:
        return Step(StepKind.WAIT, node, f"member '{node}' is down")
    if node not in view.members:
        return Step(StepKind.RECORD_ADD, node)
    if node not in view.configuration.learners:
        return Step(StepKind.ADD_LEARNER, node)
    if view.voters_max is not None and not _has_place(view, view.voters_max):
        return None
    match = view.match.get(node, 0)
    # A leader that has restarted does not know the index any more.
    if match < max(1, view.configuration_index) or view.last_index - match > LAG_MAX:
        behind = view.last_index - match
        return Step(StepKind.WAIT, node, f"member '{node}' is {behind} entries behind")
    return Step(StepKind.PROMOTE, node)


def _has_place(view: GroupView, voters_max: int) -> bool:
    """Tell whether one more may vote; who is to leave gives its place away before it goes."""
    return sum(voter in view.wanted for voter in view.configuration.voters) < voters_max


def _leaving(view: GroupView) -> list[NodeId]:
    """Return who is to leave the group: learners and members that are down first, the leader last.

    A member that is down only makes majorities harder to reach.
    """
    voters = view.configuration.voters
    group = voters + view.configuration.learners
    return sorted(
        (node for node in group if node not in view.wanted),
        key=lambda node: (node == view.leader, node in voters, node in view.alive, node),
    )


def _away(view: GroupView, node: NodeId) -> Step:
    if node in view.configuration.learners:
        return Step(StepKind.REMOVE, node)
    rest = [voter for voter in view.configuration.voters if voter != node]
    reason = fault_of_removal(rest, view.alive)
    if reason is not None:
        return Step(StepKind.WAIT, node, reason)
    if node != view.leader:
        return Step(StepKind.REMOVE, node)
    heirs = [voter for voter in rest if voter in view.alive]
    heir = min(heirs, key=lambda n: (n not in view.wanted, -view.match.get(n, 0), n))
    return Step(StepKind.HAND_OVER, heir)


def fault_of_removal(rest: Sequence[NodeId], alive: frozenset[NodeId]) -> str | None:
    """Return why a group cannot go on with these voters only, None if it can."""
    if not rest:
        return "it is the last member of the group"
    up = [voter for voter in rest if voter in alive]
    if 2 * len(up) <= len(rest):
        return f"the other members would have no majority: {len(up)} of {len(rest)} are up"
    return None


def changed(configuration: Configuration, step: Step) -> Configuration:
    """Return the configuration after a step that changes it."""
    return _CHANGES[step.kind](configuration, step.node)


def _with_learner(now: Configuration, node: NodeId) -> Configuration:
    return configuration_of(now.voters, tuple(sorted((*now.learners, node))))


def _with_voter(now: Configuration, node: NodeId) -> Configuration:
    learners = tuple(learner for learner in now.learners if learner != node)
    return configuration_of(tuple(sorted((*now.voters, node))), learners)


def _without(now: Configuration, node: NodeId) -> Configuration:
    return configuration_of(
        tuple(voter for voter in now.voters if voter != node),
        tuple(learner for learner in now.learners if learner != node),
    )


_CHANGES: dict[StepKind, Callable[[Configuration, NodeId], Configuration]] = {
    StepKind.ADD_LEARNER: _with_learner,
    StepKind.PROMOTE: _with_voter,
    StepKind.REMOVE: _without,
}
