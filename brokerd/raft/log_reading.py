"""What a log holds, read into a machine without a replica: for somebody who only wants to look.

PURE.  Used by cluster/groups/host.py.
"""

from __future__ import annotations

from brokerd.raft.machine import Machine, Meta
from brokerd.raft.messages import EntryKind
from brokerd.raft.storage import LogStorage
from brokerd.raft.validation import STAMP_BYTES

#: So much of a log is in memory at once.
PIECE_BYTES = 4 * 1024 * 1024


def apply_all(log: LogStorage, machine: Machine) -> None:
    """Have a new machine see all of a log: the snapshot, and every entry behind it.

    Right for a group of one member only, where all that its disk holds is committed.  As much work
    as the start of its replica; effects are ignored.
    """
    snapshot = log.snapshot_state()
    if snapshot is not None:
        machine.restore(snapshot.data)
    index, last = log.first_index(), log.last_index()
    while index <= last:
        for entry in log.entries(index, last + 1, PIECE_BYTES):
            if entry.kind == EntryKind.COMMAND:
                now_ms = int.from_bytes(entry.data[:STAMP_BYTES], "little")
                machine.apply(Meta(entry.index, entry.term, now_ms), entry.data[STAMP_BYTES:])
            index = entry.index + 1
