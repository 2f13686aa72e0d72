"""The shell of a link between a scripted broker and a destination that a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from brokerd.amqp import events, methods
from brokerd.amqp.connection import AmqpConnection
from brokerd.amqp.values import Table
from brokerd.federation import link_events, link_state, upstream
from brokerd.federation.ends import Ends, Listener
from brokerd.federation.errors import ClientError
from brokerd.federation.link import Link
from brokerd.federation.link_headers import QueuePassage
from brokerd.federation.ports import FederatedQueue
from brokerd.federation.queue_ends import QueueSource
from tests.unit.federation.scripted_server import polite, serving

DEADLINE_S = 10.0


class Broker:
    """The upstream: delivers one message to each new consumer, and keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.arguments: list[Table] = []

    def __call__(self, machine: AmqpConnection, event: events.Event) -> None:
        """See scripted_server.Script."""
        if isinstance(event, events.AcksReceived):
            self.told += ["basic.ack"] * len(event.acks)
        if isinstance(event, events.MethodReceived):
            method = event.method
            self.told.append(method.NAME)
            if isinstance(method, methods.BasicQos):
                machine.send(event.channel, methods.BasicQosOk())
            elif isinstance(method, methods.BasicConsume):
                self.arguments.append(method.arguments)
            if isinstance(method, methods.BasicCancel) and method.nowait:
                return
        polite(machine, event)


class Target:
    """Destination and publisher at once: keeps what it is given, answers when the test says so."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.published: list[int] = []
        #: Of those that were published once more.
        self.exchanges: list[str] = []
        self.flushed = 0
        self.closed = 0
        self.refuses: ClientError | None = None

    async def open(self, listener: Listener) -> Target:
        """See ends.Destination."""
        if self.refuses is not None:
            raise self.refuses
        self.listeners.append(listener)
        return self

    def publish(
        self,
        number: int,
        routing_key: str,
        header: bytes,
        bodies: list[bytes],
        exchange: str | None = None,
    ) -> None:
        """See ports.Publisher."""
        self.published.append(number)
        if exchange is not None:
            self.exchanges.append(exchange)

    def flush(self) -> None:
        """See ports.Publisher."""
        self.flushed += 1

    def close(self) -> None:
        """See ports.Publisher."""
        self.closed += 1


class Member:
    """ports.Host: keeps the states that were noted."""

    node = "n1"

    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []
        self.dropped: list[tuple[str, int, str, str]] = []

    def link_changed(self, link: str, state: str, error: str) -> None:
        """See Host."""
        self.states.append((state, error))

    def messages_dropped(self, link: str, count: int, exchange: str, routing_key: str) -> None:
        """See Host."""
        self.dropped.append((link, count, exchange, routing_key))


async def until(check: Callable[[], object]) -> None:
    """Wait for something that the other side does."""
    async with asyncio.timeout(DEADLINE_S):
        while not check():  # noqa: ASYNC110 - many things are waited for, none of which tells
            await asyncio.sleep(0.005)


class Rig:
    """A link that runs, and both its ends."""

    def __init__(self, port: int, broker: Broker, drops_unroutable: bool = False) -> None:
        self.broker = broker
        self.target = Target()
        self.member = Member()
        there = upstream.parse("u", {"uri": f"amqp://127.0.0.1:{port}/v", "reconnect-delay": 0.05})
        queue = FederatedQueue("v", "q", 1, True, upstream.Choice("u"))
        ends = Ends(
            *("v", QueueSource(queue, there), QueuePassage("v", "q", there), self.target),
            drops_unroutable=drops_unroutable,
        )
        self.link = Link("v:q", there, ends, self.member)

    @property
    def state(self) -> str:
        """Return what a listing shows."""
        return str(self.link.row()["status"])


@asynccontextmanager
async def rig(
    properties: Table | None = None, *, drops_unroutable: bool = False
) -> AsyncIterator[Rig]:
    broker = Broker()
    async with serving(broker, properties=properties) as port:
        made = Rig(port, broker, drops_unroutable)
        made.link.start()
        try:
            yield made
        finally:
            await made.link.stop(is_removed=False)


async def test_a_message_goes_through_and_is_acknowledged_when_it_is_taken_over() -> None:
    """R-FED-5, R-FQ-2."""
    async with rig() as made:
        await until(lambda: made.target.published)
        assert made.broker.arguments == [{"x-priority": -1}]
        await until(lambda: made.link.row()["backlog"] == 0)
        assert "basic.ack" not in made.broker.told
        made.target.listeners[0].answered([(1, 1, True)])
        await until(lambda: "basic.ack" in made.broker.told)
    assert made.target.closed == 1
    assert made.state == "shutdown"


async def test_a_destination_that_fails_costs_the_session_and_not_the_link() -> None:
    """R-FED-6: what was not answered comes again; the lost session's answers do not count."""
    async with rig() as made:
        await until(lambda: made.target.published)
        old = made.target.listeners[0]
        old.failed(ClientError("the other broker is gone"))
        await until(lambda: len(made.target.listeners) == 2 and len(made.target.published) == 2)
        assert ("error", "the other broker is gone") in made.member.states
        # R-DL-2: what was not passed on is given back by a nack, behind the consumer's end.
        ends = [each for each in made.broker.told if each in ("basic.cancel", "basic.nack")]
        assert ends == ["basic.cancel", "basic.nack"]
        old.answered([(1, 1, True)])
        old.failed(ClientError("late"))
        old.blocked("late")
        old.demanded(False)
        made.target.listeners[1].answered([(1, 1, True)])
        await until(lambda: "basic.ack" in made.broker.told)
        assert made.broker.told.count("basic.ack") == 1
        assert made.state == "running"


