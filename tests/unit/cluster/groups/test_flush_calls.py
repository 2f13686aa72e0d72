"""Who is called before the groups of a flush run, and who after all of them have."""

from __future__ import annotations

import asyncio
import logging

import pytest

from brokerd.cluster.groups.flush_calls import FlushCalls, call_all


async def test_before_is_called_once_and_what_comes_meanwhile_with_the_next_flush() -> None:
    calls, seen = FlushCalls(asyncio.get_running_loop()), list[str]()

    def again() -> None:
        seen.append("first")
        calls.before(lambda: seen.append("next"))

    calls.before(again)
    calls.before(lambda: seen.append("second"))
    assert seen == []
    calls.begin()
    assert seen == ["first", "second"]
    assert calls.is_any_before
    calls.take()
    calls.begin()
    assert not calls.is_any_before
    calls.begin()
    assert seen == ["first", "second", "next"]


async def test_after_is_handed_out_when_all_groups_have_run_or_else_called_soon() -> None:
    calls, seen = FlushCalls(asyncio.get_running_loop()), list[str]()
    calls.after(lambda: seen.append("outside"))
    calls.begin()
    calls.after(lambda: seen.append("a"))
    calls.after(lambda: seen.append("b"))
    taken = calls.take()
    assert seen == []
    call_all(taken)
    assert seen == ["a", "b"]
    await asyncio.sleep(0)
    assert seen == ["a", "b", "outside"]
    assert calls.take() == []


async def test_what_is_asked_for_before_groups_run_may_ask_for_something_after(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And one that fails keeps nobody from being called."""
    calls, seen = FlushCalls(asyncio.get_running_loop()), list[str]()

    def fails() -> None:
        raise ValueError("planted")

    calls.before(fails)
    calls.before(lambda: seen.append("called"))
    with caplog.at_level(logging.ERROR):
        calls.begin()
    assert seen == ["called"]
    assert "planted" in caplog.text
