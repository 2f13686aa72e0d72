"""GroupClient and groups of which it is known that nobody takes their commands for now."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokerd.cluster.errors import GroupStuck
from brokerd.cluster.groups.group_client import ReplyStatus
from tests.unit.cluster.groups.test_group_client import NOT_LEADER, OK, UID, Bench

REASON = "queue 'q' is damaged"
NOW = float("inf")


class Line(Bench):
    """Sends like a publisher, too."""

    def publish(self, command: bytes) -> None:
        self.client.send(UID, command, self._answered, early=b"EARLY", line=self)

    def _answered(self, *answer: Any) -> None:
        self.answers.append(answer)


async def asked(bench: Bench, command: bytes) -> asyncio.Task[bytes]:
    """Ask, and let it be sent."""
    task = asyncio.create_task(bench.client.request(UID, command, 60.0))
    await asyncio.sleep(0)
    return task


async def test_who_asks_is_refused_and_all_else_waits() -> None:
    bench = Line()
    bench.publish(b"1")
    task = await asked(bench, b"2")
    bench.send(b"3")
    bench.client.refuse(UID, REASON, is_lasting=False)
    with pytest.raises(GroupStuck, match=REASON):
        await task
    with pytest.raises(GroupStuck, match=REASON):
        await bench.client.request(UID, b"4", 60.0)
    assert bench.answers == []
    assert bench.client.refusal(UID) == REASON
    assert not bench.client.refuses_lines(UID)
    bench.reply(OK)
    assert bench.network.commands() == [b"1", b"3"]


async def test_publishes_are_refused_where_waiting_does_not_help() -> None:
    """On their way or not: they may take effect, and nobody will say so in time."""
    bench = Line()
    bench.publish(b"1")
    bench.publish(b"2")
    bench.send(b"3")
    bench.client.refuse(UID, REASON, is_lasting=True)
    assert bench.answers == [(ReplyStatus.REFUSED, REASON.encode())] * 2
    assert bench.client.refuses_lines(UID)
    bench.publish(b"4")
    assert len(bench.answers) == 2
    await asyncio.sleep(0)
    assert bench.answers[2:] == [(ReplyStatus.REFUSED, REASON.encode())]
    # The next thing that waits is what a leader is asked with.
    assert bench.network.commands() == [b"1", b"3"]
    assert bench.client.pending_bytes(UID) == len(b"3")


async def test_a_group_that_may_have_a_leader_again_is_asked_again() -> None:
    bench = Bench()
    bench.client.refuse(UID, REASON, is_lasting=True)
    bench.client.accept(UID)
    task = await asked(bench, b"1")
    bench.reply(OK)
    assert await task == b"<1>"
    assert not bench.client.refusal(UID)


async def test_groups_that_take_nothing_are_told_while_something_waits() -> None:
    bench = Bench()
    assert bench.client.stalled(NOW) == []
    task = await asked(bench, b"1")
    assert bench.client.stalled(NOW) == []
    bench.reply(NOT_LEADER)
    assert bench.client.stalled(NOW) == [UID]
    assert bench.client.stalled(0.0) == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert bench.client.stalled(NOW) == []

    bench.send(b"2")
    await bench.resent(2)
    bench.reply(NOT_LEADER)
    assert bench.client.stalled(NOW) == [UID]
    await bench.resent(3)
    assert bench.client.stalled(NOW) == [UID]
    bench.reply(OK)
    assert bench.client.stalled(NOW) == []


async def test_a_group_that_is_deleted_is_not_stalled_and_refuses_nothing() -> None:
    bench = Bench()
    bench.send(b"1")
    bench.reply(NOT_LEADER)
    bench.client.forget(UID)
    assert bench.client.stalled(NOW) == []
    bench.client.refuse(UID, REASON, is_lasting=True)
    bench.client.accept(UID)
    assert bench.client.refusal(UID) == ""
    assert not bench.client.refuses_lines(UID)
