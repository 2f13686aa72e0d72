"""Snapshots of queues that are damaged: refused before anything of their size is made."""

from __future__ import annotations

import json
import struct

import pytest

from brokerd.core.queue import enqueue_commands, queue_commands
from brokerd.core.queue.queue_commands import Kind
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.queue_driver import QueueDriver, content


@pytest.mark.parametrize(("column", "number"), [(3, 1 << 40), (3, -1), (5, 1 << 40), (5, -1)])
def test_an_entry_that_says_to_be_huge_is_refused(column: int, number: int) -> None:
    """SEC-44: a count is no reason to take memory, nor to go round a loop for ever."""
    q = QueueDriver()
    q.fill(3)
    raw = bytearray(q.machine.snapshot())
    (size,) = struct.unpack_from("<I", raw, 1)
    assert json.loads(raw[5 : 5 + size])["entries"] == 1
    struct.pack_into("<q", raw, 5 + size + 8 * column, number)
    with pytest.raises(ValueError, match="an entry of"):
        QueueMachine(QueueOptions()).restore(bytes(raw))


def restored(q: QueueDriver) -> None:
    """Go on with a machine that has read the snapshot."""
    data = q.machine.snapshot()
    q.machine = QueueMachine(QueueOptions())
    q.machine.restore(data)
    q.machine.check_invariants()


def test_an_entry_of_which_the_middle_is_gone_is_kept_until_the_rest_is() -> None:
    """G1: each piece counts; the first that goes must not take the others' bodies with it."""
    q = QueueDriver(queue_type="quorum")
    q.fill(3)
    q.consume(prefetch=2)
    q.settle((1, 2))
    q.channel_down()
    restored(q)
    (kept,) = list(q.machine.live_indexes())
    assert kept == (1, 2)
    q.consume(prefetch=1)
    q.settle((0, 1))
    assert list(q.machine.live_indexes()) == [kept]
    q.settle((2, 3))
    assert list(q.machine.live_indexes()) == []


def test_a_restored_quorum_queue_hands_over_to_a_consumer_of_higher_priority() -> None:
    """R-CS-7: a replica that read a snapshot must decide as one that read the log."""
    q = QueueDriver(queue_type="quorum", single_active_consumer=True)
    q.consume("low")
    restored(q)
    q.consume("high", priority=5)
    active = [row["consumer"].tag for row in q.machine.consumer_rows() if row["active"]]
    assert active == ["high"]


@pytest.mark.parametrize(
    "raw", [b'{"%s":%d}' % (name, 10**30) for name in (b"ttl_ms", b"priority", b"delivery_count")]
)
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_times_and_counts_beyond_all_use_fit_into_a_snapshot(raw: bytes, queue_type: str) -> None:
    """SEC-44: what is taken over can be written down, though no client can send it so large."""
    options = {"message_ttl_ms": 10**30, "max_length": 10**30, "queue_type": queue_type}
    q = QueueDriver()
    q.send(bytes((queue_commands.VERSION, Kind.UPDATE_OPTIONS)) + json.dumps(options).encode())
    batch = [(*content()[:3], raw), content()]
    q.send(enqueue_commands.encode_enqueue("n1", 7, 1, 0, batch))
    again = QueueMachine(QueueOptions())
    again.restore(q.machine.snapshot())
    assert again.snapshot() == q.machine.snapshot()
    assert again.store.ready == 2


def test_service_queues_are_as_before_after_a_snapshot() -> None:
    """R-CS-4, R-QQ-10: round robin goes on where it was."""
    q = QueueDriver()
    for tag in ("a", "b", "c"):
        q.consume(tag, prefetch=9, priority=int(tag == "c"))
    q.fill(1)
    before = q.machine.consumers.service_queues()
    assert [[who.tag for who in fifo] for fifo in before] == [["a", "b"], ["c"]]
    twin = QueueMachine()
    twin.restore(q.machine.snapshot())
    assert twin.consumers.service_queues() == before
    twin.check_invariants()
