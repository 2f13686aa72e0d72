"""8.13 idle_exchanges_1h, 8.14 policy_coverage_1h: which exchanges (Q9) and policies are of no use,
and what is under no policy (Q10). PURE.

An exchange without publishes is silent itself: the member that leads the catalog reports that it
is there (kind `topo`), and all members report what came to it.  The leader also decides which
policy wins, and reports that (kind `policy`); here nothing is matched again.  Members of earlier
versions report none of this: no row then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from brokerd_telemetry.schema import CARRY_US, HOUR_US
from brokerd_telemetry.tables.inputs import IDLE_US, Inputs, window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What rows of kind `policy` are about.
POLICY_KINDS = ("policy", "operator_policy")
#: What the last row of an exchange said.
_EXCHANGE = ("t0", "t1", "seq", "xtype", "bindings", "has_alternate", "is_target")
_EXCHANGE_KEY = ("cluster", "vhost", "exchange")
_TOLD = ("state", "apply_to", "priority", "matched", "won", "overridden", "lost_to", "whole")


def _added(counts: Column) -> Column:
    """Return the sum of a map's counts; 0 of none, and where a member told of none.  What would not
    fit into the sum, which no member counts, is left out.
    """
    values = f.coalesce(f.map_values(counts), f.array().cast("array<bigint>"))
    none = f.lit(0).cast("long")
    return f.aggregate(
        values, none, lambda sum_, n: f.coalesce(f.try_add(sum_, f.coalesce(n, none)), sum_)
    )


def _listed(counts: Column) -> Column:
    """Return a map's counts as a list in order of their keys."""
    return f.array_sort(f.map_entries(f.map_filter(counts, lambda _, n: n.isNotNull())))


def _last(*names: str) -> Column:
    """Return what the last row of a group said."""
    return f.max_by(f.struct(*names), f.struct("t1", "seq")).alias("last")


def _is_there() -> Column:
    return ~f.col("last.state").eqNullSafe("deleted")


def build_policies(inputs: Inputs) -> DataFrame:
    """Return policy_coverage_1h: one row per policy, and (policy null) per kind of object.

    Of a policy: matched, the objects that its apply-to and pattern fit when it was told of last;
    won, those of them that it holds for; both by kind of object in matched_by and won_by;
    overridden, by key, those whose own argument holds in its place.  state: wins; shadowed, it
    fitted something in the hour and held for nothing (lost_to: who held for the first of it);
    matches_nothing; unknown, the member needed too long to look at all.
    Of a kind of object in a vhost: objects, and without_policy, those under no user's policy.
    """
    hour = window("t0", HOUR_US).alias("window_start")
    reported = (
        inputs.kind("policy")
        .where(f.col("kind").isin(*POLICY_KINDS))
        .groupBy("cluster", hour, "vhost", f.col("kind").alias("policy_kind"), "policy")
        .agg(
            _last(*_TOLD),
            f.max(_added(f.col("matched"))).alias("matched_max"),
            f.max(_added(f.col("won"))).alias("won_max"),
        )
        .where(_is_there())
    )
    key = ("cluster", "window_start", "vhost")
    policies = reported.select(
        *key, "policy_kind", "policy", "last.apply_to", "last.priority",
        f.when(f.col("won_max") > 0, "wins")
        .when(~f.coalesce("last.whole", f.lit(False)), "unknown")
        .when(f.col("matched_max") > 0, "shadowed")
        .otherwise("matches_nothing")
        .alias("state"),
        _added(f.col("last.matched")).alias("matched"),
        _added(f.col("last.won")).alias("won"),
        _listed(f.col("last.matched")).alias("matched_by"),
        _listed(f.col("last.won")).alias("won_by"),
        _listed(f.col("last.overridden")).alias("overridden"),
        f.nullif(f.col("last.lost_to"), f.lit("")).alias("lost_to"),
    )  # fmt: skip
    vhosts = (
        inputs.kind("topo")
        .where(f.col("kind") == "vhost")
        .groupBy("cluster", hour, "vhost")
        .agg(_last("state", "objects", "without_policy"))
        .where(_is_there())
    )
    objects = vhosts.select(
        *key, f.explode("last.objects").alias("object_kind", "objects"), "last.without_policy"
    ).withColumn("without_policy", f.try_element_at("without_policy", "object_kind"))
    counted = objects.where(f.col("objects").isNotNull())
    return policies.unionByName(counted, allowMissingColumns=True)


