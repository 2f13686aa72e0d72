"""Consume calls over one queue machine: what they take out of it, and what they leave (ADR 69)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.amqp.properties import EMPTY, BasicProperties
from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.core.machine import Outcome
from brokerd.core.message import Content
from brokerd.core.queue import effects, queue_commands
from brokerd.core.queue.queue_commands import Kind
from brokerd.rpc.v1 import messages_pb2
from brokerd.server.grpc import consume_stream
from brokerd.server.grpc.consume_stream import WINDOW_MAX, ConsumeStream
from brokerd.server.queues import deliveries
from brokerd.server.queues.client import QueueClient
from brokerd.server.queues.deliveries import DeliveryHub
from tests.unit.core.queue_driver import QueueDriver
from tests.unit.server.grpc.test_publish_stream import Services, until
from tests.unit.server.messages import fakes

Settlement = messages_pb2.Settlement
#: Turns of the loop after which nothing is under way any more.
TURNS = 30
#: So often that, after which an answer waits for time to pass, and after which it does not come.
PATIENT_ROUNDS = 10
ANSWERS_ROUNDS = 100


class Member(Services):
    """A member whose queue is a machine in memory; commands take a turn of the loop."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.driver = QueueDriver(queue_type="quorum", **options)
        self.kinds: list[int] = []
        #: What lies in the queue, over and over.
        self.contents: list[Content] = [fakes.CONTENT]
        made: Any = self
        self.queues = made
        self.groups = made
        self.queue_client = QueueClient(fakes.turn(made, "n0"), 1)
        self.deliveries = DeliveryHub(self.queue_client.resume)
        #: The leader is dying: what it hands out does not arrive.
        self.is_cut = False
        #: Consumers that the new leader has yet to hear of: it sends them nothing.
        self._unheard: set[effects.ConsumerId] = set()

    @property
    def view(self) -> Any:
        return self.catalog.view

    def refusal(self, uid: int) -> str:
        return ""

    def knows(self, uid: int) -> bool:
        return True

    def queue_of(self, uid: int) -> Any:
        return self.catalog.view.queue("/", "q")

    def elect(self) -> None:
        """There is a new leader."""
        self.is_cut = False
        self._unheard = {consumer.id for consumer in self.deliveries.consumers()}
        self.deliveries.leader_changed(self.queue_of(0).uid)

    def send(self, uid: int, command: bytes, done: Any, *_: Any, **__: Any) -> None:
        def answer() -> None:
            done(ReplyStatus.OK, self.apply(command))

        asyncio.get_running_loop().call_soon(answer)

    async def request(self, uid: int, command: bytes, timeout_s: float, once: bool) -> bytes:
        await asyncio.sleep(0)
        reply = self.apply(command)
        await asyncio.sleep(0)
        return reply

    def fill(self, count: int) -> None:
        self._realise(self.driver.fill(count))

    def apply(self, command: bytes) -> bytes:
        self.kinds.append(command[1])
        outcome = self.driver.send(command)
        self._realise(outcome)
        return outcome.reply

    def contents_of(self, run: effects.Run) -> list[Content]:
        numbers = range(run.first, run.first + run.length)
        return [self.contents[number % len(self.contents)] for number in numbers]

    def _realise(self, outcome: Outcome) -> None:
        for effect in outcome.effects:
            if isinstance(effect, effects.Resumed):
                self._unheard.discard(effect.consumer)
            if isinstance(effect, effects.Deliver):
                if self.is_cut or effect.consumer in self._unheard:
                    continue
                parts = [(run, self.contents_of(run)) for run in effect.runs]
                self.deliveries.deliver(effect.consumer, parts)


