"""Deep queues keep what is far from both ends in blocks: nothing else about them changes."""

from __future__ import annotations

import json
import struct
import sys
import tracemalloc
from array import array

import pytest

from brokerd.core.queue import enqueue_commands, queue_commands, ready_spans
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue.queue_spans import Entry, Span
from brokerd.core.queue.ready_spans import Block, ReadySpans
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.queue_driver import QueueDriver, StepMeta, consumer, content, delivered

BLOCK = 3
UNPACKED = 4


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_spans, "BLOCK_SPANS", BLOCK)
    monkeypatch.setattr(ready_spans, "UNPACKED_MIN", UNPACKED)


def deep(count: int, **options: int | None) -> QueueDriver:
    """Return a queue with one message in each of `count` entries."""
    q = QueueDriver(queue_type="quorum", **options)
    for number in range(count):
        q.publish(b"x" * (number % 3))
    return q


def packed(machine: QueueMachine) -> int:
    """Return how many entries are packed."""
    items = [item for _, _, item in machine.store.items()]
    return sum(len(item) for item in items if isinstance(item, Block))


def rows(machine: QueueMachine) -> list[tuple[int, int, int, int | None]]:
    return [(s.first, s.end, s.size_bytes(), s.expires_ms) for s in machine.store]


def drain(q: QueueDriver) -> list[int]:
    """Consume everything with acknowledgements, a few at a time; return the order."""
    who = consumer("drain", channel=9)
    order: list[int] = []
    got = delivered(q.consume("drain", prefetch=4, channel=9)).get("drain", [])
    while got:
        order += got
        ranges = [(number, number + 1) for number in got]
        got = delivered(q.settle(*ranges, who=who)).get("drain", [])
    return order


def test_only_entries_behind_the_first_and_before_the_last_are_packed() -> None:
    q = deep(UNPACKED + BLOCK - 1)
    assert packed(q.machine) == 0
    q.publish(b"x")
    assert packed(q.machine) == BLOCK
    assert len(q.machine.store.entries) == UNPACKED
    for _ in range(BLOCK):
        q.publish(b"x")
    assert packed(q.machine) == 2 * BLOCK


def test_a_deep_queue_is_delivered_in_order_and_its_live_indexes_shrink_from_the_front() -> None:
    q = deep(40)
    assert packed(q.machine) == 36
    assert list(q.machine.live_indexes()) == [(1, 41)]
    assert drain(q) == list(range(40))
    assert packed(q.machine) == 0
    assert list(q.machine.live_indexes()) == []


def test_what_is_returned_from_a_deep_queue_comes_first_again() -> None:
    """R-QQ-14"""
    q = deep(40, delivery_limit=5)
    q.consume(prefetch=6)
    q.channel_down()
    assert drain(q) == list(range(40))


def test_messages_that_differ_within_an_entry_are_not_packed_and_keep_their_place() -> None:
    q = QueueDriver()
    for number in range(30):
        if number % 8 == 5:
            q.publish(b"a", b"longer")
        else:
            q.publish(b"x", b"x")
    assert 0 < packed(q.machine) < 30
    assert drain(q) == list(range(60))


def test_a_fifo_without_a_stretch_of_plain_entries_packs_nothing() -> None:
    q = QueueDriver()
    for _ in range(20):
        q.publish(b"a", b"longer")
        q.publish(b"x")
    assert packed(q.machine) == 0


@pytest.mark.parametrize("ttl_ms", [None, 1_000])
def test_a_deep_queue_is_the_same_after_a_snapshot(ttl_ms: int | None) -> None:
    q = deep(23, message_ttl_ms=ttl_ms)
    q.publish(b"a", b"longer")
    for _ in range(9):
        q.publish(b"y")
    q.consume(prefetch=5)
    data = q.machine.snapshot()
    twin = QueueMachine(QueueOptions())
    twin.restore(data)
    twin.check_invariants()
    assert twin.snapshot() == data
    assert (packed(twin), rows(twin)) == (packed(q.machine), rows(q.machine))
    assert twin.overview() == q.machine.overview()
    assert list(twin.live_indexes()) == list(q.machine.live_indexes())
    before = len(q.log)
    for _ in range(8):
        q.publish(b"z")
    q.settle((0, 5))
    for meta, command in q.log[before:]:
        twin.apply(meta, command)
    assert twin.snapshot() == q.machine.snapshot()


