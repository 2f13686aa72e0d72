"""One link as a machine: its life, when it consumes, when it acknowledges; of any kind.

PURE.  Events in, actions out (`link_events.py`); `link.py` executes them.  State changes only
through `handle`.
What differs between kinds of links (federated exchanges, federated queues) is their `Passage`: what
a message becomes on its way (design/links.md).  Messages are numbered by their delivery tag on the
source's channel, so that numbers start anew with every session; `session` tells late answers of an
earlier one apart.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from brokerd.amqp import properties
from brokerd.amqp.errors import AmqpError
from brokerd.amqp.values import Table, Value
from brokerd.federation.link_counts import Counts, Drop
from brokerd.federation.link_events import (
    Acknowledge,
    Action,
    AlarmChanged,
    Answered,
    AwaitDemand,
    AwaitRoute,
    CancelConsume,
    Connect,
    Connected,
    Consume,
    Delivered,
    DemandChanged,
    DemandMissed,
    DestinationBlocked,
    Disconnect,
    Event,
    Failed,
    Finish,
    Forward,
    HoldReading,
    Prepared,
    Requeue,
    ResumeReading,
    Returned,
    RouteDue,
    Started,
    StopRequested,
    TellDropped,
    Unrouted,
)
from brokerd.federation.upstream import QUEUE_LENGTH, Address

#: Forwarded and not answered by the destination; over it nothing more is read.
IN_FLIGHT_MESSAGES_MAX = 4096
IN_FLIGHT_BYTES_MAX = 16 * 1024 * 1024
#: A message that local queues refuse comes back at once when it is requeued; this makes a full
#: queue cost next to nothing (RabbitMQ spins here).
NACK_DELAY_MS = 500
#: The pause grows to this while everything is refused: another queue of the same fanout may have
#: taken the message, and has it once more after each try.
NACK_DELAY_MS_MAX = 5_000
#: Until a message that found no queue is published once more; twice as long after each try in vain.
ROUTE_DELAY_MS = 500
ROUTE_DELAY_MS_MAX = 30_000
#: Shortest time between two reports of messages that are given up.
DROPPED_INTERVAL_MS = 60_000
#: How long a consumer stays, its messages unread, while none are wanted here.  Demand comes and
#: goes many times a second while consumers here take what has come; to cancel and to consume anew
#: each time costs two brokers a round trip, and RabbitMQ 3.10.8 a channel that crashes when the
#: queue is a quorum queue.
LINGER_MS = 100
ERROR_CHARACTERS_MAX = 512


class State(Enum):
    """As listings have it (R-FED-6); `blocked` is R-ALM-9, `error` waits for the next try.

    `unroutable`: it runs, and holds messages that no queue of the destination takes.
    """

    STARTING = "starting"
    RUNNING = "running"
    BLOCKED = "blocked"
    UNROUTABLE = "unroutable"
    ERROR = "error"
    SHUTDOWN = "shutdown"


#: States of a session that is served.
_PREPARED = (State.RUNNING, State.BLOCKED, State.UNROUTABLE)


class Definition(Protocol):
    """What somebody has configured, as far as every kind of link has it."""

    @property
    def name(self) -> str:
        """Return its name."""
        ...

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Return where the source is; each (re)connect takes one of them at random."""
        ...

    @property
    def authorities(self) -> str | None:
        """Return who may have signed the source's certificate (PEM), None for the system's."""
        ...

    @property
    def ack_mode(self) -> str:
        """Return one of upstream.ACK_MODES."""
        ...

    @property
    def prefetch_count(self) -> int:
        """Return how many messages may be unacknowledged."""
        ...

    @property
    def reconnect_delay_ms(self) -> int:
        """Return the pause between retries."""
        ...

    @property
    def cleans_up(self) -> bool:
        """Say whether the source is notified when the configuration goes."""
        ...


class Passage(Protocol):
    """What a message becomes on its way; pure, one per link."""

    def introduce(self, uri: str, cluster: str, vhost: str) -> None:
        """Take note of who is at the other end; uri has no credentials."""
        ...

    def forward(self, message: Delivered, table: Table) -> tuple[str, bytes] | Drop:
        """Return (routing key, header) to publish with, or why the message stays behind.

        table: the headers in `message.header`.  AmqpError counts as Drop.MALFORMED.
        """
        ...

    def row(self) -> dict[str, str]:
        """Return what a listing says of the link's ends: type, vhost and the names at both."""
        ...


