"""Sums of what targets say of a job's copies: never more than was said, what is missing unknown."""

from __future__ import annotations

from brokerd.core.queue.watched_copies import OTHERS
from brokerd.core.triage import outcomes
from brokerd.core.triage.jobs import JobKind, JobOrder, JobState, JobStatus, Outcomes


def status(*groups: str, targets: int = 2, copies: int = 10) -> JobStatus:
    made = JobStatus(3, JobOrder(JobKind.REDRIVE, "/", "q"), "ann", JobState.RUNNING)
    made.groups = {name: Outcomes(sent=copies) for name in groups}
    made.copies = dict.fromkeys(groups, copies)
    for uid in range(targets):
        outcomes.add_target(made, uid)
    return made


def summed(made: JobStatus, is_complete: bool = True) -> None:
    outcomes.count(made, dict(made.copies) if is_complete else None)


def shown(each: Outcomes) -> tuple[int, ...]:
    return (
        each.acknowledged,
        each.died_again,
        each.removed,
        each.waiting,
        each.duplicates,
        each.unknown,
    )


def test_targets_are_added_up_by_group() -> None:
    made = status("a", "b")
    outcomes.heard(made, "0", {"a": [4, 1, 0, 2, 0], "b": [0, 0, 0, 10, 1]})
    outcomes.heard(made, "1", {"a": [1, 0, 1, 1, 0]})
    summed(made)
    assert shown(made.groups["a"]) == (5, 1, 1, 3, 0, 0)
    assert shown(made.groups["b"]) == (0, 0, 0, 10, 1, 0)
    assert shown(made.total) == (5, 1, 1, 13, 1, 0)
    # Said again, not added.
    outcomes.heard(made, "0", {"a": [6, 1, 0, 0, 0]})
    summed(made)
    assert shown(made.groups["a"]) == (7, 1, 1, 1, 0, 0)
    assert shown(made.groups["b"]) == (0, 0, 0, 0, 0, 10)
    assert outcomes.may_change(made)


def test_what_a_target_forgets_is_unknown_and_what_waited_in_a_deleted_one_is_removed() -> None:
    made = status("a")
    outcomes.heard(made, "0", {"a": [2, 0, 0, 3, 0]})
    outcomes.heard(made, "1", {"a": [1, 0, 0, 4, 0]})
    outcomes.heard(made, "0", None)
    outcomes.lost(made, "1")
    summed(made)
    assert shown(made.total) == (3, 0, 4, 0, 0, 3)
    outcomes.lost(made, "1")
    summed(made)
    assert shown(made.total) == (3, 0, 4, 0, 0, 3)


def test_what_is_unknown_stays_so_until_all_have_answered() -> None:
    made = status("a")
    outcomes.heard(made, "0", {"a": [2, 0, 0, 0, 0]})
    summed(made, is_complete=False)
    assert shown(made.total) == (2, 0, 0, 0, 0, 0)
    summed(made)
    assert shown(made.total) == (2, 0, 0, 0, 0, 8)
    outcomes.heard(made, "1", {"a": [8, 0, 0, 0, 0]})
    summed(made, is_complete=False)
    assert made.total.unknown == 8
    summed(made)
    assert shown(made.total) == (10, 0, 0, 0, 0, 0)
    assert not outcomes.may_change(made)


def test_groups_that_the_job_does_not_tell_apart_are_counted_together() -> None:
    made = status("a")
    outcomes.heard(made, "0", {"x": [1, 0, 0, 0, 0], "y": [2, 0, 0, 0, 0]})
    summed(made)
    assert made.groups[OTHERS].acknowledged == 3


def test_the_number_of_targets_has_a_bound() -> None:
    made = status("a", targets=outcomes.TARGETS_MAX + 1)
    assert len(made.targets) == outcomes.TARGETS_MAX
    outcomes.without_groups(made)
    assert made.targets["0"] == {}


def test_a_receipt_without_groups_is_summed_up_all_the_same() -> None:
    made = status("a", "b")
    outcomes.without_groups(made)
    outcomes.heard(made, "0", {"": [3, 1, 0, 2, 0]})
    summed(made)
    assert made.groups == {}
    assert shown(made.total) == (3, 1, 0, 2, 0, 14)
