"""The shell of one link: executes what `FederationLink` says, reports back what happened.

One task per link owns its session.  Deliveries and local answers are handled in callbacks, without
waiting; everything that waits is in `_session`.  Decisions are in `link_state.py`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any

from brokerd.amqp import methods, spec
from brokerd.federation import link_bindings, link_state, upstream_side
from brokerd.federation import upstream as upstreams
from brokerd.federation.client import Channel, Connection
from brokerd.federation.errors import (
    ChannelClosed,
    ClientError,
    ConnectionLost,
    FederationError,
)
from brokerd.federation.ports import Federated, Publisher, Topology
from brokerd.federation.upstream import Address, Upstream

log = logging.getLogger(__name__)

#: R-FX-6.
CHECK_INTERVAL_S = 90.0
#: How old the figure of what waits upstream may be.
BACKLOG_INTERVAL_S = 5.0
#: Binding changes that come together are sent together.
BINDING_DELAY_S = 0.02
#: A removed link tries this long to clean up on its upstream.
CLEAN_UP_TIMEOUT_S = 10.0
CONSUMER_TAG = "federation-link"


class Link:
    """One link.  Owns its task, its session's connection and its local publisher."""

    def __init__(
        self, link_id: str, federated: Federated, upstream: Upstream, topology: Topology
    ) -> None:
        self.id = link_id
        self.federated = federated
        self.upstream = upstream
        self.machine = link_state.FederationLink(
            topology.cluster_name, federated.vhost, federated.exchange, upstream
        )
        self._topology = topology
        self._random = random.Random()
        self._names: upstream_side.Names | None = None
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._publisher: Publisher | None = None
        #: Messages that waited upstream when it was last looked; None: it never was.
        self._backlog: int | None = None
        self._propagated = link_bindings.Propagated()
        self._ends: link_bindings.Ends | None = None
        #: Something for the session's task to look at: bindings, the alarm, a closed channel.
        self._woken = asyncio.Event()
        self._bindings_changed = False
        self._consume_wanted = False
        self._is_consuming = False
        self._session_error: ClientError | None = None
        self._next: link_state.Connect | None = None
        self._cleans_up = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; the link runs until `stop`."""
        self._handle(link_state.Started(_now_ms()))
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"link {self.id}")

    async def stop(self, is_removed: bool) -> None:
        """End the link; is_removed: its definition is gone or changed (R-FX-17)."""
        before = self.machine.state
        self._handle(link_state.StopRequested(_now_ms(), is_removed))
        self._report(before)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._cleans_up:
            await self._clean_up()
        await self._end_session()

    def same_upstream(self, upstream: Upstream) -> None:
        """The definition as it is now: equal, but its authorities may be others."""
        assert upstream == self.upstream
        self.upstream = upstream

    def bindings_changed(self) -> None:
        """The downstream exchange's bindings are (perhaps) others now."""
        self._bindings_changed = True
        self._woken.set()

    def alarm_changed(self, reason: str) -> None:
        """R-ALM-9."""
        before = self.machine.state
        self._handle(link_state.AlarmChanged(_now_ms(), reason))
        self._report(before)

    def row(self) -> dict[str, Any]:
        """Return status and figures, for listings and telemetry (R-FED-6)."""
        return {
            "id": self.id,
            "node": self._topology.node,
            **self.machine.status(),
            **self.machine.overview(),
            "bindings": len(self._propagated),
            "backlog": self._backlog,
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
                # A defect of ours, or an upstream that nobody thought of: the link tries again,
                # local traffic goes on (R-FED-6).
                log.exception("federation link %s failed", self.id)
                error = f"{type(failure).__name__}: {failure}"
            await self._end_session()
            before = self.machine.state
            last_error = self.machine.error
            self._handle(link_state.Failed(_now_ms(), error))
            if before is not self.machine.state or last_error != self.machine.error:
                self._report(None)

    async def _session(self) -> None:
        """Connect, prepare the upstream, serve until something fails."""
        address = self._random.choice(self.upstream.addresses)
        vhost = self.federated.vhost if address.vhost is None else address.vhost

        async def connect() -> Connection:
            return await self._open(address, vhost)

        connection = self._connection = await connect()
        self._introduce(connection, address, vhost)
        assert self._names is not None
        assert self._ends is not None
        await upstream_side.declare_exchange(connection, self._names.exchange, self.federated)
        channel = self._channel = await connection.open_channel()
        commands = channel
        if not self.upstream.single_channel:
            commands = await connection.open_channel()
        await upstream_side.declare_queue(channel, self._names.queue, self.upstream)
        suffix, old = await upstream_side.choose_suffix(connection, self._names)
        arguments = upstreams.internal_exchange_arguments(
            self.upstream.max_hops, self._topology.cluster_name, self.federated.vhost
        )
        await upstream_side.declare_internal_exchange(
            connect, commands, self._names, suffix, arguments
        )
        self._set_suffix(suffix)
        await self._propagate(commands)
        if old is not None:
            await upstream_side.delete_internal(commands, self._names.internal(old))
        if not self.machine.no_ack:
            await channel.call(methods.BasicQos(prefetch_count=self.upstream.prefetch_count))
        self._listen(connection, channel, commands)
        before = self.machine.state
        self._handle(link_state.Prepared(_now_ms()))
        self._report(before)
        await self._serve(connection, channel, commands)

    def _introduce(self, connection: Connection, address: Address, vhost: str) -> None:
        name = connection.machine.server_properties.get("cluster_name")
        cluster = name if isinstance(name, str) and name else f"{address.host}:{address.port}"
        local, upstream = self.federated, self.upstream
        exchange = upstream.exchange_name(local.exchange)
        self._names = upstream_side.Names(
            exchange,
            upstreams.queue_name(
                exchange, vhost, self._topology.cluster_name, local.vhost, local.exchange
            ),
        )
        self._ends = link_bindings.Ends(
            self._topology.cluster_name,
            local.vhost,
            local.exchange,
            "",
            cluster,
            vhost,
            upstream.max_hops,
        )
        event = link_state.Connected(
            _now_ms(), address.shown, cluster, vhost, connection.local_name
        )
        self._handle(event)

    def _set_suffix(self, suffix: str) -> None:
        assert self._ends is not None
        ends = self._ends
        self._propagated = link_bindings.Propagated()
        self._ends = link_bindings.Ends(
            ends.cluster,
            ends.vhost,
            ends.exchange,
            suffix,
            ends.upstream_cluster,
            ends.upstream_vhost,
            ends.max_hops,
        )

    async def _propagate(self, commands: Channel) -> None:
        """Bring the upstream bindings up to date (R-FX-7..R-FX-10)."""
        assert self._names is not None
        assert self._ends is not None
        self._bindings_changed = False
        local = self.federated
        wanted = link_bindings.desired(
            self._topology.bindings(local.vhost, local.exchange), self._ends
        )
        changes = self._propagated.update(wanted)
        if changes:
            internal = self._names.internal(self._ends.suffix)
            nowait = self.upstream.bind_nowait
            await upstream_side.apply_bindings(
                commands, self._names.exchange, internal, changes, nowait
            )

    def _listen(self, connection: Connection, channel: Channel, commands: Channel) -> None:
        session = self.machine.session
        self._session_error = None
        local = self.federated

        def answered(answers: list[tuple[int, bool]]) -> None:
            self._handle(link_state.Answered(session, answers))

        def ended(error: ClientError) -> None:
            if self.machine.session == session:
                self._session_error = self._session_error or error
                self._woken.set()

        publisher = self._publisher = self._topology.open_publisher(
            local.vhost, local.exchange, answered
        )
        channel.on_delivery = self._delivered
        channel.on_ended = ended
        commands.on_ended = ended
        connection.on_read = publisher.flush

    def _delivered(self, method: methods.BasicDeliver, header: bytes, body: bytes) -> None:
        event = link_state.Delivered(
            method.delivery_tag, method.redelivered, method.routing_key, header, body, _now_ms()
        )
        self._handle(event)

    async def _serve(self, connection: Connection, channel: Channel, commands: Channel) -> None:
        """Until the session fails: bindings follow, the consumer comes and goes, R-FX-6."""
        assert self._names is not None
        assert self._ends is not None
        loop = asyncio.get_running_loop()
        internal = self._names.internal(self._ends.suffix)
        next_check = loop.time() + CHECK_INTERVAL_S
        next_look = loop.time()
        while True:
            if self._session_error is not None:
                raise self._session_error
            if self._consume_wanted != self._is_consuming:
                await self._switch_consumer(channel)
                continue
            if self._bindings_changed:
                await asyncio.sleep(BINDING_DELAY_S)
                await self._propagate(commands)
                continue
            if loop.time() >= next_check:
                if not await upstream_side.exchange_exists(connection, internal):
                    raise ClientError(f"the internal exchange '{internal}' is gone")
                next_check = loop.time() + CHECK_INTERVAL_S
                continue
            if loop.time() >= next_look:
                self._backlog = await upstream_side.backlog(channel, self._names.queue)
                next_look = loop.time() + BACKLOG_INTERVAL_S
                continue
            self._woken.clear()
            try:
                async with asyncio.timeout_at(min(next_check, next_look)):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _switch_consumer(self, channel: Channel) -> None:
        assert self._names is not None
        wanted = self._consume_wanted
        request: methods.Method
        if wanted:
            # Exclusive: whoever else consumed from it would take messages away (R-FED-8).
            request = methods.BasicConsume(
                queue=self._names.queue,
                consumer_tag=CONSUMER_TAG,
                no_ack=self.machine.no_ack,
                exclusive=True,
            )
        else:
            request = methods.BasicCancel(consumer_tag=CONSUMER_TAG)
        try:
            await channel.call(request)
        except ChannelClosed as error:
            if error.code == spec.ACCESS_REFUSED and "exclusive" in str(error):
                raise upstream_side.in_use(self._names.queue) from error
            raise
        self._is_consuming = wanted

    async def _end_session(self) -> None:
        """Nothing of the session may act any more."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
        connection, self._connection = self._connection, None
        self._channel = None
        self._consume_wanted = self._is_consuming = False
        if connection is not None:
            connection.on_read = None
            await connection.close()

    async def _clean_up(self) -> None:
        """R-FX-17; an upstream that does not answer keeps its objects until they expire."""
        try:
            async with asyncio.timeout(CLEAN_UP_TIMEOUT_S):
                connection = self._connection
                if connection is None or connection.lost is not None:
                    connection = self._connection = await self._connect_again()
                if self._names is not None:
                    connection.resume_reading()
                    if self._channel is not None:
                        # Our consumer is not to be taken for another's.
                        await self._channel.close()
                    await upstream_side.delete_all(connection, self._names)
        except (FederationError, TimeoutError) as error:
            log.warning("federation link %s: upstream objects are left behind: %s", self.id, error)

    async def _connect_again(self) -> Connection:
        address = self._random.choice(self.upstream.addresses)
        vhost = self.federated.vhost if address.vhost is None else address.vhost
        connection = await self._open(address, vhost)
        self._introduce(connection, address, vhost)
        return connection

    async def _open(self, address: Address, vhost: str) -> Connection:
        name = f"Federation link {self.id}"
        return await Connection.open(address, vhost, name, self.upstream.authorities)

    # Actions.

    def _handle(self, event: link_state.Event) -> None:
        for action in self.machine.handle(event):
            _ACTIONS[type(action)](self, action)

    def _connect(self, action: link_state.Connect) -> None:
        self._next = action

    def _forward(self, action: link_state.Forward) -> None:
        if self._publisher is not None:
            self._publisher.publish(action.tag, action.routing_key, action.header, action.body)

    def _acknowledge(self, action: link_state.Acknowledge) -> None:
        if self._channel is not None:
            self._channel.cast(methods.BasicAck(action.tag, action.multiple))

    def _requeue(self, action: link_state.Requeue) -> None:
        channel = self._channel
        if channel is not None:
            nack = methods.BasicNack(action.tag, multiple=False, requeue=True)
            # A closed channel swallows it: its unacknowledged messages return by themselves.
            asyncio.get_running_loop().call_later(action.delay_ms / 1000, channel.cast, nack)

    def _consume(self, _: link_state.Consume) -> None:
        self._consume_wanted = True
        self._woken.set()

    def _cancel_consume(self, _: link_state.CancelConsume) -> None:
        self._consume_wanted = False
        self._woken.set()

    def _hold_reading(self, _: link_state.HoldReading) -> None:
        if self._connection is not None:
            self._connection.pause_reading()

    def _resume_reading(self, _: link_state.ResumeReading) -> None:
        if self._connection is not None:
            self._connection.resume_reading()

    def _disconnect(self, action: link_state.Disconnect) -> None:
        self._cleans_up = action.cleans_up

    def _report(self, before: link_state.State | None) -> None:
        """One log line and one event per change of state."""
        machine = self.machine
        if machine.state is before:
            return
        level = logging.WARNING if machine.state is link_state.State.ERROR else logging.INFO
        log.log(
            level,
            "federation link %s is %s uri=%s%s",
            self.id,
            machine.state.value,
            machine.uri,
            f" error={machine.error}" if machine.error else "",
        )
        self._topology.link_changed(self.id, machine.state.value, machine.error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_ACTIONS: dict[type, Callable[..., None]] = {
    link_state.Connect: Link._connect,
    link_state.Forward: Link._forward,
    link_state.Acknowledge: Link._acknowledge,
    link_state.Requeue: Link._requeue,
    link_state.Consume: Link._consume,
    link_state.CancelConsume: Link._cancel_consume,
    link_state.HoldReading: Link._hold_reading,
    link_state.ResumeReading: Link._resume_reading,
    link_state.Disconnect: Link._disconnect,
}
