"""Prometheus metrics of one member, rendered when somebody asks (HTTP /metrics).

Nothing is counted here: figures are read from the machines, registers and monitors that keep them.
No labels per queue, user or client, so that the number of series does not grow with use; who wants
figures per queue has brokerctl and the telemetry job.  docs/reference/metrics.md names RabbitMQ's
counterparts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from brokerd import __version__
from brokerd.raft.messages import CATALOG_GROUP
from brokerd.server.slices import in_slices

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

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
    "purged": "brokerd_queue_messages_purged",
    "refused": "brokerd_queue_messages_refused",
    "dl_out": "brokerd_queue_messages_dead_lettered",
    "get_empty": "brokerd_queue_gets_empty",
}


async def render(broker: Broker) -> bytes:
    """Return the exposition text (format 0.0.4)."""
    figures = _Figures(broker)
    await figures.add_up()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(figures)
    return generate_latest(registry)


class _Figures(Collector):
    """Reads one member."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Over the queues led here.
        self._queues_led = 0
        self._gauges: Counter[str] = Counter()
        self._counters: Counter[str] = Counter()
        #: Over the Raft groups with a replica here.
        self._groups: Counter[str] = Counter()

    async def add_up(self) -> None:
        """Sum what is read queue by queue and group by group."""
        broker = self._broker
        async for uids in in_slices(list(broker.leaders.led)):
            for _, machine in broker.led_queues(uids):
                overview = machine.overview()
                self._queues_led += 1
                for key, _, _ in _QUEUE_GAUGES:
                    self._gauges[key] += overview[key]
                self._counters.update(overview["counters"])
        host = broker.host
        async for uids in in_slices(host.groups()):
            for uid in filter(host.has_group, uids):
                status = host.status_of(uid)
                self._groups["here"] += 1
                self._groups["leading"] += status.is_leader
                self._groups["lagging"] += status.commit - status.applied
                self._groups["damaged"] += status.is_damaged

    def collect(self) -> Iterable[Metric]:
        """Return all metrics, each family once."""
        yield from self._identity()
        yield from self._clients()
        yield from self._resources()
        yield from self._topology()
        yield from self._queues()
        yield from self._consensus()

    def _identity(self) -> Iterator[Metric]:
        broker = self._broker
        info = GaugeMetricFamily(
            "brokerd_build_info", "Version of this member.", labels=["version", "node", "cluster"]
        )
        info.add_metric([__version__, broker.node, broker.view.cluster_name], 1)
        yield info
        alive = broker.host.alive() | {broker.node}
        members = broker.view.members()
        yield _gauge("brokerd_cluster_members", "Members the catalog names.", len(members))
        yield _gauge(
            "brokerd_cluster_members_running",
            "Members that this one hears, itself included.",
            sum(1 for name in members if name in alive),
        )

    def _clients(self) -> Iterator[Metric]:
        broker = self._broker
        connections = broker.connections
        opened = connections.all()
        yield _gauge("brokerd_connections", "Open AMQP connections.", len(opened))
        yield _gauge(
            "brokerd_connections_blocked",
            "Connections that an alarm keeps from publishing.",
            sum(1 for connection in opened if connections.is_blocked(connection)),
        )
        yield _gauge(
            "brokerd_channels",
            "Open AMQP channels.",
            sum(len(connection.sessions) for connection in opened),
        )
        yield _gauge(
            "brokerd_consumers",
            "Consumers of this member's channels and Consume calls.",
            len(broker.deliveries),
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

    def _resources(self) -> Iterator[Metric]:
        broker = self._broker
        monitor = broker.monitor
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
        alarms = GaugeMetricFamily(
            "brokerd_alarm", "1 while this member's alarm is on.", labels=["resource"]
        )
        on = broker.alarms.on(broker.node)
        for resource in ("memory", "disk"):
            alarms.add_metric([resource], int(resource in on))
        yield alarms

    def _topology(self) -> Iterator[Metric]:
        for kind, (name, text) in _OBJECTS.items():
            records = self._broker.view.records(kind, None)
            yield _gauge(name, text, len(records))

    def _queues(self) -> Iterator[Metric]:
        yield _gauge("brokerd_queues_led", "Queues whose leader is this member.", self._queues_led)
        for key, name, text in _QUEUE_GAUGES:
            yield _gauge(name, f"{text} Of the queues led here.", self._gauges[key])
        for key, name in _QUEUE_COUNTERS.items():
            yield _counter(
                name,
                "Since the queues were made; of the queues led here.",
                self._counters[key],
            )

    def _consensus(self) -> Iterator[Metric]:
        host, groups = self._broker.host, self._groups
        yield _gauge("brokerd_raft_groups", "Raft groups with a replica here.", groups["here"])
        yield _gauge(
            "brokerd_raft_leaders", "Raft groups that this member leads.", groups["leading"]
        )
        yield _gauge(
            "brokerd_raft_unapplied", "Committed entries not applied yet.", groups["lagging"]
        )
        yield _gauge("brokerd_raft_damaged", "Groups with damage in their log.", groups["damaged"])
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
