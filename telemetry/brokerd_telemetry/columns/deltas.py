"""From queue rows to exact steps: what happened in a queue between two rows. PURE.

A queue's cumulative counters are replicated with it, so they are the same on every leader, and
nothing is counted twice or lost when a leader is killed.  A step is the difference to the row
before in order of (term, time); only the first row that is known of a queue uses its own deltas,
which reach back to the queue's birth if that was when this member began to tell of it.
"""

from __future__ import annotations

import pyarrow
import pyarrow.compute as pc

from brokerd_telemetry.schema import ENDS, LIMITS, QUEUE_COUNTERS, QUEUE_GAUGES, REMOVALS

#: What is carried from the last row of earlier hours.
CARRIED = (
    "node", "vhost", "queue", "qtype", "grp", "term", "t0", "t1", "seq",
    "strategy", "dlx", *QUEUE_GAUGES, *(f"c_{name}" for name in QUEUE_COUNTERS),
)  # fmt: skip
#: What puts the rows of one queue in order (Raft: a higher term is later).
ORDER = ("term", "t1", "c_enq", "c_ack", "c_dlv", "seq")

_TEXTS = ("node", "vhost", "queue", "qtype", "strategy", "dlx")
#: What is asked of a row.
ROWS = pyarrow.schema(
    [
        (name, pyarrow.string() if name in _TEXTS else pyarrow.int64())
        for name in (*CARRIED, *QUEUE_COUNTERS, *ENDS, *LIMITS)
    ]
)
Columns = dict[str, pyarrow.Array]


def in_order(rows: pyarrow.Table, carry: pyarrow.Table) -> Columns:
    """Return rows of an hour and of a cluster (ROWS), those of a group together: first those of
    the group that was told of first.  Of two of the same name it is the one that was deleted; their
    numbers say nothing of it, as they are drawn.

    carry: the groups' last rows of the hours before, from `queue_last_1h`; what that does not have
    is null.
    """
    is_carried = (
        pyarrow.repeat(flag, len(table)) for flag, table in ((False, rows), (True, carry))
    )
    both = pyarrow.concat_tables([rows, carry]).append_column(
        "is_carried", pyarrow.chunked_array(list(is_carried))
    )
    starts = both.group_by("grp", use_threads=False).aggregate([("t0", "min")])
    begin_us = whole(starts["t0_min"]).take(pc.index_in(both["grp"], whole(starts["grp"])))
    keys = [(name, "ascending", "at_start") for name in ("begin_us", "grp", *ORDER)]
    at = pc.sort_indices(both.append_column("begin_us", begin_us), sort_keys=keys)
    return {name: whole(both[name].take(at)) for name in both.column_names}


def last(own: Columns, since_us: int) -> pyarrow.Table:
    """Return the last row of each group, which the next hour's steps begin with (ROWS); not of
    those without a row after `since_us`, nor of those that are gone.
    """
    if not len(own["grp"]):
        return ROWS.empty_table()
    is_first = _changes(own["grp"])
    is_last = pyarrow.concat_arrays([is_first.slice(1), pyarrow.array([True])])
    kept = pc.and_(is_last, pc.greater(own["t1"], since_us))
    kept = pc.and_(kept, pc.invert(_is_gone(own)))
    return pyarrow.table([own[name].filter(kept) for name in ROWS.names], ROWS)


def of(own: Columns, start_us: int, end_us: int) -> Columns:
    """Return an hour's rows, in order of their places, with d_<counter>, start_depth, start_pending
    and areas.

    own: in_order's, of all rows that there are of each group.
    place: the row's among all of these.  is_unknown: it is not known from where on it counts.
    start_us, end_us: from when to when the hour was told.  quiet_us: since the row before, if it
    ended earlier than this one began; busy_us: its own.
    """
    if not len(own["grp"]):
        return own | dict.fromkeys(_MADE, own["grp"])
    is_first = _changes(own["grp"])
    before = {name: _before(own[name], is_first) for name in _BEFORE}
    deltas = {f"d_{name}": _step(name, own, before, is_first) for name in QUEUE_COUNTERS}
    gone = deltas["d_ack"]
    for name in REMOVALS:
        gone = pc.add(gone, deltas[f"d_{name}"])
    is_birth = pc.and_kleene(pc.equal(own["enq"], own["c_enq"]), pc.equal(own["dlv"], own["c_dlv"]))
    since = pc.min_element_wise(pc.max_element_wise(before["t1"], own["t0"]), own["t1"])
    quiet_us = pc.max_element_wise(pc.coalesce(pc.subtract(since, before["t1"]), 0), 0)
    times = {"quiet_us": quiet_us, "busy_us": pc.subtract(own["t1"], since)}
    octets = pc.add(
        _area("ready_bytes", own, before, times), _area("unacked_bytes", own, before, times)
    )
    made = deltas | times | _starts(own, before, deltas | {"gone": gone}, is_birth)
    made |= {
        "place": pyarrow.array(range(len(own["grp"])), pyarrow.int64()),
        "d_gone": gone,
        "is_gone": pc.cast(_is_gone(own), pyarrow.int64()),
        "ready_us": _area("ready", own, before, times),
        "byte_s": pc.divide(octets, 1e6),
        "is_unknown": pc.and_kleene(is_first, pc.invert(is_birth)),
    }
    count = len(own["grp"])
    made |= {"start_us": pyarrow.repeat(start_us, count), "end_us": pyarrow.repeat(end_us, count)}
    is_reported = pc.invert(own["is_carried"])
    return {name: column.filter(is_reported) for name, column in (own | made).items()}


