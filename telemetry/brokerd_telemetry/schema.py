"""What rows look like: the union schema of all kinds, hours, and what each kind must have.

design/telemetry.md §6.5, §6.6, §10: fields are only ever added; a job that does not know a field
ignores it, a row that lacks one has null, and a queue's row that lacks a number 0.  Used by the
ingest and by tests; reads no files.
"""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import types as t

HOUR_US = 3_600_000_000
QUARTER_US = HOUR_US // 4
MINUTE_US = 60_000_000
#: A queue without a row for a week is forgotten.
CARRY_US = 7 * 24 * HOUR_US
FLOW_US = 10_000_000
#: Ten seconds of a minute, by number.
FLOWS = range(MINUTE_US // FLOW_US)
#: From where a message is routed to where its queue counts it: quorum, disk, clocks that differ.
GRACE_US = 30_000_000
#: Difference from which members say of each other that a clock is off (telemetry_peers.py).
CLOCK_S_MIN = 5.0

#: Each is a delta and, as c_<name>, cumulative since the queue's birth.
QUEUE_COUNTERS = (
    "enq", "enq_bytes", "dlv", "redlv", "ack", "requeue", "rejected", "expired", "maxlen_drop",
    "over_limit", "orphaned", "purged", "refused", "dl_out", "dl_confirmed", "dl_lost",
    "get_empty", "default_limit_drop", "job_out",
)  # fmt: skip
REMOVALS = ("rejected", "expired", "maxlen_drop", "over_limit", "orphaned", "purged", "job_out")
QUEUE_GAUGES = (
    "ready", "unacked", "ready_bytes", "unacked_bytes", "head_age_ms", "consumers",
    "prefetch_sum", "dl_pending", "dl_pending_age_ms",
)  # fmt: skip
ENDS = ("deleted", "expired_queue")
#: Where a message can be at the end of an hour (fates_1h), but for what is not known.
FATES = (
    "routed", "alternate_exchange", "returned", "dropped", "refused", "dead_lettered", "delivered",
    "purged", "taken_by_jobs", "gone_with_queue", "waiting",
)  # fmt: skip
LIMITS = ("max_len", "max_bytes", "ttl_ms", "delivery_limit")

#: Members leave these out while they are 0.
QUEUE_NUMBERS = (*QUEUE_GAUGES, *QUEUE_COUNTERS, *(f"c_{name}" for name in QUEUE_COUNTERS))

_LONGS = (
    "t0", "t1", "seq", "grp", "term", *QUEUE_NUMBERS, "members", *LIMITS,
    "in", "in_bytes", "routed", "copies", "ae_routed", "ae_missing", "ae_cycle", "returned",
    "dropped", "confirmed", "nacked", "internal_in", "internal_in_bytes",
    "out", "out_bytes", "blocked_ms", "n", "bytes", "rows",
    "conns", "leaders", "rss", "mem_limit", "wm_bytes", "wm_state", "disk_free", "disk_limit",
    "stalled_ms",
    "backlog", "backlog_age_ms", "in_flight", "drop_maxhops", "drop_loop", "reconnects",
    "moved", "lag_count", "lag_sum_ms", "priority", "bindings",
    "tries", "redeliveries",
    # By how much t0 and t1 are ahead of the clocks of the other members; columns/lines.py
    # takes it off.
    "skew_ms",
    # Of a queue's last row: messages that went with it when it was deleted, or expired or went by
    # itself.  No other row has one of them; `purged` and `orphaned` count them too.
    *ENDS,
)  # fmt: skip
TEXTS = (
    "k", "vhost", "queue", "qtype", "overflow", "dlx", "strategy", "policy", "exchange", "user",
    "reason", "outcome", "rk", "dlrk", "err", "state", "from", "to", "conn", "mode", "cause",
    "kind", "link", "upstream", "remote", "broker_version",
    "shovel", "dest", "dest_queue", "dest_exchange", "apply_to", "lost_to", "xtype",
    "fp", "ended",
)  # fmt: skip
_FLAGS = ("hb", "whole", "has_alternate", "is_target")
#: Counts by name; members of another version may have other names.
COUNTS = (
    # Bytes by part of a member's memory.
    "mem_parts",
    # Objects by kind, and by key of a policy.
    "objects", "without_policy", "matched", "won", "overridden",
)  # fmt: skip

HISTOGRAM = t.StructType(
    [
        t.StructField("i", t.ArrayType(t.IntegerType())),
        t.StructField("c", t.ArrayType(t.LongType())),
        t.StructField("sum_us", t.LongType()),
        t.StructField("max_us", t.LongType()),
    ]
)

#: What a line of a segment may hold, whatever its kind.
ROW = t.StructType(
    [
        t.StructField("v", t.IntegerType()),
        *(t.StructField(name, t.StringType()) for name in TEXTS),
        *(t.StructField(name, t.LongType()) for name in _LONGS),
        *(t.StructField(name, t.BooleanType()) for name in _FLAGS),
        t.StructField("ae_hops", t.ArrayType(t.LongType())),
        t.StructField("hops", t.ArrayType(t.LongType())),
        # The queues that dead letters went to.
        t.StructField("targets", t.ArrayType(t.StringType())),
        # The other members of the cluster: those that are up, those that are not; of those that are
        # up, those whose telemetry is switched off.
        *(
            t.StructField(name, t.ArrayType(t.StringType()))
            for name in ("peers", "peers_down", "peers_off")
        ),
        *(t.StructField(name, t.MapType(t.StringType(), t.LongType())) for name in COUNTS),
        *(
            t.StructField(name, HISTOGRAM)
            for name in ("total", "route", "replicate", "fsync", "wait", "lag")
        ),
    ]
)
QUEUE = "queue"
#: All that is read of a queue's row: of a hundred rows some ninety are a queue's, and to look for
#: what other kinds have costs as much as to read it.
QUEUE_ROW = t.StructType(
    [
        ROW[name]
        for name in (
            "v", "seq", "k", "t0", "t1", "skew_ms", "hb", "vhost", QUEUE, "qtype", "grp", "term",
            "members", *ENDS, *LIMITS, "overflow", "dlx", "strategy", *QUEUE_NUMBERS,
        )
    ]
)  # fmt: skip
#: The beginning of a line that is no JSON, or has a field of a wrong type.
CORRUPT = "_corrupt"
PARSED = t.StructType([*ROW.fields, t.StructField(CORRUPT, t.StringType())])

#: From the segment's header, for each of its rows.
IDENTITY = ("cluster", "node", "boot", "stream")
#: A row as it lies in silver, less the partition columns.
SILVER = t.StructType(
    [
        *ROW.fields,
        *(t.StructField(name, t.StringType()) for name in IDENTITY),
        t.StructField("line", t.StringType()),
        t.StructField("error", t.StringType()),
    ]
)

#: Kinds that the job knows, and the fields without which a row means nothing.
REQUIRED: dict[str, tuple[str, ...]] = {
    "queue": ("vhost", "queue", "grp", "term", "ready", "unacked", "c_enq", "c_ack"),
    "exchange": ("vhost", "exchange", "in"),
    "confirm": ("vhost", "exchange", "user", "n", "total"),
    "principal": ("vhost", "user"),
    "node": (),
    "fed": ("link", "state"),
    "shovel": ("link", "state"),
    "raft": ("grp",),
    "dl": ("vhost", "queue", "reason", "outcome", "n"),
    "unr": ("vhost", "exchange", "rk", "n", "outcome"),
    "wm": ("from", "to"),
    "throttle": ("user", "blocked_ms"),
    "boot": ("state",),
    "gap": ("cause", "rows"),
    "leader": (),
    "policy": ("vhost", "policy", "kind"),
    "topo": ("vhost", "kind"),
    "link": (),
    "conn": (),
    "redel": ("vhost", "queue", "n", "tries"),
}
#: Kinds that may have one of COUNTS, or a number where the tables have a text (from, to, err).
KINDS_BY_LINE = ("node", "policy", "topo", "unr", "wm")
#: The directory in silver of lines that are no rows; moved to quarantine before the commit.
BAD_KIND = "_bad"


def hour_of(time_us: int) -> str:
    """Return the hour of a time as it is written in ledgers: 2026-11-20T14."""
    return f"{datetime.fromtimestamp(time_us / 1e6, UTC):%Y-%m-%dT%H}"


def hour_start_us(hour: str) -> int:
    """Return the start of an hour in microseconds."""
    return int(datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=UTC).timestamp()) * 1_000_000


def partition_of(hour: str) -> str:
    """Return an hour's directory: dt=2026-11-20/hh=14."""
    return f"dt={hour[:10]}/hh={hour[11:13]}"
