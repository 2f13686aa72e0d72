"""What each queue did in each minute, quarter and hour, of its steps (Q1, Q4, Q8, Q9, Q11, Q13).
PURE.

All figures of queues are sums and last levels over minutes, quarters, hours and days, and are
made of these rows: the steps are looked at once, and kept nowhere.  What is text is what the last
step of a span said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow
import pyarrow.compute as pc

from brokerd_telemetry.columns.deltas import Columns, real, whole
from brokerd_telemetry.schema import (
    ENDS,
    FLOW_US,
    FLOWS,
    GRACE_US,
    HOUR_US,
    LIMITS,
    MINUTE_US,
    QUARTER_US,
    QUEUE_COUNTERS,
    QUEUE_GAUGES,
)

#: Of a queue always the same.
_NAME = ("vhost", "queue")
#: What may change, and is text.
_TEXTS = ("node", "qtype", "strategy", "dlx")
_FLOWS = tuple(f"{name}_{n}" for name in ("enq", "ack") for n in FLOWS)
_DOUBLES = ("ready_us", "byte_s", "consumer_us", "busy_us")
_OWN_SUMS = (
    *(f"d_{name}" for name in QUEUE_COUNTERS), "d_gone", *ENDS, "enq", "ready_us", "byte_s",
)  # fmt: skip
_SUMS = (
    *_OWN_SUMS, "consumer_us", "busy_us", "told_us", "consumed_us", "waiting_us", "full_us",
    "settled", "taken", "near_taken", "rows", *_FLOWS,
)  # fmt: skip
#: Numbers of the last step.
_LEVELS = (
    "t0", "t1", "seq", "term", "is_gone", *QUEUE_GAUGES,
    *(f"c_{name}" for name in QUEUE_COUNTERS), *LIMITS,
)  # fmt: skip
_LASTS = (*_TEXTS, "grp", *(f"{name}_last" for name in _LEVELS))
_FIRSTS = ("start_depth", "start_pending")
_MAXIMA = (
    "c_ack", "t1", "ready", "ready_bytes", "head_age_ms", "dl_pending_age_ms", "consumers",
    "max_len", "term", "is_unknown",
)  # fmt: skip
_GREATEST = (
    *(f"{name}_max" for name in _MAXIMA), "waiting_max", "taken_us", "in_us", "out_us", "step_us",
    "last",
)  # fmt: skip
_LEAST = ("consumers_min", "term_min", "first_us", "at_least_once", "first")
_FLAGS = ("is_unknown_max", "at_least_once")


def _type_of(name: str) -> pyarrow.DataType:
    if name in _TEXTS:
        return pyarrow.string()
    if name in _FLAGS:
        return pyarrow.bool_()
    return pyarrow.float64() if name in _DOUBLES else pyarrow.int64()


#: What is known of each span.
SCHEMA = pyarrow.schema(
    [
        *((name, pyarrow.string()) for name in ("cluster", *_NAME)),
        *(
            (name, _type_of(name))
            for name in ("t0", *_SUMS, *_GREATEST, *_LEAST, *_FIRSTS, *_LASTS, "leaders")
        ),
    ]
)


@dataclass(slots=True, frozen=True)
class Windows:
    """What queues did (SCHEMA): a row per name and minute, quarter of an hour and hour, per group
    and hour (a queue that is deleted and declared again has another group), and in flows a row
    per minute for all of them, without a name.
    """

    minutes: pyarrow.Table
    quarters: pyarrow.Table
    hours: pyarrow.Table
    groups: pyarrow.Table
    flows: pyarrow.Table


def of(deltas: Columns, cluster: str) -> Windows:
    """Return what some queues of a cluster did; the steps are all that there are of their names.

    t0: the span's start.  first, last: the places of its first and last step; node, qtype,
    strategy, dlx, grp and `<name>_last` are what the last one said, start_depth and start_pending
    what was before the first.  `<name>_max`, consumers_min, term_min, waiting_max (ready and
    pending letters): over the steps.  leaders: how many members told.  at_least_once: the strategy
    throughout.  taken_us, in_us, out_us: the end of the last step that delivered something, in
    which something came, in which something was taken or went.  told_us, consumed_us, consumer_us,
    waiting_us, full_us, busy_us: microseconds in all; with consumers; times their number; with
    consumers while messages waited; of that with their prefetch used up; times consumers.  settled:
    what was acknowledged in steps in which messages waited.  taken, near_taken: enqueued and
    refused, and of that near a border of the hour.  enq_<n>, ack_<n>: in a minute's n-th ten
    seconds, null without a step; step_us: its longest.
    """
    reported = _reported(deltas)
    # Of texts there are few, and a number is found faster.
    codes = {name: deltas[name].dictionary_encode("encode") for name in (*_NAME, "node")}
    reported |= {name: codes[name].indices for name in _NAME}
    nodes = {name: reported[name] for name in (*_NAME, "first")} | {"node": codes["node"].indices}
    each = _added(reported, (*_NAME, "grp"), MINUTE_US)
    groups = _added(each, (*_NAME, "grp"), HOUR_US)
    minutes = _added(each, _NAME, MINUTE_US)
    made = {
        "minutes": _with_leaders(minutes, nodes, reported["t0"], MINUTE_US),
        "quarters": _added(minutes, _NAME, QUARTER_US),
        "hours": _with_leaders(_added(groups, _NAME, HOUR_US), nodes, reported["t0"], HOUR_US),
        "groups": groups,
    }
    tables = {"flows": _table(_added(minutes, (), MINUTE_US), cluster)}
    for kind, windows in made.items():
        names = {name: codes[name].dictionary.take(windows[name]) for name in _NAME}
        tables[kind] = _table(windows | names, cluster)
    return Windows(**tables)


def _reported(deltas: Columns) -> Columns:
    """Return each step as the span of itself."""
    taken = pc.add(deltas["d_enq"], deltas["d_refused"])
    near = pc.if_else(_near_a_border(deltas), taken, 0)
    return {
        **{name: deltas[name] for name in ("t0", "grp", *_TEXTS, *_FIRSTS, *_OWN_SUMS)},
        **{f"{name}_last": deltas[name] for name in _LEVELS},
        **{f"{name}_max": deltas[name] for name in _MAXIMA},
        "first": deltas["place"],
        "last": deltas["place"],
        "consumers_min": deltas["consumers"],
        "term_min": deltas["term"],
        "at_least_once": pc.equal(deltas["strategy"], "at-least-once"),
        "waiting_max": pc.add(deltas["ready"], deltas["dl_pending"]),
        **_times(deltas),
        "taken": taken,
        "near_taken": pc.coalesce(near, 0),
        **_tens(deltas),
        "step_us": pc.subtract(deltas["t1"], deltas["t0"]),
        "rows": pyarrow.repeat(1, len(taken)),
    }


def _near_a_border(deltas: Columns) -> pyarrow.Array:
    """Tell of a step whether some of what it counts may be counted in the hour beside it."""
    interval_us = pc.subtract(deltas["t1"], deltas["t0"])
    early_us = pc.add(pc.add(deltas["start_us"], GRACE_US), pc.multiply(interval_us, 2))
    late_us = pc.subtract(deltas["end_us"], GRACE_US)
    return pc.or_(pc.less(deltas["t0"], early_us), pc.greater(deltas["t1"], late_us))


def _tens(deltas: Columns) -> Columns:
    slot = pc.divide(pc.subtract(deltas["t0"], _start(deltas["t0"], MINUTE_US)), FLOW_US)
    nothing = pyarrow.scalar(None, pyarrow.int64())
    tens = {}
    for n in FLOWS:
        is_here = pc.equal(slot, n)
        for name in ("enq", "ack"):
            tens[f"{name}_{n}"] = pc.if_else(is_here, deltas[f"d_{name}"], nothing)
    return tens


def _times(deltas: Columns) -> Columns:
    """Return when something happened, and how long consumers had what to do."""
    span_us = pc.add(deltas["quiet_us"], deltas["busy_us"])
    consumers, prefetch = deltas["consumers"], deltas["prefetch_sum"]

    def is_so(when: pyarrow.Array) -> pyarrow.Array:
        return pc.fill_null(when, False)

    has = is_so(pc.greater(consumers, 0))
    waits = pc.and_(has, is_so(pc.greater(deltas["ready"], 0)))
    is_full = pc.and_kleene(pc.greater(prefetch, 0), pc.greater_equal(deltas["unacked"], prefetch))
    full = pc.and_(waits, is_so(is_full))
    # Not whole: a product of what a member claims may be too large for that.
    each_us = pc.multiply(real(span_us), real(consumers))
    delivered = is_so(pc.greater(deltas["d_dlv"], 0))
    went = pc.or_(delivered, is_so(pc.greater(deltas["d_gone"], 0)))
    nothing = pyarrow.scalar(None, pyarrow.int64())

    def end(when: pyarrow.Array) -> pyarrow.Array:
        return pc.if_else(when, deltas["t1"], nothing)

    return {
        "taken_us": end(delivered),
        "first_us": deltas["t0"],
        "in_us": end(is_so(pc.greater(deltas["d_enq"], 0))),
        "out_us": end(went),
        "told_us": span_us,
        "consumed_us": pc.if_else(has, span_us, 0),
        "consumer_us": pc.if_else(has, each_us, 0.0),
        "waiting_us": pc.if_else(waits, span_us, 0),
        "full_us": pc.if_else(full, span_us, 0),
        "busy_us": pc.if_else(waits, each_us, 0.0),
        "settled": pc.if_else(waits, deltas["d_ack"], nothing),
    }


def _start(t0: pyarrow.Array, size_us: int) -> pyarrow.Array:
    return pc.multiply(pc.divide(t0, size_us), size_us)


def _added(windows: Columns, key: Sequence[str], size_us: int) -> Columns:
    """Return the same for longer spans, one for each key and start."""
    keys = [*(windows[name] for name in key), _start(windows["t0"], size_us)]
    names = [f"key_{n}" for n in range(len(keys))]
    aggregates = [
        *((name, "sum") for name in _SUMS),
        *((name, "max") for name in _GREATEST),
        *((name, "min") for name in _LEAST),
    ]
    values = {name: windows[name] for name, _ in aggregates}
    found = (
        pyarrow.table({**dict(zip(names, keys, strict=True)), **values})
        .group_by(names, use_threads=False)
        .aggregate(aggregates)
    )
    added = {name: whole(found[f"{name}_{how}"]) for name, how in aggregates}
    added |= {name: whole(found[column]) for name, column in zip((*key, "t0"), names, strict=True)}
    first = pc.index_in(added["first"], windows["first"])
    last = pc.index_in(added["last"], windows["last"])
    added |= {name: windows[name].take(first) for name in _FIRSTS}
    added |= {name: windows[name].take(last) for name in _LASTS}
    return added


def _with_leaders(windows: Columns, nodes: Columns, t0: pyarrow.Array, size_us: int) -> Columns:
    """Return spans of names with how many members told of each."""
    key = [*_NAME, "t0"]
    found = (
        pyarrow.table({**nodes, "t0": _start(t0, size_us)})
        .group_by(key, use_threads=False)
        .aggregate([("node", "count_distinct", pc.CountOptions(mode="all")), ("first", "min")])
    )
    at = pc.index_in(windows["first"], whole(found["first_min"]))
    return windows | {"leaders": whole(found["node_count_distinct"]).take(at)}


def _table(windows: Columns, cluster: str) -> pyarrow.Table:
    count = len(windows["t0"])
    nothing = {name: pyarrow.nulls(count, SCHEMA.field(name).type) for name in (*_NAME, "leaders")}
    columns = {"cluster": pyarrow.repeat(cluster, count), **nothing, **windows}
    return pyarrow.table([columns[name] for name in SCHEMA.names], SCHEMA)