def _is_gone(own: Columns) -> pyarrow.Array:
    """Tell of each row whether it is that of a queue's end."""
    return pc.or_(*(pc.is_valid(own[name]) for name in ENDS))


_MADE = (
    *(f"d_{name}" for name in QUEUE_COUNTERS), "d_gone", "is_gone", "place", "quiet_us", "busy_us",
    "start_depth", "start_pending", "ready_us", "byte_s", "is_unknown", "start_us", "end_us",
)  # fmt: skip
_BEFORE = (
    "t1", "ready", "unacked", "dl_pending", "ready_bytes", "unacked_bytes",
    *(f"c_{name}" for name in QUEUE_COUNTERS),
)  # fmt: skip


def whole(column: pyarrow.ChunkedArray | pyarrow.Array) -> pyarrow.Array:
    """Return a column in one piece."""
    return column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column


def real(column: pyarrow.Array) -> pyarrow.Array:
    """Return numbers as floating ones, however large."""
    return column.cast(pyarrow.float64(), safe=False)


def _changes(values: pyarrow.Array) -> pyarrow.Array:
    """Tell of each value whether it is another than the one before; of the first it is true."""
    later = pc.not_equal(values.slice(1), values.slice(0, len(values) - 1))
    return pyarrow.concat_arrays([pyarrow.array([True]), later])


def _before(values: pyarrow.Array, is_first: pyarrow.Array) -> pyarrow.Array:
    """Return the group's value of the row before, null for its first."""
    nothing = pyarrow.nulls(1, values.type)
    earlier = pyarrow.concat_arrays([nothing, values.slice(0, len(values) - 1)])
    return pc.if_else(is_first, nothing[0], earlier)


def _step(name: str, own: Columns, before: Columns, is_first: pyarrow.Array) -> pyarrow.Array:
    now = own[f"c_{name}"]
    # A counter that the version before did not have began with nothing.
    earlier = pc.coalesce(before[f"c_{name}"], 0)
    # A queue that lost its data and began anew counts from zero again.
    is_anew = pc.fill_null(pc.less(now, earlier), False)
    later = pc.if_else(is_anew, now, pc.subtract(now, earlier))
    return pc.if_else(is_first, pc.coalesce(own[name], 0), later)


def _starts(own: Columns, before: Columns, deltas: Columns, is_birth: pyarrow.Array) -> Columns:
    """Return what was there before each step: a queue that begins with its birth was empty; of
    others that begin it is deduced.
    """
    is_birth = pc.fill_null(is_birth, False)
    depth = pc.add(own["ready"], own["unacked"])
    deduced = pc.add(pc.subtract(depth, deltas["d_enq"]), deltas["gone"])
    settled = pc.add(deltas["d_dl_confirmed"], deltas["d_dl_lost"])
    pending = pc.add(pc.subtract(own["dl_pending"], deltas["d_dl_out"]), settled)
    return {
        "start_depth": pc.coalesce(
            pc.add(before["ready"], before["unacked"]), pc.if_else(is_birth, 0, deduced)
        ),
        "start_pending": pc.coalesce(before["dl_pending"], pc.if_else(is_birth, 0, pending)),
    }


def _area(name: str, own: Columns, before: Columns, times: Columns) -> pyarrow.Array:
    """Return level times microseconds: a row that did not come had the level of the one before.

    Not whole: a gigabyte for three hours is more octet-microseconds than a 64-bit number holds.
    """
    level = real(own[name])
    earlier = pc.coalesce(real(before[name]), level)
    return pc.add(
        pc.multiply(earlier, real(times["quiet_us"])), pc.multiply(level, real(times["busy_us"]))
    )
