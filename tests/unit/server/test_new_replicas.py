"""What a replica of a queue is when it is opened, before its leader has told it anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerd.core import queue_commands
from brokerd.core.catalog_objects import Queue
from brokerd.core.machine import Meta
from brokerd.core.queue import QueueMachine
from brokerd.core.queue_commands import QueueOptions
from brokerd.raft.messages import NodeId
from brokerd.server.broker import Broker


def opened(queue_type: str) -> QueueMachine:
    """Return the machine of a queue that the catalog has just named."""
    machines: list[QueueMachine] = []
    spec = {
        "type": queue_type,
        "durable": True,
        "auto_delete": False,
        "arguments": {},
        "settings": {},
    }
    broker = SimpleNamespace(
        node="n1",
        _queues={},
        groups=SimpleNamespace(set_members=lambda uid, members: None),
        host=SimpleNamespace(
            driver_of=lambda uid: None,
            has_group=lambda uid: False,
            open_group=lambda uid, first, machine, **how: machines.append(machine),
        ),
        refill=SimpleNamespace(opened=lambda uid, count: None),
    )
    queue = Queue("/", "q", cast(Any, spec), 7, [NodeId("n0"), NodeId("n1")])
    Broker._open(cast(Broker, broker), queue)
    return machines[0]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_options_that_come_behind_the_first_messages_are_taken(queue_type: str) -> None:
    """A leader that hands over in vain is refused at first, and publishers may be quicker: a queue
    that took itself for a classic one would refuse its own type, and its limits with it, for ever.
    """
    machine = opened(queue_type)
    assert machine.options == QueueOptions(queue_type=queue_type)
    content = (("", "q"), b"", b"body", b"")
    first = queue_commands.encode_enqueue("n0", 1, 1, 1, [content])
    options = QueueOptions(queue_type=queue_type, max_length=5)
    for index, command in enumerate((first, queue_commands.encode_update_options(options)), 1):
        meta = cast(Meta, SimpleNamespace(index=index, term=1, now_ms=1))
        machine.apply(meta, command)
    assert machine.store.ready == 1
    assert machine.options == options