def exchange_last_rows(
    declared: DataFrame, counted: DataFrame, carry: DataFrame | None, hours_us: list[int]
) -> DataFrame:
    """Return what is known of each exchange at the end of each hour: the table `exchange_last_1h`.

    declared: rows of kind `topo`.  counted: rows of kind `exchange`.  carry: this table of the hour
    before the rows; None before the first.  first_us: since when the exchange is known; in_us: the
    end of the last interval in which something was published to it; null if nothing was since then.
    """
    none = f.lit(None).cast("long")
    is_exchange = (f.col("kind") == "exchange") & f.col("exchange").isNotNull()
    there = declared.where(is_exchange).select(
        *_EXCHANGE_KEY, *_EXCHANGE, f.col("state").eqNullSafe("deleted").alias("is_gone"),
        f.col("t0").alias("first_us"), none.alias("in_us"),
    )  # fmt: skip
    came = f.coalesce("in", f.lit(0)) + f.coalesce("internal_in", f.lit(0)) > 0
    traffic = (
        counted.where(came)
        .groupBy(*_EXCHANGE_KEY, window("t0", HOUR_US).alias("hour"))
        .agg(f.min("t0").alias("t0"), f.max("t1").alias("t1"))
        .select(*_EXCHANGE_KEY, "t0", "t1", f.col("t1").alias("in_us"))
    )
    known = there.unionByName(traffic, allowMissingColumns=True)
    if carry is not None:
        earlier = carry.select(*_EXCHANGE_KEY, *_EXCHANGE, "first_us", "in_us")
        known = known.unionByName(earlier, allowMissingColumns=True)
    ends = f.explode(f.array(*(f.lit(hour_us) for hour_us in hours_us))).alias("end_us")
    # One that was deleted and declared anew begins anew.
    gone_us = f.max(f.when(f.col("is_gone"), f.col("t1")))
    since = known.select("*", ends).where(
        (f.col("t0") < f.col("end_us") + HOUR_US) & (f.col("t1") > f.col("end_us") - CARRY_US)
    )
    own = Window.partitionBy(*_EXCHANGE_KEY, "end_us")
    said = f.when(f.col("bindings").isNotNull(), f.struct("t1", "seq"))
    return (
        since.withColumn("gone_us", f.coalesce(gone_us.over(own), f.lit(-1)))
        .where(f.col("t1") > f.col("gone_us"))
        .groupBy(*_EXCHANGE_KEY, "end_us")
        .agg(
            f.max_by(f.struct(*_EXCHANGE), said).alias("last"),
            f.min("first_us").alias("first_us"),
            f.max("in_us").alias("in_us"),
        )
        .where(f.col("last").isNotNull())
        .select(
            f.timestamp_micros("end_us").alias("window_start"),
            *_EXCHANGE_KEY, "last.*", "first_us", "in_us",
        )
    )  # fmt: skip


def build_idle_exchanges(inputs: Inputs) -> DataFrame:
    """Return idle_exchanges_1h: exchanges of clients to which nothing was published for an hour and
    more, and those from which nothing leads on.

    idle_in_s: at the hour's end, since something came to it or since it is known (known_us); null
    where others lead to it (is_target): what comes that way is counted at the first exchange.
    is_unbound: it has neither a binding nor an alternate exchange.
    """
    ends = inputs.coverage.select("cluster", "window_start", "end_us")
    known = inputs.exchange_last_rows.join(f.broadcast(ends), ["cluster", "window_start"])
    reported = known.where(f.col("t1") > f.unix_micros("window_start"))
    idle_us = f.col("end_us") - f.coalesce(f.col("in_us"), f.col("first_us"))
    is_idle = ~f.col("is_target") & (idle_us >= IDLE_US)
    is_unbound = (f.col("bindings") == 0) & ~f.col("has_alternate")
    return reported.where(is_idle | is_unbound).select(
        "cluster", "window_start", "vhost", "exchange", "xtype", "bindings", "is_target",
        is_unbound.alias("is_unbound"),
        f.col("first_us").alias("known_us"),
        f.col("in_us").alias("last_in_us"),
        f.when(~f.col("is_target"), idle_us / 1e6).alias("idle_in_s"),
    )  # fmt: skip
