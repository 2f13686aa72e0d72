"""One AMQP channel: its events in order, its publishes and their confirms (the outward half).

Deliveries and settlements are in channel_deliveries.py, declares, binds and other methods that need
an answer of the cluster in session_methods.py; while one of them runs, later events of the channel
wait in order (a channel is sequential).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.amqp import errors, events, methods
from brokerd.core import confirms
from brokerd.core.message import Content
from brokerd.core.queue import queue_commands
from brokerd.server.amqp import immediate, session_consumers, session_methods, transactions
from brokerd.server.amqp.channel_deliveries import FLUSH_BYTES, ChannelDeliveries
from brokerd.server.amqp.getting import Getting
from brokerd.server.catalog.catalog_writer import Damaged, Unavailable
from brokerd.server.messages import message_checks, reply_to
from brokerd.server.messages.pipeline import Checked, Pipeline, Target
from brokerd.server.messages.publishing import UNNUMBERED, Credit, Publisher

if TYPE_CHECKING:
    from brokerd.core.catalog.router import RouteResult
    from brokerd.server.amqp.connection import ClientConnection
    from brokerd.server.amqp.ports import ChannelServices
    from brokerd.telemetry.counters import ConfirmClock

log = logging.getLogger(__name__)

#: How many different publish methods (exchange, routing key, flags), and gets, a channel remembers.
TARGETS_MAX = 1024

Work = Coroutine[Any, Any, None]


class Session(ChannelDeliveries):
    """A channel's state.

    Invariant: `_waiting` is empty unless `_busy`; `consumers` holds what the client knows by tag.
    """

    def __init__(
        self, services: ChannelServices, connection: ClientConnection, channel: int
    ) -> None:
        super().__init__(services, connection, channel)
        #: Makes and deletes objects for this client, and notes who did.
        self.objects = services.objects.by(connection.author)
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
        #: Queues that gets were allowed on, by name and whether they settle at once.
        self.gettings: dict[tuple[str, bool], Getting] = {}
        self._getting: Getting | None = None
        self._waiting: deque[events.Event] = deque()
        #: Publish methods that were allowed, and where they go.
        self.targets: dict[bytes, Target] = {}
        self.publisher = Publisher(
            services.queues.groups,
            services.identity.node,
            services.identity.incarnation,
            self.uid,
            self.answered,
            self._in_flight,
            channel_close=self.channel_close,
            credit=Credit(connection.gate, services.on_way),
        )
        self.pipeline = Pipeline(
            services.messages, services.replies, connection, self.publisher, self, self.totals
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
                return
            if type(event) is events.MethodReceived:
                method = event.method
                class_id, method_id = method.CLASS_ID, method.METHOD_ID
                if type(method) is not methods.BasicGet:
                    # A get takes them along.
                    self.send_got_acks()
                work = session_methods.handler_of(type(method))(self, method)
                if work is not None:
                    self._start(work, class_id, method_id)
            elif type(event) is events.ChannelClosed:
                self.send_got_acks()
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
        except Damaged as damage:
            # As RabbitMQ answers where the member of a classic queue is down: the other channels
            # of the connection have nothing to do with this queue.
            self.fail(errors.NotFound(str(damage)), class_id, method_id)
        except Unavailable as absence:
            self.fail(errors.InternalError(str(absence)), class_id, method_id)
        self._go_on()
        self.connection.flush_now()

    def _go_on(self) -> None:
        """A slow method is done: take what has waited for it."""
        self._busy = False
        while self._waiting and not self._busy and not self._ended:
            self._dispatch(self._waiting.popleft())
        if not self._busy:
            if self.connection.gate.is_held:
                self.connection.gate.release(f"busy {self.channel}")
            self.connection.session_idle()

    def get(self, name: str, no_ack: bool) -> None:
        """Ask for a message; the channel's later events wait for the answer."""
        getting = self.gettings.get((name, no_ack))
        if getting is None or not getting.is_good:
            queue = session_consumers.use_queue(self, name)
            self.groups.add(queue.uid)
            if len(self.gettings) >= TARGETS_MAX:
                self.gettings.clear()
            getting = self.gettings[name, no_ack] = Getting(self, queue, no_ack)
        self.send_got_acks()
        self._busy = True
        self._getting = getting
        getting.ask()

    def slow_is_over(self) -> None:
        """The get has its answer."""
        self._getting = None
        self._go_on()
        self.connection.flush_soon()

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
        if self._ended:
            # A slow method fails for what its channel was closed for meanwhile.
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
        if self._getting is not None:
            self._getting.withdraw()
        self.send_got_acks()
        self.connection.channel_ended(self.channel)
        self._waiting.clear()
        self.gettings.clear()
        self.connection.gate.release(f"busy {self.channel}")
        self.publisher.close()
        if self.tx is not None:
            self.tx.abandon()
        if self.reply_consumer is not None:
            self.services.replies.close(self.uid)
        for consumer in self.consumers.values():
            self.services.deliveries.remove(consumer.id)
        self.consumers.clear()
        self._backlog.clear()
        identity = self.services.identity
        command = queue_commands.encode_channel_down(identity.node, identity.incarnation, self.uid)
        self.publisher.leave(command, self.groups)

    # ---- publishing -------------------------------------------------------------------------

    def _publishes(self, items: list[tuple[bytes, bytes, bytes]]) -> None:
        """Handle a run of publishes: equal methods in a row are one unit (hot-path.md rule 1)."""
        start, count = 0, len(items)
        self.published += count
        try:
            while start < count:
                payload = items[start][0]
                end = start + 1
                while end < count and items[end][0] == payload:
                    end += 1
                target = self.targets.get(payload)
                if target is None or target.revision != self.catalog.topology_revision:
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
        target: Target,
        run: list[tuple[bytes, bytes, bytes]],
        rest: list[tuple[bytes, bytes, bytes]],
    ) -> None:
        """R-AE-15: the queues are asked before anything is sent; the rest waits for that."""
        if rest:
            self.published -= len(rest)
            self._waiting.appendleft(events.PublishesReceived(self.channel, rest))
        self._start(immediate.publish(self, target, run), 60, 40)

    def _publish_run(self, target: Target, items: list[tuple[bytes, bytes, bytes]]) -> None:
        route = target.route
        result = target.result
        if result is not None and message_checks.all_plain(items):
            contents: list[Content] = [(route, item[1], item[2], b"") for item in items]
            self._route_known(target, result, contents, target.replies)
            return
        for _, header, body in items:
            content, result, replies = self.check(target, header, body)
            self._route_known(target, result, [content], replies)

    def check(self, target: Target, header: bytes, body: bytes) -> Checked:
        """Look at one message's properties and route it."""
        reply = self.reply_consumer
        reply_name = None if reply is None else reply.queue
        return self.pipeline.check(target, header, body, reply_name)

    def _resolve(self, payload: bytes) -> Target:
        method = methods.BasicPublish.decode(payload)
        target = self.pipeline.resolve(method, self.catalog.topology_revision)
        if len(self.targets) >= TARGETS_MAX:
            self.targets.clear()
        self.targets[payload] = target
        return target

    def _route_known(
        self,
        target: Target,
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
        target: Target,
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
        tracer = self.tracer
        if tracer.is_on:
            queues = (*result.queues, *replies)
            tracer.published(self.connection, self.channel, queues, contents)
        clock = self.confirm_clock
        self.pipeline.send(
            target.method, result, contents, number, replies, tracker, clock, is_refused
        )

    def returned(
        self,
        method: methods.BasicPublish,
        contents: Sequence[Content],
        first: int,
        why: tuple[int, str],
    ) -> None:
        """Give messages back (R-PUB-7)."""
        if self._ended:
            return
        back = methods.BasicReturn(*why, method.exchange, method.routing_key)
        for content in contents:
            self.connection.machine.send_content(self.channel, back, content[1], content[2])
        self.connection.flush_soon()

    def answered(self, outcomes: list[tuple[int, int, int]]) -> None:
        """A queue has answered."""
        tracker = self.confirms if self.tx is None else self.tx
        if tracker is None or self._ended:
            return
        for first, count, accepted in outcomes:
            # Answers to publishes of before confirm.select (or tx.select) may come after it.
            if first != UNNUMBERED:
                tracker.answered(first, count, accepted)
        self._send_confirms()

    def deliver_reply(self, content: Content) -> bool:
        """R-DRT-3 (reply_to.Sink): at most once, so a client that does not read loses some."""
        consumer = self.reply_consumer
        connection = self.connection
        limit = 2 * self.services.config.limits.write_buffer_bytes
        if consumer is None or self._ended or connection.untaken_bytes > limit:
            return False
        (exchange, routing_key), header, body, _ = content
        tag = self.unacked.next_tag
        self.unacked.next_tag = tag + 1
        method = methods.BasicDeliver(consumer.tag, tag, False, exchange, routing_key)
        connection.machine.send_content(self.channel, method, header, body)
        self.counters.delivered(connection.vhost, connection.user, 1, len(body), 0)
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
            self.connection.call_after_flush(count)

    def _in_flight(self, size: int) -> None:
        if size > 0:
            self.connection.unconfirmed.take(size)
        else:
            self.connection.unconfirmed.give(-size)
