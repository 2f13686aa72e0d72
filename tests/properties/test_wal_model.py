"""The log against a model, over random histories with crashes, collection and reopening.

The model is a MemoryLog per group.  A crash loses any sectors of what was not synced; a history is
a seed, so that a failing one can be replayed.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from brokerd.raft.messages import Entry, HardState, NodeId, Snapshot
from brokerd.storage.errors import StorageFailed
from brokerd.storage.faults import FaultyDisk
from brokerd.storage.memory import MemoryLog
from brokerd.storage.wal import GroupWrite, WriteAheadLog
from tests.unit.storage.builders import THREE, entry, open_log, small

SEEDS = int(os.environ.get("BROKERD_TEST_WAL_SEEDS", "60"))
STEPS = 120
GROUPS = (5, 6, 7, 8)


class History:
    """One run: the log, its model, and what to do next."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.directory = directory
        self.config = small(
            recycled_segments_max=self.chance.choice((0, 2)),
            cache_bytes=self.chance.choice((0, 2000)),
            collect_bytes_max=self.chance.choice((500, 1 << 20)),
        )
        self.model: dict[int, MemoryLog] = {}
        self.removed: set[int] = set()
        self.live: dict[int, list[tuple[int, int]]] = {}
        self.story: list[str] = []
        self.log = self.open()

    def open(self) -> WriteAheadLog:
        self.disk = FaultyDisk()
        notes: list[str] = []
        log = open_log(self.directory, self.config, notes, self.disk)
        assert not [note for note in notes if "DAMAGE" in note or "damaged" in note], notes
        return log

    def group(self) -> int | None:
        return self.chance.choice([uid for uid in GROUPS if uid not in self.removed] or [None])

    def of(self, uid: int) -> MemoryLog:
        return self.model.setdefault(uid, MemoryLog())

    # ---- steps ----------------------------------------------------------------------------------

    def random_write(self) -> list[GroupWrite]:
        writes: list[GroupWrite] = []
        for _ in range(self.chance.randrange(1, 4)):
            uid = self.group()
            if uid is None or any(write.uid == uid for write in writes):
                continue
            model = self.of(uid)
            last = model.last_index()
            term = (model.term(last) or 0) + self.chance.randrange(2)
            first = self.chance.choice(
                (last + 1, self.chance.randint(model.first_index(), last + 1))
            )
            if first <= last:
                term += 1
            size = self.chance.choice((10, 100, 700))
            entries = [
                entry(index, term, size)
                for index in range(first, first + self.chance.randrange(0, 4))
            ]
            hard_state = HardState(term, NodeId("b"), first) if self.chance.random() < 0.5 else None
            writes.append(GroupWrite(uid, hard_state, entries))
        return writes

    def write(self) -> None:
        writes = self.random_write()
        self.log.write(writes)
        self.log.written(writes)
        for write in writes:
            self.of(write.uid).append(write.hard_state, write.entries)

    def save(self) -> None:
        uid = self.group()
        if uid is None or self.of(uid).last_index() < self.of(uid).first_index():
            return
        model = self.of(uid)
        index = self.chance.randint(model.first_index(), model.last_index())
        snapshot = Snapshot(index, model.term(index) or 0, THREE, b"%d" % index)
        live = self.random_live(uid, index)
        self.log.save_snapshot(uid, snapshot, live)
        self.log.snapshot_saved(uid, snapshot, live)
        model.save_snapshot(snapshot, live)
        self.live[uid] = live

    def random_live(self, uid: int, upto: int) -> list[tuple[int, int]]:
        model = self.of(uid)
        return [
            (index, index + 1)
            for index in range(1, upto + 1)
            if model.entry_data(index) is not None and self.chance.random() < 0.3
        ]

    def set_live(self) -> None:
        uid = self.group()
        if uid is not None and self.live.get(uid):
            live = [pair for pair in self.live[uid] if self.chance.random() < 0.6]
            self.log.set_live(uid, live)
            self.of(uid).set_live(live)
            self.live[uid] = live

    def install(self) -> None:
        uid = self.group()
        if uid is None:
            return
        index = self.of(uid).last_index() + self.chance.randrange(1, 5)
        term = (self.of(uid).term(self.of(uid).last_index()) or 0) + 1
        live = [entry(at, term) for at in range(1, index + 1) if self.chance.random() < 0.2]
        snapshot = Snapshot(index, term, THREE, b"%d" % index, live)
        hard_state = HardState(term, None, index)
        self.log.install_snapshot(uid, snapshot, hard_state)
        self.log.snapshot_installed(uid, snapshot, hard_state)
        self.of(uid).install_snapshot(snapshot, hard_state)
        self.live[uid] = [(found.index, found.index + 1) for found in live]

    def remove(self) -> None:
        uid = self.group()
        if uid is not None and uid in self.model and self.chance.random() < 0.1:
            self.log.remove_groups([uid])
            self.removed.add(uid)
            del self.model[uid]

    def collect(self) -> None:
        """Collect, sometimes with a write of the loop's in between, sometimes dying in between."""
        work = self.log.collect()
        if work is None:
            return
        if self.chance.random() < 0.3:
            self.write()
        self.log.collect_write(work)
        if self.chance.random() < 0.2:
            self.reopen()
            return
        if self.chance.random() < 0.3:
            self.write()
        self.log.collected(work)

    def reopen(self) -> None:
        self.log.close()
        self.disk.crash(lambda _path, _offset: True)
        self.log = self.open()
        self.forget_live()

    def die(self) -> None:
        """Lose power inside a write: it may be there wholly, in part or not at all."""
        writes = self.random_write()
        self.disk.faults.sync_fails_at = 1
        try:
            self.log.write(writes)
        except StorageFailed:
            pass
        else:
            self.disk.faults.sync_fails_at = 0
            self.log.written(writes)
        self.log.close()
        share = self.chance.choice((0.0, 0.5, 1.0))
        fate: dict[tuple[Path, int], bool] = {}
        self.disk.crash(
            lambda path, offset: fate.setdefault((path, offset), self.chance.random() < share)
        )
        self.log = self.open()
        self.forget_live()
        for write in writes:
            self.accept(write)

    def accept(self, write: GroupWrite) -> None:
        """Take over whatever prefix of an unacknowledged write has survived."""
        group, model = self.log.log(write.uid), self.of(write.uid)
        found = group.initial_state()[0]
        if write.hard_state is not None and found == write.hard_state:
            model.append(write.hard_state, [])
        survivors: list[Entry] = []
        for expected in write.entries:
            if group.term(expected.index) != expected.term:
                break
            if group.entry_data(expected.index) != expected.data:
                break
            survivors.append(expected)
        if survivors and group.last_index() == survivors[-1].index:
            model.append(None, survivors)

    def forget_live(self) -> None:
        """A restart knows the live ranges of the snapshot only; more may be readable again."""
        for uid, live in self.live.items():
            if uid not in self.removed:
                self.log.set_live(uid, live)

    # ---- judgement ------------------------------------------------------------------------------

    def check(self) -> None:
        for uid, model in self.model.items():
            group = self.log.log(uid)
            assert not group.damaged
            assert group.initial_state()[0] == model.initial_state()[0], uid
            first, last = model.first_index(), model.last_index()
            assert (group.first_index(), group.last_index()) == (first, last), uid
            assert [group.term(at) for at in range(last + 2)] == [
                model.term(at) for at in range(last + 2)
            ]
            if first <= last:
                assert group.entries(first, last + 1, 1 << 30) == model.entries(
                    first, last + 1, 1 << 30
                )
            for low, high in self.live.get(uid, ()):
                for at in range(low, high):
                    assert group.entry_data(at) == model.entry_data(at), (uid, at)
        assert not self.removed & set(self.log.groups())
        live = {segment: size for segment, size in self.log._ledger.live.items() if size}
        assert live == self.counted(), "the ledger of live bytes is off"

    def counted(self) -> dict[int, int]:
        """Count the live bytes per segment anew."""
        counted: dict[int, int] = {}
        for uid in self.log.groups():
            table = self.log.log(uid).table
            for segment, size in table.usage(0, len(table)):
                counted[segment] = counted.get(segment, 0) + size
        return counted

    def run(self) -> None:
        steps = {
            self.write: 10,
            self.save: 2,
            self.set_live: 2,
            self.install: 1,
            self.remove: 1,
            self.collect: 4,
            self.reopen: 0.4,
            self.die: 0.6,
        }
        for _ in range(STEPS):
            step = self.chance.choices(list(steps), list(steps.values()))[0]
            self.story.append(step.__name__)
            step()
            if step.__name__ in ("reopen", "die", "collect") or self.chance.random() < 0.1:
                self.check()
        self.reopen()
        self.check()
        self.log.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_log_equals_its_model_over_random_histories(tmp_path: Path, seed: int) -> None:
    History(tmp_path, seed).run()