async def test_what_no_queue_takes_is_published_again_and_acknowledged_when_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The state says so as long as it lasts; a timer of a session that is over tries nothing."""
    monkeypatch.setattr(link_state, "ROUTE_DELAY_MS", 20)
    async with rig() as made:
        await until(lambda: made.target.published)
        listener, flushed = made.target.listeners[0], made.target.flushed
        listener.returned([link_events.Unrouted(1, "x", "k", b"\x00\x00", b"")])
        assert made.state == "unroutable"
        assert made.link.row()["unrouted"] == 1
        await until(lambda: made.target.published == [1, 1] and made.target.flushed > flushed)
        assert made.target.exchanges == ["x"]
        assert "basic.ack" not in made.broker.told
        listener.answered([(1, 1, True)])
        await until(lambda: "basic.ack" in made.broker.told)
        assert [state for state, _ in made.member.states] == ["running", "unroutable", "running"]
    async with rig() as made:
        await until(lambda: made.target.published)
        listener = made.target.listeners[0]
        listener.returned([link_events.Unrouted(1, "x", "k", b"\x00\x00", b"")])
        listener.failed(ClientError("gone"))
        await until(lambda: made.state == "running" and len(made.target.published) == 2)
        assert made.target.exchanges == []


async def test_what_no_queue_takes_may_be_given_up() -> None:
    async with rig(drops_unroutable=True) as made:
        await until(lambda: made.target.published)
        made.target.listeners[0].returned([link_events.Unrouted(1, "x", "k", b"\x00\x00", b"")])
        await until(lambda: "basic.ack" in made.broker.told)
        assert made.member.dropped == [("v:q", 1, "x", "k")]
        assert made.state == "running"


async def test_a_destination_that_cannot_be_opened_is_tried_again() -> None:
    """R-FED-6."""
    async with rig() as made:
        await until(lambda: made.target.published)
        made.target.refuses = ClientError("nobody there")
        made.target.listeners[0].failed(ClientError("gone"))
        await until(lambda: ("error", "nobody there") in made.member.states)
        made.target.refuses = None
        await until(lambda: len(made.target.listeners) == 2)
        await until(lambda: made.state == "running")


async def test_a_blocked_destination_cancels_the_consumer_until_it_takes_messages_again() -> None:
    """R-ALM-9 in the other direction: the remote broker is short of memory."""
    async with rig() as made:
        await until(lambda: made.target.published)
        made.target.listeners[0].blocked("low on memory")
        await until(lambda: "basic.cancel" in made.broker.told)
        assert made.state == "blocked"
        made.target.listeners[0].blocked("")
        await until(lambda: made.broker.told.count("basic.consume") == 2)
        assert made.state == "running"


async def test_demand_that_comes_and_goes_moves_the_consumer_and_not_the_state() -> None:
    """R-FQ-2."""
    async with rig() as made:
        await until(lambda: made.target.published)
        made.target.listeners[0].demanded(False)
        await until(lambda: "basic.cancel" in made.broker.told)
        assert made.state == "running"
        made.target.listeners[0].demanded(True)
        await until(lambda: made.broker.told.count("basic.consume") == 2)


async def test_demand_that_is_back_soon_costs_the_upstream_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R-FQ-2: it comes and goes many times a second while consumers take what has come."""
    # Longer than a busy machine stands still; a timer of the first pauses would be due in the test.
    linger_s = 0.5
    monkeypatch.setattr(link_state, "LINGER_MS", int(1000 * linger_s))
    async with rig() as made:
        await until(lambda: made.target.published)
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < 1.5 * linger_s:
            made.target.listeners[0].demanded(False)
            await asyncio.sleep(0.005)
            made.target.listeners[0].demanded(True)
            await asyncio.sleep(0)
        # Nothing is held any more: the answer of the upstream is read.
        made.target.listeners[0].answered([(1, 1, True)])
        await until(lambda: "basic.ack" in made.broker.told)
        await until(lambda: made.link.row()["backlog"] == 0)
        assert made.broker.told.count("basic.consume") == 1
        assert "basic.cancel" not in made.broker.told


async def test_demand_that_ends_at_once_leaves_no_consumer_behind() -> None:
    """R-FQ-2: what counts is the last word, however fast the words come."""
    async with rig() as made:
        await until(lambda: made.target.published)
        for is_wanted in (False, True, False, True, False):
            made.target.listeners[0].demanded(is_wanted)

        def of_consumer() -> list[str]:
            """An acknowledgement may come behind them."""
            return [told for told in made.broker.told if told in ("basic.consume", "basic.cancel")]

        await until(lambda: of_consumer()[-1:] == ["basic.cancel"])
        assert of_consumer().count("basic.consume") == of_consumer().count("basic.cancel")


@pytest.mark.parametrize("capabilities", [{}, {"consumer_priorities": False}])
async def test_an_upstream_without_consumer_priorities_is_an_error(capabilities: Table) -> None:
    """R-FQ-7: there the link would take what local consumers are waiting for."""
    async with rig({"capabilities": capabilities}) as made:
        await until(lambda: made.state == "error")
        assert "consumer_priorities" in made.member.states[-1][1]
        assert made.target.listeners == []
        assert "basic.consume" not in made.broker.told
