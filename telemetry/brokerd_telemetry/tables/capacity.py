"""8.16 member_5m, capacity_1d: what members use, and what they should have (Q12). PURE.

A recommendation bears what it was made of, and what held it back (`capped_by`): one that only ever
repeats a limit is no recommendation.  CPU and network are not in members' rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.tables.inputs import Inputs, ratio, window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW_US = 300_000_000
#: A day is judged by itself and the days before.
DAYS = 7
DAYS_MIN = 3
TOLD_MIN = 0.95
#: Of what may be used (the watermark), so much is planned to be.
USED_SHARE = 0.8
RESERVE = 1.25
#: Below this share of what there is, the rest is given back.
SHRINK_SHARE = 0.5
_DAY_S = 86_400
_KEY = ("cluster", "window_start", "node")


def build_members(inputs: Inputs) -> DataFrame:
    """Return member_5m: memory and disk of members, nothing of those that do not tell.

    stalled_s: how long the disk did not answer; null where the members' release does not tell.
    """
    rows = inputs.kind("node").where(f.col("rss").isNotNull())

    def last(name: str) -> object:
        return f.max_by(name, "t1").alias(name)

    return rows.groupBy("cluster", window("t0", WINDOW_US).alias("window_start"), "node").agg(
        f.max("rss").alias("rss_max"),
        last("mem_limit"), last("wm_bytes"),
        f.min("disk_free").alias("disk_free_min"),
        last("disk_limit"),
        (f.sum("stalled_ms") / 1000).alias("stalled_s"),
        f.max("conns").alias("conns_max"),
        f.max("leaders").alias("leaders_max"),
    )  # fmt: skip


def build_capacity(inputs: Inputs) -> DataFrame:
    """Return capacity_1d: per member and day, of the seven days up to it.

    memory_uncapped: the limit at which the 95th percentile of five-minute maxima, and a quarter
    more, is 80 % of the watermark; memory_lower: without the quarter; memory_target: the same, but
    not so little that the peak would have been an alarm (capped_by "peak").  Octets, as is
    memory_growth, per week by a straight line.  disk_days_left: until free space is at its limit,
    by a straight line; null while it does not shrink.  told: the share of five-minute windows that
    were told since the first.
    """
    known = build_members(inputs).drop("stalled_s")
    if inputs.members_before is not None:
        known = known.unionByName(inputs.members_before.select(*known.columns))
    # Only days that this run makes anew.
    touched = inputs.coverage.select("cluster", f.to_date("window_start").alias("day")).distinct()
    first = f.to_date("window_start")
    days = f.explode(f.sequence(first, f.date_add(first, DAYS - 1))).alias("day")
    looked = known.select("*", days, f.unix_seconds("window_start").alias("at_s")).join(
        f.broadcast(touched), ["cluster", "day"]
    )
    # Straight lines through times since 1970 would lose digits.
    in_day_s = f.col("at_s") - f.unix_date("day").cast("long") * _DAY_S
    share = ratio(f.col("wm_bytes"), f.col("mem_limit"))
    span = (f.max("at_s") - f.min("at_s")) / (WINDOW_US / 1e6) + 1
    per = looked.groupBy("cluster", f.to_timestamp("day").alias("window_start"), "node").agg(
        f.countDistinct(f.to_date(looked["window_start"])).alias("days"),
        (f.count("*") / span).alias("told"),
        f.percentile("rss_max", f.lit(0.95)).alias("memory_p95"),
        f.max("rss_max").alias("memory_peak"),
        f.max_by(looked["window_start"], f.struct("rss_max", "at_s")).alias("memory_peak_at"),
        f.max_by("mem_limit", "at_s").alias("memory_limit"),
        f.max_by(share, "at_s").alias("memory_share"),
        (f.regr_slope("rss_max", in_day_s) * 7 * _DAY_S).alias("memory_growth"),
        f.max_by("disk_free_min", "at_s").alias("disk_free"),
        f.max_by("disk_limit", "at_s").alias("disk_limit"),
        (f.regr_slope("disk_free_min", in_day_s) * _DAY_S).alias("disk_growth"),
    )
    return _recommended(per)


def _recommended(per: DataFrame) -> DataFrame:
    used, share = f.col("memory_p95"), f.col("memory_share")
    lower = used / (share * USED_SHARE)
    uncapped = lower * RESERVE
    at_peak = f.col("memory_peak") / share
    room = f.greatest(f.col("disk_free") - f.col("disk_limit"), f.lit(0))
    judged = (f.col("days") >= DAYS_MIN) & (f.col("told") >= TOLD_MIN)
    return per.withColumns(
        {
            "memory_lower": lower,
            "memory_uncapped": uncapped,
            "memory_target": f.greatest(uncapped, at_peak),
            "capped_by": f.when(at_peak > uncapped, "peak"),
            "disk_days_left": f.when(f.col("disk_growth") < 0, room / -f.col("disk_growth")),
            "verdict": f.when(~judged, "not_enough_data")
            .when(lower > f.col("memory_limit"), "grow")
            .when(f.greatest(uncapped, at_peak) < f.col("memory_limit") * SHRINK_SHARE, "shrink")
            .otherwise("ok"),
        }
    )
