"""Tasks that run beside something: they end with it, and the failure of one ends no other."""

from __future__ import annotations

import asyncio
import logging

import pytest

from brokerd.server.loop.tasks import Tasks


async def fail() -> None:
    raise ValueError("no")


async def test_a_failure_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    tasks, went_on = Tasks(), asyncio.Event()
    failed = tasks.spawn(fail())
    await asyncio.wait({failed})
    await tasks.spawn(asyncio.sleep(0, went_on.set()))
    assert went_on.is_set()
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


async def test_whoever_owns_them_may_be_told_of_each_end() -> None:
    ends: list[BaseException | None] = []
    tasks = Tasks(ends.append)
    for work in (fail(), asyncio.sleep(0), asyncio.sleep(3600)):
        task = tasks.spawn(work)
    await asyncio.sleep(0)
    tasks.cancel()
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert [type(end) for end in ends] == [ValueError, type(None), type(None)]
