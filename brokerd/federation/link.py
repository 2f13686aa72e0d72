"""The shell of one link: executes what `FederationLink` says, reports back what happened.

One task per link owns its session.  Deliveries and answers of the destination are handled in
callbacks, without waiting; everything that waits is in `_session`.  Decisions are in
`link_state.py`, what differs between kinds of links in their `ends.Ends`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any

from brokerd.amqp import events, methods, spec
from brokerd.federation import link_events, link_state, upstream_side
from brokerd.federation.client import Channel, Connection
from brokerd.federation.ends import Ends, Intake, Peer, Session
from brokerd.federation.errors import (
    ChannelClosed,
    ClientError,
    ConnectionLost,
    FederationError,
)
from brokerd.federation.link_state import Definition
from brokerd.federation.ports import Host, Publisher
from brokerd.federation.upstream import Address

log = logging.getLogger(__name__)

#: States that are warned of.
_ALARMING = (link_state.State.ERROR, link_state.State.UNROUTABLE)
#: A removed link tries this long to clean up on its upstream.
CLEAN_UP_TIMEOUT_S = 10.0


class Link:
    """One link.  Owns its task, its session's connection to the source and its publisher.

    In one piece: it is the shell of one machine (link_state.py), which decides; half of the methods
    are the table of its actions, and what is left is the life of one session.
    """

    def __init__(self, link_id: str, definition: Definition, ends: Ends, host: Host) -> None:
        self.id = link_id
        self.machine = link_state.FederationLink(
            definition, ends.passage, ends.ends_after, drops_unroutable=ends.drops_unroutable
        )
        self._definition = definition
        self._ends = ends
        self._host = host
        self._random = random.Random()
        self._peer: Peer | None = None
        self._channel: Channel | None = None
        self._publisher: Publisher | None = None
        #: Something for the session's task to look at: the source, the alarm, a closed channel.
        self._woken = asyncio.Event()
        self._consume_wanted = False
        self._is_consuming = False
        self._consumer_tag = ""
        #: Of the demand that is waited for, with the consumer in place.
        self._demand_timer: asyncio.TimerHandle | None = None
        #: Of the next try to publish what came back.
        self._route_timer: asyncio.TimerHandle | None = None
        self._session_error: ClientError | None = None
        self._next: link_events.Connect | None = None
        self._cleans_up = False
        self._is_finished = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; the link runs until `stop`."""
        self._handle(link_events.Started(_now_ms()))
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"link {self.id}")

    async def stop(self, is_removed: bool) -> None:
        """End the link; is_removed: its definition is gone or changed (R-FX-17)."""
        self._tell(link_events.StopRequested(_now_ms(), is_removed))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._cleans_up:
            await self._clean_up()
        await self._end_session()

    def same_definition(self, definition: Definition) -> None:
        """The definition as it is now: equal, but its authorities may be others."""
        assert definition == self._definition
        self._definition = definition

    def source_changed(self) -> None:
        """What the source follows (bindings, say) is perhaps different now."""
        self._ends.source.changed()
        self._woken.set()

    def alarm_changed(self, reason: str) -> None:
        """R-ALM-9."""
        self._tell(link_events.AlarmChanged(_now_ms(), reason))

    def row(self) -> dict[str, Any]:
        """Return status and figures, for listings and telemetry (R-FED-6)."""
        return {
            "id": self.id,
            "node": self._host.node,
            **self.machine.status(),
            **self.machine.overview(),
            **self._ends.source.figures(),
        }

    # The task.

    async def _run(self) -> None:
        while self._next is not None:
            wanted, self._next = self._next, None
            if wanted.delay_ms:
                await asyncio.sleep(wanted.delay_ms / 1000)
            error = "the link failed"
            try:
                await self._session()
            except (FederationError, ConnectionLost) as failure:
                error = str(failure)
            except Exception as failure:
                # A defect of ours, or an upstream of unforeseen conduct: the link tries again,
                # local traffic goes on (R-FED-6).
                log.exception("%s %s failed", self._ends.title.lower(), self.id)
                error = f"{type(failure).__name__}: {failure}"
            await self._end_session()
            if self._is_finished:
                self._ends.finished()
                return
            before = self.machine.state
            last_error = self.machine.error
            self._handle(link_events.Failed(_now_ms(), error))
            if before is not self.machine.state or last_error != self.machine.error:
                self._report(None)

    async def _session(self) -> None:
        """Connect, prepare both ends, serve until something fails."""
        self._session_error = None
        peer = await self._connect_source()
        self._handle(
            link_events.Connected(
                _now_ms(),
                peer.address.shown,
                peer.cluster,
                peer.vhost,
                peer.connection.local_name,
            )
        )
        number = self.machine.session
        channel = self._channel = await peer.connection.open_channel()

        def ended(error: ClientError) -> None:
            self._session_failed(number, error)

        def watch(watched: Channel) -> None:
            watched.on_ended = ended

        async def connect() -> Connection:
            return await self._open(peer.address, peer.vhost)

        watch(channel)
        intake = await self._ends.source.prepare(Session(peer, channel, connect, watch))
        if not self.machine.no_ack:
            await channel.call(methods.BasicQos(prefetch_count=self._definition.prefetch_count))
        publisher = self._publisher = await self._ends.destination.open(_Listener(self, number))
        channel.on_deliveries = self._delivered
        peer.connection.on_read = publisher.flush
        self._tell(link_events.Prepared(_now_ms(), intake.messages))
        await self._serve(channel, intake)

    async def _connect_source(self) -> Peer:
        address = self._random.choice(self._definition.addresses)
        vhost = self._ends.vhost if address.vhost is None else address.vhost
        self._peer = Peer(await self._open(address, vhost), address, vhost)
        return self._peer

    async def _connected_source(self) -> Peer:
        """Return the session's peer without our consumer, a new one if that is lost."""
        peer = self._peer
        if peer is None or peer.connection.lost is not None:
            peer = await self._connect_source()
        peer.connection.resume_reading()
        if self._channel is not None:
            # Our consumer is not to be taken for another's (R-FED-8).
            await self._channel.close()
        return peer

    def _session_failed(self, session: int, error: ClientError) -> None:
        """A channel or the destination of a session is gone; the first reason counts."""
        if self.machine.session == session:
            self._session_error = self._session_error or error
            self._woken.set()

    def _delivered(self, run: events.DeliveriesReceived) -> None:
        method = run.method
        self._handle(
            link_events.Delivered(
                method.delivery_tag,
                method.redelivered,
                method.exchange,
                method.routing_key,
                run.header,
                run.bodies,
                _now_ms(),
            )
        )

    async def _serve(self, channel: Channel, intake: Intake) -> None:
        """Until the session fails: the source follows, the consumer comes and goes."""
        while True:
            # First, so that whatever happens while one of them waits is looked at again.
            self._woken.clear()
            if self._is_finished:
                return
            if self._session_error is not None:
                raise self._session_error
            if self._consume_wanted != self._is_consuming:
                await self._switch_consumer(channel, intake)
                continue
            pause_s = await self._ends.source.follow()
            try:
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _switch_consumer(self, channel: Channel, intake: Intake) -> None:
        self._is_consuming = self._consume_wanted
        self._consumer_tag = intake.consumer_tag
        if self._consume_wanted:
            consume = methods.BasicConsume(
                queue=intake.queue,
                consumer_tag=intake.consumer_tag,
                no_ack=self.machine.no_ack,
                exclusive=intake.exclusive,
                arguments=intake.arguments,
            )
            try:
                await channel.call(consume)
            except ChannelClosed as error:
                if error.code == spec.ACCESS_REFUSED and "exclusive" in str(error):
                    raise upstream_side.in_use(intake.queue) from error
                raise
        else:
            # Without an answer: it could not be read while reading is held.
            channel.cast(methods.BasicCancel(consumer_tag=intake.consumer_tag, nowait=True))

    async def _end_session(self) -> None:
        """Nothing of the session may act any more."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
        self._give_back()
        peer, self._peer = self._peer, None
        self._consume_wanted = self._is_consuming = False
        self._drop_demand_timer()
        if self._route_timer is not None:
            self._route_timer.cancel()
            self._route_timer = None
        if peer is not None:
            peer.connection.on_read = None
            await peer.connection.close()

    async def _clean_up(self) -> None:
        """R-FX-17; an upstream that does not answer keeps its objects until they expire."""
        try:
            async with asyncio.timeout(CLEAN_UP_TIMEOUT_S):
                await self._ends.source.clean_up(self._connected_source)
        except (FederationError, TimeoutError) as error:
            title = self._ends.title.lower()
            log.warning("%s %s: upstream objects are left behind: %s", title, self.id, error)

    def _give_back(self) -> None:
        """Return what was not passed on by a nack: with the end of the channel it would count as a
        failure of each message (R-DL-2), which it is not.
        """
        channel, self._channel = self._channel, None
        if channel is None or self.machine.no_ack:
            return
        if self._is_consuming:
            # First, or it would come again at once.
            channel.cast(methods.BasicCancel(consumer_tag=self._consumer_tag, nowait=True))
        channel.cast(methods.BasicNack(0, multiple=True, requeue=True))

    async def _open(self, address: Address, vhost: str) -> Connection:
        name = f"{self._ends.title} {self.id}"
        return await self._ends.dial(address, vhost, name, self._definition.authorities)

    # Actions.

    def _handle(self, event: link_events.Event) -> None:
        for action in self.machine.handle(event):
            _ACTIONS[type(action)](self, action)

    def _tell(self, event: link_events.Event) -> None:
        """Handle what may change the state, and report it."""
        before = self.machine.state
        self._handle(event)
        self._report(before)

    def _connect(self, action: link_events.Connect) -> None:
        self._next = action

    def _forward(self, action: link_events.Forward) -> None:
        if self._publisher is not None:
            self._publisher.publish(
                action.tag, action.routing_key, action.header, action.bodies, action.exchange
            )

    def _acknowledge(self, action: link_events.Acknowledge) -> None:
        if self._channel is not None:
            self._channel.cast(methods.BasicAck(action.tag, action.multiple))

    def _requeue(self, action: link_events.Requeue) -> None:
        channel = self._channel
        if channel is not None:
            nack = methods.BasicNack(action.tag, multiple=False, requeue=True)
            # A closed channel swallows it: its unacknowledged messages return by themselves.
            asyncio.get_running_loop().call_later(action.delay_ms / 1000, channel.cast, nack)

    def _consume(self, _: link_events.Consume) -> None:
        self._consume_wanted = True
        self._woken.set()

    def _cancel_consume(self, _: link_events.CancelConsume) -> None:
        self._consume_wanted = False
        self._woken.set()

    def _await_demand(self, action: link_events.AwaitDemand) -> None:
        self._drop_demand_timer()
        loop, missed = asyncio.get_running_loop(), link_events.DemandMissed(action.session)
        self._demand_timer = loop.call_later(action.delay_ms / 1000, self._handle, missed)

    def _drop_demand_timer(self) -> None:
        if self._demand_timer is not None:
            self._demand_timer.cancel()
            self._demand_timer = None

    def _await_route(self, action: link_events.AwaitRoute) -> None:
        def due() -> None:
            self._handle(link_events.RouteDue(action.session, _now_ms()))
            if self._publisher is not None:
                self._publisher.flush()

        loop = asyncio.get_running_loop()
        self._route_timer = loop.call_later(action.delay_ms / 1000, due)

    def _tell_dropped(self, action: link_events.TellDropped) -> None:
        self._host.messages_dropped(self.id, action.count, action.exchange, action.routing_key)

    def _hold_reading(self, _: link_events.HoldReading) -> None:
        if self._peer is not None:
            self._peer.connection.pause_reading()

    def _resume_reading(self, _: link_events.ResumeReading) -> None:
        if self._peer is not None:
            self._peer.connection.resume_reading()

    def _disconnect(self, action: link_events.Disconnect) -> None:
        self._cleans_up = action.cleans_up

    def _finish(self, _: link_events.Finish) -> None:
        self._is_finished = True
        self._woken.set()

    def _report(self, before: link_state.State | None) -> None:
        """One log line and one event per change of state."""
        machine = self.machine
        if machine.state is before:
            return
        level = logging.WARNING if machine.state in _ALARMING else logging.INFO
        log.log(
            level,
            "%s %s is %s uri=%s%s",
            self._ends.title.lower(),
            self.id,
            machine.state.value,
            machine.uri,
            f" error={machine.error}" if machine.error else "",
        )
        self._host.link_changed(self.id, machine.state.value, machine.error)


class _Listener:
    """ends.Listener for one session: what a destination says after its end does not count."""

    def __init__(self, link: Link, session: int) -> None:
        self._link = link
        self._session = session

    def answered(self, answers: list[link_events.Answer]) -> None:
        """See Listener."""
        self._link._tell(link_events.Answered(self._session, answers, _now_ms()))

    def returned(self, messages: list[link_events.Unrouted]) -> None:
        """See Listener."""
        self._link._tell(link_events.Returned(self._session, messages, _now_ms()))

    def failed(self, error: ClientError) -> None:
        """See Listener."""
        self._link._session_failed(self._session, error)

    def blocked(self, reason: str) -> None:
        """See Listener."""
        self._link._tell(link_events.DestinationBlocked(_now_ms(), self._session, reason))

    def demanded(self, is_wanted: bool) -> None:
        """See Listener."""
        self._link._handle(link_events.DemandChanged(self._session, is_wanted))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_ACTIONS: dict[type, Callable[..., None]] = {
    link_events.Connect: Link._connect,
    link_events.Forward: Link._forward,
    link_events.Acknowledge: Link._acknowledge,
    link_events.Requeue: Link._requeue,
    link_events.Consume: Link._consume,
    link_events.CancelConsume: Link._cancel_consume,
    link_events.AwaitDemand: Link._await_demand,
    link_events.AwaitRoute: Link._await_route,
    link_events.TellDropped: Link._tell_dropped,
    link_events.HoldReading: Link._hold_reading,
    link_events.ResumeReading: Link._resume_reading,
    link_events.Disconnect: Link._disconnect,
    link_events.Finish: Link._finish,
}
