"""8.14 policy_coverage_1h: what policies hold for, and what is under none (Q10). PURE.

The member that leads the catalog decides which policy wins, and tells of it (kinds `policy` and
`topo`); here nothing is matched again.  Members of earlier versions tell nothing: no row then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.tables.inputs import HOUR_US, Inputs, window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What rows of kind `policy` are about.
POLICY_KINDS = ("policy", "operator_policy")
_TOLD = ("state", "apply_to", "priority", "matched", "won", "overridden", "lost_to", "whole")


def _added(counts: Column) -> Column:
    """Return the sum of a map's counts; 0 of none, and where a member told of none."""
    values = f.coalesce(f.map_values(counts), f.array().cast("array<bigint>"))
    return f.aggregate(
        values, f.lit(0).cast("long"), lambda sum_, n: sum_ + f.coalesce(n, f.lit(0))
    )


def _listed(counts: Column) -> Column:
    """Return a map's counts as a list in order of their keys."""
    return f.array_sort(f.map_entries(counts))


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
    told = (
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
    policies = told.select(
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
    return policies.unionByName(objects, allowMissingColumns=True)
