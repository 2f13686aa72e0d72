"""Sections of the report as they are read: whose vhost, in words, and on one screen."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pyarrow
from brokerd_telemetry import report, report_fates
from brokerd_telemetry.columns import report_sums

AT = datetime(2026, 11, 20, 14, tzinfo=UTC)


def cells(page: str) -> list[list[str]]:
    """Return the lines of a page's tables."""
    lines = re.findall(r"<tr>(.*?)</tr>", page)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line) for line in lines]


def queue(name: str, **more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(report.QUEUES.names[3:-1], 1)
    return {"vhost": "/", "queue": name, "window_start": AT, **counts, "is_gone": False, **more}


def test_queues_whose_names_were_drawn_are_one_line() -> None:
    drawn = [f"reply.{n:08x}-1c1b-4d3f-9d0e-0123456789ab" for n in range(3)]
    made = [f"amq.gen-{n:022d}" for n in range(2)]
    rows = [queue(name, is_gone=True) for name in (*drawn, *made)]
    rows += [queue("orders-2026"), queue("reply.of-orders", vhost="w")]
    table = pyarrow.Table.from_pylist(rows, report.QUEUES)
    found = report_sums.folded(report_sums.queues(table))
    names = ("queue", "vhost", "queues", "enq", "is_gone")
    assert {tuple(row[name] for name in names) for row in found.to_pylist()} == {
        ("reply.*", "/", 3, 3, True), ("amq.gen-*", "/", 2, 2, True),
        ("orders-2026", "/", 1, 1, False), ("reply.of-orders", "w", 1, 1, False),
    }  # fmt: skip
    _, first, *_ = cells(report._queues(found, lambda _: [], []))
    assert first[:2] == ["reply.* (3 queues)", "/"]
    assert first[7:9] == ["gone", "gone"]


def test_what_found_no_queue_says_its_vhost_and_its_outcome_in_words() -> None:
    base = {"vhost": "shop", "exchange": "x", "rk": "k", "user": "web", "n": 3}
    whole = base | {"outcome": "all", "in": 9, "internal_in": 0, "ae_routed": 1}
    _, summary, _, detail = cells(report._unroutable([whole, base | {"outcome": "ae"}]))
    assert summary == ["x", "shop", "9", "1", "2"]
    assert detail == ["x", "shop", "k", "web", "to the alternate exchange", "3"]


def test_dead_letters_say_their_vhost() -> None:
    row = {"vhost": "shop", "queue": "q", "reason": "expired", "outcome": "dropped_no_dlx",
           "dlx": None, "n": 2, "lost": 0}  # fmt: skip
    line = cells(report._dead_letters([row], []))[1]
    assert line[:5] == ["q", "shop", "expired", "dropped, no dead letter exchange", "–"]


def test_parts_of_memory_are_lines_and_members_columns() -> None:
    rows = [
        {"node": node, "part": f"part_{n}", "window_start": AT, "bytes_last": n, "bytes_max": n}
        for node in ("n0", "n1")
        for n in range(30)
    ]
    heads, *lines = cells(report._memory_parts(rows))
    assert heads == ["part", "n0", "n1"]
    assert len(lines) == 31
    assert (lines[0][0], lines[1][0]) == ("all together", "part 29")


def test_a_section_without_data_has_no_mark_that_all_is_well() -> None:
    for section in (report._consumers([]), report._links([]), report._memory_parts([])):
        assert 'class="calm"' not in section
        assert 'class="empty"' in section


def test_segments_of_another_cluster_are_named_on_its_own_page() -> None:
    why = ("1 2", "gzip")
    rejected = {"cluster=a+b/node=n0/x.gz": why, "cluster=a+c/node=n0/y.gz": why, "odd.gz": why}
    page = report._refused(rejected, {"a/c"})
    assert (
        "Segments that could not be taken: cluster=a+b/node=n0/x.gz (gzip); odd.gz (gzip)" in page
    )
    assert report._refused({"cluster=a+c/node=n0/y.gz": why}, {"a/c"}) == ""


def test_more_taken_than_came_is_explained() -> None:
    row: dict[str, Any] = dict.fromkeys(("waited", "came", *report.FATES.names), 0)
    row |= {"kind": "vhost", "object": "/", "vhost": "/"}

    def section(unknown: int) -> str:
        columns = {name: [value] for name, value in (row | {"unknown": unknown}).items()}
        return report_fates.section(pyarrow.table(columns))

    assert "An unknown figure below 0" in section(-433)
    assert "An unknown figure below 0" not in section(3)


def test_of_findings_that_weigh_as_much_those_that_are_raised_come_first() -> None:
    def finding(rule: str, severity: str, status: str) -> dict[str, Any]:
        return {
            "rule": rule, "severity": severity, "status": status, "object_type": "member",
            "object": "n", "vhost": "", "since": AT, "message": "", "action": "", "value": 1.0,
            "threshold": 0.0, "evidence": "t",
        }  # fmt: skip

    page = report._findings([
        finding("A", "warning", "PENDING"), finding("Z", "warning", "RAISED"),
        finding("M", "critical", "PENDING"),
    ])  # fmt: skip
    assert re.findall(r"<code>([A-Z])</code>", page) == ["M", "Z", "A"]


def test_an_equation_without_rows_has_nothing_to_judge() -> None:
    (_, *lines) = cells(report._books({}))
    assert all("nothing to judge" in line[4] for line in lines)
    assert not any("not judged" in line[4] for line in lines)
