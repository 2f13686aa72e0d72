"""A member that leads many queues tells of them in slices: clients have their turn in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.config import TelemetryConfig
from brokerd.server.slices import SLICE
from brokerd.server.telemetry_hooks import Telemetry
from brokerd.telemetry.counters import Counters
from brokerd.telemetry.segments import SegmentWriter
from tests.telemetry.fleet import Queue

COUNT = 2 * SLICE + 1


class Fleet:
    """What Telemetry asks of a broker that leads COUNT queues."""

    def __init__(self, data_dir: Path) -> None:
        self.config = SimpleNamespace(
            data_dir=data_dir,
            cluster=SimpleNamespace(name="c"),
            telemetry=TelemetryConfig(interval_ms=60_000),
        )
        self.node, self.incarnation, self.monitor = "n", 1, None
        self.counters = Counters(lambda: 1)
        self.connections: list[None] = []
        self.queues = {uid: Queue(uid, f"q{uid}") for uid in range(COUNT)}
        self.leaders = SimpleNamespace(led=dict.fromkeys(self.queues))
        self.host = SimpleNamespace(
            has_group=self.queues.__contains__,
            status_of=lambda uid: SimpleNamespace(term=1, lag={}),
        )
        self.queue_uids = self.queues.keys

    def link_rows(self) -> list[dict[str, Any]]:
        return []

    def led_queues(self, uids: Sequence[int]) -> list[tuple[Queue, Any]]:
        queues = [self.queues[uid] for uid in uids if uid in self.leaders.led]
        return [(queue, _machine(queue)) for queue in queues]


def _machine(queue: Queue) -> Any:
    return SimpleNamespace(overview=lambda: queue.overview(1), options=queue.options())


class Told(list[str]):
    """Names of the queues that rows were written of."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    def emit(self, writer: SegmentWriter, stream: str, rows: Sequence[dict[str, Any]]) -> None:
        self.extend(row["queue"] for row in rows if row["k"] == "queue")
        if self:
            self.begun.set()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    monkeypatch.setattr(SegmentWriter, "emit", lambda *each: told.emit(*each))
    return told


async def test_others_have_their_turn_between_slices_of_queues(tmp_path: Path, told: Told) -> None:
    fleet = Fleet(tmp_path)
    telemetry = Telemetry(fleet)  # type: ignore[arg-type]
    collecting = asyncio.create_task(telemetry.collect())
    seen = []
    while not collecting.done():
        await asyncio.sleep(0)
        seen.append(len(told))
        if len(told) == SLICE:
            # Led elsewhere by now: nothing is asked of it.
            del fleet.leaders.led[COUNT - 1]
    assert seen[:3] == [SLICE, 2 * SLICE, 2 * SLICE]
    assert set(told) == {f"q{uid}" for uid in range(COUNT - 1)}


async def test_an_end_in_the_middle_of_it_loses_no_row(tmp_path: Path, told: Told) -> None:
    fleet = Fleet(tmp_path)
    fleet.config.telemetry = TelemetryConfig(interval_ms=100)
    telemetry = Telemetry(fleet)  # type: ignore[arg-type]
    telemetry.start()
    await told.begun.wait()
    assert len(told) < COUNT
    await telemetry.close()
    assert sorted(told) == sorted(f"q{uid}" for uid in range(COUNT))
