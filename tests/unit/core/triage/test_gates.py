"""Which groups of a redrive go on: canaries that were acknowledged, and none that keeps dying."""

from __future__ import annotations

from brokerd.core.triage import gates
from brokerd.core.triage.gates import Gate, Gates
from brokerd.core.triage.jobs import JobKind, JobOrder, Outcomes


def gated(canary: int = 0, deaths: int = 0, **decided: Gate) -> Gates:
    order = JobOrder(JobKind.REDRIVE, "/", "q", canary=canary, stop_after_deaths=deaths)
    return Gates(order, decided)


def test_without_either_all_groups_go() -> None:
    made = gated()
    made.look({"a": Outcomes(sent=5, died_again=5)}, {"a"})
    assert (made.stays("a"), made.waits("a", Outcomes(sent=5), 9), made.changes) == ("", False, 0)


def test_a_group_waits_for_its_canaries_and_goes_on_when_all_were_acknowledged() -> None:
    made = gated(canary=3)
    assert not made.waits("a", Outcomes(), 2)
    assert made.waits("a", Outcomes(), 3)
    assert not made.waits("a", Outcomes(sent=1), 1)
    assert made.waits("a", Outcomes(sent=3), 0)
    made.look({"a": Outcomes(sent=3, acknowledged=2, waiting=1)}, {"a"})
    # Two targets: the other one has not.
    made.look({"a": Outcomes(sent=3, acknowledged=3, waiting=3)}, {"a"})
    # Not all targets have answered.
    made.look({"a": Outcomes(sent=3, acknowledged=3)}, ())
    assert (made.changes, made.waits("a", Outcomes(sent=3), 0)) == (0, True)
    made.look({"a": Outcomes(sent=3, acknowledged=3), "b": Outcomes()}, {"a", "b"})
    assert (made.changes, made.decided) == (1, {"a": Gate.OPEN})
    assert not made.waits("a", Outcomes(sent=3), 500)
    assert made.waits("b", Outcomes(), 3)
    # From then on, too, it stops when one dies.
    made.look({"a": Outcomes(sent=9, acknowledged=3, died_again=1)}, {"a"})
    assert made.stays("a") == gates.DIED


def test_a_group_of_which_a_canary_dies_stops_and_no_other() -> None:
    made = gated(canary=3)
    made.look({"a": Outcomes(sent=3, died_again=1), "b": Outcomes(sent=3)}, ())
    assert (made.stays("a"), made.stays("b"), made.changes) == (gates.CANARY_DIED, "", 1)
    made.look({"a": Outcomes(sent=3, acknowledged=3, died_again=1)}, {"a"})
    assert (made.stays("a"), made.changes) == (gates.CANARY_DIED, 1)


def test_deaths_below_the_limit_and_what_was_purged_are_replaced_by_other_canaries() -> None:
    made = gated(canary=3, deaths=2)
    outcomes = Outcomes(sent=3, acknowledged=1, died_again=1, removed=1)
    made.look({"a": outcomes}, {"a"})
    made.look({"a": outcomes}, {"a"})
    assert made.changes == 1
    assert not made.waits("a", outcomes, 1)
    assert made.waits("a", outcomes, 2)
    made.look({"a": Outcomes(sent=5, acknowledged=1, died_again=2, removed=1)}, {"a"})
    assert made.stays("a") == gates.CANARY_DIED


def test_a_group_stops_when_so_many_died() -> None:
    made = gated(deaths=2)
    made.look({"a": Outcomes(sent=3, died_again=1)}, {"a"})
    assert (made.stays("a"), made.waits("a", Outcomes(sent=3), 1)) == ("", False)
    made.look({"a": Outcomes(sent=3, died_again=2)}, ())
    assert made.stays("a") == gates.DIED


def test_what_was_decided_holds_for_another_worker() -> None:
    made = gated(canary=3, a=Gate.OPEN, b=Gate.CANARY_DIED)
    assert not made.waits("a", Outcomes(sent=3), 0)
    assert made.stays("b") == gates.CANARY_DIED
