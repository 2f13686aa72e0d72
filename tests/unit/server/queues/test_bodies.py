"""Bodies leave memory when it runs short, and are read from the log to be delivered."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.core.queue import enqueue_commands
from brokerd.core.queue.effects import Run
from brokerd.raft.messages import Entry
from brokerd.server.queues import bodies
from brokerd.server.queues.bodies import BodyCaches, MessageViews
from brokerd.storage.wal import WriteAheadLog
from tests.unit.storage.builders import open_log, put, small

GROUP = 5
STAMP_BYTES = 8


def command(index: int, size: int) -> bytes:
    body = index.to_bytes(8, "little") * (size // 8)
    return enqueue_commands.encode_enqueue("a", 1, 1, index, [(("", "q"), b"\0\0", body, b"")])


def run(index: int) -> Run:
    return Run(index - 1, 1, index, 0, 0, 0)


class Limits:
    """A log's cache that remembers how it was bounded."""

    def __init__(self) -> None:
        self.told: list[int | None] = []

    def limit_cache(self, bytes_max: int | None) -> None:
        self.told.append(bytes_max)

    def cached_bytes(self) -> int:
        return 0


def read(log: WriteAheadLog, index: int) -> bytes | None:
    data = log.log(GROUP).entry_data(index)
    return None if data is None else data[STAMP_BYTES:]


def test_bodies_are_paged_out_and_read_back_for_delivery(tmp_path: Path) -> None:
    """design/replication.md §2.7"""
    log = open_log(tmp_path, small(segment_bytes=1 << 20, cache_bytes=64 << 20))
    views = MessageViews(lambda uid, index: read(log, index))
    caches = BodyCaches(views, log)
    for index in range(1, 81):
        put(log, GROUP, Entry(index, 1, 0, bytes(STAMP_BYTES) + command(index, 100_000)))
        assert views.contents(GROUP, run(index)) is not None
    assert log.stats.cached_bytes > 8_000_000
    assert views.size_bytes > 8_000_000

    caches.memory_seen(used=76, limit=100)
    assert caches.is_paging
    assert log.stats.cached_bytes <= bodies.PAGING_BYTES_MAX
    assert views.size_bytes <= bodies.PAGING_BYTES_MAX
    for index in range(1, 81):
        found = views.contents(GROUP, run(index))
        assert found is not None
        assert found[0][2] == index.to_bytes(8, "little") * 12_500
    assert views.size_bytes <= bodies.PAGING_BYTES_MAX

    caches.memory_seen(used=59, limit=100)
    for index in range(81, 111):
        put(log, GROUP, Entry(index, 1, 0, bytes(STAMP_BYTES) + command(index, 100_000)))
    assert log.stats.cached_bytes > bodies.PAGING_BYTES_MAX
    log.close()


@pytest.mark.parametrize(
    ("seen", "is_paging"),
    [
        ([(75, 100)], False),
        ([(76, 100)], True),
        ([(76, 100), (61, 100)], True),
        ([(76, 100), (60, 100)], False),
        ([(76, 0)], False),
        ([(76, 100), (76, 0)], False),
    ],
)
def test_paging_begins_before_the_alarm_and_ends_well_below(
    seen: list[tuple[int, int]], is_paging: bool
) -> None:
    """A limit of 0 is none (R-MEM-7)."""
    log = Limits()
    caches = BodyCaches(MessageViews(lambda uid, index: None), log)
    for used, limit in seen:
        caches.memory_seen(used, limit)
    assert caches.is_paging is is_paging
    told = list(log.told)
    caches.memory_seen(*seen[-1])
    assert log.told == told


def test_one_entry_is_kept_however_large() -> None:
    """Deliveries of one batch follow each other."""
    views = MessageViews(lambda uid, index: command(index, 8_000))
    views.limit(100)
    for index in (1, 2):
        assert views.contents(GROUP, run(index)) is not None
        assert 8_000 <= views.size_bytes < 16_000
