"""The deletion table of design/operator.md §10. PURE.

`decide` says what to do about a resource that is being deleted; `after` says what follows from the
broker's answer. Nothing here can hang on a missing or stopped broker, vhost or namespace, and no
queue with messages goes by default.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from brokerd_operator.reconcile import ordering, ownership
from brokerd_operator.reconcile.actions import Action, Delete, Precondition, SetOwner
from brokerd_operator.reconcile.ownership import Relation, Token
from brokerd_operator.reconcile.topology import ObservedObject, Topology
from brokerd_operator.specs.model import Identity

#: Longest wait of a deletion in a namespace that goes (design/operator.md §10).
NAMESPACE_TIMEOUT_MS = 60_000
RETRY_MS = 5_000


class Reach(enum.Enum):
    """What is known of the broker."""

    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"
    #: The BrokerCluster is absent or itself going.
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the table looks at."""

    policy: str
    is_paused: bool
    reach: Reach
    #: Since the deletion was asked for.
    age_ms: int
    timeout_ms: int
    is_namespace_terminating: bool = False
    has_dependants: bool = False

    @property
    def limit_ms(self) -> int:
        if self.is_namespace_terminating:
            return min(self.timeout_ms, NAMESPACE_TIMEOUT_MS)
        return self.timeout_ms


@dataclass(frozen=True, slots=True)
class Release:
    """Drop the finalizer. An event tells of anything unusual."""

    event: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Try again later; the condition says why."""

    reason: str
    message: str
    retry_ms: int = RETRY_MS


@dataclass(frozen=True, slots=True)
class Work:
    """Operations, the one that may be refused first; `after` judges it."""

    first: tuple[Action, ...]
    #: Done once the first ones worked.
    then: tuple[Action, ...] = ()
    #: What to report when all worked, where it is unusual.
    release: Release = Release()


_LEFT = Release("LeftBehind", "left in the broker: the virtual host is not empty")


def decide(
    situation: Situation, token: Token, primary: Identity | None, observed: Topology
) -> Release | Wait | Work:
    """What to do about a resource that is being deleted."""
    if situation.reach is Reach.GONE or situation.is_paused:
        return Release()
    if situation.reach is Reach.UNREACHABLE:
        return _unreachable(situation)
    owned = [
        item
        for item in observed.owned_by(token.resource)
        if ownership.relation(item.owner, token) is not Relation.OTHERS
    ]
    if not owned:
        return Release()
    if situation.policy == "Retain":
        return Work(tuple(_let_go(owned)))
    if situation.has_dependants:
        if situation.policy != "Delete":
            return Work(tuple(_let_go(owned)), release=_LEFT)
        if situation.age_ms < situation.limit_ms:
            return Wait("WaitingForDependants", "resources still use this virtual host")
        return Work(tuple(_let_go(owned)), release=_LEFT)
    owned.sort(key=lambda item: (item.identity != primary, -ordering.rank(item.kind), item.name))
    deletes = [_delete(situation.policy, item) for item in owned]
    if owned[0].identity == primary:
        # A queue may be refused, and must then keep its bindings; its removal takes them along.
        return Work((deletes[0],), tuple(deletes[1:]))
    return Work(tuple(deletes))


def _unreachable(situation: Situation) -> Release | Wait:
    if situation.policy == "Retain":
        return Release()
    if situation.age_ms >= situation.limit_ms:
        return Release("LeftBehind", "the broker did not answer in time; nothing was deleted there")
    return Wait("WaitingForBroker", "the broker does not answer; the deletion waits for it")


def _delete(policy: str, item: ObservedObject) -> Delete:
    is_guarded = item.kind == "queue" and policy in ("DeleteIfEmpty", "WaitUntilEmpty")
    return Delete(
        item.identity,
        Precondition(owner_uid=item.owner.uid if item.owner else ""),
        if_empty=is_guarded,
        if_unused=is_guarded or (item.kind == "exchange" and policy == "DeleteIfUnused"),
    )


def _let_go(owned: list[ObservedObject]) -> list[Action]:
    return [SetOwner(item.identity, None) for item in owned]


def after_refusal(
    situation: Situation, token: Token, observed: Topology, message: str
) -> tuple[Release | Wait, tuple[Action, ...]]:
    """The broker refused the first operation: the object is left behind, or waited for."""
    if situation.policy == "WaitUntilEmpty":
        is_over = situation.is_namespace_terminating and situation.age_ms >= NAMESPACE_TIMEOUT_MS
        if not is_over:
            return Wait("WaitingUntilEmpty", message), ()
    release = Release("LeftBehind", f"left in the broker: {message}")
    return release, tuple(_let_go(observed.owned_by(token.resource)))
