"""One AMQP channel: publishes, confirms, deliveries and settlements (the hot half).

Declares, binds and other methods that need an answer of the cluster are in session_methods.py;
while
one of them runs, later events of the channel wait in order (a channel is sequential).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from brokerd.amqp import errors, events, methods, properties
from brokerd.amqp.deliver import DeliverEncoder
from brokerd.core import annotations as message_annotations
from brokerd.core import confirms, queue_commands, unacked
from brokerd.core.effects import ConsumerId
from brokerd.core.message import Content, Range
from brokerd.server import message_checks, session_methods
from brokerd.server.backlog import Backlog
from brokerd.server.catalog_writer import Unavailable
from brokerd.server.delivery import Got, LocalConsumer, Part
from brokerd.server.publishing import UNNUMBERED, Publisher

if TYPE_CHECKING:
    from brokerd.core.router import RouteResult
    from brokerd.server.broker import Broker
    from brokerd.server.connection import ClientConnection
    from brokerd.telemetry.counters import ConfirmClock

log = logging.getLogger(__name__)

_BODY = itemgetter(2)

#: Deliveries of this size are not collected for one write with the next.
FLUSH_BYTES = 512 * 1024
#: How many different publish methods (exchange, routing key, flags) a channel remembers.
TARGETS_MAX = 1024
#: Prepared deliver prefixes per consumer; a topic exchange may bring any number of routing keys.
ENCODERS_MAX = 256
#: Auto-acknowledged deliveries are settled once the socket has taken them; so many may be under
#: way.
AUTO_ACK_WINDOW = 2000

Work = Coroutine[Any, Any, None]
#: Who holds deliveries: the queue's group and the consumer (the pseudo consumer of basic.get has
#: one
#: id for all queues).
Holder = tuple[int, ConsumerId]


@dataclass(slots=True)
class PublishTarget:
    """A publish method's payload, parsed, checked and routed; good for one topology revision."""

    method: methods.BasicPublish
    revision: int
    route: tuple[str, str]
    #: None: the exchange needs the headers to route.
    result: RouteResult | None


