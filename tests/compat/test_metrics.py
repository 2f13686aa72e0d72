"""RabbitMQ's metrics, name by name: which a member has as well, as docs/reference says.

A RabbitMQ with the plugin rabbitmq_prometheus and a brokerd see the same clients; then both pages
are read.
"""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pika
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.members import cluster, eventually
from tests.rabbitmq_node import PROMETHEUS, rabbit_node

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics-rabbitmq.md"
#: Families that 3.10 does not know, brokerd's own among them, and what it does not have in others.
NEWER = {
    "queue_delivery_metrics",
    "exchange_bindings",
    "queue_traffic_metrics",
    "exchange_delayed_metrics",
}
#: A gauge whose name is RabbitMQ's and ends as no gauge's should.
RABBITMQS = "rabbitmq_unreachable_cluster_peers_count"
NEWER_NAMES = {"rabbitmq_detailed_queue_info"}


#: Without labels: what both count alike.
ALIKE = (
    *("channels", "connections", "consumers", "channel_consumers", "connection_channels"),
    *("channels_opened_total", "channels_closed_total", "connections_opened_total"),
    *("queues", "queues_declared_total", "queues_created_total", "queues_deleted_total"),
    *("queue_messages", "queue_messages_ready", "queue_messages_unacked", "queue_consumers"),
    "channel_messages_unacked",
    *("channel_messages_published_total", "channel_messages_confirmed_total"),
    *("channel_get_empty_total", "channel_get_total", "channel_get_ack_total"),
    *("channel_messages_acked_total", "channel_messages_delivered_ack_total"),
    *("channel_messages_unroutable_dropped_total",),
    "channel_messages_unroutable_returned_total",
    *("alarms_memory_used_watermark", "alarms_free_disk_space_watermark"),
    *("disk_space_available_limit_bytes", "process_max_fds"),
)


def families() -> list[str]:
    """Names of families in the first column of the second table."""
    table = PAGE.read_text().split("## /metrics/detailed")[1]
    cells = re.findall(r"^\| (`[^|]*) \|", table, flags=re.M)
    return [name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)]


