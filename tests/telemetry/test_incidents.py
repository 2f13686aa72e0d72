"""Scripted incidents: each raises its finding within two hours, and no other, and is clear again
three hours after (design/telemetry.md §8.19, §12 "Truth").
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.telemetry import fleet, scenes
from tests.telemetry.oracle import Oracle
from tests.telemetry.test_job import close, query, run

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

FIRST = scenes.ON.start
LAST = scenes.HOURS - 1


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("raw")
    scenes.play(made)
    return made


@pytest.fixture(scope="module")
def out(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run over all of them."""
    made = tmp_path_factory.mktemp("out")
    run(raw, made)
    return made


def found(out: Path, name: str) -> list[tuple[Any, ...]]:
    """(hour, rule, object, status, action, hour since) of one incident."""
    cluster = "all" if not name.startswith("~") else name.strip("~")
    where = f"cluster = 'test/{cluster}'"
    if cluster == "all":
        where += f" AND vhost = '{name}'"
    hour = f"(epoch_us({{}}) - {fleet.BEGIN_US}) // {fleet.HOUR_US}"
    return query(
        out,
        f"SELECT {hour.format('window_start')}, rule, object, status, action, "
        f"{hour.format('since')} FROM findings WHERE {where}",
    )


@pytest.mark.parametrize("name", scenes.INCIDENTS)
def test_an_incident_is_told_and_over(out: Path, name: str) -> None:
    _, expected, advice = scenes.INCIDENTS[name]
    lines = found(out, name)
    assert {(rule, item) for _, rule, item, *_ in lines} == expected, lines
    for rule, item in expected:
        own = [line for line in lines if line[1:3] == (rule, item)]
        raised = [hour for hour, _, _, status, *_ in own if status == "RAISED"]
        assert FIRST <= min(raised) <= FIRST + 1, own
        assert {since for *_, since in own} == {FIRST}, own
        assert [hour for hour, _, _, status, *_ in own if status == "CLEAR"] == [LAST], own
        if advice:
            assert any(advice in line[4] for line in own), own


def test_the_books_of_copies_are_judged_while_the_cluster_lives(out: Path) -> None:
    """Every hour of the busy vhost is judged; what is on its way over its borders is no residual,
    and the hours between do not have to be quiet.
    """
    rows = query(
        out,
        "SELECT judged, residual, difference <> 0, slack > 0 FROM audit_1h "
        "WHERE equation = 'copies' AND vhost = 'busy'",
    )
    assert len(rows) == scenes.HOURS
    assert {row[:2] for row in rows} == {(True, 0)}
    assert any(row[2] for row in rows)
    assert all(row[3] for row in rows)


def test_links_tell_how_far_they_are_behind(out: Path) -> None:
    rows = query(
        out,
        "SELECT link, max(stalled_s), max(backlog_last) FROM federation_5m "
        "WHERE link IN ('stuck-link:l', 'down-link:l', 'link-restarts:l') GROUP BY link",
    )
    hours = len(scenes.ON) * 3600
    assert rows == [("down-link:l", hours, 0), ("link-restarts:l", 120, 0),
                    ("stuck-link:l", hours, 700)]  # fmt: skip


def test_what_goes_round_is_a_table(out: Path) -> None:
    """8.3: the ring, by name; its messages, and how often each went round."""
    rows = query(
        out,
        "SELECT DISTINCT vhost, ring, messages, rounds FROM dlx_cycle_1h",
    )
    assert rows == [("dlx-ring", "a → b → a", 120, 46.0), ("retries", "a → b → a", 120, 3.0)]


def test_forecasts_equal_the_oracle(raw: Path, out: Path) -> None:
    whole = query(
        out,
        "SELECT epoch_us(window_start), vhost || ' ' || queue, level, quarters, net_rate, ttf_s, "
        "ttf_lo_s, ttf_hi_s FROM queue_forecast_1h WHERE cluster = 'test/all'",
    )
    assert whole
    assert close(whole, Oracle(raw, "test/all").forecasts())


def test_forecasts_grade_themselves_as_the_oracle_does(raw: Path, out: Path) -> None:
    mine = query(
        out,
        "SELECT epoch_us(window_start), vhost || ' ' || queue, level, level_expected, error, "
        "outcome FROM forecast_score_1h WHERE cluster = 'test/all'",
    )
    assert {row[-1] for row in mine} == {"hit", "false", "open"}
    assert close(mine, Oracle(raw, "test/all").scores())


def test_queues_that_nobody_takes_from_are_idle_as_the_oracle_says(raw: Path, out: Path) -> None:
    mine = query(
        out,
        "SELECT epoch_us(window_start), vhost || ' ' || queue, ready, idle_in_s, idle_out_s "
        "FROM idle_queues_1h WHERE cluster = 'test/all'",
    )
    assert {"parking-lot dead", "never-read q"} <= {row[1] for row in mine}
    assert close(mine, Oracle(raw, "test/all").idle())
