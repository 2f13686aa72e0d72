"""Walks over the messages of a queue that is led here, which change nothing.

One mechanism for all that looks at many messages: pages, filters, triage.  What is found
(core/queue/browse.py) is read from the log as deliveries are, by a reader of the walk's own, so
that what consumers need next stays in theirs; only what is asked for is read.  A walk works in
slices, rests between them, and is bounded in messages, bytes and time: where it ends, its place
says where the next one goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.message import Content
from brokerd.core.queue import browse
from brokerd.core.queue.browse import Browsed, Place, Wanted
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.server.loop.chunks import Pace
from brokerd.server.queues.bodies import MessageViews

#: Bytes of log entries that are read for one walk, behind which it ends.
READ_BYTES_MAX = 32 * 1024 * 1024
#: Spans of one look at the queue's state; more than are shown, since what has expired is passed.
SPANS_MAX = 2_000
#: Messages that are found at once where a filter or triage is asked about them: half a millisecond.
FOUND_AT_ONCE = 256
#: How many messages one walk with a filter looks at, and for how long.
LOOKED_MAX, LOOK_S = 100_000, 1.0
#: Walks of a member at once.
WALKS_AT_ONCE = 8
#: Between two looks at the clock: messages, and bytes that count as one.
_MESSAGES_PER_LOOK, _BYTES_AS_ONE = 8, 4096
#: What is asked in a thread at once, and for how long: the loop waits for the interpreter's lock
#: while it is not in a regular expression.
_THREAD_MESSAGES, _THREAD_BYTES, _THREAD_S = 64, 256 * 1024, 0.0005
#: Entries that a walk's reader keeps: messages of one entry stand together.
_KEPT_BYTES = 1024 * 1024
#: Stands for a message that is not read, since nothing asks for what is in it.
_UNREAD: Content = (("", ""), b"", b"", b"")

#: Takes a message; tells whether the walk is to end behind it.
Take: TypeAlias = Callable[[Browsed, Content], bool]


class Replicas(Protocol):
    """The queues with a replica here (directory.py)."""

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record of a queue."""
        ...

    def leads(self, uid: int) -> bool:
        """Tell whether the queue's leader is here."""
        ...

    def hears_most(self, uid: int) -> bool:
        """Tell whether most voters of a group that is here are up."""
        ...

    def machine(self, uid: int) -> QueueMachine:
        """Return the state of a queue that has a replica here."""
        ...

    def entry_data(self, uid: int, index: int) -> bytes | None:
        """Return a log entry, None where it is not here any more."""
        ...


@dataclass(slots=True, frozen=True)
class Matching:
    """Tells whether a message is wanted."""

    matches: Callable[[Browsed, Content], bool]
    #: It may take long, without the interpreter's lock: it is asked in a thread.
    is_slow: bool = False
    #: It asks for what is in the message, not only for what the queue knows without it.
    needs_content: bool = True


class NotHere(Exception):
    """The queue's leader is not here, or is not sure of it."""


class Busy(Exception):
    """Too many walks are under way here at this moment."""


class Walker:
    """State: how many walks are under way."""

    def __init__(
        self, queues: Replicas, clock_ms: Callable[[], int], commands: Callable[[], int]
    ) -> None:
        """clock_ms() is the wall clock; commands() grows when queues here take any."""
        self._queues = queues
        self.commands = commands
        self.clock_ms = clock_ms
        self._running = 0

    def led(self, uid: int) -> QueueMachine:
        """Return the state, if this member can answer for it (as a look, ADR 63); NotHere."""
        queues = self._queues
        if not queues.leads(uid) or not queues.hears_most(uid):
            raise NotHere
        return queues.machine(uid)

    def entry_data(self, uid: int, index: int) -> bytes | None:
        """Return a log entry, None where it is not here any more."""
        return self._queues.entry_data(uid, index)

    def enter(self) -> None:
        """Begin a walk; Busy.  `leave` ends it."""
        if self._running >= WALKS_AT_ONCE:
            raise Busy
        self._running += 1

    def leave(self) -> None:
        """End what `enter` began."""
        self._running -= 1


class _Reader:
    """Reads entries of the log, and counts their bytes.

    It knows nothing of the walk: in a circle of the two the last entry, which may have 128 MiB,
    would wait for the collector.
    """

    def __init__(self, walker: Walker) -> None:
        self._walker = walker
        self.bytes = 0

    def read(self, uid: int, index: int) -> bytes | None:
        """Return an entry, None where it is not here any more."""
        data = self._walker.entry_data(uid, index)
        self.bytes += 0 if data is None else len(data)
        return data


