"""A member that leads many queues tells of them in slices: clients have their turn in between."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from brokerd.cluster.groups.group_clock import Moved
from brokerd.config import TelemetryConfig
from brokerd.core.alarms import AlarmSet
from brokerd.server.grpc.rpc_auth import Callers
from brokerd.server.loop.chunks import CHUNK
from brokerd.server.observe import telemetry_hooks
from brokerd.server.observe.telemetry_hooks import Sources, Telemetry
from brokerd.server.queues.ends import QueueEnd
from brokerd.telemetry.counters import Counters
from brokerd.telemetry.segments import SegmentWriter
from tests.telemetry.fleet import Queue

COUNT = 2 * CHUNK + 1


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


class Ends:
    """What has ended, and how many more."""

    def __init__(self) -> None:
        self.all: tuple[list[Any], int] = [], 0
        self.is_wanted = False

    def take(self) -> tuple[list[Any], int]:
        found, self.all = self.all, ([], 0)
        return found


class Queues:
    """COUNT queues, all led here."""

    def __init__(self) -> None:
        self.all = {uid: Queue(uid, f"q{uid}") for uid in range(COUNT)}
        self.led = dict.fromkeys(self.all, 1)
        #: Those that were looked at.
        self.asked: list[int] = []
        self.ends = Ends()

    @property
    def records(self) -> dict[int, Queue]:
        return self.all

    def led_queues(self, uids: Sequence[int]) -> list[tuple[Queue, Machine]]:
        queues = [self.all[uid] for uid in uids if uid in self.led]
        self.asked += [queue.uid for queue in queues]
        return [(queue, Machine(queue)) for queue in queues]


class Host:
    """Groups of which nothing but what `moved` is told runs."""

    def __init__(self) -> None:
        self.moved = Moved(())

    def status_of(self, uid: int) -> Status:
        return Status()

    def watch(self) -> Moved:
        return self.moved


class Breakdown:
    """Adds up for as long as a test likes."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_end.set()

    async def take(self) -> dict[str, int]:
        self.begun.set()
        await self.may_end.wait()
        return {"code": 3, "other": 2}


class Stalls:
    """The disk has not answered for so long."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def total_s(self) -> float:
        return self.seconds


class Monitor:
    """Memory and disk are as they are."""

    memory_used, memory_total, memory_limit = 5, 10, 4
    disk_free, disk_limit = 7, 1

    def __init__(self) -> None:
        self.breakdown = Breakdown()
        self.stalls = Stalls()


class Runtime:
    """Has not started, and has no links."""

    def __init__(self, monitor: Monitor | None = None) -> None:
        self.alarms = AlarmSet()
        self.monitor = monitor

    def link_rows(self) -> list[dict[str, Any]]:
        return []


class Topology:
    """Nothing is declared, or these rows."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self._rows = list(rows)

    async def rows(self, since_us: int, now_us: int) -> list[dict[str, Any]]:
        return self._rows


class Peers:
    """A lone member."""

    async def run(self, interval_s: float) -> None:
        pass

    def __init__(self) -> None:
        self.skew = 0

    async def look(self) -> None:
        pass

    def skew_ms(self) -> int:
        return self.skew

    def standing(self) -> tuple[list[str], list[str]]:
        return [], []

    def switched_off(self) -> list[str]:
        return []

    def addresses(self) -> dict[str, str]:
        return {"n": "host:1"}


def telemetry_of(
    queues: Queues,
    data_dir: Path,
    interval_ms: int = 60_000,
    counters: Counters | None = None,
    monitor: Monitor | None = None,
    topology: Topology | None = None,
    host: Host | None = None,
    peers: Peers | None = None,
) -> Telemetry:
    """Return the telemetry of a member that leads these queues."""
    config: Any = Config(data_dir, TelemetryConfig(interval_ms=interval_ms))
    parts: list[Any] = [counters or Counters(lambda: 1), queues, host or Host(), []]
    parts.append(Runtime(monitor))
    parts += [topology or Topology(), peers or Peers()]
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
        # Led elsewhere by now: nothing is asked of it.
        queues.led.pop(COUNT - 1, None)
    assert all(after - before <= CHUNK for before, after in itertools.pairwise([0, *seen]))
    assert seen[0] < COUNT - CHUNK, "others had their turn before all were read"
    assert set(told) == {f"q{uid}" for uid in range(COUNT - 1)}


async def test_queues_that_stand_still_are_not_looked_at_again(tmp_path: Path, told: Told) -> None:
    queues, host = Queues(), Host()
    telemetry = telemetry_of(queues, tmp_path, host=host)
    await telemetry.collect()
    assert len(told) == len(queues.asked) == COUNT
    queues.asked.clear()
    told.clear()
    host.moved.note(3)
    queues.all[3].counters["enq"] = 9
    await telemetry.collect()
    assert (queues.asked, told) == ([3], ["q3"])


