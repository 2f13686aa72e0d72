"""Publishing to another broker: what counts as taken over, and what ends the session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from brokerd.amqp import events, methods
from brokerd.amqp.connection import AmqpConnection
from brokerd.amqp.content import parse_publish
from brokerd.federation.client import Connection
from brokerd.federation.errors import ClientError
from brokerd.federation.link_events import Answer, Unrouted
from brokerd.federation.remote_publisher import RemotePublisher
from tests.unit.federation.test_client import connect, polite, serving

PATIENCE_S = 60.0


@dataclass
class Broker:
    """Answers as it is told: one answer per message that comes, in order."""

    #: Each is a list of (sequence, multiple, taken) and of what comes back (routing key, header,
    #: body), or "return", "close", "block", "unblock", "pause" or "both".
    answers: list[list[tuple[int, bool, bool] | tuple[str, bytes, bytes]] | str]
    #: Messages (exchange, routing key, mandatory, body), and what answers to channel.flow say.
    got: list[tuple[str, str, bool, bytes] | bool] = field(default_factory=list)
    #: A pause comes before confirms are agreed on.
    pauses_at_once: bool = False
    served: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, machine: AmqpConnection, event: events.Event) -> None:
        """Serve one event."""
        polite(machine, event)
        if isinstance(event, events.MethodReceived) and isinstance(
            event.method, methods.ConfirmSelect
        ):
            if self.pauses_at_once:
                machine.send(event.channel, methods.ChannelFlow(False))
            machine.send(event.channel, methods.ConfirmSelectOk())
        if isinstance(event, events.MethodReceived) and isinstance(
            event.method, methods.ChannelFlowOk
        ):
            self.got.append(event.method.active)
        if isinstance(event, events.ChannelOpened) and event.channel > 1:
            # How a test has the pause end.
            machine.send(1, methods.ChannelFlow(True))
        if isinstance(event, events.PublishesReceived):
            for payload, _, body in event.items:
                publish = parse_publish(payload)
                self.got.append((publish.exchange, publish.routing_key, publish.mandatory, body))
                self.served.set()
                self._answer(machine, event.channel)

    def _answer(self, machine: AmqpConnection, channel: int) -> None:
        answer = self.answers.pop(0)
        if answer == "return":
            back = methods.BasicReturn(312, "NO_ROUTE", "", "gone")
            machine.send_content(channel, back, b"\x00\x00", b"")
            machine.send(channel, methods.BasicAck(1, False))
        elif answer == "close":
            machine.close_channel(channel, 404, "NOT_FOUND - no exchange 'x'", 60, 40)
        elif answer == "pause":
            machine.send(channel, methods.ChannelFlow(False))
        elif answer == "block":
            machine.send(0, methods.ConnectionBlocked("low on memory"))
        elif answer == "unblock":
            machine.send(0, methods.ConnectionUnblocked())
        elif answer == "both":
            machine.send(channel, methods.ChannelFlow(False))
            machine.send(0, methods.ConnectionBlocked("low on memory"))
        else:
            assert isinstance(answer, list)
            for each in answer:
                if isinstance(each[0], str):
                    back = methods.BasicReturn(312, "NO_ROUTE", "to", each[0])
                    machine.send_content(channel, back, each[1], each[2])
                    continue
                sequence, multiple, is_taken = each
                kind = methods.BasicAck if is_taken else methods.BasicNack
                machine.send(channel, kind(sequence, multiple))


class Heard:
    """ends.Listener that keeps what it is told."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bool]] = []
        self.unrouted: list[Unrouted] = []
        self.errors: list[str] = []
        self.reasons: list[str] = []
        self.told = asyncio.Event()

    def answered(self, answers: list[Answer]) -> None:
        for first, count, is_taken in answers:
            self.answers += [(number, is_taken) for number in range(first, first + count)]
        self.told.set()

    def returned(self, messages: list[Unrouted]) -> None:
        self.unrouted += messages
        self.told.set()

    def failed(self, error: ClientError) -> None:
        self.errors.append(str(error))
        self.told.set()

    def blocked(self, reason: str) -> None:
        self.reasons.append(reason)
        self.told.set()

    def demanded(self, is_wanted: bool) -> None:
        raise AssertionError("a remote broker wants messages at any time")

    async def wait(self) -> None:
        """Wait for something new."""
        async with asyncio.timeout(PATIENCE_S):
            await self.told.wait()
        self.told.clear()


