"""What members of a Raft group say to each other, and what stands in the log.

Pure data, shared by the core, the replica, the storage room and the transport.
The message set follows the design of etcd-io/raft; see also the Raft thesis chapters 3, 4 and 9.6.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import NewType, TypeAlias

NodeId = NewType("NodeId", str)
#: Per-incarnation unique id of a group: a deleted and re-created queue gets a new one, so it can
#: never read its namesake's old entries.  Random 63-bit, except the catalog's.
GroupUid = NewType("GroupUid", int)
Term = NewType("Term", int)
LogIndex = NewType("LogIndex", int)

CATALOG_GROUP = GroupUid(1)


class EntryKind(IntEnum):
    """What an entry's data is."""

    COMMAND = 0
    #: The first entry of a term; it commits the entries of earlier terms (Raft thesis §3.6.2).
    NOOP = 1
    #: A new configuration: voters and learners, applied as soon as it is appended (§4.1).
    CONFIG = 2


@dataclass(slots=True)
class Entry:
    """One entry of a group's log.  `data` starts with an 8-byte little-endian `now_ms` for
    COMMAND.
    """

    index: int
    term: int
    kind: int
    data: bytes


class MessageKind(IntEnum):
    """Raft message types; the numbers are on the wire."""

    PRE_VOTE = 1
    PRE_VOTE_REPLY = 2
    VOTE = 3
    VOTE_REPLY = 4
    APPEND = 5
    APPEND_REPLY = 6
    HEARTBEAT = 7
    HEARTBEAT_REPLY = 8
    SNAPSHOT = 9
    SNAPSHOT_REPLY = 10
    #: The leader asks its chosen successor to start an election at once (leader transfer, §3.10).
    TIMEOUT_NOW = 11


#: (first index, term) of consecutive terms, ascending.
TermStarts: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(slots=True, frozen=True)
class Contradiction:
    """A leader's log lacks entries that are known here to be committed (following.py)."""

    #: The first entry that differs, and its term here.
    first: int
    term: int
    #: What is known to be committed here, and the end of the log.
    committed: int
    last: int
    leader: NodeId
    #: The term in which it leads.
    leader_term: int


#: Different configurations of which one object each is kept.
CONFIGURATIONS_KEPT = 4_096


@dataclass(slots=True, frozen=True)
class Configuration:
    """Who belongs to the group; sorted tuples, so that equal configurations are equal values."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()


@lru_cache(maxsize=CONFIGURATIONS_KEPT)
def configuration_of(
    voters: tuple[NodeId, ...], learners: tuple[NodeId, ...] = ()
) -> Configuration:
    """Return a configuration that is to be kept: one object for all groups that have it."""
    return Configuration(voters, learners)


@lru_cache(maxsize=CONFIGURATIONS_KEPT)
def members_of(configuration: Configuration) -> frozenset[NodeId]:
    """Return all members; one object as well."""
    return frozenset(configuration.voters + configuration.learners)


@dataclass(slots=True)
class Snapshot:
    """A machine's state at `index`, with the entries at or below it that the state still refers
    to.
    """

    index: int
    term: int
    configuration: Configuration
    data: bytes
    #: Entries (ascending index, all <= index) that hold bodies of live messages.  The storage may
    #: read them only while they are iterated.
    live: Collection[Entry] = field(default_factory=list)
    #: Where the newest terms up to `index` begin, (first index, term), ascending: by these alone a
    #: member whose log is shorter can tell whether what it knows to be committed is covered.
    terms: TermStarts = ()


@dataclass(slots=True)
class Message:
    """One Raft message of one group; the group's uid travels beside it."""

    kind: MessageKind
    sender: NodeId
    to: NodeId
    term: int
    #: APPEND: index before the first entry.  VOTE: last index.  APPEND_REPLY: highest index known
    #: to match.
    index: int = 0
    #: Term at `index`.
    log_term: int = 0
    commit: int = 0
    reject: bool = False
    #: Refused APPEND_REPLY: the highest index that may match.
    hint: int = 0
    entries: list[Entry] = field(default_factory=list)
    snapshot: Snapshot | None = None
    #: VOTE / PRE_VOTE of a leader transfer: voters answer even if they have heard a leader.
    #: APPEND_REPLY: who sends it does not know who belongs to the group.
    force: bool = False


@dataclass(slots=True, frozen=True)
class HardState:
    """What must be on disk before any message that depends on it leaves (§3.8)."""

    term: int = 0
    vote: NodeId | None = None
    commit: int = 0
