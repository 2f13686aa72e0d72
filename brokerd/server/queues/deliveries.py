"""Deliveries on the consumer's node: from the queue's leader to the channel that holds the
consumer.

Owns the register of local consumers.  After a leader change it tells the new leader what each
consumer holds, and it drops what arrives twice (R-QQ-10): the queue machine may send again what an
old leader had already sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from brokerd.core.message import Content, Range
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.ranges import RangeSet

log = logging.getLogger(__name__)

#: How long deliveries may lag behind the answer to RESUME.
RESUMED_S = 5.0

#: What one delivery consists of: where the messages come from, and the messages.
Part = tuple[Run, list[Content]]


class Sink(Protocol):
    """A channel, as the register sees it (owned here; AMQP sessions and gRPC streams implement
    it).
    """

    def deliver(self, consumer: LocalConsumer, parts: Sequence[Part]) -> None:
        """Hand these messages to the client."""
        ...

    def defer(self, consumer: LocalConsumer, runs: Sequence[Run]) -> bool:
        """Keep the numbers of messages that would have to wait, and can be read here later.

        False: they would not, or not so; `deliver` is to be called.
        """
        ...

    def consumer_cancelled(self, consumer: LocalConsumer, cause: str) -> None:
        """Tell the client that the consumer is gone (R-CS-6)."""
        ...

    def consumer_failed(self, consumer: LocalConsumer, reason: str) -> None:
        """Tell the client, in words, that nothing comes from the queue for now."""
        ...

    def consumer_stranded(self, consumer: LocalConsumer, reason: str) -> None:
        """Tell the client that the consumer is gone: its queue's home member is down.

        The queue may come back, and must then learn that no consumer holds its messages here.
        """
        ...

    def held(self, consumer: LocalConsumer) -> list[Range]:
        """Return the numbers that were delivered and are not settled."""
        ...


@dataclass(slots=True)
class LocalConsumer:
    """A consumer of one of this node's channels."""

    id: ConsumerId
    uid: int
    vhost: str
    queue: str
    sink: Sink
    no_ack: bool
    prefetch: int
    priority: int
    exclusive: bool
    user: str
    #: Present between a leader change and the new leader's answer to RESUME: what came meanwhile.
    recent: RangeSet | None = None
    #: Beside it: what came again meanwhile, and how often each had been handed out before.
    again: dict[int, int] = field(default_factory=dict)
    #: RESUMEs that have no answer yet.
    resumes: int = 0
    #: Called when `recent` is None again.
    calmed: Callable[[], None] | None = None
    #: Deliveries carry x-acquired-count and x-delivery-count: quorum queues only (R-DL-4, R-DL-11).
    has_counts: bool = False
    #: True until the client knows that it consumes.
    is_held: bool = False
    #: Of an AMQP channel: prepared frames per route.
    encoders: dict[tuple[str, str], Any] = field(default_factory=dict)


#: uid, consumer, what it holds, done(is it known).
Resume = Callable[[int, ConsumerId, list[Range], Callable[[bool], None]], None]


