"""Every single-bit flip and every truncation of small logs: nothing is accepted in silence.

What an image is and how it is judged: wal_images.py (more of them: `python -m` it).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.storage import inspect, records, recovery
from brokerd.storage.scan import scan_segment
from tests.properties import wal_images
from tests.properties.wal_images import Subject, subject
from tests.unit.storage.builders import entry, segment_paths

#: design/replication.md §5, the column of every CI run.
IMAGES = 100_000


@pytest.fixture(params=[False, True], ids=["fresh", "recycled"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    return subject(tmp_path, recycled=request.param)


@pytest.mark.timeout(900)
def test_flipped_bits_and_truncated_files_are_harmless_or_reported(tmp_path: Path) -> None:
    verdicts = wal_images.judge_images(tmp_path, IMAGES)
    assert verdicts.total() == IMAGES
    assert verdicts["damaged"] > IMAGES // 2


def test_flips_reach_every_bit_of_what_was_written(log: Subject) -> None:
    seen = {image for _, image in wal_images.flips(log.whole[:64], 64)}
    assert len(seen) == 8 * 64
    assert all(
        sum((a ^ b).bit_count() for a, b in zip(image, log.whole, strict=False)) == 1
        for image in seen
    )


@pytest.mark.timeout(600)
def test_every_prefix_of_the_last_write_gives_back_what_was_synced_before(log: Subject) -> None:
    """A process is killed inside a write: what follows in the file is what stood there before."""
    whole, name = log.whole, log.path.name
    header = records.decode_segment_header(whole[:1024], name)
    scan = scan_segment(whole, header, name, is_tail=True)
    start, end = scan.last_batch_start, scan.end
    before: list[int] | None = None
    mark = records.encode_sync_mark(header, records.SyncMark(scan.last_batch - 1, start))
    log.disk.files[log.directory / records.MARK_NAME] = mark
    for length in range(end - start):
        log.disk.files[log.path] = (
            whole[: start + length] + bytes(end - start - length) + whole[end:]
        )
        found = recovery.recover(log.directory, log.disk, "a")
        group = found.groups[5]
        if before is None:
            before = list(group.table.indexes)
            assert not group.lost
            assert before == [2, 4, 5]
        if not (group.lost or found.lost):
            assert list(group.table.indexes)[: len(before)] == before
            assert group.table.terms.get(4) == 1


def test_verify_tells_intact_damaged_and_unusable_apart(tmp_path: Path) -> None:
    wal_images.build(tmp_path, recycled=False)
    assert inspect.verify(tmp_path).exit_code == inspect.EXIT_INTACT
    path = segment_paths(tmp_path)[-1]
    image = bytearray(path.read_bytes())
    image[image.index(entry(5, 3).data)] ^= 1
    path.write_bytes(image)
    verdict = inspect.verify(tmp_path)
    assert verdict.exit_code == inspect.EXIT_DAMAGED
    assert [view.uid for view in verdict.groups if view.is_damaged] == [5]
    path.write_bytes(b"nonsense")
    assert inspect.verify(tmp_path).exit_code == inspect.EXIT_UNUSABLE
    assert inspect.verify(tmp_path / "nowhere").exit_code == inspect.EXIT_UNUSABLE
