"""A replica that lost messages for good leaves its group and comes back, whatever is in the way."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerd.server import repair
from brokerd.server.broker import Broker
from brokerd.server.catalog_writer import Unavailable
from brokerd.server.membership_wishes import MembershipError, Outcome

UID = 7


class Bench:
    """A broker with one damaged replica; `answers` are what the changes are to end with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver = SimpleNamespace(error=None, is_damaged=True, lacks_entries=True)
        self.queue: Any = SimpleNamespace(name="q", vhost="/", type="quorum")
        self.done: list[str] = []
        self.answers: list[Exception | str] = []
        monkeypatch.setattr(repair, "shrink_member", self._shrink)
        monkeypatch.setattr(repair, "grow_member", self._grow)
        broker = SimpleNamespace(
            node="n1",
            queue_uids=lambda: [UID],
            queue_of=lambda _: self.queue,
            host=SimpleNamespace(driver_of=lambda _: self.driver),
        )
        self.repair = repair.Repair(cast(Broker, broker))

    def _end(self, what: str) -> list[Outcome]:
        self.done.append(what)
        answer = self.answers.pop(0) if self.answers else ""
        if isinstance(answer, Exception):
            raise answer
        return [Outcome("/", "q", 2, answer)]

    async def _shrink(self, *_: Any, **__: Any) -> list[Outcome]:
        found = self._end("shrink")
        if not found[0].error:
            self.driver.lacks_entries = False
        return found

    async def _grow(self, *_: Any, **__: Any) -> list[Outcome]:
        found = self._end("grow")
        self.driver.is_damaged = False
        return found


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


async def test_a_loss_that_lasts_is_repaired(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """G8; at once would be too early: consumers may settle what is lost."""
    await bench.repair.look()
    assert bench.done == []
    await bench.repair.look()
    assert bench.done == ["shrink", "grow"]
    assert "queue 'q' in vhost '/': the replica is whole again" in caplog.text
    await bench.repair.look()
    assert bench.done == ["shrink", "grow"]


async def test_what_was_settled_meanwhile_needs_no_repair(bench: Bench) -> None:
    await bench.repair.look()
    bench.driver.is_damaged = False
    await bench.repair.look()
    assert bench.done == []


@pytest.mark.parametrize("fault", [Unavailable("no majority"), MembershipError("no"), "stuck"])
async def test_a_replica_that_has_left_comes_back_later_if_it_cannot_now(
    bench: Bench, fault: Exception | str
) -> None:
    """Otherwise the queue would be a member short until somebody notices."""
    await bench.repair.look()
    bench.answers = ["", fault]
    await bench.repair.look()
    assert bench.done == ["shrink", "grow"]
    await bench.repair.look()
    assert bench.done == ["shrink", "grow", "grow"]


async def test_a_group_that_cannot_do_without_it_is_tried_again_and_told_of_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.answers = ["the other members would have no majority"] * 2
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await bench.repair.look()
    assert bench.done == ["shrink", "shrink"]
    assert caplog.text.count("cannot be made anew yet: the other members would have no maj") == 1


async def test_a_queue_that_is_deleted_meanwhile_is_let_be(bench: Bench) -> None:
    await bench.repair.look()
    bench.queue = None
    await bench.repair.look()
    await bench.repair.look()
    assert bench.done == []
