"""Dry runs: where an order would send messages, and what stays."""

from __future__ import annotations

import json

from brokerd.core.triage.groups import GROUPS_MAX, Group, Triage, fingerprint, group_of
from brokerd.core.triage.histories import history_of
from brokerd.core.triage.jobs import JobKind, JobOrder, To
from brokerd.core.triage.previews import ROWS_MAX, Preview, PreviewRow, row_as_json, row_of
from tests.unit.core.filters.views import View, death

REDRIVE = JobOrder(JobKind.REDRIVE, "/", "dlq")


def died(queue: str = "work", reason: str = "rejected") -> View:
    view = View(exchange="dlx", routing_key="dead")
    view.deaths = [death("retry", "expired"), death(queue, reason)]
    view.deaths[1].routing_keys = ["order.created", "copy"]
    view.first_death = (reason, queue, "events")
    return view


def way(message: View) -> tuple[str, ...] | str:
    """Send dead letters of `work` there, and leave all others."""
    if message.first_death is None:
        return "no history"
    return ("work",) if message.first_death[1] == "work" else "origin is gone"


def test_a_preview_tells_groups_and_targets_apart() -> None:
    preview = Preview(REDRIVE, way)  # type: ignore[arg-type]
    for _ in range(3):
        preview.add_message(died(), 5)
    preview.add_message(died("gone"), 5)
    preview.add_message(View(), 5)
    rows = preview.rows()
    assert rows[0] == PreviewRow(fingerprint(history_of(died())), ["work"], "", 3, 9)
    assert {(row.stays, row.count) for row in rows[1:]} == {
        ("origin is gone", 1),
        ("no history", 1),
    }
    assert (preview.sent, preview.row_count, len(preview.triage.groups)) == (3, 3, 3)
    assert not preview.is_full


def test_a_preview_of_one_group_is_full_when_it_has_enough() -> None:
    name = fingerprint(history_of(died()))
    asked = JobOrder(JobKind.DELETE, "/", "dlq", group=name, to=To.NOWHERE, max=2)
    preview = Preview(asked, lambda _: "never asked")
    preview.add_message(View(), 5)
    preview.add_message(died(), 5)
    assert not preview.is_full
    preview.add_message(died(), 5)
    assert preview.is_full
    assert [(row.fingerprint, row.count) for row in preview.rows()] == [(name, 2)]


def test_rows_beyond_the_bound_are_counted_together() -> None:
    preview = Preview(REDRIVE, lambda message: (message.first_death or ("", ""))[1:2])
    for number in range(ROWS_MAX + 3):
        preview.add_message(died(f"q{number}"), 5)
    first = preview.rows()[0]
    assert (first.fingerprint, first.targets, first.count) == ("", [], 3)
    assert preview.sent == ROWS_MAX + 3


def test_rows_of_several_looks_add_up() -> None:
    whole = Preview(REDRIVE, lambda _: ())
    for row in (PreviewRow("f", ["a"], "", 2, 10), PreviewRow("f", ["a"], "", 3, 1)):
        whole.add_row(row_of(json.loads(json.dumps(row_as_json(row)))))
    assert whole.rows() == [PreviewRow("f", ["a"], "", 5, 11)]


# ---- groups of several looks ---------------------------------------------------------------------


def test_groups_of_several_looks_add_up_as_one_look() -> None:
    views = [died(), died("gone"), died(), View(), died()]
    for number, view in enumerate(views):
        view.number, view.age_ms = number, 100 - number
    whole, merged = Triage(), Triage()
    for view in views:
        whole.add_message(view, 1_000)
    for part in (views[:2], views[2:]):
        look = Triage()
        for view in part:
            look.add_message(view, 1_000)
        for name, group in look.groups.items():
            merged.add_group(name, group_of(json.loads(json.dumps(group.as_json()))))
        merged.others.add_group(group_of(json.loads(json.dumps(look.others.as_json()))))
    assert merged.largest_first() == whole.largest_first()
    assert merged.others == whole.others


def test_a_look_that_knows_no_times_leaves_those_of_another() -> None:
    known, unknown = Group(None, first_seen_ms=5, last_seen_ms=9, example=3), Group(None)
    unknown.add_group(known)
    assert (unknown.first_seen_ms, unknown.last_seen_ms, unknown.example) == (5, 9, 3)
    unknown.add_group(Group(None))
    unknown.add_group(Group(None, first_seen_ms=6, last_seen_ms=8))
    assert (unknown.first_seen_ms, unknown.last_seen_ms) == (5, 9)


def test_merged_groups_stay_within_the_bound() -> None:
    triage = Triage(groups_max=2)
    for name in ("a", "b", "c", "a"):
        triage.add_group(name, Group(None, count=1))
    assert ({name: group.count for name, group in triage.groups.items()}) == {"a": 2, "b": 1}
    assert triage.others.count == 1
    assert GROUPS_MAX >= 1_000
    assert Triage(groups_max=0).add_message(View(), 5) is None
