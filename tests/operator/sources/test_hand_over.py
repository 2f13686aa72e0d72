"""Events of watches on their way to the engine's loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from brokerd_operator.sources.hand_over import SLICE, HandOver


async def test_calls_come_in_order_and_others_have_their_turn_between_slices() -> None:
    loop = asyncio.get_running_loop()
    hand_over = HandOver(loop)
    seen: list[int] = []
    total = 10 * SLICE

    def give() -> None:
        for number in range(total):
            hand_over.give(seen.append, number)

    thread = threading.Thread(target=give)
    thread.start()
    thread.join()
    turns = 0
    while len(seen) < total:
        await asyncio.sleep(0)
        turns += 1
    assert seen == list(range(total))
    assert turns >= total / SLICE


async def test_a_call_that_fails_does_not_hold_the_others() -> None:
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    hand_over = HandOver(loop)
    done = asyncio.Event()

    def fail() -> None:
        raise ValueError("of one body")

    hand_over.give(fail)
    hand_over.give(done.set)
    await asyncio.wait_for(done.wait(), 5)
    (context,) = told
    assert isinstance(context["exception"], ValueError)


def test_after_the_end_of_the_loop_nothing_happens() -> None:
    loop = asyncio.new_event_loop()
    hand_over = HandOver(loop)
    loop.close()
    hand_over.give(print, "never")
