"""Between the broker and the telemetry room: when to look, at what, and where it goes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import grpc

from brokerd import __version__
from brokerd.federation.link_rows import LinkRows
from brokerd.server.grpc import rpc_auth
from brokerd.server.slices import in_slices
from brokerd.telemetry.counters import QueueRows
from brokerd.telemetry.segments import Identity, SegmentWriter
from brokerd.telemetry.service import TelemetryService

if TYPE_CHECKING:
    from brokerd.server.broker import Broker


class Telemetry:
    """Takes rows at each interval and hands them to the segment writer (telemetry.md §6)."""

    def __init__(self, broker: Broker, callers: rpc_auth.Callers) -> None:
        self._broker = broker
        self._callers = callers
        config = broker.config
        cluster = config.cluster.name
        self._writer = SegmentWriter(
            config.data_dir / "telemetry",
            Identity(
                cluster=cluster,
                node=broker.node,
                boot=f"{broker.incarnation:032x}",
                broker_version=__version__,
            ),
            config.telemetry,
        )
        self._queues = QueueRows()
        self._links = LinkRows()
        self._task: asyncio.Task[None] | None = None
        self._collecting = asyncio.Lock()
        self._since_us = _now_us()
        self.service = TelemetryService(
            self._writer, config.data_dir / "results", self._authorise, self.collect
        )

    def start(self) -> None:
        """Begin, unless telemetry is switched off."""
        if self._broker.config.telemetry.enabled:
            # Whatever exists now may have been counted before: its past is not this boot's.
            self._queues.known(self._broker.queues.queue_uids())
            self._since_us = _now_us()
            self._writer.start()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _authorise(
        self, context: grpc.aio.ServicerContext[Any, Any], is_change: bool
    ) -> rpc_auth.Caller:
        needed = rpc_auth.WRITERS if is_change else rpc_auth.READERS
        return await self._callers.authenticate(context, needed)

    async def _run(self) -> None:
        interval_s = self._broker.config.telemetry.interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s)
            await self.collect()

    async def collect(self) -> None:
        """Write the rows of the interval that ends now.

        What a slice of queues says is written before clients have their turn: an end in between
        loses nothing, since a queue's next row counts from its last one.
        """
        async with self._collecting:
            since_us, now_us = self._since_us, _now_us()
            self._since_us = now_us
            broker = self._broker
            rows: list[dict[str, Any]] = broker.counters.take(since_us, now_us)
            rows.append(self._node_row(since_us, now_us))
            rows += self._links.rows(broker.link_rows(), since_us, now_us)
            self._writer.emit("sample", rows)
            events = broker.counters.take_events(since_us, now_us)
            if events:
                self._writer.emit("event", events)
            led = list(broker.queues.led)
            self._queues.forget(led)
            async for uids in in_slices(led):
                self._writer.emit("sample", self._queue_rows(uids, since_us, now_us))

    def _queue_rows(self, uids: Sequence[int], since_us: int, now_us: int) -> list[dict[str, Any]]:
        host = self._broker.host
        return [
            row
            for queue, machine in self._broker.queues.led_queues(uids)
            for row in self._queues.rows(
                queue,
                machine.overview(),
                machine.options,
                host.status_of(queue.uid),
                since_us,
                now_us,
            )
        ]

    def _node_row(self, since_us: int, now_us: int) -> dict[str, Any]:
        """Return the member's own row; one per interval, so its absence means loss."""
        broker = self._broker
        monitor = broker.monitor
        row: dict[str, Any] = {
            "k": "node",
            "t0": since_us,
            "t1": now_us,
            "conns": len(broker.connections),
            "leaders": len(broker.queues.led),
        }
        if monitor is not None:
            row |= {
                "rss": monitor.memory_used,
                "mem_limit": monitor.memory_total,
                "wm_bytes": monitor.memory_limit,
                "wm_state": int("memory" in broker.alarms.on(broker.node)),
                "disk_free": monitor.disk_free,
                "disk_limit": monitor.disk_limit,
            }
        return row

    async def close(self) -> None:
        """Count what is left, seal everything."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            await self.collect()
            await asyncio.to_thread(self._writer.close)


def _now_us() -> int:
    return time.time_ns() // 1000
