"""One AMQP channel's outward half: publishes and their confirms.

The base of session.py's `Session`, and what the functions of its methods (session_methods.py,
session_consumers.py, session_transactions.py) work on; no other module uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from brokerd.amqp import methods
from brokerd.core import confirms
from brokerd.core.message import Content
from brokerd.server.amqp import transactions
from brokerd.server.amqp.channel_connection import ChannelConnection
from brokerd.server.amqp.channel_deliveries import FLUSH_BYTES, ChannelDeliveries
from brokerd.server.messages import message_checks, reply_to
from brokerd.server.messages.pipeline import Checked, Pipeline, Target
from brokerd.server.queues.stream import UNNUMBERED

if TYPE_CHECKING:
    from brokerd.core.catalog.router import RouteResult
    from brokerd.server.amqp.ports import ChannelServices
    from brokerd.telemetry.counters import ConfirmClock

#: How many different publish methods (exchange, routing key, flags), and gets, a channel remembers.
TARGETS_MAX = 1024


class ChannelPublishes(ChannelDeliveries):
    """What a channel has published and how it is answered; `consumers` holds what the client knows
    by tag.
    """

    def __init__(
        self, services: ChannelServices, connection: ChannelConnection, channel: int
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
        #: Publish methods that were allowed, and where they go.
        self.targets: dict[bytes, Target] = {}
        self.pipeline = Pipeline(
            services.messages, services.replies, connection, self.stream, self, self.totals
        )

    # ---- publishing -------------------------------------------------------------------------

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
