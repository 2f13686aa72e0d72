"""What the report shows of tables with a row for each queue and hour: sums, and the first rows.
PURE.

With ten thousand queues those rows, each an object, were a gigabyte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow
import pyarrow.compute as pc

from brokerd_telemetry.schema import ENDS, FATES

Row = dict[str, Any]


@dataclass(slots=True, frozen=True)
class Book:
    """One equation of audit_1h over some hours."""

    rows: int
    judged: int
    #: Rows that do not balance, and by how many messages those are off that are judged.
    unbalanced: int
    off: int
    counted: int
    #: Some of the rows: what does not balance first, then what is judged, then by hour.
    shown: list[Row]
    #: Why some are not judged.
    why_not: tuple[str, ...] = ()


def books(audit: pyarrow.Table, shown: int = 0) -> dict[str, Book]:
    """Return each equation that audit_1h has rows of; shown: how many rows to show at most."""
    off = pc.fill_null(pc.abs(audit["residual"]), 0)
    judged = pc.fill_null(audit["judged"], False)
    ordered = audit.append_column("off", off).append_column("is_judged", judged.cast("int8"))
    found = {}
    for equation in sorted(pc.unique(audit["equation"]).to_pylist()):
        rows = ordered.filter(pc.equal(ordered["equation"], equation))
        own = pc.equal(rows["is_judged"], 1)
        keys = [("off", "descending"), ("is_judged", "descending"), ("window_start", "ascending")]
        first = rows.take(pc.sort_indices(rows, sort_keys=keys)[:shown]) if shown else rows[:0]
        found[equation] = Book(
            rows=len(rows),
            judged=_sum(rows["is_judged"]),
            unbalanced=_sum(pc.not_equal(rows["off"], 0)),
            off=_sum(rows["off"].filter(own)),
            counted=_sum(rows["counted"]),
            shown=first.select(audit.column_names).to_pylist(),
            why_not=tuple(sorted(pc.unique(rows["not_judged"].drop_null()).to_pylist())),
        )
    return found


def unreported(audit: pyarrow.Table) -> int:
    """Return how much more queues took than exchanges tell of, in the hours that are not judged."""
    rows = audit.filter(
        pc.and_(
            pc.equal(audit["equation"], "copies"), pc.invert(pc.fill_null(audit["judged"], False))
        )
    )
    more = pc.subtract(rows["counted"], rows["expected"])
    return _sum(pc.max_element_wise(more, 0))


def queues(hours: pyarrow.Table) -> pyarrow.Table:
    """Return a row for each queue of queue_1h, those with most messages first: sums, and how many
    messages it had last.
    """
    sums = ("enq", "ack", "redlv", "dl_out", "purged", "orphaned", *ENDS)
    levels = ("ready_last", "unacked_last", "is_gone")
    found = (
        hours.sort_by("window_start")
        .group_by(["vhost", "queue"], use_threads=False)
        .aggregate([*((name, "sum") for name in sums), *((name, "last") for name in levels)])
        .sort_by([("enq_sum", "descending")])
    )
    return found.select(
        [
            "vhost",
            "queue",
            *(f"{name}_sum" for name in sums),
            *(f"{name}_last" for name in levels),
        ]
    ).rename_columns(["vhost", "queue", *sums, *levels])


#: A name that was drawn, as clients name queues for replies: the drawn part is folded to a star.
_DRAWN = (
    r"(?:[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"
    r"|[0-9A-Fa-f]{32}|amq[.]gen-[A-Za-z0-9_-]{22})"
)


def folded(queues: pyarrow.Table) -> pyarrow.Table:
    """Return `queues` with those of drawn names together, each kind as one row; how many a row
    stands for is `queues`.
    """
    drawn = pc.replace_substring_regex(queues["queue"], "amq[.]gen-[A-Za-z0-9_-]{22}", "amq.gen-*")
    names = pc.replace_substring_regex(drawn, _DRAWN, "*")
    at = queues.column_names.index("queue")
    renamed = queues.set_column(at, "queue", names)
    totals = [name for name in queues.column_names if name not in ("vhost", "queue", "is_gone")]
    found = renamed.group_by(["vhost", "queue"], use_threads=False).aggregate(
        [*((name, "sum") for name in totals), ("is_gone", "all"), ([], "count_all")]
    )
    made = found.rename_columns(
        [name.removesuffix("_sum").removesuffix("_all").replace("count", "queues")
         for name in found.column_names]
    )  # fmt: skip
    return made.sort_by([("enq", "descending")])


def gone(queues: pyarrow.Table) -> int:
    """Return how many messages went with queues that were deleted or expired; of `queues`."""
    return sum(_sum(queues[name]) for name in ENDS)


def acknowledged(queues: pyarrow.Table) -> int:
    """Return how many messages consumers acknowledged; of `queues`."""
    return _sum(queues["ack"])


def purged(queues: pyarrow.Table) -> int:
    """Return how many messages were purged from queues; of `queues`.

    What went with a queue counts as purged or, while a consumer held it, as orphaned, and as gone.
    """
    counted = {name: pc.fill_null(queues[name], 0) for name in ("purged", "orphaned", *ENDS)}
    removed = pc.add(counted["purged"], counted["orphaned"])
    for name in ENDS:
        removed = pc.subtract(removed, counted[name])
    return _sum(pc.max_element_wise(removed, 0))


def fates(hours: pyarrow.Table) -> pyarrow.Table:
    """Return fates_1h over its hours, those with most messages first: what waited before the first,
    what came, what became of it, what waits at the end of the last, and the rest as `unknown`.
    """
    keys = ["kind", "vhost", "object"]
    sums = ["came", *(name for name in FATES if name != "waiting")]
    found = (
        hours.sort_by("window_start")
        .group_by(keys, use_threads=False)
        .aggregate([*((name, "sum") for name in sums), ("waited", "first"), ("waiting", "last")])
    )
    names = [*keys, *(f"{name}_sum" for name in sums), "waited_first", "waiting_last"]
    made = found.select(names).rename_columns([*keys, *sums, "waited", "waiting"])
    rest = pc.add(made["waited"], made["came"])
    for name in FATES:
        rest = pc.subtract(rest, made[name])
    return made.append_column("unknown", rest).sort_by([("came", "descending")])


def fates_by_cluster(rows: pyarrow.Table) -> list[Row]:
    """Return a row for each cluster and kind of fates_1h."""
    keys, names = ["cluster", "kind"], [*FATES, "unknown"]
    found = rows.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in names])
    made = found.select([*keys, *(f"{name}_sum" for name in names)]).rename_columns([*keys, *names])
    lines: list[Row] = made.to_pylist()
    return lines


def letters(rows: pyarrow.Table) -> list[Row]:
    """Return deadletter_1h over its hours."""
    keys = ["vhost", "queue", "reason", "dlx", "outcome"]
    found = rows.group_by(keys, use_threads=False).aggregate([("n", "sum"), ("lost", "sum")])
    named = found.select([*keys, "n_sum", "lost_sum"]).rename_columns([*keys, "n", "lost"])
    lines: list[Row] = named.to_pylist()
    return lines


def _sum(values: pyarrow.ChunkedArray) -> int:
    return int(pc.sum(values, min_count=0).as_py())
