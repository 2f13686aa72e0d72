"""A member that leads many queues tells of them in slices: clients have their turn in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from brokerd.config import TelemetryConfig
from brokerd.server.grpc.rpc_auth import Callers
from brokerd.server.slices import SLICE
from brokerd.server.telemetry_hooks import Sources, Telemetry
from brokerd.telemetry.counters import Counters
from brokerd.telemetry.segments import SegmentWriter
from tests.telemetry.fleet import Queue

COUNT = 2 * SLICE + 1


@dataclass
class Cluster:
    name: str = "c"


@dataclass
class Config:
    data_dir: Path
    telemetry: TelemetryConfig
    cluster: Cluster = field(default_factory=Cluster)


class Identity:
    node, incarnation = "n", 1


@dataclass
class Status:
    term: int = 1
    lag: dict[str, int] = field(default_factory=dict)


class Machine:
    """A queue's state as rows are made of it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.options = queue.options()

    def overview(self) -> dict[str, Any]:
        return self._queue.overview(1)


class Queues:
    """COUNT queues, all led here."""

    def __init__(self) -> None:
        self.all = {uid: Queue(uid, f"q{uid}") for uid in range(COUNT)}
        self.led = dict.fromkeys(self.all, 1)

    def queue_uids(self) -> list[int]:
        return list(self.all)

    def led_queues(self, uids: Sequence[int]) -> list[tuple[Queue, Machine]]:
        queues = [self.all[uid] for uid in uids if uid in self.led]
        return [(queue, Machine(queue)) for queue in queues]


class Host:
    def status_of(self, uid: int) -> Status:
        return Status()


class Runtime:
    """Has not started, and has no links."""

    monitor = None

    def link_rows(self) -> list[dict[str, Any]]:
        return []


def telemetry_of(queues: Queues, data_dir: Path, interval_ms: int = 60_000) -> Telemetry:
    """Return the telemetry of a member that leads these queues."""
    config: Any = Config(data_dir, TelemetryConfig(interval_ms=interval_ms))
    parts: list[Any] = [Counters(lambda: 1), queues, Host(), [], Runtime()]
    return Telemetry(config, Identity(), cast(Callers, None), Sources(*parts))


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
    queues = Queues()
    telemetry = telemetry_of(queues, tmp_path)
    collecting = asyncio.create_task(telemetry.collect())
    seen = []
    while not collecting.done():
        await asyncio.sleep(0)
        seen.append(len(told))
        if len(told) == SLICE:
            # Led elsewhere by now: nothing is asked of it.
            del queues.led[COUNT - 1]
    assert seen[:3] == [SLICE, 2 * SLICE, 2 * SLICE]
    assert set(told) == {f"q{uid}" for uid in range(COUNT - 1)}


async def test_an_end_in_the_middle_of_it_loses_no_row(tmp_path: Path, told: Told) -> None:
    telemetry = telemetry_of(Queues(), tmp_path, interval_ms=100)
    telemetry.start()
    await told.begun.wait()
    assert len(told) < COUNT
    await telemetry.close()
    assert sorted(told) == sorted(f"q{uid}" for uid in range(COUNT))
