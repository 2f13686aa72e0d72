"""What is kept of the folded groups of a node, and what can be told of them as they are (ADR 61).

Used by hosted.py only, which folds them and makes them again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from brokerd.cluster.groups.host_events import GroupStatus, Progress
from brokerd.raft.folded import Folded
from brokerd.raft.inputs import Input
from brokerd.raft.machine import Machine
from brokerd.raft.messages import NodeId, members_of
from brokerd.storage.wal import WriteAheadLog

#: Of the state that came first, which all others are described by; more would be looked through in
#: vain.
PATTERN_BYTES_MAX = 4_096
#: As zlib's own: a window of 4 KiB, no header, little memory.
_WINDOW, _LEVEL, _MEMORY = -12, 6, 4


class Packing:
    """States that are nearly alike, each as what sets it apart from the first one.

    State: the first one; it stays, since all that was packed is read by it.
    """

    __slots__ = ("_pattern",)

    def __init__(self) -> None:
        self._pattern = b""

    def pack(self, state: bytes) -> bytes:
        """Return a state as a few bytes."""
        if not self._pattern:
            self._pattern = state[:PATTERN_BYTES_MAX]
        packer = zlib.compressobj(
            _LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zlib.Z_DEFAULT_STRATEGY, self._pattern
        )
        return packer.compress(state) + packer.flush()

    def unpack(self, packed: bytes) -> bytes:
        """Return a state that was packed here."""
        return zlib.decompressobj(_WINDOW, self._pattern).decompress(packed)


class Kept:
    """A folded group.  `folded.state` is packed, the machine's summary in front of it."""

    __slots__ = ("folded", "inputs", "log_uid", "make", "summary_size")

    def __init__(
        self, folded: Folded, log_uid: int, make: Callable[[], Machine], summary_size: int
    ) -> None:
        self.folded = folded
        self.log_uid = log_uid
        #: Makes the machine.
        self.make = make
        self.summary_size = summary_size
        #: What has come since; None: nothing.
        self.inputs: list[Input] | None = None


class FoldedGroups:
    """State: what is kept of each."""

    def __init__(self, node: NodeId, wal: WriteAheadLog) -> None:
        self._node = node
        self._wal = wal
        self._kept: dict[int, Kept] = {}
        self._packing = Packing()

    def __contains__(self, uid: int) -> bool:
        return uid in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def uids(self) -> list[int]:
        """Return all of them."""
        return list(self._kept)

    def log_uids(self) -> Iterable[int]:
        """Return what the log calls them."""
        return [kept.log_uid for kept in self._kept.values()]

    def get(self, uid: int) -> Kept | None:
        """Return what is kept of a group, None of others."""
        return self._kept.get(uid)

    def put(
        self,
        uid: int,
        folded: Folded,
        log_uid: int,
        make: Callable[[], Machine],
        summary: bytes,
    ) -> None:
        """Keep a replica; make, summary: as its machine gave them (`Machine.factory`)."""
        state = self._packing.pack(summary + folded.state)
        self._kept[uid] = Kept(replace(folded, state=state), log_uid, make, len(summary))

    def of(self, uid: int) -> Kept:
        """Return what is kept of a folded group."""
        return self._kept[uid]

    def forget(self, uid: int) -> None:
        """It is folded no longer."""
        del self._kept[uid]

    def clear(self) -> None:
        """Keep none of them."""
        self._kept.clear()

    def whole(self, kept: Kept) -> Folded:
        """Return what a replica is made of."""
        state = self._packing.unpack(kept.folded.state)
        return replace(kept.folded, state=state[kept.summary_size :])

    def leader_of(self, uid: int) -> NodeId | None:
        """Return who leads a folded group, None of others."""
        kept = self._kept.get(uid)
        return None if kept is None else kept.folded.leader

    def term_of(self, uid: int) -> int | None:
        """Return the newest term of a folded group, None of others."""
        kept = self._kept.get(uid)
        return None if kept is None else kept.folded.saved.term

    def machine_of(self, uid: int) -> Machine | None:
        """Return a copy of a folded group's machine, None of others."""
        kept = self._kept.get(uid)
        if kept is None:
            return None
        machine = kept.make()
        machine.restore(self.whole(kept).machine_state())
        return machine

    def summary_of(self, uid: int) -> bytes | None:
        """Return the summary of a folded group's machine, None of others."""
        kept = self._kept.get(uid)
        if kept is None:
            return None
        return self._packing.unpack(kept.folded.state)[: kept.summary_size]

    def progress_of(self, uid: int) -> Progress | None:
        """Return how far a folded group is, None of others."""
        kept = self._kept.get(uid)
        if kept is None:
            return None
        folded, log = kept.folded, self._wal.log(kept.log_uid)
        last, is_leader = folded.saved.commit, folded.leader == self._node
        term, snapshot = folded.saved.term, log.snapshot_index
        return Progress(folded.leader, is_leader, term, last, last, last, snapshot, False)

    def status_of(self, uid: int) -> GroupStatus | None:
        """Return the state of a folded group, None of others."""
        kept = self._kept.get(uid)
        if kept is None:
            return None
        folded, log = kept.folded, self._wal.log(kept.log_uid)
        last, is_leader = folded.saved.commit, folded.leader == self._node
        others = members_of(folded.configuration) - {self._node} if is_leader else ()
        return GroupStatus(
            folded.leader,
            folded.saved.term,
            is_leader,
            last,
            last,
            last,
            folded.configuration,
            dict.fromkeys(others, 0),
            log.snapshot_index,
            False,
            "",
            None,
            kept.log_uid,
            False,
            False,
            folded.configuration_index,
            is_leader,
        )