@dataclass
class Client:
    """One call; takes nothing while `is_open` is not set."""

    member: Member
    credit: int
    auto: bool = False
    granted: int = 0
    received: list[Any] = field(default_factory=list)
    #: Bytes of the bodies in each response with deliveries.
    sizes: list[list[int]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    is_subscribed: bool = False
    is_active: bool = True
    #: What it has asked for and has no answer to.
    asked: list[str] = field(default_factory=list)
    granted_when_asked: list[int] = field(default_factory=list)
    #: Credit that it was told is left, and has no more.
    unused: int = 0
    #: Tags that it owes a settlement.
    owed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.granted = self.credit
        self.is_open = asyncio.Event()
        self.is_open.set()
        services, context = self.member, self
        made: Any = ConsumeStream(services, services.caller(), context)  # type: ignore[arg-type]
        self.stream: ConsumeStream = made
        subscribe = messages_pb2.Subscribe(
            queue="q", credit=self.credit, auto_acknowledge=self.auto
        )
        self.requests.put_nowait(messages_pb2.ConsumeRequest(subscribe=subscribe))
        self.task = asyncio.create_task(self.stream.run(self._requests()))

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("user-agent", "grpc-go/1.70.0 (linux)"),)

    async def _requests(self) -> AsyncIterator[Any]:
        while (request := await self.requests.get()) is not None:
            yield request

    async def write(self, response: Any) -> None:
        await self.is_open.wait()
        self.received += response.deliveries
        if response.deliveries:
            self.sizes.append([len(each.body) for each in response.deliveries])
        if response.cancelled:
            self.cancelled.append(response.cancelled)
        self._answered(response)
        self.owed += [each.delivery_tag for each in response.deliveries if not self.auto]

    def _answered(self, response: Any) -> None:
        """Deliveries come between the answers, and none beyond what they say."""
        if response.HasField("subscribed"):
            assert (self.received, self.is_subscribed) == ([], False)
            self.is_subscribed = True
        assert self.is_subscribed or response.cancelled
        assert self.is_active or not response.deliveries
        if response.HasField("withdrawn") or response.HasField("drained"):
            assert self.asked.pop(0) == ("withdraw" if response.HasField("withdrawn") else "drain")
            self.unused += response.withdrawn.credit + response.drained.credit
            # What was granted before it asked was used, or is said to be left.
            granted = self.granted_when_asked.pop(0)
            assert not self.is_active or len(self.received) + self.unused == granted
        if response.HasField("cancel_ok"):
            assert self.asked.pop(0) == "cancel"
            self.is_active = False

    def ask(self, what: str) -> None:
        self.asked.append(what)
        if what != "cancel":
            self.granted_when_asked.append(self.granted)
        request = messages_pb2.ConsumeRequest()
        getattr(request, what).SetInParent()
        self.requests.put_nowait(request)

    def grant(self, credit: int) -> None:
        if "cancel" not in self.asked and self.is_active:
            self.granted += credit
        self.requests.put_nowait(messages_pb2.ConsumeRequest(credit=credit))

    def settle(self, outcome: Any, count: int) -> None:
        tags, self.owed = self.owed[:count], self.owed[count:]
        settle = Settlement(outcome=outcome, delivery_tags=tags)
        self.requests.put_nowait(messages_pb2.ConsumeRequest(settle=settle))


async def rest() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def close(*clients: Client) -> None:
    for client in clients:
        client.requests.put_nowait(None)
        await rest()
        assert client.task.done()
        assert client.task.exception() is None


async def gone(client: Client) -> None:
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.task


async def test_each_message_has_its_own_head() -> None:
    """What is kept of the last message is not taken for one that differs in one thing."""
    member = Member()
    header = BasicProperties(message_id="7").encode()
    heads = [
        ("", "q", EMPTY),
        ("x", "q", EMPTY),
        ("x", "k", EMPTY),
        ("x", "k", header),
        ("x", "k", header),
    ]
    member.contents = [
        ((exchange, key), header, b"%d" % body, b"")
        for body, (exchange, key, header) in enumerate(heads)
    ]
    member.fill(10)
    client = Client(member, 10)
    await rest()
    found = [(m.exchange, m.routing_key, m.properties.message_id, m.body) for m in client.received]
    expected = [
        (exchange, key, "7" if header != EMPTY else "", b"%d" % body)
        for body, (exchange, key, header) in enumerate(heads)
    ]
    first = expected.index(found[0])
    assert found == (expected[first:] + expected[:first]) * 2
    client.owed = client.owed[-1:]
    client.settle(Settlement.REQUEUE, 1)
    client.grant(1)
    await rest()
    last, again = client.received[-2:]
    assert (again.body, again.routing_key) == (last.body, last.routing_key)
    assert (last.redelivered, again.redelivered) == (False, True)
    await close(client)


