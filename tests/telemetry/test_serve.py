"""`brokerctl telemetry serve`: one Spark session for many runs."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.telemetry import fleet
from tests.telemetry.test_job import command, environment, query

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def test_later_runs_go_on_in_the_same_session_and_a_signal_ends_it(tmp_path: Path) -> None:
    """An hour is taken over by each run, which goes on where the one before it stood."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    node = fleet.Node(raw, "test/warm", "n0", 0xF0, [])
    queue = fleet.Queue(7, "q", dlx=None)
    node.boot_event(fleet.BEGIN_US, "start")
    at_us = fleet.BEGIN_US

    def segment() -> None:
        nonlocal at_us
        node.counters.published("/", "web", "x", fleet.route("q"), [fleet.content("k")] * 10)
        queue.counters["enq"] += 10
        queue.ready += 10
        node.collect(at_us, at_us + fleet.INTERVAL_US, [queue], 1)
        node.seal(at_us)
        at_us += fleet.HOUR_US

    segment()
    arguments = ["serve" if part == "run" else part for part in command(raw, out)]
    with subprocess.Popen(
        [*arguments, "--every", "1"], env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        runs = 0
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if re.search(r"done in [0-9.]+ s: [12] segments", line) is None:
                continue
            runs += 1
            if runs == 2:
                break
            segment()
        process.send_signal(signal.SIGTERM)
        said += process.stderr.readlines()
    assert process.returncode == 0, said
    assert "telemetry: ends\n" in said
    assert query(out, "SELECT enq, ready_last FROM queue_1h") == [(10, 10), (10, 20)]
    books = "SELECT equation, count(*), sum(residual) FROM audit_1h WHERE judged GROUP BY 1"
    assert query(out, books) == [("copies", 2, 0), ("exchange", 2, 0), ("queue", 2, 0)]
    # Spark says nothing of its own.
    assert [line for line in said if not line.startswith("telemetry: ")] == []
