"""What the job tells of federation links and shovels: each in its own table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brokerd.federation.link_rows import LinkRows
from tests.telemetry import fleet
from tests.telemetry.test_job import query, run

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

COMMON = {"vhost": "/", "uri": "amqp://there", "status": "running", "error": ""}


def link(name: str, queue: str, exchange: str, backlog: int) -> dict[str, Any]:
    more = {"upstream": "u", "queue": queue, "exchange": exchange, "backlog": backlog}
    return {"id": name, "type": "queue" if queue else "exchange", **COMMON, **more}


def shovel(**figures: int) -> dict[str, Any]:
    ends = {"source_queue": "q", "destination": "amqp://here", "destination_exchange": "x"}
    return {"id": "shovel /:s", "type": "shovel", "upstream": "s", **COMMON, **ends, **figures}


def test_links_and_shovels_are_told_apart(tmp_path: Path) -> None:
    """A link that says it runs while nothing comes for five minutes is stuck; a federated queue may
    wait; how far one is behind is known by stamps, or by what waits and what comes.
    """
    raw, out = tmp_path / "raw", tmp_path / "out"
    node = fleet.Node(raw, "test/links", "n0", 0xD0, [])
    node.boot_event(fleet.BEGIN_US, "start")
    rows, at_us, step_us = LinkRows(), fleet.BEGIN_US, 10 * fleet.INTERVAL_US
    for moved in (0, 7, 9):
        stamps = {"in": moved * 10, "lag_count": moved, "lag_sum_ms": moved * 30}
        links = [link("l", "", "x", 5), link("m", "q", "", 5), link("n", "", "y", 4) | stamps]
        links.append(shovel(moved=moved, lag_count=moved, lag_sum_ms=moved * 4))
        node.rows["sample"] += rows.rows(links, at_us, at_us + step_us)
        node.collect(at_us, at_us + step_us, [])
        at_us += step_us
    node.boot_event(at_us, "end")
    node.seal(fleet.BEGIN_US)
    run(raw, out)
    columns = "link, exchange, queue, backlog_last, lag_mean_ms, lag_est_s, stalled_s, is_stuck"
    assert query(out, f"select {columns} from federation_5m") == [
        ("l", "x", "", 5, None, None, 300.0, True),
        ("m", "", "q", 5, None, None, 0.0, False),
        # 4 wait, and 90 came in 300 s, none of them in the first 100.
        ("n", "y", "", 4, 30.0, pytest.approx(4 * 300 / 90), 100.0, False),
    ]
    columns = "shovel, queue, dest, dest_exchange, state_last, moved, refused, lag_mean_ms"
    assert query(out, f"select {columns}, running_pct from shovel_5m") == [
        ("s", "q", "amqp://here", "x", "running", 9, 0, 4.0, 100.0)
    ]
    assert query(out, "select object from findings where rule = 'FED-STUCK'") == [("l",)]
    page = (out / "publish" / "report.html").read_text()
    assert "amqp://here x" in page
    assert "300 s, nothing comes" in page
    assert "30 ms" in page
