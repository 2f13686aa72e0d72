"""The books in plain Python: what `tables/audit.py` says of segments, without Spark.

Rows are read, steps made and hours judged by the job's own pure modules; the equations stand here a
second time, row by row.  Thousands of worlds can be looked at so.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
from brokerd_telemetry import ingest, quality, schema, sources, verify
from brokerd_telemetry.columns import deltas, last_rows, lines, reported, windows
from brokerd_telemetry.tables.audit import SILENCE_US

from brokerd.telemetry.counters import EXCHANGE_COUNTERS

Row = dict[str, Any]
_OUTCOMES = ("routed", "ae_routed", "returned", "dropped", "ae_missing", "ae_cycle")
HOUR_US = schema.HOUR_US


@dataclass
class Books:
    """What the audit says of one cluster."""

    #: (equation, hour, object): how far it is off; None: not judged.
    residuals: dict[tuple[str, int, str], int | None] = field(default_factory=dict)
    #: Why hours are not judged.
    unseen: dict[int, str] = field(default_factory=dict)
    nodes: list[quality.NodeHour] = field(default_factory=list)
    bad_rows: int = 0
    #: Rows of queue_1h's spans, by hour and name.
    queues: list[Row] = field(default_factory=list)

    @property
    def accuses(self) -> bool:
        """Say whether a finding BOOKS is raised."""
        return any(self.residuals.values())


def audit(raw: Path, now_us: int) -> Books:
    """Return the books of the only cluster whose segments lie in a directory."""
    below = sources.raw_root(raw)
    verdicts = verify.judge(below, sources.listed(below), {}, None)
    leads_us = ingest.leads_us(verdicts.fresh, now_us)
    books = Books()
    rows = _rows(verdicts.fresh, leads_us, now_us, books)
    hours = sorted({hour_us for _, hour_us in rows})
    books.nodes, boots = _observed(rows), dict[str, Row]()
    seen, off = _seen(rows)
    quality.note_boots(boots, books.nodes, verdicts.fresh, leads_us)
    quality.note_lost_rows(books.nodes, [segment.entry() for segment in verdicts.fresh])
    quality.judge(books.nodes, boots, seen, off)
    carry = last_rows.ROWS.empty_table()
    covered = {line["hour_us"]: line for line in quality.coverage(books.nodes)}
    for hour_us in hours:
        line = covered[hour_us]
        books.unseen[hour_us] = line["unseen"]
        own = deltas.in_order(
            _columns(rows, schema.QUEUE, hour_us, deltas.ROWS), carry.select(deltas.ROWS.names)
        )
        made = windows.of(deltas.of(own, line["start_us"], line["end_us"]), "c")
        carry = last_rows.of(own, made.groups, carry, hour_us - schema.CARRY_US)
        books.queues += made.hours.to_pylist()
        groups = made.groups.to_pylist()
        exchanges = _columns(rows, "exchange", hour_us, _EXCHANGES).to_pylist()
        _judge(books, hour_us, line, groups, exchanges)
    return books


_EXCHANGES = pyarrow.schema(
    [
        ("exchange", pyarrow.string()),
        *((name, pyarrow.int64()) for name in ("t0", "t1", *EXCHANGE_COUNTERS)),
    ]
)
Rows = dict[tuple[str, int], list[pyarrow.Table]]


def _rows(
    segments: list[verify.Segment], leads_us: dict[str, int], now_us: int, books: Books
) -> Rows:
    found: Rows = defaultdict(list)
    fields = lines.Fields()
    for segment in segments:
        identity = (segment.cluster, segment.node, segment.boot, segment.stream)
        hour_us = schema.hour_start_us(segment.hour)
        lead_us = leads_us.get(segment.boot, 0)
        origin = lines.Origin(identity, segment.first_seq, hour_us, now_us, 0, lead_us)
        for kind, at_us, table in lines.rows_of(verify._text(Path(segment.file)), origin, fields):
            if kind == schema.BAD_KIND:
                books.bad_rows += len(table)
            else:
                found[kind, at_us].append(table)
    return found


def _columns(rows: Rows, kind: str, hour_us: int, wanted: pyarrow.Schema) -> pyarrow.Table:
    tables = [wanted.empty_table()]
    for table in rows.get((kind, hour_us), ()):
        columns = [
            table[name].cast(wanted.field(name).type)
            if name in table.column_names
            else pyarrow.nulls(len(table), wanted.field(name).type)
            for name in wanted.names
        ]
        tables.append(pyarrow.table(columns, schema=wanted))
    return pyarrow.concat_tables(tables)


def _told_columns(rows: Rows, kind: str, hour_us: int) -> pyarrow.Table:
    whole = ingest.whole_schema()
    return _columns(
        rows, kind, hour_us, pyarrow.schema([whole.field(name) for name in reported.columns(kind)])
    )


def _observed(rows: Rows) -> list[quality.NodeHour]:
    found: dict[tuple[str, str, int], quality.NodeHour] = {}
    for kind, hour_us in rows:
        for line in reported.of(_told_columns(rows, kind, hour_us), kind).to_pylist():
            own = quality.NodeHour(cluster="c", hour_us=hour_us, **line)
            key = (own.node, own.boot, hour_us)
            found[key] = own if key not in found else quality._both(found[key], own)
    return list(found.values())


def _seen(rows: Rows) -> tuple[quality.Peers, quality.Off]:
    seen: quality.Peers = {}
    off: quality.Off = set()
    for kind, hour_us in rows:
        if kind == "node":
            own = seen.setdefault(("c", hour_us), {})
            names = quality._note_peers(own, _told_columns(rows, kind, hour_us))
            off |= {("c", hour_us, name) for name in names}
    return seen, off


def _judge(books: Books, hour_us: int, line: Row, groups: list[Row], exchanges: list[Row]) -> None:
    """Note how far each equation is off in an hour."""
    off = books.residuals
    for row in groups:
        depth = row["ready_last"] + row["unacked_last"]
        name = f"{row['queue']} {row['grp']}"
        off["queue", hour_us, name] = depth - (row["start_depth"] + row["d_enq"] - row["d_gone"])
        if row["at_least_once"]:
            pending = row["dl_pending_last"] - row["start_pending"]
            ended = row["d_dl_confirmed"] + row["d_dl_lost"] + pending
            off["letters", hour_us, name] = ended - row["d_dl_out"]
    by_name: dict[str, int] = defaultdict(int)
    copies = slack_made = 0
    for row in exchanges:
        row = {name: value or 0 for name, value in row.items()}
        came = row["in"] + row["internal_in"]
        by_name[row["exchange"]] += sum(row[name] for name in _OUTCOMES) - came
        copies += row["copies"]
        early_us = line["start_us"] + schema.GRACE_US + 2 * (row["t1"] - row["t0"])
        is_near = row["t0"] < early_us or row["t1"] > line["end_us"] - schema.GRACE_US
        slack_made += row["nacked"] + (row["copies"] if is_near else 0)
    for exchange, residual in by_name.items():
        off["exchange", hour_us, exchange] = residual
    taken = sum(row["taken"] for row in groups)
    members = {node.node for node in books.nodes if node.hour_us == hour_us and node.boot}
    is_moved = any(row["term_min"] < row["term_max"] for row in groups)
    is_unknown = any(row["is_unknown_max"] for row in groups) and len(members) > 1
    if line["completeness"] < 1.0 or line["unseen"] or is_moved or is_unknown:
        off["copies", hour_us, "*"] = None
        return
    until_us = min((row["t1_max"] for row in groups), default=line["end_us"])
    slack = slack_made
    if taken > copies:
        slack = sum(row["near_taken"] for row in groups)
    elif until_us <= line["end_us"] - SILENCE_US:
        slack = copies
    off["copies", hour_us, "*"] = max(0, abs(taken - copies) - slack)
