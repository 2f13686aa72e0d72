"""Prometheus metrics of one member, rendered when somebody asks (HTTP /metrics).

The names of brokerd's own are here, RabbitMQ's on the same page in metrics_rabbitmq.py.  No labels
per queue, user or client, so that the number of series does not grow with use; who wants figures
per queue asks for metrics_detailed.py's page, brokerctl or the telemetry job.
docs/reference/metrics.md has the names of both side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from brokerd import __version__, compiled
from brokerd.core.alarms import DISK_STALLED
from brokerd.raft.messages import CATALOG_GROUP
from brokerd.server.access import login_records
from brokerd.server.catalog import cluster_name
from brokerd.server.loop.chunks import in_turns
from brokerd.server.members import kept_aside
from brokerd.server.messages.dead_letter_publisher import LATE_REASONS
from brokerd.server.observe import metrics_rabbitmq
from brokerd.server.observe.figures import Figures, Sources
from brokerd.server.observe.metrics_rabbitmq import counter, gauge

if TYPE_CHECKING:
    from brokerd.cluster.peer.certificate_files import CertificateFiles

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
    (
        *("dl_old_terms", "brokerd_queue_dead_letters_old_terms"),
        "Of these, dead letters that wait at least once, which the settings no longer say.",
    ),
    ("delayed", "brokerd_queue_messages_delayed", "Returned messages that wait to be ready again."),
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
    "job_out": "brokerd_queue_messages_taken_by_jobs",
}
#: What publishers are blocked for, in the order of the text of connection.blocked.
_REASONS = ("disk", "memory")


async def render(sources: Sources) -> bytes:
    """Return the exposition text (format 0.0.4)."""
    figures = Figures(sources)
    await figures.add_up()
    families = chain(_Figures(figures).collect(), metrics_rabbitmq.Families(figures).collect())
    return b"".join([generate_latest(_One(family)) async for family in in_turns(families)])


class _One(Collector):
    """A family by itself: all two hundred at once take 10 ms."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        """Return it."""
        return (self._family,)


class _Figures(Collector):
    """One member's own names."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._sources = figures.sources

    def collect(self) -> Iterable[Metric]:
        """Return all metrics, each family once."""
        yield from self._identity()
        yield from self._clients()
        yield from self._resources()
        yield from self._topology()
        yield self._shovels()
        yield from self._queues()
        yield from self._delayed()
        yield from self._consensus()
        yield from self._figures.process

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
        yield gauge("brokerd_cluster_members", "Members the catalog names.", len(members))
        yield gauge(
            "brokerd_cluster_members_running",
            "Members that this one hears, itself included.",
            sum(1 for name in members if name in alive),
        )

    def _clients(self) -> Iterator[Metric]:
        sources = self._sources
        connections = sources.connections
        opened = connections.all()
        yield gauge("brokerd_connections", "Open AMQP connections.", len(opened))
        blocked = GaugeMetricFamily(
            "brokerd_connections_blocked",
            "Connections that an alarm keeps from publishing.",
            labels=["reason"],
        )
        reason = "_".join(word for word in _REASONS if word in sources.runtime.alarms.reason())
        for each in (*_REASONS, "_".join(_REASONS)):
            blocked.add_metric([each], len(connections.blocked) if each == reason else 0)
        yield blocked
        yield gauge(
            "brokerd_connections_flow",
            "Connections not read, now or just before, for what they have on its way to queues.",
            self._figures.clients["in_flow"],
        )
        yield gauge("brokerd_channels", "Open AMQP channels.", self._figures.clients["channels"])
        yield counter(
            "brokerd_channels_opened",
            "AMQP channels and calls of Messages opened since the start.",
            connections.counts.channels_opened_total,
        )
        yield counter(
            "brokerd_messages_unroutable",
            "Messages of this member's clients that no queue took: returned or dropped.",
            sources.routing.unroutable_total,
        )
        yield counter(
            "brokerd_messages_refused",
            "Published messages that queues refused: home member down, or lasting damage.",
            sources.refused.total,
        )
        yield self._dropped()
        yield gauge(
            "brokerd_consumers",
            "Consumers of this member's channels and Consume calls.",
            len(sources.deliveries),
        )
        yield from self._sockets()
        yield from self._logins()
        yield from self._audit()
        yield from self._certificates()

    def _sockets(self) -> Iterator[Metric]:
        connections = self._sources.connections
        yield counter(
            "brokerd_connections_accepted",
            "AMQP sockets accepted since the start.",
            connections.accepted_total,
        )
        yield counter(
            "brokerd_connections_refused",
            "AMQP sockets refused for a limit since the start.",
            connections.refused_total,
        )
        yield counter(
            "brokerd_connections_lost",
            "AMQP clients that left without connection.close, or fell silent.",
            connections.lost_total,
        )
        yield counter(
            "brokerd_connections_displaced",
            "AMQP sockets dropped before their login to make room for others.",
            connections.displaced_total,
        )

    def _dropped(self) -> Metric:
        family = CounterMetricFamily(
            "brokerd_messages_dropped",
            "Messages that purges, ends of queues, policies and shovels took away here.",
            labels=["cause"],
        )
        for cause, count in self._sources.routing.dropped.totals.items():
            family.add_metric([cause], count)
        return family

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
        yield gauge(
            "brokerd_logins_waiting",
            "Logins whose password waits to be checked, or whose refusal waits.",
            checker.pending,
        )
        yield counter(
            "brokerd_password_checks",
            "Passwords that were hashed to check a login.",
            checker.checks_total,
        )

    def _audit(self) -> Iterator[Metric]:
        audit = self._sources.audit
        yield counter("brokerd_audit_records", "Records of the audit log.", audit.records_total)
        yield counter(
            "brokerd_audit_records_lost",
            "Records of the audit log that could not be written.",
            audit.lost_total,
        )

    def _resources(self) -> Iterator[Metric]:
        sources = self._sources
        monitor = sources.runtime.monitor
        if monitor is not None:
            yield gauge(
                "brokerd_memory_used_bytes", "Memory as the watermark sees it.", monitor.memory_used
            )
            yield gauge(
                "brokerd_memory_limit_bytes",
                "Memory above which publishers are blocked.",
                monitor.memory_limit,
            )
            yield gauge(
                "brokerd_disk_free_bytes", "Free space at the data directory.", monitor.disk_free
            )
            yield gauge(
                "brokerd_disk_free_limit_bytes",
                "Free space below which publishers are blocked.",
                monitor.disk_limit,
            )
            yield counter(
                "brokerd_disk_stalls",
                "Times that the disk did not answer the log for storage.stall_ms.",
                monitor.stalls.count,
            )
            yield counter(
                "brokerd_disk_stalled_seconds",
                "Seconds in which the disk did not answer, of these stalls, the one under way too.",
                monitor.stalls.total_s(),
            )
        parts = GaugeMetricFamily(
            "brokerd_memory_bytes", "Where the memory goes, estimated.", labels=["part"]
        )
        for part, size in self._figures.memory.items():
            parts.add_metric([part], size)
        yield parts
        alarms = GaugeMetricFamily(
            "brokerd_alarm", "1 while this member's alarm is on.", labels=["resource"]
        )
        on = sources.runtime.alarms.on(sources.node)
        for resource in ("memory", "disk", DISK_STALLED):
            alarms.add_metric([resource], int(resource in on))
        yield alarms

    def _topology(self) -> Iterator[Metric]:
        for kind, (name, text) in _OBJECTS.items():
            records = self._sources.view.records(kind, None)
            yield gauge(name, text, len(records))
        yield counter(
            "brokerd_queues_declared",
            "Queues of the cluster that came into being since this member's start.",
            self._sources.queue_groups.declared_total,
        )

    def _delayed(self) -> Iterator[Metric]:
        figures = self._figures
        yield gauge(
            "brokerd_exchange_messages_delayed",
            "Messages that wait in exchanges of type x-delayed-message.",
            figures.delayed,
        )
        late = GaugeMetricFamily(
            "brokerd_exchange_delayed_late_seconds",
            "How long the latest of them has been due, by what keeps it.",
            labels=["reason"],
        )
        for reason in LATE_REASONS:
            late.add_metric([reason or "none"], figures.late_ms[reason] / 1000)
        yield late

    def _shovels(self) -> Metric:
        """By state, those that there are none in as well: an alert needs their zero."""
        family = GaugeMetricFamily(
            "brokerd_shovels", "Shovels that this member runs, by state.", labels=["state"]
        )
        rows = self._sources.runtime.link_rows()
        states = Counter(row["status"] for row in rows if row["type"] == "shovel")
        for state in ("starting", "running", "blocked", "unroutable", "error"):
            family.add_metric([state], states[state])
        return family

    def _queues(self) -> Iterator[Metric]:
        yield gauge(
            "brokerd_queues_led", "Queues whose leader is this member.", self._figures.queues_led
        )
        yield gauge(
            "brokerd_queues_without_consumers",
            "Queues led here that hold ready messages and have no consumer.",
            self._figures.queues_unattended,
        )
        yield gauge(
            "brokerd_queue_messages_ready_max",
            "Ready messages of the queue led here that holds most.",
            self._figures.ready_max,
        )
        for key, name, text in _QUEUE_GAUGES:
            yield gauge(name, f"{text} Of the queues led here.", self._figures.gauges[key])
        for key, name in _QUEUE_COUNTERS.items():
            yield counter(
                name,
                "Since the queues were made; of the queues led here.",
                self._figures.counters[key],
            )

    def _consensus(self) -> Iterator[Metric]:
        host, groups = self._sources.host, self._figures.groups
        yield gauge("brokerd_raft_groups", "Raft groups with a replica here.", groups["here"])
        yield gauge(
            "brokerd_raft_groups_folded",
            "Of these, groups that stand still and take next to no memory.",
            len(host.folded),
        )
        yield gauge(
            "brokerd_raft_leaders", "Raft groups that this member leads.", groups["is_leader"]
        )
        yield gauge(
            "brokerd_raft_unapplied", "Committed entries not applied yet.", groups["lagging"]
        )
        yield gauge(
            "brokerd_raft_damaged", "Groups with damage in their log.", groups["is_damaged"]
        )
        yield gauge(
            "brokerd_raft_refilling",
            "Groups in which this member has no vote until they are refilled after a lost volume.",
            len(self._sources.refill.left()),
        )
        kept = [row for row in self._sources.kept_aside.rows() if kept_aside.is_alarming(row)]
        yield gauge(
            "brokerd_kept_aside",
            "Replicas whose leader lacks what is committed here; somebody must decide.",
            len(kept),
        )
        yield gauge(
            "brokerd_kept_aside_messages",
            "Messages that these have kept aside.",
            sum(row["messages"] for row in kept),
        )
        if host.has_group(CATALOG_GROUP):
            status = host.status_of(CATALOG_GROUP)
            yield gauge("brokerd_catalog_term", "Raft term of the catalog.", status.term)
            yield gauge(
                "brokerd_catalog_has_leader",
                "1 when the catalog has a leader: changes are possible.",
                int(status.leader is not None),
            )
