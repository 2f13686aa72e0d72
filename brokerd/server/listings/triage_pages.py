"""Triage of a queue at its leader: a walk that tells its messages apart, in bounded pieces.

The same walk makes a dry run of an order (core/triage/previews.py).  It changes nothing.  Which
member leads, and who may ask, is triages.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from brokerd.core.filters.ports import MessageView
from brokerd.core.message import Content
from brokerd.core.queue import browse
from brokerd.core.queue.browse import Browsed, Place, Wanted
from brokerd.core.triage.groups import GROUPS_MAX, Group, Triage, group_of
from brokerd.core.triage.jobs import JobOrder, order_of
from brokerd.core.triage.previews import ROWS_MAX, Preview, PreviewRow, row_as_json, row_of
from brokerd.server.listings import browse_filters
from brokerd.server.messages.job_copies import Copies
from brokerd.server.messages.message_view import StoredMessage
from brokerd.server.messages.ports import Routing
from brokerd.server.queues import browsing
from brokerd.server.queues.walking import Busy, Matching, NotHere, Walk, Walker

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.server.members import ports as members_ports
    from brokerd.server.members.member_calls import MemberCalls

Json: TypeAlias = dict[str, Any]

ASK = "triage"
#: Characters of the histories in one answer, behind which it ends: some megabytes as JSON.
HISTORY_CHARACTERS_MAX = 400_000


@dataclass(slots=True, frozen=True)
class Catalog:
    """What dry runs need to say where messages go: as the catalog is at this member."""

    routing: Routing
    view: CatalogState


@dataclass(slots=True)
class Piece:
    """What one walk found: groups by fingerprint, and rows of a dry run."""

    groups: list[tuple[str, Group]] = field(default_factory=list)
    others: Group = field(default_factory=lambda: Group(None))
    rows: list[PreviewRow] = field(default_factory=list)
    #: Where the next one begins; None: at the end.
    place: Place | None = None
    looked: int = 0
    #: By state, in the whole queue.
    counts: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> Json:
        """Return all fields; `piece_of` reads them."""
        return {
            "groups": [[name, group.as_json()] for name, group in self.groups],
            "others": self.others.as_json(),
            "rows": [row_as_json(row) for row in self.rows],
            "place": self.place,
            "looked": self.looked,
            "counts": self.counts,
        }


def piece_of(fields: Json) -> Piece:
    """Return the piece that `Piece.as_json` wrote."""
    place = fields["place"]
    return Piece(
        groups=[(name, group_of(group)) for name, group in fields["groups"]],
        others=group_of(fields["others"]),
        rows=[row_of(row) for row in fields["rows"]],
        place=None if place is None else Place(*place),
        looked=fields["looked"],
        counts=fields["counts"],
    )


class TriagePages:
    """Makes pieces of triage of queues that are led here.  State: none of its own."""

    def __init__(
        self, walker: Walker, catalog: Catalog, compile_filter: Callable[[str], Matching]
    ) -> None:
        self._walker = walker
        self._catalog = catalog
        self._compile = compile_filter

    async def piece(
        self, uid: int, state: str, place: Place | None, filter_text: str, order: JobOrder | None
    ) -> Piece:
        """Return what is found from a place on, within the bounds of one walk; NotHere, Busy.

        order: what is tried, with as many messages as are left of its `max`.
        """
        matching = self._compile(filter_text) if filter_text else None
        self._walker.enter()
        try:
            return await self._piece(uid, state, place, matching, order)
        finally:
            self._walker.leave()

    async def _piece(
        self,
        uid: int,
        state: str,
        place: Place | None,
        matching: Matching | None,
        order: JobOrder | None,
    ) -> Piece:
        now_ms = self._walker.clock_ms()
        preview = None if order is None else Preview(order, self._way(order))
        triage = Triage() if preview is None else preview.triage
        characters = 0

        def take(browsed: Browsed, content: Content) -> bool:
            nonlocal characters
            message = browse_filters.view_of(browsed, content, now_ms)
            before = len(triage.groups)
            if preview is None:
                triage.add_message(message, now_ms)
            else:
                preview.add_message(message, now_ms)
            if len(triage.groups) > before:
                newest = next(reversed(triage.groups.values()))
                characters += _characters(newest)
            is_large = characters >= HISTORY_CHARACTERS_MAX or len(triage.groups) >= GROUPS_MAX
            if preview is None:
                return is_large
            return is_large or preview.is_full or preview.row_count >= ROWS_MAX

        overview = self._walker.led(uid).overview()
        walk = Walk(self._walker, uid, Wanted(state, now_ms), place)
        await walk.through(matching, take)
        is_over = preview is not None and preview.is_full
        return Piece(
            groups=list(triage.groups.items()),
            others=triage.others,
            rows=[] if preview is None else preview.rows(),
            place=None if is_over else walk.place,
            looked=walk.looked,
            counts=browsing.counts(overview),
        )

    def _way(self, order: JobOrder) -> Callable[[MessageView], tuple[str, ...] | str]:
        """Return what says where a message would go, as the job does it."""
        catalog = self._catalog
        source = catalog.view.queue(order.vhost, order.queue)
        if source is None:
            raise NotHere
        copies = Copies(catalog.routing, catalog.view, source, order, 0)

        def way(message: MessageView) -> tuple[str, ...] | str:
            assert isinstance(message, StoredMessage)
            found = copies.way(message, message.content, "")
            if isinstance(found, str):
                return found
            return tuple([queue.name for queue in found.targets])

        return way


def _characters(group: Group) -> int:
    history = group.history
    assert history is not None
    texts: Iterable[str] = (
        history.reason,
        history.first_queue,
        history.last_queue,
        history.exchange,
        history.routing_key,
        history.type,
        history.exception,
        history.client,
    )
    return sum(map(len, texts)) + len(group.client_reason)


def serve(calls: MemberCalls, host: members_ports.Replicas, pages: TriagePages) -> None:
    """Answer other members' questions, and this one's."""

    async def triage(asked: Json) -> Json:
        uid, place, order = int(asked["uid"]), asked["place"], asked["order"]
        try:
            piece = await pages.piece(
                uid,
                str(asked["state"]) if asked["state"] in browse.STATES else browse.READY,
                None if place is None else Place(*map(int, place)),
                str(asked["filter"]),
                None if order is None else order_of(order),
            )
        except NotHere:
            return {"elsewhere": host.leader_of(uid) or ""}
        except Busy:
            return {"busy": True}
        return piece.as_json()

    calls.serve(ASK, triage)