def test_what_stands_behind_the_last_block_is_packed_as_before_after_a_snapshot() -> None:
    q = deep(10)
    q.publish(b"x")
    q.publish(b"a", b"longer")
    twin = QueueMachine(QueueOptions())
    twin.restore(q.machine.snapshot())
    before = len(q.log)
    for _ in range(BLOCK):
        q.publish(b"x")
    for meta, command in q.log[before:]:
        twin.apply(meta, command)
    assert packed(q.machine) == 3 * BLOCK
    assert twin.snapshot() == q.machine.snapshot()


def test_returned_messages_of_a_deep_queue_survive_a_snapshot() -> None:
    q = deep(23, delivery_limit=5)
    q.consume(prefetch=2)
    q.channel_down()
    data = q.machine.snapshot()
    twin = QueueMachine(QueueOptions())
    twin.restore(data)
    assert twin.snapshot() == data
    assert [span.first for span in twin.store] == list(range(23))


def test_returned_neighbours_join_again_wherever_they_go() -> None:
    """R-DL-7, R-QQ-14: to the back without a delivery limit, to the front with one."""
    for limit, order in ((None, [3, 4, 0, 1, 2]), (5, [0, 1, 2, 3, 4])):
        q = QueueDriver(queue_type="quorum", delivery_limit=limit)
        q.fill(5)
        q.consume(prefetch=3)
        q.send(queue_commands.encode_cancel(consumer()))
        for number in range(3):
            q.requeue((number, number + 1))
        assert len(list(q.machine.store)) == 2
        assert [q.get(no_ack=True)["run"][0] for _ in range(5)] == order


