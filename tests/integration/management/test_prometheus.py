"""A real Prometheus scrapes three members: what dashboards and alerts ask for is there.

Our own dashboards' expressions are read from the chart.  Those of RabbitMQ's are built here from
the names of metrics that the panels of RabbitMQ-Overview and RabbitMQ-Raft
and the alerts of RabbitMQ's operator use (3.8 to 4.2), joined as they join them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
import yaml

from tests.integration.members import (
    REPOSITORY,
    Member,
    cluster,
    eventually,
    wait_acquainted,
)
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(240)

#: Rates need two samples of each series that has moved.
TRAFFIC_SECONDS = 6.0
IDENTITY = 'rabbitmq_identity_info{rabbitmq_cluster="tests", rabbitmq_endpoint="aggregated"}'
DASHBOARDS = REPOSITORY / "charts" / "brokerd-operator" / "files" / "dashboards"
#: What Grafana puts in; subqueries look at each second, since the test does not last for minutes.
VARIABLES = {
    "$namespace": "tests",
    "$brokercluster": "tests",
    "$__rate_interval": "60s",
    "[5m:30s]": "[5m:1s]",
}
LABELS = "rabbitmq_cluster, rabbitmq_node"

#: Gauges of the Overview, and whether traffic makes them more than 0.
GAUGES = {
    **dict.fromkeys(("queue_messages_ready", "queue_messages_unacked", "queue_messages"), True),
    **dict.fromkeys(("connections", "channels", "consumers", "queues", "channel_consumers"), True),
    **dict.fromkeys(("global_publishers", "global_consumers", "queue_consumers"), True),
    **dict.fromkeys(("resident_memory_limit_bytes", "process_resident_memory_bytes"), True),
    **dict.fromkeys(("disk_space_available_bytes", "disk_space_available_limit_bytes"), True),
    **dict.fromkeys(("process_max_fds", "process_open_fds", "erlang_uptime_seconds"), True),
    **dict.fromkeys(("process_max_tcp_sockets", "process_open_tcp_sockets"), True),
    **dict.fromkeys(("raft_entry_commit_latency_seconds", "raft_commit_latency_seconds"), True),
    "raft_log_snapshot_index": False,
    "raft_snapshot_index": False,
    "channel_messages_unconfirmed": False,
}
#: Counters whose rate or increase is shown.
COUNTERS = (
    {
        f"global_messages_{name}_total"
        for name in (
            *("received", "received_confirm", "confirmed", "routed", "unroutable_dropped"),
            *("unroutable_returned", "delivered", "redelivered", "acknowledged", "get_empty"),
            *("delivered_consume_auto_ack", "delivered_consume_manual_ack"),
            *("delivered_get_auto_ack", "delivered_get_manual_ack"),
        )
    }
    | {
        f"channel_{name}_total"
        for name in (
            *("messages_published", "messages_confirmed", "messages_delivered", "messages_acked"),
            *("messages_delivered_ack", "messages_redelivered", "get", "get_ack", "get_empty"),
            *("messages_unroutable_dropped", "messages_unroutable_returned"),
        )
    }
    | {
        f"{name}_total"
        for name in (
            *("connections_opened", "connections_closed", "channels_opened", "channels_closed"),
            *("queues_declared", "queues_created", "queues_deleted"),
            *("queue_messages_published", "auth_attempts_succeeded"),
        )
    }
)
RAFT = ("raft_log_commit_index", "raft_commit_index", "raft_log_last_applied_index")


def joined(operand: str) -> str:
    return f"{operand} * on(instance) group_left({LABELS}) {IDENTITY}"


def expressions() -> dict[str, bool]:
    """PromQL, and whether it must give more than 0."""
    found = {f"rabbitmq_build_info * on(instance) group_left({LABELS}) {IDENTITY}": True}
    for name, is_busy in GAUGES.items():
        found[f"sum({joined(f'rabbitmq_{name}')})"] = is_busy
        found[f"sum by(rabbitmq_node) ({joined(f'rabbitmq_{name}')})"] = is_busy
    for name in COUNTERS:
        found[f"sum by(rabbitmq_node) ({joined(f'rate(rabbitmq_{name}[60s])')})"] = True
    for name in RAFT:
        found[f"sum by(rabbitmq_node) ({joined(f'rate(rabbitmq_{name}[60s])')})"] = True
    for term in ("raft_term_total", "raft_term"):
        found[f"sum by(rabbitmq_node) ({joined(f'rate(rabbitmq_{term}[60s])')})"] = False
    for written, other in (
        ("raft_log_last_written_index", "raft_log_commit_index"),
        ("raft_last_written_index", "raft_commit_index"),
        ("raft_log_last_written_index", "raft_log_snapshot_index"),
        ("raft_last_written_index", "raft_snapshot_index"),
    ):
        difference = f"({joined(f'rabbitmq_{written}')}) - ({joined(f'rabbitmq_{other}')})"
        found[f"sum by(rabbitmq_node) ({difference})"] = "snapshot" in other
    sizes = joined("increase(rabbitmq_message_size_bytes_bucket[60s])")
    found[f"sum by(le) ({sizes})"] = True
    found[f"histogram_quantile(0.9, sum by(le) ({sizes}))"] = True
    total, count = (f"rate(rabbitmq_message_size_bytes_{end}[60s])" for end in ("sum", "count"))
    found[joined(f"({total} / {count})")] = True
    return found


def alerts() -> dict[str, bool]:
    """The alerts' left sides, so that they give series while nothing is wrong."""
    own = "rabbitmq_identity_info"
    plain = f"on(instance) group_left({LABELS}) {own}"
    found = {
        f"max by(rabbitmq_cluster) (max_over_time(rabbitmq_alarms_{alarm}[5m]) * {plain})": False
        for alarm in ("memory_used_watermark", "free_disk_space_watermark", "file_descriptor_limit")
    }
    per_member = f"on(instance) group_left({LABELS}) max by(instance, {LABELS}) ({own})"
    churn = " + ".join(
        f"sum by(rabbitmq_cluster) (rate(rabbitmq_connections_{what}_total[5m]) * {plain})"
        for what in ("closed", "opened")
    )
    by_queue = "(rabbitmq_detailed_queue_consumers == 0) + rabbitmq_detailed_queue_messages"
    longer = "avg_over_time(rabbitmq_detailed_queue_messages[10m])"
    found |= {
        f"sum by(rabbitmq_node) (max_over_time(rabbitmq_process_open_fds[5m]) * {per_member}) / "
        f"sum by(rabbitmq_node) (rabbitmq_process_max_fds * {per_member})": True,
        f"({churn}) / sum by(rabbitmq_cluster) (rabbitmq_connections * {plain})": True,
        f"predict_linear(rabbitmq_disk_space_available_bytes[24h], 86400) * {plain}": False,
        f"rabbitmq_disk_space_available_limit_bytes * {plain}": True,
        # The one without a consumer, with what lies in it.
        f"({by_queue} > 0) * on(instance, job) group_left(rabbitmq_cluster) {own}": True,
        f"{longer} * on(instance) group_left(rabbitmq_cluster) "
        f"max by(instance, rabbitmq_cluster) ({own})": True,
    }
    for what in ("dropped", "returned"):
        name = f"rabbitmq_channel_messages_unroutable_{what}_total"
        found[f"sum by(rabbitmq_cluster) (increase({name}[5m]) * {plain}) >= 1"] = True
    return found


