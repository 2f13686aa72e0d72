"""The way of a look to a queue's leader: hints are followed, and there is an end."""

from __future__ import annotations

from typing import Any, cast

import pytest

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.queue.browse import Place
from brokerd.server.catalog.catalog_writer import QueueStuck, Unavailable
from brokerd.server.members import browse_calls, ports
from brokerd.server.members.member_calls import Handler, MemberCalls
from brokerd.server.queues.browsing import (
    BODY_BYTES_MAX,
    PAGE_MAX,
    Page,
    Question,
    QueueBrowser,
)
from brokerd.server.queues.walking import Busy, Matching, NotHere

Json = dict[str, Any]
PAGE = {"messages": [{"number": 1}], "place": [3, 0, 2, 0], "looked": 1, "counts": {"ready": 5}}


class Host:
    def __init__(self, leader: str | None) -> None:
        self.leader = leader

    def leader_of(self, uid: int) -> str | None:
        return self.leader

    def alive(self) -> set[str]:
        return {"a", "b", "c"}


class Cluster:
    """Members by name, with what each answers."""

    def __init__(self, answers: dict[str, Json | None], leader: str | None = None) -> None:
        self.host = Host(leader)
        self.calls = self
        self.answers = answers
        self.asked: list[str] = []
        self.fields: list[Json] = []

    async def ask(self, node: str, name: str, fields: Json) -> Json | None:
        self.asked.append(node)
        self.fields.append(fields)
        return self.answers.get(node)


def queue(*members: str) -> Queue:
    found = Queue.__new__(Queue)
    found.uid, found.name, found.vhost = 9, "q", "/"
    found.members = list(members)
    return found


async def ask(cluster: Cluster, *members: str, reason: str = "") -> Page:
    return await browse_calls.ask_leader(
        cast(ports.Neighbours, cluster), queue(*members), Question(), "", lambda _: reason
    )


async def test_the_leader_that_is_known_here_is_asked_first() -> None:
    cluster = Cluster({"c": PAGE}, leader="c")
    page = await ask(cluster, "a", "b", "c")
    assert (page.messages, page.place, page.looked) == ([{"number": 1}], Place(3, 0, 2, 0), 1)
    assert (page.counts, cluster.asked) == ({"ready": 5}, ["c"])


async def test_a_member_that_knows_better_is_followed() -> None:
    cluster = Cluster({"a": {"elsewhere": "c"}, "c": PAGE})
    await ask(cluster, "a", "b", "c")
    assert cluster.asked == ["a", "c"]


async def test_members_that_are_down_or_silent_are_passed_over() -> None:
    cluster = Cluster({"b": {"elsewhere": ""}, "c": PAGE}, leader="gone")
    await ask(cluster, "gone", "a", "b", "c")
    assert cluster.asked == ["a", "b", "c"]


async def test_without_a_leader_there_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse_calls, "PATIENCE_S", 0.05)
    monkeypatch.setattr(browse_calls, "AGAIN_S", 0.01)
    cluster = Cluster({"a": {"elsewhere": "b"}, "b": {"elsewhere": "a"}})
    with pytest.raises(Unavailable, match="queue 'q' in vhost '/'"):
        await ask(cluster, "a", "b")
    assert len(cluster.asked) > 2


async def test_a_queue_that_takes_nothing_says_why() -> None:
    cluster = Cluster({"a": PAGE})
    with pytest.raises(QueueStuck, match="its home is down"):
        await ask(cluster, "a", reason="its home is down")
    assert cluster.asked == []


async def test_a_leader_with_too_much_to_do_is_not_asked_again() -> None:
    with pytest.raises(browse_calls.Overloaded):
        await ask(Cluster({"a": {"busy": True}}), "a")


class Browser:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.question = Question()
        self.matching: Matching | None = None

    async def page(self, uid: int, question: Question, matching: Matching | None) -> Page:
        self.question, self.matching = question, matching
        if self.error is not None:
            raise self.error
        return Page([{"number": 4}], Place(1, 0, 5, 2), 3, counts={"ready": 9})


class Served:
    def __init__(self, browser: Browser) -> None:
        self.handler: Handler | None = None
        browse_calls.serve(
            cast(MemberCalls, self),
            cast(ports.Replicas, Host("b")),
            cast(QueueBrowser, browser),
            lambda text: Matching(lambda _, __: text == "yes"),
        )

    def serve(self, name: str, handler: Handler) -> None:
        self.handler = handler

    async def ask(self, **changes: Any) -> Json:
        asked = {"uid": 9, "state": "all", "tail": 0, "first_number": 1, "first_ms": 2}
        asked |= {"place": [3, 0, 7, 0], "count": 5, "body_bytes": 6, "filter": ""}
        assert self.handler is not None
        return await self.handler(asked | changes)


async def test_a_question_is_answered_by_the_leader_here() -> None:
    browser = Browser()
    served = Served(browser)
    answer = await served.ask()
    assert answer["messages"] == [{"number": 4}]
    assert (list(answer["place"]), answer["looked"]) == ([1, 0, 5, 2], 3)
    question = browser.question
    assert (question.state, question.first_number, question.first_ms) == ("all", 1, 2)
    assert (question.place, question.count, question.body_bytes) == (Place(3, 0, 7, 0), 5, 6)
    assert browser.matching is None
    await served.ask(filter="yes", place=None)
    assert browser.matching is not None
    assert browser.question.place is None


async def test_what_another_member_asks_for_stays_within_bounds() -> None:
    browser = Browser()
    await Served(browser).ask(count=10**9, body_bytes=10**9, tail=-4)
    question = browser.question
    assert (question.count, question.body_bytes, question.tail) == (PAGE_MAX, BODY_BYTES_MAX, 0)


async def test_a_member_that_does_not_lead_names_who_does() -> None:
    assert await Served(Browser(NotHere())).ask() == {"elsewhere": "b"}
    assert await Served(Browser(Busy())).ask() == {"busy": True}
