"""What is billed for a day of which an earlier version's job made some hours."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pytest
from brokerd_telemetry import ingest, session
from brokerd_telemetry.columns import windows
from brokerd_telemetry.tables import usage
from brokerd_telemetry.tables.inputs import Inputs, Queues
from pyspark.sql.pandas.types import from_arrow_schema

from tests.telemetry import fleet

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

KEY = "cluster string, window_start timestamp, vhost string, user string"
COUNTS = "in long, in_bytes long, out long, out_bytes long, confirmed long, redlv long, "
COUNTS += "blocked_ms long, copies long, dl_msgs long"
NONE = (0,) * COUNTS.count("long")
GB_HOUR = 1e9 * 3600


def test_hours_of_both_versions_are_billed(tmp_path: Path) -> None:
    """The earlier one wrote octet-microseconds; a day with 107 MB was more than it could add up."""
    hour = datetime.fromtimestamp(fleet.BEGIN_US / 1e6, UTC).replace(minute=0)
    spark = session.start(session.SparkSettings())
    try:
        nothing = ingest.read_silver(spark, [])
        coverage = spark.createDataFrame(
            [("c", fleet.BEGIN_US, fleet.BEGIN_US, fleet.BEGIN_US + fleet.HOUR_US)],
            "cluster string, hour_us long, start_us long, end_us long",
        )
        active = spark.createDataFrame([], from_arrow_schema(windows.SCHEMA))
        did = Queues(*[active] * len(fields(Queues)))
        earlier, later = str(tmp_path / "earlier"), str(tmp_path / "later")
        for path, column, stored in (
            (earlier, "stored_byte_us long", int(2 * GB_HOUR) * 1_000_000),
            (later, "stored_byte_s double", 3 * GB_HOUR),
        ):
            row = ("c", hour, "/", "", *NONE, stored)
            frame = spark.createDataFrame([row], f"{KEY}, {COUNTS}, {column}")
            frame.coalesce(1).write.parquet(path)
        billed = []
        for paths in ([earlier], [later], [earlier, later]):
            frames = dict.fromkeys((field.name for field in fields(Inputs)), nothing)
            before = spark.read.parquet(*paths, mergeSchema=True)
            own = {"rows": {}, "queues": lambda: did, "coverage": coverage, "usage_before": before}
            inputs = Inputs(**{**frames, **own})
            [day] = usage.build_days(inputs).collect()
            billed.append(day.gb_hours_stored)
    finally:
        spark.stop()
    assert billed == [pytest.approx(2), pytest.approx(3), pytest.approx(5)]
