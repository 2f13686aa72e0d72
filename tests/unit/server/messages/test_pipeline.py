"""The way of a published message, whoever publishes it: order, counts, what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from brokerd.amqp import errors, properties
from brokerd.amqp.methods import BasicPublish
from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.core import annotations as message_annotations
from brokerd.core.catalog.permissions import Access
from brokerd.core.confirms import Confirms
from brokerd.core.message import Content
from brokerd.core.profiles import profile
from brokerd.core.queue import enqueue_commands
from brokerd.core.queue.enqueue_commands import EnqueueStatus
from brokerd.raft.messages import NodeId
from brokerd.server.messages import pipeline
from brokerd.server.messages.pipeline import NO_CONSUMERS, NO_ROUTE, Pipeline
from brokerd.server.messages.reply_to import PREFIX, Replies
from brokerd.server.queues.stream import UNNUMBERED, ChannelStream
from brokerd.telemetry import client_totals
from brokerd.telemetry.counters import ConfirmClock
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.server.messages import fakes

PLAIN = b"\0\0"


class Groups:
    """Keeps what was sent; takes all of it over when told to."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, enqueue_commands.EnqueueView, Any]] = []

    def refuses_lines(self, uid: int) -> bool:
        return False

    def send(self, uid: int, command: bytes, done: Any, once: bool = False, **_: object) -> None:
        self.sent.append((uid, enqueue_commands.EnqueueView(command), done))

    def take_over(self) -> None:
        for _, view, done in self.sent:
            reply = enqueue_commands.encode_enqueue_reply(EnqueueStatus.OK, view.count)
            done(ReplyStatus.OK, reply)


class Others:
    """A cluster of one."""

    def alive(self) -> set[NodeId]:
        return set()

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        raise AssertionError(node)


class Client:
    """A user who may do everything in `/`."""

    vhost = "/"
    user = "guest"
    tags = ()

    def __init__(self, access: Access) -> None:
        self.access = access


class Sink:
    """A channel that awaits replies."""

    def __init__(self) -> None:
        self.got: list[Content] = []

    def deliver_reply(self, content: Content) -> bool:
        self.got.append(content)
        return True


class Rig:
    """A door's channel with its pipeline, and notes in the order in which things happened."""

    def __init__(self, version: str = "") -> None:
        self.catalog = CatalogDriver(profile(version) if version else None)
        self.catalog.queue("q")
        self.routing = fakes.Routing(self.catalog)
        self.groups = Groups()
        self.confirms = Confirms()
        self.totals = self.routing.counters.totals[client_totals.AMQP]
        self.clock = ConfirmClock(self.routing.counters, "/", "guest", self.totals)
        self.replies = Replies(fakes.Identity("a"), Others(), self.catalog.view)
        self.stream = ChannelStream(fakes.turn(self.groups), 5, self.answered)
        client = Client(self.catalog.access)
        self.pipeline = Pipeline(self.routing, self.replies, client, self.stream, self, self.totals)
        self.notes: list[Any] = []

    def returned(
        self, method: BasicPublish, contents: Sequence[Content], first: int, why: tuple[int, str]
    ) -> None:
        self.notes.append(("returned", first, len(contents), why))

    def answered(self, outcomes: list[tuple[int, int, int]]) -> None:
        self.notes.append(("answered", *outcomes))
        for first, count, accepted in outcomes:
            if first != UNNUMBERED:
                self.confirms.answered(first, count, accepted)

    def publish(
        self,
        exchange: str,
        key: str,
        *,
        count: int = 1,
        mandatory: bool = False,
        numbered: bool = True,
        is_refused: bool = False,
    ) -> None:
        target = self.pipeline.resolve(BasicPublish(0, exchange, key, mandatory), 1)
        assert target.result is not None
        contents: list[Content] = [(target.route, PLAIN, b"body", b"")] * count
        tracker = self.confirms if numbered else None
        first = self.confirms.published(count) if numbered else UNNUMBERED
        clock = self.clock if numbered else None
        self.pipeline.send(
            target.method,
            target.result,
            contents,
            first,
            target.replies,
            tracker,
            clock,
            is_refused,
        )
        self.stream.flush()

    def counts(self, exchange: str) -> dict[str, Any]:
        """Return what was counted of an exchange since the last look."""
        rows = self.routing.counters.take(0, 1)
        (row,) = (row for row in rows if row["k"] == "exchange" and row["exchange"] == exchange)
        return row


