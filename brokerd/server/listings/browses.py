"""Looks at a queue's messages for the front doors: who may, how much, and the audit log.

Pages come from the queue's leader (server/members/browse_calls.py) and change nothing there.  A
call holds no more of a member than one page; where its bounds end it, a token says where the next
call goes on.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.core.catalog import refusals
from brokerd.core.queue import browse
from brokerd.server.catalog import audit
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.listings import message_rows, page_tokens
from brokerd.server.listings.look_guard import BrowseRefused, LookGuard
from brokerd.server.members import browse_calls
from brokerd.server.queues import browsing
from brokerd.server.queues.browsing import Page, Question

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_objects import Queue
    from brokerd.core.catalog.identity import Identity

Json = dict[str, Any]

COUNT_DEFAULT, COUNT_MAX = 20, browsing.COUNT_MAX
BODY_BYTES_DEFAULT, BODY_BYTES_MAX = 1024, browsing.BODY_BYTES_MAX
#: Bytes of headers and bodies in one call, behind which there is no further page.
CALL_BYTES_MAX = 16 * 1024 * 1024
#: How long one call goes on, while a filter finds little.
CALL_S = 10.0
#: Of the beginning that a call names.
START_CHARACTERS_MAX = 64
HEAD, TAIL = "head", "tail"
_NUMBER_MAX = 2**63 - 1


@dataclass(slots=True)
class Asked:
    """One call, as it came: everything may be wrong."""

    vhost: str
    name: str
    #: head, tail, a message's number or a time; "": head.
    start: str = ""
    count: int | None = None
    state: str = ""
    body_bytes: int | None = None
    filter: str = ""
    page_token: str = ""
    #: Payloads in base64 even where they are text.
    is_base64: bool = False


@dataclass(slots=True)
class Shown:
    """One page as clients see it."""

    messages: list[Json]
    #: "": there is no more.
    next_page_token: str
    #: Messages that were looked at: with a filter more than are shown.
    looked_at: int
    #: By state, in the whole queue.
    counts: dict[str, int] = field(default_factory=dict)


class Browses:
    """State: none of its own."""

    def __init__(self, guard: LookGuard) -> None:
        self._guard = guard
        self._sources = guard.sources

    async def pages(
        self,
        asked: Asked,
        identity: Identity,
        author: audit.Author,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> AsyncGenerator[Shown, None]:
        """Yield pages; BrowseRefused, TooManyBrowses, Unavailable, browse_calls.Overloaded.

        is_gone(): the client has gone away, so that no further page is of use.
        """
        noted: Json = {"outcome": "refused", "messages": 0}
        guard = self._guard
        try:
            queue = guard.queue(asked.vhost, asked.name, identity)
            question = self._question(asked, queue)
            noted["outcome"] = "too many"
            with guard.call(author.user):
                noted["outcome"] = "ok"
                async for page in self._walk(asked, queue, question, is_gone):
                    noted["messages"] += len(page.messages)
                    yield page
                    # Rights may have been withdrawn since.
                    guard.queue(asked.vhost, asked.name, identity)
        except (Unavailable, browse_calls.Overloaded):
            noted["outcome"] = "unavailable"
            raise
        except BrowseRefused:
            noted["outcome"] = "refused"
            raise
        finally:
            self._sources.audit.write(author, audit.look("browse", asked.vhost, asked.name, noted))

    # ---- what is asked for ----------------------------------------------------------------------

    def _question(self, asked: Asked, queue: Queue) -> Question:
        try:
            self._guard.check_filter(asked.filter)
            question = self._begun(asked, queue) if asked.page_token else _new(asked)
            question.count = _within("count", asked.count, COUNT_DEFAULT, 1, COUNT_MAX)
            bytes_max = BODY_BYTES_MAX
            default = BODY_BYTES_DEFAULT
            question.body_bytes = _within("body_bytes", asked.body_bytes, default, 0, bytes_max)
            if asked.start == TAIL and not asked.page_token:
                question.tail = question.count
        except ValueError as error:
            raise BrowseRefused(refusals.precondition_failed(str(error))) from error
        return question

    def _begun(self, asked: Asked, queue: Queue) -> Question:
        sources = self._sources
        question = page_tokens.decode(
            sources.signer, sources.view.cluster_id, queue.uid, asked.page_token
        )
        if asked.state and asked.state != question.state:
            raise ValueError(f"state: the page_token goes on with '{question.state}'")
        return question

    # ---- pages ----------------------------------------------------------------------------------

    async def _walk(
        self, asked: Asked, queue: Queue, question: Question, is_gone: Callable[[], bool]
    ) -> AsyncIterator[Shown]:
        sources = self._sources
        refusal = partial(self._guard.refusal, queue)
        left, size = question.count, 0
        clock = asyncio.get_running_loop().time
        deadline = clock() + CALL_S
        while not is_gone():
            question.count = min(left, browsing.PAGE_MAX)
            page = await browse_calls.ask_leader(
                sources.members, queue, question, asked.filter, refusal
            )
            left -= len(page.messages)
            shown = self._shown(asked, queue, question, page)
            size += sum(len(row["header"]) + len(row["body"]) for row in page.messages)
            is_over = left <= 0 or size >= CALL_BYTES_MAX or clock() >= deadline
            yield shown
            if page.place is None or is_over:
                return
            question.place = page.place

    def _shown(self, asked: Asked, queue: Queue, question: Question, page: Page) -> Shown:
        token = ""
        if page.place is not None:
            signer, cluster_id = self._sources.signer, self._sources.view.cluster_id
            token = page_tokens.encode(signer, cluster_id, queue.uid, question, page.place)
        rows = [_row(row, is_base64=asked.is_base64) for row in page.messages]
        return Shown(rows, token, page.looked, page.counts)


def _new(asked: Asked) -> Question:
    if asked.state not in ("", *browse.STATES):
        raise ValueError(f"state: one of {', '.join(browse.STATES)}")
    question = Question(asked.state or browse.READY)
    start = asked.start
    if start in ("", HEAD, TAIL):
        return question
    if len(start) <= START_CHARACTERS_MAX:
        if start.isascii() and start.isdecimal():
            question.first_number = min(int(start), _NUMBER_MAX)
            return question
        try:
            at = datetime.fromisoformat(start)
            at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
            question.first_ms = max(0, int(at.timestamp() * 1000))
            return question
        except (ValueError, OverflowError):
            pass
    raise ValueError(
        "from: head, tail, the number of a message, or a time as 2026-11-30T15:00:00Z has it"
    )


def _within(name: str, value: int | None, default: int, low: int, high: int) -> int:
    if value is None:
        return default
    if not low <= value <= high:
        raise ValueError(f"{name}: from {low} to {high}")
    return value


def _row(row: Json, *, is_base64: bool) -> Json:
    """Return a message of a leader's answer as clients see it."""
    header, body = base64.b64decode(row["header"]), base64.b64decode(row["body"])
    is_cut = len(body) < row["body_size"]
    payload, encoding = message_rows.payload(body, is_base64=is_base64, is_cut=is_cut)
    shown: Json = {
        "number": row["number"],
        "state": row["state"],
        "redelivered": row["redelivered"],
        "acquired_count": row["acquired_count"],
        "delivery_count": row["delivery_count"],
        "enqueued_ms": row["enqueued_ms"],
        "expires_ms": row["expires_ms"],
        "exchange": message_rows.text(row["exchange"]),
        "routing_key": message_rows.text(row["routing_key"]),
        "bytes": row["size"],
        "properties": message_rows.properties(header),
        "payload_bytes": row["body_size"],
        "payload": payload,
        "payload_encoding": encoding,
    }
    if row["due_ms"] is not None:
        shown["due_ms"] = row["due_ms"]
    if "consumer" in row:
        node, _, channel, tag = row["consumer"]
        # Without a tag: somebody who got it by basic.get.
        tag = message_rows.text(tag)
        shown["consumer"] = {"node": node, "channel": channel, "consumer_tag": tag}
    return shown