async def test_a_message_for_which_a_response_has_no_room_comes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client's limit need not hold the messages before it besides."""
    monkeypatch.setattr(consume_stream, "RESPONSE_BYTES_MAX", 100)
    member = Member()
    bodies = (40, 40, 90, 300, 5, 400, 10, 10)
    member.contents = [(("", "q"), EMPTY, b"x" * size, b"") for size in bodies]
    client = Client(member, 0)
    client.is_open.clear()
    client.grant(len(bodies))
    member.fill(len(bodies))
    await rest()
    client.is_open.set()
    await rest()
    sent = [size for response in client.sizes for size in response]
    first = bodies.index(sent[0])
    assert sent == [*bodies[first:], *bodies[:first]]
    assert all(len(sizes) == 1 or sum(sizes) <= 100 for sizes in client.sizes)
    assert max(map(len, client.sizes)) > 1
    await close(client)


async def test_credit_that_comes_one_by_one_is_granted_together() -> None:
    """A command is under way at most: what comes meanwhile goes with the next."""
    member = Member()
    client = Client(member, 0)
    await rest()
    member.kinds.clear()
    for _ in range(50):
        client.grant(1)
    member.fill(60)
    await rest()
    assert len(client.received) == 50
    assert member.kinds.count(Kind.CHECKOUT) < 10
    assert member.driver.ready == 10
    await close(client)


async def test_no_more_than_a_window_is_unsettled() -> None:
    """R-QQ-12."""
    member = Member()
    client = Client(member, 1 << 31)
    member.fill(WINDOW_MAX + 5)
    await rest()
    assert len(client.received) == WINDOW_MAX
    client.settle(Settlement.ACCEPT, 3)
    await rest()
    assert len(client.received) == WINDOW_MAX + 3
    await close(client)


@pytest.mark.parametrize("auto", [False, True])
async def test_what_was_being_written_when_the_call_ended_was_not_written(auto: bool) -> None:
    member = Member(delivery_limit=0)
    client = Client(member, 3, auto)
    await rest()
    member.fill(1)
    await rest()
    client.is_open.clear()
    member.fill(2)
    await rest()
    assert member.driver.unacked == (2 if auto else 3)
    await close(client)
    # One was written and is one failure too many, or was settled; nobody saw the others.
    assert member.driver.count("over_limit") == (0 if auto else 1)
    after = Client(member, 10)
    await rest()
    assert [each.redelivered for each in after.received] == [False, False]
    await close(after)


async def test_a_grant_that_the_queue_does_not_answer_ends_the_call() -> None:
    member = Member()
    client = Client(member, 1)
    await rest()
    member.driver.send(queue_commands.encode_delete(False, False, "client"))
    client.grant(1)
    with pytest.raises(AttributeError, match="abort"):
        # The made-up context has no way to say it.
        await asyncio.wait_for(client.task, 60)


async def test_a_withdrawal_returns_what_a_slow_client_was_not_sent() -> None:
    member = Member()
    client, other = Client(member, 10), Client(member, 0)
    await rest()
    client.is_open.clear()
    member.fill(1)
    await rest()
    member.fill(4)
    await rest()
    assert (member.driver.unacked, member.driver.ready) == (5, 0)
    client.ask("withdraw")
    await rest()
    # One is being written; the others are there for whom they are wanted by, untouched.
    assert (member.driver.unacked, member.driver.ready) == (1, 4)
    other.grant(9)
    await rest()
    assert [each.redelivered for each in other.received] == [False] * 4
    client.is_open.set()
    await rest()
    assert (len(client.received), client.unused, client.asked) == (1, 9, [])
    client.grant(1)
    member.fill(1)
    await rest()
    assert len(client.received) + len(other.received) == 6
    await close(client, other)