class FederationLink:
    """One link.  Invariants: `_waiting` holds the forwarded tags of this session without an answer,
    `_unrouted` those of them that came back; both are empty without a session.
    """

    def __init__(
        self,
        definition: Definition,
        passage: Passage,
        ends_after: int | str | None = None,
        *,
        drops_unroutable: bool = False,
    ) -> None:
        """ends_after: how many messages are moved, QUEUE_LENGTH for what a session finds in the
        queue; None: the link does not end by itself.
        drops_unroutable: what comes back from the destination is given up.
        """
        self.definition = definition
        self.passage = passage
        self._ends_after = ends_after
        self._drops_unroutable = drops_unroutable
        #: What this session has yet to take before the link ends; None: it takes all there is.
        self._left: int | None = None
        #: What has left the source for good.
        self._done = 0
        self.state = State.STARTING
        self.since_ms = 0
        self.error = ""
        #: Stays when the link runs again.
        self.last_error = ""
        self.counts = Counts()
        self.session = 0
        self.uri = definition.addresses[0].shown
        self.local_connection = ""
        self._alarm = ""
        #: Why this session's destination takes nothing, "" if it does.
        self._blocked = ""
        self._is_wanted = True
        self._is_prepared = False
        self._prepared_ms = 0
        self._consumes = False
        #: Tries that failed since the link last ran long enough.
        self._failures = 0
        #: So much is under way that nothing more is read.
        self._is_held = False
        #: It consumes though nothing is wanted, and reads nothing: demand may be back soon.
        self._lingers = False
        #: Refused tags are requeued one by one, later: no ack with multiple may cover them.
        self._has_refused = False
        #: How long what is refused now waits, 0 while messages are taken, and since when.
        self._nack_delay_ms = 0
        self._nack_delay_since_ms = 0
        #: tag -> size, in order of delivery.
        self._waiting: dict[int, int] = {}
        self._waiting_bytes = 0
        #: What came back, by tag; published once more when the time of an AwaitRoute is over.
        self._unrouted: dict[int, Unrouted] = {}
        self._is_unroutable = False
        #: Of the last try; 0: there was none yet.
        self._route_delay_ms = 0
        self._awaits_route = False
        #: Given up and not told of yet, and when that was told last.
        self._unreported = 0
        self._told_ms: int | None = None

    def handle(self, event: Event) -> list[Action]:
        """Take one event; return what is to be done, in order."""
        return _HANDLERS[type(event)](self, event)

    @property
    def needs_confirm(self) -> bool:
        """Say whether upstream learns of a message only when it is safe here (R-FED-5)."""
        return self.definition.ack_mode == "on-confirm"

    @property
    def no_ack(self) -> bool:
        """Say whether upstream forgets a message when it sends it."""
        return self.definition.ack_mode == "no-ack"

    def status(self) -> dict[str, str | int]:
        """Return the row of a listing (R-FED-6)."""
        return {
            **self.passage.row(),
            "upstream": self.definition.name,
            "status": self.state.value,
            "uri": self.uri,
            "error": self.error,
            "last_error": self.last_error,
            "since_ms": self.since_ms,
            "local_connection": self.local_connection,
        }

    def overview(self) -> dict[str, Value]:
        """Return the figures of the telemetry row `fed`; all but the first three only rise."""
        return {
            "state": self.state.value,
            "in_flight": len(self._waiting),
            "unrouted": len(self._unrouted),
            **self.counts.overview(),
        }

    def check_invariants(self) -> None:
        """Raise AssertionError when the state contradicts itself."""
        assert self._waiting_bytes == sum(self._waiting.values())
        assert self._is_prepared == (self.state in _PREPARED)
        assert self._is_prepared or (not self._waiting and not self._is_held)
        assert (self.state is State.BLOCKED) == (self._is_prepared and self._is_blocked)
        assert self._unrouted.keys() <= self._waiting.keys()
        if self.state is not State.BLOCKED:
            assert (self.state is State.UNROUTABLE) == bool(self._unrouted)
        assert self._is_prepared or not self._consumes
        assert self._consumes or not self._lingers

    # Life.

    def _enter(self, state: State, now_ms: int) -> None:
        if state is not self.state:
            self.state = state
            self.since_ms = now_ms

    def _started(self, event: Started) -> list[Action]:
        self.since_ms = event.now_ms
        self.session += 1
        return [Connect(0, self.session)]

    def _connected(self, event: Connected) -> list[Action]:
        self.uri = event.uri
        self.local_connection = event.local_connection
        self.passage.introduce(event.uri, event.cluster, event.vhost)
        return []

    def _prepared(self, event: Prepared) -> list[Action]:
        if self.state is State.SHUTDOWN:
            return []
        self._is_prepared = True
        self._prepared_ms = event.now_ms
        self.error = ""
        if self._ends_after == QUEUE_LENGTH:
            self._left = event.messages
        elif isinstance(self._ends_after, int):
            self._left = max(0, self._ends_after - self._done)
        return self._finished(event.now_ms) or self._reconsider(event.now_ms)

    def _failed(self, event: Failed) -> list[Action]:
        if self.state is State.SHUTDOWN:
            return []
        if self._is_prepared:
            self.counts.reconnects += 1
            if event.now_ms - self._prepared_ms >= self.definition.reconnect_delay_ms:
                self._failures = 0
        lost = self._forget_session(event.now_ms)
        self.error = self.last_error = event.error[:ERROR_CHARACTERS_MAX]
        self._enter(State.ERROR, event.now_ms)
        # R-FED-6: the first retry is immediate, the others are not, for ever.
        delay_ms = self.definition.reconnect_delay_ms if self._failures else 0
        self._failures += 1
        self.session += 1
        return [*lost, Connect(delay_ms, self.session)]

    def _stop_requested(self, event: StopRequested) -> list[Action]:
        lost = self._forget_session(event.now_ms)
        self._enter(State.SHUTDOWN, event.now_ms)
        self.session += 1
        return [*lost, Disconnect(event.is_removed and self.definition.cleans_up)]

    def _forget_session(self, now_ms: int) -> list[Action]:
        """Without confirms the source has forgotten what came back here."""
        lost = [] if self.needs_confirm else list(self._unrouted.values())
        self._unrouted.clear()
        self._is_unroutable = self._awaits_route = False
        self._route_delay_ms = 0
        self._is_prepared = False
        self._is_held = False
        self._lingers = False
        self._consumes = False
        self._blocked = ""
        self._is_wanted = True
        self._has_refused = False
        self._nack_delay_ms = 0
        self._waiting.clear()
        self._waiting_bytes = 0
        self.local_connection = ""
        return self._give_up(lost, now_ms)

    def _alarm_changed(self, event: AlarmChanged) -> list[Action]:
        self._alarm = event.reason
        return self._reconsider(event.now_ms)

    def _destination_blocked(self, event: DestinationBlocked) -> list[Action]:
        if event.session != self.session:
            return []
        self._blocked = event.reason
        return self._reconsider(event.now_ms)

    def _demand_changed(self, event: DemandChanged) -> list[Action]:
        if event.session != self.session:
            return []
        self._is_wanted = event.is_wanted
        return self._reconsider(self.since_ms)

    def _demand_missed(self, event: DemandMissed) -> list[Action]:
        if event.session != self.session or not self._lingers:
            return []
        return self._cancel()

    @property
    def _is_blocked(self) -> bool:
        return bool(self._alarm or self._blocked)

    def _reconsider(self, now_ms: int) -> list[Action]:
        """Consume if all agree to it; without demand the link runs and consumes nothing."""
        if not self._is_prepared:
            return []
        running = State.UNROUTABLE if self._unrouted else State.RUNNING
        self._enter(State.BLOCKED if self._is_blocked else running, now_ms)
        may_consume = not self._is_blocked and self._left != 0
        if not self._consumes:
            self._consumes = may_consume and self._is_wanted
            return [Consume()] if self._consumes else []
        if not may_consume:
            return self._cancel()
        if self._is_wanted != self._lingers:
            return []
        if self._is_wanted:
            return self._end_lingering()
        self._lingers = True
        held: list[Action] = [] if self._is_held else [HoldReading()]
        return [*held, AwaitDemand(LINGER_MS, self.session)]

    def _cancel(self) -> list[Action]:
        self._consumes = False
        return [CancelConsume(), *self._end_lingering()]

    def _end_lingering(self) -> list[Action]:
        lingered, self._lingers = self._lingers, False
        return [ResumeReading()] if lingered and not self._is_held else []

    def _finished(self, now_ms: int) -> list[Action]:
        """End once nothing is left and all answers are there; what came too much goes back."""
        if self._left != 0 or self._waiting or self.state is State.SHUTDOWN:
            return []
        lost = self._forget_session(now_ms)
        self._enter(State.SHUTDOWN, now_ms)
        return [*lost, Finish()]

    # Messages.

    def _delivered(self, event: Delivered) -> list[Action]:
        if not self._is_prepared:
            return []
        count = taken = len(event.bodies)
        if self._left is not None:
            taken = min(self._left, count)
        actions = self._take(event, taken) if taken else []
        # The others came before the consumer was cancelled.
        return actions + [Requeue(event.tag + place, 0) for place in range(taken, count)]

    def _take(self, event: Delivered, count: int) -> list[Action]:
        """Pass the first `count` messages on."""
        try:
            table = properties.headers(event.header)
            passed = self.passage.forward(event, table)
        except AmqpError:
            passed = Drop.MALFORMED
        tags = range(event.tag, event.tag + count)
        actions: list[Action]
        if self._left:
            self._left = max(0, self._left - count)
        if isinstance(passed, Drop):
            self.counts.dropped[passed] += count
            self._done += count
            actions = [] if self.no_ack else [Acknowledge(tag, False) for tag in tags]
            return actions + (self._finished(event.now_ms) or self._reconsider(event.now_ms))
        bodies = event.bodies[:count]
        sizes = [len(event.header) + len(body) for body in bodies]
        size = sum(sizes)
        self.counts.passed(table, count, size, event.now_ms)
        self._waiting.update(zip(tags, sizes, strict=True))
        self._waiting_bytes += size
        actions = [Forward(event.tag, *passed, bodies)]
        if not self.needs_confirm:
            self._done += count
        if self.definition.ack_mode == "on-publish":
            # Nothing below it waits: what is not taken any more comes later.
            actions.append(Acknowledge(tags[-1], count > 1))
        if not self._is_held and (
            len(self._waiting) >= IN_FLIGHT_MESSAGES_MAX
            or self._waiting_bytes >= IN_FLIGHT_BYTES_MAX
        ):
            self._is_held = True
            if not self._lingers:
                actions.append(HoldReading())
        if self._left == 0:
            actions += self._reconsider(event.now_ms)
        return actions

    def _answered(self, event: Answered) -> list[Action]:
        if event.session != self.session:
            # R-FED-5: upstream sends them again, they are duplicates then, never losses.
            return []
        taken: list[int] = []
        refused: list[int] = []
        waiting = self._waiting
        for first, count, is_taken in event.answers:
            for tag in range(first, first + count):
                size = waiting.pop(tag, None)
                if size is None:
                    continue
                self._waiting_bytes -= size
                if self._unrouted:
                    self._unrouted.pop(tag, None)
                (taken if is_taken else refused).append(tag)
        if taken:
            self._nack_delay_ms = 0
        self.counts.moved += len(taken)
        actions = [action for tag in refused for action in self._refused(tag, event.now_ms)]
        return actions + self._decided(taken, event.now_ms)

    def _decided(self, done: list[int], now_ms: int) -> list[Action]:
        """The source may forget these; others may be read, or the link ends."""
        actions: list[Action] = []
        if self.needs_confirm:
            self._done += len(done)
            actions += self._acknowledge(done)
        if (
            self._is_held
            and len(self._waiting) <= IN_FLIGHT_MESSAGES_MAX // 2
            and self._waiting_bytes <= IN_FLIGHT_BYTES_MAX // 2
        ):
            self._is_held = False
            if not self._lingers:
                actions.append(ResumeReading())
        if self._is_unroutable:
            self._is_unroutable = bool(self._unrouted)
            self.error = self._unroutable_text()
        if not self._is_unroutable and self._route_delay_ms:
            self._route_delay_ms = 0
            actions += self._reconsider(now_ms)
        if self._left is not None:
            actions += self._finished(now_ms) or self._reconsider(now_ms)
        return actions

    def _returned(self, event: Returned) -> list[Action]:
        """No queue takes these: they stay in the source, and are published again later."""
        if event.session != self.session:
            return []
        found = [message for message in event.messages if message.number in self._waiting]
        if not found:
            return []
        fresh = [message for message in found if message.number not in self._unrouted]
        self.counts.unroutable += len(fresh)
        if self._drops_unroutable:
            for message in found:
                self._waiting_bytes -= self._waiting.pop(message.number)
            dropped = self._give_up(found, event.now_ms)
            return dropped + self._decided([each.number for each in found], event.now_ms)
        self._unrouted.update((message.number, message) for message in fresh)
        self._is_unroutable = True
        self.error = self.last_error = self._unroutable_text()
        actions = self._reconsider(event.now_ms)
        if not self._awaits_route:
            longer_ms = min(2 * self._route_delay_ms, ROUTE_DELAY_MS_MAX)
            self._route_delay_ms = longer_ms or ROUTE_DELAY_MS
            actions.append(self._await_route())
        return actions

    def _unroutable_text(self) -> str:
        """Return how many messages have no queue, and where the last of them goes; "" for none."""
        last = next(reversed(self._unrouted.values()), None)
        if last is None:
            return ""
        text = (
            f"messages that no queue of the destination takes: {len(self._unrouted)}, "
            f"exchange '{last.exchange}', routing key '{last.routing_key}'"
        )
        return text[:ERROR_CHARACTERS_MAX]

    def _await_route(self) -> Action:
        self._awaits_route = True
        return AwaitRoute(self._route_delay_ms or ROUTE_DELAY_MS, self.session)

    def _route_due(self, event: RouteDue) -> list[Action]:
        if event.session != self.session or not self._is_prepared:
            return []
        self._awaits_route = False
        if self._unrouted and self._is_blocked:
            return [self._await_route()]
        return [
            Forward(tag, each.routing_key, each.header, [each.body], each.exchange)
            for tag, each in sorted(self._unrouted.items())
        ]

    def _give_up(self, messages: list[Unrouted], now_ms: int) -> list[Action]:
        """Count messages that are lost, and tell of them now and then."""
        if not messages:
            return []
        self.counts.unroutable_dropped += len(messages)
        self._unreported += len(messages)
        if self._told_ms is not None and now_ms - self._told_ms < DROPPED_INTERVAL_MS:
            return []
        unreported, self._unreported, self._told_ms = self._unreported, 0, now_ms
        return [TellDropped(unreported, messages[-1].exchange, messages[-1].routing_key)]

    def _refused(self, tag: int, now_ms: int) -> list[Action]:
        """A queue of the destination refuses this one: it goes back to the source, later."""
        self.counts.refused += 1
        self._has_refused = True
        if not self.needs_confirm:
            return []
        if self._left is not None:
            self._left += 1
        return [Requeue(tag, self._longer_nack_delay(now_ms))]

    def _longer_nack_delay(self, now_ms: int) -> int:
        """Return the pause of what is refused now: twice as long after one that passed in vain."""
        if not self._nack_delay_ms:
            self._nack_delay_ms, self._nack_delay_since_ms = NACK_DELAY_MS, now_ms
        elif now_ms - self._nack_delay_since_ms >= self._nack_delay_ms:
            self._nack_delay_ms = min(2 * self._nack_delay_ms, NACK_DELAY_MS_MAX)
            self._nack_delay_since_ms = now_ms
        return self._nack_delay_ms

    def _acknowledge(self, taken: list[int]) -> list[Action]:
        """One ack with multiple up to the oldest tag that still waits, single ones beyond."""
        if not taken:
            return []
        taken.sort()
        oldest = next(iter(self._waiting), taken[-1] + 1)
        below = 0 if self._has_refused else sum(1 for tag in taken if tag < oldest)
        actions: list[Action] = []
        if below:
            actions.append(Acknowledge(taken[below - 1], below > 1))
        return actions + [Acknowledge(tag, False) for tag in taken[below:]]


# Each handler takes its own event's class; the table below pairs them.
_HANDLERS: dict[type, Callable[..., list[Action]]] = {
    Started: FederationLink._started,
    Connected: FederationLink._connected,
    Prepared: FederationLink._prepared,
    Delivered: FederationLink._delivered,
    Answered: FederationLink._answered,
    Returned: FederationLink._returned,
    RouteDue: FederationLink._route_due,
    Failed: FederationLink._failed,
    AlarmChanged: FederationLink._alarm_changed,
    DestinationBlocked: FederationLink._destination_blocked,
    DemandChanged: FederationLink._demand_changed,
    DemandMissed: FederationLink._demand_missed,
    StopRequested: FederationLink._stop_requested,
}
