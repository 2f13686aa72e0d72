"""What a replica asks its driver to do (replica.py); executed in the order in which they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from brokerd.raft.messages import Contradiction, Entry, HardState, Message, NodeId, Snapshot


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


@dataclass(slots=True)
class Contradicted:
    """A leader would have committed entries replaced: keep what `contradiction` names, and say so.

    Comes once; from then on the replica takes part in nothing.
    """

    contradiction: Contradiction


Action: TypeAlias = (
    Persist | Send | Reply | Realise | SaveSnapshot | InstallSnapshot | RoleChanged | Contradicted
)
