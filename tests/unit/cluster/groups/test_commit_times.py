"""How long commands take, one at a time."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.cluster.groups.commit_times import GIVEN_UP_S, PAUSE_S, CommitTimes


class Clock:
    """Stands where it is put."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_one_command_at_a_time_is_timed_and_all_are_answered(clock: Clock) -> None:
    answers: list[Any] = []

    def done(*answer: Any) -> None:
        answers.append(answer)

    times = CommitTimes(clock.perf_counter)
    first, second = times.timed(done), times.timed(done)
    assert second is done
    clock.now_s += 0.25
    first(True, b"reply", None)
    assert answers == [(True, b"reply", None)]
    clock.now_s += 5
    assert times.seconds() == 0.25
    refused = times.timed(done)
    clock.now_s += 1
    refused(False, b"", None)
    assert times.seconds() == 0.25
    assert len(answers) == 2


def test_a_command_that_waits_shows_and_is_given_up(clock: Clock) -> None:
    times = CommitTimes(clock.perf_counter)
    stuck = times.timed(lambda *_: None)
    clock.now_s += 2
    assert times.seconds() == 2.0
    clock.now_s += GIVEN_UP_S
    assert times.seconds() == GIVEN_UP_S + 2
    # Another one is timed now, and the late answer of the first is not taken for its own.
    other = times.timed(lambda *_: None)
    clock.now_s += 0.5
    stuck(True, b"", None)
    other(True, b"", None)
    assert times.seconds() == 0.5


def test_none_is_timed_for_a_moment_after_an_answer(clock: Clock) -> None:
    def done(*_: Any) -> None:
        """Somebody hears it."""

    times = CommitTimes(clock.perf_counter)
    times.timed(done)(True, b"", None)
    clock.now_s += PAUSE_S / 2
    assert times.timed(done) is done
    clock.now_s += PAUSE_S
    assert times.timed(done) is not done
