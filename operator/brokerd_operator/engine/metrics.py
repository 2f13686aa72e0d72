"""Prometheus metrics of the operator. For the engine and the HTTP server of the process."""

from __future__ import annotations

import prometheus_client


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
        self._seconds = prometheus_client.Histogram(
            prefix + "pass_seconds", "Duration of passes", ["kind"], registry=self.registry
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

    def render(self) -> bytes:
        """The Prometheus text."""
        return prometheus_client.generate_latest(self.registry)
