"""Figures of all queues and groups with a replica here, in a table: a row for each.

Code that adds up or sorts ten thousand queues reads this instead of their machines.  A machine is
read when it has moved since it was read last; all others stand still, and may not even be in memory
(ADR 60).  Sums over the queues that are led here follow what is read, so that they cost nothing
where nothing moves.  Used by metrics, listings and the HTTP API; built by queues/directory.py.
"""

from __future__ import annotations

import asyncio
import operator
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from brokerd.core.queue.queue_summary import FIGURES, SIZE, levels_of, single_of
from brokerd.server.loop.chunks import in_chunks

if TYPE_CHECKING:
    from brokerd.cluster.groups.group_clock import Moved
    from brokerd.cluster.groups.host_events import Progress
    from brokerd.core.catalog.catalog_objects import Queue

#: Of a group, as host_events.Progress has them; 0 or 1 where it is yes or no.
GROUP_COLUMNS = ("is_leader", "term", "commit", "applied", "last", "snapshot", "is_damaged")
COLUMNS = (*GROUP_COLUMNS, *FIGURES)
#: Where each stands in a row.
AT = {name: at for at, name in enumerate(COLUMNS)}
#: Numbers of a row, and where those of a queue begin.
_WIDTH, _QUEUE = len(COLUMNS), len(GROUP_COLUMNS)
_NO_QUEUE = array("q", bytes(SIZE))
_NOTHING = array("q", bytes(8 * _WIDTH))
#: Rows that are added at a time.
GROWTH = 256
#: After so long without a question nothing is kept: longer than exporters leave between two looks.
IDLE_S = 300.0
#: Places that are added up before others have a turn: C does it, 15 nanoseconds for each.
PLACES = 2_000


#: Priorities of a queue that have ready messages, highest first, each with how many.
Levels: TypeAlias = tuple[tuple[int, int], ...]


class Groups(Protocol):
    """The replicas of this member."""

    def groups(self) -> list[int]:
        """Return the uids of all replicas here."""
        ...

    def has_group(self, uid: int) -> bool:
        """Tell whether a replica is here."""
        ...

    def progress_of(self, uid: int) -> Progress:
        """Return how far a replica is that is here."""
        ...

    def watch(self) -> Moved:
        """Return what tells which replicas have moved, from now on."""
        ...


