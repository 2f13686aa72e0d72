"""A snapshot goes to the disk while it comes: memory is bounded, and it is whole or not there."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import pytest

from brokerd.cluster.errors import FrameError
from brokerd.cluster.groups import snapshot_spool
from brokerd.cluster.groups.snapshot_spool import SnapshotSpool
from brokerd.cluster.groups.write_queue import WriteQueue
from brokerd.cluster.peer import frames
from brokerd.cluster.peer.frames import SnapshotAssembler
from brokerd.raft.config import RaftConfig
from brokerd.raft.messages import (
    Configuration,
    Entry,
    HardState,
    Message,
    MessageKind,
    NodeId,
    Snapshot,
)
from brokerd.rpc.v1 import peer_pb2
from brokerd.storage import staging
from brokerd.storage.config import WalConfig
from brokerd.storage.wal import WriteAheadLog

A, B = NodeId("a"), NodeId("b")
GROUP, LOG = 7, 70
CHUNK_BYTES = 512 * 1024


class Bed:
    """A spool over a real log, and what it said to the streams."""

    def __init__(self, wal: WriteAheadLog) -> None:
        self.wal = wal
        self.failures: list[BaseException] = []
        self.queue = WriteQueue(wal, lambda drivers: None, self.failures.append)
        self.logs: dict[int, int] = {GROUP: LOG}
        self.spool = SnapshotSpool(wal, self.queue, RaftConfig(), self.logs.get)
        self.throttled: list[tuple[NodeId, bool]] = []
        self.spool.throttle = lambda node, is_held: self.throttled.append((node, is_held))
        self.assembler = SnapshotAssembler(1 << 20, self.spool)

    def take(self, part: frames.Part) -> Message | None:
        raft = peer_pb2.PeerFrame.FromString(b"".join(part[0])).raft[0]
        return self.assembler.add(raft, A, B)

    def take_all(self, parts: Iterable[frames.Part]) -> Message | None:
        found = None
        for part in parts:
            assert found is None
            found = self.take(part)
        return found

    async def drained(self) -> None:
        """All that was handed over is on disk."""
        async with asyncio.timeout(60):
            while self.spool.waiting_bytes:
                self.queue.hand_over()
                await asyncio.sleep(0)


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    wal = WriteAheadLog.open(tmp_path, WalConfig("b", segment_bytes=4 << 20, cache_bytes=0))
    bed = Bed(wal)
    yield bed
    await bed.queue.close()
    wal.close()
    assert not bed.failures


class Bodies(list[Entry]):
    """Live entries that are made while they are iterated, as the leader's log reads them."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size

    def __iter__(self) -> Iterator[Entry]:
        for at in range(1, self.number + 1):
            yield Entry(at, 1, 0, at.to_bytes(8, "little") * (self.size // 8))


def message(live: list[Entry], index: int = 10_000) -> Message:
    snapshot = Snapshot(index, 1, Configuration((A, B)), b"the state", live)
    return Message(MessageKind.SNAPSHOT, A, B, 1, snapshot=snapshot)


def installed(bed: Bed, found: Message) -> None:
    assert found.snapshot is not None
    hard_state = HardState(1, None, found.snapshot.index)
    bed.wal.install_snapshot(LOG, found.snapshot, hard_state)
    bed.wal.snapshot_installed(LOG, found.snapshot, hard_state)


async def test_a_snapshot_larger_than_its_memory_comes_through(bed: Bed) -> None:
    """96 MiB of bodies, an assembler that may hold 1 MiB, chunks of half of one."""
    live = Bodies(6_000, 16 * 1024)
    found = None
    tracemalloc.start()
    try:
        for part in frames.encode_snapshot(GROUP, message(live), CHUNK_BYTES):
            assert found is None
            found = bed.take(part)
            bed.queue.hand_over()
            if any(is_held for _, is_held in bed.throttled):
                await bed.drained()
                bed.throttled.clear()
        await bed.drained()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # What waits for the disk, the buffer of one write of it, and some.
    assert peak < 2.5 * snapshot_spool.WAITING_BYTES_MAX < 48 << 20
    assert found is not None
    assert found.snapshot is not None
    assert found.snapshot.data == b"the state"
    installed(bed, found)
    log = bed.wal.log(LOG)
    assert log.first_index() == 10_001
    assert log.entry_data(5_999) == (5_999).to_bytes(8, "little") * 2048
    snapshot = log.snapshot()
    assert snapshot is not None
    assert len(snapshot.live) == 6_000


async def test_the_sender_is_not_read_while_the_disk_is_behind(bed: Bed) -> None:
    live = Bodies(5, 4 << 20)
    for part in frames.encode_snapshot(GROUP, message(live), CHUNK_BYTES):
        bed.take(part)
    assert bed.throttled == [(A, True)]
    await bed.drained()
    assert bed.throttled == [(A, True), (A, False)]


async def test_a_stream_that_ends_leaves_nothing_and_the_next_one_begins_anew(bed: Bed) -> None:
    parts = list(frames.encode_snapshot(GROUP, message(Bodies(40, 1024)), 4096))
    for part in parts[:-2]:
        bed.take(part)
    bed.spool.node_lost(B)
    bed.spool.node_lost(A)
    await bed.drained()
    assert not any(bed.wal._ledger.live.values())
    # What still comes of it is not taken for a snapshot.
    assert [bed.take(part) for part in parts[-2:]] == [None, None]
    found = bed.take_all(parts)
    await bed.drained()
    assert found is not None
    installed(bed, found)
    assert bed.wal.log(LOG).entry_data(40) is not None


async def test_a_snapshot_that_the_replica_does_not_want_is_given_up(bed: Bed) -> None:
    parts = list(frames.encode_snapshot(GROUP, message(Bodies(9, 1024)), 4096))
    found = bed.take_all(parts)
    assert found is not None
    await bed.drained()
    assert sum(bed.wal._ledger.live.values()) > 9 * 1024
    del found
    gc.collect()
    assert sum(bed.wal._ledger.live.values()) == 0


async def test_a_missing_chunk_gives_up_what_came(bed: Bed) -> None:
    parts = list(frames.encode_snapshot(GROUP, message(Bodies(40, 1024)), 4096))
    for part in [*parts[:3], *parts[4:]]:
        assert bed.take(part) is None
    await bed.drained()
    assert sum(bed.wal._ledger.live.values()) == 0


async def test_snapshots_of_groups_that_are_not_here_are_not_kept(bed: Bed) -> None:
    parts = list(frames.encode_snapshot(8, message(Bodies(9, 1024)), 4096))
    assert [bed.take(part) for part in parts] == [None] * len(parts)
    assert bed.spool.waiting_bytes == 0
    parts = list(frames.encode_snapshot(GROUP, message(Bodies(9, 1024)), 4096))
    for part in parts[:-1]:
        bed.take(part)
    bed.logs.clear()
    bed.spool.sweep()
    assert bed.take(parts[-1]) is None
    await bed.drained()
    assert sum(bed.wal._ledger.live.values()) == 0


async def test_a_group_that_begins_another_log_meanwhile_gets_its_snapshot_again(bed: Bed) -> None:
    parts = list(frames.encode_snapshot(GROUP, message(Bodies(9, 1024)), 4096))
    for part in parts[:-1]:
        bed.take(part)
    bed.spool.sweep()
    bed.logs[GROUP] = LOG + 1
    assert bed.take(parts[-1]) is None
    await bed.drained()
    assert sum(bed.wal._ledger.live.values()) == 0


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([Entry(3, 1, 0, bytes(8)), Entry(3, 1, 0, bytes(8))], "not in order"),
        ([Entry(11, 1, 0, bytes(8))], "not in order"),
        ([Entry(3, 2, 0, bytes(8))], "impossible term"),
        ([Entry(3, 0, 0, bytes(8))], "impossible term"),
        ([Entry(3, 1, 0, b"short")], "too short"),
        ([Entry(3, 1, 9, bytes(8))], "unknown kind"),
    ],
)
async def test_entries_that_cannot_be_end_the_stream(
    bed: Bed, entries: list[Entry], why: str
) -> None:
    """SEC-44: nobody checks them later."""
    parts = frames.encode_snapshot(GROUP, message(entries, index=10), 4096)
    with pytest.raises(FrameError, match=why):
        bed.take_all(parts)


async def test_a_state_over_the_limit_is_refused_and_its_entries_given_up(bed: Bed) -> None:
    snapshot = Snapshot(9, 1, Configuration((A, B)), bytes(2 << 20))
    large = Message(MessageKind.SNAPSHOT, A, B, 1, snapshot=snapshot)
    with pytest.raises(FrameError, match="exceeds"):
        bed.take_all(frames.encode_snapshot(GROUP, large, CHUNK_BYTES))
    assert not bed.spool._incoming


async def test_chunks_of_several_groups_share_a_write_up_to_its_bound(bed: Bed) -> None:
    sizes: list[int] = []

    def written(size: int) -> None:
        sizes.append(size)
        bed.spool.waiting_bytes -= size

    staged = bed.wal.begin_staging(LOG)
    for index in range(1, 8):
        chunk = staging.extend(staged, [Entry(index, 1, 0, bytes(1536 * 1024))])
        bed.spool.waiting_bytes += chunk.size
        bed.queue.add_chunk(chunk, written)
    await bed.drained()
    assert sizes == [3 << 20, 3 << 20, 3 << 20, 1536 * 1024]
    assert len(staged.table) == 7
