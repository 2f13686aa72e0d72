"""One AMQP channel: its events in order, and its end.

Its publishes are in channel_publishes.py, its deliveries in channel_deliveries.py, declares, binds
and other methods that need an answer of the cluster in session_methods.py.  While one of them runs,
later events of the channel wait in order (a channel is sequential).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from brokerd.amqp import errors, events, methods
from brokerd.core.queue.effects import ConsumerId
from brokerd.server.amqp import immediate, session_consumers, session_methods
from brokerd.server.amqp.channel_connection import ChannelConnection
from brokerd.server.amqp.channel_publishes import TARGETS_MAX, ChannelPublishes
from brokerd.server.amqp.getting import Getting
from brokerd.server.catalog.catalog_writer import QueueStuck, Unavailable
from brokerd.server.messages.pipeline import Target

if TYPE_CHECKING:
    from brokerd.server.amqp.ports import ChannelServices

log = logging.getLogger(__name__)

Work = Coroutine[Any, Any, None]

#: What looks at a queue, which may be the one that the channel's dead letters go to.
_LOOKS = frozenset(
    {methods.BasicGet, methods.QueueDeclare, methods.QueuePurge, methods.QueueDelete}
)
#: How long it waits for them: a queue without a leader holds the others up no longer.
LETTERS_WAIT_S = 1.0


class Session(ChannelPublishes):
    """A channel's state.

    Invariant: `_waiting` is empty unless `_busy`, which it is while `_looking` is set; `consumers`
    holds what the client knows by tag.
    """

    def __init__(
        self, services: ChannelServices, connection: ChannelConnection, channel: int
    ) -> None:
        super().__init__(services, connection, channel)
        self._busy = False
        #: Queues that gets were allowed on, by name and whether they settle at once.
        self.gettings: dict[tuple[str, bool], Getting] = {}
        self._getting: Getting | None = None
        #: This channel, to queues that it has got messages from and not settled at once.
        self.getter: ConsumerId | None = None
        self._waiting: deque[events.Event] = deque()
        #: A method that waits for the channel's own dead letters, and how long it does at most.
        self._looking: tuple[events.MethodReceived, asyncio.TimerHandle] | None = None

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

    def _dispatch(self, event: events.Event, *, has_waited: bool = False) -> None:
        class_id = method_id = 0
        try:
            if type(event) is events.PublishesReceived:
                class_id, method_id = 60, 40
                self._publishes(event.items)
                return
            # A get, say, finds what the channel published before.
            self.stream.flush()
            if type(event) is events.AcksReceived:
                class_id, method_id = 60, 80
                self._acks(event.acks)
                return
            if type(event) is events.MethodReceived:
                method = event.method
                class_id, method_id = method.CLASS_ID, method.METHOD_ID
                if self.discards and not has_waited and type(method) in _LOOKS:
                    self._wait_for_letters(event)
                    return
                if type(method) is methods.BasicGet:
                    # R-CS-8; it takes the acks of earlier ones along.
                    self._get(session_consumers.named(self, method.queue), method.no_ack)
                    return
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
        except QueueStuck as damage:
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

    def _wait_for_letters(self, event: events.MethodReceived) -> None:
        """What the channel has rejected is in its dead letter queue when it looks there.

        As far as one member can tell: what a leader elsewhere sends to a third member may be on its
        way still.  Letters that go at least once take their time (R-ALO-4).
        """
        self._busy = True
        timer = asyncio.get_running_loop().call_later(LETTERS_WAIT_S, self._look_at_last)
        self._looking = event, timer

    def letters_sent(self) -> None:
        if not self.discards:
            self._look()

    def _look_at_last(self) -> None:
        self.give_up_discards()
        self._look()

    def _look(self) -> None:
        looking, self._looking = self._looking, None
        if looking is None:
            return
        event, timer = looking
        timer.cancel()
        self._busy = False
        self._dispatch(event, has_waited=True)
        if not self._busy:
            self._go_on()
        self.connection.flush_soon()

    def _get(self, name: str, no_ack: bool) -> None:
        """Ask for a message; the channel's later events wait for the answer."""
        getting = self.gettings.get((name, no_ack))
        if getting is None or not getting.is_good:
            queue = session_consumers.use_queue(self, name)
            self.groups.add(queue.uid)
            if len(self.gettings) >= TARGETS_MAX:
                self.gettings.clear()
            getting = self.gettings[name, no_ack] = Getting(self, queue, no_ack)
            if not no_ack:
                self.getter = getting.holder[1]
                self.services.deliveries.add_getter(self.getter, self.timed_out)
        settled = self.take_got_acks(getting.holder)
        self._busy = True
        self._getting = getting
        getting.ask(settled)

    def slow_is_over(self) -> None:
        """The get has its answer."""
        self._getting = None
        self._go_on()
        self.connection.flush_soon()

    @property
    def is_busy(self) -> bool:
        """Tell whether a slow method runs, with later events waiting for it."""
        return self._busy and not (self.tx is not None and self.tx.is_committing)

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
        log.log(
            self.connection.fault_level,
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
        self.connection.channel_failed(self.channel)
        self.ended()

    def ended(self) -> None:
        """The channel is gone: consumers end, unacked messages return (R-CH-5)."""
        if self._ended:
            return
        self._ended = True
        if self._getting is not None:
            self._getting.withdraw()
        if self._looking is not None:
            self._looking[1].cancel()
            self._looking = None
        self.send_got_acks()
        self.connection.channel_ended(self.channel)
        self._waiting.clear()
        self.gettings.clear()
        self.connection.gate.release(f"busy {self.channel}")
        self.stream.close()
        written = self.written()
        if self.tx is not None:
            self.tx.abandon()
        if self.reply_consumer is not None:
            self.services.replies.close(self.uid)
        if self.getter is not None:
            self.services.deliveries.remove_getter(self.getter)
        for consumer in self.consumers.values():
            self.services.deliveries.remove(consumer.id)
        self.consumers.clear()
        self._backlog.clear()
        self.stream.leave({uid: written.get(uid, {}) for uid in self.groups})

    # ---- publishes --------------------------------------------------------------------------

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
            self.stream.offer()
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
