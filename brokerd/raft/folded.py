"""A replica that stands still, as what it is made of again when somebody needs it (ADR 61).

The log stays where it is; what its storage knows is not repeated here.  Made by `Replica.fold`,
taken by its constructor; cluster/groups/hosted.py keeps it meanwhile.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from brokerd.raft.messages import Configuration, HardState, NodeId, TermStarts

_NUMBERS = struct.Struct("<6q")


@dataclass(slots=True, frozen=True)
class Figures:
    """Numbers of a replica and its node that only they use."""

    #: Index of the newest snapshot on disk.
    snapshot_index: int
    #: First index of the leader's term of office.
    term_start: int
    #: Bytes applied since the snapshot was made, and those of the snapshot itself.
    applied_bytes: int
    saved_bytes: int
    #: Newest time heard of.
    now_ms: int
    ignored_count: int

    def pack(self) -> bytes:
        """Return them as bytes."""
        return _NUMBERS.pack(
            self.snapshot_index,
            self.term_start,
            self.applied_bytes,
            self.saved_bytes,
            self.now_ms,
            self.ignored_count,
        )


@dataclass(slots=True, frozen=True)
class Folded:
    """Invariant: every entry of the log is on disk, committed and applied, here and at all others
    that this member, if it leads, knows of.
    """

    #: Who leads; this member itself if it does.
    leader: NodeId
    #: As the disk has it.
    saved: HardState
    configuration: Configuration
    configuration_index: int
    terms: TermStarts
    #: Figures and the machine's snapshot: many are nearly alike, so that together they can be made
    #: small.
    state: bytes

    def figures(self) -> Figures:
        """Return the numbers."""
        return Figures(*_NUMBERS.unpack_from(self.state))

    def machine_state(self) -> bytes:
        """Return the machine's snapshot."""
        return self.state[_NUMBERS.size :]
