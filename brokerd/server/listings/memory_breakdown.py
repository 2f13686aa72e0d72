"""Where a member's memory goes: estimates by part, from counts that its machines keep anyway.

Nothing is noted per message.  What one object costs stands below, as `python -m bench.memory`
measures it; what no part accounts for is said to be `other`, so that the sum is what the process
uses, unless the estimates are too high.  Asked by listings, metrics and telemetry; built by app.py.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from brokerd.server.loop.chunks import in_chunks

if TYPE_CHECKING:
    from collections.abc import Collection, Sized

    from brokerd.cluster.groups.group_clock import Moved
    from brokerd.core.catalog.catalog_objects import Queue, Record
    from brokerd.core.queue.queue_machine import QueueMachine

#: An idle queue with its replica and log, bytes; `bench.memory`, 10,000 of each type.
QUEUE_BYTES = 8_000
#: The same of one that is folded (ADR 61): the parts of 20,000 add up with it.
FOLDED_QUEUE_BYTES = 1_500
#: What telemetry remembers of a queue led here: its last row.
QUEUE_ROW_BYTES = 200
#: An AMQP connection after its login, uvloop's part included.
CONNECTION_BYTES = 5_900
CHANNEL_BYTES = 5_200
CONSUMER_BYTES = 2_600
#: A record of the catalog: a queue, an exchange, a binding, with its place in the indexes.
RECORD_BYTES = 1_000
#: What a member uses when it has opened its doors and holds nothing, at most; what it uses beyond
#: that at its start was read from its disk.
CODE_BYTES_MAX = 96 << 20

#: In the order in which they are shown.
PARTS = (
    "code",
    "classic_queues",
    "quorum_queues",
    "connections",
    "channels",
    "log_cache",
    "catalog",
    "telemetry",
    "allocated_unused",
    "other",
)
#: Counted one by one; what is left is the interpreter's and the allocator's.
_HELD = PARTS[1:-2]
_RECORDS = ("queue", "exchange", "binding", "user", "policy", "parameter", "permission")


class Queues(Protocol):
    """The queues, and those that have a replica here."""

    @property
    def led(self) -> Sized:
        """Return those whose leader is here."""
        ...

    @property
    def records(self) -> Collection[int]:
        """Return the uids of all queues."""
        ...

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record, None if the queue is deleted."""
        ...

    def machine(self, uid: int) -> QueueMachine:
        """Return the state of a queue that has a replica here."""
        ...


class Connection(Protocol):
    """An AMQP connection."""

    @property
    def sessions(self) -> Sized:
        """Return its channels."""
        ...

    @property
    def held_bytes(self) -> int:
        """Return the bytes of what has not come whole, and of what its client has not taken."""
        ...


class Catalog(Protocol):
    """The catalog as this member sees it."""

    def records(self, kind: str, vhost: str | None = None) -> Collection[Record]:
        """Return the objects of a kind."""
        ...


@dataclass(slots=True, frozen=True)
class Holders:
    """Who holds what, each as it says itself."""

    queues: Queues
    has_replica: Callable[[int], bool]
    is_folded: Callable[[int], bool]
    moved: Moved
    connections: Callable[[], Sequence[Connection]]
    consumers: Sized
    catalog: Catalog
    #: Bytes of recent log entries, and of parsed messages, that are kept.
    log_cache: Callable[[], int]


def queue_bytes(messages_bytes: int, bodies_bytes: int, *, is_durable: bool) -> int:
    """Estimate what a queue takes at this member; one that is not durable has its bodies here.

    messages_bytes: what its messages take beside their bodies.
    """
    return QUEUE_BYTES + messages_bytes + (0 if is_durable else bodies_bytes)


class MemoryBreakdown:
    """State: what the code took when the member began to serve, and what each queue takes: those
    that stand still are not looked at again.
    """

    def __init__(self, holders: Holders, resident: Callable[[], int]) -> None:
        """resident: what the process uses, bytes."""
        self._holders = holders
        self._resident = resident
        self._unused = _find_unused()
        self._code_bytes = CODE_BYTES_MAX
        #: By type, of each queue with a replica here.
        self._sizes: dict[str, dict[int, int]] = {"classic": {}, "quorum": {}}
        self._totals = dict.fromkeys(self._sizes, 0)
        #: Queues that are to be looked at; of those who ask together each takes what is left.
        self._moved: set[int] = set()

    async def started(self) -> None:
        """The member holds what it found on its disk and nothing else: the rest is the code."""
        held = await self._held()
        self._code_bytes = min(max(0, self._resident() - sum(held.values())), CODE_BYTES_MAX)

    async def take(self) -> dict[str, int]:
        """Return the bytes of each of PARTS; looks at the queues some at a time."""
        held = await self._held()
        used = self._resident()
        left = max(0, used - self._code_bytes - sum(held.values()))
        # It asks each arena for its free blocks, which may be many.
        unused = min(left, await asyncio.to_thread(self._unused))
        found = {"code": self._code_bytes, **held, "allocated_unused": unused}
        return found | {"other": left - unused}

    async def _held(self) -> dict[str, int]:
        holders = self._holders
        found = dict.fromkeys(_HELD, 0)
        moved, is_all = holders.moved.take()
        self._moved.update(moved)
        if is_all:
            self._moved.update(holders.queues.records, *self._sizes.values())
        async for uids in in_chunks(list(self._moved)):
            for uid in self._moved.intersection(uids):
                self._look_at(uid)
            self._moved.difference_update(uids)
        found.update((f"{kind}_queues", total) for kind, total in self._totals.items())
        channels = 0
        async for some in in_chunks(holders.connections()):
            found["connections"] += sum(CONNECTION_BYTES + one.held_bytes for one in some)
            channels += sum(len(one.sessions) for one in some)
        found["channels"] = channels * CHANNEL_BYTES + len(holders.consumers) * CONSUMER_BYTES
        found["log_cache"] = holders.log_cache()
        records = sum(len(holders.catalog.records(kind, None)) for kind in _RECORDS)
        found["catalog"] = records * RECORD_BYTES
        found["telemetry"] = len(holders.queues.led) * QUEUE_ROW_BYTES
        return found

    def _look_at(self, uid: int) -> None:
        for kind, sizes in self._sizes.items():
            self._totals[kind] -= sizes.pop(uid, 0)
        queue = self._holders.queues.queue_of(uid)
        if queue is not None and self._holders.has_replica(uid):
            size = FOLDED_QUEUE_BYTES
            if not self._holders.is_folded(uid):
                machine = self._holders.queues.machine(uid)
                bodies = machine.store.ready_bytes + machine.unacked_bytes
                size = queue_bytes(machine.memory_bytes(), bodies, is_durable=queue.durable)
            self._sizes[queue.type][uid] = size
            self._totals[queue.type] += size


class _Mallinfo2(ctypes.Structure):
    """malloc.h's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _find_unused() -> Callable[[], int]:
    """Return what tells glibc's free bytes; 0 with another C library, or one before 2.33."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return lambda: 0
    mallinfo2.argtypes, mallinfo2.restype = [], _Mallinfo2
    return lambda: int(mallinfo2().fordblks)
