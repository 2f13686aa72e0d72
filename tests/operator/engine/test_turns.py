"""Fair turns in the work queue: by namespace, by broker, clusters first (design/operator.md §9)."""

from __future__ import annotations

import asyncio
import random

import pytest
from brokerd_operator.engine.turns import Line, Turns
from brokerd_operator.engine.work_queue import CLUSTERS, WorkQueue
from hypothesis import given
from hypothesis import strategies as st

WORKERS = 8


def line_of(key: str) -> Line:
    """`namespace/broker/name`."""
    namespace, broker, _ = key.split("/")
    return Line(namespace, broker)


def queue_of(times: list[float] | None = None, workers: int = WORKERS) -> WorkQueue[str]:
    times = times or [0.0]
    return WorkQueue(lambda: times[0], random.Random(1), line_of, workers)


async def taken(queue: WorkQueue[str], count: int) -> list[str]:
    """Keys in the order of one worker."""
    found = []
    for _ in range(count):
        async with asyncio.timeout(5):
            key = await queue.get()
        queue.done(key)
        found.append(key)
    return found


async def test_one_change_does_not_wait_for_a_thousand_of_another_namespace() -> None:
    queue = queue_of()
    for number in range(1000):
        queue.add(f"many/prod/q{number}")
    queue.add("single/prod/q")
    assert "single/prod/q" in await taken(queue, 2)


async def test_clusters_go_before_all_resources_and_in_turns_among_themselves() -> None:
    queue = queue_of()
    for number in range(10):
        queue.add(f"many/prod/q{number}")
        queue.add(f"many/{CLUSTERS}/c{number}")
    queue.add(f"single/{CLUSTERS}/c")
    found = await taken(queue, 12)
    assert f"single/{CLUSTERS}/c" in found[:2]
    assert all(f"/{CLUSTERS}/" in key for key in found[:11])
    assert found[11] == "many/prod/q0"


async def test_brokers_of_one_namespace_take_turns() -> None:
    queue = queue_of()
    for number in range(100):
        queue.add(f"team/first/q{number}")
    queue.add("team/second/q")
    assert "team/second/q" in await taken(queue, 2)


async def test_a_namespace_with_many_brokers_has_one_share() -> None:
    queue = queue_of()
    for number in range(100):
        queue.add(f"greedy/broker{number}/q")
    for number in range(10):
        queue.add(f"other/prod/q{number}")
    found = await taken(queue, 20)
    assert sum(key.startswith("other/") for key in found) == 10


async def test_order_of_arrival_counts_within_a_line() -> None:
    queue = queue_of()
    keys = [f"a/prod/q{number}" for number in range(5)]
    for key in keys:
        queue.add(key)
    assert await taken(queue, 5) == keys


@pytest.mark.parametrize("broker", ["prod", CLUSTERS])
async def test_slow_passes_of_one_broker_or_of_clusters_leave_workers_to_others(
    broker: str,
) -> None:
    queue = queue_of()
    for number in range(WORKERS):
        queue.add(f"a/{broker}/q{number}")
    held = [await queue.get() for _ in range(WORKERS - 2)]
    queue.add("b/other/q")
    assert await queue.get() == "b/other/q"
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done(), "the last workers are for others"
    queue.done(held[0])
    async with asyncio.timeout(5):
        assert (await waiting).startswith(f"a/{broker}/")


async def test_a_single_worker_takes_everything() -> None:
    queue = queue_of(workers=1)
    queue.add("a/prod/q")
    queue.add(f"a/{CLUSTERS}/c")
    assert await taken(queue, 2) == [f"a/{CLUSTERS}/c", "a/prod/q"]


async def test_a_key_that_is_forgotten_or_comes_again_later_takes_no_turn_now() -> None:
    times = [0.0]
    queue = queue_of(times)
    for name in ("gone", "looked", "stays"):
        queue.add(f"a/prod/{name}")
    assert await queue.get() == "a/prod/gone"
    queue.done("a/prod/gone")
    queue.forget("a/prod/looked")
    queue.add("a/prod/looked", 5.0)
    assert await taken(queue, 1) == ["a/prod/stays"]
    times[0] = 5.0
    assert await taken(queue, 1) == ["a/prod/looked"]
    assert queue.is_idle
    assert len(queue) == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("add", "later", "take", "done", "forget", "time")),
        st.sampled_from([f"{n}/{b}/q{i}" for n in "ab" for b in ("x", CLUSTERS) for i in "12"]),
    ),
    max_size=80,
)


@given(STEPS)
def test_no_key_is_lost_and_none_is_with_two_workers(steps: list[tuple[str, str]]) -> None:
    times = [0.0]
    queue = queue_of(times, workers=3)
    due: dict[str, float] = {}
    working: list[str] = []
    for what, key in steps:
        if what in ("add", "later"):
            delay = 0.0 if what == "add" else 2.0
            due[key] = min(due.get(key, 1e9), times[0] + delay)
            queue.add(key, delay)
        elif what == "forget":
            due.pop(key, None)
            queue.forget(key)
        elif what == "time":
            times[0] += 1.0
        elif what == "done" and working:
            queue.done(working.pop(0))
        elif what == "take" and len(working) < 3:
            found = queue._take()
            if found is None:
                busy = {line_of(item).broker for item in working}
                waiting = [k for k, t in due.items() if t <= times[0] and k not in working]
                assert all(line_of(item).broker in busy for item in waiting)
                continue
            assert found not in working
            assert due.pop(found) <= times[0]
            working.append(found)
    times[0] += 10.0
    for key in working:
        queue.done(key)
    while (found := queue._take()) is not None:
        due.pop(found)
        queue.done(found)
    assert not due
    assert queue.is_idle


def test_turns_keep_nothing_of_lanes_that_are_empty() -> None:
    turns: Turns[str] = Turns()
    for number in range(100):
        turns.push(Line(f"n{number}", "b"), 0.0, "k")
    while turns.pop(lambda mark, key: True, lambda line: True):
        pass
    assert not turns
    assert not turns._namespaces
