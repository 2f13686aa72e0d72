"""Between the broker and the telemetry room: when to look, at what, and where it goes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from brokerd import __version__
from brokerd.cluster.groups.group_clock import Moved
from brokerd.cluster.groups.host_events import GroupStatus
from brokerd.config import BrokerConfig
from brokerd.core.alarms import AlarmSet
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.federation.link_rows import LinkRows
from brokerd.server.grpc import rpc_auth
from brokerd.server.loop.chunks import in_chunks
from brokerd.server.queues.ends import QueueEnds
from brokerd.server.queues.ports import Identity as MemberIdentity
from brokerd.telemetry.counters import Counters, QueueRows
from brokerd.telemetry.segments import Identity, SegmentWriter
from brokerd.telemetry.service import TelemetryService

log = logging.getLogger(__name__)


#: For the answers of the others: before the first row is written, and while a job waits.
LOOK_S = 1.0


class Groups(Protocol):
    """The replicas of this member."""

    def has_group(self, uid: int) -> bool:
        """Say whether there is one of a group."""
        ...

    def status_of(self, uid: int) -> GroupStatus:
        """Return the state of one that is here."""
        ...

    def watch(self) -> Moved:
        """Return what tells which of them have moved, from now on."""
        ...


class Queues(Protocol):
    """The queues, and which of them are led here."""

    @property
    def led(self) -> Collection[int]:
        """Return those whose leader is here."""
        ...

    @property
    def ends(self) -> QueueEnds:
        """Return what those had counted that are gone."""
        ...

    @property
    def records(self) -> Mapping[int, Queue]:
        """Return all of them."""
        ...

    def led_queues(self, uids: Sequence[int]) -> list[tuple[Queue, QueueMachine]]:
        """Return those of these that are led here, with their state."""
        ...


class Breakdown(Protocol):
    """Where the memory goes."""

    async def take(self) -> dict[str, int]:
        """Return bytes by part, which add up to what the process uses."""
        ...


class Stalls(Protocol):
    """When the disk did not answer (members/disk_watch.py)."""

    def total_s(self) -> float:
        """Return how long all stalls have lasted, the one under way included."""
        ...


class Memory(Protocol):
    """Memory and disk, as last sampled."""

    memory_used: int
    memory_total: int | None
    disk_free: int

    @property
    def memory_limit(self) -> int:
        """Return above how many bytes of memory publishers are blocked, 0 for never."""
        ...

    @property
    def disk_limit(self) -> int:
        """Return below how many free bytes publishers are blocked."""
        ...

    @property
    def breakdown(self) -> Breakdown:
        """Return what tells where the memory goes."""
        ...

    @property
    def stalls(self) -> Stalls:
        """Return when the disk did not answer."""
        ...


class Runtime(Protocol):
    """The running member."""

    alarms: AlarmSet

    @property
    def monitor(self) -> Memory | None:
        """Return who watches memory and disk, None before the member has started."""
        ...

    def link_rows(self) -> list[dict[str, Any]]:
        """Return the federation links of this member."""
        ...


class Topology(Protocol):
    """What is declared."""

    async def rows(self, since_us: int, now_us: int) -> list[dict[str, Any]]:
        """Return the rows of an interval; none most times, and where others tell of it."""
        ...


class Peers(Protocol):
    """The other members (telemetry_peers.py)."""

    async def run(self, interval_s: float) -> None:
        """Ask them from time to time, until it is cancelled."""
        ...

    def standing(self) -> tuple[list[str], list[str]]:
        """Return the names of those that are up, and of those that are not."""
        ...

    async def look(self) -> None:
        """Ask them once."""
        ...

    def skew_ms(self) -> int:
        """Return by how much the clock here is ahead of theirs, 0 where that is little."""
        ...

    def switched_off(self) -> list[str]:
        """Return the names of those that are up and have telemetry switched off."""
        ...

    def addresses(self) -> dict[str, str]:
        """Return where each member's gRPC is reached, "" where that is not known."""
        ...


