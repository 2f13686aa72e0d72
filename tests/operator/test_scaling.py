"""Which member comes, goes or restarts next (operator.md section 5.10 a, b)."""

from __future__ import annotations

from typing import Any

import pytest
from brokerd_operator.reconcile.scaling import Fleet, Step, StepKind, next_step, said
from brokerd_operator.sources.kubernetes_clusters import REVISION_LABEL, is_behind, outdated


def names(*ordinals: int) -> frozenset[str]:
    return frozenset(f"prod-{ordinal}" for ordinal in ordinals)


def fleet(desired: int, current: int, **fields: Any) -> Fleet:
    well = {"listed": names(*range(current)), "ready": names(*range(current))}
    return Fleet("prod", desired, current, **well | fields)


def test_a_new_cluster_starts_all_at_once() -> None:
    step = next_step(fleet(3, 0, listed=None, ready=frozenset()))
    assert step == Step(StepKind.RESIZE, count=3)


def test_a_cluster_that_is_as_it_shall_be_needs_nothing() -> None:
    assert next_step(fleet(3, 3)).kind is StepKind.DONE
    assert next_step(fleet(3, 3, listed=None)).kind is StepKind.DONE
    assert next_step(fleet(0, 0)).kind is StepKind.DONE


def test_a_stopped_cluster_comes_back_with_those_it_had_whatever_is_wanted_now() -> None:
    assert next_step(fleet(0, 3)) == Step(StepKind.RESIZE, count=0)
    assert next_step(fleet(1, 0, before=3, listed=None)) == Step(StepKind.RESIZE, count=3)


def test_a_newcomer_is_listed_before_it_runs() -> None:
    assert next_step(fleet(5, 3)) == Step(StepKind.ADD, "prod-3")
    assert next_step(fleet(5, 3, listed=names(0, 1, 2, 3))) == Step(StepKind.RESIZE, "prod-3", 4)


def test_the_highest_ordinal_is_off_the_list_before_it_stops() -> None:
    assert next_step(fleet(1, 3)) == Step(StepKind.REMOVE, "prod-2")
    assert next_step(fleet(1, 3, listed=names(0, 1))) == Step(StepKind.REMOVE, "prod-1")
    assert next_step(fleet(1, 3, listed=names(0))) == Step(StepKind.RESIZE, count=1)


def test_what_an_interrupted_pass_left_is_put_right() -> None:
    # Listed for a scale-up that was taken back before it ran.
    assert next_step(fleet(3, 3, listed=names(0, 1, 2, 3))) == Step(StepKind.REMOVE, "prod-3")
    # Off the list for a scale-down that was taken back before it stopped.
    assert next_step(fleet(3, 3, listed=names(0, 1))) == Step(StepKind.ADD, "prod-2")


def test_members_of_other_names_are_left_alone() -> None:
    others = names(0, 1, 2) | {"prod-east-7", "elsewhere", "prod-x"}
    assert next_step(fleet(3, 3, listed=others)).kind is StepKind.DONE


def test_nothing_is_changed_while_no_member_can_be_asked() -> None:
    step = next_step(fleet(5, 3, listed=None))
    assert step.kind is StepKind.WAIT
    assert step.reason


def test_a_roll_takes_one_at_a_time_and_only_while_all_others_are_well() -> None:
    old = names(0, 1, 2)
    assert next_step(fleet(3, 3, outdated=old)) == Step(StepKind.RESTART, "prod-2")
    again = fleet(3, 3, outdated=names(0, 1), ready=names(0, 1))
    assert next_step(again).kind is StepKind.WAIT
    assert next_step(fleet(3, 3, outdated=names(0, 1))) == Step(StepKind.RESTART, "prod-1")


@pytest.mark.parametrize("listed", [names(0, 1, 2), None])
def test_a_member_that_is_down_with_the_old_template_gets_the_new_one(
    listed: frozenset[str] | None,
) -> None:
    """A bad image must not need everybody well to be replaced."""
    broken = fleet(3, 3, outdated=names(0, 1, 2), ready=names(1, 2), listed=listed)
    assert next_step(broken) == Step(StepKind.RESTART, "prod-0")


def test_scaling_comes_before_a_roll() -> None:
    step = next_step(fleet(3, 5, outdated=names(*range(5))))
    assert step == Step(StepKind.REMOVE, "prod-4")


@pytest.mark.parametrize(("start", "end"), [(1, 5), (5, 1), (3, 4), (9, 2), (0, 3), (3, 0)])
def test_steps_lead_from_any_number_to_any_other(start: int, end: int) -> None:
    """Never more than one member differs between list and processes on the way."""
    current, listed = start, set(names(*range(start)))
    for _ in range(40):
        step = next_step(fleet(end, current, listed=frozenset(listed)))
        if step.kind is StepKind.DONE:
            break
        if step.kind is StepKind.ADD:
            listed.add(step.member)
        elif step.kind is StepKind.REMOVE:
            listed.discard(step.member)
        else:
            assert step.kind is StepKind.RESIZE
            if not current:
                listed = set(names(*range(step.count)))
            current = step.count
    else:
        raise AssertionError("no end")
    assert current == end
    assert not end or listed == names(*range(end))


def test_every_step_has_words_for_a_condition() -> None:
    for kind in StepKind:
        text = said(Step(kind, "prod-1", 4, "it waits"))
        assert bool(text) is (kind is not StepKind.DONE), kind


def test_a_pod_is_outdated_once_the_controller_has_seen_the_newest_template() -> None:
    def pod(name: str, revision: str, **metadata: str) -> Any:
        return {"metadata": {"name": name, "labels": {REVISION_LABEL: revision}, **metadata}}

    pods = [pod("a", "old"), pod("b", "new"), pod("c", "old", deletionTimestamp="now")]
    seen = {"metadata": {"generation": 2}, "status": {"observedGeneration": 2}}
    seen["status"]["updateRevision"] = "new"  # type: ignore[assignment]
    assert outdated(seen, pods) == ["a"]
    unseen = {**seen, "metadata": {"generation": 3}}
    assert is_behind(unseen)
    assert outdated(unseen, pods) == []
    assert outdated({}, pods) == []