def own_dashboards() -> dict[str, bool]:
    """Every expression of the chart's dashboards of members, as Grafana fills them in."""
    found = {}
    for name in ("overview", "queues"):
        dashboard = json.loads((DASHBOARDS / f"{name}.json").read_text())
        for text in (
            target["expr"] for panel in dashboard["panels"] for target in panel["targets"]
        ):
            for variable, value in VARIABLES.items():
                text = text.replace(variable, value)
            assert "$" not in text, text
            found[text] = False
    assert len(found) > 40
    return found


class Prometheus:
    """The server of Debian's package, on loopback with its data in a folder."""

    def __init__(self, folder: Path, members: list[Member]) -> None:
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        # As the chart's PodMonitor labels them.
        targets = [
            {
                "targets": [f"127.0.0.1:{member.http_port}" for member in members],
                "labels": {"namespace": "tests", "brokercluster": "tests"},
            }
        ]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [
                {"job_name": "brokerd", "static_configs": targets},
                {
                    "job_name": "brokerd-detailed",
                    "metrics_path": "/metrics/detailed",
                    "params": {"family": ["queue_coarse_metrics", "queue_consumer_count"]},
                    "static_configs": targets,
                    "relabel_configs": [
                        {
                            "source_labels": ["__address__"],
                            "target_label": "instance",
                            "replacement": "$1/detailed",
                        }
                    ],
                },
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with (folder / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--log.level=warn",
                ],
                stdout=log,
                stderr=log,
            )

    def is_ready(self) -> bool:
        assert self.process.poll() is None, "prometheus ended"
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{self._url}/-/ready", timeout=5).close()
            return True
        return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression, now."""
        text = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{text}", timeout=30) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def work(channels: list[pika.adapters.blocking_connection.BlockingChannel], name: str) -> None:
    """Do once what every counter counts; the queue `name` keeps a message each time."""
    publishing, consuming = channels
    publishing.connection.channel().close()
    for kind in ("acked", "auto", "got", name):
        publishing.basic_publish("", kind, b"x" * 50)
    publishing.basic_publish("", "nowhere", b"")
    with pytest.raises(pika.exceptions.UnroutableError):
        publishing.basic_publish("", "nowhere", b"", mandatory=True)
    publishing.connection.process_data_events(0)
    got = consuming.basic_get("got")[0]
    if got is not None:
        consuming.basic_reject(got.delivery_tag)
    got = consuming.basic_get("got")[0]
    if got is not None:
        consuming.basic_ack(got.delivery_tag)
    publishing.basic_publish("", "got", b"")
    consuming.basic_get("got", auto_ack=True)
    consuming.basic_get("empty")
    consuming.queue_declare("coming", durable=True)
    consuming.queue_delete("coming")


@contextlib.contextmanager
def traffic(members: list[Member]) -> Iterator[None]:
    """Clients at all members, for as long as rates need; they stay connected."""
    connections = [member.connect() for member in members]
    pairs = [(connection.channel(), connection.channel()) for connection in connections]
    first = pairs[0][0]
    for name in ("acked", "auto", "got", "kept", "empty"):
        quorum = {"x-queue-type": "quorum"} if name in ("acked", "kept") else {}
        first.queue_declare(name, durable=True, arguments=quorum)
    for publishing, consuming in pairs:
        publishing.confirm_delivery()
        consuming.basic_qos(prefetch_count=10)
        consuming.basic_consume("auto", lambda *_: None, auto_ack=True)
        consuming.basic_consume("acked", lambda c, m, *_: c.basic_ack(m.delivery_tag))
    holder = connections[0].channel()
    holder.basic_qos(prefetch_count=1)
    holder.basic_consume("kept", lambda *_: None)
    end = time.monotonic() + TRAFFIC_SECONDS
    while time.monotonic() < end:
        for pair, member in zip(pairs, members, strict=True):
            work(list(pair), "kept")
            member.connect().close()
    holder.basic_cancel(holder.consumer_tags[0])
    yield
    for connection in connections:
        connection.close()


def test_dashboards_and_alerts_of_rabbitmq_and_our_own_find_their_series(tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (apt-get install prometheus)")
    with cluster(tmp_path, 3) as members, contextlib.ExitStack() as stack:
        wait_acquainted(members)
        prometheus = Prometheus(tmp_path, members)
        stack.callback(prometheus.stop)
        eventually(prometheus.is_ready, "Prometheus is ready")
        stack.enter_context(traffic(members))
        wanted = expressions() | alerts() | own_dashboards()
        missing: dict[str, str] = {}

        def all_there() -> bool:
            missing.clear()
            for expression, is_busy in wanted.items():
                try:
                    values = [float(row["value"][1]) for row in prometheus.query(expression)]
                except OSError as error:
                    missing[expression] = str(error)
                    continue
                if not values or (is_busy and not max(values) > 0):
                    missing[expression] = f"{values}"
            return not missing

        try:
            eventually(all_there, "every expression gives series", 20)
        except AssertionError:
            pytest.fail("\n".join(f"{value}  {text}" for text, value in missing.items()))
        nodes = {row["metric"]["rabbitmq_node"] for row in prometheus.query(IDENTITY)}
        assert nodes == {member.name for member in members}

        def five_queues() -> bool:
            # The last scrape may have been while the one that comes and goes was there.
            (queues,) = prometheus.query(f"sum({joined('rabbitmq_queues')})")
            return float(queues["value"][1]) == 5

        eventually(five_queues, "each queue is counted once")
