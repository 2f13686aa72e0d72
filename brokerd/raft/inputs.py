"""Inputs of a Replica: plain data.

For replica.py, which handles them, and for its drivers; import them from replica.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from brokerd.raft.messages import Configuration, Message, NodeId


@dataclass(slots=True)
class Received:
    """A message of a peer arrived."""

    message: Message


@dataclass(slots=True)
class Tick:
    """One tick of the node's clock passed (config.tick_ms); quiet groups are not ticked."""

    now_ms: int


@dataclass(slots=True)
class DeadlineReached:
    """The machine's deadline has come; a Tick says so too, up to a tick later."""

    now_ms: int


@dataclass(slots=True)
class Propose:
    """Commands, in order, each with a token that comes back in exactly one Reply.

    is_lazy: members beyond a majority may get them late (replication.py), or, where the machine
    allows it, they may be lost though they were answered (Machine.may_lose_last).
    """

    now_ms: int
    commands: list[tuple[int, bytes]]
    is_lazy: bool = False


@dataclass(slots=True)
class Look:
    """A command that perhaps changes nothing: where the machine can tell its answer as it is, and
    is as it would be when the command came to it, no entry is written.  Else it is proposed.
    """

    now_ms: int
    token: int
    command: bytes
    is_lazy: bool = False


@dataclass(slots=True)
class Hasten:
    """What lazy commands have left behind is to be sent and written now."""


@dataclass(slots=True)
class Persisted:
    """The writes of the Persist action with this token are on disk."""

    token: int


@dataclass(slots=True)
class SnapshotSaved:
    """The snapshot at `index` is on disk; the log below it may go."""

    index: int


@dataclass(slots=True)
class PeerUnreachable:
    """Messages to this peer were or may have been lost: probe it before sending more."""

    peer: NodeId


@dataclass(slots=True)
class LeaderAlive:
    """The node of the current leader was heard: counts as a heartbeat of every group it leads."""


@dataclass(slots=True)
class CatchUp:
    """Somebody looks at the machine: everything that is known to be committed is to be applied."""


@dataclass(slots=True)
class NodeGone:
    """The process of this node has ended, as far as its host can tell: a leader there is no more.

    Hearsay, so it only shortens the wait for an election; votes are as strict as ever.
    """

    node: NodeId


@dataclass(slots=True)
class TransferLeadership:
    """Hand leadership to `to` when it has caught up; at `to` itself: stand for election."""

    to: NodeId


@dataclass(slots=True)
class ChangeMembers:
    """Propose a configuration that differs by one member (Raft thesis §4.1)."""

    token: int
    configuration: Configuration


Input: TypeAlias = (
    Received
    | Tick
    | DeadlineReached
    | Propose
    | Look
    | Hasten
    | Persisted
    | SnapshotSaved
    | PeerUnreachable
    | LeaderAlive
    | CatchUp
    | NodeGone
    | TransferLeadership
    | ChangeMembers
)