@asynccontextmanager
async def publisher(
    broker: Broker, heard: Heard, return_ends: bool = False
) -> AsyncIterator[tuple[RemotePublisher, Connection]]:
    async with serving(broker) as port:
        connection = await connect(port)
        channel = await connection.open_channel()
        made = RemotePublisher(connection, channel, heard, lambda: "to", return_ends=return_ends)
        await made.start()
        try:
            yield made, connection
        finally:
            made.close()


async def test_nothing_is_taken_over_before_the_broker_says_so() -> None:
    """R-PC-3: confirms come out of order, alone or for many; numbers are the link's own."""
    broker = Broker([[], [], [(2, False, True)], [(3, True, True), (4, False, False)]])
    heard = Heard()
    async with publisher(broker, heard) as (made, _):
        for number in (70, 71, 72):
            made.publish(number, "key", b"\x00\x00", [b"%d" % number])
        made.flush()
        assert heard.answers == []
        await heard.wait()
        assert heard.answers == [(71, True)]
        made.publish(73, "key", b"\x00\x00", [b"73"])
        made.flush()
        await heard.wait()
    assert heard.answers == [(71, True), (70, True), (72, True), (73, False)]
    assert broker.got[0] == ("to", "key", True, b"70")


async def test_what_was_answered_already_or_never_sent_answers_nothing() -> None:
    """A hostile broker's sequence numbers cost nothing."""
    broker = Broker([[(1, False, True), (1, False, True), (2**62, True, True), (9, False, False)]])
    heard = Heard()
    async with publisher(broker, heard) as (made, _):
        made.publish(1, "key", b"\x00\x00", [b""])
        made.flush()
        await heard.wait()
    assert heard.answers == [(1, True)]


async def test_zero_stands_for_all() -> None:
    broker = Broker([[], [(0, True, True)]])
    heard = Heard()
    async with publisher(broker, heard) as (made, _):
        made.publish(5, "key", b"\x00\x00", [b""])
        made.publish(6, "key", b"\x00\x00", [b""])
        made.flush()
        await heard.wait()
    assert heard.answers == [(5, True), (6, True)]


async def test_a_message_that_comes_back_ends_the_session_and_is_not_taken_over() -> None:
    """Its confirm follows, and must not have the source forget it."""
    heard = Heard()
    broker = Broker(["return"])
    async with publisher(broker, heard, return_ends=True) as (made, _):
        made.publish(1, "gone", b"\x00\x00", [b""])
        made.flush()
        await heard.wait()
    assert broker.got == [("to", "gone", True, b"")]
    assert heard.errors == ["no queue at the destination takes messages: NO_ROUTE"]
    assert heard.answers == []


PLAIN, MARKED, WRITTEN_ANEW = b"\x00\x00", b"\x80\x00\x01t", b"\x40\x00\x01e"


async def test_what_comes_back_is_told_apart_and_taken_when_it_is_published_again() -> None:
    """Only of the last body of the second run: the confirm for all of it says so."""
    broker = Broker([[], [], [], [("key", PLAIN, b"b"), (4, True, True)], [(5, False, True)]])
    heard = Heard()
    async with publisher(broker, heard) as (made, _):
        made.publish(1, "other", PLAIN, [b"b"])
        made.publish(2, "key", PLAIN, [b"a", b"c", b"b"])
        made.flush()
        while not heard.answers:
            await heard.wait()
        assert heard.unrouted == [Unrouted(4, "to", "key", PLAIN, b"b")]
        assert heard.answers == [(1, True), (2, True), (3, True)]
        made.publish(4, "key", PLAIN, [b"b"], "elsewhere")
        made.flush()
        while len(heard.answers) < 4:
            await heard.wait()
    assert heard.answers[-1] == (4, True)
    assert broker.got[-1] == ("elsewhere", "key", True, b"b")
    assert heard.errors == []


