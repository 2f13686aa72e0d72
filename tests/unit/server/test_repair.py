"""A replica that lost messages for good leaves its group and comes back, whatever is in the way."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerd.server import repair
from brokerd.server.broker import Broker
from brokerd.server.catalog_writer import Unavailable
from brokerd.server.membership_wishes import MembershipError

UID = 7


class Bench:
    """A broker with one damaged replica; `refusals` are what its wishes end with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver: Any = SimpleNamespace(
            error=None, is_damaged=True, lacks_entries=True, log_uid=UID
        )
        self.queue: Any = SimpleNamespace(name="q", vhost="/", type="quorum")
        self.wishes = 0
        self.wished = asyncio.Event()
        self.refusals: list[Exception] = []
        #: What becomes of the replica once the wish is written, look by look.
        self.then: list[Any] = [
            # What was lost is settled at this moment, but the wish stands.
            SimpleNamespace(error=None, is_damaged=False, lacks_entries=False, log_uid=UID),
            None,
            SimpleNamespace(error=None, is_damaged=True, lacks_entries=False, log_uid=8),
            SimpleNamespace(error=None, is_damaged=False, lacks_entries=False, log_uid=8),
        ]
        monkeypatch.setattr(repair, "renew_member", self._renew)
        monkeypatch.setattr(repair, "POLL_S", 0.0)
        broker = SimpleNamespace(
            node="n1",
            queue_uids=lambda: [UID],
            queue_of=self._queue_of,
            host=SimpleNamespace(driver_of=self._driver_of),
        )
        self.broker = cast(Broker, broker)
        self.repair = repair.Repair(self.broker)

    def _queue_of(self, uid: int) -> Any:
        assert uid == UID
        return self.queue

    def _driver_of(self, uid: int) -> Any:
        assert uid == UID
        if self.wishes and self.then:
            self.driver = self.then.pop(0)
        return self.driver

    async def _renew(self, broker: Broker, node: str, queue: Any) -> None:
        assert (broker, node, queue) == (self.broker, "n1", self.queue)
        if self.refusals:
            raise self.refusals.pop(0)
        self.wishes += 1
        self.wished.set()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


async def test_a_loss_that_lasts_is_repaired(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """G8; at once would be too early: consumers may settle what is lost.

    It is over when the replica works with its new log; between the two there is none.
    """
    await bench.repair.look()
    assert bench.wishes == 0
    await bench.repair.look()
    assert (bench.wishes, bench.then) == (1, [])
    lost = "queue 'q' in vhost '/': messages are lost on this disk, its replica is made anew"
    assert caplog.messages == [lost, "queue 'q' in vhost '/': the replica is whole again"]
    await bench.repair.look()
    assert bench.wishes == 1


async def test_what_was_settled_meanwhile_needs_no_repair(bench: Bench) -> None:
    await bench.repair.look()
    bench.driver.is_damaged = False
    await bench.repair.look()
    assert bench.wishes == 0


@pytest.mark.parametrize(
    "fault",
    [Unavailable("no majority"), MembershipError("the other members would have no majority")],
)
async def test_a_wish_that_is_refused_is_made_again_and_told_of_once(
    bench: Bench, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    bench.refusals = [fault, fault]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await bench.repair.look()
        assert bench.wishes == 0
        assert caplog.messages == [
            "queue 'q' in vhost '/': messages are lost on this disk, and its replica cannot be "
            f"made anew yet: {fault}"
        ]
        await bench.repair.look()
    assert bench.wishes == 1


async def test_a_replica_that_is_not_whole_in_time_lets_the_next_one_have_its_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The wish stands in the catalog, and is asked for again."""
    monkeypatch.setattr(repair, "STEP_S", 0.0)
    bench.then = []
    for _ in range(3):
        await bench.repair.look()
    assert bench.wishes == 2
    assert "whole again" not in caplog.text


async def test_a_queue_that_is_deleted_meanwhile_is_let_be(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.repair.look()
    queue, bench.queue = bench.queue, None
    await bench.repair.look()
    assert bench.wishes == 0
    bench.queue = queue
    bench.refusals = []
    bench.then = []

    async def deleted(*_: Any) -> None:
        bench.queue = None

    monkeypatch.setattr(repair, "renew_member", deleted)
    await bench.repair.look()
    assert "whole again" not in caplog.text


async def test_it_is_looked_as_long_as_the_broker_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "LOOK_S", 0.0)
    watching = asyncio.create_task(repair.watch(bench.broker))
    async with asyncio.timeout(60):
        await bench.wished.wait()
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert bench.wishes == 1
