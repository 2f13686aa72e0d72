"""Worlds in which members and their telemetry suffer: what was not seen accuses nobody, what is
wrong is found (worlds.py).  One of each kind, more in `make telemetry-worlds`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from brokerd_telemetry import schema

from tests.telemetry import worlds
from tests.telemetry.test_job import REPOSITORY, query, run

#: Of each kind but the one that worlds.make leaves out.
SEEDS = range(max(1, -(-int(os.environ.get("SPARK_WORLDS", "0")) // (len(worlds.KINDS) - 1))))

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass
class Done:
    """A run over all worlds, and what it said."""

    worlds: list[worlds.World]
    out: Path
    said: str

    def of(self, trouble: str, sql: str) -> list[tuple[Any, ...]]:
        """Ask the tables of the first world with a trouble."""
        return query(self.out, sql.format(where=f"cluster = 'world/{trouble}-sound-0'"))

    def world(self, trouble: str) -> worlds.World:
        """Return that world."""
        return next(world for world in self.worlds if world.trouble == trouble)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    raw, out = tmp_path_factory.mktemp("raw"), tmp_path_factory.mktemp("out")
    made = worlds.make(raw, SEEDS)
    return Done(made, out, run(raw, out))


def test_no_world_is_accused_without_cause_and_each_bug_is_found(done: Done) -> None:
    accused = {
        row[0] for row in query(done.out, "SELECT cluster FROM findings WHERE rule = 'BOOKS'")
    }
    assert accused == {world.cluster for world in done.worlds if world.bug}


def test_calm_hours_are_judged(done: Done) -> None:
    """Without trouble each hour is, so that silence on books is no way to be right."""
    rows = done.of(
        "calm", "SELECT judged, not_judged FROM audit_1h WHERE equation = 'copies' AND {where}"
    )
    assert rows == [(True, None)] * 2


def test_a_member_that_was_not_asked_is_named(done: Done) -> None:
    rows = done.of(
        "not-asked",
        "SELECT cluster, judged, not_judged FROM audit_1h WHERE equation = 'copies' AND {where}",
    )
    assert len(rows) == 2
    assert not any(judged for _, judged, _ in rows)
    assert all("silent 14:00-15:00" in why or "silent 15:00-16:00" in why for *_, why in rows)
    found = done.of("not-asked", "SELECT DISTINCT object, message FROM findings WHERE {where} "
                    "AND rule = 'TELE-LOSS'")  # fmt: skip
    assert len({member for member, _ in found}) == 1
    assert all("nothing of its hour was seen" in message for _, message in found)
    folder = done.out / "publish" / "clusters" / "world~not-asked-sound-0"
    page = (folder / "report.html").read_text()
    assert page.index("Not all was seen: ") < page.index("Clients published")


def test_a_member_whose_telemetry_is_off_is_named_once(done: Done) -> None:
    (name,) = done.world("off").off or ()
    found = done.of("off", "SELECT DISTINCT rule, object FROM findings WHERE {where} "
                    "AND rule LIKE 'TELE%'")  # fmt: skip
    assert found == [("TELE-OFF", name)]
    folder = done.out / "publish" / "clusters" / "world~off-sound-0"
    page = (folder / "report.html").read_text()
    assert f"Not all was seen: {name} has telemetry switched off." in page


def test_each_table_is_told_of_with_its_rows_and_its_time(done: Done) -> None:
    reported = re.findall(r"^telemetry: (\w+): ([\d,]+) rows, [\d.]+ s$", done.said, re.MULTILINE)
    counts = {name: int(count.replace(",", "")) for name, count in reported}
    assert counts.keys() >= {"audit_1h", "fates_1h", "usage_1h", "data_quality_1h", "findings"}
    for name in ("audit_1h", "fates_1h", "findings"):
        assert query(done.out, f"SELECT count(*) FROM {name}") == [(counts[name],)]


#: Fates, but for `unknown`, with a sign for each row.
FATES = " + ".join(schema.FATES)


def test_fates_add_up_in_each_row(done: Done) -> None:
    off = f"SELECT cluster, kind, object FROM fates_1h WHERE waited + came <> {FATES} + unknown"
    assert query(done.out, off) == []


def test_in_sound_worlds_no_fate_in_a_queue_or_exchange_is_unknown(done: Done) -> None:
    sql = "SELECT DISTINCT kind FROM fates_1h WHERE unknown <> 0 AND cluster LIKE '%-sound-%'"
    assert query(done.out, sql) == [("vhost",)]
    assert done.of("calm", "SELECT DISTINCT unknown <> 0 FROM fates_1h WHERE {where}") == [(False,)]


def test_a_planted_bug_is_a_fate_that_is_not_known(done: Done) -> None:
    sql = (
        "SELECT DISTINCT kind FROM fates_1h WHERE unknown <> 0 AND cluster = 'world/calm-{}-0' "
        "AND kind <> 'vhost'"
    )
    assert query(done.out, sql.format("ack-missing")) == [("queue",)]
    assert query(done.out, sql.format("outcome-missing")) == [("exchange",)]


def test_fates_of_queues_that_are_gone(done: Done) -> None:
    world = done.world("gone")
    rows = done.of("gone", "SELECT sum(gone_with_queue)::BIGINT FROM fates_1h WHERE {where}")
    assert rows == [(sum(world.gone.values()),)]
    left = done.of("gone", "SELECT sum(waiting)::BIGINT FROM fates_1h WHERE {where} "
                   "AND kind = 'queue' AND hour(window_start) = 15")  # fmt: skip
    assert left == [(sum(queue.ready + queue.unacked for queue in world.queues),)]


def test_the_documented_questions_have_answers(done: Done) -> None:
    """By DuckDB, over the published views; but for unroutable messages, which no world has."""
    text = (REPOSITORY / "docs" / "concepts" / "telemetry.md").read_text()
    questions = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    assert len(questions) == 3
    for sql in questions:
        ((count,),) = query(done.out, f"SELECT count(*) FROM ({sql.strip().rstrip(';')})")
        assert (count > 0) == ("unroutable_1h" not in sql), sql


def test_what_came_late_is_judged_after_all(done: Done) -> None:
    rows = done.of("late", "SELECT judged FROM audit_1h WHERE equation = 'copies' AND {where}")
    assert rows == [(True,)] * 2


def test_what_went_with_queues_has_a_fate_and_queues_that_are_gone_no_now(done: Done) -> None:
    world = done.world("gone")
    books = "SELECT DISTINCT judged FROM audit_1h WHERE equation = 'queue' AND {where}"
    assert done.of("gone", books) == [(True,)]
    rows = done.of("gone", "SELECT queue, sum(deleted + expired_queue)::BIGINT, bool_or(is_gone) "
                   "FROM queue_1h WHERE {where} GROUP BY 1")  # fmt: skip
    assert {name: n for name, n, _ in rows if n} == {k: n for k, n in world.gone.items() if n}
    # Those that were declared anew are there.
    there = {queue.name for queue in world.queues}
    assert {name for name, _, is_gone in rows if is_gone} == world.gone.keys() - there
    brief = done.of("gone", "SELECT sum(enq)::BIGINT FROM queue_1h WHERE {where} "
                    "AND queue LIKE 'brief%'")  # fmt: skip
    assert brief == [(12 * worlds.STEPS,)]
    left = done.of("gone", "SELECT DISTINCT queue FROM queue_last_1h WHERE {where} "
                   "AND hour(window_start) = 15")  # fmt: skip
    assert {name for (name,) in left} == there
    page = (done.out / "publish/clusters/world~gone-sound-0/report.html").read_text()
    assert f"{sum(world.gone.values()):,} went with queues that were deleted or expired" in page
    assert "were purged" not in page


@pytest.mark.parametrize(("trouble", "skew_s"), [("ahead", 300.0), ("behind", -3600.0)])
def test_a_clock_that_is_wrong_is_found_and_its_rows_stand_where_they_belong(
    done: Done, trouble: str, skew_s: float
) -> None:
    world = done.world(trouble)
    rows = done.of(trouble, "SELECT hour(window_start), count(DISTINCT node), min(completeness), "
                   "sum(bad_rows) FROM data_quality_1h WHERE {where} GROUP BY 1")  # fmt: skip
    assert rows == [(14, 3, 1.0, 0), (15, 3, 1.0, 0)]
    reported = done.of(trouble, 'SELECT sum("in") FROM usage_1h WHERE {where}')
    assert reported == [(world.published,)]
    found = done.of(trouble, "SELECT DISTINCT rule, value FROM findings WHERE {where} "
                    "AND rule LIKE 'TELE%'")  # fmt: skip
    assert found == [("TELE-CLOCK", skew_s)]
    books = "SELECT judged FROM audit_1h WHERE equation = 'copies' AND {where}"
    assert done.of(trouble, books) == [(True,)] * 2
