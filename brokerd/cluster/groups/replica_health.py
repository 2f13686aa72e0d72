"""What a damaged replica has lost, how it becomes whole, and what it may do until then.  PURE.

A member must not forget what it has acknowledged: a vote given afterwards could elect a leader that
does not hold it either (replication.md §1, G8).  So a replica with a loss gives no vote, does not
stand for election and takes no leadership, until a leader has refilled it, or another log has taken
the place of its own.  Events in, at most one action out; the driver of the group holds one machine,
obeys `may_vote`, and refilling.py tells the machine what happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import ClassVar, Protocol, TypeAlias

from brokerd.raft.messages import MessageKind

#: Messages that ask for what a damaged replica must not give, its vote, or that would have it lead:
#: it may learn of its damage while it stands for election.
REQUIRES_VOTE = frozenset(
    {
        MessageKind.PRE_VOTE,
        MessageKind.PRE_VOTE_REPLY,
        MessageKind.VOTE,
        MessageKind.VOTE_REPLY,
        MessageKind.TIMEOUT_NOW,
    }
)


class Loss(Flag):
    """What is lost, each with its own way back."""

    #: Something synced cannot be read back, or the log is older than what others remember of it.
    #: A leader refills it; a snapshot does if nothing else was lost than what cannot be read.
    ENTRIES = auto()
    #: The disk is new and the group is not: an earlier one may have held more.  Only a leader knows
    #: when it is refilled; a snapshot may be older than what was lost.
    PAST = auto()
    #: A leader lacks what is known here to be committed.  The log stays as it is until somebody
    #: decides (keeping.py); then only another log helps.
    CONTRADICTED = auto()
    #: The log here has forgotten the group for good: only another log helps.
    LOG = auto()


NONE = Loss(0)
_REFILLABLE = Loss.ENTRIES | Loss.PAST
#: The replica has stopped: nothing that a leader sends is taken.
_FINAL = Loss.CONTRADICTED | Loss.LOG


class Terms(Protocol):
    """What is asked of a log (raft.storage.LogStorage)."""

    def first_index(self) -> int:
        """Return the index behind the snapshot."""
        ...

    def term(self, index: int) -> int | None:
        """Return the term at an index, the snapshot's own included; None: not known any more."""
        ...


# Events.


@dataclass(slots=True)
class LogOpened:
    """The group's log was opened; is_damaged: it knows that something of the group is lost."""

    is_damaged: bool


@dataclass(slots=True)
class LogForgotten:
    """The log was opened and has forgotten the group for good."""


@dataclass(slots=True)
class RegressionSuspected:
    """The disk is new and the group is not."""


@dataclass(slots=True)
class Contradicted:
    """A leader lacks what is known here to be committed, now or before a restart."""


@dataclass(slots=True)
class Released:
    """Somebody has decided about a contradicted replica: it may begin anew with another log."""


@dataclass(slots=True)
class FellBehind:
    """A peer remembers more of this log than it holds.

    is_leader: this replica leads; is_settled: and it has committed an entry of its term.
    """

    is_leader: bool = False
    is_settled: bool = False


@dataclass(slots=True)
class LeaderSaid:
    """A leader of `term` has sent entries or a snapshot; own_term: the replica's."""

    term: int
    own_term: int
    #: Up to where it has committed; with a snapshot the snapshot's index.
    committed: int
    is_snapshot: bool = False


@dataclass(slots=True)
class Progressed:
    """Perhaps the replica holds more than before; term: of who sent something last."""

    term: int
    own_term: int
    applied: int
    log: Terms


@dataclass(slots=True)
class LiveCompared:
    """The answer to COMPARE_LIVE; is_complete: the log holds all that the machine refers to."""

    is_complete: bool


@dataclass(slots=True)
class SnapshotInstalled:
    """A leader's snapshot has replaced the log, which may know of other losses."""

    is_log_damaged: bool


@dataclass(slots=True)
class RefillRecorded:
    """The answer to RECORD_REFILL: the log knows durably that its losses are made good."""


@dataclass(slots=True)
class SuspicionEnded:
    """Suspicions about all of the member's log are over (peer_logs.py)."""

    is_log_damaged: bool


Event: TypeAlias = (
    LogOpened
    | LogForgotten
    | RegressionSuspected
    | Contradicted
    | Released
    | FellBehind
    | LeaderSaid
    | Progressed
    | LiveCompared
    | SnapshotInstalled
    | RefillRecorded
    | SuspicionEnded
)


class Action(Enum):
    """What is to be done."""

    #: Compare what the machine refers to with what the log holds; tell by LiveCompared.
    COMPARE_LIVE = auto()
    #: Have the log note durably that its losses are made good; tell by RefillRecorded.
    RECORD_REFILL = auto()
    #: The replica leads and must not: somebody else is to.
    HAND_OVER = auto()
    #: The vote is back, and nothing that comes from outside would make use of it.
    RUN = auto()