async def test_what_is_withdrawn_after_a_change_of_leader_can_be_had_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new leader's repetitions are told from it: it comes again as it was."""
    monkeypatch.setattr(deliveries, "RESUMED_S", 0.01)
    member = Member()
    client = Client(member, 2)
    await rest()
    member.is_cut = True
    member.fill(1)
    client.ask("withdraw")
    member.elect()
    await until(lambda: not client.asked)
    assert (client.unused, client.received, member.driver.ready) == (2, [], 1)
    client.grant(1)
    await rest()
    assert [each.redelivered for each in client.received] == [False]
    await close(client)


async def test_what_was_sent_can_be_settled_after_the_subscription() -> None:
    member = Member()
    client = Client(member, 3)
    member.fill(5)
    await rest()
    client.ask("cancel")
    await rest()
    assert not client.is_active
    for what in ("drain", "withdraw", "cancel"):
        client.ask(what)
    client.grant(7)
    await rest()
    assert client.asked == []
    client.settle(Settlement.ACCEPT, 2)
    await rest()
    assert (member.driver.unacked, member.driver.ready) == (1, 2)
    await close(client)
    assert (member.driver.unacked, member.driver.ready) == (0, 3)


@pytest.mark.parametrize("what", ["withdraw", "drain"])
async def test_messages_that_get_lost_on_the_way_end_the_call(what: str) -> None:
    member = Member()
    member.limits = member.limits.model_copy(update={"operation_timeout_ms": 20})
    client = Client(member, 5)
    await rest()
    member.is_cut = True
    member.fill(2)
    client.ask(what)
    with pytest.raises(AttributeError, match="abort"):
        # The made-up context has no way to say it.
        await asyncio.wait_for(client.task, 60)
    assert (member.driver.unacked, member.driver.ready) == (0, 2)


async def test_a_client_that_closes_its_side_hears_what_it_asked_before() -> None:
    member = Member()
    client = Client(member, 5, auto=True)
    member.fill(3)
    client.ask("drain")
    await close(client)
    assert (len(client.received), client.unused, client.asked) == (3, 2, [])
    assert (member.driver.unacked, member.driver.ready) == (0, 0)


