"""Snapshots of queues that are damaged: refused before anything of their size is made."""

from __future__ import annotations

import json
import struct

import pytest

from brokerd.core.queue import QueueMachine
from brokerd.core.queue_commands import QueueOptions
from tests.unit.core.queue_driver import QueueDriver


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
        QueueMachine("q", QueueOptions()).restore(bytes(raw))


def restored(q: QueueDriver) -> None:
    """Go on with a machine that has read the snapshot."""
    data = q.machine.snapshot()
    q.machine = QueueMachine("q", QueueOptions())
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


def test_a_queue_keeps_its_name() -> None:
    q = QueueDriver()
    assert q.machine.name == "q"
