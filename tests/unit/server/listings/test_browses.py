"""Looks at queues for the front doors: rights, bounds, tokens, the audit log."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from brokerd.amqp.properties import BasicProperties
from brokerd.core.catalog.identity import Identity
from brokerd.core.catalog.refusals import Refused
from brokerd.core.queue.browse import Place
from brokerd.server.catalog.audit import Author
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.catalog.keyring import Keyring
from brokerd.server.listings import browses, look_guard, message_rows
from brokerd.server.listings.browses import Asked, Browses, Shown
from brokerd.server.listings.look_guard import BrowseRefused, TooManyBrowses
from brokerd.server.members import browse_calls
from brokerd.server.queues.browsing import Page, Question

Json = dict[str, Any]
AUTHOR = Author("ann", "http", "127.0.0.1:9")


def message(number: int) -> Json:
    return {
        "number": number,
        "state": "ready",
        "redelivered": False,
        "acquired_count": 0,
        "delivery_count": 0,
        "enqueued_ms": 5,
        "expires_ms": None,
        "due_ms": None,
        "size": 3,
        "exchange": "",
        "routing_key": "k\udcff",
        "header": "AAA=",
        "body": "eA==",
        "body_size": 1,
    }


@dataclass
class Record:
    """A queue of the catalog."""

    exclusive_owner: tuple[str, int, int] | None
    uid: int = 9
    name: str = "q"
    vhost: str = "/"
    members: tuple[str, ...] = ("n1",)


@dataclass
class Rights:
    """What a user may do."""

    refused: Refused | None

    def check_vhost(self) -> None:
        """Every vhost may be entered."""

    def check(self, permission: str, kind: str, name: str) -> Refused | None:
        return self.refused


class Rig:
    """A queue of so many messages; `rights` refuses where it says something."""

    def __init__(self, count: int = 3, exclusive: bool = False) -> None:
        self.messages = [message(number) for number in range(count)]
        self.rights = ""
        self.error: Exception | None = None
        self.questions: list[Question] = []
        self.records: list[Json] = []
        owner = ("n1", 1, 1) if exclusive else None
        self.record = Record(owner)
        sources = look_guard.Sources(
            view=cast(Any, self),
            admission=cast(Any, self),
            members=cast(Any, None),
            signer=Keyring([b"k" * 32]),
            audit=cast(Any, self),
            refusal=lambda _: "",
            check_filter=self.check_filter,
        )
        self.browses = Browses(look_guard.LookGuard(sources))

    cluster_id = "c"

    def queue(self, vhost: str, name: str) -> Any:
        return self.record if name == "q" else None

    def access(self, identity: Identity, vhost: str) -> Any:
        return Rights(Refused(403, self.rights) if self.rights else None)

    def write(self, author: Author, fields: Mapping[str, Any]) -> None:
        assert author == AUTHOR
        self.records.append(dict(fields))

    def check_filter(self, text: str) -> None:
        if text == "bad":
            raise ValueError("filter: bad")

    async def ask_leader(self, _m: Any, _q: Any, asked: Question, *_rest: Any) -> Page:
        # The caller goes on with its own.
        question = replace(asked)
        if self.error is not None:
            raise self.error
        self.questions.append(question)
        start = 0 if question.place is None else question.place.number
        found = self.messages[start : start + question.count]
        end = start + len(found)
        place = Place(3, 0, end, 0) if end < len(self.messages) else None
        return Page(found, place, len(found), counts={"ready": len(self.messages)})

    async def look(self, tags: tuple[str, ...] = (), **asked: Any) -> list[Shown]:
        given = Asked("/", **{"name": "q"} | asked)
        pages = self.browses.pages(given, Identity("ann", tags), AUTHOR)
        async with contextlib.aclosing(pages):
            return [page async for page in pages]


def use(monkeypatch: pytest.MonkeyPatch, count: int = 3, *, exclusive: bool = False) -> Rig:
    rig = Rig(count, exclusive)
    monkeypatch.setattr(browse_calls, "ask_leader", rig.ask_leader)
    return rig


async def test_pages_come_until_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = use(monkeypatch, 1_300)
    assert [len(page.messages) for page in await rig.look(count=1_100)] == [500, 500, 100]
    assert rig.records == [
        {
            "action": "browse",
            "kind": "queue",
            "vhost": "/",
            "name": "q",
            "outcome": "ok",
            "messages": 1_100,
        }
    ]
    [page] = await rig.look()
    assert len(page.messages) == browses.COUNT_DEFAULT
    assert rig.questions[-1].body_bytes == browses.BODY_BYTES_DEFAULT
    [rest] = await rig.look(page_token=page.next_page_token, count=400)
    assert rest.messages[0]["number"] == browses.COUNT_DEFAULT
    [last] = await rig.look(start="tail", count=400)
    assert (rig.questions[-1].tail, last.counts) == (400, {"ready": 1_300})


async def test_a_message_is_shown_as_json_can_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = use(monkeypatch, 1)
    rig.messages[0] |= {"due_ms": 7, "consumer": ["n1", 3, 4, "t"]}
    [page] = await rig.look()
    assert page.messages[0] == {
        "number": 0,
        "state": "ready",
        "redelivered": False,
        "acquired_count": 0,
        "delivery_count": 0,
        "enqueued_ms": 5,
        "expires_ms": None,
        "due_ms": 7,
        "consumer": {"node": "n1", "channel": 4, "consumer_tag": "t"},
        "exchange": "",
        "routing_key": "k\ufffd",
        "bytes": 3,
        "properties": [],
        "payload_bytes": 1,
        "payload": "x",
        "payload_encoding": "string",
    }
    assert page.next_page_token == ""


async def test_who_may_not_read_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = use(monkeypatch)
    rig.rights = "read access refused"
    with pytest.raises(BrowseRefused, match="read access") as error:
        await rig.look()
    assert (error.value.refused.code, rig.questions) == (403, [])
    assert rig.records[0]["outcome"] == "refused"
    with pytest.raises(BrowseRefused):
        await rig.look(name="other")


async def test_rights_that_are_withdrawn_end_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = use(monkeypatch, 2_000)
    pages = rig.browses.pages(Asked("/", "q", count=2_000), Identity("ann"), AUTHOR)
    await anext(pages)
    rig.rights = "no more"
    with pytest.raises(BrowseRefused, match="no more"):
        await anext(pages)
    assert (rig.records[0]["outcome"], rig.records[0]["messages"]) == ("refused", 500)


async def test_exclusive_queues_show_to_administrators(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = use(monkeypatch, exclusive=True)
    with pytest.raises(BrowseRefused, match="exclusive") as error:
        await rig.look()
    assert error.value.refused.code == 405
    assert len((await rig.look(tags=("administrator",)))[0].messages) == 3


@pytest.mark.parametrize(
    "asked",
    [
        {"count": 0},
        {"count": browses.COUNT_MAX + 1},
        {"body_bytes": browses.BODY_BYTES_MAX + 1},
        {"state": "dead"},
        {"start": "soon"},
        {"start": "9" * 100},
        {"page_token": "x"},
        {"filter": "bad"},
        {"filter": "x" * 5_000},
    ],
)
async def test_what_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch, asked: Json) -> None:
    rig = use(monkeypatch)
    with pytest.raises(BrowseRefused) as error:
        await rig.look(**asked)
    assert (error.value.refused.code, rig.questions) == (406, [])


async def test_a_token_goes_on_with_what_it_was_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = use(monkeypatch)
    [page] = await rig.look(count=1, state="all", start="2")
    assert (rig.questions[-1].state, rig.questions[-1].first_number) == ("all", 2)
    await rig.look(page_token=page.next_page_token, start="tail")
    question = rig.questions[-1]
    assert (question.state, question.first_number, question.tail) == ("all", 2, 0)
    with pytest.raises(BrowseRefused, match="goes on with 'all'"):
        await rig.look(page_token=page.next_page_token, state="ready")


async def test_a_time_is_taken_with_its_zone_or_as_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = use(monkeypatch)
    for text in ("2026-11-30T15:00:00Z", "2026-11-30T15:00:00", "2026-11-30T16:00:00+01:00"):
        await rig.look(start=text)
        assert rig.questions[-1].first_ms == 1_796_050_800_000
    await rig.look(start="1900-01-01")
    assert rig.questions[-1].first_ms == 0


async def test_a_user_has_so_many_calls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = use(monkeypatch, 5_000)
    under_way = [
        rig.browses.pages(Asked("/", "q", count=5_000), Identity("ann"), AUTHOR)
        for _ in range(look_guard.CALLS_PER_USER_MAX)
    ]
    for pages in under_way:
        await anext(pages)
    with pytest.raises(TooManyBrowses):
        await rig.look()
    assert rig.records[-1]["outcome"] == "too many"
    for pages in under_way:
        await pages.aclose()
    assert [record["outcome"] for record in rig.records] == ["too many", "ok", "ok"]
    assert len(await rig.look()) == 1


async def test_a_client_that_goes_away_ends_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = use(monkeypatch, 5_000)
    asked = Asked("/", "q", count=5_000)
    pages = rig.browses.pages(asked, Identity("ann"), AUTHOR, lambda: len(rig.questions) == 2)
    assert len([page async for page in pages]) == 2
    assert rig.records[0]["messages"] == 1_000


@pytest.mark.parametrize("bound", ["CALL_BYTES_MAX", "CALL_S"])
async def test_a_call_has_an_end_and_says_where(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(browses, bound, 0)
    rig = use(monkeypatch, 5_000)
    [page] = await rig.look(count=5_000)
    assert page.next_page_token


async def test_a_queue_without_a_leader_is_noted_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = use(monkeypatch)
    rig.error = Unavailable("nobody leads")
    with pytest.raises(Unavailable):
        await rig.look()
    assert rig.records[0]["outcome"] == "unavailable"


def test_a_payload_is_cut_between_characters() -> None:
    text = "aü€😀"
    for end in range(len(text.encode()) + 1):
        shown, encoding = message_rows.payload(text.encode()[:end], is_base64=False, is_cut=True)
        assert (text.startswith(shown), encoding) == (True, "string")
    assert message_rows.payload(b"a\xc3", is_base64=False) == ("YcM=", "base64")
    assert (
        message_rows.payload(b"\xff\xff\xff\xffabcd", is_base64=False, is_cut=True)[1] == "base64"
    )
    assert message_rows.payload(b"a", is_base64=True) == ("YQ==", "base64")


def test_properties_are_shown_in_rabbitmqs_words() -> None:
    header = BasicProperties(app_id="a", headers={"n": 1}, priority=3).encode()
    assert message_rows.properties(header) == {"app_id": "a", "priority": 3, "headers": {"n": 1}}


async def test_a_queue_that_is_deleted_in_mid_look_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = use(monkeypatch, 2_000)

    async def gone(_m: Any, queue: Any, _a: Any, _f: Any, refusal: Any) -> Page:
        rig.record = replace(rig.record, uid=10)
        refusal(queue.uid)
        raise AssertionError("a queue of this name has another uid")

    monkeypatch.setattr(browse_calls, "ask_leader", gone)
    with pytest.raises(BrowseRefused, match="deleted meanwhile") as error:
        await rig.look(count=2_000)
    assert error.value.refused.code == 404
