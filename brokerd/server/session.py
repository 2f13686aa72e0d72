"""One AMQP channel: its events in order, its publishes and their confirms (the outward half).

Deliveries and settlements are in channel_deliveries.py, declares, binds and other methods that need
an answer of the cluster in session_methods.py; while one of them runs, later events of the channel
wait in order (a channel is sequential).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.amqp import errors, events, methods
from brokerd.core import confirms, queue_commands
from brokerd.core.message import Content
from brokerd.server import (
    immediate,
    message_checks,
    reply_to,
    rerouting,
    session_methods,
    transactions,
)
from brokerd.server.catalog_writer import Unavailable
from brokerd.server.channel_deliveries import FLUSH_BYTES, ChannelDeliveries
from brokerd.server.publishing import UNNUMBERED, Publisher

if TYPE_CHECKING:
    from brokerd.core.router import RouteResult
    from brokerd.server.broker import Broker
    from brokerd.server.connection import ClientConnection
    from brokerd.telemetry.counters import ConfirmClock, Routed

log = logging.getLogger(__name__)

#: How many different publish methods (exchange, routing key, flags) a channel remembers.
TARGETS_MAX = 1024

Work = Coroutine[Any, Any, None]


@dataclass(slots=True)
class PublishTarget:
    """A publish method's payload, parsed, checked and routed; good for one topology revision."""

    method: methods.BasicPublish
    revision: int
    route: tuple[str, str]
    #: None: the exchange needs the headers to route.
    result: RouteResult | None
    #: Pseudo queues of direct reply-to that the key names (R-DRT-3).
    replies: tuple[str, ...] = ()


