"""Direct reply-to between two members without a network (R-DRT-3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerd.cluster.deliveries import DeliveryKind
from brokerd.cluster.errors import DeliveryFormatError
from brokerd.core.message import Content
from brokerd.server import message_checks, reply_to
from brokerd.server.reply_to import PREFIX, Replies

CONTENT: Content = (("", "key"), b"\0\0", b"body", b"")


class Sink:
    """A channel that awaits replies."""

    def __init__(self) -> None:
        self.got: list[Content] = []
        self.is_full = False

    def deliver_reply(self, content: Content) -> bool:
        if self.is_full:
            return False
        self.got.append(content)
        return True


class Member:
    """A broker as the register sees it; what it sends is kept."""

    def __init__(self, node: str, alive: set[str]) -> None:
        self.node = node
        self.incarnation = 7
        self.sent: list[tuple[str, int, bytes]] = []
        self.view = SimpleNamespace(members=lambda: {"a": "", "b": ""})
        self.host = SimpleNamespace(alive=lambda: alive, send_delivery=self._send)
        self.replies = Replies(cast(Any, self))

    def _send(self, node: str, uid: int, term: int, kind: int, payload: bytes) -> None:
        self.sent.append((node, kind, payload))


class Answers:
    """What was said about replies."""

    def __init__(self) -> None:
        self.said: list[bool] = []

    def __call__(self, taken: bool) -> None:
        self.said.append(taken)


@pytest.fixture
def alive() -> set[str]:
    return {"a", "b"}


@pytest.fixture
def here(alive: set[str]) -> Member:
    return Member("a", alive)


@pytest.fixture
def there(alive: set[str]) -> Member:
    return Member("b", alive)


def carry(source: Member, target: Member) -> None:
    """Bring what one member has sent to the other."""
    sent, source.sent = source.sent, []
    for node, kind, payload in sent:
        assert node == target.node
        if kind == DeliveryKind.REPLY:
            target.replies.received(cast(Any, source.node), payload)
        else:
            target.replies.answered(payload)


def test_a_reply_goes_to_the_channel_of_its_name_and_to_no_other(here: Member) -> None:
    first, second, told = Sink(), Sink(), Answers()
    name = here.replies.open(5, first)
    other = here.replies.open(6, second)
    assert name != other
    assert len(name.encode()) <= 255
    here.replies.send(name, CONTENT, told)
    assert (first.got, second.got, told.said) == ([CONTENT], [], [True])
    first.is_full = True
    here.replies.send(name, CONTENT, told)
    here.replies.close(5)
    here.replies.send(name, CONTENT, told)
    assert told.said == [True, False, False]
    assert not here.sent


def test_a_name_of_an_earlier_start_reaches_nobody(here: Member) -> None:
    sink, told = Sink(), Answers()
    name = here.replies.open(5, sink)
    here.incarnation = 8
    here.replies.send(name, CONTENT, told)
    assert (sink.got, told.said) == ([], [False])


@pytest.mark.parametrize("name", [PREFIX, PREFIX + "x", PREFIX + "%", PREFIX + "A" * 75, "q"])
def test_names_that_are_no_addresses_reach_nobody(here: Member, name: str) -> None:
    told = Answers()
    here.replies.send(name, CONTENT, told)
    here.replies.send(name, CONTENT, None)
    assert told.said == [False]


async def test_another_member_delivers_and_says_so(here: Member, there: Member) -> None:
    sink, told = Sink(), Answers()
    name = there.replies.open(5, sink)
    here.replies.send(name, CONTENT, told)
    assert not told.said
    carry(here, there)
    assert sink.got == [CONTENT]
    carry(there, here)
    assert told.said == [True]
    there.replies.close(5)
    here.replies.send(name, CONTENT, told)
    carry(here, there)
    carry(there, here)
    assert told.said == [True, False]
    # Nobody asked: nobody answers.
    here.replies.send(name, CONTENT, None)
    carry(here, there)
    assert not there.sent


async def test_existence_is_asked_without_delivering(here: Member, there: Member) -> None:
    sink = Sink()
    name = there.replies.open(5, sink)

    async def ask() -> bool:
        asked = asyncio.ensure_future(here.replies.exists(name))
        await asyncio.sleep(0)
        carry(here, there)
        carry(there, here)
        return await asked

    assert await ask()
    there.replies.close(5)
    assert not await ask()
    assert not sink.got


async def test_a_member_that_is_gone_has_nobody(
    here: Member, there: Member, alive: set[str]
) -> None:
    told = Answers()
    name = there.replies.open(5, Sink())
    alive.discard("b")
    here.replies.send(name, CONTENT, told)
    here.replies.send(name, CONTENT, None)
    assert told.said == [False]
    assert not here.sent


async def test_an_answer_that_never_comes_is_a_no(
    here: Member, there: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_to, "ANSWER_S", 0.01)
    name = there.replies.open(5, Sink())
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    here.replies.send(name, CONTENT, future.set_result)
    assert await asyncio.wait_for(future, 60) is False
    # The late answer interests nobody.
    carry(here, there)
    carry(there, here)


async def test_questions_are_bounded(
    here: Member, there: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_to, "WAITING_MAX", 1)
    told: list[Answers] = [Answers(), Answers()]
    name = there.replies.open(5, Sink())
    done: Callable[[bool], None]
    for done in told:
        here.replies.send(name, CONTENT, done)
    assert [answers.said for answers in told] == [[], [True]]
    assert len(here.sent) == 2
    carry(here, there)
    carry(there, here)
    assert [answers.said for answers in told] == [[True], [True]]


@pytest.mark.parametrize("payload", [b"", bytes(20), b"\2" + bytes(100), b"\1" + bytes(100)])
def test_what_is_no_reply_is_refused(here: Member, payload: bytes) -> None:
    with pytest.raises(DeliveryFormatError):
        here.replies.received(cast(Any, "b"), payload)
    with pytest.raises(DeliveryFormatError):
        here.replies.answered(payload)


def test_only_the_default_exchange_leads_to_pseudo_queues() -> None:
    """R-DRT-3, R-RT-C1: its key, CC and BCC; each once."""
    keys = (PREFIX + "x", "q", PREFIX + "x", PREFIX + "y")
    assert message_checks.replies_of("", *keys) == (PREFIX + "x", PREFIX + "y")
    assert message_checks.replies_of("amq.direct", *keys) == ()
    assert message_checks.replies_of("", reply_to.PSEUDO_QUEUE) == ()
