"""Memory of a real member: where it goes, and that it comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import psutil
import pytest

from tests.integration.federation_rig import admin
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(240)
MIB = 1 << 20
BODY = b"x" * 100_000


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    with cluster(tmp_path, 1, is_warm=False) as [member]:
        yield member


def rss(member: Member) -> int:
    assert member.process is not None
    return int(psutil.Process(member.process.pid).memory_info().rss)


def ctl(member: Member, *arguments: str) -> Any:
    """Return what brokerctl says as JSON."""
    program = Path(sys.executable).with_name("brokerctl")
    command = [str(program), "--address", f"127.0.0.1:{member.grpc_port}", *arguments]
    answer = subprocess.run(
        [*command, "--formatter", "json"], check=True, capture_output=True, text=True
    )
    return json.loads(answer.stdout)


def fill(member: Member, queue: str, count: int, **options: Any) -> None:
    """Publish with confirms: what is unanswered is not in memory twice."""
    with member.connect() as connection:
        channel = connection.channel()
        channel.queue_declare(queue, **options)
        channel.confirm_delivery()
        for _ in range(count):
            channel.basic_publish("", queue, BODY)


def test_parts_add_up_and_deleted_queues_give_all_back(member: Member) -> None:
    idle = rss(member)
    fill(member, "kept", 600, durable=True, arguments={"x-queue-type": "quorum"})
    fill(member, "volatile", 500)
    fields = ctl(member, "memory_breakdown")
    sizes = {part: row["bytes"] for part, row in fields.items()}
    used = rss(member)
    assert used > idle + 90 * MIB
    assert abs(sum(sizes.values()) - used) < used / 10
    assert sizes["other"] < used / 10, fields
    assert sizes["log_cache"] > 50 * MIB
    assert sizes["classic_queues"] > 45 * MIB
    assert sum(row["percentage"] for row in fields.values()) == pytest.approx(100, abs=0.1)
    memory = {row["name"]: row["memory"] for row in ctl(member, "list_queues", "name", "memory")}
    assert 45 * MIB < memory["volatile"] < 55 * MIB
    assert 10_000 < memory["kept"] < MIB
    with member.connect() as connection:
        for queue in memory:
            connection.channel().queue_delete(queue)
    eventually(lambda: rss(member) < 1.3 * idle, "nearly what an idle member uses", 60)


def test_a_volatile_queue_that_is_emptied_ends_the_alarm(member: Member) -> None:
    """R-MEM-11: its bodies stayed in its log, and no publish came to have them cleaned away."""
    with admin(member) as settings, member.connect() as connection:
        fill(member, "volatile", 700)
        used = rss(member)
        settings.set("vm_memory_high_watermark", f"{used - 20 * MIB}B")
        eventually(lambda: "memory resource limit alarm set" in member.log(), "the alarm is set")
        channel = connection.channel()
        channel.basic_qos(prefetch_count=50)
        for number, (method, _, body) in enumerate(channel.consume("volatile"), start=1):
            assert method is not None
            assert body == BODY
            channel.basic_ack(method.delivery_tag)
            if number == 700:
                break
        line = "memory resource limit alarm cleared across the cluster"
        eventually(lambda: line in member.log(), "the alarm ends with its cause", 60)


def test_closed_connections_leave_nothing(member: Member) -> None:
    idle = rss(member)
    opened = [pika.BlockingConnection(_parameters(member)) for _ in range(300)]
    for connection in opened:
        connection.close()
    eventually(lambda: rss(member) < idle + 4 * MIB, "what an idle member uses", 60)


def _parameters(member: Member) -> pika.ConnectionParameters:
    return pika.ConnectionParameters("127.0.0.1", member.amqp_port, heartbeat=0)
