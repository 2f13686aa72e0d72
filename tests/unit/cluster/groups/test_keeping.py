"""A contradicted replica's log is put aside in pieces, tried again, and found after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from brokerd.cluster.groups import keeping, replica_health
from brokerd.cluster.groups.driver import Driver
from brokerd.cluster.groups.keeping import Keeper
from brokerd.cluster.groups.replica_health import ReplicaHealth
from brokerd.cluster.groups.write_queue import WriteQueue
from brokerd.raft.messages import CATALOG_GROUP, Contradiction, Entry, NodeId
from brokerd.storage.aside import AsideFiles
from brokerd.storage.disk import Disk
from brokerd.storage.wal import WriteAheadLog
from tests.unit.storage.builders import entry, find, flip, open_log, put_range, save, segment_paths

UID = 7
A, B = NodeId("a"), NodeId("b")
FOUND = Contradiction(4, 1, 8, 9, B, 3)


@dataclass
class FakeReplica:
    contradiction: Contradiction | None = FOUND
    applied_index: int = 8
    last_index: int = 9
    term: int = 1


@dataclass
class FakeMachine:
    live: list[tuple[int, int]] = field(default_factory=lambda: [(1, 3), (5, 7)])

    def live_indexes(self) -> Sequence[tuple[int, int]]:
        return self.live

    def snapshot(self) -> bytes:
        return b"all there is"


@dataclass
class FakeDriver:
    uid: int = UID
    log_uid: int = UID
    replica: FakeReplica = field(default_factory=FakeReplica)
    machine: FakeMachine = field(default_factory=FakeMachine)
    is_volatile: bool = False
    health: ReplicaHealth = field(default_factory=ReplicaHealth)

    def learn(self, event: replica_health.Event) -> replica_health.Action | None:
        return self.health.handle(event)

    @property
    def is_contradicted(self) -> bool:
        return self.replica.contradiction is not None


class TightDisk(Disk):
    """Has room only if the test says so."""

    has_room = False

    def write_some(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        if not self.has_room:
            raise OSError(28, "No space left on device")
        return super().write_some(descriptor, data, offset)


def named(uid: int) -> keeping.Names:
    return "queue", "", f"{uid:x}", []


def one(_uid: int, _entry: Entry) -> int:
    return 1


class Bed:
    """A log with entries 1 to 9, its snapshot at 5 refers to 1, 2 and 5."""

    def __init__(self, folder: Path, disk: Disk | None = None, uid: int = UID) -> None:
        self.wal: WriteAheadLog = open_log(folder / "wal")
        put_range(self.wal, uid, 1, 10)
        save(self.wal, uid, 5, [(1, 3), (5, 6)])
        self.files = AsideFiles(folder / "aside", disk)
        self.failure: BaseException | None = None
        self.queue = WriteQueue(self.wal, lambda _: self.queue.hand_over(), self._failed)
        self.keeper = self.again()
        self.keeper.serve(named, one)

    def _failed(self, error: BaseException) -> None:
        self.failure = error

    def again(self) -> Keeper:
        return Keeper(A, self.wal, self.queue, self.files, lambda: 77)

    async def until(self, check: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not check():
                self.queue.hand_over()
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        await self.queue.close()
        self.wal.close()
        assert self.failure is None


@pytest.mark.parametrize("piece", [1, 1 << 20])
async def test_all_from_the_first_difference_on_is_kept_and_found_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(keeping, "PIECE_BYTES", piece)
    bed = Bed(tmp_path)
    fake = FakeDriver()
    bed.keeper.contradicted(cast("Driver", fake), FOUND)
    assert not fake.health.may_vote
    await bed.until(lambda: bed.keeper.kept)
    (kept,) = bed.keeper.kept.values()
    found = list(bed.files.entries(kept))
    # Of what the snapshot covers only what the machine refers to is there at all.
    assert [each.entry for each in found] == [entry(index) for index in (5, 6, 7, 8, 9)]
    # 5 and 6 are in the queue; of 9 nobody knows whether it was committed.
    assert [each.entry.index for each in found if each.is_live] == [5, 6, 9]
    assert kept.messages == 3
    again = bed.again()
    assert again.contradiction_of(UID) == Contradiction(4, 0, 8, 9, B, 3)
    assert again.contradiction_of(8) is None
    for phase, lacks in (("kept", False), ("released", True)):
        again.kept[kept.id].progress.phase = phase
        later = FakeDriver()
        again.opened(cast("Driver", later))
        assert (later.health.may_vote, later.health.needs_repair) == (False, lacks)
    # Nothing is written twice.
    bed.keeper.look_again([cast("Driver", fake)])
    assert not bed.keeper.is_writing(UID)
    await bed.close()


async def test_a_catalog_is_kept_with_its_state_and_begins_anew_without_a_vote(
    tmp_path: Path,
) -> None:
    bed = Bed(tmp_path, uid=CATALOG_GROUP)
    fake = FakeDriver(CATALOG_GROUP, CATALOG_GROUP)
    bed.keeper.contradicted(cast("Driver", fake), FOUND)
    await bed.until(lambda: bed.keeper.kept)
    (kept,) = bed.keeper.kept.values()
    assert bed.files.state(kept) == b"all there is"
    kept.progress.phase = "begun"
    assert bed.keeper.contradiction_of(CATALOG_GROUP) is None
    anew = FakeDriver(CATALOG_GROUP, CATALOG_GROUP, FakeReplica(None))
    bed.keeper.opened(cast("Driver", anew))
    assert anew.health.is_suspected
    volatile = FakeDriver(CATALOG_GROUP, CATALOG_GROUP, is_volatile=True)
    bed.keeper.opened(cast("Driver", volatile))
    assert volatile.health.may_vote
    await bed.close()


async def test_a_full_disk_is_no_end_and_it_is_tried_again(tmp_path: Path) -> None:
    disk = TightDisk()
    bed = Bed(tmp_path, disk)
    fake = cast("Driver", FakeDriver())
    bed.keeper.contradicted(fake, FOUND)
    await bed.until(lambda: bed.keeper.faults)
    assert "No space left" in bed.keeper.faults[UID]
    assert bed.keeper.kept == {}
    disk.has_room = True
    bed.keeper.look_again([fake])
    await bed.until(lambda: bed.keeper.kept)
    assert bed.keeper.faults == {}
    await bed.close()


async def test_what_cannot_be_read_is_said_and_the_rest_is_kept(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    path = segment_paths(tmp_path / "wal")[0]
    flip(path, find(path, entry(7).data) + 3)
    bed.keeper.contradicted(cast("Driver", FakeDriver()), FOUND)
    await bed.until(lambda: bed.keeper.kept)
    (kept,) = bed.keeper.kept.values()
    assert 7 not in [each.entry.index for each in bed.files.entries(kept)]
    assert any("entry 7 is lost" in remark for remark in kept.progress.remarks)
    await bed.close()


async def test_a_queue_that_the_catalog_forgot_is_kept_whole(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    fake = cast("Driver", FakeDriver(replica=FakeReplica(None, 9)))
    bed.keeper.keep_orphan(fake)
    assert bed.keeper.is_writing(UID)
    await bed.until(lambda: bed.keeper.kept)
    (kept,) = bed.keeper.kept.values()
    assert (kept.description.kind, kept.description.first) == ("orphan", 1)
    assert [each.entry.index for each in bed.files.entries(kept)] == [1, 2, 5, 6, 7, 8, 9]
    # It is nobody's contradiction.
    assert bed.keeper.of_log(UID) is None
    await bed.close()


async def test_without_a_folder_the_log_keeps_it_all(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    keeper = Keeper(A, bed.wal, bed.queue, None, lambda: 77)
    fake = FakeDriver()
    keeper.contradicted(cast("Driver", fake), FOUND)
    keeper.look_again([cast("Driver", fake)])
    assert not fake.health.may_vote
    assert keeper.kept == {}
    await bed.close()


async def test_a_log_that_was_forgotten_takes_nothing_and_is_to_be_made_anew(
    tmp_path: Path,
) -> None:
    """A catalog that has lost a deletion brings a queue back whose log here is gone for good:
    what is written to it would not count, and must not be acknowledged.
    """
    bed = Bed(tmp_path)
    bed.wal.remove_groups([UID])
    found = bed.keeper.contradiction_of(UID)
    assert found is not None
    fake = FakeDriver(replica=FakeReplica(found))
    bed.keeper.opened(cast("Driver", fake))
    assert fake.health.needs_repair
    bed.keeper.look_again([cast("Driver", fake)])
    assert not bed.keeper.is_writing(UID)
    await bed.close()
