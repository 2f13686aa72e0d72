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
