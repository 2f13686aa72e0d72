"""What the report shows of tables with many rows equals what plain sums of their rows say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow
from brokerd_telemetry import report, report_fates, schema
from brokerd_telemetry.columns import report_sums
from hypothesis import given
from hypothesis import strategies as st

START = datetime(2026, 11, 20, 3, tzinfo=UTC)
HOURS = st.integers(0, 2).map(lambda hour: START + timedelta(hours=hour))
NUMBERS = st.integers(0, 5)
AUDIT = st.fixed_dictionaries(
    {
        "equation": st.sampled_from(["queue", "copies"]),
        "vhost": st.none() | st.just("/"),
        "object": st.none() | st.sampled_from("ab"),
        "window_start": HOURS,
        "expected": NUMBERS,
        "counted": NUMBERS,
        "residual": st.none() | st.integers(-2, 2),
        "judged": st.booleans(),
        "not_judged": st.none() | st.sampled_from("xy"),
    }
)


@given(st.lists(AUDIT, max_size=12), NUMBERS)
def test_books(audit: list[dict[str, Any]], shown: int) -> None:
    found = report_sums.books(pyarrow.Table.from_pylist(audit, report.AUDIT), shown)
    assert sorted(found) == sorted({row["equation"] for row in audit})
    for equation, book in found.items():
        rows = [row for row in audit if row["equation"] == equation]
        judged = [row for row in rows if row["judged"]]
        assert (book.rows, book.judged) == (len(rows), len(judged))
        assert book.unbalanced == sum(1 for row in rows if row["residual"])
        assert book.off == sum(abs(row["residual"] or 0) for row in judged)
        assert book.counted == sum(row["counted"] for row in rows)
        worst = sorted(
            rows,
            key=lambda row: (-abs(row["residual"] or 0), not row["judged"], row["window_start"]),
        )
        assert book.shown == worst[:shown]
        assert set(book.why_not) == {row["not_judged"] for row in rows} - {None}


@given(st.lists(AUDIT, max_size=12))
def test_untold(audit: list[dict[str, Any]]) -> None:
    found = report_sums.unreported(pyarrow.Table.from_pylist(audit, report.AUDIT))
    rows = [row for row in audit if row["equation"] == "copies" and not row["judged"]]
    assert found == sum(max(0, row["counted"] - row["expected"]) for row in rows)


QUEUES = st.lists(
    st.fixed_dictionaries(
        {
            "vhost": st.sampled_from("vw"),
            "queue": st.sampled_from("ab"),
            "window_start": HOURS,
            **dict.fromkeys(report.QUEUES.names[3:-1], NUMBERS),
            "is_gone": st.booleans(),
        }
    ),
    max_size=10,
    unique_by=lambda row: (row["vhost"], row["queue"], row["window_start"]),
)


@given(QUEUES)
def test_queues(hours: list[dict[str, Any]]) -> None:
    found = report_sums.queues(pyarrow.Table.from_pylist(hours, report.QUEUES)).to_pylist()
    names = {(row["vhost"], row["queue"]) for row in hours}
    assert {(row["vhost"], row["queue"]) for row in found} == names
    assert len(found) == len(names)
    for row in found:
        own = [item for item in hours if all(item[key] == row[key] for key in ("vhost", "queue"))]
        newest = max(own, key=lambda item: item["window_start"])
        for name in ("enq", "ack", "dl_out", "purged", "orphaned", "deleted", "expired_queue"):
            assert row[name] == sum(item[name] for item in own)
        for name in ("ready_last", "unacked_last", "is_gone"):
            assert row[name] == newest[name]
    assert [row["enq"] for row in found] == sorted((row["enq"] for row in found), reverse=True)


def test_what_went_with_a_queue_is_not_purged() -> None:
    """A deleted queue counts its ready messages as purged, and what was held as orphaned."""
    counts = ("purged", "orphaned", "deleted", "expired_queue")
    hours: list[dict[str, Any]] = [
        {"vhost": "v", "queue": queue, "window_start": START, **dict(zip(counts, row, strict=True))}
        for queue, row in {
            "purged": (7, 0, None, None),
            "purged and deleted": (12, 3, 10, None),
            "expired": (5, 0, None, 5),
        }.items()
    ]
    queues = report_sums.queues(pyarrow.Table.from_pylist(hours, report.QUEUES))
    assert report_sums.purged(queues) == 7 + 5
    assert report_sums.gone(queues) == 15


LETTERS = st.fixed_dictionaries(
    {
        "vhost": st.just("v"),
        "queue": st.sampled_from("ab"),
        "reason": st.sampled_from(["expired", "rejected"]),
        "dlx": st.none() | st.just("x"),
        "outcome": st.just("routed"),
        "n": NUMBERS,
        "lost": NUMBERS,
    }
)


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("vhost", "queue", "reason", "dlx", "outcome"))


@given(st.lists(LETTERS, max_size=10))
def test_letters(rows: list[dict[str, Any]]) -> None:
    found = report_sums.letters(pyarrow.Table.from_pylist(rows, report.LETTERS))
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        entry = sums.setdefault(key(row), [0, 0])
        entry[0] += row["n"]
        entry[1] += row["lost"]
    assert {key(row): [row["n"], row["lost"]] for row in found} == sums
    assert len(found) == len(sums)


FATES = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["exchange", "queue"]),
            "vhost": st.just("v"),
            "object": st.sampled_from("ab"),
            "window_start": st.integers(0, 3).map(
                lambda hour: datetime(2026, 11, 20, hour, tzinfo=UTC)
            ),
            **dict.fromkeys(("waited", "came", *schema.FATES), NUMBERS),
        }
    ),
    max_size=12,
    unique_by=lambda row: (row["kind"], row["object"], row["window_start"]),
)


@given(FATES)
def test_fates_of_hours_add_up_and_the_rest_is_unknown(hours: list[dict[str, Any]]) -> None:
    found = report_sums.fates(pyarrow.Table.from_pylist(hours, report.FATES)).to_pylist()
    assert [row["came"] for row in found] == sorted((row["came"] for row in found), reverse=True)
    for row in found:
        key = row["kind"], row["object"]
        own = [each for each in hours if (each["kind"], each["object"]) == key]
        own.sort(key=lambda each: each["window_start"])
        assert (row["waited"], row["waiting"]) == (own[0]["waited"], own[-1]["waiting"])
        for name in ("came", "routed", "delivered"):
            assert row[name] == sum(each[name] for each in own)
        assert (
            row["waited"] + row["came"] == sum(row[name] for name in schema.FATES) + row["unknown"]
        )
    names = {(each["kind"], each["object"]) for each in hours}
    assert {(row["kind"], row["object"]) for row in found} == names


def test_fates_of_clusters_are_sums() -> None:
    nothing = dict.fromkeys((*schema.FATES, "unknown"), 0)
    rows = [
        {"cluster": cluster, "kind": "queue", **nothing, "waiting": count, "unknown": -count}
        for cluster, count in (("a", 1), ("a", 2), ("b", 4))
    ]
    found = report_sums.fates_by_cluster(pyarrow.Table.from_pylist(rows))
    assert [(row["cluster"], row["waiting"], row["unknown"]) for row in found] == [
        ("a", 3, -3),
        ("b", 4, -4),
    ]


def test_the_section_of_fates_marks_what_is_unknown() -> None:
    """Of a virtual host it may be on its way; of a queue it is a bug of the broker."""
    at = datetime(2026, 11, 20, 14, tzinfo=UTC)
    nothing = dict.fromkeys(("waited", "came", *schema.FATES), 0)
    hours = [
        {"kind": kind, "vhost": "v", "object": name, "window_start": at, **nothing, **more}
        for kind, name, more in (
            ("exchange", "", {"came": 5, "routed": 5}),
            ("queue", "<q>", {"waited": 2, "came": 5, "delivered": 4, "waiting": 2}),
            ("vhost", "*", {"came": 7, "routed": 5}),
        )
    ]
    section = report_fates.section(
        report_sums.fates(pyarrow.Table.from_pylist(hours, report.FATES))
    )
    assert "(default exchange)" in section
    assert "&lt;q&gt;" in section
    assert section.count('<span class="badge bad">1</span>') == 1
    assert section.count('<span class="badge dim">2</span>') == 1
    empty = report_sums.fates(pyarrow.Table.from_pylist([], report.FATES))
    assert "No message came" in report_fates.section(empty)