async def test_equal_messages_come_back_one_by_one_in_their_order() -> None:
    back = ("key", PLAIN, b"same")
    broker = Broker([[], [back, back, (2, True, True)], [back, (3, False, False)]])
    heard = Heard()
    async with publisher(broker, heard) as (made, _):
        made.publish(7, "key", PLAIN, [b"same", b"same"])
        made.flush()
        while len(heard.unrouted) < 2:
            await heard.wait()
        made.publish(7, "key", PLAIN, [b"same"], "to")
        made.flush()
        while len(heard.unrouted) < 3:
            await heard.wait()
    assert [message.number for message in heard.unrouted] == [7, 8, 7]
    assert heard.answers == []


async def test_properties_tell_apart_what_has_the_same_body() -> None:
    broker = Broker([[], [("key", MARKED, b"same"), (2, True, True)]])
    heard = Heard()
    async with publisher(broker, heard) as (made, _):
        made.publish(1, "key", PLAIN, [b"same"])
        made.publish(2, "key", MARKED, [b"same"])
        made.flush()
        while not heard.answers:
            await heard.wait()
    assert [message.number for message in heard.unrouted] == [2]
    assert heard.answers == [(1, True)]


async def test_a_broker_may_write_properties_anew_where_that_leaves_no_doubt() -> None:
    """The message goes out again as it was, and not as it came back."""
    broker = Broker([[("key", WRITTEN_ANEW, b"one"), (1, False, True)], [], []])
    heard = Heard()
    async with publisher(broker, heard) as (made, _):
        made.publish(1, "key", MARKED, [b"one"])
        made.flush()
        await heard.wait()
        assert heard.unrouted == [Unrouted(1, "to", "key", MARKED, b"one")]
        broker.answers = [[], [("key", WRITTEN_ANEW, b"two"), (2, False, True)]]
        made.publish(2, "key", MARKED, [b"two"])
        made.publish(3, "key", PLAIN, [b"two"])
        made.flush()
        await heard.wait()
    assert heard.errors == ["no queue at the destination takes messages: NO_ROUTE"]
    assert heard.answers == []


async def test_a_message_that_was_never_sent_cannot_come_back() -> None:
    heard = Heard()
    async with publisher(Broker([[("key", PLAIN, b"strange")]]), heard) as (made, _):
        made.publish(1, "key", PLAIN, [b"known"])
        made.flush()
        await heard.wait()
    assert heard.errors == ["no queue at the destination takes messages: NO_ROUTE"]


async def test_a_closed_channel_and_a_lost_connection_end_the_session() -> None:
    heard = Heard()
    async with publisher(Broker(["close"]), heard) as (made, _):
        made.publish(1, "key", b"\x00\x00", [b""])
        made.flush()
        await heard.wait()
        assert "no exchange 'x'" in heard.errors[0]
    heard = Heard()
    async with publisher(Broker([]), heard) as (_, connection):
        connection.abort()
        await heard.wait()
    assert heard.errors == ["closed"]


async def test_a_broker_that_blocks_is_heard() -> None:
    """connection.blocked, R-ALM-2."""
    heard = Heard()
    async with publisher(Broker(["block", "unblock"]), heard) as (made, _):
        made.publish(1, "key", b"\x00\x00", [b""])
        made.flush()
        await heard.wait()
        assert heard.reasons == ["low on memory"]
        made.publish(2, "key", b"\x00\x00", [b""])
        made.flush()
        await heard.wait()
    assert heard.reasons == ["low on memory", ""]


async def test_nothing_goes_out_during_a_pause_and_all_of_it_in_order_after() -> None:
    """channel.flow (R-OLD-1): who publishes behind the answer to a pause loses the connection."""
    heard = Heard()
    broker = Broker(["pause", [], [(3, True, True)], [(4, False, True)]])
    async with publisher(broker, heard) as (made, connection):
        made.publish(1, "key", b"\x00\x00", [b"one"])
        made.flush()
        await heard.wait()
        assert heard.reasons == ["channel.flow"]
        made.publish(2, "key", b"\x00\x00", [b"two"])
        made.publish(3, "key", b"\x00\x00", [b"three"])
        made.flush()
        await connection.open_channel()
        while len(heard.answers) < 3:
            await heard.wait()
        made.publish(4, "key", b"\x00\x00", [b"four"])
        made.flush()
        while len(heard.answers) < 4:
            await heard.wait()
    assert heard.answers == [(1, True), (2, True), (3, True), (4, True)]
    assert heard.reasons == ["channel.flow", ""]
    assert [each if isinstance(each, bool) else each[3] for each in broker.got] == [
        *(b"one", False, True, b"two", b"three", b"four")
    ]