async def test_a_queue_that_is_led_elsewhere_meanwhile_is_told_anew(
    tmp_path: Path, told: Told
) -> None:
    queues, host = Queues(), Host()
    telemetry = telemetry_of(queues, tmp_path, host=host)
    await telemetry.collect()
    told.clear()
    for change in (lambda: queues.led.pop(3), lambda: queues.led.setdefault(3, 1)):
        change()
        host.moved.note(3)
        await telemetry.collect()
    assert told == ["q3"]


async def test_intervals_meet_whatever_is_done_to_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clocks of the others, where they are known; else none ends before it begins."""
    rows: list[dict[str, Any]] = []

    def emit(writer: SegmentWriter, _: str, more: Sequence[dict[str, Any]]) -> None:
        rows.extend({**row, "skew_ms": writer.skew_ms} for row in more if row["k"] == "node")

    monkeypatch.setattr(SegmentWriter, "emit", emit)
    wall_us, steady_us = [10**15], [0]
    monkeypatch.setattr(telemetry_hooks, "_now_us", lambda: wall_us[0])
    monkeypatch.setattr(telemetry_hooks, "_steady_us", lambda: steady_us[0])
    peers = Peers()
    telemetry = telemetry_of(Queues(), tmp_path, peers=peers)

    async def after(set_s: int, skew_s: int) -> tuple[int, int]:
        wall_us[0] += (10 + set_s) * 1_000_000
        steady_us[0] += 10_000_000
        peers.skew = skew_s * 1000
        await telemetry.collect()
        row = rows[-1]
        return row["t0"] - row["skew_ms"] * 1000, row["t1"] - row["skew_ms"] * 1000

    found = [await after(0, 0), await after(300, 300), await after(0, 300), await after(-300, 0)]
    begin_us = 10**15
    assert found == [(begin_us + n * 10_000_000, begin_us + (n + 1) * 10_000_000) for n in range(4)]
    begin_us, end_us = await after(-3600, 0)
    assert end_us - begin_us == 10_000_000


async def test_queues_that_are_gone_have_a_last_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(SegmentWriter, "emit", lambda _writer, _stream, more: rows.extend(more))
    queues, host = Queues(), Host()
    telemetry = telemetry_of(queues, tmp_path, host=host)
    queue = Queue(9, "q9")
    overview = {**Machine(queue).overview(), "ready": 7}
    end = QueueEnd(queue, overview, Machine(queue).options, host.status_of(9), True, 7)  # type: ignore[arg-type]
    queues.ends.all = [end], 3
    await telemetry.collect()
    (last,) = (row for row in rows if "expired_queue" in row)
    assert (last["queue"], last["expired_queue"], last["purged"], last["ready"]) == ("q9", 7, 7, 0)
    (gap,) = (row for row in rows if row["k"] == "gap")
    assert (gap["cause"], gap["rows"]) == ("ends_max", 3)


async def test_an_end_in_the_middle_of_it_loses_no_row(tmp_path: Path, told: Told) -> None:
    telemetry = telemetry_of(Queues(), tmp_path, interval_ms=100)
    telemetry.start()
    await told.begun.wait()
    assert len(told) < COUNT
    await telemetry.close()
    assert sorted(told) == sorted(f"q{uid}" for uid in range(COUNT))


async def test_a_members_row_says_where_its_memory_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end while that is added up takes nothing from the counters: the last rows have it."""
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(SegmentWriter, "emit", lambda _writer, _stream, more: rows.extend(more))
    counters, monitor = Counters(lambda: 1), Monitor()
    monitor.breakdown.may_end.clear()
    telemetry = telemetry_of(Queues(), tmp_path, 100, counters, monitor)
    counters.confirmed("/", "u", 3, 0)
    telemetry.start()
    await monitor.breakdown.begun.wait()
    asyncio.get_running_loop().call_later(0.05, monitor.breakdown.may_end.set)
    await telemetry.close()
    [row] = [row for row in rows if row["k"] == "node"]
    assert (row["rss"], row["mem_parts"]) == (5, {"code": 3, "other": 2})
    [principal] = [row for row in rows if row["k"] == "principal"]
    assert principal["confirmed"] == 3


async def test_what_is_declared_is_told_beside_the_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(SegmentWriter, "emit", lambda _writer, _stream, more: rows.extend(more))
    row = {"k": "policy", "policy": "p"}
    await telemetry_of(Queues(), tmp_path, topology=Topology(row)).collect()
    assert row in rows


async def test_a_members_row_says_how_long_its_disk_did_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(SegmentWriter, "emit", lambda _writer, _stream, more: rows.extend(more))
    monitor = Monitor()
    telemetry = telemetry_of(Queues(), tmp_path, monitor=monitor)
    for monitor.stalls.seconds in (0.0, 2.5, 2.5, 6.0):
        await telemetry.collect()
    told = [row["stalled_ms"] for row in rows if row["k"] == "node"]
    assert told == [0, 2500, 0, 3500]
