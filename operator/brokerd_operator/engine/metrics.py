"""Prometheus metrics of the operator. For the engine and the HTTP server of the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import prometheus_client


class ClusterSeries:
    """A gauge of things of BrokerClusters that come and go."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        registry: prometheus_client.CollectorRegistry,
    ) -> None:
        names = ["namespace", "cluster", *labels]
        self._gauge = prometheus_client.Gauge(name, text, names, registry=registry)
        #: Series that there are, by cluster.
        self._present: dict[tuple[str, str], frozenset[tuple[str, ...]]] = {}

    def replace(
        self, namespace: str, cluster: str, values: Mapping[tuple[str, ...], float]
    ) -> None:
        """What there is of a cluster now, by the other labels; nothing of one that is gone."""
        for labels in self._present.pop((namespace, cluster), frozenset()) - values.keys():
            self._gauge.remove(namespace, cluster, *labels)
        for labels, value in values.items():
            self._gauge.labels(namespace, cluster, *labels).set(value)
        if values:
            self._present[namespace, cluster] = frozenset(values)


class Metrics:
    """Owns a registry of its own, so that several engines in one process do not clash."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        prefix = "brokerd_operator_"
        self._passes = prometheus_client.Counter(
            prefix + "passes", "Passes over resources", ["kind"], registry=self.registry
        )
        self._errors = prometheus_client.Counter(
            prefix + "pass_errors",
            "Passes that ended with an unexpected error",
            ["kind"],
            registry=self.registry,
        )
        self._writes = prometheus_client.Counter(
            prefix + "status_writes", "Statuses written", ["kind"], registry=self.registry
        )
        self._repairs = prometheus_client.Counter(
            prefix + "drift_repairs", "Drift repaired", ["kind"], registry=self.registry
        )
        self._left = prometheus_client.Counter(
            prefix + "left_behind", "Objects left in a broker", ["kind"], registry=self.registry
        )
        self._unavailable = prometheus_client.Gauge(
            prefix + "namespace_unavailable",
            "1 while a watched namespace does not let the operator in",
            ["namespace"],
            registry=self.registry,
        )
        self._leading = prometheus_client.Gauge(
            prefix + "leading",
            "1 while this process holds the Lease: it is the one that works",
            registry=self.registry,
        )
        prometheus_client.ProcessCollector("brokerd_operator", registry=self.registry)
        self._seconds = prometheus_client.Histogram(
            prefix + "pass_seconds", "Duration of passes", ["kind"], registry=self.registry
        )

        #: When its certificates expire, by Secret.
        self.expiries = ClusterSeries(
            prefix + "certificate_expiry_timestamp_seconds",
            "When a certificate of a BrokerCluster expires, in seconds since 1970",
            ["secret"],
            self.registry,
        )
        #: When its members ended last that were started again in their pods, by member and reason.
        self.ends = ClusterSeries(
            prefix + "member_ended_timestamp_seconds",
            "When a member that was started again in its pod had ended, in seconds since 1970",
            ["member", "reason"],
            self.registry,
        )

    def passed(self, kind: str, seconds: float) -> None:
        self._passes.labels(kind).inc()
        self._seconds.labels(kind).observe(seconds)

    def failed(self, kind: str) -> None:
        self._errors.labels(kind).inc()

    def status_written(self, kind: str) -> None:
        self._writes.labels(kind).inc()

    def repaired(self, kind: str) -> None:
        self._repairs.labels(kind).inc()

    def left_behind(self, kind: str) -> None:
        self._left.labels(kind).inc()

    def namespace_unavailable(self, namespace: str, is_unavailable: bool) -> None:
        self._unavailable.labels(namespace).set(is_unavailable)

    def leads(self, is_leading: Callable[[], bool]) -> None:
        """Ask this, with each scrape, whether the process holds the Lease."""
        self._leading.set_function(is_leading)

    def render(self) -> bytes:
        """The Prometheus text."""
        return prometheus_client.generate_latest(self.registry)
