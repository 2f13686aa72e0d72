"""What waits in exchanges of type x-delayed-message can be seen and steered, by every door."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.amqp.test_as_rabbitmq_4_3 import samples
from tests.integration.amqp.test_delayed_messages import LATER, QUEUE, declare, publish, take
from tests.integration.federation_rig import admin
from tests.integration.home_down_rig import brokerctl, http_call
from tests.integration.members import Member, cluster, eventually

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("steered"), 1) as [started]:
        yield started


@pytest.fixture
def channel(member: Member) -> Iterator[BlockingChannel]:
    with member.connect() as connection:
        made = connection.channel()
        made.confirm_delivery()
        declare(made)
        yield made
    with member.connect() as connection:
        channel = connection.channel()
        channel.exchange_delete(LATER)
        for name in (QUEUE, "other"):
            channel.queue_delete(name)


def ctl(member: Member, *words: str) -> Any:
    """Return what brokerctl says as JSON."""
    ran = brokerctl(member, "-s", *words)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def exchange(member: Member) -> Any:
    status, found = http_call(member, "GET", f"exchanges/%2F/{LATER}")
    assert status == 200, found
    return found


def test_every_door_tells_how_many_wait_and_when_the_next_is_due(
    member: Member, channel: BlockingChannel
) -> None:
    empty = eventually(
        lambda: next((row for row in [exchange(member)] if "messages_delayed" in row), None),
        "a new exchange in the HTTP API, which keeps rows for a second",
    )
    assert (empty["messages_delayed"], empty["next_due_ms"]) == (0, None)
    before_ms = time.time() * 1000
    for delay in (2 * HOUR_MS, HOUR_MS):
        publish(channel, b"m", delay)
    found = eventually(
        lambda: next((row for row in [exchange(member)] if row["messages_delayed"] == 2), None),
        "both in the HTTP API, which keeps rows for a second",
    )
    due_ms = found["next_due_ms"]
    assert before_ms + HOUR_MS - 1 <= due_ms <= time.time() * 1000 + HOUR_MS
    assert (found["late_ms"], found["late_reason"]) == (0, "")
    _, rows = http_call(member, "GET", "exchanges/%2F")
    assert {row["name"] for row in rows if "messages_delayed" in row} == {LATER}
    columns = ("name", "type", "messages_delayed", "next_due_ms", "late_ms", "late_reason")
    words = ("list_exchanges", *columns, "--formatter", "json")
    by_name = {row["name"]: row for row in ctl(member, *words)}
    assert by_name[LATER] == {
        "name": LATER,
        "type": "x-delayed-message",
        "messages_delayed": 2,
        "next_due_ms": due_ms,
        "late_ms": 0,
        "late_reason": "",
    }
    assert by_name["amq.direct"]["messages_delayed"] in ("", None)
    of = frozenset({("vhost", "/"), ("exchange", LATER)})
    seen = samples(member, "/metrics/detailed?family=exchange_delayed_metrics&vhost=/")
    assert seen["rabbitmq_detailed_exchange_messages_delayed", of] == 2
    next_due = seen["rabbitmq_detailed_exchange_delayed_next_due_timestamp_seconds", of]
    assert next_due == due_ms / 1000
    assert seen["rabbitmq_detailed_exchange_delayed_late_seconds", of | {("reason", "none")}] == 0
    seen = samples(member, "/metrics")
    assert seen["brokerd_exchange_messages_delayed", frozenset()] == 2


def late(member: Member, reason: str) -> Any:
    """Return the exchange once it is late for this reason, by the API and the metrics."""

    def is_late() -> Any:
        found = exchange(member)
        return found if (found.get("late_ms", 0) > 0 and found["late_reason"] == reason) else None

    found = eventually(is_late, f"late for {reason}")
    seen = samples(member, "/metrics")
    of = frozenset({("reason", reason)})
    assert seen["brokerd_exchange_delayed_late_seconds", of] > 0
    return found


def test_due_messages_wait_for_a_full_disk_and_go_on_while_memory_is_short(
    member: Member, channel: BlockingChannel
) -> None:
    with admin(member) as settings:
        publish(channel, b"disk", 1_500)
        publish(channel, b"memory", 4_000)
        settings.set("disk_free_limit", "900TB")
        found = late(member, "disk_alarm")
        assert found["messages_delayed"] == 2
        # Of no publisher, so that nothing blocks it.
        with member.connect() as connection:
            other = connection.channel()
            assert other.basic_get(QUEUE)[0] is None
            settings.set("disk_free_limit", "1MB")
            assert take(other)[2] == b"disk"
            settings.set("vm_memory_high_watermark", "0.0001")
            eventually(lambda: "memory resource limit alarm set" in member.log(), "the alarm")
            assert take(other)[2] == b"memory"
        settings.set("vm_memory_high_watermark", "0.9")


def test_a_target_that_refuses_makes_them_late(member: Member, channel: BlockingChannel) -> None:
    channel.queue_declare(
        "other", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    channel.queue_bind("other", LATER, "full")
    channel.basic_publish("", "other", b"first")
    properties = pika.BasicProperties(headers={"x-delay": 100})
    channel.basic_publish(LATER, "full", b"second", properties)
    late(member, "target")
    assert take(channel, "other")[2] == b"first"
    assert take(channel, "other")[2] == b"second"
    eventually(lambda: exchange(member).get("messages_delayed") == 0, "nothing waits")
    assert (exchange(member)["late_ms"], exchange(member)["late_reason"]) == (0, "")
