"""Orders and statuses of jobs: what makes no sense is refused with what to change."""

from __future__ import annotations

import json

import pytest

from brokerd.core.triage.jobs import (
    FILTER_CHARACTERS_MAX,
    RATE_MAX,
    JobError,
    JobKind,
    JobOrder,
    JobState,
    JobStatus,
    Outcomes,
    To,
    order_of,
    status_of,
)


def redrive(**fields: object) -> dict[str, object]:
    return {"kind": "redrive", "vhost": "/", "queue": "dead", **fields}


def move(**fields: object) -> dict[str, object]:
    return {"kind": "move", "vhost": "/", "queue": "dead", **fields}


def test_an_order_and_a_status_are_the_same_after_json() -> None:
    order = order_of(redrive(to="exchange", target="e", routing_key="k", canary=10))
    order.check()
    assert order_of(json.loads(json.dumps(order.as_json()))) == order
    status = JobStatus(7, order, "ada", JobState.PAUSED, "no leader")
    status.groups["0a"] = Outcomes(sent=3, stayed={"no origin": 1})
    assert status_of(json.loads(json.dumps(status.as_json()))) == status


def test_a_redrive_goes_to_the_origin_and_a_deletion_nowhere() -> None:
    assert order_of(redrive()).to is To.ORIGIN
    order = order_of({"kind": "delete", "vhost": "/", "queue": "q"})
    order.check()
    assert (order.kind, order.to) == (JobKind.DELETE, To.NOWHERE)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "move"}, "vhost: missing"),
        ({"vhost": "/", "queue": "q"}, "kind: missing"),
        (redrive(kind="copy"), "kind: one of redrive, move, delete"),
        (redrive(to="hell"), "to: one of origin"),
        (redrive(speed=1), "speed: not a field of a job; fields are kind, vhost"),
        (redrive(rate="1"), "rate: a number is expected"),
        (redrive(rate=True), "rate: a number is expected"),
        (redrive(keeps_history=1), "keeps_history: true or false is expected"),
        (redrive(filter=1), "filter: a text is expected"),
        (redrive(routing_key=1), "routing_key: a text is expected"),
        (redrive(vhost=1), "vhost: missing"),
        (redrive(to=["origin"]), "to: one of origin"),
    ],
)
def test_what_is_not_an_order_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(JobError) as caught:
        order_of(fields)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (redrive(filter="x" * (FILTER_CHARACTERS_MAX + 1)), "filter: longer than 4096 characters"),
        (redrive(filter="nonsense == 1"), "filter: "),
        (redrive(rate=-1), f"rate: from 0 to {RATE_MAX}"),
        (redrive(max=2**60), "max: from 0 to"),
        (redrive(to="queue", target="ä" * 128), "target: longer than 255 bytes"),
        (redrive(to="nowhere"), "a deletion has no target"),
        ({**redrive(to="origin"), "kind": "delete"}, "a deletion has no target"),
        (move(to="republish"), "a move goes to a queue or an exchange"),
        (redrive(to="queue"), "target: which queue?"),
        (redrive(to="queue", target="dead"), "target: the queue itself"),
        (redrive(target="q"), "target: 'origin' needs none"),
        (redrive(routing_key="k"), "routing_key: for an exchange alone"),
        (move(to="queue", target="q", canary=1), "canary: of redrives alone"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(JobError) as caught:
        order_of(fields).check()
    assert said in str(caught.value)


def test_an_order_with_a_filter_is_checked() -> None:
    JobOrder(JobKind.REDRIVE, "/", "dead", filter='death.reason == "rejected"').check()
