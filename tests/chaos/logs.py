"""White box: which messages the logs of brokerd's members hold, read as recovery would read them.

A confirmed message must be readable in the logs of a majority, whoever has been killed before
(design/replication.md §5).  The files are copied while all members are frozen, so that nothing
moves. What the kernel has not written yet counts as readable: lost unsynced writes are the
simulator's.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from brokerd.storage import records, recovery
from brokerd.storage.disk import Disk
from brokerd.storage.errors import StorageError
from tests.chaos.cluster import Node
from tests.chaos.history import MessageKey
from tests.chaos.load import PADDING, wait_until

#: What `load` publishes: publisher, number, connection, padding.
BODY = re.compile(rb"(\d+):(\d+):\d+:" + re.escape(PADDING))
#: Files that hold nothing: segments to be used again.
EMPTY = ("*.free", "*.tmp")
#: A signal to stop takes its time to reach all threads.
STOP_S = 0.2


def copy_all(nodes: Sequence[Node], folder: Path) -> list[Path]:
    """Freeze all members, copy their logs, let them go on; return the copies."""
    copies = [folder / node.name for node in nodes]
    try:
        for node in nodes:
            node.signal(signal.SIGSTOP)
        wait_until(lambda: False, STOP_S)
        for node, copy in zip(nodes, copies, strict=True):
            shutil.copytree(node.data / "wal", copy, ignore=shutil.ignore_patterns(*EMPTY))
    finally:
        for node in nodes:
            node.signal(signal.SIGCONT)
    return copies


def readable(directory: Path) -> set[MessageKey]:
    """Return what entries of this log hold, in whichever queue; an unusable log holds nothing."""
    try:
        found = recovery.recover(directory, Disk(), None)
    except (StorageError, OSError):
        return set()
    held: set[MessageKey] = set()
    images: dict[int, bytes] = {}
    for group in found.groups.values():
        table = group.table
        for at, index in enumerate(table.indexes):
            if index in group.bad or index in group.unreadable:
                continue
            segment = table.segments.get(index)
            if segment not in images:
                images[segment] = (directory / records.segment_name(segment)).read_bytes()
            begin = table.offsets[at] + records.HEADER_BYTES
            data = images[segment][begin : begin + table.lengths[at]]
            held.update(MessageKey(int(who), int(what)) for who, what in BODY.findall(data))
    return held


def scarce(wanted: Collection[MessageKey], logs: Sequence[Path]) -> list[MessageKey]:
    """Return which of these messages, that nobody has received, are not in a majority of the logs.

    One that nobody has received is in its own queue and in no other.  The log's names of the queues
    tell nothing: a replica that left and came back has a new one.
    """
    counts = Counter(key for log in logs for key in readable(log))
    return sorted(key for key in wanted if counts[key] <= len(logs) // 2)
