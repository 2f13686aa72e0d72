"""The consumers of a queue: who may get the next messages, and what each of them holds.

Priority first, round robin among equals (R-CS-4), single active consumer (R-CS-7), prefetch
(R-QOS) and credit (ADR 69), consumers on suspected nodes (R-QQ-16).  Messages and counters are not
its business.  Only the queue machine uses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

from brokerd.core.queue.certificates import Client
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.queue_store import Span
from brokerd.core.ranges import Pieces

#: What an unlimited consumer could take at any time; far above what one command delivers.
UNLIMITED = 1 << 62

#: R-QQ-12: prefetch 0 at a quorum queue.
QUORUM_PREFETCH_MAX = 2000

#: More credit than this is not counted: it is as much as one can.
CREDIT_MAX = 1 << 32

#: (node, incarnation, channel)
ChannelKey: TypeAlias = tuple[str, int, int]


class Consumer:
    """A consumer, or what one left with its channel when it was cancelled (R-CS-3).

    `registered` False: it gets nothing more; the record lives as long as it holds messages.
    A channel's basic.get deliveries are held by a record with tag "" that is never registered.
    """

    __slots__ = (
        "client",
        "credit",
        "exclusive",
        "held",
        "id",
        "no_ack",
        "order",
        "prefetch",
        "priority",
        "queued",
        "registered",
        "suspected",
        "timeout_ms",
        "user",
    )

    def __init__(self, consumer_id: ConsumerId) -> None:
        self.id = consumer_id
        self.prefetch = 0
        self.no_ack = False
        self.exclusive = False
        self.priority = 0
        self.user = ""
        #: For certificates of death; None: not known.
        self.client: Client | None = None
        #: Its own consumer timeout (R-QQ-22).
        self.timeout_ms: int | None = None
        #: How many more it may be handed out, whatever it settles; None: no such limit.
        self.credit: int | None = None
        #: Rises with each registration: the longest registered is the lowest.
        self.order = 0
        self.registered = False
        self.suspected = False
        #: It stands in a service queue (exactly one place).
        self.queued = False
        #: Checked-out messages, by number.
        self.held: Pieces[Span] = Pieces()

    def capacity(self) -> int:
        """Return how many more messages it may have now."""
        room = UNLIMITED if self.no_ack or not self.prefetch else self.prefetch - self.held.count
        return room if self.credit is None else min(room, self.credit)

    def limit(self) -> int:
        """Return how many it may hold as things are, for the books; 0: any number."""
        if self.credit is None:
            return self.prefetch
        return self.held.count + max(0, self.capacity())

    def grant(self, credit: int | None) -> None:
        """Add to its credit; None: there is no credit to count."""
        if credit is not None:
            self.credit = min((self.credit or 0) + credit, CREDIT_MAX)

    def withdraw(self) -> int:
        """Take its credit away; return how much was left."""
        left = self.credit or 0
        self.credit = 0
        return left


class Consumers:
    """All consumers of one queue.

    Invariants: `registered` counts the registered ones; each that can take a message stands in the
    service queue of its priority (others may stand there too and are passed over); `active` is
    None unless single active consumer is on and one is registered and reachable.
    """

    __slots__ = (
        "_active",
        "_by_channel",
        "_by_id",
        "_draining",
        "_next_order",
        "_queues",
        "_quorum",
        "_single_active",
        "registered",
    )

    def __init__(self) -> None:
        self._by_id: dict[ConsumerId, Consumer] = {}
        self._by_channel: dict[ChannelKey, dict[ConsumerId, Consumer]] = {}
        self._queues: dict[int, deque[Consumer]] = {}
        self._next_order = 1
        self._single_active = False
        self._quorum = False
        self._active: Consumer | None = None
        #: A waiting consumer of higher priority is to replace the active one, which gets nothing
        #: more until it has settled what it holds (R-CS-7, quorum).
        self._draining = False
        self.registered = 0

    def configure(self, single_active: bool, quorum: bool) -> None:
        """Set what the queue's options say."""
        if (single_active, quorum) != (self._single_active, self._quorum):
            self._single_active, self._quorum = single_active, quorum
            self._active = None
            self._draining = False
            self.elect()
            for consumer in self._by_id.values():
                self.offer(consumer)

    def get(self, consumer_id: ConsumerId) -> Consumer | None:
        """Return the record, registered or not."""
        return self._by_id.get(consumer_id)

    def hold(self, consumer_id: ConsumerId) -> Consumer:
        """Return the record, made if it does not exist."""
        consumer = self._by_id.get(consumer_id)
        if consumer is None:
            consumer = self._by_id[consumer_id] = Consumer(consumer_id)
            self._by_channel.setdefault(consumer_id[:3], {})[consumer_id] = consumer
        return consumer

    def register(self, consumer: Consumer) -> None:
        """Let it have messages; its settings have been set.  A second time only counts settings."""
        if not consumer.registered:
            consumer.registered = True
            consumer.order = self._next_order
            self._next_order += 1
            self.registered += 1
        self.elect()
        self.offer(consumer)

    def unregister(self, consumer: Consumer) -> None:
        """It gets no more messages; what it holds stays with it."""
        if consumer.registered:
            consumer.registered = False
            self._withdraw(consumer)
            self.registered -= 1
            self.elect()
        self.drop_if_done(consumer)

    def drop_if_done(self, consumer: Consumer) -> None:
        """Forget a record that is neither registered nor holds anything."""
        if consumer.registered or consumer.held:
            return
        if self._by_id.pop(consumer.id, None) is not None:
            siblings = self._by_channel[consumer.id[:3]]
            del siblings[consumer.id]
            if not siblings:
                del self._by_channel[consumer.id[:3]]

    def settled(self, consumer: Consumer) -> None:
        """It holds less than before: capacity, the single active one or its record may change."""
        if self._single_active:
            self.elect()
        if consumer.registered:
            self.offer(consumer)
        else:
            self.drop_if_done(consumer)

    def suspect(self, consumer: Consumer, suspected: bool) -> None:
        """Its node is (or is no longer) unreachable."""
        consumer.suspected = suspected
        self.elect()
        self.offer(consumer)

    def of_channel(self, channel: ChannelKey) -> list[Consumer]:
        """Return the records of a channel, in order of registration."""
        return list(self._by_channel.get(channel, {}).values())

    def of_node(self, node: str) -> list[Consumer]:
        """Return the records of a node."""
        return [consumer for consumer in self._by_id.values() if consumer.id.node == node]

    def holders(self) -> int:
        """Return how many more consumers RabbitMQ has of a quorum queue: each message of a
        basic.get is one, and each cancelled consumer that holds something.
        """
        if len(self._by_id) == self.registered:
            return 0
        rest = (consumer for consumer in self._by_id.values() if not consumer.registered)
        return sum(1 if consumer.id.tag else consumer.held.count for consumer in rest)

    def exclusive_holder(self) -> Consumer | None:
        """Return the registered exclusive consumer, if there is one (R-CS-2)."""
        return next((c for c in self._by_id.values() if c.registered and c.exclusive), None)

    def elect(self, suspects_lose: bool = False) -> None:
        """Choose the single active consumer (R-CS-7).

        suspects_lose: an active one whose node has been unreachable for too long is replaced.
        """
        if not self._single_active:
            return
        active = self._active
        if active is not None and not active.registered:
            active = None
        if active is not None and suspects_lose and active.suspected:
            active = None
        best = min(
            (c for c in self._by_id.values() if c.registered and not c.suspected),
            key=lambda c: (-c.priority, c.order),
            default=None,
        )
        higher = best is not None and active is not None and best.priority > active.priority
        if active is None or (self._quorum and higher and active.held.count == 0):
            active, higher = best, False
        self._active = active
        self._draining = self._quorum and higher
        if active is not None:
            self.offer(active)

    def may_take(self, consumer: Consumer) -> bool:
        """Return whether it may have a message now."""
        if not consumer.registered or consumer.suspected or consumer.capacity() <= 0:
            return False
        if self._single_active:
            return consumer is self._active and not self._draining
        return True

    def offer(self, consumer: Consumer) -> None:
        """Put it into its service queue if it may take messages and does not stand there."""
        if not consumer.queued and self.may_take(consumer):
            consumer.queued = True
            self._queues.setdefault(consumer.priority, deque()).append(consumer)

    def set_priority(self, consumer: Consumer, priority: int) -> None:
        """Change its priority; it leaves the service queue of the old one."""
        if priority != consumer.priority:
            self._withdraw(consumer)
            consumer.priority = priority

    def _withdraw(self, consumer: Consumer) -> None:
        if consumer.queued:
            self._queues[consumer.priority].remove(consumer)
            consumer.queued = False

    def service_queue(self) -> deque[Consumer] | None:
        """Return the service queue of the highest priority in which a consumer may take messages.

        The first in it may; those behind may not have been asked for a while.  One that is taken
        out must have `queued` cleared, and comes back by `offer`.
        """
        queues = self._queues
        if not queues:
            return None
        for priority in sorted(queues, reverse=True):
            queue = queues[priority]
            while queue:
                if self.may_take(queue[0]):
                    return queue
                queue.popleft().queued = False
            del queues[priority]
        return None

    def could_take(self, priority_min: int) -> bool:
        """Return whether someone of this priority or a higher one may have a message now.

        Only looks: unlike `service_queue` it may be asked outside of a command.
        """
        return any(
            priority >= priority_min and any(map(self.may_take, queue))
            for priority, queue in self._queues.items()
        )

    def rows(self) -> Iterator[Consumer]:
        """Return all records in order of their making."""
        return iter(self._by_id.values())

    @property
    def active(self) -> Consumer | None:
        """Return the single active consumer."""
        return self._active

    def service_queues(self) -> list[list[ConsumerId]]:
        """Return who stands in which service queue, for a snapshot."""
        return [[c.id for c in self._queues[p]] for p in sorted(self._queues) if self._queues[p]]

    def restore(
        self,
        consumers: list[Consumer],
        queues: list[list[ConsumerId]],
        active: ConsumerId | None,
        draining: bool,
        next_order: int,
    ) -> None:
        """Take over the rows of a snapshot (configure has been called before)."""
        for consumer in consumers:
            self._by_id[consumer.id] = consumer
            self._by_channel.setdefault(consumer.id[:3], {})[consumer.id] = consumer
            self.registered += consumer.registered
        self._active = self._by_id[active] if active is not None else None
        self._draining = draining
        self._next_order = next_order
        for ids in queues:
            for consumer_id in ids:
                consumer = self._by_id[consumer_id]
                consumer.queued = True
                self._queues.setdefault(consumer.priority, deque()).append(consumer)

    @property
    def draining(self) -> bool:
        """Return whether the active consumer is about to be replaced."""
        return self._draining

    @property
    def next_order(self) -> int:
        """Return the number of the next registration."""
        return self._next_order

    def clear(self) -> list[Consumer]:
        """Forget all and return the registered ones."""
        gone = [consumer for consumer in self._by_id.values() if consumer.registered]
        self._by_id.clear()
        self._by_channel.clear()
        self._queues.clear()
        self._active = None
        self._draining = False
        self.registered = 0
        return gone

    def check(self) -> None:
        """Assert what the class promises."""
        assert self.registered == sum(c.registered for c in self._by_id.values())
        standing = [c for queue in self._queues.values() for c in queue]
        assert len(standing) == len(set(map(id, standing))), "consumer queued twice"
        for consumer in self._by_id.values():
            consumer.held.check()
            assert consumer.registered or consumer.held, "record without purpose"
            if self.may_take(consumer):
                assert consumer.queued, "consumer that could take is not in a service queue"
                assert any(c is consumer for c in standing)
        if self._active is not None:
            assert self._single_active
            assert self._active.registered
