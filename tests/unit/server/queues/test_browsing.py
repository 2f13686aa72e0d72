"""Pages of a queue at its leader: what is in them, where they end, who gets none."""

from __future__ import annotations

import asyncio
import base64
import gc
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.message import Content
from brokerd.core.queue import browse
from brokerd.core.queue.browse import Browsed
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.server.queues import browsing, walking
from brokerd.server.queues.browsing import Page, Question, QueueBrowser
from brokerd.server.queues.walking import Busy, Matching, NotHere, Walker
from tests.unit.core.queue_driver import QueueDriver

UID = 7
NONE = Matching(lambda _, __: False)


class Replicas:
    """One queue, led here."""

    def __init__(self, q: QueueDriver) -> None:
        self.q = q
        self.is_led = self.hears = True
        self.forgotten: set[int] = set()
        self.reads = 0

    def queue_of(self, uid: int) -> Queue | None:
        raise AssertionError("a page needs no record")

    def leads(self, uid: int) -> bool:
        return uid == UID and self.is_led

    def hears_most(self, uid: int) -> bool:
        return self.hears

    def machine(self, uid: int) -> QueueMachine:
        return self.q.machine

    def entry_data(self, uid: int, index: int) -> bytes | None:
        self.reads += 1
        if index in self.forgotten:
            return None
        return next(command for meta, command in self.q.log if meta.index == index)


def browser_of(queues: Replicas) -> QueueBrowser:
    return QueueBrowser(Walker(queues, lambda: 0, lambda: 0))


def bodies(page: Page) -> list[bytes]:
    return [base64.b64decode(row["body"]) for row in page.messages]


def filled(*batches: Sequence[bytes]) -> Replicas:
    q = QueueDriver(queue_type="quorum")
    for batch in batches:
        q.publish(*batch)
    return Replicas(q)


async def test_a_page_has_bodies_as_far_as_they_are_wanted() -> None:
    queues = filled([b"one", b"three"], [b""])
    page = await browser_of(queues).page(UID, Question(body_bytes=4))
    assert bodies(page) == [b"one", b"thre", b""]
    assert [row["body_size"] for row in page.messages] == [3, 5, 0]
    assert (page.looked, page.place) == (3, None)
    assert page.counts == {"ready": 3, "unacked": 0, "delayed": 0}
    # Both messages of an entry come from one read of it.
    assert queues.reads == 2


async def test_what_consumers_hold_names_them() -> None:
    queues = filled([b"a", b"b"])
    queues.q.consume("c", prefetch=1)
    page = await browser_of(queues).page(UID, Question(browse.UNACKED))
    assert [row["consumer"] for row in page.messages] == [["n1", 7, 1, "c"]]
    assert page.counts == {"ready": 1, "unacked": 1, "delayed": 0}


async def test_the_last_ones_and_the_rest_of_a_page() -> None:
    queues = filled(*[[b"%d" % number] for number in range(10)])
    browser = browser_of(queues)
    page = await browser.page(UID, Question(tail=3, count=2, body_bytes=9))
    assert bodies(page) == [b"7", b"8"]
    rest = await browser.page(UID, Question(tail=3, count=2, body_bytes=9, place=page.place))
    assert (bodies(rest), rest.place) == ([b"9"], None)


async def test_a_message_whose_entry_has_gone_meanwhile_is_left_out() -> None:
    queues = filled([b"a"], [b"b"], [b"c"])
    queues.forgotten = {2}
    page = await browser_of(queues).page(UID, Question(body_bytes=1))
    assert bodies(page) == [b"a", b"c"]


ALL = Matching(lambda _, __: True)
SLOW = Matching(lambda _, __: True, is_slow=True)
#: Asked without the message, which is read only where it is shown.
BY_NUMBER = Matching(lambda browsed, _: browsed.number >= 0, needs_content=False)
MATCHINGS = pytest.mark.parametrize("matching", [None, ALL, SLOW, BY_NUMBER])


@MATCHINGS
@pytest.mark.parametrize(
    ("module", "bound"), [(browsing, "PAGE_BYTES_MAX"), (walking, "READ_BYTES_MAX")]
)
async def test_pages_end_where_they_are_large_and_go_on_there(
    module: Any, bound: str, matching: Matching | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, bound, 600_000)
    queues = filled(*[[b"%d" % number * 300_000] for number in range(5)])
    browser = browser_of(queues)
    shown: list[bytes] = []
    question = Question(body_bytes=300_000)
    while True:
        page = await browser.page(UID, question, matching)
        assert 1 <= len(page.messages) < 5
        shown += bodies(page)
        if page.place is None:
            break
        question.place = page.place
    assert shown == [b"%d" % number * 300_000 for number in range(5)]


