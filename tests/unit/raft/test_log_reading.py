"""A machine is shown all of a log, without a replica."""

from __future__ import annotations

import pytest

from brokerd.core.queue import enqueue_commands
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.raft import log_reading
from brokerd.raft.machine import Meta
from brokerd.raft.messages import Configuration, Entry, EntryKind, NodeId, Snapshot
from tests.simulation.disk import FakeDisk

CONTENT = (("", "q"), b"", b"body", b"")


def enqueue(index: int, kind: EntryKind = EntryKind.COMMAND) -> Entry:
    # Of another channel each: none of these follows on one that is not there.
    command = enqueue_commands.encode_enqueue("n0", 1, index, 1, [CONTENT])
    return Entry(index, 1, kind, (1000 + index).to_bytes(8, "little") + command)


@pytest.mark.parametrize("piece_bytes", [1, log_reading.PIECE_BYTES])
def test_a_snapshot_and_what_is_behind_it_are_read(
    monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(log_reading, "PIECE_BYTES", piece_bytes)
    disk, machine = FakeDisk(), QueueMachine()
    for index in (1, 2):
        machine.apply(Meta(index, 1, 1000 + index), enqueue(index).data[8:])
    disk.saved = Snapshot(2, 1, Configuration((NodeId("n0"),)), machine.snapshot())
    # What a leader's term begins with is no command.
    disk.log = [Entry(3, 2, EntryKind.NOOP, b""), enqueue(4), enqueue(5)]
    read = QueueMachine()
    log_reading.apply_all(disk, read)
    assert (machine.store.ready, read.store.ready) == (2, 4)
    head, last = read.store.head(), read.overview()
    assert head is not None
    assert head.entry.enqueued_ms == 1001
    assert last["ready"] == 4


def test_an_empty_log_says_nothing() -> None:
    read = QueueMachine()
    log_reading.apply_all(FakeDisk(), read)
    assert read.store.ready == 0
