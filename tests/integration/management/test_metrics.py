"""The metrics of a real member as Prometheus reads them."""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("metrics"), 1) as members:
        yield members[0]


def scrape(member: Member) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return samples by name and label values; each family must come once."""
    url = f"http://127.0.0.1:{member.http_port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    families = list(text_string_to_metric_families(text))
    # raft_term is RabbitMQ's name of two: a counter with _total, and since 4.2 a gauge without.
    assert len({(family.name, family.type) for family in families}) == len(families)
    assert all(family.documentation for family in families)
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_figures_follow_what_clients_do(member: Member) -> None:
    # What another test had goes a moment after its connection.
    before = eventually(
        lambda: (
            found
            if (found := scrape(member))["brokerd_connections", ()] == 0
            and found["brokerd_queues", ()] == 0
            else None
        ),
        "nobody is there",
    )
    assert before["brokerd_cluster_members", ()] == before["brokerd_raft_leaders", ()] == 1
    assert before["brokerd_alarm", ("memory",)] == 0
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare("m", durable=True, arguments={"x-queue-type": "quorum"})
    channel.confirm_delivery()
    for _ in range(5):
        channel.basic_publish("", "m", b"12345678")
    delivered = [channel.basic_get("m") for _ in range(2)]
    channel.basic_ack(delivered[0][0].delivery_tag)
    during = eventually(
        lambda: (
            found if (found := scrape(member))["brokerd_queue_messages_unacked", ()] == 1 else None
        ),
        "one message is acknowledged",
    )
    assert during["brokerd_connections", ()] == during["brokerd_channels", ()] == 1
    assert during["brokerd_queue_messages_ready", ()] == 3
    assert during["brokerd_queue_messages_ready_bytes", ()] >= 24
    assert during["brokerd_queue_messages_enqueued_total", ()] == 5
    assert during["brokerd_queue_messages_acknowledged_total", ()] == 1
    assert during["brokerd_queues_led", ()] == 1
    assert during["brokerd_raft_groups", ()] == 2
    assert during["brokerd_raft_groups_folded", ()] == 0
    assert during["brokerd_memory_used_bytes", ()] > 0
    channel.queue_delete("m")
    connection.close()
    eventually(lambda: scrape(member)["brokerd_queues", ()] == 0, "the queue is gone")


def test_the_number_of_series_does_not_grow_with_queues(member: Member) -> None:
    """Figures per queue are the telemetry's business (design/telemetry.md §2)."""
    connection = member.connect()
    channel = connection.channel()
    before = len(scrape(member))
    for i in range(20):
        channel.queue_declare(f"series-{i}", exclusive=True)
    assert len(scrape(member)) == before
    connection.close()


def test_figures_that_alerts_need_are_there(member: Member) -> None:
    """charts/brokerd-operator/files/alerts.yaml asks for them."""
    before = scrape(member)
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare("unattended", durable=True)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "unattended", b"x")
    for _ in range(2):
        channel.basic_publish("", "nowhere", b"x")
    connection.channel().close()
    during = scrape(member)

    def grown(name: str) -> float:
        return during[name, ()] - before[name, ()]

    assert grown("brokerd_messages_unroutable_total") == 2
    assert grown("brokerd_channels_opened_total") == 2
    assert grown("brokerd_connections_accepted_total") == 1
    assert grown("brokerd_queues_declared_total") == 1
    assert during["brokerd_queues_without_consumers", ()] == 1
    assert during["brokerd_queue_messages_ready_max", ()] == 3
    assert during["brokerd_raft_refilling", ()] == during["brokerd_raft_damaged", ()] == 0
    assert 0 < during["brokerd_process_open_fds", ()] < during["brokerd_process_max_fds", ()]
    # Declaring it again makes no queue.
    channel.queue_declare("unattended", durable=True)
    channel.basic_consume("unattended", lambda *_: None)
    attended = eventually(
        lambda: (
            found if not (found := scrape(member))["brokerd_queues_without_consumers", ()] else None
        ),
        "the consumer is there",
    )
    assert (
        attended["brokerd_queues_declared_total", ()] == during["brokerd_queues_declared_total", ()]
    )
    channel.queue_delete("unattended")
    connection.close()


def test_the_reference_names_what_a_member_shows(member: Member) -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
    of_member = page.read_text().split("## Of the operator")[0]
    rows = re.findall(r"^\| (`brokerd_.*?) \|", of_member, flags=re.M)
    named = {name for row in rows for name in re.findall(r"`(brokerd_[a-z_]+)", row)}
    shown = {name for name, _ in scrape(member)}
    # This member has no certificates.
    shown = {name for name in shown if name.startswith("brokerd_")}
    assert {name for name in named if "certificate" not in name} == shown


def test_a_client_that_leaves_without_connection_close_is_a_warning_and_counted(
    member: Member,
) -> None:
    """Programs that are killed do so every day: it is no error of the broker's."""
    name = "brokerd_connections_lost_total"
    before = scrape(member)[name, ()]
    connection = member.connect()
    socket.close(connection._impl._transport._sock.detach())
    eventually(lambda: scrape(member)[name, ()] == before + 1, "it is counted")
    lines = [line for line in member.log().splitlines() if "connection.close" in line]
    assert "[WARNING] lost AMQP connection" in lines[-1]
    assert not [line for line in lines if "[ERROR]" in line]
