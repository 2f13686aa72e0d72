"""Prometheus metrics of one member, rendered when somebody asks (HTTP /metrics).

Nothing is counted here: figures are read from the machines, registers and monitors that keep them.
No labels per queue, user or client, so that the number of series does not grow with use; who wants
figures per queue has brokerctl and the telemetry job.  docs/reference/metrics.md names RabbitMQ's
counterparts.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from brokerd import __version__, compiled
from brokerd.cluster.peer.certificate_files import CertificateFiles
from brokerd.raft.messages import CATALOG_GROUP
from brokerd.server.access import login_records
from brokerd.server.catalog import cluster_name
from brokerd.server.members import kept_aside
from brokerd.server.slices import in_slices

if TYPE_CHECKING:
    from brokerd.cluster.groups.host import Host
    from brokerd.core.alarms import AlarmSet
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.server.access.connections import Connections
    from brokerd.server.access.login_records import LoginRecords
    from brokerd.server.access.password_checker import PasswordChecker
    from brokerd.server.amqp.connection import ClientConnection
    from brokerd.server.grpc.ports import Monitor
    from brokerd.server.member_queues import MemberQueues
    from brokerd.server.members.kept_aside import KeptAside
    from brokerd.server.members.refill import Refill
    from brokerd.server.messages.delivery import DeliveryHub
    from brokerd.server.messages.routing import MemberRouting
    from brokerd.server.queue_groups import QueueGroups

#: Catalog objects that are counted as they are.
_OBJECTS = {
    "queue": ("brokerd_queues", "Queues of the cluster."),
    "exchange": ("brokerd_exchanges", "Exchanges of the cluster, the predeclared ones included."),
    "binding": ("brokerd_bindings", "Bindings of the cluster, implicit ones not included."),
    "vhost": ("brokerd_vhosts", "Virtual hosts of the cluster."),
    "user": ("brokerd_users", "Users of the cluster."),
}
#: Gauges summed over the queues that this member leads: overview key, name, help.
_QUEUE_GAUGES = (
    ("ready", "brokerd_queue_messages_ready", "Messages ready for delivery."),
    ("unacked", "brokerd_queue_messages_unacked", "Messages delivered and not settled."),
    ("ready_bytes", "brokerd_queue_messages_ready_bytes", "Bytes of ready messages."),
    ("unacked_bytes", "brokerd_queue_messages_unacked_bytes", "Bytes of unsettled messages."),
    ("dl_pending", "brokerd_queue_dead_letters_pending", "Dead letters waiting for confirms."),
    ("consumers", "brokerd_queue_consumers", "Consumers, wherever their channels are."),
)
#: Counters that live in the queues (replicated, so they survive restarts and leader changes).
_QUEUE_COUNTERS = {
    "enq": "brokerd_queue_messages_enqueued",
    "dlv": "brokerd_queue_messages_delivered",
    "redlv": "brokerd_queue_messages_redelivered",
    "ack": "brokerd_queue_messages_acknowledged",
    "requeue": "brokerd_queue_messages_requeued",
    "rejected": "brokerd_queue_messages_rejected",
    "expired": "brokerd_queue_messages_expired",
    "maxlen_drop": "brokerd_queue_messages_dropped_maxlen",
    "over_limit": "brokerd_queue_messages_over_delivery_limit",
    "default_limit_drop": "brokerd_queue_messages_dropped_default_delivery_limit",
    "purged": "brokerd_queue_messages_purged",
    "refused": "brokerd_queue_messages_refused",
    "dl_out": "brokerd_queue_messages_dead_lettered",
    "get_empty": "brokerd_queue_gets_empty",
}
#: Descriptors, start time, CPU and memory of the process, in the names of the Prometheus clients.
#: What publishers are blocked for, in the order of the text of connection.blocked.
_REASONS = ("disk", "memory")
_PROCESS = ProcessCollector(namespace="brokerd", registry=None)


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
    #: As configured.
    cluster_name: str
    view: CatalogState
    host: Host
    queues: MemberQueues
    queue_groups: QueueGroups
    routing: MemberRouting
    deliveries: DeliveryHub
    connections: Connections[ClientConnection]
    certificate_files: list[CertificateFiles[ssl.SSLContext]]
    logins: LoginRecords
    checker: PasswordChecker
    refill: Refill
    kept_aside: KeptAside
    runtime: Runtime


async def render(sources: Sources) -> bytes:
    """Return the exposition text (format 0.0.4)."""
    figures = _Figures(sources)
    await figures.add_up()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(figures)
    return generate_latest(registry)


class _Figures(Collector):
    """Reads one member."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        #: Over the queues led here.
        self._queues_led = 0
        self._queues_unattended = 0
        self._ready_max = 0
        self._gauges: Counter[str] = Counter()
        self._counters: Counter[str] = Counter()
        #: Over the Raft groups with a replica here.
        self._groups: Counter[str] = Counter()
        self._process: list[Metric] = []
        self._memory: dict[str, int] = {}

    async def add_up(self) -> None:
        """Sum what is read queue by queue and group by group."""
        sources = self._sources
        async for uids in in_slices(list(sources.queues.led)):
            for _, machine in sources.queues.led_queues(uids):
                overview = machine.overview()
                self._queues_led += 1
                self._queues_unattended += overview["ready"] > 0 and not overview["consumers"]
                self._ready_max = max(self._ready_max, overview["ready"])
                for key, _, _ in _QUEUE_GAUGES:
                    self._gauges[key] += overview[key]
                self._counters.update(overview["counters"])
        host = sources.host
        async for uids in in_slices(host.groups()):
            for uid in filter(host.has_group, uids):
                status = host.status_of(uid)
                self._groups["here"] += 1
                self._groups["leading"] += status.is_leader
                self._groups["lagging"] += status.commit - status.applied
                self._groups["damaged"] += status.is_damaged
        if (monitor := sources.runtime.monitor) is not None:
            self._memory = await monitor.breakdown.take()
        # It lists the open descriptors, which are many where the clients are.
        self._process = await asyncio.to_thread(lambda: list(_PROCESS.collect()))

    def collect(self) -> Iterable[Metric]:
        """Return all metrics, each family once."""
        yield from self._identity()
        yield from self._clients()
        yield from self._resources()
        yield from self._topology()
        yield self._shovels()
        yield from self._queues()
        yield from self._consensus()
        yield from self._process

    def _identity(self) -> Iterator[Metric]:
        sources = self._sources
        info = GaugeMetricFamily(
            "brokerd_build_info",
            "Version of this member; form is compiled or python.",
            labels=["version", "node", "cluster", "form"],
        )
        cluster = cluster_name.of(sources.cluster_name, sources.view)
        info.add_metric([__version__, sources.node, cluster, compiled.form()], 1)
        yield info
        alive = sources.host.alive() | {sources.node}
        members = sources.view.members()
        yield _gauge("brokerd_cluster_members", "Members the catalog names.", len(members))
        yield _gauge(
            "brokerd_cluster_members_running",
            "Members that this one hears, itself included.",
            sum(1 for name in members if name in alive),
        )

    def _clients(self) -> Iterator[Metric]:
        sources = self._sources
        connections = sources.connections
        opened = connections.all()
        yield _gauge("brokerd_connections", "Open AMQP connections.", len(opened))
        blocked = GaugeMetricFamily(
            "brokerd_connections_blocked",
            "Connections that an alarm keeps from publishing.",
            labels=["reason"],
        )
        reason = "_".join(word for word in _REASONS if word in sources.runtime.alarms.reason())
        for each in (*_REASONS, "_".join(_REASONS)):
            blocked.add_metric([each], len(connections.blocked) if each == reason else 0)
        yield blocked
        yield _gauge(
            "brokerd_connections_flow",
            "Connections not read, now or just before, for what they have on its way to queues.",
            sum(1 for connection in opened if connection.gate.is_in_flow),
        )
        yield _gauge(
            "brokerd_channels",
            "Open AMQP channels.",
            sum(len(connection.sessions) for connection in opened),
        )
        yield _counter(
            "brokerd_channels_opened",
            "AMQP channels and calls of Messages opened since the start.",
            connections.counts.channels_opened_total,
        )
        yield _counter(
            "brokerd_messages_unroutable",
            "Messages of this member's clients that no queue took: returned or dropped.",
            sources.routing.unroutable_total,
        )
        yield _gauge(
            "brokerd_consumers",
            "Consumers of this member's channels and Consume calls.",
            len(sources.deliveries),
        )
        yield _counter(
            "brokerd_connections_accepted",
            "AMQP sockets accepted since the start.",
            connections.accepted_total,
        )
        yield _counter(
            "brokerd_connections_refused",
            "AMQP sockets refused for a limit since the start.",
            connections.refused_total,
        )
        yield _counter(
            "brokerd_connections_displaced",
            "AMQP sockets dropped before their login to make room for others.",
            connections.displaced_total,
        )
        yield from self._logins()
        yield from self._certificates()

    def _certificates(self) -> Iterator[Metric]:
        expiry = GaugeMetricFamily(
            "brokerd_certificate_expiry_timestamp_seconds",
            "When the certificate that new connections meet expires, in seconds since 1970.",
            labels=["listener"],
        )
        unusable = GaugeMetricFamily(
            "brokerd_certificate_files_unusable",
            "1 while the files cannot be used as they are, and older ones stay in force.",
            labels=["listener"],
        )
        peer = self._sources.host.transport.tls
        found: list[CertificateFiles[Any]] = [*self._sources.certificate_files]
        if peer is not None:
            found.append(peer.files)
        for files in found:
            # This looks at the files, too: new ones are in force from here on.
            expires_s = files.expires_s()
            if expires_s is not None:
                expiry.add_metric([files.listener], expires_s)
            unusable.add_metric([files.listener], int(bool(files.problem)))
        yield expiry
        yield unusable

    def _logins(self) -> Iterator[Metric]:
        logins, checker = self._sources.logins, self._sources.checker
        accepted = CounterMetricFamily(
            "brokerd_logins_accepted", "Logins; on gRPC, calls.", labels=["listener"]
        )
        refused = CounterMetricFamily(
            "brokerd_logins_refused", "Logins refused.", labels=["listener", "reason"]
        )
        for listener in login_records.LISTENERS:
            accepted.add_metric([listener], logins.accepted[listener])
            for reason in login_records.REASONS:
                refused.add_metric([listener, reason], logins.refused[listener, reason])
        yield accepted
        yield refused
        yield _gauge(
            "brokerd_logins_waiting",
            "Logins whose password waits to be checked, or whose refusal waits.",
            checker.pending,
        )
        yield _counter(
            "brokerd_password_checks",
            "Passwords that were hashed to check a login.",
            checker.checks_total,
        )

    def _resources(self) -> Iterator[Metric]:
        sources = self._sources
        monitor = sources.runtime.monitor
        if monitor is not None:
            yield _gauge(
                "brokerd_memory_used_bytes", "Memory as the watermark sees it.", monitor.memory_used
            )
            yield _gauge(
                "brokerd_memory_limit_bytes",
                "Memory above which publishers are blocked.",
                monitor.memory_limit,
            )
            yield _gauge(
                "brokerd_disk_free_bytes", "Free space at the data directory.", monitor.disk_free
            )
            yield _gauge(
                "brokerd_disk_free_limit_bytes",
                "Free space below which publishers are blocked.",
                monitor.disk_limit,
            )
        parts = GaugeMetricFamily(
            "brokerd_memory_bytes", "Where the memory goes, estimated.", labels=["part"]
        )
        for part, size in self._memory.items():
            parts.add_metric([part], size)
        yield parts
        alarms = GaugeMetricFamily(
            "brokerd_alarm", "1 while this member's alarm is on.", labels=["resource"]
        )
        on = sources.runtime.alarms.on(sources.node)
        for resource in ("memory", "disk"):
            alarms.add_metric([resource], int(resource in on))
        yield alarms

    def _topology(self) -> Iterator[Metric]:
        for kind, (name, text) in _OBJECTS.items():
            records = self._sources.view.records(kind, None)
            yield _gauge(name, text, len(records))
        yield _counter(
            "brokerd_queues_declared",
            "Queues of the cluster that came into being since this member's start.",
            self._sources.queue_groups.declared_total,
        )

    def _shovels(self) -> Metric:
        """By state, those that there are none in as well: an alert needs their zero."""
        family = GaugeMetricFamily(
            "brokerd_shovels", "Shovels that this member runs, by state.", labels=["state"]
        )
        rows = self._sources.runtime.link_rows()
        states = Counter(row["status"] for row in rows if row["type"] == "shovel")
        for state in ("starting", "running", "blocked", "error"):
            family.add_metric([state], states[state])
        return family

    def _queues(self) -> Iterator[Metric]:
        yield _gauge("brokerd_queues_led", "Queues whose leader is this member.", self._queues_led)
        yield _gauge(
            "brokerd_queues_without_consumers",
            "Queues led here that hold ready messages and have no consumer.",
            self._queues_unattended,
        )
        yield _gauge(
            "brokerd_queue_messages_ready_max",
            "Ready messages of the queue led here that holds most.",
            self._ready_max,
        )
        for key, name, text in _QUEUE_GAUGES:
            yield _gauge(name, f"{text} Of the queues led here.", self._gauges[key])
        for key, name in _QUEUE_COUNTERS.items():
            yield _counter(
                name,
                "Since the queues were made; of the queues led here.",
                self._counters[key],
            )

    def _consensus(self) -> Iterator[Metric]:
        host, groups = self._sources.host, self._groups
        yield _gauge("brokerd_raft_groups", "Raft groups with a replica here.", groups["here"])
        yield _gauge(
            "brokerd_raft_leaders", "Raft groups that this member leads.", groups["leading"]
        )
        yield _gauge(
            "brokerd_raft_unapplied", "Committed entries not applied yet.", groups["lagging"]
        )
        yield _gauge("brokerd_raft_damaged", "Groups with damage in their log.", groups["damaged"])
        yield _gauge(
            "brokerd_raft_refilling",
            "Groups in which this member has no vote until they are refilled after a lost volume.",
            len(self._sources.refill.left()),
        )
        kept = [row for row in self._sources.kept_aside.rows() if kept_aside.is_alarming(row)]
        yield _gauge(
            "brokerd_kept_aside",
            "Replicas whose leader lacks what is committed here; somebody must decide.",
            len(kept),
        )
        yield _gauge(
            "brokerd_kept_aside_messages",
            "Messages that these have kept aside.",
            sum(row["messages"] for row in kept),
        )
        if host.has_group(CATALOG_GROUP):
            status = host.status_of(CATALOG_GROUP)
            yield _gauge("brokerd_catalog_term", "Raft term of the catalog.", status.term)
            yield _gauge(
                "brokerd_catalog_has_leader",
                "1 when the catalog has a leader: changes are possible.",
                int(status.leader is not None),
            )


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)
