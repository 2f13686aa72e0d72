"""Dry runs: where an order would send messages, and what stays."""

from __future__ import annotations

import json

import pytest

from brokerd.core.triage import destinations, previews
from brokerd.core.triage.destinations import Destination, destination_of
from brokerd.core.triage.groups import GROUPS_MAX, Group, Triage, fingerprint, group_of
from brokerd.core.triage.histories import NoOrigin, history_of
from brokerd.core.triage.jobs import JobKind, JobOrder, To
from brokerd.core.triage.previews import Preview, PreviewRow, row_as_json, row_of
from tests.unit.core.filters.views import View, death, with_headers

REDRIVE = JobOrder(JobKind.REDRIVE, "/", "dlq")


def order(to: To, target: str = "", **more: object) -> JobOrder:
    return JobOrder(JobKind.REDRIVE, "/", "dlq", to=to, target=target, **more)  # type: ignore[arg-type]


def died(queue: str = "work", reason: str = "rejected") -> View:
    view = View(exchange="dlx", routing_key="dead")
    view.deaths = [death("retry", "expired"), death(queue, reason)]
    view.deaths[1].routing_keys = ["order.created", "copy"]
    view.first_death = (reason, queue, "events")
    return view


FORGED = with_headers(
    **{
        "x-death": [
            {"queue": "work", "reason": "rejected", "exchange": "ex", "routing-keys": ["k"]}
        ]
    }
)
MASS_TRANSIT = with_headers(
    **{"MT-Reason": "fault", "MT-Fault-InputAddress": "rabbitmq://h/v/charge"}
)
SPRING = with_headers(
    **{
        "x-exception-message": "no",
        "x-original-exchange": "events",
        "x-original-routingKey": "order",
    }
)
SPRING_DEFAULT = with_headers(
    **{"x-exception-message": "no", "x-original-exchange": "", "x-original-routingKey": "work"}
)


@pytest.mark.parametrize(
    ("message", "asked", "expected"),
    [
        (died(), order(To.ORIGIN), Destination("", ("work",))),
        (died("dlq"), order(To.ORIGIN), destinations.ITSELF),
        (died(), order(To.REPUBLISH), Destination("events", ("order.created", "copy"))),
        (died(), order(To.QUEUE, "other"), Destination("", ("other",))),
        (died(), order(To.EXCHANGE, "ex"), Destination("ex", ("dead",))),
        (died(), order(To.EXCHANGE, "ex", routing_key=""), Destination("ex", ("",))),
        (View(), order(To.ORIGIN), NoOrigin.NO_HISTORY.value),
        (View(), order(To.REPUBLISH), NoOrigin.NO_HISTORY.value),
        (FORGED, order(To.ORIGIN), NoOrigin.NOT_TRUSTED.value),
        (FORGED, order(To.REPUBLISH), NoOrigin.NOT_TRUSTED.value),
        (FORGED, order(To.ORIGIN, trusts_headers=True), Destination("", ("work",))),
        (FORGED, order(To.REPUBLISH, trusts_headers=True), Destination("ex", ("k",))),
        (MASS_TRANSIT, order(To.ORIGIN, trusts_headers=True), Destination("", ("charge",))),
        (MASS_TRANSIT, order(To.REPUBLISH, trusts_headers=True), destinations.NO_EXCHANGE),
        (SPRING, order(To.ORIGIN, trusts_headers=True), NoOrigin.NO_QUEUE.value),
        (SPRING, order(To.REPUBLISH, trusts_headers=True), Destination("events", ("order",))),
        (SPRING_DEFAULT, order(To.REPUBLISH, trusts_headers=True), Destination("", ("work",))),
    ],
)
def test_an_order_names_where_a_message_goes_or_why_it_stays(
    message: View, asked: JobOrder, expected: Destination | str
) -> None:
    assert destination_of(message, asked) == expected


def test_a_death_whose_record_is_gone_is_republished_with_the_oldest_keys_there_are() -> None:
    message = died()
    message.first_death = ("maxlen", "gone", "events")
    found = destination_of(message, order(To.REPUBLISH))
    assert found == Destination("events", ("order.created", "copy"))
    message.deaths[1].routing_keys = []
    assert destination_of(message, order(To.REPUBLISH)) == Destination("events", ("",))


def test_a_preview_tells_groups_and_targets_apart() -> None:
    routes = {"work": ("work",), "gone": ()}
    preview = Preview(REDRIVE, lambda where, _: routes[where.routing_keys[0]])
    for _ in range(3):
        preview.add_message(died(), 5)
    preview.add_message(died("gone"), 5)
    preview.add_message(View(), 5)
    rows = preview.rows()
    assert rows[0] == PreviewRow(fingerprint(history_of(died())), ["work"], "", 3, 9)
    assert {(row.stays, row.count) for row in rows[1:]} == {
        (destinations.NO_QUEUE, 1),
        (NoOrigin.NO_HISTORY.value, 1),
    }
    assert (preview.sent, preview.row_count, len(preview.triage.groups)) == (3, 3, 3)
    assert not preview.is_full


def test_what_would_come_back_into_the_queue_stays() -> None:
    preview = Preview(order(To.REPUBLISH), lambda _, __: ("work", "dlq"))
    preview.add_message(died(), 5)
    assert [(row.targets, row.stays) for row in preview.rows()] == [([], destinations.ITSELF)]


def test_a_preview_of_one_group_is_full_when_it_has_enough() -> None:
    name = fingerprint(history_of(died()))
    asked = JobOrder(JobKind.DELETE, "/", "dlq", group=name, to=To.NOWHERE, max=2)
    preview = Preview(asked, lambda _, __: ())
    preview.add_message(View(), 5)
    preview.add_message(died(), 5)
    assert not preview.is_full
    preview.add_message(died(), 5)
    assert preview.is_full
    assert [(row.fingerprint, row.count) for row in preview.rows()] == [(name, 2)]


def test_rows_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previews, "ROWS_MAX", 2)
    preview = Preview(REDRIVE, lambda where, _: where.routing_keys)
    for number in range(5):
        preview.add_message(died(f"q{number}"), 5)
    first = preview.rows()[0]
    assert (first.fingerprint, first.targets, first.count) == ("", [], 3)
    assert preview.sent == 5


def test_rows_of_several_looks_add_up() -> None:
    whole = Preview(REDRIVE, lambda _, __: ())
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