class DeliveryHub:
    """All consumers of this node, by id and by the queue's group."""

    def __init__(
        self,
        resume: Resume,
        changed: Callable[[int, bool], None] = lambda _uid, _has_consumers: None,
    ) -> None:
        """resume: see QueueClient.resume.

        changed(uid, has consumers): a group has its first consumer here, or lost its last.
        """
        self._resume = resume
        self._changed = changed
        self._consumers: dict[ConsumerId, LocalConsumer] = {}
        self._by_group: dict[int, dict[ConsumerId, LocalConsumer]] = {}
        #: Channels that hold what they got by basic.get, and what to call when that took too long.
        self._getters: dict[ConsumerId, Callable[[str], None]] = {}

    def __len__(self) -> int:
        return len(self._consumers)

    def groups(self) -> list[int]:
        """Return the groups that have consumers here."""
        return list(self._by_group)

    def has_group(self, uid: int) -> bool:
        """Tell whether a group has consumers here."""
        return uid in self._by_group

    def consumers(self) -> list[LocalConsumer]:
        """Return all, for listings."""
        return list(self._consumers.values())

    def add(self, consumer: LocalConsumer) -> None:
        """Register before the checkout is proposed: deliveries may come at once."""
        self._consumers[consumer.id] = consumer
        group = self._by_group.setdefault(consumer.uid, {})
        group[consumer.id] = consumer
        if len(group) == 1:
            self._changed(consumer.uid, True)

    def remove(self, consumer_id: ConsumerId) -> LocalConsumer | None:
        """Forget a consumer; what still arrives for it is dropped (the queue gets it back)."""
        consumer = self._consumers.pop(consumer_id, None)
        if consumer is not None:
            group = self._by_group[consumer.uid]
            del group[consumer_id]
            if not group:
                del self._by_group[consumer.uid]
                self._changed(consumer.uid, False)
        return consumer

    def deliver(self, consumer_id: ConsumerId, parts: list[Part]) -> None:
        """Pass a leader's delivery on; unknown consumers have ended meanwhile.

        No parts: the leader holds messages back until it hears what the consumer has.
        """
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            return
        if not parts:
            # One that is on its way arrives: the group client does not give up.
            if not consumer.resumes:
                self._ask(consumer)
            return
        if consumer.recent is not None:
            parts = _without(parts, consumer.recent, consumer.again)
            for run, _ in parts:
                end = run.first + run.length
                consumer.recent.add(run.first, end)
                if run.acquired_count:
                    numbers = range(run.first, end)
                    consumer.again.update(dict.fromkeys(numbers, run.acquired_count))
            if not parts:
                return
        consumer.sink.deliver(consumer, parts)

    def defer(self, consumer_id: ConsumerId, runs: Sequence[Run]) -> bool:
        """Pass numbers on where messages would only wait (Sink.defer): nothing is read for that."""
        consumer = self._consumers.get(consumer_id)
        if consumer is None or consumer.recent is not None:
            return False
        return consumer.sink.defer(consumer, runs)

    def add_getter(self, holder: ConsumerId, timed_out: Callable[[str], None]) -> None:
        """A channel gets from queues; timed_out(cause) says that it held a message for too long."""
        self._getters[holder] = timed_out

    def remove_getter(self, holder: ConsumerId) -> None:
        """The channel has ended."""
        self._getters.pop(holder, None)

    def cancelled(self, consumer_id: ConsumerId, cause: str) -> None:
        """The queue ended this consumer, or has taken back what a channel had got."""
        consumer = self.remove(consumer_id)
        if consumer is not None:
            consumer.sink.consumer_cancelled(consumer, cause)
        elif (timed_out := self._getters.get(consumer_id)) is not None:
            timed_out(cause)

    def group_gone(self, uid: int) -> None:
        """The queue was deleted: all its consumers end."""
        for consumer_id in list(self._by_group.get(uid, ())):
            self.cancelled(consumer_id, "queue deleted")

    def group_stuck(self, uid: int, reason: str) -> None:
        """The queue has no leader and will have none for now: its consumers are notified."""
        for consumer_id in list(self._by_group.get(uid, ())):
            consumer = self.remove(consumer_id)
            if consumer is not None:
                consumer.sink.consumer_failed(consumer, reason)

    def home_down(self, uid: int, reason: str) -> None:
        """The queue's home member is down: its consumers here end."""
        for consumer_id in list(self._by_group.get(uid, ())):
            consumer = self.remove(consumer_id)
            if consumer is not None:
                consumer.sink.consumer_stranded(consumer, reason)

    def leader_changed(self, uid: int) -> None:
        """Tell the new leader what each consumer holds, so that it sends again what got lost."""
        for consumer in list(self._by_group.get(uid, {}).values()):
            self._ask(consumer)

    def send_again(self, consumer: LocalConsumer, ranges: Iterable[Range]) -> None:
        """Have the queue send again what came and cannot be passed on: it is not held any more."""
        if consumer.recent is not None:
            for low, high in ranges:
                consumer.recent.remove(low, high)
        self._ask(consumer)

    def _ask(self, consumer: LocalConsumer) -> None:
        held = consumer.sink.held(consumer)
        # What came lately stays: an earlier RESUME, which may be on its way to this leader too,
        # knew nothing of it, and it may have been settled since.
        earlier = [] if consumer.recent is None else consumer.recent.ranges()
        if not earlier:
            consumer.again.clear()
        consumer.recent = RangeSet([*held, *earlier])
        consumer.resumes += 1
        resumed = _Resumed(self, consumer, consumer.recent)
        self._resume(consumer.uid, consumer.id, held, resumed)


@dataclass(slots=True)
class _Resumed:
    """The new leader has answered: what it sends again is on its way.

    The answer may overtake those deliveries (replies go first in a frame, and before the effects of
    the same entry), so the set is kept for a while longer.
    """

    hub: DeliveryHub
    consumer: LocalConsumer
    recent: RangeSet

    def __call__(self, is_known: bool) -> None:
        self.consumer.resumes -= 1
        if not is_known:
            # The queue gave it up meanwhile: the client must know that nothing comes any more.
            self.hub.cancelled(self.consumer.id, "lost by its queue")
            return
        asyncio.get_running_loop().call_later(RESUMED_S, self._forget)

    def _forget(self) -> None:
        # A second leader change meanwhile has begun a set of its own.
        if self.consumer.recent is self.recent:
            self.consumer.recent = None
            self.consumer.again.clear()
            if self.consumer.calmed is not None:
                self.consumer.calmed()


def _without(parts: list[Part], seen: RangeSet, again: dict[int, int]) -> list[Part]:
    """Leave out messages that came already: their numbers are in `seen`.

    Whatever was given back and comes again has been counted once more; `again` says how often it
    had been when it came last.
    """
    kept: list[Part] = []
    for run, contents in parts:
        end = run.first + run.length
        if seen.missing(run.first, end) == [(run.first, end)]:
            kept.append((run, contents))
            continue
        for offset, content in enumerate(contents):
            number = run.first + offset
            if number not in seen or run.acquired_count > again.get(number, 0):
                single = run._replace(
                    first=run.first + offset, length=1, position=run.position + offset
                )
                kept.append((single, [content]))
    return kept
