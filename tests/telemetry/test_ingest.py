"""Reading segments: each line is parsed once, and what an earlier segment had is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from brokerd_telemetry import ingest, session, sources, verify

from tests.telemetry import fleet

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_line_is_parsed_once_and_rows_that_were_known_are_left_out(tmp_path: Path) -> None:
    """Spark moves a condition on parsed fields below the parser, which then runs again for it."""
    node = fleet.Node(tmp_path, "test/parse", "n0", 0xE0, [])
    for number in range(4):
        at_us = fleet.BEGIN_US + number * fleet.INTERVAL_US
        node.collect(at_us, at_us + fleet.INTERVAL_US, [])
    node.seal(fleet.BEGIN_US)
    raw = sources.raw_root(tmp_path)
    [segment] = verify.judge(raw, sources.listed(raw), {}, None).fresh
    cut = replace(segment, first_seq=segment.seq0 + 1)
    spark = session.start(session.SparkSettings())
    try:
        spark.conf.set("spark.sql.debug.maxToStringFields", "10000")
        now_us = fleet.BEGIN_US + fleet.HOUR_US
        whole = ingest.rows_of(spark, [segment], now_us, {})
        plan = whole._jdf.queryExecution().optimizedPlan().toString()
        assert plan.count("from_json(") == 1
        assert [row.error for row in whole.collect()] == [None] * segment.rows
        later = ingest.rows_of(spark, [cut], now_us, {}).collect()
        assert sorted(row.seq for row in later) == list(range(segment.seq0 + 1, segment.seq1 + 1))
    finally:
        spark.stop()
