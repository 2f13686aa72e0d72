"""Publishing and consuming clients: the real Publisher and DeliveryHub, driven as channels do.

A client lives on a member and dies with it; its next life has another channel.  The oracle checks
what it was told: a confirm is a promise (G1), a settled message does not come again (G4), and first
deliveries come in order (G3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from brokerd.core.message import Range
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.consumers import QUORUM_PREFETCH_MAX
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.ranges import normalize
from brokerd.server.queues.deliveries import LocalConsumer, Part
from brokerd.server.queues.stream import ChannelStream, Settle

if TYPE_CHECKING:
    from tests.simulation.broker.member import SimBroker, SimMember
    from tests.simulation.broker.world import BrokerWorld

#: Message bodies: most are small, some fill a good part of a log segment.
PADDINGS = (0, 0, 20, 200, 1_500)
#: A content header's properties: none.
HEADER = b"\x00\x00"


class _Client:
    """What both kinds share: a home member and lives."""

    def __init__(self, world: BrokerWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.life = 0
        self.home: SimMember | None = None
        self.broker: SimBroker | None = None

    @property
    def is_alive(self) -> bool:
        """Tell whether the home's process is the one that the client was born in."""
        return self.home is not None and self.home.broker is not None and self._is_born_here()

    def _is_born_here(self) -> bool:
        return self.home is not None and self.home.broker is self.broker

    def attach(self) -> None:
        """Begin a life on some member that is up, or try again soon."""
        world = self.world
        candidates = [member for member in world.members.values() if member.takes_clients]
        if self.is_alive or not world.is_open:
            return
        if not candidates or not self._may_begin():
            world.kernel.after(100, self.attach)
            return
        self.home = world.rng.choice(candidates)
        self.broker = self.home.broker
        self.life += 1
        with self.home.loop.entered():
            self._begin()

    def _may_begin(self) -> bool:
        return True

    def _begin(self) -> None:
        raise AssertionError("each kind has its own")


class SimPublisher(_Client):
    """A channel in confirm mode."""

    def __init__(self, world: BrokerWorld, name: str) -> None:
        super().__init__(world, name)
        rng = world.rng
        self.pause_ms = rng.choice((60, 150, 400)) / world.scenario.haste
        self.batch = rng.choice((1, 1, 3))
        self.window = rng.choice((1, 4, 12))
        self.confirmed_at_ms = 0
        self._channel = 0
        self._stream: ChannelStream | None = None
        self._number = 0
        #: The channel's number -> body and queues that have not answered.
        self._open: dict[int, tuple[bytes, int]] = {}

    def _begin(self) -> None:
        broker = self.broker
        assert broker is not None
        self._channel = broker.next_uid()
        self._number = 0
        self._open = {}
        self._stream = broker.queue_client.open(self._channel, self._answered)
        self._next_later()

    def _next_later(self) -> None:
        assert self.home is not None
        pause_ms = 1 + self.world.rng.random() * self.pause_ms
        self.home.loop.call_later(pause_ms / 1000, self._publish)

    def _publish(self) -> None:
        world, stream = self.world, self._stream
        if not world.is_publishing or stream is None:
            return
        self._next_later()
        if len(self._open) >= self.window:
            return
        if world.strikes(world.scenario.channel_ends):
            self._end()
            return
        queue = world.rng.choice(world.open_queues)
        for _ in range(1 + world.rng.randrange(self.batch)):
            self._number += 1
            padding = b"x" * world.rng.choice(PADDINGS)
            body = b"%s.%d/%d/%s" % (self.name.encode(), self.life, self._number, padding)
            world.oracle.published.add((queue.uid, body))
            self._open[self._number] = (body, queue.uid)
            stream.publish([queue], [(("", queue.name), HEADER, body, b"")], self._number)
        if world.scenario.turn_ms:
            stream.offer()
        else:
            stream.flush()

    def _answered(self, outcomes: list[tuple[int, int, int]]) -> None:
        for first, count, accepted in outcomes:
            for number in range(first, first + count):
                body, uid = self._open.pop(number)
                if number < first + accepted:
                    self.world.on_confirmed(self, uid, body)

    def _end(self) -> None:
        """Close the channel and begin anew."""
        stream = self._stream
        assert stream is not None
        stream.leave()
        self._stream = self.home = self.broker = None
        self.world.kernel.after(20, self.attach)


