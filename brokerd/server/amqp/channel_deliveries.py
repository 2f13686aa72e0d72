"""One AMQP channel's inward half: deliveries to its consumers, and their settlement.

The base of the other half (channel_publishes.py), which alone uses it.  A delivery that may not be
written yet (consume-ok is due, the socket is full, a shared prefetch is used up) waits in the
backlog.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from brokerd.amqp import errors, methods, properties
from brokerd.amqp.deliver import DeliverEncoder
from brokerd.amqp.values import Long
from brokerd.core import unacked
from brokerd.core.message import Range
from brokerd.core.queue import effects
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.ranges import count_of
from brokerd.server.amqp import client_names, consumer_timeout
from brokerd.server.amqp.backlog import Backlog
from brokerd.server.amqp.channel_connection import ChannelConnection
from brokerd.server.amqp.shared_prefetch import SharedPrefetch
from brokerd.server.amqp.transactions import Transaction
from brokerd.server.queues.deliveries import LocalConsumer, Part
from brokerd.server.queues.gets import Got
from brokerd.server.queues.stream import ALL_HELD, GET_SETTLES_MAX, Holder, Settle
from brokerd.telemetry import client_totals

if TYPE_CHECKING:
    from brokerd.server.amqp.ports import ChannelServices

log = logging.getLogger(__name__)

_BODY = itemgetter(2)

#: Deliveries of this size are not collected for one write with the next.
FLUSH_BYTES = 512 * 1024
#: Bytes that a channel delivers per turn of the loop.  A client that reads as fast as it is written
#: to would otherwise receive its whole backlog in one turn, gigabytes perhaps.
TURN_BYTES = 4 << 20
#: Prepared deliver prefixes per consumer; a topic exchange may bring any number of routing keys.
ENCODERS_MAX = 256
#: Auto-acknowledged deliveries under way per consumer: they are settled once the socket has taken
#: them.
AUTO_ACK_WINDOW = 2000
#: An ack of what basic.get has taken goes with the channel's next method, or after once to twice
#: this: no client waits for it, since gets have no prefetch limit.
GOT_ACKS_WAIT_S = 0.005
#: Ranges of a queue's that are kept so.
GOT_ACKS_MAX = 256

#: Class and method of basic.consume.
_CONSUME = (60, 20)

#: Who holds deliveries: the queue's group and the consumer (the pseudo consumer of basic.get has
#: one id for all queues).


class ChannelDeliveries:
    """What a channel holds of its queues.

    Invariant: what `unacked` and the open transaction hold is what the client has been sent and
    the queue has not been told to settle.

    In one piece: each delivery and each settlement of a channel looks at most of it, with one step
    to each.
    """

    def __init__(
        self, services: ChannelServices, connection: ChannelConnection, channel: int
    ) -> None:
        self.services = services
        self.catalog = services.catalog
        self.messages = services.messages
        self.counters = services.counters
        self.totals = services.counters.totals[client_totals.AMQP]
        self.tracer = services.tracer
        self.connection = connection
        self.channel = channel
        self.uid = services.identity.next_uid()
        #: For what is said at a death of what it had; None: nothing is.
        self.client = client_names.client_of(services, connection)
        self.stream = services.queue_client.open(
            self.uid,
            self.answered,
            source=connection.gate,
            in_flight=self._in_flight,
            client=self.client,
        )
        self.unacked: unacked.Unacked[Holder] = unacked.Unacked()
        self.consumers: dict[str, LocalConsumer] = {}
        self.prefetch = 0
        #: basic.qos with `global`, where the profile has it (R-QOS-3).
        self.shared: SharedPrefetch | None = None
        #: tx.select has been called (R-TX).
        self.tx: Transaction | None = None
        #: Kept only where the channel watches over its consumers (R-CS-9).
        self.times: consumer_timeout.DeliveryTimes | None = None
        if consumer_timeout.watched(services.profile, services.config.queues):
            self.times = consumer_timeout.DeliveryTimes(services.now_ms)
        #: While this channel deletes a queue: basic.cancel follows queue.delete-ok, as clients
        #: expect that wait for nothing else (py-amqp).
        self._late_cancels: list[methods.Method] | None = None
        self._ended = False
        self._backlog = Backlog(services.queues)
        #: Delivered since the channel has last rested, which lasts until the loop has turned.
        self._turn_bytes = 0
        self._is_resting = False
        #: Deliveries that were made to auto-acknowledging consumers and not settled yet.
        self._auto_acks: dict[Holder, list[Range]] = {}
        #: Acks of what basic.get has taken, not sent yet; their timer, and whether they are younger
        #: than that.
        self._got_acks: dict[Holder, list[Range]] = {}
        self._got_acks_timer: asyncio.TimerHandle | None = None
        self._are_got_acks_new = False
        #: Rejections without requeueing that have no answer yet: letters of theirs may be to come.
        self.discards = 0
        #: Such ones that were waited for too long: their queue has no leader, or its home is down.
        self._late_discards = 0
        #: The first tag that was not flushed at the connection's flush of that number.
        self._unflushed_tag = self._unflushed_at = 0

    @property
    def has_ended(self) -> bool:
        """Tell whether the channel is gone."""
        return self._ended

    def fail(self, error: errors.ProtocolError, class_id: int, method_id: int) -> None:
        """Answer a broken rule; `Session` knows how."""
        raise error

    def slow_is_over(self) -> None:
        """The get has its answer; `Session` goes on with what waits for that."""

    def answered(self, outcomes: list[tuple[int, int, int]]) -> None:
        """A queue has answered what was published; `ChannelPublishes` knows how to go on."""

    def _in_flight(self, size: int) -> None:
        if size > 0:
            self.connection.unconfirmed.take(size)
        else:
            self.connection.unconfirmed.give(-size)

    def letters_sent(self) -> None:
        """What was rejected has been sent on; `Session` goes on with what waits for that."""

    def send(self, method: methods.Method) -> None:
        """Answer on this channel."""
        self.connection.machine.send(self.channel, method)
        self.connection.flush_soon()

    # ---- deliveries (Sink) ------------------------------------------------------------------

    def deliver(self, consumer: LocalConsumer, parts: Sequence[Part]) -> None:
        """Write these messages as basic.deliver frames, one join per route (hot-path.md rule 5)."""
        if self.shared is not None:
            self._backlog.add(consumer, parts)
            self._drain()
            return
        if consumer.is_held or self._backlog or self._is_held_up:
            self._backlog.add(consumer, parts)
            return
        self._deliver(consumer, parts)

    def defer(self, consumer: LocalConsumer, runs: Sequence[Run]) -> bool:
        """Keep numbers only where `deliver` would do nothing but put them into the backlog."""
        is_waiting = self._backlog or self._is_held_up
        if self.shared is not None or not (consumer.is_held or is_waiting):
            return False
        self._backlog.add_numbers(consumer, runs)
        return True

    @property
    def _is_held_up(self) -> bool:
        """Say whether nothing may go out for now."""
        return self._is_resting or self.connection.write_paused_ms is not None

    def _deliver(self, consumer: LocalConsumer, parts: Sequence[Part]) -> None:
        self._note_unflushed()
        machine = self.connection.machine
        total = total_bytes = total_redelivered = 0
        for run, contents in parts:
            redelivered = effects.times_acquired(run) > 0
            total += len(contents)
            total_bytes += sum(map(len, map(_BODY, contents)))
            if redelivered:
                total_redelivered += len(contents)
            holder = (consumer.uid, consumer.id)
            tag = self.unacked.delivered(holder, run.first, run.length, consumer.no_ack)
            start, count = 0, len(contents)
            while start < count:
                route = contents[start][0]
                end = start + 1
                while end < count and contents[end][0] is route:
                    end += 1
                encoder = consumer.encoders.get(route)
                if encoder is None:
                    encoder = self._encoder(consumer, route)
                if redelivered and consumer.has_counts:
                    items = [
                        (self._with_counts(content[1], run), content[2])
                        for content in contents[start:end]
                    ]
                else:
                    items = [(content[1], content[2]) for content in contents[start:end]]
                machine.send_raw(encoder.frames(tag + start, redelivered, items))
                start = end
            if consumer.no_ack:
                self._auto_ack(consumer, run.first, run.length)
            elif self.times is not None:
                self.times.delivered(tag)
            tracer = self.tracer
            if tracer.is_on:
                tracer.delivered(
                    self.connection, self.channel, consumer.queue, redelivered, contents
                )
        self.counters.delivered(
            self.connection.vhost, self.connection.user, total, total_bytes, total_redelivered
        )
        totals = self.totals.quorum if consumer.has_counts else self.totals.classic
        totals.delivered(total, total_redelivered, consumer.no_ack)
        if total_bytes >= FLUSH_BYTES:
            # Written at once: only so it shows when the socket is full.
            self.connection.flush_now()
        else:
            self.connection.flush_soon()
        self._turn_bytes += total_bytes
        if self._turn_bytes >= TURN_BYTES:
            self._turn_bytes = 0
            self._is_resting = True
            asyncio.get_running_loop().call_soon(self._rested)

    def _note_unflushed(self) -> None:
        """What gets tags now waits for the connection's next flush."""
        flush_count = self.connection.flush_count
        if self._unflushed_at != flush_count:
            self._unflushed_at, self._unflushed_tag = flush_count, self.unacked.next_tag

    def written(self) -> dict[int, dict[str, list[Range]]]:
        """Return by queue and consumer tag what the client was sent and the queue has not been told
        to settle (ADR 69).

        What the socket was handed counts as sent: how much of it has arrived is not known.
        """
        end, connection = self.unacked.next_tag, self.connection
        if connection.is_lost and self._unflushed_at == connection.flush_count:
            end = self._unflushed_tag
        found: dict[int, dict[str, list[Range]]] = {}
        parts = [self.unacked.numbers_below(end), self._auto_acks]
        if self.tx is not None:
            parts.append(self.unacked.ranges_of(self.tx.settled()))
        for part in parts:
            for (uid, consumer), ranges in part.items():
                found.setdefault(uid, {}).setdefault(consumer.tag, []).extend(ranges)
        return found

    def _rested(self) -> None:
        self._is_resting = False
        self._drain()

    def _encoder(self, consumer: LocalConsumer, route: tuple[str, str]) -> DeliverEncoder:
        if len(consumer.encoders) >= ENCODERS_MAX:
            consumer.encoders.clear()
        encoder = DeliverEncoder(
            self.channel, consumer.id.tag, route[0], route[1], self.connection.machine.frame_max
        )
        consumer.encoders[route] = encoder
        return encoder

    def _auto_ack(self, consumer: LocalConsumer, first: int, length: int) -> None:
        """Settle what a no_ack consumer was sent, as soon as its socket keeps up (R-QQ-12)."""
        holder = (consumer.uid, consumer.id)
        self._auto_acks.setdefault(holder, []).append((first, first + length))
        if self.connection.write_paused_ms is None:
            self._settle_auto_acks()

    def _settle_auto_acks(self) -> None:
        pending, self._auto_acks = self._auto_acks, {}
        for holder, ranges in pending.items():
            queue = self.services.queues.queue_of(holder[0])
            is_lazy = queue is not None and queue.type == "classic"
            self._settle(holder, ranges, Settle.ACCEPT, may_be_lost=is_lazy)

    def writable(self, is_writable: bool) -> None:
        """The socket takes data again: what waited goes out, in order."""
        if not is_writable:
            return
        if self._auto_acks:
            self._settle_auto_acks()
        self._drain()

    def _drain(self) -> None:
        """Write what waited, until it is all, the socket is full, the shared limit is reached or
        the channel has had its turn.
        """
        while self._backlog and not self._is_held_up and not self._ended:
            room = None if self.shared is None else self.shared.room(self)
            found = self._backlog.take(room)
            if found is None:
                return
            consumer, run, contents = found
            if contents is None:
                # The leader is elsewhere now, and sends it again with all that waits behind it.
                ranges = [(run.first, run.first + run.length), *self._backlog.drop(consumer)]
                self.services.deliveries.send_again(consumer, ranges)
                continue
            self._deliver(consumer, [(run, contents)])
            self.connection.flush_now()

    def share_prefetch(self, shared: SharedPrefetch | None) -> None:
        """Set, change or lift the limit that all consumers share (R-QOS-3)."""
        self.shared = shared
        self._drain()

    def _give_back(self, consumer: LocalConsumer, ranges: list[Range]) -> None:
        self._settle((consumer.uid, consumer.id), ranges, Settle.UNWRITTEN)

    def unwritten_returns(self, consumer: LocalConsumer) -> None:
        """The consumer is cancelled: what the client has not been sent goes back (R-CS-3)."""
        ranges = self._backlog.drop(consumer)
        if ranges:
            self._give_back(consumer, sorted(ranges))
            # Others' messages may have waited behind these.
            self._drain()

    def consumer_cancelled(self, consumer: LocalConsumer, cause: str) -> None:
        """R-CS-6: tell clients that can be told."""
        self.consumers.pop(consumer.id.tag, None)
        self._backlog.drop(consumer)
        log.info("consumer %s cancelled: %s", consumer.id.tag, cause)
        is_told = self.connection.machine.client_has("consumer_cancel_notify")
        if cause.startswith(effects.TIMED_OUT):
            # R-QQ-22: the queue has taken back what was late; the rest may still be settled.
            if not is_told:
                self.timed_out(cause)
                return
        else:
            self.unacked.silence((consumer.uid, consumer.id))
        if is_told and self._late_cancels is not None:
            self._late_cancels.append(methods.BasicCancel(consumer.id.tag, True))
        elif is_told:
            self.send(methods.BasicCancel(consumer.id.tag, True))

    def consumer_failed(self, consumer: LocalConsumer, reason: str) -> None:
        """The queue waits with damage: the channel is closed, since basic.cancel has no room for
        the reason.
        """
        self.consumers.pop(consumer.id.tag, None)
        self._backlog.drop(consumer)
        self.fail(errors.NotFound(reason), *_CONSUME)

    def consumer_stranded(self, consumer: LocalConsumer, reason: str) -> None:
        """basic.cancel, or the end of the channel for a client that cannot be told.

        What the client holds cannot be settled any more, as after RabbitMQ's basic.cancel.  Its
        queue takes it back when the home member returns: as delivered before what was written, and
        as never delivered what was not.
        """
        log.warning("consumer %s cancelled: %s", consumer.id.tag, reason)
        if not self.connection.machine.client_has("consumer_cancel_notify"):
            self.consumer_failed(consumer, reason)
            return
        self.consumers.pop(consumer.id.tag, None)
        holder = (consumer.uid, consumer.id)
        written = self.unacked.numbers_of(holder)
        if self.tx is not None:
            written += self.tx.numbers_of(holder)
        self.unacked.silence(holder)
        self._backlog.drop(consumer)
        if sent := self._auto_acks.pop(holder, None):
            # Without acknowledgements what the socket was handed is settled.
            self._settle(holder, sent, Settle.ACCEPT, may_be_lost=True)
        self.stream.cancel(holder)
        if written:
            self._settle(holder, sorted(written), Settle.NACK)
        # Also what the home hands out between acknowledgements that waited for it and the cancel.
        self._settle(holder, [ALL_HELD], Settle.UNWRITTEN)
        # Others' messages may have waited behind these.
        self._drain()
        self.send(methods.BasicCancel(consumer.id.tag, True))

    @contextlib.contextmanager
    def cancels_later(self) -> Iterator[None]:
        """Hold cancel notifications back until what is done here has been answered (R-CS-6)."""
        self._late_cancels = []
        try:
            yield
        finally:
            late, self._late_cancels = self._late_cancels, None
            for cancel in late:
                self.send(cancel)

    def timed_out_text(self, timeout_ms: int) -> str:
        """R-CS-9."""
        return (
            f"delivery acknowledgement on channel {self.channel} timed out. "
            f"Timeout value used: {timeout_ms} ms. "
            "This timeout value can be configured, see consumers doc guide to learn more"
        )

    def timed_out(self, cause: str) -> None:
        """R-QQ-22: a queue has taken back what was held for too long; the channel is closed."""
        timeout_ms = int(cause.removeprefix(effects.TIMED_OUT).split()[0])
        self.fail(errors.PreconditionFailed(self.timed_out_text(timeout_ms)), 0, 0)

    def check_times(self, timeout_ms: int) -> None:
        """R-CS-9: a client that has not settled a delivery for so long loses the channel."""
        if self.times is None or self._ended:
            return
        if self.times.age_ms(self.unacked.oldest_tag()) >= timeout_ms:
            self.fail(errors.PreconditionFailed(self.timed_out_text(timeout_ms)), 0, 0)

    def held(self, consumer: LocalConsumer) -> list[Range]:
        """Return the unsettled numbers of a consumer."""
        holder = (consumer.uid, consumer.id)
        held = self.unacked.numbers_of(holder) + self._auto_acks.get(holder, [])
        if self.tx is not None:
            held += self.tx.numbers_of(holder)
        return sorted(held + self._backlog.numbers_of(consumer))

    def release_consumer(self, consumer: LocalConsumer) -> None:
        """consume-ok has been sent: deliveries may follow."""
        consumer.is_held = False
        self._drain()

    def consumer_prefetch(self, no_ack: bool) -> int:
        """Return what a new consumer may hold unsettled (R-QOS-2)."""
        return AUTO_ACK_WINDOW if no_ack else self.prefetch

    def send_got(self, uid: int, holder: ConsumerId, got: Got, no_ack: bool) -> None:
        """Answer basic.get; the machine has settled it already if no_ack (R-CS-8)."""
        self._note_unflushed()
        run, content = got.run, got.content
        tag = self.unacked.delivered((uid, holder), run.first, 1, no_ack)
        if self.times is not None and not no_ack:
            self.times.delivered(tag)
        if self.shared is not None:
            self.shared.exempt.add((uid, holder))
        header = content[1]
        redelivered = effects.times_acquired(run) > 0
        queue = self.services.queues.queue_of(uid)
        if queue is not None:
            self.totals.of(queue.type).got(redelivered, no_ack)
        # Only 3.10 counts from the first basic.get on.
        is_counted = redelivered or self.services.profile.quorum_count_headers == "3.10"
        if is_counted and queue is not None and queue.type == "quorum":
            header = self._with_counts(header, run)
        (exchange, routing_key), _, body, _ = content
        connection = self.connection
        method = methods.BasicGetOk(tag, redelivered, exchange, routing_key, got.ready_count)
        connection.machine.send_content(self.channel, method, header, body)
        self.counters.delivered(connection.vhost, connection.user, 1, len(body), redelivered)
        if self.tracer.is_on and queue is not None:
            self.tracer.delivered(connection, self.channel, queue.name, redelivered, [content])
        connection.flush_soon()

    # ---- settlements ------------------------------------------------------------------------

    def _acks(self, acks: list[tuple[int, bool]]) -> None:
        if self.tx is not None:
            for tag, multiple in acks:
                self.settle_tag(Settle.ACCEPT, tag, multiple)
            return
        settled, error = self.unacked.acks(acks)
        for holder in [holder for holder in settled if not holder[1].tag]:
            self._settle_got(holder, settled.pop(holder))
        if settled:
            self._settle_all(settled, Settle.ACCEPT)
        if error is not None:
            raise errors.PreconditionFailed(str(error))

    def _settle_got(self, holder: Holder, ranges: list[Range]) -> None:
        """Keep acks of basic.get's messages for the next command, which is most often a get: one
        write of the log and one frame to each member for both.
        """
        if not self._got_acks:
            self._are_got_acks_new = True
        kept = self._got_acks.setdefault(holder, [])
        kept += ranges
        if len(kept) >= GOT_ACKS_MAX:
            self.send_got_acks()
        elif self._got_acks_timer is None:
            loop = asyncio.get_running_loop()
            self._got_acks_timer = loop.call_later(GOT_ACKS_WAIT_S, self._got_acks_due)

    def _got_acks_due(self) -> None:
        self._got_acks_timer = None
        if not self._got_acks:
            return
        if self._are_got_acks_new:
            # The timer was another one's: it is not set anew for each ack.
            self._are_got_acks_new = False
            loop = asyncio.get_running_loop()
            self._got_acks_timer = loop.call_later(GOT_ACKS_WAIT_S, self._got_acks_due)
            return
        self.send_got_acks()

    def take_got_acks(self, holder: Holder) -> list[Range]:
        """Return the kept acks that the next get at their queue takes along; the others are sent.

        One command for both: one entry of the log, one answer.
        """
        if not self._got_acks:
            return []
        ranges: list[Range] = []
        if len(self._got_acks.get(holder, ranges)) <= GET_SETTLES_MAX:
            ranges = self._got_acks.pop(holder, ranges)
        self.send_got_acks()
        queue = self.services.queues.queue_of(holder[0]) if ranges else None
        if queue is not None:
            self.totals.of(queue.type).acknowledged += count_of(ranges)
        return ranges

    def settle_again(self, holder: Holder, ranges: list[Range]) -> None:
        """The get that took these acks along may not have arrived."""
        self._settle(holder, ranges, Settle.ACCEPT, may_be_lost=True)

    def send_got_acks(self) -> None:
        """Send what was kept, before anything that may depend on it."""
        if not self._got_acks:
            return
        kept, self._got_acks = self._got_acks, {}
        for holder, ranges in kept.items():
            self._acknowledge(holder, ranges)

    def settle_tag(self, how: Settle, tag: int, multiple: bool) -> None:
        """One ack, nack or reject (R-ACK-2..6); in a transaction it waits for commit (R-TX-5)."""
        try:
            taken = self.unacked.take(tag, multiple)
        except unacked.UnknownDeliveryTag as error:
            raise errors.PreconditionFailed(str(error)) from error
        if self.tx is not None:
            self.tx.settle(how, taken)
            return
        self._settle_all(self.unacked.ranges_of(taken), how)

    def commit_settlements(self) -> None:
        """Do what the transaction's acks, nacks and rejects ask for (R-TX-7)."""
        assert self.tx is not None
        for how, taken in self.tx.take_settlements():
            self._settle_all(self.unacked.ranges_of(taken), how)

    def recover(self) -> None:
        """basic.recover(requeue=true): everything returns (R-ACK-7)."""
        self._settle_all(self.unacked.take_all(), Settle.RECOVER)

    def _settle_all(self, by_holder: dict[Holder, list[Range]], how: Settle) -> None:
        for holder, ranges in by_holder.items():
            if how is Settle.ACCEPT:
                self._acknowledge(holder, ranges)
            else:
                self._settle(holder, ranges, how)
        if self.shared is not None:
            # R-QOS-5: every settlement makes room for others.
            self._drain()

    def _acknowledge(self, holder: Holder, ranges: list[Range]) -> None:
        """Settle for good: at a classic queue, and after gets, without a sync (ADR 23)."""
        is_lazy = not holder[1].tag
        queue = self.services.queues.queue_of(holder[0])
        if queue is not None:
            self.totals.of(queue.type).acknowledged += count_of(ranges)
            is_lazy = is_lazy or queue.type == "classic"
        # What a transaction settles goes with its publishes, which the disk holds.
        is_lazy = is_lazy and self.tx is None
        self._settle(holder, ranges, Settle.ACCEPT, may_be_lost=is_lazy)

    def _settle(
        self, holder: Holder, ranges: list[Range], how: Settle, *, may_be_lost: bool = False
    ) -> None:
        done = None
        if how in (Settle.DISCARD, Settle.DISCARD_REJECTED):
            self.discards += 1
            done = self._discarded
        self.stream.settle(
            holder,
            ranges,
            how,
            may_be_lost=may_be_lost,
            is_joined=self.tx is None,
            done=done,
        )

    def give_up_discards(self) -> None:
        """Wait no more for the rejections that have no answer yet."""
        self._late_discards += self.discards
        self.discards = 0

    def _discarded(self) -> None:
        if self._late_discards:
            self._late_discards -= 1
            return
        self.discards -= 1
        if not self.discards:
            # A leader answers before it sends the letters on, in the same run of its group.
            self.connection.call_after_flush(self.letters_sent)

    def _with_counts(self, header: bytes, run: Run) -> bytes:
        """R-DL-4: x-acquired-count and x-delivery-count from the second delivery on."""
        table = dict(properties.headers(header))
        if self.services.profile.quorum_count_headers == "4.x":
            table["x-acquired-count"] = Long(effects.times_acquired(run))
            if run.delivery_count:
                table["x-delivery-count"] = Long(run.delivery_count)
        else:
            table["x-delivery-count"] = Long(run.delivery_count)
        return properties.with_headers(header, table)
