"""How much each boot of a member told in an hour (design/telemetry.md §8.18). PURE."""

from __future__ import annotations

import pyarrow
import pyarrow.compute as pc

_KEY = ("node", "boot")
#: What is looked at in the rows of every kind, and of some beside it.
_COLUMNS = (*_KEY, "t0", "t1")
_ALSO = {
    "gap": ("rows",),
    "boot": ("state",),
    "node": ("peers", "peers_down", "peers_off", "skew_ms"),
    "queue": ("members",),
}


def columns(kind: str) -> list[str]:
    """Return which columns of a kind's rows `of` and `peers` need."""
    return [*_COLUMNS, *_ALSO.get(kind, ())]


def of(rows: pyarrow.Table, kind: str) -> pyarrow.Table:
    """Return a line per member and boot of an hour's rows of one kind, in an order of no meaning.

    first_us, last_us: from when to when there are rows.  told_us: how long its rows of the kind
    `node` last, all together.  gap_rows: how many rows it knows to be lost.  has_ended: it said
    that it ends.  group: members of the largest group of a queue.
    knows_peers: it names the members of its cluster (`peers`).  ahead_ms, behind_ms (negative): by
    how much at most its clock was ahead of those of the others, and behind them.
    """
    reported = {name: rows[name] for name in (*_KEY, "t0", "t1")}
    aggregates: list[tuple[str | list[str], str]] = [
        ([], "count_all"),
        ("t0", "min"),
        ("t1", "max"),
    ]
    if kind == "node":
        reported["told_us"] = pc.subtract(rows["t1"], rows["t0"])
        reported["ahead"] = reported["behind"] = rows["skew_ms"]
        reported["knows"] = pc.cast(pc.is_valid(rows["peers"]), pyarrow.int8())
    elif kind == "gap":
        reported["gap_rows"] = rows["rows"]
    elif kind == "boot":
        reported["ended"] = pc.cast(pc.equal(rows["state"], "end"), pyarrow.int8())
    elif kind == "queue":
        reported["group"] = rows["members"]
    how = dict.fromkeys(("ended", "group", "knows", "ahead"), "max") | {"behind": "min"}
    more = [(name, how.get(name, "sum")) for name in reported if name not in _COLUMNS]
    found = (
        pyarrow.table(reported)
        .group_by(list(_KEY), use_threads=False)
        .aggregate([*aggregates, *more])
    )
    nothing = pyarrow.repeat(0, len(found))

    def counted(name: str) -> pyarrow.Array:
        return found[name].fill_null(0) if name in found.column_names else nothing

    return pyarrow.table(
        {
            **{name: found[name] for name in _KEY},
            "rows": found["count_all"],
            "first_us": found["t0_min"],
            "last_us": found["t1_max"],
            "told_us": counted("told_us_sum"),
            "gap_rows": counted("gap_rows_sum"),
            "has_ended": pc.equal(counted("ended_max"), 1),
            "group": counted("group_max"),
            "knows_peers": pc.equal(counted("knows_max"), 1),
            "ahead_ms": pc.max_element_wise(counted("ahead_max"), 0),
            "behind_ms": pc.min_element_wise(counted("behind_min"), 0),
        }
    )


def switched_off(rows: pyarrow.Table) -> list[str]:
    """Return the peers of which members' own rows say that their telemetry is switched off."""
    names: list[str] = pc.unique(pc.list_flatten(rows["peers_off"])).to_pylist()
    return names


def peers(rows: pyarrow.Table) -> pyarrow.Table:
    """Return of each peer that members' own rows name from when to when it was up: peer, from_us,
    until_us, the latter null where it never was.  None is named by members of older versions.
    """
    found = []
    for name, is_up in (("peers", True), ("peers_down", False)):
        column = rows[name].combine_chunks()
        at = pc.list_parent_indices(column)
        times = {
            part: rows[of].take(at) if is_up else pyarrow.nulls(len(at), pyarrow.int64())
            for part, of in (("from_us", "t0"), ("until_us", "t1"))
        }
        found.append(pyarrow.table({"peer": pc.list_flatten(column), **times}))
    return (
        pyarrow.concat_tables(found)
        .group_by("peer", use_threads=False)
        .aggregate([("from_us", "min"), ("until_us", "max")])
        .rename_columns(["peer", "from_us", "until_us"])
    )
