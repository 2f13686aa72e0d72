"""What the metrics of one member are made from: its parts, and sums over its queues and groups.

Nothing is counted here: figures are read from the columns, registers and monitors that keep them,
some queues, groups or connections at a time, so that clients have their turn in between.  Used by
metrics.py, metrics_rabbitmq.py and metrics_detailed.py.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric

from brokerd.cluster.peer.certificate_files import CertificateFiles
from brokerd.core.catalog.catalog_objects import Exchange
from brokerd.core.catalog.delayed_type import TYPE
from brokerd.core.queue.queue_state import COUNTERS
from brokerd.server.listings import delayed_exchanges
from brokerd.server.listings.delayed_exchanges import Waiting
from brokerd.server.loop.chunks import in_chunks
from brokerd.server.queues.table import AT, PLACES

if TYPE_CHECKING:
    from brokerd.cluster.groups.commit_times import CommitTimes
    from brokerd.cluster.groups.host import Host
    from brokerd.core.alarms import AlarmSet
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.core.profiles import Profile
    from brokerd.server.access.connections import Connections
    from brokerd.server.access.login_records import LoginRecords
    from brokerd.server.access.password_checker import PasswordChecker
    from brokerd.server.amqp.connection import ClientConnection
    from brokerd.server.audit_log import AuditLog
    from brokerd.server.listings.ports import Monitor
    from brokerd.server.members.kept_aside import KeptAside
    from brokerd.server.members.refill import Refill
    from brokerd.server.messages.refused_publishes import RefusedPublishes
    from brokerd.server.messages.routing import MemberRouting
    from brokerd.server.queues.deliveries import DeliveryHub
    from brokerd.server.queues.directory import MemberQueues
    from brokerd.server.queues.replicas import QueueGroups

#: Descriptors, start time, CPU and memory of the process, in the names of the Prometheus clients.
_PROCESS = ProcessCollector(namespace="brokerd", registry=None)
#: Queues or connections between two turns of clients: about a millisecond.
CHUNK = 50
#: Of a queue's overview, as far as they are added up.
QUEUE_GAUGES = (
    *("ready", "unacked", "ready_bytes", "unacked_bytes", "dl_pending", "dl_old_terms"),
    *("delayed", "consumers"),
)


class Runtime(Protocol):
    """The running member."""

    alarms: AlarmSet

    @property
    def monitor(self) -> Monitor | None:
        """Return who watches memory and disk, None before the member has started."""
        ...

    def link_rows(self) -> list[dict[str, Any]]:
        """Return one row per federation link and shovel of this member."""
        ...


@dataclass(slots=True, frozen=True)
class Sources:
    """Where the figures come from."""

    node: str
    profile: Profile
    #: As configured.
    cluster_name: str
    view: CatalogState
    host: Host
    commit_times: CommitTimes
    queues: MemberQueues
    queue_groups: QueueGroups
    routing: MemberRouting
    refused: RefusedPublishes
    deliveries: DeliveryHub
    connections: Connections[ClientConnection]
    certificate_files: list[CertificateFiles[ssl.SSLContext]]
    logins: LoginRecords
    checker: PasswordChecker
    audit: AuditLog
    refill: Refill
    kept_aside: KeptAside
    runtime: Runtime
    #: Why a queue led here has not handed on what is due, "" for no reason.
    late_reason: Callable[[int], str]

    @property
    def groups(self) -> Host:
        """Return the replicas here."""
        return self.host


class Figures:
    """Sums of one member as of now, read once; `sources` for what needs no adding up."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        #: Over the queues led here.
        self.queues_led = 0
        self.queues_unattended = 0
        self.ready_max = 0
        self.gauges: Counter[str] = Counter()
        self.counters: Counter[str] = Counter()
        #: In exchanges of type x-delayed-message whose queues are led here: messages, and by reason
        #: for how long the latest has been due, in ms.
        self.delayed = 0
        self.late_ms: Counter[str] = Counter()
        #: Over the Raft groups with a replica here.
        self.groups: Counter[str] = Counter()
        #: Over the open connections and their channels, the calls of Messages not among them.
        self.clients: Counter[str] = Counter()
        self.process: list[Metric] = []
        self.memory: dict[str, int] = {}

    async def add_up(self) -> None:
        """Sum what is read queue by queue, group by group, connection by connection."""
        await self._add_queues()
        await self._add_delayed()
        await self._add_groups()
        await self._add_clients()
        if (monitor := self.sources.runtime.monitor) is not None:
            self.memory = await monitor.breakdown.take()
        await self.add_process()

    async def add_process(self) -> None:
        """Read what the process uses."""
        # It lists the open descriptors, which are many where the clients are.
        self.process = await asyncio.to_thread(lambda: list(_PROCESS.collect()))

    async def _add_queues(self) -> None:
        table = self.sources.queues.table
        for sums in (await table.sums_led()).values():
            self.queues_led += sums.queues
            self.queues_unattended += sums.values[AT["is_unattended"]]
            for name in QUEUE_GAUGES:
                self.gauges[name] += sums.values[AT[name]]
            for name in COUNTERS:
                self.counters[name] += sums.values[AT[name]]
        self.ready_max = await table.ready_max()

    async def _add_delayed(self) -> None:
        async for some in led_delayed(self.sources):
            for _, found in some:
                self.delayed += found.messages
                self.late_ms[found.reason] = max(self.late_ms[found.reason], found.late_ms)

    async def _add_groups(self) -> None:
        sums = await self.sources.queues.table.add_groups()
        self.groups.update(sums)
        self.groups["lagging"] = sums["commit"] - sums["applied"]

    async def _add_clients(self) -> None:
        clients = self.clients
        async for connections in in_chunks(self.sources.connections.all(), CHUNK):
            clients["in_flow"] += sum([each.gate.is_in_flow for each in connections])
            clients["received_bytes"] += sum([each.received_bytes for each in connections])
            clients["sent_bytes"] += sum([each.sent_bytes for each in connections])
            for connection in connections:
                for session in connection.sessions.values():
                    clients["channels"] += 1
                    clients["publishers"] += session.published > 0
                    clients["consumers"] += len(session.consumers)
                    clients["unacked"] += len(session.unacked)
                    if session.confirms is not None:
                        clients["unconfirmed"] += session.confirms.outstanding

    def process_value(self, name: str) -> float:
        """Return a figure of the process by its name without prefix, 0 where there is none."""
        for family in self.process:
            if family.name == f"brokerd_process_{name}":
                return float(family.samples[0].value)
        return 0.0


async def led_delayed(sources: Sources) -> AsyncIterator[list[tuple[Exchange, Waiting]]]:
    """Yield what waits in exchanges of type x-delayed-message whose queues are led here, some at a
    time.
    """
    view = sources.view
    async for some in in_chunks(view.records("exchange"), PLACES):
        kept = [each for each in some if isinstance(each, Exchange) and each.type == TYPE]
        if not kept:
            continue
        sources.queues.table.take()
        now_ms = time.time_ns() // 1_000_000
        found = []
        for exchange in kept:
            queue = delayed_exchanges.queue_of(view, exchange)
            if queue is not None and sources.queues.leads(queue.uid):
                waiting = delayed_exchanges.waiting(sources, queue.uid, now_ms)
                if waiting is not None:
                    found.append((exchange, waiting))
        yield found