def test_a_snapshot_is_the_same_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are little-endian in it; swapped twice they are what they were."""
    data = deep(23).machine.snapshot()
    monkeypatch.setattr(sys, "byteorder", "big")
    twin = QueueMachine(QueueOptions())
    twin.restore(data)
    # This machine's own order is the other one, so it swaps on the way in and out.
    assert twin.snapshot() == data
    assert list(twin.live_indexes()) != [(1, 24)]


def test_packed_messages_expire_when_they_reach_the_head() -> None:
    """R-TTL-1, R-TTL-4"""
    q = deep(30, message_ttl_ms=500)
    assert packed(q.machine) == 24
    q.tick(after_ms=499)
    assert q.ready == 30
    q.tick(after_ms=1)
    assert (q.ready, q.count("expired")) == (0, 30)


def test_a_deep_queue_is_purged_and_what_consumers_hold_stays() -> None:
    """R-QQ-19"""
    q = deep(30)
    q.publish(b"a", b"longer")
    q.consume(prefetch=2)
    assert q.reply(queue_commands.encode_purge())["messages"] == 30
    assert list(q.machine.live_indexes()) == [(1, 3)]
    q.settle((0, 2))
    assert list(q.machine.live_indexes()) == []


def test_returned_messages_of_each_kind_are_purged() -> None:
    """R-QQ-14, R-ACK-5"""
    for kind in ("quorum", "classic"):
        q = QueueDriver(queue_type=kind, delivery_limit=5 if kind == "quorum" else None)
        for _ in range(12):
            q.publish(b"x")
        q.consume(prefetch=3)
        q.channel_down()
        assert q.reply(queue_commands.encode_purge())["messages"] == 12
        assert list(q.machine.live_indexes()) == []


def test_a_deep_queue_that_ends_counts_each_message_once() -> None:
    """R-DLX-3"""
    q = deep(30)
    assert q.reply(queue_commands.encode_delete(False, False, "deleted"))["messages"] == 30
    assert (q.count("enq"), q.count("purged")) == (30, 30)
    assert list(q.machine.live_indexes()) == []


def test_entries_of_a_block_need_not_follow_each_other() -> None:
    """Other commands of the queue stand between them in the log."""
    q = QueueDriver()
    for _ in range(12):
        q.publish(b"x")
        q.tick()
    assert packed(q.machine) == 6
    assert list(q.machine.live_indexes()) == [(n, n + 1) for n in range(1, 24, 2)]
    twin = QueueMachine()
    twin.restore(q.machine.snapshot())
    assert list(twin.live_indexes()) == list(q.machine.live_indexes())
    q.send(queue_commands.encode_purge())
    assert list(q.machine.live_indexes()) == []


def test_priorities_have_fifos_of_their_own() -> None:
    """R-PRI-1, R-PRI-4"""
    q = QueueDriver(max_priority=2)
    for number in range(40):
        q.publish(content(b"x", priority=number % 2))
    order = drain(q)
    assert order == [*range(1, 40, 2), *range(0, 40, 2)]


def block(**changes: array[int]) -> Block:
    columns: dict[str, array[int]] = {
        "indexes": array("q", (1, 2)),
        "firsts": array("q", (0, 1)),
        "enqueued": array("q", (5, 5)),
        "expiries": array("q", (-1, 9)),
        "counts": array("I", (1, 1)),
        "sizes": array("I", (3, 3)),
    }
    return Block(**(columns | changes))


def test_a_block_knows_its_sums() -> None:
    whole = block(counts=array("I", (1, 4)))
    assert (len(whole), whole.messages(), whole.size_bytes(), whole.expiring()) == (2, 5, 15, 4)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"indexes": array("q", (2, 2))}, "out of order"),
        ({"indexes": array("q", (2,))}, "differ in length"),
        ({"firsts": array("q", (0, 0))}, "overlap"),
        ({"firsts": array("q", (-1, 0))}, "overlap"),
        ({"counts": array("I", (1, 0))}, "holds nothing"),
    ],
)
def test_a_block_that_cannot_be_is_refused(changes: dict[str, array[int]], why: str) -> None:
    """SEC-44: a snapshot comes from the disk or from another member."""
    with pytest.raises(ValueError, match=why):
        block(**changes).check()


def test_an_empty_block_is_refused() -> None:
    empty = {name: array("q") for name in ("indexes", "firsts", "enqueued", "expiries")}
    with pytest.raises(ValueError, match="differ in length"):
        block(**empty, counts=array("I"), sizes=array("I")).check()


def test_a_fifo_does_not_begin_with_a_block() -> None:
    with pytest.raises(ValueError, match="begins with a block"):
        ReadySpans(0, {}).restore([block()])


def test_a_truncated_snapshot_of_a_deep_queue_is_refused() -> None:
    """SEC-44"""
    data = deep(23).machine.snapshot()
    for size in (len(data) - 1, len(data) - 40, len(data) - 300):
        with pytest.raises((ValueError, struct.error)):
            QueueMachine().restore(data[:size])
    (size,) = struct.unpack_from("<I", data, 1)
    assert json.loads(data[5 : 5 + size])["blocks"]


def test_spans_after_a_block_are_taken_up_as_they_were() -> None:
    entries: dict[int, Entry] = {}

    def span(index: int) -> Span:
        entry = entries[index] = Entry.of_equal_sizes(index, index, 0, 1, 3)
        entry.live = 1
        return Span(entry, index, index + 1)

    first, between, last = span(1), span(12), span(23)
    fifo = ReadySpans(0, entries)
    fifo.restore([first, block(), between, block(), last])
    assert (list(fifo.head), list(fifo.tail)) == ([first], [last])
    assert [item.first for item in fifo.items() if isinstance(item, Span)] == [1, 12, 23]
    assert [fifo.pop(9).entry.index for _ in range(4)] == [1, 1, 2, 12]


def test_a_message_is_found_behind_one_that_came_back() -> None:
    entries: dict[int, Entry] = {}
    fifo = ReadySpans(0, entries)
    for number, acquired_count in ((1, 0), (0, 1), (2, 0)):
        entry = entries[number] = Entry.of_equal_sizes(number, number, 0, 1, 3)
        span = Span(entry, number, number + 1)
        span.acquired_count = acquired_count
        fifo.append(span)
    assert [item.first for item in fifo.items() if isinstance(item, Span)] == [1, 0, 2]
    assert fifo.find(2, 0) == 2
    assert fifo.find(1, 0) == 0
    assert fifo.find(0, 1) == 1


def test_a_ready_message_in_an_entry_of_its_own_costs_less_than_150_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """hot-path.md, "Scale": with its body in the log; the log's own table has 16 bytes more."""
    monkeypatch.undo()
    machine = QueueMachine(QueueOptions("quorum"))
    count = 20_000
    tracemalloc.start()
    try:
        for number in range(1, count + 1):
            command = enqueue_commands.encode_enqueue("n1", 7, 1, number, [content(b"x" * 100)])
            machine.apply(StepMeta(number, 1, 1_700_000_000_000 + number), command)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert machine.overview()["ready"] == count
    assert used / count < 100


def test_a_packed_message_is_estimated_at_a_few_bytes() -> None:
    queue = QueueDriver()
    assert queue.machine.memory_bytes() == 0
    queue.publish(b"x")
    near_an_end = queue.machine.memory_bytes()
    for _ in range(ready_spans.UNPACKED_MIN + ready_spans.BLOCK_SPANS):
        queue.publish(b"x")
    count = 1 + ready_spans.UNPACKED_MIN + ready_spans.BLOCK_SPANS
    packed = near_an_end * count - queue.machine.memory_bytes()
    assert packed > ready_spans.BLOCK_SPANS * near_an_end * 0.8
