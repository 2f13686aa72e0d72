"""Which member comes, goes or restarts next (design/operator.md §5.10)."""

from __future__ import annotations

from typing import Any

import pytest
from brokerd_operator.reconcile.rollout import REVISION_LABEL, is_behind, outdated
from brokerd_operator.reconcile.scaling import Fleet, Step, StepKind, next_step, operation, said


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


def test_a_held_roll_restarts_only_who_is_down() -> None:
    held = {"outdated": names(0, 1, 2), "held": "the window is closed"}
    step = next_step(fleet(3, 3, **held))
    assert step == Step(StepKind.HOLD, reason="the window is closed")
    down = next_step(fleet(3, 3, **held, ready=names(0, 2)))
    assert down == Step(StepKind.RESTART, "prod-1")
    assert next_step(fleet(3, 3, held="the window is closed")).kind is StepKind.DONE
    # Numbers of members are asked for in so many words, and are not held.
    assert next_step(fleet(4, 3, **held)) == Step(StepKind.ADD, "prod-3")


def test_a_fenced_member_is_kept_as_it_is() -> None:
    fenced = fleet(
        3, 3, outdated=names(0, 1, 2), ready=names(0, 2), fenced=["prod-1"], held="prod-1 is fenced"
    )
    assert next_step(fenced).kind is StepKind.HOLD


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
    assert [item["metadata"]["name"] for item in outdated(seen, pods)] == ["a"]
    unseen = {**seen, "metadata": {"generation": 3}}
    assert is_behind(unseen)
    assert outdated(unseen, pods) == []
    assert outdated({}, pods) == []


@pytest.mark.parametrize("problem", ["", "the broker says no"])
@pytest.mark.parametrize(
    ("step", "desired", "current", "expected"),
    [
        (Step(StepKind.DONE), 3, 3, None),
        (Step(StepKind.ADD, "prod-3"), 5, 3, ("Scale", "Adding", "")),
        (Step(StepKind.REMOVE, "prod-4"), 3, 5, ("Scale", "Removing", "")),
        (Step(StepKind.RESIZE, count=4), 5, 3, ("Scale", "Resizing", "")),
        (Step(StepKind.RESTART, "prod-2"), 3, 3, ("Roll", "Restarting", "")),
        (Step(StepKind.WAIT, reason="it is late"), 3, 3, ("Roll", "Waiting", "it is late")),
        (Step(StepKind.WAIT, reason="it is late"), 3, 5, ("Scale", "Waiting", "it is late")),
        (Step(StepKind.HOLD, reason="later"), 3, 3, ("Roll", "Held", "later")),
    ],
)
def test_step_as_an_operation_of_the_status(
    step: Step, desired: int, current: int, expected: tuple[str, str, str] | None, problem: str
) -> None:
    found = operation(step, desired, current, problem)
    if expected is None:
        assert found is None
        return
    type_, phase, reason = expected
    wanted = {"type": type_, "phase": phase, "step": said(step)}
    blocked = problem or reason
    assert found == (wanted | {"blockedBy": blocked} if blocked else wanted)


def test_operation_fits_into_the_bounds_of_the_crd() -> None:
    found = operation(Step(StepKind.WAIT, reason="x" * 5000), 3, 3, "y" * 5000)
    assert found is not None
    assert (len(found["step"]), len(found["blockedBy"])) == (256, 1024)


@pytest.mark.parametrize("listed", [names(0, 1, 2), None])
def test_nobody_is_restarted_for_a_template_that_the_same_pass_replaces(
    listed: frozenset[str] | None,
) -> None:
    """Neither who is well, nor who is down and would be restarted at once."""
    template = "StatefulSet prod: spec.template"
    for ready in (names(0, 1, 2), names(0, 1)):
        told: dict[str, Any] = {"outdated": names(2), "ready": ready, "listed": listed}
        assert next_step(fleet(3, 3, **told, template=template)).kind is StepKind.WAIT
    old = fleet(3, 3, outdated=names(0, 1, 2), template=template)
    said = "the template of the members changes first (StatefulSet prod: spec.template)"
    assert next_step(old).reason == said
    # Whatever else is to be done does not wait for it.
    assert next_step(fleet(5, 3, template=template)) == Step(StepKind.ADD, "prod-3")
    held = fleet(3, 3, outdated=names(0), held="closed", template=template)
    assert next_step(held).kind is StepKind.HOLD
