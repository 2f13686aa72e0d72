"""Direct reply-to between two members without a network (R-DRT-3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from brokerd.cluster.errors import DeliveryFormatError
from brokerd.cluster.peer import deliveries as delivery_codec
from brokerd.cluster.peer.deliveries import DeliveryKind
from brokerd.core.catalog import catalog_commands
from brokerd.core.message import Content
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.raft.messages import NodeId
from brokerd.server.messages import reply_to
from brokerd.server.messages.reply_to import PREFIX, Replies
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.server.messages import fakes

CONTENT: Content = (("", "key"), b"\0\0", b"body", b"")
PARTS = [(Run(0, 1, 0, 0, 0, 0), [CONTENT])]


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
    """One of two members of a cluster; what it sends is kept."""

    def __init__(self, node: str, alive: set[NodeId]) -> None:
        self.identity = fakes.Identity(node, 7)
        self.sent: list[tuple[str, int, bytes]] = []
        self._alive = alive
        catalog = CatalogDriver()
        for name in ("a", "b"):
            catalog.do(catalog_commands.put_member(name, f"{name}:5690"))
        self.replies = Replies(self.identity, self, catalog.view)

    def alive(self) -> set[NodeId]:
        return self._alive

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        self.sent.append((node, kind, payload))


class Answers:
    """What was said about replies."""

    def __init__(self) -> None:
        self.said: list[bool] = []

    def __call__(self, taken: bool) -> None:
        self.said.append(taken)


@pytest.fixture
def alive() -> set[NodeId]:
    return {NodeId("a"), NodeId("b")}


@pytest.fixture
def here(alive: set[NodeId]) -> Member:
    return Member("a", alive)


@pytest.fixture
def there(alive: set[NodeId]) -> Member:
    return Member("b", alive)


def carry(source: Member, target: Member) -> None:
    """Bring what one member has sent to the other."""
    sent, source.sent = source.sent, []
    for node, kind, payload in sent:
        assert node == target.identity.node
        if kind == DeliveryKind.REPLY:
            target.replies.received(NodeId(source.identity.node), payload)
        else:
            target.replies.answered(payload)


def test_a_reply_goes_to_the_channel_of_its_name_and_to_no_other(here: Member) -> None:
    first, second, told = Sink(), Sink(), Answers()
    name = here.replies.open(5, "v", first)
    other = here.replies.open(6, "v", second)
    assert name != other
    assert len(name.encode()) <= 255
    here.replies.send("v", name, CONTENT, told)
    assert (first.got, second.got, told.said) == ([CONTENT], [], [True])
    first.is_full = True
    here.replies.send("v", name, CONTENT, told)
    here.replies.close(5)
    here.replies.send("v", name, CONTENT, told)
    assert told.said == [True, False, False]
    assert not here.sent


def test_a_name_of_an_earlier_start_reaches_nobody(here: Member) -> None:
    sink, told = Sink(), Answers()
    name = here.replies.open(5, "v", sink)
    here.identity.incarnation = 8
    here.replies.send("v", name, CONTENT, told)
    assert (sink.got, told.said) == ([], [False])


@pytest.mark.parametrize("name", [PREFIX, PREFIX + "x", PREFIX + "%", PREFIX + "A" * 75, "q"])
def test_names_that_are_no_addresses_reach_nobody(here: Member, name: str) -> None:
    told = Answers()
    here.replies.send("v", name, CONTENT, told)
    here.replies.send("v", name, CONTENT, None)
    assert told.said == [False]


async def test_another_member_delivers_and_says_so(here: Member, there: Member) -> None:
    sink, told = Sink(), Answers()
    name = there.replies.open(5, "v", sink)
    here.replies.send("v", name, CONTENT, told)
    assert not told.said
    carry(here, there)
    assert sink.got == [CONTENT]
    carry(there, here)
    assert told.said == [True]
    there.replies.close(5)
    here.replies.send("v", name, CONTENT, told)
    carry(here, there)
    carry(there, here)
    assert told.said == [True, False]
    # Nobody asked: nobody answers.
    here.replies.send("v", name, CONTENT, None)
    carry(here, there)
    assert not there.sent


async def test_replies_stay_in_their_vhost(here: Member, there: Member) -> None:
    """R-VH-1, R-DRT-3: for other vhosts the name is nobody's, at one member and across two."""
    sink, told = Sink(), Answers()
    for owner in (here, there):
        name = owner.replies.open(5, "v", sink)
        for vhost in ("other", "", "V"):
            here.replies.send(vhost, name, CONTENT, told)
            if owner is there:
                carry(here, there)
                carry(there, here)
            asked = asyncio.ensure_future(here.replies.exists(vhost, name))
            await asyncio.sleep(0)
            if owner is there:
                carry(here, there)
                carry(there, here)
            assert not await asked
    assert (sink.got, told.said) == ([], [False] * 6)


async def test_a_member_that_names_no_vhost_is_believed(here: Member, there: Member) -> None:
    """In a rolling upgrade: a member of before does not say where a reply is from."""
    sink, told = Sink(), Answers()
    name = there.replies.open(5, "v", sink)
    here.replies.send("other", name, CONTENT, told)
    ((node, kind, payload),) = here.sent
    size = len(payload) - len(delivery_codec.encode(ConsumerId("vhost", 0, 0, "other"), PARTS))
    older = payload[:size] + delivery_codec.encode(ConsumerId("", 0, 0, ""), PARTS)
    here.sent = [(node, kind, older)]
    carry(here, there)
    carry(there, here)
    assert (sink.got, told.said) == ([CONTENT], [True])


async def test_existence_is_asked_without_delivering(here: Member, there: Member) -> None:
    sink = Sink()
    name = there.replies.open(5, "v", sink)

    async def ask() -> bool:
        asked = asyncio.ensure_future(here.replies.exists("v", name))
        await asyncio.sleep(0)
        carry(here, there)
        carry(there, here)
        return await asked

    assert await ask()
    there.replies.close(5)
    assert not await ask()
    assert not sink.got


async def test_a_member_that_is_gone_has_nobody(
    here: Member, there: Member, alive: set[NodeId]
) -> None:
    told = Answers()
    name = there.replies.open(5, "v", Sink())
    alive.discard(NodeId("b"))
    here.replies.send("v", name, CONTENT, told)
    here.replies.send("v", name, CONTENT, None)
    assert told.said == [False]
    assert not here.sent


async def test_an_answer_that_never_comes_is_a_no(
    here: Member, there: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_to, "ANSWER_S", 0.01)
    name = there.replies.open(5, "v", Sink())
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    here.replies.send("v", name, CONTENT, future.set_result)
    assert await asyncio.wait_for(future, 60) is False
    # The late answer interests nobody.
    carry(here, there)
    carry(there, here)


async def test_questions_are_bounded(
    here: Member, there: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_to, "WAITING_MAX", 1)
    told: list[Answers] = [Answers(), Answers()]
    name = there.replies.open(5, "v", Sink())
    done: Callable[[bool], None]
    for done in told:
        here.replies.send("v", name, CONTENT, done)
    assert [answers.said for answers in told] == [[], [True]]
    assert len(here.sent) == 2
    carry(here, there)
    carry(there, here)
    assert [answers.said for answers in told] == [[True], [True]]


@pytest.mark.parametrize("payload", [b"", bytes(20), b"\2" + bytes(100), b"\1" + bytes(100)])
def test_what_is_no_reply_is_refused(here: Member, payload: bytes) -> None:
    with pytest.raises(DeliveryFormatError):
        here.replies.received(NodeId("b"), payload)
    with pytest.raises(DeliveryFormatError):
        here.replies.answered(payload)