class Session:
    """A channel's state.

    Invariant: `_waiting` is empty unless `_busy`; `consumers` holds what the client knows by tag.
    """

    def __init__(self, broker: Broker, connection: ClientConnection, channel: int) -> None:
        self.broker = broker
        self.connection = connection
        self.channel = channel
        self.uid = broker.next_uid()
        self.unacked: unacked.Unacked[Holder] = unacked.Unacked()
        self.confirms: confirms.Confirms | None = None
        #: Counts and times the confirms for telemetry; set together with `confirms`.
        self.confirm_clock: ConfirmClock | None = None
        self.consumers: dict[str, LocalConsumer] = {}
        self.prefetch = 0
        #: Name of the queue last declared, for the empty name (R-CH-10).
        self.last_queue = ""
        #: Groups with a consumer, a basic.get or an enqueuer of this channel: told when it ends.
        self.groups: set[int] = set()
        self.published = 0
        self._busy = False
        self._ended = False
        self._waiting: deque[events.Event] = deque()
        self._targets: dict[bytes, PublishTarget] = {}
        self.publisher = Publisher(
            broker.groups,
            broker.node,
            broker.incarnation,
            self.uid,
            self._published,
            self._in_flight,
        )
        self._backlog = Backlog(broker)
        #: Deliveries that were made to auto-acknowledging consumers and not settled yet.
        self._auto_acks: dict[Holder, list[Range]] = {}

    # ---- events in order --------------------------------------------------------------------

    def handle(self, event: events.Event) -> None:
        """Take one event; it waits while a slow method of this channel runs."""
        if self._ended:
            return
        if self._busy:
            self._waiting.append(event)
            # The events hold what one read brought; a client that goes on and on is not read.
            self.connection.gate.hold(f"busy {self.channel}")
            return
        self._dispatch(event)

    def _dispatch(self, event: events.Event) -> None:
        class_id = method_id = 0
        try:
            if type(event) is events.PublishesReceived:
                class_id, method_id = 60, 40
                self._publishes(event.items)
            elif type(event) is events.AcksReceived:
                class_id, method_id = 60, 80
                self._acks(event.acks)
            elif type(event) is events.MethodReceived:
                method = event.method
                class_id, method_id = method.CLASS_ID, method.METHOD_ID
                work = session_methods.handler_of(type(method))(self, method)
                if work is not None:
                    self._busy = True
                    task = self.connection.spawn(self._run(work, class_id, method_id))
                    # One that was cancelled before it began has not awaited it.
                    task.add_done_callback(lambda _: work.close())
            elif type(event) is events.ChannelClosed:
                self.connection.channel_closed(self.channel)
        except errors.ProtocolError as error:
            self.fail(error, class_id, method_id)

    async def _run(self, work: Work, class_id: int, method_id: int) -> None:
        try:
            await work
        except errors.ProtocolError as error:
            self.fail(error, class_id, method_id)
        except Unavailable as error:
            self.fail(errors.InternalError(str(error)), class_id, method_id)
        self._busy = False
        while self._waiting and not self._busy and not self._ended:
            self._dispatch(self._waiting.popleft())
        if not self._busy:
            self.connection.gate.release(f"busy {self.channel}")
            self.connection.session_idle()
        self.connection.flush_now()

    @property
    def is_busy(self) -> bool:
        """Tell whether a slow method runs, with later events waiting for it."""
        return self._busy

    def fail(self, error: errors.ProtocolError, class_id: int, method_id: int) -> None:
        """Answer a broken rule: close the channel or the connection (R-CON-15)."""
        error.class_id = error.class_id or class_id
        error.method_id = error.method_id or method_id
        if isinstance(error, errors.HardError):
            self.connection.fail(error)
            return
        log.error(
            "channel error on connection %s channel %d: %s",
            self.connection.name,
            self.channel,
            error.text,
        )
        if any(type(event) is events.ChannelClosed for event in self._waiting):
            # The client has closed the channel already and waits for close-ok, nothing else.
            self.connection.channel_closed(self.channel)
            return
        self.connection.machine.fail(error, self.channel)
        self.connection.sessions.pop(self.channel, None)
        self.ended()

    def send(self, method: methods.Method) -> None:
        """Answer on this channel."""
        self.connection.machine.send(self.channel, method)
        self.connection.flush_soon()

    def ended(self) -> None:
        """The channel is gone: consumers end, unacked messages return (R-CH-5)."""
        if self._ended:
            return
        self._ended = True
        self._waiting.clear()
        self.connection.gate.release(f"busy {self.channel}")
        self.publisher.close()
        for consumer in self.consumers.values():
            self.broker.deliveries.remove(consumer.id)
        self.consumers.clear()
        self.groups.update(self.publisher.queue_uids)
        self._backlog.clear()
        command = queue_commands.encode_channel_down(
            self.broker.node, self.broker.incarnation, self.uid
        )
        for uid in self.groups:
            self.broker.send_to_queue(uid, command)

    # ---- publishing -------------------------------------------------------------------------

    def _publishes(self, items: list[tuple[bytes, bytes, bytes]]) -> None:
        """Handle a run of publishes: consecutive equal methods are one unit (hot-path rule 1)."""
        start, count = 0, len(items)
        self.published += count
        try:
            while start < count:
                payload = items[start][0]
                end = start + 1
                while end < count and items[end][0] == payload:
                    end += 1
                self._publish_run(payload, items[start:end] if start or end < count else items)
                start = end
        finally:
            self.publisher.flush()
            self._send_confirms()

    def _publish_run(self, payload: bytes, items: list[tuple[bytes, bytes, bytes]]) -> None:
        target = self._targets.get(payload)
        if target is None or target.revision != self.broker.topology_revision:
            target = self._resolve(payload)
        route = target.route
        result = target.result
        if result is not None and message_checks.all_plain(items):
            number = self._number(len(items))
            contents: list[Content] = [(route, item[1], item[2], b"") for item in items]
            self._route_known(target, result, contents, number)
            return
        for _, header, body in items:
            checked = message_checks.check(self.broker, self.connection, target.method, header)
            number = self._number(1)
            kept = message_annotations.encode(checked.annotations)
            content = (route, checked.header, body, kept)
            self._route_known(target, checked.result, [content], number)

    def _number(self, count: int) -> int:
        """Number publishes from 1 on (R-PC-1); those before confirm.select have no number."""
        return self.confirms.published(count) if self.confirms is not None else UNNUMBERED

    def _resolve(self, payload: bytes) -> PublishTarget:
        method = methods.BasicPublish.decode(payload)
        revision = self.broker.topology_revision
        result = message_checks.check_exchange(self.broker, self.connection, method)
        if len(self._targets) >= TARGETS_MAX:
            self._targets.clear()
        target = PublishTarget(method, revision, (method.exchange, method.routing_key), result)
        self._targets[payload] = target
        return target

    def _route_known(
        self, target: PublishTarget, result: RouteResult, contents: list[Content], number: int
    ) -> None:
        count = len(contents)
        queues = result.queues
        self.broker.counters.published(
            self.connection.vhost,
            self.connection.user,
            target.method.exchange,
            result,
            contents,
            target.method.mandatory,
        )
        if self.confirm_clock is not None:
            self.confirm_clock.published(number, count, target.method.exchange)
        if queues:
            if self.confirms is not None:
                self.confirms.expect(number, count, len(queues))
            self.publisher.add(queues, contents, number)
            return
        self.broker.unroutable(self.connection.vhost, target.method.exchange, result)
        if target.method.mandatory:
            # R-PUB-7: the return goes out before the confirm.
            for content in contents:
                self._return(target.method, content)
        if self.confirms is not None:
            self.confirms.expect(number, count, 0)

    def _return(self, method: methods.BasicPublish, content: Content) -> None:
        self.connection.machine.send_content(
            self.channel,
            methods.BasicReturn(312, "NO_ROUTE", method.exchange, method.routing_key),
            content[1],
            content[2],
        )

    def _published(self, outcomes: list[tuple[int, int, int]]) -> None:
        """A queue has answered."""
        if self.confirms is None or self._ended:
            return
        for first, count, accepted in outcomes:
            # Answers to publishes of before confirm.select may come after it.
            if first != UNNUMBERED:
                self.confirms.answered(first, count, accepted)
        self._send_confirms()

    def _send_confirms(self) -> None:
        if self.confirms is None or self._ended:
            return
        acks, nacks = self.confirms.take()
        if not acks and not nacks:
            return
        machine = self.connection.machine
        for tag, multiple in acks:
            machine.send(self.channel, methods.BasicAck(tag, multiple))
        for tag in nacks:
            machine.send(self.channel, methods.BasicNack(tag, False, False))
        if self.confirm_clock is not None:
            self.confirm_clock.confirmed(acks, nacks)
        self.connection.flush_soon()

    def _in_flight(self, size: int) -> None:
        if size > 0:
            self.connection.unconfirmed.take(size)
        else:
            self.connection.unconfirmed.give(-size)

    # ---- deliveries (Sink) ------------------------------------------------------------------

    def deliver(self, consumer: LocalConsumer, parts: Sequence[Part]) -> None:
        """Write these messages as basic.deliver frames, joined once per route (hot-path rule 5)."""
        if consumer.is_held or self._backlog or self.connection.write_paused_ms is not None:
            self._backlog.add(consumer, parts)
            return
        self._deliver(consumer, parts)

    def _deliver(self, consumer: LocalConsumer, parts: Sequence[Part]) -> None:
        machine = self.connection.machine
        total = total_bytes = total_redelivered = 0
        for run, contents in parts:
            redelivered = run.acquired_count > 0
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
                        (
                            _with_counts(content[1], run.acquired_count, run.delivery_count),
                            content[2],
                        )
                        for content in contents[start:end]
                    ]
                else:
                    items = [(content[1], content[2]) for content in contents[start:end]]
                machine.send_raw(encoder.frames(tag + start, redelivered, items))
                start = end
            if consumer.no_ack:
                self._auto_ack(consumer, run.first, run.length)
        self.broker.counters.delivered(
            self.connection.vhost, self.connection.user, total, total_bytes, total_redelivered
        )
        if total_bytes >= FLUSH_BYTES:
            # Written at once: only so it shows when the socket is full.
            self.connection.flush_now()
        else:
            self.connection.flush_soon()

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
            self._settle(queue_commands.Kind.SETTLE, holder, ranges)

    def writable(self, is_writable: bool) -> None:
        """The socket takes data again: what waited goes out, in order."""
        if not is_writable:
            return
        if self._auto_acks:
            self._settle_auto_acks()
        self._drain()

    def _drain(self) -> None:
        """Write what waited, until it is all or the socket is full again."""
        while self._backlog and self.connection.write_paused_ms is None and not self._ended:
            found = self._backlog.take()
            if found is None:
                return
            consumer, run, contents = found
            if contents is None:
                ranges = [(run.first, run.first + run.length)]
                self._give_back(consumer, ranges)
                continue
            self._deliver(consumer, [(run, contents)])
            self.connection.flush_now()

    def _give_back(self, consumer: LocalConsumer, ranges: list[Range]) -> None:
        cause = queue_commands.ReturnCause.RECOVER
        self._settle(queue_commands.Kind.RETURN, (consumer.uid, consumer.id), ranges, cause)

    def unwritten_returns(self, consumer: LocalConsumer) -> None:
        """The client has cancelled: what it has not been sent goes back (R-CS-3)."""
        ranges = self._backlog.drop(consumer)
        if ranges:
            self._give_back(consumer, sorted(ranges))

    def consumer_cancelled(self, consumer: LocalConsumer, cause: str) -> None:
        """R-CS-6: tell clients that can be told."""
        self.consumers.pop(consumer.id.tag, None)
        self._backlog.drop(consumer)
        self.unacked.silence((consumer.uid, consumer.id))
        log.info("consumer %s cancelled: %s", consumer.id.tag, cause)
        if self.connection.machine.client_has("consumer_cancel_notify"):
            self.send(methods.BasicCancel(consumer.id.tag, True))

    def held(self, consumer: LocalConsumer) -> list[Range]:
        """Return the unsettled numbers of a consumer."""
        holder = (consumer.uid, consumer.id)
        held = self.unacked.numbers_of(holder) + self._auto_acks.get(holder, [])
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
        run, content = got.run, got.content
        tag = self.unacked.delivered((uid, holder), run.first, 1, no_ack)
        header = content[1]
        queue = self.broker.queue_of(uid)
        if run.acquired_count and queue is not None and queue.type == "quorum":
            header = _with_counts(header, run.acquired_count, run.delivery_count)
        (exchange, routing_key), _, body, _ = content
        method = methods.BasicGetOk(
            tag, run.acquired_count > 0, exchange, routing_key, got.ready_count
        )
        self.connection.machine.send_content(self.channel, method, header, body)
        self.connection.flush_soon()

    # ---- settlements ------------------------------------------------------------------------

    def _acks(self, acks: list[tuple[int, bool]]) -> None:
        settled, error = self.unacked.acks(acks)
        self._settle_all(queue_commands.Kind.SETTLE, settled)
        if error is not None:
            raise errors.PreconditionFailed(str(error))

    def settle_tag(
        self, kind: queue_commands.Kind, tag: int, multiple: bool, cause: int = 0
    ) -> None:
        """basic.nack and basic.reject (R-ACK-2..6)."""
        try:
            settled = self.unacked.ack(tag, multiple)
        except unacked.UnknownDeliveryTag as error:
            raise errors.PreconditionFailed(str(error)) from error
        self._settle_all(kind, settled, cause)

    def recover(self) -> None:
        """basic.recover(requeue=true): everything returns (R-ACK-7)."""
        cause = queue_commands.ReturnCause.RECOVER
        self._settle_all(queue_commands.Kind.RETURN, self.unacked.take_all(), cause)

    def _settle_all(
        self, kind: queue_commands.Kind, by_holder: dict[Holder, list[Range]], cause: int = 0
    ) -> None:
        for holder, ranges in by_holder.items():
            self._settle(kind, holder, ranges, cause)

    def _settle(
        self, kind: queue_commands.Kind, holder: Holder, ranges: list[Range], cause: int = 0
    ) -> None:
        uid, consumer_id = holder
        command = queue_commands.encode_ranges(kind, consumer_id, ranges, cause)
        self.broker.send_to_queue(uid, command)


def _with_counts(header: bytes, acquired: int, delivery: int) -> bytes:
    """R-DL-4: x-acquired-count and x-delivery-count from the second delivery on."""
    table = dict(properties.headers(header))
    table["x-acquired-count"] = acquired
    if delivery:
        table["x-delivery-count"] = delivery
    return properties.with_headers(header, table)