async def test_a_held_message_keeps_the_exchange_that_it_came_for() -> None:
    """A shovel without a destination publishes each message where it was published first."""
    exchanges = iter("ab")
    broker = Broker(["pause", [(2, True, True)]])
    heard = Heard()
    async with serving(broker) as port:
        connection = await connect(port)
        channel = await connection.open_channel()
        now = next(exchanges)
        made = RemotePublisher(connection, channel, heard, lambda: now, return_ends=False)
        await made.start()
        made.publish(1, "key", b"\x00\x00", [b""])
        made.flush()
        await heard.wait()
        now = next(exchanges)
        made.publish(2, "key", b"\x00\x00", [b""])
        now = "another by now"
        await connection.open_channel()
        while not heard.answers:
            await heard.wait()
        made.close()
    assert [each[0] for each in broker.got if isinstance(each, tuple)] == ["a", "b"]


async def test_a_pause_at_once_is_heard() -> None:
    heard = Heard()
    broker = Broker([[(1, False, True)]], pauses_at_once=True)
    async with publisher(broker, heard) as (made, connection):
        assert heard.reasons == ["channel.flow"]
        made.publish(1, "key", b"\x00\x00", [b""])
        await connection.open_channel()
        while not heard.answers:
            await heard.wait()
        assert heard.reasons == ["channel.flow", ""]


async def test_a_pause_before_the_publisher_begins_counts() -> None:
    heard = Heard()

    def script(machine: AmqpConnection, event: events.Event) -> None:
        broker(machine, event)
        if isinstance(event, events.ChannelOpened):
            machine.send(event.channel, methods.ChannelFlow(False))

    broker = Broker([])
    async with serving(script) as port:
        connection = await connect(port)
        channel = await connection.open_channel()
        await channel.call(methods.QueueDeclare(queue="q"))
        made = RemotePublisher(connection, channel, heard, lambda: "", return_ends=False)
        await made.start()
        assert heard.reasons == ["channel.flow"]
        made.close()


async def test_a_broker_that_blocks_and_pauses_is_blocked_until_both_are_over() -> None:
    """R-OLD-2, throttle.mode both."""
    heard = Heard()
    broker = Broker(["both", "unblock"])
    async with publisher(broker, heard) as (made, connection):
        made.publish(1, "key", b"\x00\x00", [b""])
        made.publish(2, "key", b"\x00\x00", [b""])
        made.flush()
        while len(heard.reasons) < 3:
            await heard.wait()
        assert heard.reasons == ["channel.flow", "low on memory", "channel.flow"]
        await connection.open_channel()
        while len(heard.reasons) < 4:
            await heard.wait()
    assert heard.reasons[-1] == ""


async def test_after_its_end_nothing_is_told_and_what_was_sent_has_gone_out() -> None:
    heard = Heard()
    broker = Broker([[(1, False, True)]])
    async with publisher(broker, heard) as (made, connection):
        made.publish(1, "key", b"\x00\x00", [b"last"])
        made.close()
        async with asyncio.timeout(PATIENCE_S):
            await broker.served.wait()
        assert connection.lost is not None
    assert broker.got == [("to", "key", True, b"last")]
    assert (heard.answers, heard.errors) == ([], [])


@pytest.mark.parametrize("sequence", [0, 1])
async def test_a_refusal_of_many_refuses_each(sequence: int) -> None:
    heard = Heard()
    async with publisher(Broker([[(sequence, True, False)]]), heard) as (made, _):
        made.publish(3, "key", b"\x00\x00", [b""])
        made.flush()
        await heard.wait()
    assert heard.answers == [(3, False)]
