"""Pages of a queue at its leader: what is in them, where they end, who gets none."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence

import pytest

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.message import Content
from brokerd.core.queue import browse
from brokerd.core.queue.browse import Browsed
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.server.queues import browsing
from brokerd.server.queues.browsing import Busy, Matching, NotHere, Page, Question, QueueBrowser
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


def bodies(page: Page) -> list[bytes]:
    return [base64.b64decode(row["body"]) for row in page.messages]


def filled(*batches: Sequence[bytes]) -> Replicas:
    q = QueueDriver(queue_type="quorum")
    for batch in batches:
        q.publish(*batch)
    return Replicas(q)


async def test_a_page_has_bodies_as_far_as_they_are_wanted() -> None:
    queues = filled([b"one", b"three"], [b""])
    page = await QueueBrowser(queues, lambda: 0).page(UID, Question(body_bytes=4))
    assert bodies(page) == [b"one", b"thre", b""]
    assert [row["body_size"] for row in page.messages] == [3, 5, 0]
    assert (page.looked, page.place) == (3, None)
    assert page.counts == {"ready": 3, "unacked": 0, "delayed": 0}
    # Both messages of an entry come from one read of it.
    assert queues.reads == 2


async def test_what_consumers_hold_names_them() -> None:
    queues = filled([b"a", b"b"])
    queues.q.consume("c", prefetch=1)
    page = await QueueBrowser(queues, lambda: 0).page(UID, Question(browse.UNACKED))
    assert [row["consumer"] for row in page.messages] == [["n1", 7, 1, "c"]]
    assert page.counts == {"ready": 1, "unacked": 1, "delayed": 0}


async def test_the_last_ones_and_the_rest_of_a_page() -> None:
    queues = filled(*[[b"%d" % number] for number in range(10)])
    browser = QueueBrowser(queues, lambda: 0)
    page = await browser.page(UID, Question(tail=3, count=2, body_bytes=9))
    assert bodies(page) == [b"7", b"8"]
    rest = await browser.page(UID, Question(tail=3, count=2, body_bytes=9, place=page.place))
    assert (bodies(rest), rest.place) == ([b"9"], None)


async def test_a_message_whose_entry_has_gone_meanwhile_is_left_out() -> None:
    queues = filled([b"a"], [b"b"], [b"c"])
    queues.forgotten = {2}
    page = await QueueBrowser(queues, lambda: 0).page(UID, Question(body_bytes=1))
    assert bodies(page) == [b"a", b"c"]


@pytest.mark.parametrize("bound", ["PAGE_BYTES_MAX", "READ_BYTES_MAX"])
async def test_a_page_ends_where_it_is_large(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, bound, 150)
    queues = filled(*[[b"x" * 100] for _ in range(5)])
    browser = QueueBrowser(queues, lambda: 0)
    page = await browser.page(UID, Question(body_bytes=100))
    assert 1 <= len(page.messages) < 5
    shown = len(page.messages)
    while page.place is not None:
        page = await browser.page(UID, Question(body_bytes=100, place=page.place))
        assert page.messages
        shown += len(page.messages)
    assert shown == 5


async def test_a_filter_is_asked_about_each_and_the_page_says_how_many() -> None:
    queues = filled(*[[b"%d" % number] for number in range(200)])
    browser = QueueBrowser(queues, lambda: 0)

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
    monkeypatch.setattr(browsing, "LOOKED_MAX", 100)
    queues = filled(*[[b"x"] for _ in range(300)])
    browser = QueueBrowser(queues, lambda: 0)
    page = await browser.page(UID, Question(), NONE)
    assert page.messages == []
    assert 100 <= page.looked < 300
    assert page.place is not None
    monkeypatch.setattr(browsing, "LOOK_S", 0.0)
    page = await browser.page(UID, Question(), NONE)
    # One at least, so that pages come to an end.
    assert page.looked == 1


async def test_only_a_leader_that_hears_most_answers() -> None:
    queues = filled([b"x"])
    browser = QueueBrowser(queues, lambda: 0)
    queues.hears = False
    with pytest.raises(NotHere):
        await browser.page(UID, Question())
    queues.hears, queues.is_led = True, False
    with pytest.raises(NotHere):
        await browser.page(UID, Question())
    with pytest.raises(NotHere):
        await browser.page(UID + 1, Question())


async def test_leadership_that_ends_between_two_walks_ends_the_page() -> None:
    queues = filled(*[[b"x"] for _ in range(200)])

    def matches(_: Browsed, __: Content) -> bool:
        queues.is_led = False
        return False

    with pytest.raises(NotHere):
        await QueueBrowser(queues, lambda: 0).page(UID, Question(), Matching(matches))


async def test_so_many_pages_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "PAGES_AT_ONCE", 1)
    queues = filled(*[[b"x"] for _ in range(200)])
    browser = QueueBrowser(queues, lambda: 0)
    under_way = asyncio.create_task(browser.page(UID, Question(), NONE))
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await browser.page(UID, Question())
    await under_way
    assert (await browser.page(UID, Question())).looked == 200
