"""What outsiders connect to: AMQP, gRPC, HTTP, federation links; opened and closed together.

`pause` and `resume` are rabbitmqctl's stop_app and start_app: AMQP clients are sent away and the
listeners close, while this member's groups, its gRPC services and its health endpoint go on.
Built by app.py; asked by the Admin service.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from brokerd.core.catalog import catalog_commands
from brokerd.federation.supervisor import Supervisor
from brokerd.server import health, telemetry_hooks
from brokerd.server.access.admission import Admission
from brokerd.server.access.authentication import Authenticator
from brokerd.server.amqp.listener import AmqpListener
from brokerd.server.amqp.ports import ChannelServices, ConnectionServices
from brokerd.server.broker import Broker
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.grpc.admin_service import AdminService
from brokerd.server.grpc.grpc_server import GrpcServer, Servicers
from brokerd.server.grpc.message_service import MessageService
from brokerd.server.grpc.ports import AdminServices, StreamServices
from brokerd.server.grpc.rpc_auth import Callers
from brokerd.server.members import federation_calls
from brokerd.server.messages.federation_ports import MemberTopology

if TYPE_CHECKING:
    from brokerd.server.http_server import HttpServer

log = logging.getLogger(__name__)

SHUTDOWN = "broker forced connection closure with reason 'shutdown'"
STOPPED = "stopped by stop_app; start_app opens the listeners again"
#: How long clients may take to answer connection.close before their sockets are dropped.
GOODBYE_S = 3.0
#: The same when the process ends, which drops them anyway.
STOP_GOODBYE_S = 0.5
POLL_S = 0.02


class Doors:
    """Open only once the member knows the topology.  `is_open` says whether AMQP is served."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.state = health.HealthState()
        authenticator = Authenticator(
            *(broker.view, broker.checker, broker.logins, broker.variables, broker.config.auth),
            broker,
        )
        admission = Admission(
            *(broker.node, broker.view, broker.config.limits),
            *(broker.connections, broker.shared_counts),
        )
        callers = Callers(authenticator, broker.view)
        self.listener = AmqpListener(
            _connection_services(broker, authenticator, admission),
            *(broker.variables, broker.spawn, broker.certificate_files),
        )
        broker.topology_listeners += [
            broker.connections.topology_changed,
            broker.revocation.topology_changed,
            broker.shared_counts.topology_changed,
        ]
        self.telemetry = telemetry_hooks.Telemetry(broker, callers)
        servicers = Servicers(
            AdminService(_admin_services(broker, callers, authenticator)),
            _message_service(broker, callers, admission),
            self.telemetry.service,
        )
        self.grpc = GrpcServer(
            *(broker.config.limits, callers, servicers, broker.certificate_files)
        )
        self.http: HttpServer | None = None
        self.federation = Supervisor(_topology(broker, self.listener))
        # Another supervisor takes over when the doors open again.
        federation_calls.serve(
            *(broker.calls, broker.link_rows), lambda link_id: self.federation.restart(link_id)
        )
        self.is_open = False
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        """Let AMQP clients in, and start the links."""
        await self.listener.start(self._broker.config)
        self._broker.federation = self.federation
        self.federation.start()
        self.is_open = True
        self.state.ready = True
        self.state.reason = ""

    async def pause(self, reason: str = STOPPED) -> int:
        """Send AMQP clients away and stop listening; return how many there were."""
        async with self._changing:
            if not self.is_open:
                return 0
            self.is_open = False
            self.state.ready = False
            self.state.reason = reason
            await self.federation.stop()
            await self.listener.stop()
            count = await self._send_clients_away(GOODBYE_S)
            await self._end_transients()
            return count

    async def resume(self) -> None:
        """Listen again."""
        async with self._changing:
            if not self.is_open:
                self.federation = Supervisor(_topology(self._broker, self.listener))
                await self.open()

    async def _send_clients_away(self, patience_s: float) -> int:
        connections = self._broker.connections
        clients = connections.all()
        connections.close_all(SHUTDOWN)
        deadline = asyncio.get_running_loop().time() + patience_s
        # Sockets close one by one, and nothing tells when the last one has.
        while len(connections) and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        for connection in [*connections.all(), *connections.leaving]:
            connection.abort()
        return len(clients)

    async def _end_transients(self) -> None:
        """Remove what does not survive a restart of this member (R-Q-9, R-EX-9)."""
        view, node = self._broker.view, self._broker.node
        gone = [
            ("queue", queue.vhost, queue.name)
            for queue in view.queues()
            if not queue.durable and queue.members == [node]
        ]
        if len(view.members()) <= 1:
            gone += [
                ("exchange", record.vhost, record.name)
                for record in view.records("exchange")
                if not record.spec()["durable"]
            ]
        operations = [
            catalog_commands.delete(kind, vhost, name, cause="node-restarted")
            for kind, vhost, name in gone
        ]
        if operations:
            try:
                await self._broker.write({"do": "batch", "operations": operations})
            except Unavailable:
                log.warning("stop_app: no majority; transient objects stay")

    async def shut(self) -> None:
        """Take nobody new; those who are here stay."""
        self.state.ready = False
        self.state.reason = "this member stops"
        await self.listener.stop()

    async def close(self) -> None:
        """Say goodbye to clients, then stop listening."""
        await self.federation.stop()
        await self.listener.stop()
        await self._send_clients_away(STOP_GOODBYE_S)
        await self.grpc.stop()
        await self.telemetry.close()
        if self.http is not None:
            await self.http.cleanup()


def _topology(broker: Broker, listener: AmqpListener) -> MemberTopology:
    return MemberTopology(
        *(broker.config.cluster.name, broker, broker.host, broker, broker.routing),
        *(broker.queues, broker.blocking_reason, listener.connect_here),
    )


def _connection_services(
    broker: Broker, authenticator: Authenticator, admission: Admission
) -> ConnectionServices:
    channels = ChannelServices(
        config=broker.config,
        profile=broker.profile,
        identity=broker,
        catalog=broker,
        queues=broker.queues,
        messages=broker.routing,
        deliveries=broker.deliveries,
        replies=broker.replies,
        tracer=broker.tracer,
        counters=broker.counters,
        now_ms=broker.wheel.now_ms,
    )
    return ConnectionServices(
        channels=channels,
        connections=broker.connections,
        authenticator=authenticator,
        admission=admission,
        wheel=broker.wheel,
        unfinished=broker.unfinished,
        clock_ms=broker.clock_ms,
        blocking_reason=broker.blocking_reason,
        call_after_flush=broker.host.call_after_flush,
    )


def _message_service(broker: Broker, callers: Callers, admission: Admission) -> MessageService:
    services = StreamServices(
        limits=broker.config.limits,
        identity=broker,
        queues=broker,
        messages=broker.routing,
        deliveries=broker.deliveries,
        replies=broker.replies,
        blocking_reason=broker.blocking_reason,
    )
    return MessageService(
        *(services, callers, admission, broker.connections),
        has_started=lambda: broker.monitor is not None,
    )


def _admin_services(
    broker: Broker, callers: Callers, authenticator: Authenticator
) -> AdminServices:
    return AdminServices(
        callers=callers,
        authenticator=authenticator,
        node=broker.node,
        incarnation=broker.incarnation,
        profile=broker.profile,
        catalog=broker,
        history=broker.catalog,
        groups=broker.host,
        queues=broker,
        members=broker,
        clients=broker.connections,
        deliveries=broker.deliveries,
        variables=broker.variables,
        keyring=broker.keyring,
        runtime=broker,
    )