OUTCOMES = (Settlement.ACCEPT, Settlement.ACCEPT, Settlement.REQUEUE)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 6)),
        st.tuples(st.sampled_from(["grant", "settle", "requeue"]), st.integers(0, 5)),
        st.tuples(st.sampled_from(["close", "hold", "read", "look"]), st.just(0)),
        st.tuples(st.sampled_from(["withdraw", "drain", "drain", "cancel"]), st.just(0)),
        st.tuples(st.sampled_from(["die", "elect"]), st.just(0)),
    ),
    max_size=40,
)


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time can be made to pass."""

    passed_s = 0.0

    def time(self) -> float:
        return super().time() + self.passed_s


class Model:
    """Two consumers of one queue, and what must hold whatever they do."""

    def __init__(self) -> None:
        self.member = Member(delivery_count_mode="4.3")
        self.clients = [Client(self.member, 0), Client(self.member, 2)]
        #: How many messages were written to a client that gave them back, at least and at most.
        self.returned = self.returned_max = 0

    async def step(self, who: int, what: str, count: int) -> None:
        client = self.clients[who]
        if what == "publish":
            self.member.fill(count)
        elif what == "grant":
            client.grant(count)
        elif what in ("settle", "requeue") and client.owed[:count]:
            is_settle = what == "settle"
            self.returned += 0 if is_settle else len(client.owed[:count])
            self.returned_max += 0 if is_settle else len(client.owed[:count])
            client.settle(Settlement.ACCEPT if is_settle else Settlement.REQUEUE, count)
        elif what == "close":
            await rest()
            if client.asked or not client.is_open.is_set():
                # It does not read, and is gone in the middle: settlements may be, too.
                self.returned_max += len(client.received)
                await gone(client)
            else:
                await close(client)
                self.returned_max += len(client.owed)
            self.returned += len(client.owed)
            self.clients[who] = Client(self.member, count)
        elif what in ("hold", "read"):
            (client.is_open.clear if what == "hold" else client.is_open.set)()
        elif what in ("withdraw", "drain", "cancel"):
            client.ask(what)
        elif what == "die":
            self.member.is_cut = True
        elif what == "elect":
            self.member.elect()
        if what == "look":
            await rest()

    async def quiet(self) -> None:
        """Let everybody have its answers who reads; each takes some turns."""
        if self.member.is_cut:
            self.member.elect()
        await rest()
        clock = asyncio.get_running_loop()
        assert isinstance(clock, Clock)
        for rounds in range(ANSWERS_ROUNDS):
            if not any(client.asked and client.is_open.is_set() for client in self.clients):
                break
            if rounds == PATIENT_ROUNDS:
                clock.passed_s += deliveries.RESUMED_S
            await rest()
        else:
            raise AssertionError("no answer comes")
        await rest()

    async def look(self) -> None:
        await self.quiet()
        machine = self.member.driver.machine
        for client in self.clients:
            assert len(client.received) <= client.granted - client.unused
            consumer = client.stream._consumer
            assert consumer is not None
            if client.asked:
                # It does not read.
                continue
            record = machine.consumers.get(consumer.id)
            if not client.is_active:
                assert (record.held.count if record is not None else 0) == len(client.owed)
                assert record is None or not record.registered
                continue
            assert record is not None
            # Handed out is what was received, and what waits for a client that does not read.
            waiting = record.held.count - len(client.owed)
            assert waiting >= 0
            assert record.credit == client.granted - client.unused - len(client.received) - waiting
            assert not waiting or not client.is_open.is_set()
            # Nothing is withheld from one that may have it.
            assert not (record.credit and self.member.driver.ready)
        received = [each for client in self.clients for each in client.received]
        assert not any(each.redelivered for each in received) or self.returned_max
        if not any(client.asked for client in self.clients):
            assert self.member.driver.count("requeue") >= self.returned
        # What came back counted was written before.
        counted = sum(
            (span.end - span.first) * span.acquired_count
            for span in (*machine.store, *(s for c in machine.consumers.rows() for s in c.held))
        )
        assert counted <= self.returned_max


@settings(max_examples=60, deadline=None)
@given(bursts=st.lists(st.tuples(st.integers(0, 1), STEPS), max_size=6))
def test_two_consumers_share_a_queue_by_their_credit(
    bursts: list[tuple[int, list[tuple[str, int]]]],
) -> None:
    """Random bursts of credit, settlements and ends, whatever of them is under way at once, and
    whatever a leader that dies has yet to send.
    """

    async def play() -> None:
        model = Model()
        for who, burst in bursts:
            for what, count in burst:
                await model.step(who, what, count)
            await model.look()
        for client in model.clients:
            client.is_open.set()
        await model.quiet()
        await close(*model.clients)
        assert model.member.driver.unacked == 0

    with asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(play())


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("amqp:somebody", "queue deleted"),
        ("http:somebody", "queue deleted"),
        ("queue deleted", "queue deleted"),
        ("", "queue deleted"),
        ("expired", "queue expired"),
        ("node-restarted", "queue deleted: its member was restarted"),
        (effects.timed_out(1000), "consumer timeout 1000 ms"),
        (
            "lost by its queue",
            "consumer lost: the queue's new leader does not know it; subscribe again",
        ),
    ],
)
async def test_a_consumer_that_is_cancelled_is_told_why(cause: str, said: str) -> None:
    """R-CS-6: never the name of another user."""
    client = Client(Member(), credit=1)
    await rest()
    (consumer_id,) = client.member.deliveries._consumers
    client.member.deliveries.cancelled(consumer_id, cause)
    await asyncio.wait_for(client.task, 60)
    assert client.cancelled == [said]
