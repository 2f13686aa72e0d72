"""Triage of queues for the front doors, and dry runs of jobs: who may, how much, the audit log.

Pieces come from the queue's leader (triage_pages.py), each as of its own moment, and are merged
here as far as one call goes; where its bounds end it, a token says where the next one goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.core.catalog import refusals
from brokerd.core.queue import browse
from brokerd.core.triage.groups import Group
from brokerd.core.triage.jobs import JobError, JobOrder
from brokerd.core.triage.previews import PreviewRow
from brokerd.server.catalog import audit
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.listings import message_rows, page_tokens, triage_pages
from brokerd.server.listings.look_guard import BrowseRefused, LookGuard
from brokerd.server.listings.target_rooms import Room, rooms_of
from brokerd.server.members import browse_calls
from brokerd.server.queues.browsing import Question

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_objects import Queue
    from brokerd.core.catalog.identity import Identity
    from brokerd.server.listings.triage_pages import Piece

Json = dict[str, Any]

#: How long one call goes on; then a token says where the next one does.
CALL_S = 10.0


@dataclass(slots=True)
class TriageAsked:
    """One call, as it came: everything may be wrong."""

    vhost: str
    name: str
    state: str = ""
    filter: str = ""
    page_token: str = ""


@dataclass(slots=True)
class TriageShown:
    """What one walk at the leader added; groups of several are merged by fingerprint."""

    groups: list[tuple[str, Group]]
    others: Group
    #: "": there is no more.
    next_page_token: str
    looked_at: int
    #: By state, in the whole queue.
    counts: dict[str, int]
    #: Of dry runs.
    rows: list[PreviewRow] = field(default_factory=list)
    #: What is known of the targets that these rows name first, by name.
    targets: dict[str, Room] = field(default_factory=dict)


class Triages:
    """State: none of its own."""

    def __init__(self, guard: LookGuard) -> None:
        self._guard = guard

    def pieces(
        self,
        asked: TriageAsked,
        identity: Identity,
        author: audit.Author,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> AsyncGenerator[TriageShown, None]:
        """Return what yields what is found; BrowseRefused, TooManyBrowses, Unavailable,
        browse_calls.Overloaded.
        """
        return self._audited("triage", asked, None, identity, author, is_gone)

    def preview(
        self,
        order: JobOrder,
        page_token: str,
        identity: Identity,
        author: audit.Author,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> AsyncGenerator[TriageShown, None]:
        """Return what yields what an order would do; errors as of `pieces`.  It changes nothing."""
        asked = TriageAsked(order.vhost, order.queue, "", order.filter, page_token)
        return self._audited("preview", asked, order, identity, author, is_gone)

    async def _audited(
        self,
        action: str,
        asked: TriageAsked,
        order: JobOrder | None,
        identity: Identity,
        author: audit.Author,
        is_gone: Callable[[], bool],
    ) -> AsyncGenerator[TriageShown, None]:
        guard = self._guard
        noted: Json = {"outcome": "refused", "messages": 0}
        if order is not None:
            noted["kind_of_job"] = order.kind.value
        try:
            queue = guard.queue(asked.vhost, asked.name, identity)
            question = self._question(asked, order, queue)
            noted["outcome"] = "too many"
            with guard.call(author.user):
                noted["outcome"] = "ok"
                async for shown in self._walk(asked, order, queue, question, is_gone):
                    noted["messages"] += shown.looked_at
                    yield shown
                    # Rights may have been withdrawn since.
                    guard.queue(asked.vhost, asked.name, identity)
        except (Unavailable, browse_calls.Overloaded):
            noted["outcome"] = "unavailable"
            raise
        except BrowseRefused:
            noted["outcome"] = "refused"
            raise
        finally:
            record = audit.look(action, asked.vhost, asked.name, noted)
            guard.sources.audit.write(author, record)

    def _question(self, asked: TriageAsked, order: JobOrder | None, queue: Queue) -> Question:
        sources = self._guard.sources
        try:
            if order is not None:
                order.check()
            self._guard.check_filter(asked.filter)
            if asked.state not in ("", *browse.STATES):
                raise ValueError(f"state: one of {', '.join(browse.STATES)}")
            if not asked.page_token:
                return Question(asked.state or browse.READY)
            question = page_tokens.decode(
                sources.signer, sources.view.cluster_id, queue.uid, asked.page_token
            )
        except (ValueError, JobError) as error:
            raise BrowseRefused(refusals.precondition_failed(str(error))) from error
        return question

    async def _walk(
        self,
        asked: TriageAsked,
        order: JobOrder | None,
        queue: Queue,
        question: Question,
        is_gone: Callable[[], bool],
    ) -> AsyncGenerator[TriageShown, None]:
        sources = self._guard.sources
        clock = asyncio.get_running_loop().time
        deadline = clock() + CALL_S
        refusal = partial(self._guard.refusal, queue)
        known: dict[str, Room] = {}
        left = order.max if order is not None else 0
        while not is_gone():
            fields: Json = {
                "state": question.state,
                "place": question.place,
                "filter": asked.filter,
                "order": None if order is None else replace(order, max=left).as_json(),
            }
            answer = await browse_calls.leaders_answer(
                sources.members, queue, triage_pages.ASK, fields, refusal
            )
            piece = triage_pages.piece_of(answer)
            shown = self._shown(queue, question, piece)
            if order is not None:
                left -= sum(row.count for row in piece.rows if not row.stays)
                names = {name for row in piece.rows for name in row.targets} - known.keys()
                shown.targets = await rooms_of(sources.members, sources.view, queue.vhost, names)
                known |= shown.targets
                if order.max and left <= 0:
                    shown.next_page_token = ""
            yield shown
            if not shown.next_page_token or clock() >= deadline:
                return
            question.place = piece.place

    def _shown(self, queue: Queue, question: Question, piece: Piece) -> TriageShown:
        token = ""
        if piece.place is not None:
            sources = self._guard.sources
            cluster_id = sources.view.cluster_id
            token = page_tokens.encode(sources.signer, cluster_id, queue.uid, question, piece.place)
        return TriageShown(
            piece.groups, piece.others, token, piece.looked, piece.counts, piece.rows
        )


def group_row(name: str, group: Group) -> Json:
    """Return a group as clients see it; fingerprint "": all that are not told apart."""
    row: Json = {"fingerprint": name}
    history = group.history
    if history is not None:
        row |= {
            "told_by": history.source.value,
            "framework": history.framework,
            "reason": history.reason,
            "first_queue": history.first_queue,
            "last_queue": history.last_queue,
            "exchange": history.exchange,
            "routing_key": history.routing_key,
            "type": history.type,
            "exception": history.exception,
            "client": history.client,
        }
        row = {key: message_rows.text(value) for key, value in row.items()}
    return row | {
        "messages": group.count,
        "bytes": group.bytes,
        "sent_back": group.sent_back,
        "first_seen_ms": group.first_seen_ms,
        "last_seen_ms": group.last_seen_ms,
        "example": group.example,
        "client_reason": message_rows.text(group.client_reason),
    }


def preview_row(row: PreviewRow) -> Json:
    """Return a row of a dry run as clients see it."""
    return {
        "fingerprint": row.fingerprint,
        "targets": [message_rows.text(name) for name in row.targets],
        "stays": row.stays,
        "messages": row.count,
        "bytes": row.bytes,
    }
