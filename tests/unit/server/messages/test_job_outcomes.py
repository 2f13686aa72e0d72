"""Asking targets: some do not answer, some are gone, some know nothing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from brokerd.core.queue.queue_jobs import Job
from brokerd.core.triage.gates import CANARY_DIED
from brokerd.core.triage.jobs import JobKind, JobOrder
from brokerd.server.messages.job_gates import JobGates
from brokerd.server.messages.job_outcomes import Answer, look
from brokerd.server.messages.job_progress import JobProgress


class Targets:
    """Answers by uid; None: no leader answers."""

    def __init__(self, answers: dict[int, Answer | None]) -> None:
        self.answers = answers
        self.asked: list[tuple[int, int, int]] = []

    async def ask(self, uid: int, source: int, job: int) -> Answer | None:
        self.asked.append((uid, source, job))
        return self.answers[uid]


class NothingOnTheWay:
    """Of job_sending.Sending what gates look at."""

    def __init__(self, **groups: int) -> None:
        self.groups = Counter(groups)


def progress(canary: int = 2, *, sent: int = 2, targets: tuple[int, ...] = (7, 8)) -> JobProgress:
    order = JobOrder(JobKind.REDRIVE, "/", "dlq", canary=canary)
    made = JobProgress(Job(3, json.dumps(order.as_json()), "ann", 0, 99))
    for _ in range(sent):
        made.sent("a", targets)
    return made


def gates(made: JobProgress, targets: Targets, **pending: int) -> tuple[JobGates, list[bool]]:
    changed: list[bool] = []
    on_the_way: Any = NothingOnTheWay(**pending)
    return JobGates(targets, 5, made, on_the_way, lambda: changed.append(True)), changed


def says(*counts: int, consumers: int = 1, name: str = "work") -> Answer:
    return Answer(name, consumers, {"a": list(counts)})


def test_each_target_is_asked_once_and_what_none_says_is_unknown() -> None:
    made = progress(sent=10)
    targets = Targets({7: says(4, 1, 0, 5, 0), 8: Answer("other", 0, None)})
    looked = asyncio.run(look(targets, 5, made.status))
    assert targets.asked == [(7, 5, 3), (8, 5, 3)]
    assert (looked.is_complete, looked.without_consumers) == (True, ["other"])
    total = made.status.total
    assert (total.acknowledged, total.died_again, total.waiting, total.unknown) == (4, 1, 5, 10)
    targets.answers = {7: Answer(""), 8: None}
    assert not asyncio.run(look(targets, 5, made.status)).is_complete
    assert (total.acknowledged, total.removed, total.waiting) == (4, 5, 0)


def test_canaries_decide_when_all_targets_have_answered_and_nothing_is_on_its_way() -> None:
    made, both = progress(), {7: says(2, 0, 0, 0, 0), 8: says(2, 0, 0, 0, 0)}
    targets = Targets(both | {8: None})
    for pending in ({}, {"a": 1}):
        found, changed = gates(made, targets, **pending)
        asyncio.run(found.look())
        assert (changed, found.waits("a", Counter())) == ([], True)
        assert found.waiting == {"a"}
        targets.answers = both
    found, changed = gates(made, targets)
    asyncio.run(found.look())
    assert (changed, found.changes, found.stays("a")) == ([True], 1, "")
    found.begin_pass()
    assert not found.waits("a", Counter(a=9))
    assert found.waiting == set()


def test_a_canary_that_dies_stops_its_group() -> None:
    made = progress()
    found, changed = gates(made, Targets({7: says(1, 1, 0, 0, 0), 8: None}))
    asyncio.run(found.look())
    assert (changed, found.stays("a")) == ([True], CANARY_DIED)


def test_a_job_says_what_its_groups_wait_for() -> None:
    made = progress()
    targets = Targets({7: says(0, 0, 0, 2, 0, consumers=0), 8: says(0, 0, 0, 2, 0)})
    found, _ = gates(made, targets)
    assert found.waits("a", Counter())
    assert found.why() == "a group waits until consumers have acknowledged 2 messages of it"
    asyncio.run(found.look())
    assert found.why().endswith("of it; queue 'work' has no consumers")
    found.waiting.add("b")
    targets.answers[8] = None
    asyncio.run(found.look())
    assert found.why() == (
        "2 groups wait until consumers have acknowledged 2 messages of each; "
        "not every target answers"
    )


def test_without_targets_and_canaries_nobody_is_asked() -> None:
    made = progress(canary=0, sent=0)
    made.name_of("a")
    targets = Targets({})
    found, _ = gates(made, targets)
    asyncio.run(found.look())
    assert targets.asked == []
    assert not found.waits("a", Counter(a=9))