def test_a_run_is_counted_expected_and_sent_and_confirmed_when_its_queue_has_it() -> None:
    """R-PC-1, R-PC-4."""
    rig = Rig()
    rig.publish("", "q", count=3)
    assert [(view.count, view.first_sequence) for _, view, _ in rig.groups.sent] == [(3, 1)]
    assert rig.confirms.outstanding == 3
    counts = rig.counts("")
    assert (counts["in"], counts["routed"], counts["in_bytes"]) == (3, 3, 12)
    rig.groups.take_over()
    assert rig.confirms.take() == ([(3, True)], [])
    assert (rig.notes, rig.routing.nowhere) == ([("answered", (1, 3, 3))], [])


def test_what_finds_no_queue_is_told_of_and_comes_back_if_it_must_before_its_confirm() -> None:
    """R-PUB-7, R-PC-4."""
    rig = Rig()
    rig.publish("", "nowhere", count=2)
    assert (rig.notes, rig.routing.nowhere) == ([], [("", 2)])
    assert rig.confirms.take() == ([(2, True)], [])
    rig.publish("", "nowhere", count=2, mandatory=True)
    assert rig.notes == [("returned", 3, 2, NO_ROUTE)]
    assert rig.confirms.take() == ([(4, True)], [])
    assert rig.groups.sent == []
    assert rig.counts("")["in"] == 4


def test_a_refused_immediate_message_comes_back_without_being_mandatory() -> None:
    """R-AE-15."""
    rig = Rig()
    rig.publish("", "nowhere", is_refused=True, numbered=False)
    assert rig.notes == [("returned", UNNUMBERED, 1, NO_CONSUMERS)]


def test_replies_go_past_queues_and_are_answered_by_their_channel() -> None:
    """R-DRT-3."""
    rig = Rig()
    sink = Sink()
    name = rig.replies.open(9, "/", sink)
    rig.publish("", name, count=2, mandatory=True)
    assert len(sink.got) == 2
    assert rig.notes == [("answered", (1, 1, 1)), ("answered", (2, 1, 1))]
    assert rig.confirms.take() == ([(2, True)], [])
    assert (rig.groups.sent, rig.routing.nowhere) == ([], [])
    assert rig.counts("")["routed"] == 2
    rig.replies.close(9)
    rig.notes.clear()
    rig.publish("", name, mandatory=True)
    assert rig.notes == [("returned", 3, 1, NO_ROUTE), ("answered", (3, 1, 1))]
    rig.notes.clear()
    rig.publish("", name)
    assert rig.notes == [("answered", (4, 1, 1))]


def test_a_message_to_a_queue_and_a_reply_is_confirmed_when_both_have_it() -> None:
    """R-PC-4, R-DRT-3: BCC may name a channel that awaits a reply."""
    rig = Rig()
    name = rig.replies.open(9, "/", Sink())
    first = rig.confirms.published()
    contents: list[Content] = [(("", "q"), PLAIN, b"body", b"")]
    method, result = BasicPublish(0, "", "q"), rig.catalog.route("", "q")
    rig.pipeline.send(method, result, contents, first, (name,), rig.confirms, None)
    rig.stream.flush()
    assert rig.notes == [("answered", (1, 1, 1))]
    assert rig.confirms.take() == ([], [])
    rig.groups.take_over()
    assert rig.confirms.take() == ([(1, False)], [])


def test_nobody_asks_for_the_fate_of_a_reply_without_number_unless_it_must_come_back() -> None:
    """R-DRT-3: all of a run stand under the one number that says that there is none."""
    rig = Rig()
    name = PREFIX + "A" * 54
    rig.publish("", name, count=2, numbered=False)
    assert rig.notes == []
    rig.publish("", name, count=2, numbered=False, mandatory=True)
    once = [("returned", UNNUMBERED, 1, NO_ROUTE), ("answered", (UNNUMBERED, 1, 1))]
    assert rig.notes == once * 2


