"""How far a job is: counted within bounds, and gone on with by another leader's worker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerd.core.queue.queue_jobs import PROGRESS_CHARACTERS_MAX, Job
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