@dataclass(slots=True, frozen=True)
class Sources:
    """Where the rows come from."""

    counters: Counters
    queues: Queues
    groups: Groups
    connections: Sized
    runtime: Runtime
    topology: Topology
    peers: Peers


class Telemetry:
    """Takes rows at each interval and hands them to the segment writer (telemetry.md §6).

    A queue that stands still is not looked at.  In one piece: all that it keeps is what the last
    interval said.
    """

    def __init__(
        self,
        config: BrokerConfig,
        identity: MemberIdentity,
        callers: rpc_auth.Callers,
        sources: Sources,
    ) -> None:
        self._config = config.telemetry
        self._callers = callers
        self._sources = sources
        self._node = identity.node
        self._writer = SegmentWriter(
            config.data_dir / "telemetry",
            Identity(
                cluster=config.cluster.name,
                node=identity.node,
                boot=f"{identity.incarnation:032x}",
                broker_version=__version__,
            ),
            config.telemetry,
        )
        self._queues = QueueRows()
        self._watch = sources.groups.watch()
        #: Queues that are to be looked at since they moved.
        self._moved: set[int] = set()
        self._links = LinkRows()
        self._stalled_ms = 0
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False
        self._collecting = asyncio.Lock()
        #: End of the last interval, by the middle of the members' clocks.
        self._since_us = _now_us()
        self._since_steady_us = _steady_us()
        self.service = TelemetryService(
            self._writer, config.data_dir / "results", self._authorise, self.collect, self._members,
            _now_us,
        )  # fmt: skip

    def start(self) -> None:
        """Begin, unless telemetry is switched off."""
        if self._config.enabled:
            # Whatever exists now may have been counted before: its past is not this boot's.
            self._queues.known(self._sources.queues.records)
            self._sources.queues.ends.is_wanted = True
            self._since_us, self._since_steady_us = _now_us(), _steady_us()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _authorise(
        self, context: grpc.aio.ServicerContext[Any, Any], is_change: bool
    ) -> rpc_auth.Caller:
        needed = rpc_auth.WRITERS if is_change else rpc_auth.READERS
        return await self._callers.authenticate(context, needed)

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._set_skew()
            self._writer.start()

    def _set_skew(self) -> int:
        """Have rows say by how much their times are wrong; return it in microseconds."""
        skew_ms = self._sources.peers.skew_ms()
        if bool(skew_ms) != bool(self._writer.skew_ms):
            log.warning(
                "clock of this member ahead_of_the_others_s=%.1f; rows of telemetry say so",
                skew_ms / 1000,
            )
        self._writer.skew_ms = skew_ms
        return skew_ms * 1000

    def _interval(self) -> tuple[int, int]:
        """Return begin and end of the interval that ends now, by the clock here: without a hole
        and without an overlap, whatever was done to it.
        """
        now_us, steady_us = _now_us(), _steady_us()
        skew_us = self._set_skew()
        since_us = self._since_us + skew_us
        if since_us > now_us:
            # It was put back, and no other member reports by how much.
            since_us = now_us - (steady_us - self._since_steady_us)
        self._since_us, self._since_steady_us = now_us - skew_us, steady_us
        return since_us, now_us

    def _members(self) -> list[tuple[str, str, bool]]:
        addresses = self._sources.peers.addresses()
        return [(name, address, name == self._node) for name, address in addresses.items()]

    async def _run(self) -> None:
        interval_s = self._config.interval_ms / 1000
        # The first rows are to tell of a clock that is wrong.
        await self._look()
        self._begin()
        await asyncio.gather(self._sources.peers.run(interval_s), self._collect_each(interval_s))

    async def _look(self) -> None:
        """Ask the other members once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._sources.peers.look()

    async def _collect_each(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self.collect()

    async def collect(self) -> None:
        """Write the rows of the interval that ends now.

        What a slice of queues says is written before clients have their turn: an end in between
        loses nothing, since a queue's next row counts from its last one.  A job asks those too
        whose telemetry is switched off.
        """
        if not self._config.enabled:
            # The job finds the others by this member too.
            await self._look()
            return
        async with self._collecting:
            sources = self._sources
            monitor = sources.runtime.monitor
            # Before anything is taken: an end while it adds up loses nothing.
            parts = {} if monitor is None else await monitor.breakdown.take()
            since_us, now_us = self._interval()
            rows: list[dict[str, Any]] = sources.counters.take(since_us, now_us)
            rows.append(self._node_row(since_us, now_us, parts))
            rows += self._links.rows(sources.runtime.link_rows(), since_us, now_us)
            self._writer.emit("sample", rows)
            events = sources.counters.take_events(since_us, now_us)
            if events:
                self._writer.emit("event", events)
            self._emit_ends(since_us, now_us)
            moved, is_all = self._watch.take()
            self._moved.update(sources.queues.led if is_all else moved)
            async for uids in in_chunks(list(self._moved.union(self._queues.due(now_us)))):
                self._writer.emit("sample", self._queue_rows(uids, since_us, now_us))
                self._moved.difference_update(uids)
            self._queues.forget_deleted(sources.queues.records)
            self._writer.emit("sample", await sources.topology.rows(since_us, now_us))

    def _emit_ends(self, since_us: int, now_us: int) -> None:
        """Write the last rows of queues that are gone."""
        ends, lost = self._sources.queues.ends.take()
        rows = [
            self._queues.last_row(
                queue=end.queue,
                overview=end.overview,
                options=end.options,
                status=end.status,
                since_us=since_us,
                now_us=now_us,
                is_expired=end.is_expired,
                messages=end.messages,
            )
            for end in ends
        ]
        self._writer.emit("sample", rows)
        if lost:
            times = {"t0": since_us, "t1": now_us}
            self._writer.emit("event", [{"k": "gap", **times, "cause": "ends_max", "rows": lost}])

    def _queue_rows(self, uids: Sequence[int], since_us: int, now_us: int) -> list[dict[str, Any]]:
        groups, queues = self._sources.groups, self._sources.queues
        for uid in uids:
            if uid not in queues.led:
                self._queues.forget(uid)
        return [
            row
            for queue, machine in queues.led_queues(uids)
            for row in self._queues.rows(
                queue,
                machine.overview(),
                machine.options,
                groups.status_of(queue.uid),
                since_us,
                now_us,
            )
        ]

    def _node_row(self, since_us: int, now_us: int, parts: Mapping[str, int]) -> dict[str, Any]:
        """Return the member's own row; one per interval, so its absence means loss."""
        sources = self._sources
        monitor = sources.runtime.monitor
        up, down = sources.peers.standing()
        row: dict[str, Any] = {
            "k": "node",
            "t0": since_us,
            "t1": now_us,
            # A job that has no row of one that is up knows that it has not seen all.
            "peers": up,
            "peers_down": down or None,
            "peers_off": sources.peers.switched_off() or None,
            "conns": len(sources.connections),
            "leaders": len(sources.queues.led),
        }
        if monitor is not None:
            stalled_ms = int(monitor.stalls.total_s() * 1000)
            row |= {
                "stalled_ms": stalled_ms - self._stalled_ms,
                "rss": monitor.memory_used,
                "mem_parts": parts,
                "mem_limit": monitor.memory_total,
                "wm_bytes": monitor.memory_limit,
                "wm_state": int("memory" in sources.runtime.alarms.on(self._node)),
                "disk_free": monitor.disk_free,
                "disk_limit": monitor.disk_limit,
            }
            self._stalled_ms = stalled_ms
        return row

    async def close(self) -> None:
        """Count what is left, seal everything."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._begin()
            await self.collect()
            await asyncio.to_thread(self._writer.close)


def _now_us() -> int:
    return time.time_ns() // 1000


def _steady_us() -> int:
    return time.monotonic_ns() // 1000
