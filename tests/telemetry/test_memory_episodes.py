"""What the job tells of memory: alarms, whom they blocked, and what members use it for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.telemetry import fleet
from tests.telemetry.test_job import query, run

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

MIB = 1024 * 1024
SECOND_US = 1_000_000


def test_an_episode_has_its_limit_and_its_users(tmp_path: Path) -> None:
    """Q5: it began at 20 MiB and ended when somebody raised the watermark to 15 GB."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    node = fleet.Node(raw, "test/short", "n0", 0xA0, [])
    counters = node.counters
    node.boot_event(fleet.BEGIN_US, "start")

    def at(second: int) -> None:
        node.now_us = fleet.BEGIN_US + second * SECOND_US

    at(1)
    counters.alarm(0, 1, 30 * MIB, 20 * MIB)
    at(5)
    counters.throttle("/", "orders", "c1", "connection_blocked", 1500, "memory")
    counters.throttle("/", "full", "c9", "connection_blocked", 4000, "disk")
    at(9)
    counters.alarm(1, 0, 30 * MIB, 15_200_000_000)
    counters.throttle("/", "orders", "c2", "connection_blocked", 500, "memory")
    counters.throttle("/", "billing", "c3", "channel_flow", 2500, "disk & memory")
    node.rows["event"] += counters.take_events(fleet.BEGIN_US, node.now_us)
    end_us = fleet.BEGIN_US + fleet.INTERVAL_US
    node.collect(fleet.BEGIN_US, end_us, [])
    node.boot_event(end_us, "end")
    node.seal(fleet.BEGIN_US)
    run(raw, out)
    [episode] = query(
        out,
        "select limit_bytes, duration_s, blocked_conn_s, conns, users,"
        " [c.conn for c in connections] from memory_episode",
    )
    assert episode == (
        20 * MIB,
        8.0,
        4.5,
        3,
        ["billing", "orders"],
        ["c3", "c1", "c2"],
    )


def test_the_parts_of_each_members_memory_are_kept(tmp_path: Path) -> None:
    """Last and highest by member and part; a member that does not tell them is none the worse."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    reported = [
        {"code": 60 * MIB, "quorum_queues": 9 * MIB},
        {"code": 60 * MIB, "quorum_queues": MIB},
    ]
    for name, boot, all_parts in (("n0", 0xB0, reported), ("older", 0xB1, [{}, {}])):
        node = fleet.Node(raw, "test/parts", name, boot, [])
        node.boot_event(fleet.BEGIN_US, "start")
        at_us = fleet.BEGIN_US
        for node.parts in all_parts:
            node.collect(at_us, at_us + fleet.INTERVAL_US, [])
            at_us += fleet.INTERVAL_US
        node.boot_event(at_us, "end")
        node.seal(fleet.BEGIN_US)
    run(raw, out)
    assert query(out, "select node, part, bytes_last, bytes_max from memory_parts_5m") == [
        ("n0", "code", 60 * MIB, 60 * MIB),
        ("n0", "quorum_queues", MIB, 9 * MIB),
    ]
    assert query(out, "select node, completeness from data_quality_1h") == [
        ("n0", 1.0),
        ("older", 1.0),
    ]
    page = (out / "publish" / "report.html").read_text()
    assert "1.05MB ≤ 9.44MB" in page