class Queues(Protocol):
    """The queues, and those that have a replica here."""

    @property
    def led(self) -> Collection[int]:
        """Return those whose leader is here."""
        ...

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record, None if the queue is deleted."""
        ...

    def summary(self, uid: int) -> bytes:
        """Return what is read of a queue that has a replica here (queue_summary.py)."""
        ...


@dataclass(slots=True)
class LedSums:
    """Over the queues of a vhost that are led here."""

    queues: int = 0
    #: Of each of COLUMNS.
    values: list[int] = field(default_factory=lambda: [0] * _WIDTH)


class Table:
    """State: what stands in each row, and which rows are free.

    Invariant: a free row holds zeros, so that sums may go over all.
    """

    def __init__(self) -> None:
        #: Row by row, so that one is written and read at once.
        self.cells: array[int] = array("q")
        #: A queue's vhost; None of a group that is no queue, and of a free row.
        self.vhosts: list[str | None] = []
        #: The tag of the consumer that is active alone (R-CS-7).
        self.singles: list[str | None] = []
        #: How many messages are ready in each priority (R-PRI-2).
        self.levels: list[Levels] = []
        self._free: list[int] = []

    def _new_place(self) -> int:
        if not self._free:
            count = len(self.vhosts)
            self.cells.extend(_NOTHING * GROWTH)
            self.vhosts += [None] * GROWTH
            self.singles += [None] * GROWTH
            self.levels += [()] * GROWTH
            self._free += range(count + GROWTH - 1, count - 1, -1)
        return self._free.pop()

    def _write_group(self, place: int, progress: Progress) -> None:
        begin = place * _WIDTH
        self.cells[begin : begin + _QUEUE] = array("q", progress[1:])

    def _write_queue(self, place: int, queue: Queue, summary: bytes) -> None:
        begin = place * _WIDTH
        self.cells[begin + _QUEUE : begin + _WIDTH] = array("q", summary[:SIZE])
        self.vhosts[place] = queue.vhost
        self.singles[place] = single_of(summary)
        self.levels[place] = levels_of(summary)

    def _write_no_queue(self, place: int) -> None:
        begin = place * _WIDTH
        self.cells[begin + _QUEUE : begin + _WIDTH] = _NO_QUEUE
        self.vhosts[place] = self.singles[place] = None
        self.levels[place] = ()

    def _row(self, place: int) -> array[int]:
        """Return what stands there in COLUMNS, as it is now."""
        begin = place * _WIDTH
        return self.cells[begin : begin + _WIDTH]

    def _leave_place(self, place: int) -> None:
        begin = place * _WIDTH
        self.cells[begin : begin + _WIDTH] = _NOTHING
        self.vhosts[place] = self.singles[place] = None
        self.levels[place] = ()
        self._free.append(place)

    def _drop_places(self) -> None:
        del self.cells[:]
        for more in (self.vhosts, self.singles, self.levels, self._free):
            more.clear()


class QueueTable(Table):
    """State: who has which place, and what is to be read anew; 0.4 kB for each replica, and nothing
    before the first query or after a while without one.

    Invariants: who is not to be read anew stands as when `take` was called last.  A place may be
    another's after a turn of the loop.  `_sums` are those of the queues in `_counted`, as they
    stand.
    """

    def __init__(
        self, groups: Groups, queues: Queues, without_vote: Callable[[], Iterable[int]]
    ) -> None:
        """without_vote: replicas that are damaged; they become so, and whole, without moving."""
        super().__init__()
        self._groups = groups
        self._queues = queues
        self._without_vote = without_vote
        #: Which replicas have moved; None, and moves are not noted, before the first query.
        self._moved: Moved | None = None
        self._places: dict[int, int] = {}
        self._unread: set[int] = set()
        self._damaged: set[int] = set()
        self._leaderless: set[int] = set()
        #: Replicas of a queue whose record is not there yet: it comes without a move.
        self._recordless: set[int] = set()
        #: The queues led here, and by vhost what they come to; places of those with messages.
        self._counted: set[int] = set()
        self._sums: dict[str, LedSums] = {}
        self._filled: set[int] = set()
        #: All that is here has a place, or is to be read.
        self._is_complete = False
        self._end: asyncio.TimerHandle | None = None

    # ---- who asks -------------------------------------------------------------------------------

    def take(self) -> None:
        """Somebody asks: what has moved is read when it is looked at.

        Who takes of a `Moved` of their own what they then look up here does both in one turn.
        """
        if self._moved is None:
            self._moved = self._groups.watch()
        moved, is_all = self._moved.take()
        unread = self._unread
        unread.update(moved, self._damaged, self._recordless, self._without_vote())
        if is_all or not self._is_complete:
            unread.update(self._groups.groups(), self._places)
            self._is_complete = True
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(IDLE_S, self._clear)

    def row_of(self, uid: int) -> array[int] | None:
        """Return a queue's figures, in the order of COLUMNS, as of this turn of the loop; None: no
        replica is here, or its queue is deleted.
        """
        place = self._places.get(uid)
        if place is None or self.vhosts[place] is None or uid in self._unread:
            self._read(uid)
            place = self._places.get(uid)
            if place is None or self.vhosts[place] is None:
                return None
        return self._row(place)

    def single_of(self, uid: int) -> str | None:
        """Return the tag of the consumer that is active alone, of a queue whose row was taken in
        this turn of the loop.
        """
        return self.singles[self._places[uid]]

    def levels_of(self, uid: int) -> Levels:
        """Return the same queue's ready messages by priority."""
        return self.levels[self._places[uid]]

    async def values_of(self, uids: Sequence[int], name: str) -> list[int | None]:
        """Return what each of these queues has in a column; None: no replica is here."""
        await self._read_all()
        cells, at = self.cells, AT[name]
        found: list[int | None] = []
        async for some in in_chunks(uids, PLACES):
            places = map(self._places.get, some)
            found += [None if place is None else cells[place * _WIDTH + at] for place in places]
        return found

    async def sums_led(self) -> Mapping[str, LedSums]:
        """Return by vhost what the queues led here come to: as of this turn of the loop, and to be
        read in it.
        """
        await self._read_all()
        # Whose leadership has ended with no move of its group: a replica that was stopped.
        async for uids in in_chunks(list(self._counted), PLACES):
            led = self._queues.led
            for uid in [uid for uid in uids if uid not in led]:
                self._read(uid)
        # Or has begun with none.
        if len(self._counted) < len(self._queues.led):
            async for uids in in_chunks(list(self._queues.led), PLACES):
                for uid in [uid for uid in uids if uid not in self._counted]:
                    self._read(uid)
        return self._sums

    async def ready_max(self) -> int:
        """Return how many messages are ready in the queue led here that has most of them."""
        cells, at, most = self.cells, AT["ready"], 0
        async for places in in_chunks(list(self._filled), PLACES):
            # One of them may be free by now.
            there = [place * _WIDTH + at for place in places if place < len(self.vhosts)]
            most = max([most, *map(cells.__getitem__, there)])
        return most

    async def add_groups(self) -> dict[str, int]:
        """Return the sum of each of GROUP_COLUMNS over all replicas here, and as `here` how many
        they are.
        """
        await self._read_all()
        sums = dict.fromkeys(GROUP_COLUMNS, 0)
        async for places in in_chunks(range(len(self.vhosts)), PLACES):
            end = (places[-1] + 1) * _WIDTH
            for at, name in enumerate(GROUP_COLUMNS):
                sums[name] += sum(self.cells[places[0] * _WIDTH + at : end : _WIDTH])
        return sums | {"here": len(self._places)}

    async def leaderless(self) -> list[int]:
        """Return the replicas here that know of no leader."""
        await self._read_all()
        return sorted(self._leaderless)

    async def _read_all(self) -> None:
        self.take()
        async for uids in in_chunks(list(self._unread)):
            # Of those who ask together each reads what is left.
            for uid in self._unread.intersection(uids):
                self._read(uid)

    # ---- what is there --------------------------------------------------------------------------

    def _read(self, uid: int) -> None:
        """Write down how a replica is now."""
        if uid in self._counted:
            self._discount(uid)
        self._recordless.discard(uid)
        if self._groups.has_group(uid):
            place = self._places.get(uid)
            if place is None:
                place = self._places[uid] = self._new_place()
            progress = self._groups.progress_of(uid)
            self._write_group(place, progress)
            if progress.is_damaged:
                self._damaged.add(uid)
            else:
                self._damaged.discard(uid)
            if progress.leader is None:
                self._leaderless.add(uid)
            else:
                self._leaderless.discard(uid)
            queue = self._queues.queue_of(uid)
            if queue is None:
                self._write_no_queue(place)
                self._recordless.add(uid)
            else:
                self._write_queue(place, queue, self._queues.summary(uid))
                if uid in self._queues.led:
                    self._count(uid, place, queue.vhost)
        elif uid in self._places:
            self._leave_place(self._places.pop(uid))
            self._damaged.discard(uid)
            self._leaderless.discard(uid)
        self._unread.discard(uid)

    def _count(self, uid: int, place: int, vhost: str) -> None:
        sums = self._sums.get(vhost)
        if sums is None:
            sums = self._sums[vhost] = LedSums()
        sums.queues += 1
        row = self._row(place)
        sums.values = list(map(operator.add, sums.values, row))
        self._counted.add(uid)
        if row[AT["ready"]]:
            self._filled.add(place)

    def _discount(self, uid: int) -> None:
        """Take a queue out of the sums, before its place is written to."""
        place = self._places[uid]
        vhost = self.vhosts[place]
        assert vhost is not None, "a counted place is a queue's"
        sums = self._sums[vhost]
        sums.queues -= 1
        if sums.queues:
            sums.values = list(map(operator.sub, sums.values, self._row(place)))
        else:
            del self._sums[vhost]
        self._counted.discard(uid)
        self._filled.discard(place)

    def _clear(self) -> None:
        """There has been no query for a while."""
        self._drop_places()
        sets = (self._unread, self._damaged, self._leaderless, self._recordless)
        for known in (*sets, self._counted, self._filled):
            known.clear()
        self._places.clear()
        self._sums.clear()
        self._is_complete = False
