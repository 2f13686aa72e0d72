"""Pages of a queue's messages at its leader: looked at, never touched.

A page is one walk over the queue's state (walking.py), so it is consistent in itself; with a filter
it is several, in slices.  Rights and the way from other members are others' business
(server/listings/browses.py, server/members/browse_calls.py).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from brokerd.core.message import Content
from brokerd.core.queue import browse, effects
from brokerd.core.queue.browse import Browsed, Place, Wanted
from brokerd.server.queues.walking import SPANS_MAX, Matching, Walk, Walker

Json: TypeAlias = dict[str, Any]

#: Messages of one call, in as many pages as it takes.
COUNT_MAX = 10_000
#: Messages of a page: walked in about a millisecond.
PAGE_MAX = 500
#: Bytes of headers and bodies in a page, behind which there is no further message.
PAGE_BYTES_MAX = 4 * 1024 * 1024
#: Bytes of a body that may be asked for.
BODY_BYTES_MAX = 1024 * 1024


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
    #: Bytes of headers and bodies.
    size: int = 0
    #: By state, in the whole queue.
    counts: dict[str, int] = field(default_factory=dict)


class QueueBrowser:
    """Makes pages of queues that are led here."""

    def __init__(self, walker: Walker) -> None:
        self._walker = walker

    async def page(self, uid: int, question: Question, matching: Matching | None = None) -> Page:
        """Return a page of a queue that is led here; NotHere, Busy.

        matching: asked about each message; with it a page ends after walking.LOOKED_MAX messages or
        LOOK_S, and says how many it has looked at.
        """
        self._walker.enter()
        try:
            return await self._page(uid, question, matching)
        finally:
            self._walker.leave()

    async def _page(self, uid: int, question: Question, matching: Matching | None) -> Page:
        page = Page()
        wanted = Wanted(
            question.state, self._walker.clock_ms(), question.first_number, question.first_ms
        )
        machine = self._walker.led(uid)
        page.counts = counts(machine.overview())
        place = question.place
        if question.tail and place is None:
            place = browse.tail(machine, wanted, question.tail, SPANS_MAX + question.tail)
        walk = Walk(self._walker, uid, wanted, place)

        def take(browsed: Browsed, content: Content) -> bool:
            page.messages.append(_row(browsed, content, question.body_bytes))
            page.size += len(content[1]) + min(len(content[2]), question.body_bytes)
            return len(page.messages) >= question.count or page.size >= PAGE_BYTES_MAX

        if matching is None:
            await walk.once(question.count, take)
        else:
            await walk.through(matching, take)
        page.place, page.looked = walk.place, walk.looked
        return page


def counts(overview: Json) -> dict[str, int]:
    """Return how many messages of a queue are in which state."""
    return {name: overview[name] for name in browse.STATES if name in overview}


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
