"""The queue of an exchange of type x-delayed-message against a list: what is due, when, by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.core.queue import queue_commands
from brokerd.core.queue.queue_machine import QueueMachine
from tests.unit.core.queue_driver import QueueDriver, content

KEYS = st.sampled_from([None, None, "a", "b", "c"])
PUBLISHES = st.tuples(st.just("publish"), st.lists(st.tuples(st.integers(0, 40), KEYS), max_size=4))
CANCELS = st.tuples(st.just("cancel"), st.sampled_from(["a", "b", "c"]))
PASSES = st.tuples(st.just("pass"), st.integers(-10, 30))
RESTARTS = st.tuples(st.just("restart"), st.none())
PURGES = st.tuples(st.just("purge"), st.none())
RANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=3)
TAKES = st.tuples(st.just("take"), RANGES)
SETTLES = st.tuples(st.just("settle"), st.tuples(RANGES, RANGES))
ENDS = st.tuples(st.just("end"), st.none())
STEPS = st.lists(
    st.one_of(
        PUBLISHES, PUBLISHES, CANCELS, PASSES, PASSES, RESTARTS, PURGES, TAKES, TAKES, SETTLES, ENDS
    ),
    min_size=5,
)


@dataclass
class Waiting:
    due_ms: int
    number: int
    key: str | None


class Model:
    """What waits, in the order in which it came; `out` is due, in the order in which it goes."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.waiting: list[Waiting] = []
        self.out: list[int] = []
        #: What a job has in hand, and which of it was replaced meanwhile.
        self.in_hand: list[Waiting] = []
        self.replaced: set[int] = set()
        self.next_number = 0

    def time_passes(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)
        due = [each for each in self.waiting if each.due_ms <= self.now_ms]
        self.waiting = [each for each in self.waiting if each.due_ms > self.now_ms]
        self.out += [each.number for each in sorted(due, key=lambda e: (e.due_ms, e.number))]

    def publish(self, delay_ms: int, key: str | None) -> None:
        self.take(key)
        self.waiting.append(Waiting(self.now_ms + delay_ms, self.next_number, key))
        self.next_number += 1

    def take(self, key: str | None) -> None:
        if key is not None:
            self.waiting = [each for each in self.waiting if each.key != key]
            self.replaced.update(each.number for each in self.in_hand if each.key == key)

    def job_takes(self, numbers: set[int], end: int) -> None:
        taken = [each for each in self.waiting if each.number in numbers and each.number < end]
        self.in_hand += taken
        self.waiting = [each for each in self.waiting if each not in taken]

    def job_settles(self, gone: set[int], staying: set[int]) -> None:
        self.in_hand = [each for each in self.in_hand if each.number not in gone]
        back = [each for each in self.in_hand if each.number in staying]
        self.in_hand = [each for each in self.in_hand if each not in back]
        self.waiting += [each for each in back if each.number not in self.replaced]
        self.time_passes(self.now_ms)


@given(STEPS)
@settings(max_examples=600, deadline=None)
def test_each_message_goes_once_when_it_is_due_unless_it_was_replaced_or_cancelled(
    steps: list[tuple[str, object]],
) -> None:
    queue = QueueDriver(
        queue_type="quorum", dead_letter_exchange="d", at_least_once=True, holds_delayed=True
    )
    model = Model(queue.now_ms)
    for step, given_ in [*steps, ("pass", 1_000)]:
        model.time_passes(queue.now_ms)
        if step == "publish" and given_:
            assert isinstance(given_, list)
            queue.publish(*[content(delay_ms=delay, delay_key=key) for delay, key in given_])
            for delay, key in given_:
                model.publish(delay, key)
        elif step == "cancel":
            assert isinstance(given_, str)
            queue.publish(content(delay_key=given_))
            model.take(given_)
            model.next_number += 1
        elif step == "pass":
            assert isinstance(given_, int)
            queue.now_ms += given_
            queue.send(queue.machine.tick_command())
            model.time_passes(queue.now_ms)
        elif step == "restart":
            again = QueueMachine()
            again.restore(queue.machine.snapshot())
            queue.machine = again
        elif step == "purge":
            queue.reply(queue_commands.encode_purge())
            model.waiting, model.out = [], []
        elif step in ("take", "settle", "end"):
            work(queue, model, step, given_)
    end_job(queue, model)
    queue.send(queue_commands.encode_dead_letters_checkout(1_000))
    letters = queue.machine.query_letters_taken()
    found = [number for each in letters for number in range(each.first, each.end)]
    assert found == model.out
    assert queue.machine.delayed.count == len(model.waiting) == 0


def work(queue: QueueDriver, model: Model, step: str, given_: Any) -> None:
    """What a job's worker does."""
    if queue.machine.query_job() is None:
        queue.send(queue_commands.encode_job_start("order", "ann"))
    job = queue.machine.query_job()
    assert job is not None
    if step == "take":
        ranges = [(low, low + count) for low, count in given_]
        command = queue_commands.encode_job_take(job.id, queue.term, ranges, waiting=True)
        queue.send(command)
        model.job_takes({n for low, high in ranges for n in range(low, high)}, job.end)
    elif step == "settle":
        gone, staying = ([(low, low + count) for low, count in each] for each in given_)
        queue.send(queue_commands.encode_job_settle(job.id, queue.term, gone, staying))
        model.job_settles(
            {n for low, high in gone for n in range(low, high)},
            {n for low, high in staying for n in range(low, high)},
        )
    else:
        end_job(queue, model)
    assert queue.machine.held_by_job == len(model.in_hand)


def end_job(queue: QueueDriver, model: Model) -> None:
    job = queue.machine.query_job()
    if job is not None:
        queue.send(queue_commands.encode_job_end(job.id, queue.term, ""))
    model.job_settles(set(), {each.number for each in model.in_hand})
