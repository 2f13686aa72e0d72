"""What a job has on its way: targets that answer, refuse, keep silent, or are gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.router import RouteResult
from brokerd.core.message import Content
from brokerd.core.queue.effects import Run
from brokerd.core.queue.queue_jobs import Job
from brokerd.core.triage.jobs import JobKind, JobOrder, To
from brokerd.server.messages import job_sending
from brokerd.server.messages.job_copies import Address, Way
from brokerd.server.messages.job_progress import JobProgress
from brokerd.server.messages.job_sending import REFUSED, Sending
from brokerd.server.queues.stream import Target
from tests.unit.server.messages import fakes

CONTENT: Content = (("", "a"), b"\x00\x00", b"12345", b"")
A, B = fakes.queue(1), fakes.queue(2)


class Rig:
    """A stream and a client that note what goes, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.went: list[tuple[int, int]] = []
        self.outcome: Callable[[list[tuple[int, int, int]]], None] = lambda _: None
        here: Any = self
        order = JobOrder(JobKind.DELETE, "/", "q", to=To.NOWHERE)
        job = Job(1, json.dumps(order.as_json()), "ann", 0, 99)
        self.progress = JobProgress(job)
        monkeypatch.setattr(job_sending.asyncio, "get_running_loop", lambda: self)
        self.sending = Sending(here, fakes.Routing(), 7, self.progress, lambda: None)

    def time(self) -> float:
        return self.now_s

    def open(self, channel: int, outcome: Any, **_: Any) -> Rig:
        self.outcome = outcome
        return self

    def make_known(self, uid: int, members: Iterable[str]) -> None:
        """All are known."""

    def publish(self, queues: Sequence[Target], contents: list[Content], first: int) -> None:
        self.went += [(first, queue.uid) for queue in queues]

    def flush(self) -> None:
        """It has gone."""

    def send(self, number: int, *targets: Queue) -> None:
        found = way(*targets)
        self.sending.windows.reserve(found)
        self.sending.send_off(Run(number, 1, 1, number, 0, 0), "", found)

    def answers(self, copy: int, is_taken: bool = True) -> None:
        self.outcome([(copy, 1, int(is_taken))])


def way(*targets: Queue) -> Way:
    result = RouteResult(None)
    result.queues = targets
    return Way(Address("", ("a",)), CONTENT, result, targets)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_a_message_has_gone_when_every_target_has_it(rig: Rig) -> None:
    rig.send(5, A, B)
    assert rig.went == [(0, 1), (1, 2)]
    rig.answers(1)
    assert (rig.sending.count, rig.sending.has_answers) == (1, False)
    rig.answers(0)
    assert rig.sending.count == 0
    assert rig.sending.knows(5)
    assert rig.sending.take_answers() == ([(5, 6)], [])
    assert (rig.sending.is_done, rig.progress.status.total.sent) == (True, 1)
    assert not rig.sending.knows(5)
    # What was not heard is told again.
    rig.sending.give_answers_back([(5, 6)], [])
    assert rig.sending.knows(5)


def test_a_deletion_needs_no_target(rig: Rig) -> None:
    rig.sending.send_off(Run(3, 1, 1, 3, 0, 0), "", None)
    assert rig.sending.take_answers() == ([(3, 4)], [])


def test_a_full_window_holds_its_target_up_and_a_silent_one_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_sending, "WINDOW_MESSAGES", 1)
    windows = rig.sending.windows
    rig.send(1, A)
    assert (windows.is_held_up(way(A)), windows.is_held_up(way(B))) == (False, None)
    assert (windows.is_held_up(way(A, B)), rig.sending.waits_for_slow()) == (False, False)
    rig.now_s += job_sending.SLOW_S
    assert (windows.is_held_up(way(A)), windows.is_held_up(way(B))) == (True, None)
    assert (rig.sending.waits_for_slow(), windows.silent()) == (True, "")
    rig.now_s += job_sending.SILENT_S
    assert windows.silent() == A.name
    rig.answers(0)
    assert (windows.is_held_up(way(A)), windows.silent()) == (None, "")
    windows.reserve(way(A))
    windows.release(way(A))
    assert windows.is_held_up(way(A)) is None


def test_what_is_refused_goes_again_and_stays_in_the_end(rig: Rig) -> None:
    rig.send(1, A, B)
    rig.answers(1)
    for copy, pause_s in enumerate(job_sending.RETRIES_S, 1):
        rig.answers(0 if copy == 1 else copy, is_taken=False)
        assert rig.sending.windows.is_held_up(way(A)) is True
        rig.sending.send_again(lambda run: way(A, B))
        assert len(rig.went) == copy + 1, "too early"
        rig.now_s += pause_s
        rig.sending.send_again(lambda run: way(A, B))
        assert rig.went[-1] == (copy + 1, 1)
    rig.answers(len(rig.went) - 1, is_taken=False)
    rig.now_s += job_sending.RETRIES_S[-1]
    rig.sending.send_again(lambda run: way(A, B))
    assert rig.sending.take_answers() == ([], [(1, 2)])
    assert rig.progress.status.total.stayed == {REFUSED: 1}
    assert rig.sending.is_given_up(way(A))
    assert not rig.sending.is_given_up(way(B))
    assert not rig.sending.waits_for_slow()


def test_what_is_refused_once_may_be_taken_then(rig: Rig) -> None:
    rig.send(1, A)
    rig.answers(0, is_taken=False)
    rig.now_s += 1
    rig.sending.send_again(lambda run: way(A))
    rig.answers(1)
    assert rig.sending.take_answers() == ([(1, 2)], [])
    assert rig.sending.windows.is_held_up(way(A)) is None


def test_a_target_that_is_gone_is_not_waited_for(rig: Rig) -> None:
    rig.send(1, A, B)
    rig.answers(1)
    rig.answers(0, is_taken=False)
    rig.now_s += 1
    rig.sending.send_again(lambda run: way(B))
    assert rig.sending.take_answers() == ([(1, 2)], [])
    rig.send(2, A)
    rig.answers(2, is_taken=False)
    rig.now_s += 1
    rig.sending.send_again(lambda run: "no route")
    assert rig.sending.take_answers() == ([], [(2, 3)])


def test_what_is_given_up_stays_whatever_comes_later(rig: Rig) -> None:
    rig.send(1, A)
    rig.sending.give_up("stopped")
    assert rig.sending.take_answers() == ([], [(1, 2)])
    rig.answers(0)
    assert rig.sending.is_done
    assert rig.sending.windows.is_held_up(way(A)) is None
