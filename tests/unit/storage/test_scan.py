"""A write that a power cut tore in the middle of a header, beside damage that looks like it.

Of a record's last bytes often only one bit is set (its kind), so a lost sector that began there
leaves a header that is one flipped bit away from an intact one.  What follows tells them apart.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.storage.faults import FaultyDisk
from brokerd.storage.records import HEADER_BYTES
from brokerd.storage.scan import SECTOR_BYTES
from tests.unit.storage.builders import (
    entry,
    everything,
    open_log,
    put,
    put_unsynced,
    segment_paths,
)

#: Behind this much of a header stands its kind, and little else.
BEFORE_KIND = 50


def written(tmp_path: Path, headers_before: int) -> tuple[Path, int, int]:
    """Write twice, and once without a sync; return the segment, where the last write begins and
    where it ends.

    A sector ends within the header that follows `headers_before` headers of the last write.
    """
    log = open_log(tmp_path, disk=(disk := FaultyDisk()))
    put(log, 7, entry(1, size=0))
    wanted = (headers_before * HEADER_BYTES + BEFORE_KIND) % SECTOR_BYTES
    size = -(log._writer.active.end + 2 * HEADER_BYTES + wanted) % SECTOR_BYTES
    put(log, 7, entry(2, size=size))
    start = log._writer.active.end
    end = put_unsynced(log, disk, 7, entry(3, size=600))
    log.close()
    assert (start + wanted) % SECTOR_BYTES == 0
    return segment_paths(tmp_path)[0], start, end


@pytest.mark.parametrize("headers_before", [0, 1])
def test_a_sector_lost_in_the_middle_of_a_header_is_a_torn_write(
    tmp_path: Path, headers_before: int
) -> None:
    """G8: the header of the write itself, or of its entry (simulator seeds 2379, 20670)."""
    path, start, end = written(tmp_path, headers_before)
    image = bytearray(path.read_bytes())
    lost = start + headers_before * HEADER_BYTES + BEFORE_KIND
    image[lost:end] = bytes(end - lost)
    path.write_bytes(image)
    notes: list[str] = []
    log = open_log(tmp_path, notes=notes)
    assert [found.index for found in everything(log, 7)] == [1, 2]
    assert not log.log(7).damaged
    assert any("never acknowledged" in note for note in notes), notes
    log.close()


@pytest.mark.parametrize("headers_before", [0, 1])
def test_a_flipped_bit_of_a_header_with_all_that_follows_is_damage(
    tmp_path: Path, headers_before: int
) -> None:
    """G8: bits all over the last write's headers; nothing that was synced is cut off in silence."""
    path, start, _ = written(tmp_path, headers_before)
    intact = path.read_bytes()
    first = start + headers_before * HEADER_BYTES
    for bit in range(0, 8 * HEADER_BYTES, 13):
        image = bytearray(intact)
        image[first + bit // 8] ^= 1 << bit % 8
        path.write_bytes(image)
        notes: list[str] = []
        log = open_log(tmp_path, notes=notes)
        assert any("DAMAGE" in note for note in notes), (bit, notes)
        log.close()


def test_two_flipped_bits_of_one_header_are_damage_where_all_else_is_there(tmp_path: Path) -> None:
    """G8: no sector of the write is blank, so it was not torn."""
    path, start, _ = written(tmp_path, 1)
    intact = path.read_bytes()
    first = start + HEADER_BYTES
    for one, other in ((0, 4), (1, 20), (20, 52), (0, 1)):
        image = bytearray(intact)
        image[first + one] ^= 1
        image[first + other] ^= 4
        path.write_bytes(image)
        notes: list[str] = []
        log = open_log(tmp_path, notes=notes)
        assert any("DAMAGE" in note for note in notes), (one, other, notes)
        log.close()
