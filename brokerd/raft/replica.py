"""Replica: RaftNode + machine + the ordering rules, still without I/O.

The rules: persist before a reply or a vote leaves, apply after commit, effects on the leader only.
The driver (cluster/driver.py) executes the actions and reports back as inputs; it decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from brokerd.raft.messages import Configuration, Entry, HardState, Message, NodeId, Snapshot

# ---- inputs -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Received:
    """A message of a peer arrived."""

    message: Message


@dataclass(slots=True)
class Tick:
    """One tick of the node's clock passed (config.tick_ms); quiet groups are not ticked."""

    now_ms: int


@dataclass(slots=True)
class Propose:
    """Commands, in order, each with a token that comes back in exactly one Reply."""

    now_ms: int
    commands: list[tuple[int, bytes]]


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
class TransferLeadership:
    """Hand leadership to `to` when it has caught up."""

    to: NodeId


@dataclass(slots=True)
class ChangeMembers:
    """Propose a configuration that differs by one member (Raft thesis §4.1)."""

    token: int
    configuration: Configuration


Input: TypeAlias = (
    Received
    | Tick
    | Propose
    | Persisted
    | SnapshotSaved
    | PeerUnreachable
    | LeaderAlive
    | TransferLeadership
    | ChangeMembers
)

# ---- actions ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Persist:
    """Write hard state and entries, then feed Persisted(token).

    Entries ascend without gaps; the first one's index truncates whatever stood there and behind.
    Persist actions of one group are executed in order; several may be on the way at once.
    """

    token: int
    hard_state: HardState | None
    entries: list[Entry]


@dataclass(slots=True)
class Send:
    """Send now; the replica has already waited for the disk where the protocol asks for it."""

    message: Message


@dataclass(slots=True)
class Reply:
    """The answer to a proposed command.  `accepted` False: not the leader (any more); try
    `leader`.
    """

    token: int
    accepted: bool
    reply: bytes
    leader: NodeId | None


@dataclass(slots=True)
class Realise:
    """Effects of one applied entry, to be done in this order."""

    index: int
    term: int
    effects: list[Any]


@dataclass(slots=True)
class SaveSnapshot:
    """Write this snapshot (live entries are named by `live_indexes`, not carried), then feed
    SnapshotSaved.
    """

    snapshot: Snapshot
    live_indexes: list[tuple[int, int]]


@dataclass(slots=True)
class InstallSnapshot:
    """Replace log and snapshot by what a leader sent, durably, then feed Persisted(token)."""

    token: int
    snapshot: Snapshot
    hard_state: HardState


@dataclass(slots=True)
class RoleChanged:
    """Leader or term changed; `leader` None: no leader is known."""

    leader: NodeId | None
    term: int
    is_leader: bool


Action: TypeAlias = Persist | Send | Reply | Realise | SaveSnapshot | InstallSnapshot | RoleChanged
