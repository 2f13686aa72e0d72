"""A command whose answer somebody waits for."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import dataclass
from functools import partial

import pytest

from brokerd.cluster.groups.asked import Answer, Asked, ReplyStatus


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
    # As in the group client: the timer and the command refer to it, and it to them.
    command = _Command(asked.answered)
    left = weakref.ref(command)
    asked.withdrawn = partial(lambda _: withdrawn.append(how), command)
    asked.timer = asyncio.get_running_loop().call_later(60, asked.late)
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
