"""What members told each other of their logs: who has forgotten something, and who has not."""

from __future__ import annotations

from brokerd.storage.promises import OTHERS_MAX, RUNS_MAX, Promise, Promises, Run

LOG = 77


def runs(*batches: int) -> Promises:
    """A log that was started at these writes; the mark of run N is 100 + N."""
    promises = Promises(LOG)
    for number, batch in enumerate(batches, 1):
        promises.begin(100 + number, batch)
    return promises


def said(run: int, batch: int, *, log: int = LOG, mark: int | None = None) -> Promise:
    return Promise(log, run, 100 + run if mark is None else mark, batch)


def test_a_log_that_has_kept_all_it_promised_is_not_behind() -> None:
    log = runs(0, 50, 80)
    assert not log.is_behind(said(1, 50))
    assert not log.is_behind(said(2, 80))
    assert not log.is_behind(said(3, 95)), "the run that goes on"


def test_a_run_that_ended_before_what_it_had_promised_was_cut_off() -> None:
    log = runs(0, 50, 80)
    assert log.is_behind(said(1, 51))
    assert log.is_behind(said(2, 81))


def test_a_run_that_is_not_known_was_forgotten_with_its_directory() -> None:
    """Put back to run 2, started again as run 3: others remember another run 3, and a run 4."""
    log = runs(0, 50, 60)
    assert log.is_behind(said(3, 70, mark=999))
    assert log.is_behind(said(4, 90))


def test_what_is_too_long_ago_cannot_be_judged() -> None:
    log = runs(*range(RUNS_MAX + 5))
    assert log.runs[0].number == 6
    assert len(log.runs) == RUNS_MAX
    assert not log.is_behind(said(3, 10**9))
    assert not Promises(LOG).is_behind(said(1, 1))


def test_a_log_that_does_not_know_of_another_one_was_there_before_it() -> None:
    """G8: an earlier disk of the member comes back (seed 17000868 of the cluster world)."""
    log = runs(0, 50)
    other = said(1, 10, log=78)
    assert log.is_behind(other)
    log.admit(other)
    assert not log.is_behind(said(9, 10**9, log=78)), "whatever it has promised"
    assert log.is_behind(said(1, 10, log=79))
    assert runs(0).is_first_run
    assert not log.is_first_run


def test_an_earlier_log_is_remembered_instead_of_a_new_one_when_that_is_admitted() -> None:
    mine, new = runs(0), Promises(78, [Run(1, 301, 0)])
    assert mine.hear("b", said(2, 90), runs(0, 50))
    assert not mine.hear("b", said(1, 3, log=78), new)
    new.admit(said(2, 90))
    assert mine.hear("b", said(1, 3, log=78), new)


def test_what_was_admitted_is_not_held_against_the_log_again() -> None:
    log = runs(0, 50)
    log.admit(said(1, 70))
    assert not log.is_behind(said(1, 70))
    assert not log.is_behind(said(1, 60))
    assert log.is_behind(said(1, 71))
    log.admit(said(1, 60))
    assert not log.is_behind(said(1, 70)), "an older claim takes nothing back"
    for number in range(2 * RUNS_MAX):
        log.admit(said(5, 9, mark=number))
    assert len(log.admitted) == RUNS_MAX


def test_a_member_is_remembered_until_it_has_admitted_what_it_forgot() -> None:
    """Or else the memory of it would be gone when the member ends before it could note it."""
    mine, other = runs(0), runs(0, 50)
    assert mine.hear("b", said(2, 90), other)
    assert not mine.hear("b", said(2, 90), other), "nothing new"
    put_back = Promises(LOG, [*other.runs, Run(3, 203, 60)])
    assert not mine.hear("b", said(3, 61, mark=203), put_back)
    assert mine.others["b"] == said(2, 90)
    put_back.admit(said(2, 90))
    assert mine.hear("b", said(3, 61, mark=203), put_back)
    assert mine.others["b"].batch == 61


def test_members_are_remembered_up_to_a_bound() -> None:
    mine = runs(0)
    for number in range(OTHERS_MAX + 3):
        mine.hear(f"n{number}", said(1, 1), runs(0))
    assert len(mine.others) == OTHERS_MAX
    assert mine.hear("n0", said(1, 2), runs(0))


def test_what_is_written_down_comes_back() -> None:
    log = runs(0, 50)
    log.admit(said(1, 70))
    log.hear("b", said(1, 5, log=9), Promises(9, [Run(1, 101, 0)]))
    assert Promises.decode(log.encode()) == log
    copy = log.copy()
    log.begin(900, 60)
    log.others.clear()
    assert copy != log
    assert copy.others
