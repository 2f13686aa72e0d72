"""Each queue's last row, which the next hour's steps begin with (queue_last_1h). PURE."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow
import pyarrow.compute as pc

from brokerd_telemetry.columns import deltas
from brokerd_telemetry.columns.deltas import Columns, whole

#: What is carried beside a row (8.13).
_ACTIVITY: tuple[tuple[str, Callable[..., pyarrow.Array]], ...] = (
    ("first_us", pc.min_element_wise),
    ("in_us", pc.max_element_wise),
    ("out_us", pc.max_element_wise),
)
#: A last row as it is carried from hour to hour.
ROWS = pyarrow.schema([*deltas.ROWS, *((name, pyarrow.int64()) for name, _ in _ACTIVITY)])
_CARRIED = [*deltas.CARRIED, *(name for name, _ in _ACTIVITY)]
#: The table.
SCHEMA = pyarrow.schema(
    [
        ("window_start", pyarrow.timestamp("us", "UTC")),
        ("cluster", pyarrow.string()),
        *(ROWS.field(name) for name in _CARRIED),
    ]
)


def of(own: Columns, groups: pyarrow.Table, carry: pyarrow.Table, since_us: int) -> pyarrow.Table:
    """Return the last row of each group at an hour's end (ROWS), which its next hour begins with.

    own: deltas.in_order's of the hour, groups: what they did in it (columns.windows.Windows),
    carry: this of the hour before; what an earlier version's job did not know is null.

    first_us: since when the queue is known; in_us, out_us: the end of the last interval in which
    something came, and in which something was taken or went; null if nothing did since then.
    """
    rows = deltas.last(own, since_us)
    before = {name: carry[name] for name, _ in _ACTIVITY}
    before["first_us"] = pc.coalesce(before["first_us"], carry["t0"])
    activity = {}
    for name, which in _ACTIVITY:
        values = (_of_groups(groups[name], groups, rows), _of_groups(before[name], carry, rows))
        activity[name] = which(*values)
    return pyarrow.table([*rows.columns, *activity.values()], ROWS)


def table(rows: pyarrow.Table, cluster: str, hour_us: int) -> pyarrow.Table:
    """Return queue_last_1h of an hour, of these rows."""
    count = len(rows)
    start = pyarrow.repeat(hour_us, count).cast(pyarrow.timestamp("us", "UTC"))
    columns = [start, pyarrow.repeat(cluster, count), *(rows[name] for name in _CARRIED)]
    return pyarrow.table(columns, SCHEMA)


def _of_groups(
    values: pyarrow.ChunkedArray, known: pyarrow.Table, rows: pyarrow.Table
) -> pyarrow.Array:
    """Return a value of each row's group, null where it is not known."""
    return whole(values).take(pc.index_in(whole(rows["grp"]), whole(known["grp"])))