class Session(ChannelDeliveries):
    """A channel's state.

    Invariant: `_waiting` is empty unless `_busy`; `consumers` holds what the client knows by tag.
    """

    def __init__(self, broker: Broker, connection: ClientConnection, channel: int) -> None:
        super().__init__(broker, connection, channel)
        self.confirms: confirms.Confirms | None = None
        #: Counts and times the confirms for telemetry; set together with `confirms`.
        self.confirm_clock: ConfirmClock | None = None
        #: The consumer of the pseudo queue, once there is one (R-DRT-1).
        self.reply_consumer: reply_to.ReplyConsumer | None = None
        #: Name of the queue last declared, for the empty name (R-CH-10).
        self.last_queue = ""
        #: Groups with a consumer, a basic.get or an enqueuer of this channel: told when it ends.
        self.groups: set[int] = set()
        self.published = 0
        self._busy = False
        self._waiting: deque[events.Event] = deque()
        self._targets: dict[bytes, PublishTarget] = {}
        self.publisher = Publisher(
            broker.groups,
            broker.node,
            broker.incarnation,
            self.uid,
            self._published,
            self._in_flight,
            farewell=self.farewell,
        )

    # ---- events in order --------------------------------------------------------------------

    def handle(self, event: events.Event) -> None:
        """Take one event; it waits while a slow method of this channel runs."""
        if self._ended:
            return
        if self._busy:
            if self.tx is not None and self.tx.is_committing:
                self._during_commit(event)
                return
            self._waiting.append(event)
            # The events hold what one read brought; a client that goes on and on is not read.
            self.connection.gate.hold(f"busy {self.channel}")
            return
        self._dispatch(event)

    def _during_commit(self, event: events.Event) -> None:
        """R-CH-9: only the end of the channel is expected."""
        if type(event) is events.ChannelClosed:
            self.connection.channel_closed(self.channel)
            return
        ids = {events.PublishesReceived: (60, 40), events.AcksReceived: (60, 80)}.get(type(event))
        if type(event) is events.MethodReceived:
            ids = (event.method.CLASS_ID, event.method.METHOD_ID)
        fault = errors.ChannelFault("unexpected command while processing 'tx.commit'")
        self.fail(fault, *(ids or (0, 0)))

    def _dispatch(self, event: events.Event) -> None:
        class_id = method_id = 0
        try:
            if type(event) is events.PublishesReceived:
                class_id, method_id = 60, 40
                self._publishes(event.items)
                return
            # A get, say, finds what the channel published before.
            self.publisher.flush()
            if type(event) is events.AcksReceived:
                class_id, method_id = 60, 80
                self._acks(event.acks)
            elif type(event) is events.MethodReceived:
                method = event.method
                class_id, method_id = method.CLASS_ID, method.METHOD_ID
                work = session_methods.handler_of(type(method))(self, method)
                if work is not None:
                    self._start(work, class_id, method_id)
            elif type(event) is events.ChannelClosed:
                self.connection.channel_closed(self.channel)
        except errors.ProtocolError as error:
            self.fail(error, class_id, method_id)

    def _start(self, work: Work, class_id: int, method_id: int) -> None:
        """Let the channel's later events wait for this."""
        self._busy = True
        task = self.connection.spawn(self._run(work, class_id, method_id))
        # One that was cancelled before it began has not awaited it.
        task.add_done_callback(lambda _: work.close())

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
        return self._busy and not (self.tx is not None and self.tx.is_committing)

    @property
    def has_ended(self) -> bool:
        """Tell whether the channel is gone."""
        return self._ended

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
        self.connection.flush_soon()
        self.connection.sessions.pop(self.channel, None)
        self.ended()

    def ended(self) -> None:
        """The channel is gone: consumers end, unacked messages return (R-CH-5)."""
        if self._ended:
            return
        self._ended = True
        self.broker.connections.channel_closed(self.connection.user)
        self._waiting.clear()
        self.connection.gate.release(f"busy {self.channel}")
        self.publisher.close()
        if self.tx is not None:
            self.tx.abandon()
        if self.reply_consumer is not None:
            self.broker.replies.close(self.uid)
        for consumer in self.consumers.values():
            self.broker.deliveries.remove(consumer.id)
        self.consumers.clear()
        self._backlog.clear()
        command = queue_commands.encode_channel_down(
            self.broker.node, self.broker.incarnation, self.uid
        )
        self.publisher.leave(command, self.groups)

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
                target = self._targets.get(payload)
                if target is None or target.revision != self.broker.topology_revision:
                    target = self._resolve(payload)
                run = items[start:end] if start or end < count else items
                start = end
                if target.method.immediate:
                    self._ask_first(target, run, items[end:])
                    break
                self._publish_run(target, run)
        finally:
            self.publisher.offer()
            self._send_confirms()

    def _ask_first(
        self,
        target: PublishTarget,
        run: list[tuple[bytes, bytes, bytes]],
        rest: list[tuple[bytes, bytes, bytes]],
    ) -> None:
        """R-AE-15: the queues are asked before anything is sent; the rest waits for that."""
        if rest:
            self.published -= len(rest)
            self._waiting.appendleft(events.PublishesReceived(self.channel, rest))
        self._start(immediate.publish(self, target, run), 60, 40)

    def _publish_run(self, target: PublishTarget, items: list[tuple[bytes, bytes, bytes]]) -> None:
        route = target.route
        result = target.result
        if result is not None and message_checks.all_plain(items):
            contents: list[Content] = [(route, item[1], item[2], b"") for item in items]
            self._route_known(target, result, contents, target.replies)
            return
        for _, header, body in items:
            checked = self.check(target, header)
            kept = self.broker.annotate(checked.annotations)
            content = (route, checked.header, body, kept)
            self._route_known(target, checked.result, [content], checked.replies)

    def check(self, target: PublishTarget, header: bytes) -> message_checks.Checked:
        """Look at one message's properties and route it."""
        reply = self.reply_consumer
        return message_checks.check(
            self.broker,
            self.connection,
            target.method,
            header,
            None if reply is None else reply.queue,
        )

    def _resolve(self, payload: bytes) -> PublishTarget:
        method = methods.BasicPublish.decode(payload)
        revision = self.broker.topology_revision
        result = message_checks.check_exchange(self.broker, self.connection, method)
        if len(self._targets) >= TARGETS_MAX:
            self._targets.clear()
        route = (method.exchange, method.routing_key)
        replies = message_checks.replies_of(*route)
        target = PublishTarget(method, revision, route, result, replies)
        self._targets[payload] = target
        return target

    def _route_known(
        self,
        target: PublishTarget,
        result: RouteResult,
        contents: list[Content],
        replies: tuple[str, ...],
    ) -> None:
        """Send a run of checked messages, or keep it for the commit of the transaction."""
        if self.tx is not None:
            self.tx.publish(transactions.Publish(target, result, contents, replies))
            return
        tracker = self.confirms
        # R-PC-1: from 1 on; those before confirm.select have no number.
        number = UNNUMBERED if tracker is None else tracker.published(len(contents))
        self.send_out(target, result, contents, number, replies, tracker)

    def send_out(
        self,
        target: PublishTarget,
        result: RouteResult,
        contents: list[Content],
        number: int,
        replies: tuple[str, ...],
        tracker: confirms.Confirms | None,
        *,
        is_refused: bool = False,
    ) -> None:
        """Hand a run to its queues; `tracker` awaits their answers under `number`.

        is_refused: no queue can deliver at once, and the client wants to know (R-AE-15).
        """
        if replies:
            reply_to.publish(self, target, result, contents, number, replies, tracker)
            return
        count = len(contents)
        queues = result.queues
        if result.alternates:
            contents = rerouting.noted(self.broker, contents)
        self.count_published(target, result, contents, number)
        if queues:
            if tracker is not None:
                tracker.expect(number, count, len(queues))
            self.publisher.add(queues, contents, number)
            return
        self.broker.unroutable(self.connection.vhost, target.method.exchange, result)
        if target.method.mandatory or is_refused:
            # R-PUB-7: the return goes out before the confirm.
            reason = (313, "NO_CONSUMERS") if is_refused else (312, "NO_ROUTE")
            for content in contents:
                self.send_return(target.method, content, *reason)
        if tracker is not None:
            tracker.expect(number, count, 0)

    def count_published(
        self, target: PublishTarget, result: Routed, contents: list[Content], number: int
    ) -> None:
        """Tell telemetry, and the firehose if it is on."""
        self.broker.counters.published(
            self.connection.vhost,
            self.connection.user,
            target.method.exchange,
            result,
            contents,
            target.method.mandatory,
        )
        if self.confirm_clock is not None:
            self.confirm_clock.published(number, len(contents), target.method.exchange)
        tracer = self.broker.tracer
        if tracer.is_on:
            tracer.published(self.connection, self.channel, result.queues, contents)

    def send_return(
        self, method: methods.BasicPublish, content: Content, code: int, text: str
    ) -> None:
        """Give a message back (R-PUB-7)."""
        self.connection.machine.send_content(
            self.channel,
            methods.BasicReturn(code, text, method.exchange, method.routing_key),
            content[1],
            content[2],
        )
        self.connection.flush_soon()

    def _published(self, outcomes: list[tuple[int, int, int]]) -> None:
        """A queue has answered."""
        tracker = self.confirms if self.tx is None else self.tx
        if tracker is None or self._ended:
            return
        for first, count, accepted in outcomes:
            # Answers to publishes of before confirm.select (or tx.select) may come after it.
            if first != UNNUMBERED:
                tracker.answered(first, count, accepted)
        self._send_confirms()

    def reply_taken(self, number: int) -> None:
        """A pseudo queue has answered: taken over, or nobody is there any more."""
        self._published([(number, 1, 1)])

    def deliver_reply(self, content: Content) -> bool:
        """R-DRT-3 (reply_to.Sink): at most once, so a client that does not read loses some."""
        consumer = self.reply_consumer
        connection = self.connection
        limit = 2 * self.broker.config.limits.write_buffer_bytes
        if consumer is None or self._ended or connection.untaken_bytes > limit:
            return False
        (exchange, routing_key), header, body, _ = content
        tag = self.unacked.next_tag
        self.unacked.next_tag = tag + 1
        method = methods.BasicDeliver(consumer.tag, tag, False, exchange, routing_key)
        connection.machine.send_content(self.channel, method, header, body)
        self.broker.counters.delivered(connection.vhost, connection.user, 1, len(body), 0)
        if len(body) >= FLUSH_BYTES:
            connection.flush_now()
        else:
            connection.flush_soon()
        return True

    def _send_confirms(self) -> None:
        if not self.confirms or self._ended:
            return
        acks, nacks = self.confirms.take()
        machine = self.connection.machine
        for tag, multiple in acks:
            machine.send(self.channel, methods.BasicAck(tag, multiple))
        for tag in nacks:
            machine.send(self.channel, methods.BasicNack(tag, False, False))
        self.connection.flush_soon()
        if self.confirm_clock is not None:
            # Counted once they are on their way.
            count = partial(self.confirm_clock.confirmed, acks, nacks)
            self.broker.host.call_after_flush(count)

    def _in_flight(self, size: int) -> None:
        if size > 0:
            self.connection.unconfirmed.take(size)
        else:
            self.connection.unconfirmed.give(-size)
