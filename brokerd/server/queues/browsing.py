"""Pages of a queue's messages at its leader: looked at, never touched.

What is found (core/queue/browse.py) is read from the log as deliveries are, by a reader of its own,
so that what consumers need next stays in theirs.  A page is one walk over the queue's state, so it
is consistent in itself; with a filter it is several, in turns of the loop.  Rights and the way from
other members are others' business (server/listings/browses.py, server/members/browse_calls.py).
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.message import Content
from brokerd.core.queue import browse, effects
from brokerd.core.queue.browse import Browsed, Place, Wanted
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.server.loop.chunks import in_turns
from brokerd.server.queues.bodies import MessageViews

Json: TypeAlias = dict[str, Any]

#: Messages of one call, in as many pages as it takes.
COUNT_MAX = 10_000
#: Messages of a page: walked in about a millisecond.
PAGE_MAX = 500
#: Bytes of headers and bodies in a page, behind which there is no further message.
PAGE_BYTES_MAX = 4 * 1024 * 1024
#: Bytes of log entries that are read for a page, behind which it ends.
READ_BYTES_MAX = 32 * 1024 * 1024
#: Bytes of a body that may be asked for.
BODY_BYTES_MAX = 1024 * 1024
#: Spans of one walk; more than a page has, since what has expired is passed over.
SPANS_MAX = 2_000
#: Messages that a filter is asked about in one walk, and how many and how long for one page.
SLICE = 64
LOOKED_MAX = 20_000
LOOK_S = 1.0
#: Pages that are made at once.
PAGES_AT_ONCE = 8
#: Entries that a page's reader keeps: messages of one entry stand together.
_KEPT_BYTES = 1024 * 1024


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


@dataclass(slots=True)
class Question:
    """What a page is to hold."""

    state: str = browse.READY
    #: Last messages that the page is limited to, unless there is a place; 0: from the first one on.
    tail: int = 0
    first_number: int = 0
    first_ms: int = 0
    place: Place | None = None
    count: int = PAGE_MAX
    body_bytes: int = 0


@dataclass(slots=True)
class Page:
    """Messages as JSON has them; headers and bodies are in base64."""

    messages: list[Json] = field(default_factory=list)
    #: Where the next page begins; None: at the end.
    place: Place | None = None
    #: Messages that a filter was asked about, or that were found.
    looked: int = 0
    #: Bytes of headers and bodies, and of the entries that they were read from.
    size: int = 0
    read: int = 0
    #: By state, in the whole queue.
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Matching:
    """Tells whether a message is wanted."""

    matches: Callable[[Browsed, Content], bool]
    #: It may take long, without the interpreter's lock: it is asked in a thread.
    is_slow: bool = False


class NotHere(Exception):
    """The queue's leader is not here, or is not sure of it."""


class Busy(Exception):
    """Too many pages are made here at this moment."""


class QueueBrowser:
    """State: how many pages are under way."""

    def __init__(self, queues: Replicas, clock_ms: Callable[[], int]) -> None:
        """clock_ms() is the wall clock."""
        self._queues = queues
        self._clock_ms = clock_ms
        self._running = 0

    async def page(self, uid: int, question: Question, matching: Matching | None = None) -> Page:
        """Return a page of a queue that is led here; NotHere, Busy.

        matching: asked about each message, in turns of the loop; with it a page ends after
        LOOKED_MAX messages or LOOK_S, and says how many it has looked at.
        """
        if self._running >= PAGES_AT_ONCE:
            raise Busy
        self._running += 1
        try:
            return await self._page(uid, question, matching)
        finally:
            self._running -= 1

    async def _page(self, uid: int, question: Question, matching: Matching | None) -> Page:
        page = Page()
        views = MessageViews(self._reader(page))
        views.limit(_KEPT_BYTES)
        wanted = Wanted(question.state, self._clock_ms(), question.first_number, question.first_ms)
        page.place = question.place
        machine = self._led(uid)
        overview = machine.overview()
        page.counts = {name: overview[name] for name in browse.STATES if name in overview}
        if question.tail and page.place is None:
            page.place = browse.tail(machine, wanted, question.tail, SPANS_MAX + question.tail)
        until_s = time.monotonic() + LOOK_S
        while True:
            room = question.count - len(page.messages)
            most = min(room, SLICE) if matching else room
            walked = browse.walk(self._led(uid), wanted, page.place, most, SPANS_MAX)
            page.place = walked.place
            await self._read(uid, walked, views, question, matching, page, until_s)
            is_full = len(page.messages) >= question.count or _is_large(page)
            if page.place is None or is_full or matching is None or page.looked >= LOOKED_MAX:
                return page
            if time.monotonic() >= until_s:
                return page

    def _led(self, uid: int) -> QueueMachine:
        """Return the state, if this member can answer for it (as a look, ADR 63)."""
        queues = self._queues
        if not queues.leads(uid) or not queues.hears_most(uid):
            raise NotHere
        return queues.machine(uid)

    def _reader(self, page: Page) -> Callable[[int, int], bytes | None]:
        def read(uid: int, index: int) -> bytes | None:
            data = self._queues.entry_data(uid, index)
            page.read += 0 if data is None else len(data)
            return data

        return read

    async def _read(
        self,
        uid: int,
        walked: browse.Walked,
        views: MessageViews,
        question: Question,
        matching: Matching | None,
        page: Page,
        until_s: float,
    ) -> None:
        """Add what was found; where the page ends before that, its place is the first left out."""
        async for browsed in in_turns(walked.found):
            is_late = matching is not None and page.looked and time.monotonic() >= until_s
            if is_late or _is_large(page):
                page.place = browsed.place
                return
            page.looked += 1
            found = views.contents(uid, browsed.run)
            # It may have been settled, and its entry forgotten, between two turns.
            if found is None:
                continue
            if matching is None:
                is_wanted = True
            elif matching.is_slow:
                is_wanted = await asyncio.to_thread(matching.matches, browsed, found[0])
            else:
                is_wanted = matching.matches(browsed, found[0])
            if is_wanted:
                page.messages.append(_row(browsed, found[0], question.body_bytes))
                page.size += len(found[0][1]) + min(len(found[0][2]), question.body_bytes)


def _is_large(page: Page) -> bool:
    return page.size >= PAGE_BYTES_MAX or page.read >= READ_BYTES_MAX


def _row(browsed: Browsed, content: Content, body_bytes: int) -> Json:
    (exchange, routing_key), header, body, _ = content
    run = browsed.run
    row: Json = {
        "number": browsed.number,
        "state": browsed.state,
        "redelivered": effects.times_acquired(run) > 0,
        "acquired_count": run.acquired_count,
        "delivery_count": run.delivery_count,
        "enqueued_ms": browsed.enqueued_ms,
        "expires_ms": browsed.expires_ms,
        "due_ms": browsed.due_ms,
        "size": browsed.size_bytes,
        "exchange": exchange,
        "routing_key": routing_key,
        "header": base64.b64encode(header).decode(),
        "body": base64.b64encode(body[:body_bytes]).decode(),
        "body_size": len(body),
    }
    if browsed.consumer is not None:
        row["consumer"] = list(browsed.consumer)
    return row