class ReplicaHealth:
    """State: the losses, and how far the refill is.

    Invariants: `may_vote` says that there are no losses; then nothing is missing or waited for.
    """

    __slots__ = ("heard", "losses", "may_vote", "needs_repair", "target")

    _HANDLERS: ClassVar[dict[type[Event], Callable[..., Action | None]]]

    def __init__(self) -> None:
        self.losses = NONE
        #: The replica may vote, stand for election and be handed leadership.
        self.may_vote = True
        #: No further command of the leader helps: entries that the machine refers to are lost here,
        #: or the replica takes none.  Their messages may be settled; otherwise it takes another
        #: log (server/members/repair.py).
        self.needs_repair = False
        #: What this replica must hold before it votes; 0: not known.
        self.target = 0
        #: What the leader had committed when it last sent something; 0: nothing heard.
        self.heard = 0

    @property
    def is_suspected(self) -> bool:
        """Whether an earlier disk may have held more."""
        return Loss.PAST in self.losses

    def admits(self, kind: MessageKind) -> bool:
        """Tell whether the replica may see a message of this kind."""
        return self.may_vote or kind not in REQUIRES_VOTE

    def handle(self, event: Event) -> Action | None:
        """Take one event; return what is to be done."""
        action = self._HANDLERS[type(event)](self, event)
        self.may_vote = not self.losses
        if self.may_vote:
            # What a leader said then is nothing to a loss that is found out later.
            self.target = self.heard = 0
        return action

    def check_invariants(self) -> None:
        """AssertionError if this machine is broken."""
        assert self.may_vote == (self.losses == NONE)
        assert not (self.may_vote and (self.needs_repair or self.target or self.heard))

    # ---- what is lost ---------------------------------------------------------------------------

    def _log_opened(self, event: LogOpened) -> None:
        if event.is_damaged:
            self.losses |= Loss.ENTRIES

    def _log_forgotten(self, _: LogForgotten) -> None:
        self.losses |= Loss.LOG
        self.needs_repair = True

    def _suspected(self, _: RegressionSuspected) -> None:
        self.losses |= Loss.PAST

    def _contradicted(self, _: Contradicted) -> None:
        self.losses |= Loss.CONTRADICTED

    def _released(self, _: Released) -> None:
        self.losses |= Loss.CONTRADICTED
        self.needs_repair = True

    def _fell_behind(self, event: FellBehind) -> Action | None:
        if event.is_leader and event.is_settled:
            # Its majority has settled what the group's past is; no member could refill it.
            return Action.RECORD_REFILL
        self.losses |= Loss.ENTRIES
        self._forget_what_is_missing()
        return Action.HAND_OVER if event.is_leader else None

    def _forget_what_is_missing(self) -> None:
        """It is to be looked at anew, with what came; what has stopped takes nothing."""
        self.needs_repair = self.needs_repair and bool(self.losses & _FINAL)

    # ---- the refill -----------------------------------------------------------------------------

    def _leader_said(self, event: LeaderSaid) -> None:
        """What was committed at least; that of an entry's message replaces what was known."""
        if event.term < event.own_term:
            return
        self.heard = max(self.heard, event.committed) if event.is_snapshot else event.committed

    def _progressed(self, event: Progressed) -> Action | None:
        """A damaged replica is whole when it holds what a leader of this term has committed.

        A target stands until it is reached: one that moved with every command of a busy leader
        would not be.
        """
        if self.may_vote or self.losses & _FINAL:
            return None
        if event.applied < self.target or not self.heard:
            return None
        if any(_is_reached(heard, event) for heard in (self.target, self.heard) if heard):
            return Action.COMPARE_LIVE
        self.target = self.heard
        return None

    def _live_compared(self, event: LiveCompared) -> Action | None:
        """Live entries that are lost come back with a snapshot only, or are settled one day."""
        if self.may_vote:
            return None
        self.needs_repair = not event.is_complete
        if self.needs_repair:
            return None
        self.target = self.heard = 0
        return Action.RECORD_REFILL

    def _snapshot_installed(self, event: SnapshotInstalled) -> None:
        """It makes good what could not be read, and may be older than what else was lost."""
        self.losses &= ~Loss.ENTRIES
        self._log_opened(LogOpened(event.is_log_damaged))
        self._forget_what_is_missing()

    def _refill_recorded(self, _: RefillRecorded) -> Action | None:
        self.losses &= ~_REFILLABLE
        self._forget_what_is_missing()
        return None if self.losses else Action.RUN

    def _suspicion_ended(self, event: SuspicionEnded) -> Action | None:
        if self.may_vote or self.needs_repair or event.is_log_damaged:
            return None
        self.losses &= ~Loss.ENTRIES
        return None if self.losses else Action.RUN


def _is_reached(heard: int, event: Progressed) -> bool:
    """Tell whether all is applied up to an index that a leader had committed, and in its own term.

    Before it has committed an entry of its term, it may itself not know how far its predecessor had
    come (Raft thesis §3.6.2).  A snapshot that has been made since takes the terms of what it
    covers; its own index was committed as well, and later.
    """
    target = max(heard, event.log.first_index() - 1)
    return event.applied >= target and event.term == event.own_term == event.log.term(target)


ReplicaHealth._HANDLERS = {
    LogOpened: ReplicaHealth._log_opened,
    LogForgotten: ReplicaHealth._log_forgotten,
    RegressionSuspected: ReplicaHealth._suspected,
    Contradicted: ReplicaHealth._contradicted,
    Released: ReplicaHealth._released,
    FellBehind: ReplicaHealth._fell_behind,
    LeaderSaid: ReplicaHealth._leader_said,
    Progressed: ReplicaHealth._progressed,
    LiveCompared: ReplicaHealth._live_compared,
    SnapshotInstalled: ReplicaHealth._snapshot_installed,
    RefillRecorded: ReplicaHealth._refill_recorded,
    SuspicionEnded: ReplicaHealth._suspicion_ended,
}