class SimConsumer(_Client):
    """A consumer with acknowledgements."""

    def __init__(self, world: BrokerWorld, name: str, uid: int) -> None:
        super().__init__(world, name)
        rng = world.rng
        self.uid = uid
        self.prefetch = rng.choice((1, 5, 20))
        self.work_ms = rng.choice((10, 50, 300)) / world.scenario.haste
        self.id = ConsumerId("", 0, 0, "")
        self._held: dict[int, int] = {}
        self._settled: set[int] = set()
        #: What was settled, and how often it had been handed out before.
        self._let_go: dict[int, int] = {}
        self._newest = -1
        #: What the socket has not taken, and how often it had been handed out before.
        self._backlog: dict[int, int] = {}
        self._granted = self._received = 0

    def _may_begin(self) -> bool:
        return self.world.may_consume(self.uid)

    def _begin(self) -> None:
        broker = self.broker
        assert broker is not None
        self.id = ConsumerId(broker.node, broker.incarnation, broker.next_uid(), "t")
        self._held = {}
        self._settled = set()
        self._let_go = {}
        self._newest = -1
        self._backlog = {}
        self._granted = self._received = 0
        self._stream = broker.queue_client.open(self.id.channel)
        queue = self.world.queues[self.uid]
        local = LocalConsumer(
            self.id, self.uid, "/", queue.name, self, False, self.prefetch, 0, False, "guest"
        )
        broker.deliveries.add(local)
        if self._has_credit:
            self._check_out(self.world.rng.choice((0, self.prefetch)))
            self._grant_now_and_then(self.id)
        else:
            self._check_out(None)

    @property
    def _has_credit(self) -> bool:
        return self.world.scenario.credit

    def _check_out(self, credit: int | None) -> None:
        broker = self.broker
        assert broker is not None
        self._granted += credit or 0
        prefetch = self.prefetch if credit is None else QUORUM_PREFETCH_MAX
        checkout = Checkout(self.id, prefetch, False, False, 0, "guest", credit=credit)
        broker.queue_client.change_consumer(self.uid, checkout)

    def _grant_now_and_then(self, consumer_id: ConsumerId) -> None:
        """One that has no credit left grants some, some day."""
        if consumer_id != self.id or not self._is_born_here():
            return
        if self._received >= self._granted:
            self._check_out(self.prefetch)
        assert self.home is not None
        self.home.loop.call_later(0.4, self._grant_now_and_then, consumer_id)

    # ---- Sink -----------------------------------------------------------------------------------

    def deliver(self, consumer: LocalConsumer, parts: Sequence[Part]) -> None:
        """See delivery.Sink."""
        if consumer.id != self.id or not self._is_born_here():
            return
        world, oracle = self.world, self.world.oracle
        fresh: list[int] = []
        for run, contents in parts:
            for number, content in enumerate(contents, run.first):
                oracle.on_received(self.uid, number, content[2])
                where = f"queue {self.uid} message {number} to {self.name}"
                oracle.require(number not in self._settled, f"{where}: settled and again (G4)")
                is_here = number in self._held or number in self._backlog
                oracle.require(not is_here, f"{where}: delivered twice")
                oracle.require(
                    run.acquired_count > self._let_go.get(number, -1),
                    f"{where}: settled, the queue may not know it yet, and again (R-QQ-10)",
                )
                # What another one was not written comes as if for the first time (ADR 69).
                is_passed_on = number in oracle.ledgers[self.uid].passed_on
                if run.acquired_count == 0 and not is_passed_on:
                    oracle.require(
                        number > self._newest, f"{where}: came after {self._newest} (G3)"
                    )
                    self._newest = number
                self._backlog[number] = run.acquired_count
                fresh.append(number)
        world.on_delivered(self, fresh)
        if not self._has_credit:
            self._write()
            return
        self._received += len(fresh)
        oracle.require(
            self._received <= self._granted,
            f"queue {self.uid}: {self._received} messages for {self.name}, "
            f"credit {self._granted} (ADR 69)",
        )
        if world.strikes(0.5):
            self._write()
        elif world.strikes(world.scenario.channel_ends):
            self._end()
        else:
            assert self.home is not None
            delay_ms = world.rng.choice((5, 50, 200))
            self.home.loop.call_later(delay_ms / 1000, self._write_late, self.id)

    def _write_late(self, consumer_id: ConsumerId) -> None:
        if consumer_id == self.id and self._is_born_here():
            self._write()

    def _write(self) -> None:
        """The socket takes what waited: from now on the client may have it."""
        world, fresh = self.world, list(self._backlog)
        self._held |= self._backlog
        self._backlog = {}
        for number in fresh:
            world.oracle.on_written(self.uid, number, self.id)
        delay_ms = 1 + world.rng.random() * self.work_ms
        assert self.home is not None
        self.home.loop.call_later(delay_ms / 1000, self._settle, fresh)

    def defer(self, consumer: LocalConsumer, runs: Sequence[Run]) -> bool:
        """See delivery.Sink."""
        return False

    def consumer_cancelled(self, consumer: LocalConsumer, cause: str) -> None:
        """See delivery.Sink."""
        if consumer.id == self.id:
            self._leave()

    def consumer_failed(self, consumer: LocalConsumer, reason: str) -> None:
        """See delivery.Sink.  The queue has not let go of it: the channel ends, as a session's."""
        if consumer.id == self.id:
            self._end()

    def held(self, consumer: LocalConsumer) -> list[Range]:
        """See delivery.Sink."""
        return _ranges([*self._held, *self._backlog])

    # ---- settling -------------------------------------------------------------------------------

    def _settle(self, numbers: list[int]) -> None:
        world, broker = self.world, self.broker
        mine = [number for number in numbers if number in self._held]
        if broker is None or not self._is_born_here() or not mine:
            return
        if world.is_chaotic and world.strikes(world.scenario.channel_ends):
            self._end()
            return
        how = Settle.ACCEPT
        if world.is_chaotic and world.strikes(0.3):
            how = world.rng.choice(_REFUSALS)
            if how is Settle.DISCARD_REJECTED and not world.queues[self.uid].targets:
                how = Settle.ACCEPT
        for number in mine:
            acquired_count = self._held.pop(number)
            if how is Settle.ACCEPT:
                self._let_go[number] = acquired_count
        if self._has_credit and world.strikes(0.7):
            self._check_out(len(mine))
        ranges = _ranges(mine)
        consumer_id = self.id

        def answered() -> None:
            if how is Settle.ACCEPT and consumer_id == self.id:
                ledger = world.oracle.ledgers[self.uid]
                self._settled.update(n for n in mine if n in ledger.settled)

        # As acks of basic.get are.
        may_be_lost = how is Settle.ACCEPT and mine[0] % 2 == 0
        self._stream.settle(
            (self.uid, self.id), ranges, how, may_be_lost=may_be_lost, done=answered
        )

    def _end(self) -> None:
        """Close the channel: what it holds goes back."""
        broker = self.broker
        assert broker is not None
        written = None
        if self._has_credit:
            written = {self.id.tag: _ranges(self._held)}
            if self.world.strikes(0.5):
                self._cancel()
        broker.deliveries.remove(self.id)
        self._stream.leave({self.uid: written})
        self._leave()

    def _cancel(self) -> None:
        """As basic.cancel: what was not written goes back before the channel ends."""
        holder = (self.uid, self.id)
        self._stream.cancel(holder)
        if self._backlog:
            self._stream.settle(holder, _ranges(self._backlog), Settle.UNWRITTEN)

    def _leave(self) -> None:
        self.home = self.broker = None
        self.id = ConsumerId("", 0, 0, "")
        self.world.kernel.after(30, self.attach)


def _ranges(numbers: Iterable[int]) -> list[Range]:
    return normalize((number, number + 1) for number in numbers)


_REFUSALS = (Settle.NACK, Settle.REJECT, Settle.DISCARD_REJECTED)
