"""How far a job is: counted within bounds, and gone on with by another leader's worker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerd.core.queue.queue_jobs import PROGRESS_CHARACTERS_MAX, Job
from brokerd.core.triage import outcomes
from brokerd.core.triage.gates import Gate
from brokerd.core.triage.jobs import JobKind, JobOrder, JobState, To, status_of
from brokerd.server.messages import job_progress
from brokerd.server.messages.job_progress import JobProgress

ORDER = JobOrder(JobKind.DELETE, "/", "q", to=To.NOWHERE)


def job(**fields: Any) -> Job:
    made = Job(3, json.dumps(ORDER.as_json()), "ann", 1_000, 9)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_another_worker_goes_on_with_what_was_sent() -> None:
    progress = JobProgress(job())
    for group in ("a", "a", "b", ""):
        progress.sent(group)
    following = JobProgress(job(gone=4, progress=progress.save()))
    assert following.status.total.sent == 4
    assert {name: group.sent for name, group in following.status.groups.items()} == {
        "a": 2,
        "b": 1,
    }
    assert (following.status.id, following.status.user, following.order) == (3, "ann", ORDER)


def test_what_stays_is_counted_anew_in_each_pass() -> None:
    progress = JobProgress(job())
    progress.sent("a")
    for _ in range(2):
        progress.begin_pass()
        progress.stayed("a", "no route")
        progress.stayed("", "no route")
    assert progress.status.total.stayed == {"no route": 2}
    assert progress.status.groups["a"].stayed == {"no route": 1}
    assert progress.status.groups["a"].sent == 1


def test_groups_and_reasons_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_progress, "GROUPS_MAX", 2)
    monkeypatch.setattr(job_progress, "REASONS_MAX", 2)
    progress = JobProgress(job())
    for group in ("a", "b", "c", "d"):
        progress.sent(group)
    for reason in ("x", "y", "z", "x"):
        progress.stayed("a", reason)
    assert {name: each.sent for name, each in progress.status.groups.items()} == {
        "a": 1,
        "b": 1,
        "others": 2,
    }
    assert progress.status.total.stayed == {"x": 2, "y": 1, "others": 1}


def test_a_receipt_is_a_status_and_fits() -> None:
    progress = JobProgress(job(stopped_by="bob"))
    assert progress.status.state is JobState.STOPPING
    progress.sent("a")
    receipt = status_of(json.loads(progress.receipt(JobState.STOPPED, "why", 2_000)))
    assert (receipt.state, receipt.why, receipt.ended_ms) == (JobState.STOPPED, "why", 2_000)
    assert receipt.groups["a"].sent == 1
    for number in range(200):
        for reason in range(16):
            progress.stayed(f"group {number}", f"a long reason to stay {reason}" * 2)
    text = progress.receipt(JobState.DONE, "", 2_000)
    assert len(text) <= PROGRESS_CHARACTERS_MAX
    assert status_of(json.loads(text)).groups == {}


REDRIVE = JobOrder(JobKind.REDRIVE, "/", "q", canary=2)


def test_another_worker_knows_targets_copies_and_what_was_decided() -> None:
    order = json.dumps(REDRIVE.as_json())
    progress = JobProgress(job(order=order))
    progress.sent("a", [7, 8])
    progress.sent("a", [8])
    progress.decided["a"] = Gate.OPEN
    following = JobProgress(job(order=order, gone=2, progress=progress.save()))
    assert following.status.copies == {"a": 3}
    assert set(following.status.targets) == {"7", "8"}
    assert following.decided == {"a": Gate.OPEN}


def test_a_receipt_that_is_too_long_keeps_the_sums_of_its_targets() -> None:
    progress = JobProgress(job(order=json.dumps(REDRIVE.as_json())))
    status = progress.status
    for target in range(outcomes.TARGETS_MAX + 1):
        for number in range(outcomes.GROUPS_MAX):
            progress.sent(f"group {number}", [target])
    for uid in status.targets:
        outcomes.heard(status, uid, {name: [1, 0, 0, 0, 0] for name in status.groups})
    outcomes.count(status, dict(status.copies))
    known = outcomes.TARGETS_MAX * outcomes.GROUPS_MAX
    text = progress.receipt(JobState.DONE, "", 2_000)
    assert len(text) <= PROGRESS_CHARACTERS_MAX
    receipt = status_of(json.loads(text))
    # What became of copies at the last target is not asked.
    assert (receipt.total.acknowledged, receipt.total.unknown) == (known, outcomes.GROUPS_MAX)
    assert len(status.groups) == outcomes.GROUPS_MAX
    outcomes.heard(receipt, "0", {"a": [9, 0, 0, 0, 0], "b": [0, 2, 0, 1, 0]})
    outcomes.count(receipt, dict(receipt.copies))
    assert receipt.total.acknowledged == known - outcomes.GROUPS_MAX + 9
    assert (receipt.total.died_again, receipt.total.waiting, receipt.groups) == (2, 1, {})