class Broker:
    """Where a broker's metrics and clients are."""

    def __init__(self, amqp_port: int, http_port: int) -> None:
        self.amqp_port = amqp_port
        self._http = f"http://127.0.0.1:{http_port}"

    def text(self, path: str) -> str:
        with urllib.request.urlopen(self._http + path, timeout=60) as answer:
            found: str = answer.read().decode()
        return found

    def names(self, path: str) -> set[str]:
        """Return the names that have a type."""
        return set(re.findall(r"^# TYPE (\S+)", self.text(path), flags=re.M))

    def figures(
        self, path: str = "/metrics"
    ) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Return samples by name and labels."""
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.text(path))
            for sample in family.samples
        }

    def work(self) -> Any:
        """Do what counters count; return the connection, which holds messages."""
        parameters = pika.ConnectionParameters("127.0.0.1", self.amqp_port)
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_declare("classic", durable=True)
        channel.queue_declare("classic", durable=True)
        channel.queue_declare("gone", durable=True)
        channel.queue_delete("gone")
        channel.basic_publish("", "classic", b"without confirm")
        channel.confirm_delivery()
        for _ in range(6):
            channel.basic_publish("", "quorum", b"12345678")
            channel.basic_publish("", "classic", b"12345678")
        channel.basic_publish("", "nowhere", b"")
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("", "nowhere", b"", mandatory=True)
        consuming = connection.channel()
        taken: list[int] = []
        consuming.basic_qos(prefetch_count=4)
        consuming.basic_consume(
            "quorum", lambda _, method, *rest: taken.append(method.delivery_tag)
        )
        while len(taken) < 4:
            connection.process_data_events(1)
        consuming.basic_ack(taken[1], multiple=True)
        consuming.basic_nack(taken[2], requeue=False)
        got = channel.basic_get("classic")[0]
        channel.basic_ack(got.delivery_tag)
        channel.basic_get("classic", auto_ack=True)
        got = channel.basic_get("classic")[0]
        channel.basic_reject(got.delivery_tag, requeue=True)
        auto = connection.channel()
        seen: list[bytes] = []
        auto.basic_consume("classic", lambda *rest: seen.append(rest[-1]), auto_ack=True)
        while len(seen) < 5 or len(taken) < 6:
            connection.process_data_events(1)
        auto.close()
        assert channel.basic_get("classic")[0] is None
        return connection


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Broker]]:
    """Both, with the same behind them."""
    folder = tmp_path_factory.mktemp("metrics")
    environment = {"BROKERD_COMPAT_PROFILE": "rabbitmq-3.10"}
    with (
        rabbit_node(folder / "rabbitmq", PROMETHEUS) as node,
        cluster(folder, 1, **environment) as [member],
    ):
        made = {
            "rabbitmq": Broker(node.amqp_port, node.http_port),
            "brokerd": Broker(member.amqp_port, member.http_port),
        }
        connections = [broker.work() for broker in made.values()]
        yield made
        for connection in connections:
            connection.close()


def listed() -> list[tuple[str, bool]]:
    """Names and patterns of the first table, and whether they are here."""
    table = PAGE.read_text().split("## /metrics\n")[1].split("Names of 4.x")[0]
    return [
        (name, verdict == "yes")
        for names, verdict in re.findall(r"^\| (`.*?) \| (yes|no) \|", table, flags=re.M)
        for name in re.findall(r"`([a-z_*]+)`", names)
    ]


def test_each_name_of_rabbitmq_is_on_the_page_and_the_page_is_right(
    brokers: dict[str, Broker],
) -> None:
    theirs, ours = brokers["rabbitmq"].names("/metrics"), brokers["brokerd"].names("/metrics")
    rows = listed()
    wrong = []
    for name in sorted(theirs):
        verdicts = [is_here for pattern, is_here in rows if fnmatchcase(name, pattern)]
        if verdicts != [name in ours]:
            wrong.append(f"{name}: on the page {verdicts}, here {name in ours}")
    wrong += [
        f"{pattern}: RabbitMQ has no such name"
        for pattern, _ in rows
        if not any(fnmatchcase(name, pattern) for name in theirs)
    ]
    named = set(re.findall(r"`(rabbitmq_[a-z_]+)`", PAGE.read_text()))
    wrong += [
        f"{name}: not on the page"
        for name in sorted(ours)
        if name.startswith("rabbitmq_") and name not in named
    ]
    assert not wrong, "\n".join(wrong)


def compared(broker: Broker) -> dict[str, float]:
    """Return what both brokers must agree on."""
    figures = broker.figures()
    found = {name: figures[f"rabbitmq_{name}", ()] for name in ALIKE}
    for (name, labels), value in figures.items():
        if (
            name.startswith("rabbitmq_global_")
            and not name.startswith("rabbitmq_global_messages_dead")
            # One channel has published; RabbitMQ forgets it when another one closes.
            and name != "rabbitmq_global_publishers"
            and ("protocol", "amqp091") in labels
            and ("queue_type", "rabbit_stream_queue") not in labels
        ):
            found[f"{name}{labels}"] = value
    return found


def test_counters_and_gauges_agree_after_the_same_work(brokers: dict[str, Broker]) -> None:
    different: dict[str, tuple[float, float | None]] = {}

    def alike() -> bool:
        theirs, ours = (compared(broker) for broker in brokers.values())
        different.clear()
        for name, value in theirs.items():
            if ours.get(name) != value:
                different[name] = value, ours.get(name)
        return not different

    try:
        # RabbitMQ looks at its channels every half second, at its queues every five.
        eventually(alike, "the same figures", 20)
    except AssertionError:
        pytest.fail(f"(RabbitMQ, brokerd): {different}")


@pytest.mark.parametrize("family", families())
def test_detailed_families_have_names_of_rabbitmq(brokers: dict[str, Broker], family: str) -> None:
    path = f"/metrics/detailed?family={family}"
    theirs, ours = brokers["rabbitmq"].names(path), brokers["brokerd"].names(path)
    assert {"rabbitmq_identity_info", "rabbitmq_build_info"} <= ours
    assert ours - NEWER_NAMES <= theirs or family in NEWER
    assert len(ours) > 2


def test_detailed_figures_agree_by_queue(brokers: dict[str, Broker]) -> None:
    query = "family=queue_coarse_metrics&family=queue_consumer_count&vhost=%2F&vhost=other"

    def of_queues(broker: Broker) -> dict[Any, float]:
        return {
            key: value
            for key, value in broker.figures(f"/metrics/detailed?{query}").items()
            if key[1][:1] == (("queue", dict(key[1]).get("queue")),)
            and not key[0].endswith("reductions_total")
        }

    def alike() -> bool:
        theirs, ours = (of_queues(broker) for broker in brokers.values())
        return theirs == ours and len(ours) == 8

    eventually(alike, "the same figures by queue", 20)
    for broker in brokers.values():
        assert not of_queues_in(broker, "none")


def of_queues_in(broker: Broker, vhost: str) -> list[Any]:
    path = f"/metrics/detailed?family=queue_coarse_metrics&vhost={vhost}"
    return [key for key in broker.figures(path) if "queue" in dict(key[1])]


def test_promtool_finds_nothing_to_complain_about(brokers: dict[str, Broker]) -> None:
    query = "&".join(f"family={family}" for family in families())
    pages = ("/metrics", "/metrics/per-object", "/metrics/detailed", f"/metrics/detailed?{query}")
    for path in pages:
        done = subprocess.run(
            ["promtool", "check", "metrics"],
            input=brokers["brokerd"].text(path),
            text=True,
            capture_output=True,
            timeout=60,
        )
        complaints = [line for line in done.stderr.splitlines() if RABBITMQS not in line]
        assert (done.stdout, complaints) == ("", []), path
