"""8.20 fates_1h: what became of the messages of each exchange, queue and virtual host (Q13). PURE.

Each message that an exchange got has one fate there, and each copy that a queue had or got has one
there: `waited + came` is the sum of the other columns, `unknown` among them.  Members report
routing keys only of what found no queue (unroutable_1h), and never from which exchange a queue's
copy came: the two are joined by the virtual host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from brokerd_telemetry.schema import FATES
from brokerd_telemetry.tables.inputs import Inputs, total

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEY = ("cluster", "window_start", "vhost")
#: Removals for which a queue may have a dead letter exchange.
_DIED = ("rejected", "expired", "maxlen_drop", "over_limit")


def build(inputs: Inputs, exchanges: DataFrame) -> DataFrame:
    """Return fates_1h.  exchanges: what each counted in an hour."""
    queues = _per_queue(inputs)
    made = exchanges.groupBy(*_KEY).agg(f.sum("copies").alias("copies"))
    taken = queues.groupBy(*_KEY).agg(total("enq"), total("refused"))
    both = made.join(taken, list(_KEY), "full").fillna(0, ["copies", "enq", "refused"])
    vhosts = _rows(
        both, "vhost", f.lit("*"), f.lit(0), f.col("copies"),
        {"routed": f.col("enq"), "refused": f.col("refused")},
    )  # fmt: skip
    return _exchanges(exchanges).unionByName(_queues(queues)).unionByName(vhosts)


def _rows(
    frame: DataFrame,
    kind: str,
    name: Column,
    waited: Column,
    came: Column,
    known: dict[str, Column],
) -> DataFrame:
    """known: the fates that such objects have."""
    found = sum(known.values(), f.lit(0))
    return frame.select(
        *_KEY,
        f.lit(kind).alias("kind"),
        name.alias("object"),
        waited.cast("long").alias("waited"),
        came.cast("long").alias("came"),
        *(known.get(fate, f.lit(0)).cast("long").alias(fate) for fate in FATES),
        (waited + came - found).cast("long").alias("unknown"),
    )


def _exchanges(exchanges: DataFrame) -> DataFrame:
    dropped = f.col("dropped") + f.col("ae_missing") + f.col("ae_cycle")
    known = {
        "routed": f.col("routed"),
        "alternate_exchange": f.col("ae_routed"),
        "returned": f.col("returned"),
        "dropped": dropped,
    }
    came = f.col("in") + f.col("internal_in")
    return _rows(exchanges, "exchange", f.col("exchange"), f.lit(0), came, known)


def _per_queue(inputs: Inputs) -> DataFrame:
    counts = ("enq", "refused", "ack", "orphaned", "purged", "job_out", "dl_out", *_DIED)
    depth = f.col("ready_last") + f.col("unacked_last")
    return (
        inputs.queues()
        .groups.groupBy("cluster", f.timestamp_micros("t0").alias("window_start"), "vhost", "queue")
        .agg(
            *(f.sum(f"d_{name}").alias(name) for name in counts),
            f.sum("start_depth").alias("waited"),
            f.sum(depth).alias("waiting"),
            *(total(name) for name in ("deleted", "expired_queue")),
        )
    )


def _queues(queues: DataFrame) -> DataFrame:
    """What a queue refused may have gone to its dead letter exchange (reject-publish-dlx): then
    letters are more than what died in it.
    """
    died = sum((f.col(name) for name in _DIED), f.lit(0))
    left = f.greatest(died + f.col("refused") - f.col("dl_out"), f.lit(0))
    refused = f.least(left, f.col("refused"))
    gone = f.col("deleted") + f.col("expired_queue")
    known = {
        "delivered": f.col("ack"),
        "dead_lettered": f.col("dl_out"),
        "refused": refused,
        "dropped": left - refused,
        "purged": f.col("purged") + f.col("orphaned") - gone,
        "taken_by_jobs": f.col("job_out"),
        "gone_with_queue": gone,
        "waiting": f.col("waiting"),
    }
    came = f.col("enq") + f.col("refused")
    return _rows(queues, "queue", f.col("queue"), f.col("waited"), came, known)
