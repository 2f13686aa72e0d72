"""RabbitMQ's names on /metrics, where the meaning is the same, for stock dashboards and alerts.

The names are those of the plugin rabbitmq_prometheus without labels for objects; both the ones of
3.10 and those that 4.x has in their place.  docs/reference/metrics.md says which there are, which
not, and why.  What the plugin counts per node is of this member's clients and of the queues it
leads.  Used by metrics.py and, for the two families that everything is joined on, by
metrics_detailed.py.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from brokerd import __version__
from brokerd.server.access import compatibility
from brokerd.server.catalog import cluster_name
from brokerd.server.listings.totals import MemberTotals
from brokerd.server.observe.figures import Figures, Sources
from brokerd.telemetry.client_totals import AMQP, GRPC, SIZE_BOUNDS, ClientTotals, QueueTypeTotals

#: Listeners of login_records.py by the protocol they speak.
_PROTOCOL_OF = {"amqp": AMQP, "amqps": AMQP}
#: Name after `rabbitmq_`, name of MemberTotals, help.
_CHURN = (
    ("connections_opened", "connection_created", "Connections that opened a vhost."),
    ("connections_closed", "connection_closed", "Of these, those that have ended."),
    ("channels_opened", "channel_created", "Channels opened."),
    ("channels_closed", "channel_closed", "Channels closed."),
    ("queues_declared", "queue_declared", "queue.declare that went well, new queue or not."),
    ("queues_created", "queue_created", "Queues made with this member as the first."),
    ("queues_deleted", "queue_deleted", "Queues deleted with this member as the first."),
)
#: Attribute of ClientTotals, name after `rabbitmq_global_messages_`, help.
_BY_PROTOCOL = (
    ("received", "received", "Messages received from publishers."),
    ("received_confirm", "received_confirm", "Messages received that ask for a confirm."),
    ("confirmed", "confirmed", "Messages confirmed to publishers."),
    ("routed", "routed", "Messages that went to a queue at least."),
    ("unroutable_dropped", "unroutable_dropped", "Messages dropped, since no queue took them."),
    ("unroutable_returned", "unroutable_returned", "Messages returned, since no queue took them."),
)
#: Attribute of QueueTypeTotals, name after `rabbitmq_global_messages_`, help.
_BY_QUEUE_TYPE = (
    ("delivered_all", "delivered", "Messages delivered to consumers and by basic.get."),
    ("consume_auto_ack", "delivered_consume_auto_ack", "Delivered to consumers without acks."),
    ("consume_manual_ack", "delivered_consume_manual_ack", "Delivered to consumers with acks."),
    ("get_auto_ack", "delivered_get_auto_ack", "Delivered by basic.get without acks."),
    ("get_manual_ack", "delivered_get_manual_ack", "Delivered by basic.get with acks."),
    ("redelivered", "redelivered", "Messages delivered that had been before."),
    ("acknowledged", "acknowledged", "Messages acknowledged by consumers."),
    ("get_empty", "get_empty", "basic.get that found nothing."),
)
#: Attribute of ClientTotals, name after `rabbitmq_channel_`, help: the sums of all protocols.
_OF_CHANNELS = (
    ("received", "messages_published", "Messages published."),
    ("confirmed", "messages_confirmed", "Messages confirmed."),
    ("unroutable_dropped", "messages_unroutable_dropped", "Dropped, since no queue took them."),
    ("unroutable_returned", "messages_unroutable_returned", "Returned, since no queue took them."),
)
#: Attribute of QueueTypeTotals, name after `rabbitmq_channel_`, help: the sums over both.
_OF_CHANNELS_BY_QUEUE_TYPE = (
    ("consume_auto_ack", "messages_delivered", "Delivered to consumers without acks."),
    ("consume_manual_ack", "messages_delivered_ack", "Delivered to consumers with acks."),
    ("redelivered", "messages_redelivered", "Messages delivered that had been before."),
    ("acknowledged", "messages_acked", "Messages acknowledged."),
    ("get_auto_ack", "get", "Delivered by basic.get without acks."),
    ("get_manual_ack", "get_ack", "Delivered by basic.get with acks."),
    ("get_empty", "get_empty", "basic.get that found nothing."),
)
#: Sum over groups, names of 3.10 and of 4.2, help.
_RAFT = (
    ("commit", "raft_log_commit_index", "raft_commit_index", "Commit index"),
    ("applied", "raft_log_last_applied_index", "raft_last_applied", "Last applied index"),
    ("last", "raft_log_last_written_index", "raft_last_written_index", "Last index of the log"),
    ("snapshot", "raft_log_snapshot_index", "raft_snapshot_index", "Index of the snapshot"),
)


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """Return a family of one gauge without labels."""
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """Return a family of one counter without labels."""
    return CounterMetricFamily(name, text, value=value)


def identity(sources: Sources, endpoint: str) -> Iterator[Metric]:
    """Return what stock dashboards join on; endpoint: "aggregated", "detailed" or "per-object"."""
    labels = {
        "rabbitmq_version": compatibility.compatible_version(sources.profile),
        "prometheus_plugin_version": __version__,
        "prometheus_client_version": version("prometheus_client"),
        # There is none here; dashboards have a column for it.
        "erlang_version": f"Python {platform.python_version()}",
        "product_name": "brokerd",
        "product_version": __version__,
    }
    text = "The RabbitMQ that the active profile follows, and what it runs on."
    family = GaugeMetricFamily("rabbitmq_build_info", text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    yield family
    labels = {
        "rabbitmq_node": sources.node,
        "rabbitmq_cluster": cluster_name.of(sources.cluster_name, sources.view),
        "rabbitmq_cluster_permanent_id": sources.view.cluster_id,
        "rabbitmq_endpoint": endpoint,
    }
    family = GaugeMetricFamily("rabbitmq_identity_info", "Who this is.", labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    yield family


class Families(Collector):
    """The names of one member."""

    def __init__(self, figures: Figures, prefix: str = "rabbitmq_") -> None:
        """prefix: of all names but those of `identity`."""
        self._figures = figures
        self._sources = figures.sources
        self._totals = figures.sources.routing.counters.totals
        self._prefix = prefix

    def collect(self) -> Iterable[Metric]:
        """Return all families, each once."""
        yield from identity(self._sources, "aggregated")
        yield from self.churn()
        yield from self._clients()
        yield from self.logins()
        yield from self.node()
        yield from self.limits()
        yield from self.peers()
        yield from self.alarms()
        yield from self._queues()
        yield from self.messages()
        yield from self._channels()
        yield from self._raft()

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        return gauge(self._prefix + name, text, value)

    def _counter(self, name: str, text: str, value: float) -> Metric:
        return counter(self._prefix + name, text, value)

    # ---- who comes and goes ---------------------------------------------------------------------

    def churn(self) -> Iterator[Metric]:
        """Return what began and ended since the start (connection_churn_metrics)."""
        sources = self._sources
        churn = MemberTotals(sources.connections, sources.queue_groups, self._totals).churn()
        for name, key, text in _CHURN:
            yield self._counter(name, f"{text} Since the start.", churn[key])

    def logins(self) -> Iterator[Metric]:
        """Return logins by protocol (auth_attempt_metrics)."""
        logins = self._sources.logins
        accepted: dict[str, int] = {AMQP: 0, GRPC: 0}
        refused = dict(accepted)
        for listener, count in logins.accepted.items():
            protocol = _PROTOCOL_OF.get(listener, listener)
            accepted[protocol] = accepted.get(protocol, 0) + count
        for (listener, _), count in logins.refused.items():
            protocol = _PROTOCOL_OF.get(listener, listener)
            refused[protocol] = refused.get(protocol, 0) + count
        protocols = sorted({*accepted, *refused})
        both = {name: accepted.get(name, 0) + refused.get(name, 0) for name in protocols}
        for name, text, values in (
            ("auth_attempts", "Logins; on gRPC, calls.", both),
            ("auth_attempts_succeeded", "Logins that were accepted.", accepted),
            ("auth_attempts_failed", "Logins that were refused.", refused),
        ):
            family = CounterMetricFamily(self._prefix + name, text, labels=["protocol"])
            for protocol in protocols:
                family.add_metric([protocol], values.get(protocol, 0))
            yield family

    def _clients(self) -> Iterator[Metric]:
        clients, sums = self._sources.connections, self._figures.clients
        calls, channels = clients.call_count, clients.channel_count
        consumers = len(self._sources.deliveries)
        yield self._gauge("connections", "Open connections.", len(clients) + calls)
        yield self._gauge("channels", "Open channels.", channels)
        yield self._gauge("connection_channels", "Channels of open connections.", channels)
        yield self._gauge("consumers", "Consumers of this member's channels.", consumers)
        yield self._gauge("channel_consumers", "Consumers of this member's channels.", consumers)
        yield self._gauge(
            "channel_messages_unacked", "Delivered on open channels, not settled.", sums["unacked"]
        )
        yield self._gauge(
            "channel_messages_unconfirmed",
            "Published on open channels, not confirmed.",
            sums["unconfirmed"],
        )
        for name, key in (("incoming", "received_bytes"), ("outgoing", "sent_bytes")):
            yield self._counter(
                f"connection_{name}_bytes", "Bytes of the open AMQP connections.", sums[key]
            )
        # The others are of calls: each consumes or publishes.
        reading = max(0, consumers - sums["consumers"])
        by_protocol = (
            ("global_consumers", "Consumers.", sums["consumers"], reading),
            ("global_publishers", "Channels that publish.", sums["publishers"], calls - reading),
        )
        for name, text, of_amqp, of_grpc in by_protocol:
            family = GaugeMetricFamily(self._prefix + name, text, labels=["protocol"])
            family.add_metric([AMQP], of_amqp)
            family.add_metric([GRPC], of_grpc)
            yield family

    # ---- the member -----------------------------------------------------------------------------

    def node(self) -> Iterator[Metric]:
        """Return what the process uses (node_coarse_metrics)."""
        process = self._figures.process_value
        yield self._gauge("process_open_fds", "Open file descriptors.", process("open_fds"))
        yield self._gauge(
            "process_open_tcp_sockets",
            "Open AMQP sockets.",
            self._sources.connections.socket_count,
        )
        monitor = self._sources.runtime.monitor
        if monitor is not None:
            yield self._gauge(
                "process_resident_memory_bytes",
                "Memory as the watermark sees it.",
                monitor.memory_used,
            )
            yield self._gauge(
                "disk_space_available_bytes",
                "Free space at the data directory.",
                monitor.disk_free,
            )

    def limits(self) -> Iterator[Metric]:
        """Return what it may use, and since when it runs (node_metrics)."""
        sources, process = self._sources, self._figures.process_value
        yield self._gauge("process_max_fds", "Limit of file descriptors.", process("max_fds"))
        yield self._gauge(
            "process_max_tcp_sockets", "Limit of AMQP sockets.", sources.connections.sockets_max
        )
        began_s = process("start_time_seconds")
        uptime_s = max(0.0, time.time() - began_s) if began_s else 0.0
        yield self._gauge("erlang_uptime_seconds", "Since the process began.", uptime_s)
        if (monitor := sources.runtime.monitor) is not None:
            yield self._gauge(
                "resident_memory_limit_bytes",
                "Memory above which publishers are blocked.",
                monitor.memory_limit,
            )
            yield self._gauge(
                "disk_space_available_limit_bytes",
                "Free space below which publishers are blocked.",
                monitor.disk_limit,
            )

    def peers(self) -> Iterator[Metric]:
        """Return how many of the other members are silent."""
        sources = self._sources
        silent = set(sources.view.members()) - set(map(str, sources.host.alive())) - {sources.node}
        text = "Members of the cluster that this one does not hear."
        yield self._gauge("unreachable_cluster_peers_count", text, len(silent))

    def alarms(self) -> Iterator[Metric]:
        """Return this member's alarms."""
        on = self._sources.runtime.alarms.on(self._sources.node)
        for name, is_on in (
            ("alarms_memory_used_watermark", "memory" in on),
            ("alarms_free_disk_space_watermark", "disk" in on),
            # Clients beyond the limit are refused; no client is blocked for it.
            ("alarms_file_descriptor_limit", False),
        ):
            yield self._gauge(name, "1 while this member's alarm is on.", int(is_on))

    # ---- queues and messages --------------------------------------------------------------------

    def _queues(self) -> Iterator[Metric]:
        figures, gauges = self._figures, self._figures.gauges
        routed = sum(totals.copies for totals in self._totals.values())
        yield self._gauge("queues", "Queues led here.", figures.queues_led)
        yield self._gauge("queue_consumers", "Consumers of queues led here.", gauges["consumers"])
        for name, text, value in (
            ("", "Ready and unsettled messages", gauges["ready"] + gauges["unacked"]),
            ("_ready", "Messages ready for delivery", gauges["ready"]),
            ("_unacked", "Messages delivered and not settled", gauges["unacked"]),
            ("_bytes", "Bytes of these", gauges["ready_bytes"] + gauges["unacked_bytes"]),
            ("_ready_bytes", "Bytes of ready messages", gauges["ready_bytes"]),
            ("_unacked_bytes", "Bytes of unsettled messages", gauges["unacked_bytes"]),
        ):
            yield self._gauge(f"queue_messages{name}", f"{text}, of queues led here.", value)
        for name in ("queue_messages_published", "queue_exchange_messages_published"):
            yield self._counter(name, "Messages sent to queues, once for each queue.", routed)

    def messages(self) -> Iterator[Metric]:
        for attribute, name, text in _BY_PROTOCOL:
            family = CounterMetricFamily(
                f"{self._prefix}global_messages_{name}", text, labels=["protocol"]
            )
            for protocol, totals in self._totals.items():
                family.add_metric([protocol], getattr(totals, attribute))
            yield family
        for attribute, name, text in _BY_QUEUE_TYPE:
            family = CounterMetricFamily(
                f"{self._prefix}global_messages_{name}", text, labels=["protocol", "queue_type"]
            )
            for protocol, totals in self._totals.items():
                for queue_type, of_type in _by_type(totals):
                    family.add_metric([protocol, queue_type], getattr(of_type, attribute))
            yield family
        yield self._sizes()

    def _sizes(self) -> Metric:
        family = HistogramMetricFamily(
            f"{self._prefix}message_size_bytes",
            "Bodies of messages received from publishers.",
            labels=["protocol"],
        )
        for protocol, totals in self._totals.items():
            count, buckets = 0, []
            for bound, here in zip((*map(str, SIZE_BOUNDS), "+Inf"), totals.sizes, strict=True):
                count += here
                buckets.append((bound, float(count)))
            family.add_metric([protocol], buckets, totals.received_bytes)
        return family

    def _channels(self) -> Iterator[Metric]:
        """Return what channels did, which 4.x shows once more as of exchanges and queues."""
        every = list(self._totals.values())
        for attribute, name, text in _OF_CHANNELS:
            value = sum(getattr(totals, attribute) for totals in every)
            for of in ("channel", "exchange"):
                yield self._counter(f"{of}_{name}", text, value)
        of_types = [of_type for totals in every for _, of_type in _by_type(totals)]
        for attribute, name, text in _OF_CHANNELS_BY_QUEUE_TYPE:
            value = sum(getattr(of_type, attribute) for of_type in of_types)
            for of in ("channel", "queue"):
                yield self._counter(f"{of}_{name}", text, value)

    # ---- consensus ------------------------------------------------------------------------------

    def _raft(self) -> Iterator[Metric]:
        groups = self._figures.groups
        term = "Terms of the Raft groups here, added up."
        yield self._counter("raft_term", term, groups["term"])
        yield self._gauge("raft_term", term, groups["term"])
        for key, *names, text in _RAFT:
            for name in names:
                yield self._gauge(name, f"{text} of the Raft groups here, added up.", groups[key])
        latency_s = self._sources.commit_times.seconds()
        for name in ("raft_entry_commit_latency_seconds", "raft_commit_latency_seconds"):
            yield self._gauge(
                name, "How long a command took last until it was applied, sampled.", latency_s
            )


def _by_type(totals: ClientTotals) -> tuple[tuple[str, QueueTypeTotals], ...]:
    return ("rabbit_classic_queue", totals.classic), ("rabbit_quorum_queue", totals.quorum)