@pytest.mark.parametrize(("version", "is_marked"), [("", False), ("mrg", True)])
def test_the_way_over_an_alternate_exchange_is_marked_where_that_counts(
    version: str, is_marked: bool
) -> None:
    """R-MQ-7, O-7: for clients and for what the member publishes by itself."""
    rig = Rig(version)
    rig.catalog.exchange("alt", "fanout")
    rig.catalog.bind("alt", "q")
    rig.catalog.exchange("ex", "direct", arguments={"alternate-exchange": "alt"})
    rig.publish("ex", "k")
    own: Content = (("ex", "k"), PLAIN, b"own", b"")
    result = rig.catalog.route("ex", "k")
    assert pipeline.send_own(rig.routing, rig.stream, "/", result, [own], 7)
    rig.stream.flush()
    kept = [view.contents(0, 1)[0][3] for _, view, _ in rig.groups.sent]
    assert [message_annotations.decode(raw).rerouted for raw in kept] == [is_marked, is_marked]


def test_what_the_member_publishes_is_counted_by_the_queues_that_take_it() -> None:
    """R-DLX-28: a cycle that is cut takes nothing."""
    rig = Rig()
    rig.catalog.queue("r")
    rig.catalog.exchange("ex", "fanout")
    for name in ("q", "r"):
        rig.catalog.bind("ex", name)
    own: Content = (("ex", "k"), PLAIN, b"own", b"")
    result = rig.catalog.route("ex", "k")
    assert len(result.queues) == 2
    targets = result.queues[:1]
    assert pipeline.send_own(rig.routing, rig.stream, "/", result, [own], 1, targets)
    assert not pipeline.send_own(rig.routing, rig.stream, "/", result, [own], 2, ())
    rig.stream.flush()
    assert [uid for uid, _, _ in rig.groups.sent] == [targets[0].uid]
    counts = rig.counts("ex")
    assert (counts["internal_in"], counts["internal_in_bytes"], counts["copies"]) == (2, 6, 1)


def test_a_message_with_something_special_is_checked_routed_and_annotated() -> None:
    """R-RT-C2, R-PUB-4."""
    rig = Rig()
    rig.catalog.queue("blind")
    header = properties.BasicProperties(
        headers={"BCC": ["blind"], "x": 1}, expiration="60", priority=3
    ).encode()
    target = rig.pipeline.resolve(BasicPublish(0, "", "q"), 8)
    assert target.revision == 8
    content, result, replies = rig.pipeline.check(target, header, b"body")
    kept = message_annotations.decode(content[3])
    assert (kept.ttl_ms, kept.priority, kept.bcc) == (60, 3, ["blind"])
    assert content[0] is target.route
    assert properties.headers(content[1]) == {"x": 1}
    assert (content[2], replies) == (b"body", ())
    assert sorted(queue.name for queue in result.queues) == ["blind", "q"]
    wrong = properties.BasicProperties(expiration="soon").encode()
    with pytest.raises(errors.PreconditionFailed):
        rig.pipeline.check(target, wrong, b"")
    with pytest.raises(errors.SoftError, match="no such exchange"):
        rig.pipeline.resolve(BasicPublish(0, "no such exchange", "q"), 8)


def test_a_mandatory_message_comes_back_when_all_its_queues_refuse() -> None:
    """R-PUB-7: their home members are down; it goes to them all the same, and is refused."""
    rig = Rig()
    rig.catalog.queue("other")
    rig.catalog.bind("amq.fanout", "q")
    rig.catalog.bind("amq.fanout", "other")
    rig.routing.down_homes.refusing.add(rig.catalog.found("q").uid)
    rig.publish("", "q", mandatory=True)
    assert rig.notes == [("returned", 1, 1, NO_ROUTE)]
    assert len(rig.groups.sent) == 1
    rig.publish("", "q")
    rig.publish("amq.fanout", "", mandatory=True)
    assert rig.notes == [("returned", 1, 1, NO_ROUTE)]
