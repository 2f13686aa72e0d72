"""A command whose answer somebody waits for."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from brokerd.cluster.groups.asked import Answer, Asked, Deadlines, ReplyStatus


@dataclass
class _Command:
    """What is under way to the group."""

    answer: Answer


@pytest.mark.parametrize("how", ["answered", "late", "withdraw"])
async def test_what_was_asked_goes_with_its_last_user(how: str) -> None:
    """Each declare and get makes one; in a cycle they would lie until the collector comes."""
    heard: list[ReplyStatus] = []
    withdrawn: list[str] = []
    asked = Asked(lambda status, _: heard.append(status))
    # As in the group client: the deadlines and the command refer to it, and it to them.
    command = _Command(asked.answered)
    left = weakref.ref(command)
    asked.withdrawn = partial(lambda _: withdrawn.append(how), command)
    Deadlines(asyncio.get_running_loop()).add(asked, 60)
    gc.disable()
    try:
        if how == "answered":
            asked.answered(ReplyStatus.OK, b"")
        else:
            getattr(asked, how)()
        asked.answered(ReplyStatus.GONE, b"")
        del asked, command
        assert left() is None
    finally:
        gc.enable()
    assert (
        heard
        == {
            "answered": [ReplyStatus.OK],
            "late": [ReplyStatus.LATE],
            "withdraw": [],
        }[how]
    )
    assert len(withdrawn) == (how != "answered")


class _Loop(asyncio.AbstractEventLoop):
    """Timers that run when the clock is put on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[..., Any], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay: float, callback: Any, *args: Any, **_: Any) -> Any:
        self.timers.append((self.now_s + delay, callback, args))

    def go_to(self, now_s: float) -> None:
        while due := [timer for timer in self.timers if timer[0] <= now_s]:
            timer = min(due, key=lambda it: it[0])
            self.timers.remove(timer)
            self.now_s = timer[0]
            timer[1](*timer[2])
        self.now_s = now_s


def test_all_with_one_time_out_share_a_timer_and_are_late_in_turn() -> None:
    heard: list[tuple[str, float]] = []
    loop = _Loop()
    deadlines = Deadlines(loop)

    def ask(name: str, timeout_s: float) -> Asked:
        asked = Asked(lambda status, _: heard.append((f"{name} {status.name}", loop.now_s)))
        deadlines.add(asked, timeout_s)
        return asked

    first, dropped = ask("first", 10), ask("dropped", 10)
    ask("second", 10)
    ask("soon", 1)
    assert len(loop.timers) == 2
    loop.go_to(4)
    third = ask("third", 10)
    dropped.withdraw()
    first.answered(ReplyStatus.OK, b"")
    loop.go_to(13)
    assert heard == [("soon LATE", 1), ("first OK", 4), ("second LATE", 10)]
    third.answered(ReplyStatus.OK, b"")
    loop.go_to(14)
    assert not loop.timers, "a time-out that nobody has left has no timer"
    ask("fourth", 10)
    loop.go_to(24)
    assert heard[-1] == ("fourth LATE", 24)


def test_who_asks_again_when_told_is_told_again() -> None:
    heard: list[float] = []
    loop = _Loop()
    deadlines = Deadlines(loop)

    def ask() -> None:
        deadlines.add(Asked(late), 10)

    def late(_: ReplyStatus, __: bytes) -> None:
        heard.append(loop.now_s)
        if len(heard) < 3:
            ask()

    ask()
    loop.go_to(60)
    assert heard == [10, 20, 30]
    assert not loop.timers
