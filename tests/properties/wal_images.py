"""Damaged images of small logs, judged one by one: every flipped bit, every truncated length, every
tail that reads as zeros, with the mark of what was synced and without.

An image either gives back all that had been synced, or the log refuses to open, or the groups that
are concerned are marked damaged: nothing is accepted in silence (design/replication.md §1, §5; G8).

    python -m tests.properties.wal_images --images 5000000 --first-seed 1
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from brokerd.raft.messages import Entry, HardState, NodeId
from brokerd.storage import inspect, records, recovery
from brokerd.storage.disk import Disk
from brokerd.storage.errors import CorruptLog, UnknownFormat, WrongNode
from brokerd.storage.wal import GroupWrite, WriteAheadLog
from tests.unit.storage.builders import (
    THREE,
    collect_all,
    entry,
    everything,
    install,
    open_log,
    put_range,
    save,
    segment_paths,
    small,
)

REFUSED = (CorruptLog, UnknownFormat, WrongNode)


class ImageDisk(Disk):
    """Reads files from memory, so that an image costs no system call; refuses to write."""

    def __init__(self, files: dict[Path, bytes]) -> None:
        super().__init__()
        self.files = files
        self.identities: dict[Path, tuple[int, int]] = {}
        for path in files:
            descriptor = Disk.open(self, path)
            self.identities[path] = Disk.identity(self, descriptor)
            Disk.close(self, descriptor)
        self.opened: list[Path] = []

    def open(self, path: Path, *, create: bool = False) -> int:
        assert not create, "judging an image changes nothing"
        if path not in self.files:
            raise FileNotFoundError(path)
        self.opened.append(path)
        return len(self.opened) - 1

    def open_now(self, path: Path) -> int:
        return self.open(path)

    def close(self, descriptor: int) -> None:
        if descriptor == len(self.opened) - 1:
            self.opened.pop()

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        return self.files[self.opened[descriptor]][offset : offset + size]

    def identity(self, descriptor: int) -> tuple[int, int]:
        return self.identities[self.opened[descriptor]]

    def size(self, path: Path) -> int:
        return len(self.files[path])


class Expected:
    """What was synced, by group."""

    def __init__(self, log: WriteAheadLog) -> None:
        self.entries: dict[int, list[Entry]] = {}
        self.hard_states: dict[int, HardState] = {}
        self.live: dict[int, dict[int, bytes | None]] = {}
        for uid in log.groups():
            group = log.log(uid)
            self.entries[uid] = everything(log, uid)
            self.hard_states[uid] = group.initial_state()[0]
            self.live[uid] = {
                index: group.entry_data(index) for index in range(1, group.first_index())
            }


@dataclass
class Subject:
    """A log that is damaged again and again: its files, and the one whose images are judged."""

    directory: Path
    expected: Expected
    path: Path
    whole: bytes
    #: Behind the last record of that file.
    end: int
    disk: ImageDisk
    verdicts: Counter[str] = field(default_factory=Counter)

    def judge(self, image: bytes) -> str:
        """Judge the log with this in the place of its last segment."""
        self.disk.files[self.path] = image
        verdict = judge(self.directory, self.expected, self.disk)
        self.verdicts[verdict] += 1
        return verdict


def build(directory: Path, *, recycled: bool, seed: int = 0) -> Expected:
    """Write a log with a bit of everything; the last write is one of two groups.

    Seed 0 is always the same log; others differ in sizes, terms and the number of entries.
    """
    chance = random.Random(seed)

    def size(ordinary: int) -> int:
        return ordinary if not seed else chance.randrange(1, 3 * ordinary)

    config = small(recycled_segments_max=4 if recycled else 0)
    log = open_log(directory, config)
    if recycled:
        put_range(log, 9, 1, 30, size=900)
        save(log, 9, 29, [])
        collect_all(log)
        for index in range(30, 60):
            if log._writer.active.header.fresh:
                put_range(log, 9, index, index + 1, size=900)
        assert not log._writer.active.header.fresh
    log.bootstrap([(5, THREE)])
    writes = [
        GroupWrite(5, HardState(1, NodeId("a"), 0), [entry(1), entry(2, size=size(40))]),
        GroupWrite(6, HardState(2, NodeId("b"), 0), [entry(1, 2, size=size(100))]),
    ]
    log.write(writes)
    log.written(writes)
    put_range(log, 5, 3, 6 + (chance.randrange(4) if seed else 0), size=size(40))
    save(log, 5, 3, [(2, 3)])
    install(log, 6, 9, 3, [entry(4, 2, size=size(40))])
    writes = [
        GroupWrite(5, HardState(3, NodeId("c"), 5), [entry(5, 3), entry(6, 3, size=size(40))]),
        GroupWrite(6, HardState(3, None, 9), [entry(10, 3, size=size(90))]),
    ]
    log.write(writes)
    log.written(writes)
    expected = Expected(log)
    log.close()
    return expected


def subject(directory: Path, *, recycled: bool, seed: int = 0) -> Subject:
    """Build a log and check that, undamaged, it is whole."""
    expected = build(directory, recycled=recycled, seed=seed)
    files = {path: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    path = segment_paths(directory)[-1]
    end = inspect.verify(directory).segments[-1].used_bytes
    disk = ImageDisk(files)
    assert judge(directory, expected, disk) == "whole"
    return Subject(directory, expected, path, files[path], end, disk)


def judge(directory: Path, expected: Expected, disk: Disk) -> str:
    """Return "refused", "damaged" or "whole"; fail on anything accepted in silence."""
    try:
        found = recovery.recover(directory, disk, "a")
    except REFUSED:
        return "refused"
    verdict = "whole"
    for uid, entries in expected.entries.items():
        group = found.groups.get(uid)
        if group is None:
            assert found.lost, f"group {uid} vanished in silence"
            return "damaged"
        if group.lost or group.unreadable or found.lost:
            verdict = "damaged"
            continue
        table = group.table
        base = group.state.snapshot_index
        assert [index for index in table.indexes if index > base] == [e.index for e in entries]
        assert [table.terms.get(e.index) for e in entries] == [e.term for e in entries]
        assert group.state.hard_state == expected.hard_states[uid]
        for index, data in expected.live[uid].items():
            assert (table.find(index) >= 0) == (data is not None), (uid, index)
    return verdict


def flips(whole: bytes, end: int) -> Iterator[tuple[str, bytes]]:
    """Yield every image with one flipped bit of what is used, the eight of a byte far apart."""
    image = bytearray(whole)
    mark = records.SYNC_MARK_AT
    size = records.SYNC_MARK_FRONT.size + records.SYNC_MARK_BODY.size
    offsets = [
        *range(min(end, records.SEGMENT_HEADER_BYTES)),
        *range(mark, min(end, mark + size)),
        *range(mark + records.SYNC_MARK_COPY, min(end, mark + records.SYNC_MARK_COPY + size)),
        *range(records.SEGMENT_DATA_START, end),
    ]
    for bit in range(8):
        for offset in offsets:
            mask = 1 << (offset + bit) % 8
            image[offset] ^= mask
            yield f"bit {mask:#x} at {offset}", bytes(image)
            image[offset] ^= mask


def truncations(whole: bytes, end: int) -> Iterator[tuple[str, bytes]]:
    """Yield every shorter file that ends within what was written, and a few beyond."""
    for length in [*range(end + 100), len(whole) - 1]:
        yield f"length {length}", whole[:length]


def zeroed(whole: bytes, end: int) -> Iterator[tuple[str, bytes]]:
    """Yield every image whose tail reads as zeros though it was synced; the mark of what was synced
    is there, or reads as zeros too.  And the mark alone: then nobody knows whether there was more.
    """
    start = records.SEGMENT_DATA_START
    without_mark = whole[: records.SYNC_MARK_AT] + bytes(start - records.SYNC_MARK_AT)
    yield "mark zeroed", without_mark + whole[start:]
    for head, name in ((whole[:start], "tail"), (without_mark, "mark and tail")):
        for cut in range(start, end):
            if any(whole[cut:end]):
                yield (
                    f"{name} zeroed from {cut}",
                    head + whole[start:cut].ljust(len(whole) - start, b"\0"),
                )


def judge_images(directory: Path, count: int, first_seed: int = 0) -> Counter[str]:
    """Judge so many images, of as many logs as it takes; AssertionError names the image."""
    total: Counter[str] = Counter()
    seed = first_seed
    while total.total() < count:
        for recycled in (False, True):
            folder = directory / f"{seed}-{'recycled' if recycled else 'fresh'}"
            folder.mkdir(parents=True)
            log = subject(folder, recycled=recycled, seed=seed)
            total += _judge_log(log, folder.name, count - total.total())
        seed += 1
    return total


def _judge_log(log: Subject, name: str, count: int) -> Counter[str]:
    kinds = ((zeroed, False), (truncations, False), (flips, True))
    for images, may_be_whole in kinds:
        for what, image in images(log.whole, log.end):
            if log.verdicts.total() >= count:
                return log.verdicts
            try:
                verdict = log.judge(image)
            except AssertionError as error:
                raise AssertionError(f"log {name}, {what}: {error}") from error
            # What is there twice (the segment's header) or superseded may be flipped harmlessly.
            assert may_be_whole or verdict != "whole", f"log {name}, {what}: not reported"
    return log.verdicts


def main() -> int:
    """Judge, and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--first-seed", type=int, default=0)
    args = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="wal-images-") as folder:
        verdicts = judge_images(Path(folder), args.images, args.first_seed)
    print(
        f"wal images: {verdicts.total()} judged in {time.monotonic() - started:.0f} s, "
        f"first seed {args.first_seed}: {dict(sorted(verdicts.items()))}, "
        "0 accepted in silence"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
