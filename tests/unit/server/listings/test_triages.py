"""Triage at the leader and for the front doors: groups, dry runs, bounds, rights, the audit log."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from brokerd.amqp.properties import BasicProperties
from brokerd.core import annotations as message_annotations
from brokerd.core.annotations import Annotations, Death
from brokerd.core.catalog.identity import Identity
from brokerd.core.catalog.refusals import Refused
from brokerd.core.message import Content
from brokerd.core.queue import browse
from brokerd.core.triage.groups import Triage
from brokerd.core.triage.jobs import JobKind, JobOrder, To
from brokerd.server.catalog.audit import Author
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.catalog.keyring import Keyring
from brokerd.server.listings import browse_filters, look_guard, target_rooms, triage_pages, triages
from brokerd.server.listings.look_guard import BrowseRefused, TooManyBrowses
from brokerd.server.listings.triage_pages import TriagePages, piece_of
from brokerd.server.listings.triages import TriageAsked, Triages, TriageShown
from brokerd.server.members import browse_calls
from brokerd.server.messages.message_view import StoredMessage
from brokerd.server.queues.walking import Walker
from tests.unit.core.queue_driver import QueueDriver
from tests.unit.server.listings.test_browses import Record, Rights
from tests.unit.server.queues.test_browsing import UID, Replicas

Json = dict[str, Any]
AUTHOR = Author("ann", "http", "127.0.0.1:9")
REDRIVE = JobOrder(JobKind.REDRIVE, "/", "q")


class Found:
    def __init__(self, queues: list[Record]) -> None:
        self.exchange = ""
        self.delays = False
        self.queues = queues


class Catalog:
    """Queues that are there, reached by the default exchange."""

    def __init__(self, *names: str) -> None:
        self.there = {name: Record(None, uid=len(name), name=name) for name in names}
        self.there["q"] = Record(None, uid=UID)
        self.routing = self.view = self.router = self

    def queue(self, vhost: str, name: str) -> Record | None:
        return self.there.get(name)

    def route(self, vhost: str, exchange: str, key: str, *rest: Any) -> Found:
        return Found([self.there[name] for name in (key, *rest[1]) if name in self.there])


def died(queue: str, exception: str = "") -> Content:
    record = Annotations(
        deaths=[Death(queue, "rejected", 1, 100, "", [queue])],
        first_death=("rejected", queue, ""),
    )
    headers: Any = {"exception": exception} if exception else None
    header = BasicProperties(headers=headers, type=exception or None).encode()
    return ("", "q"), header, b"body", message_annotations.encode(record)


def queue_of(*contents: Content) -> Replicas:
    q = QueueDriver(queue_type="quorum")
    for content in contents:
        q.publish(content)
    return Replicas(q)


def pages_of(queues: Replicas, *names: str) -> TriagePages:
    compiled = browse_filters.compiler(lambda: 9_000)
    return TriagePages(
        Walker(queues, lambda: 9_000, lambda: 0), cast(Any, Catalog(*names)), compiled
    )


async def test_groups_are_told_apart_with_their_figures() -> None:
    queues = queue_of(died("work"), died("work"), died("mail"))
    piece = await pages_of(queues).piece(UID, browse.READY, None, "", None)
    piece = piece_of(json.loads(json.dumps(piece.as_json())))
    found = {group.history.first_queue: group for _, group in piece.groups if group.history}
    assert {name: group.count for name, group in found.items()} == {"work": 2, "mail": 1}
    assert (found["work"].example, found["mail"].example) == (0, 2)
    assert (piece.looked, piece.place, piece.counts["ready"]) == (3, None, 3)


async def test_a_filter_chooses_what_is_counted() -> None:
    queues = queue_of(died("work"), died("mail"))
    pages = pages_of(queues)
    piece = await pages.piece(UID, browse.READY, None, 'death.queue == "mail"', None)
    assert [group.count for _, group in piece.groups] == [1]
    assert piece.looked == 2


@pytest.mark.parametrize("bound", ["GROUPS_MAX", "HISTORY_CHARACTERS_MAX"])
async def test_pieces_are_bounded_and_add_up(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triage_pages, bound, {"GROUPS_MAX": 3}.get(bound, 60))
    queues = queue_of(*[died("work", f"type {number}") for number in range(10)])
    pages, whole, place, count = pages_of(queues), Triage(), None, 0
    while True:
        piece = await pages.piece(UID, browse.READY, place, "", None)
        assert 1 <= len(piece.groups) <= 3
        for name, group in piece.groups:
            whole.add_group(name, group)
        count += 1
        place = piece.place
        if place is None:
            break
    assert len(whole.groups) == 10
    assert count >= 4


async def test_a_dry_run_ends_when_the_order_has_enough() -> None:
    queues = queue_of(*[died("work"), died("gone")] * 5)
    pages = pages_of(queues, "work")
    piece = await pages.piece(UID, browse.READY, None, "", replace(REDRIVE, max=2))
    assert [(row.targets, row.count) for row in piece.rows if not row.stays] == [(["work"], 2)]
    assert [row.count for row in piece.rows if row.stays] == [1]
    assert piece.place is None
    piece = await pages.piece(UID, browse.READY, None, "", REDRIVE)
    assert [row.count for row in piece.rows] == [5, 5]


# ---- for the front doors -------------------------------------------------------------------------


class Members:
    """One member, which leads all."""

    def __init__(self, pages: TriagePages) -> None:
        self.calls = self
        self.host = self
        self.handlers: dict[str, Any] = {}
        triage_pages.serve(cast(Any, self), cast(Any, self), pages)

    def serve(self, name: str, handler: Any) -> None:
        self.handlers[name] = handler

    def alive(self) -> set[str]:
        return {"n1"}

    def leader_of(self, uid: int) -> str:
        return "n1"

    async def ask(self, node: str, name: str, fields: Json) -> Any:
        answer = await self.handlers[name](json.loads(json.dumps(fields)))
        return json.loads(json.dumps(answer))

    async def ask_all(self, nodes: set[str], name: str, fields: Json) -> Any:
        return {node: await self.ask(node, name, fields) for node in nodes}


class Rig:
    def __init__(self, *contents: Content) -> None:
        self.queues = queue_of(*contents)
        self.members = Members(pages_of(self.queues, "work"))
        self.records: list[Json] = []
        self.rights = ""
        self.there = {"q": Record(None, uid=UID), "work": Record(None, uid=8, name="work")}
        target_rooms.serve(cast(Any, self.members), "n1", cast(Any, self))
        self.work = QueueDriver(queue_type="quorum", max_length=7)
        self.work.publish(b"a", b"b")
        sources = look_guard.Sources(
            view=cast(Any, self),
            admission=cast(Any, self),
            members=cast(Any, self.members),
            signer=Keyring([b"k" * 32]),
            audit=cast(Any, self),
            refusal=lambda _: "",
            check_filter=browse_filters.compiler(lambda: 0),
        )
        self.triages = Triages(look_guard.LookGuard(sources))

    cluster_id = "c"

    def queue(self, vhost: str, name: str) -> Any:
        return self.there.get(name)

    def access(self, identity: Identity, vhost: str) -> Any:
        return Rights(Refused(403, self.rights) if self.rights else None)

    def write(self, author: Author, fields: Mapping[str, Any]) -> None:
        self.records.append(dict(fields))

    # Where targets are.

    def leads(self, uid: int) -> bool:
        return uid == 8

    def hears_most(self, uid: int) -> bool:
        return True

    def machine(self, uid: int) -> Any:
        return self.work.machine

    async def look(self, **asked: Any) -> list[TriageShown]:
        given = TriageAsked("/", **{"name": "q"} | asked)
        pieces = self.triages.pieces(given, Identity("ann"), AUTHOR)
        async with contextlib.aclosing(pieces):
            return [shown async for shown in pieces]

    async def preview(self, order: JobOrder, token: str = "") -> list[TriageShown]:
        pieces = self.triages.preview(order, token, Identity("ann"), AUTHOR)
        async with contextlib.aclosing(pieces):
            return [shown async for shown in pieces]


async def test_a_triage_goes_on_piece_by_piece_and_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triage_pages, "GROUPS_MAX", 1)
    rig = Rig(died("a"), died("b"), died("c"))
    found = await rig.look()
    assert [len(shown.groups) for shown in found] == [1, 1, 1]
    assert [bool(shown.next_page_token) for shown in found] == [True, True, False]
    [record] = rig.records
    assert (record["action"], record["outcome"], record["messages"]) == ("triage", "ok", 3)
    rest = await rig.look(page_token=found[0].next_page_token)
    assert len(rest) == 2


async def test_a_call_ends_in_time_with_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triage_pages, "GROUPS_MAX", 1)
    monkeypatch.setattr(triages, "CALL_S", 0.0)
    rig = Rig(died("a"), died("b"))
    [first] = await rig.look()
    [second] = await rig.look(page_token=first.next_page_token)
    assert not second.next_page_token


async def test_a_dry_run_says_what_is_known_of_the_targets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(*[died("work")] * 3, died("gone"), died("q"))
    [shown] = await rig.preview(REDRIVE)
    assert {(tuple(row.targets), row.stays, row.count) for row in shown.rows} == {
        (("work",), "", 3),
        ((), "origin is gone", 1),
        ((), "goes to this queue", 1),
    }
    room = shown.targets["work"]
    assert (room.leader, room.consumers, room.ready, room.free_messages) == ("n1", 0, 2, 5)
    assert (room.free_bytes, room.overflow) == (None, "drop-head")
    assert rig.records[0]["action"] == "preview"
    # Its leader does not answer.
    monkeypatch.setattr(rig, "leads", lambda uid: False)
    [shown] = await rig.preview(REDRIVE)
    assert shown.targets["work"].leader == ""


async def test_a_dry_run_of_some_ends_over_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triage_pages, "ROWS_MAX", 1)
    rig = Rig(*[died("work")] * 6)
    found = await rig.preview(replace(REDRIVE, max=4))
    assert [row.count for shown in found for row in shown.rows] == [1] * 4
    assert not found[-1].next_page_token


@pytest.mark.parametrize(
    "asked", [{"state": "dead"}, {"filter": "=="}, {"page_token": "x"}, {"filter": "x" * 5_000}]
)
async def test_what_makes_no_sense_is_refused(asked: Json) -> None:
    with pytest.raises(BrowseRefused) as error:
        await Rig().look(**asked)
    assert error.value.refused.code == 406


async def test_an_order_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(BrowseRefused, match="the queue itself"):
        await Rig().preview(JobOrder(JobKind.REDRIVE, "/", "q", to=To.QUEUE, target="q"))


async def test_who_may_not_read_learns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(died("work"))
    rig.rights = "read access refused"
    for look in (rig.look(), rig.preview(REDRIVE)):
        with pytest.raises(BrowseRefused, match="read access"):
            await look
    assert [record["outcome"] for record in rig.records] == ["refused", "refused"]
    rig.rights = ""
    monkeypatch.setattr(triage_pages, "GROUPS_MAX", 1)
    rig = Rig(died("a"), died("b"))
    pieces = rig.triages.pieces(TriageAsked("/", "q"), Identity("ann"), AUTHOR)
    await anext(pieces)
    rig.rights = "no more"
    with pytest.raises(BrowseRefused, match="no more"):
        await anext(pieces)


async def test_a_queue_that_is_gone_in_mid_triage_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triage_pages, "GROUPS_MAX", 1)
    rig = Rig(died("a"), died("b"))
    pieces = rig.triages.pieces(TriageAsked("/", "q"), Identity("ann"), AUTHOR)
    await anext(pieces)
    del rig.there["q"]
    with pytest.raises(BrowseRefused) as error:
        await anext(pieces)
    assert error.value.refused.code == 404


async def test_a_leader_that_goes_in_mid_triage_is_looked_for_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triage_pages, "GROUPS_MAX", 1)
    monkeypatch.setattr(browse_calls, "AGAIN_S", 0.01)
    rig = Rig(died("a"), died("b"))
    pieces = rig.triages.pieces(TriageAsked("/", "q"), Identity("ann"), AUTHOR)
    await anext(pieces)
    rig.queues.is_led = False
    asked = 0
    ask = rig.members.ask

    async def elected(node: str, name: str, fields: Json) -> Any:
        nonlocal asked
        asked += 1
        rig.queues.is_led = asked > 2
        return await ask(node, name, fields)

    monkeypatch.setattr(rig.members, "ask", elected)
    second = await anext(pieces)
    assert (len(second.groups), second.next_page_token) == (1, "")
    rig.queues.is_led = False
    monkeypatch.setattr(rig.members, "ask", ask)
    monkeypatch.setattr(browse_calls, "PATIENCE_S", 0.02)
    with pytest.raises(Unavailable):
        await rig.look()
    assert rig.records[-1]["outcome"] == "unavailable"


async def test_looks_of_both_kinds_share_a_users_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_guard, "CALLS_PER_USER_MAX", 1)
    rig = Rig(died("a"))
    pieces = rig.triages.pieces(TriageAsked("/", "q"), Identity("ann"), AUTHOR)
    await anext(pieces)
    with pytest.raises(TooManyBrowses):
        await rig.preview(REDRIVE)
    await pieces.aclose()
    assert await rig.preview(REDRIVE)


def test_texts_that_are_no_unicode_are_shown_as_what_json_can_hold() -> None:
    triage = Triage()
    view = StoredMessage((("e\udcff", "k"), b"\x00\x00", b"", b""), 4, age_ms=1)
    triage.add_message(view, 5)
    [(name, group)] = triage.largest_first()
    row = triages.group_row(name, group)
    assert (row["exchange"], row["told_by"], row["example"]) == ("e\ufffd", "none", 4)
    assert "exchange" not in triages.group_row("", triage.others)