@MATCHINGS
async def test_pages_have_each_message_once(matching: Matching | None) -> None:
    queues = filled(*[[b"%d.%d" % (batch, n) for n in range(7)] for batch in range(100)])
    browser = browser_of(queues)
    shown: list[bytes] = []
    question = Question(count=97, body_bytes=9)
    while True:
        page = await browser.page(UID, question, matching)
        assert page.looked == len(page.messages)
        shown += bodies(page)
        if page.place is None:
            break
        question.place = page.place
    assert shown == [b"%d.%d" % (batch, n) for batch in range(100) for n in range(7)]


async def test_a_filter_that_needs_no_message_reads_what_it_shows_alone() -> None:
    queues = filled(*[[b"%d" % number] for number in range(50)])
    matching = Matching(lambda browsed, _: browsed.number == 30, needs_content=False)
    page = await browser_of(queues).page(UID, Question(body_bytes=9), matching)
    assert (len(page.messages), page.looked, queues.reads) == (1, 50, 1)
    # Gone between the walk over the state and the reading of it.
    queues.forgotten = set(range(100))
    page = await browser_of(queues).page(UID, Question(body_bytes=9), matching)
    assert (len(page.messages), page.looked) == (0, 50)


class Data(bytes):
    """An entry whose end is counted."""

    ended = 0

    def __del__(self) -> None:
        Data.ended += 1


@MATCHINGS
async def test_no_entry_outlives_its_walk(
    matching: Matching | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a circle of references one of 128 MiB would wait for the collector."""
    queues = filled([b"x"])
    entry_data = queues.entry_data
    monkeypatch.setattr(queues, "entry_data", lambda *asked: Data(entry_data(*asked) or b""))
    monkeypatch.setattr(Data, "ended", 0)
    gc.disable()
    try:
        page = await browser_of(queues).page(UID, Question(), matching)
        assert (len(page.messages), Data.ended) == (1, 1)
    finally:
        gc.enable()


async def test_a_slow_filter_is_asked_in_a_thread_for_a_while_at_a_time() -> None:
    queues = filled(*[[b"x"] for _ in range(20)])
    asked: list[int] = []

    def matches(browsed: Browsed, _: Content) -> bool:
        asked.append(threading.get_ident())
        until_s = time.monotonic() + walking._THREAD_S
        while time.monotonic() < until_s:
            pass
        return False

    page = await browser_of(queues).page(UID, Question(), Matching(matches, is_slow=True))
    assert page.looked == len(asked) == 20
    assert threading.get_ident() not in asked


async def test_a_filter_is_asked_about_each_and_the_page_says_how_many() -> None:
    queues = filled(*[[b"%d" % number] for number in range(200)])
    browser = browser_of(queues)

    def matches(browsed: Browsed, content: Content) -> bool:
        return content[2].endswith(b"7")

    page = await browser.page(UID, Question(count=500, body_bytes=9), Matching(matches))
    assert (len(page.messages), page.looked, page.place) == (20, 200, None)
    first = await browser.page(UID, Question(count=3, body_bytes=9), Matching(matches))
    assert bodies(first) == [b"7", b"17", b"27"]
    again = await browser.page(UID, Question(count=500, place=first.place), Matching(matches))
    assert len(again.messages) == 17


async def test_a_filter_that_finds_nothing_ends_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walking, "LOOKED_MAX", 100)
    monkeypatch.setattr(walking, "FOUND_AT_ONCE", 64)
    queues = filled(*[[b"x"] for _ in range(300)])
    browser = browser_of(queues)
    page = await browser.page(UID, Question(), NONE)
    assert page.messages == []
    assert 100 <= page.looked < 300
    assert page.place is not None
    monkeypatch.setattr(walking, "LOOK_S", 0.0)
    for matching in (NONE, Matching(NONE.matches, is_slow=True)):
        page = await browser.page(UID, Question(), matching)
        # Some at least, so that pages come to an end.
        assert 1 <= page.looked <= 64


async def test_only_a_leader_that_hears_most_answers() -> None:
    queues = filled([b"x"])
    browser = browser_of(queues)
    queues.hears = False
    with pytest.raises(NotHere):
        await browser.page(UID, Question())
    queues.hears, queues.is_led = True, False
    with pytest.raises(NotHere):
        await browser.page(UID, Question())
    with pytest.raises(NotHere):
        await browser.page(UID + 1, Question())


async def test_leadership_that_ends_between_two_walks_ends_the_page() -> None:
    queues = filled(*[[b"x"] for _ in range(600)])

    def matches(_: Browsed, __: Content) -> bool:
        queues.is_led = False
        return False

    with pytest.raises(NotHere):
        await browser_of(queues).page(UID, Question(), Matching(matches))


async def test_so_many_pages_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "WALKS_AT_ONCE", 1)
    queues = filled(*[[b"x"] for _ in range(200)])
    browser = browser_of(queues)
    under_way = asyncio.create_task(browser.page(UID, Question(), NONE))
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await browser.page(UID, Question())
    await under_way
    assert (await browser.page(UID, Question())).looked == 200