class Walk:
    """One walk.

    State: where it is and how far it has looked.  Invariant: between two calls of `take`, `place`
    is the first message that is not taken yet or left out.
    """

    def __init__(self, walker: Walker, uid: int, wanted: Wanted, place: Place | None) -> None:
        self._walker = walker
        self._uid = uid
        self._wanted = wanted
        self._reader = _Reader(walker)
        self._views = MessageViews(self._reader.read)
        self._views.limit(_KEPT_BYTES)
        self._pace = Pace(walker.commands)
        #: Where the next one goes on; None: at the head before it, at the end behind it.
        self.place = place
        #: Messages that a filter was asked about, or that were found.
        self.looked = 0

    async def once(self, count: int, take: Take) -> None:
        """Take up to `count` messages as the queue is at this moment; NotHere."""
        walked = browse.walk(
            self._walker.led(self._uid), self._wanted, self.place, count, SPANS_MAX
        )
        self.place = walked.place
        await self._take(walked.found, None, take, None)

    async def through(self, matching: Matching | None, take: Take) -> None:
        """Take the messages that match, in several moments of the queue, within the bounds of one
        walk; NotHere where leadership ends meanwhile.
        """
        until_s = time.monotonic() + LOOK_S
        is_over = False
        while not is_over:
            machine = self._walker.led(self._uid)
            walked = browse.walk(machine, self._wanted, self.place, FOUND_AT_ONCE, SPANS_MAX)
            self.place = walked.place
            if matching is not None and matching.is_slow:
                is_over = await self._take_slowly(walked.found, matching, take, until_s)
            else:
                is_over = await self._take(walked.found, matching, take, until_s)
            if self.place is None or self.looked >= LOOKED_MAX or time.monotonic() >= until_s:
                return
            await self._pace.keep()

    def _content(self, browsed: Browsed) -> Content | None:
        found = self._views.contents(self._uid, browsed.run)
        # It may have been settled, and its entry forgotten, between two slices.
        return None if found is None else found[0]

    async def _take(
        self, found: list[Browsed], matching: Matching | None, take: Take, until_s: float | None
    ) -> bool:
        """Tell whether this ended the walk, whose place is then the first that is left out."""
        is_read_first = matching is None or matching.needs_content
        units = 0
        for at, browsed in enumerate(found):
            if units >= _MESSAGES_PER_LOOK:
                units = 0
                await self._pace.keep()
                is_late = until_s is not None and time.monotonic() >= until_s
            else:
                is_late = False
            if is_late or self._reader.bytes >= READ_BYTES_MAX:
                self.place = browsed.place
                return True
            self.looked += 1
            units += 1
            content: Content | None = _UNREAD
            if is_read_first:
                content = self._content(browsed)
                units += browsed.size_bytes // _BYTES_AS_ONE
            if content is None or (matching is not None and not matching.matches(browsed, content)):
                continue
            if not is_read_first:
                content = self._content(browsed)
                if content is None:
                    continue
            if take(browsed, content):
                self._stop_behind(found, at)
                return True
        return False

    async def _take_slowly(
        self, found: list[Browsed], matching: Matching, take: Take, until_s: float
    ) -> bool:
        """Do the same, and ask in a thread."""
        at = 0
        while at < len(found):
            is_late = self.looked > 0 and time.monotonic() >= until_s
            if is_late or self._reader.bytes >= READ_BYTES_MAX:
                self.place = found[at].place
                return True
            asked: list[tuple[Browsed, Content | None]] = []
            size = 0
            while at + len(asked) < len(found) and len(asked) < _THREAD_MESSAGES:
                browsed = found[at + len(asked)]
                asked.append((browsed, self._content(browsed)))
                size += browsed.size_bytes
                if size >= _THREAD_BYTES:
                    break
            answers = await asyncio.to_thread(_ask, asked, matching)
            for (browsed, content), is_wanted in zip(asked, answers, strict=False):
                self.looked += 1
                at += 1
                if is_wanted and content is not None and take(browsed, content):
                    self._stop_behind(found, at - 1)
                    return True
            await self._pace.keep()
        return False

    def _stop_behind(self, found: list[Browsed], at: int) -> None:
        if at + 1 < len(found):
            self.place = found[at + 1].place


def _ask(asked: list[tuple[Browsed, Content | None]], matching: Matching) -> list[bool]:
    """Return the answers for the first of these, one at least, as far as the time suffices."""
    until_s = time.monotonic() + _THREAD_S
    answers: list[bool] = []
    for browsed, content in asked:
        answers.append(content is not None and matching.matches(browsed, content))
        if time.monotonic() >= until_s:
            break
    return answers
