"""HTTP on port 15692: health for probes, metrics for Prometheus, the telemetry report.

startup: joined or bootstrapped.  ready: listeners are up, this member has caught up, and its log
does not wait for descriptors; it never depends on the quorum of others, else a full restart could
not start.  live: the event loop turns.
http_server.py listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web


@dataclass(slots=True)
class HealthState:
    """Set by app.py as the start goes on."""

    started: bool = False
    ready: bool = False
    #: Why not ready, for whoever looks at a probe that fails.
    reason: str = "starting"
    #: What keeps a member that is ready from working at the moment; "": nothing.
    hindrance: Callable[[], str] = str


def make_app(
    state: HealthState, metrics: Callable[[], Awaitable[bytes]], result_dir: Path
) -> web.Application:
    """Return the application; `metrics` renders the Prometheus text."""

    shared = _Shared(metrics)

    async def startup(_: web.Request) -> web.Response:
        return _verdict(state.started, state.reason)

    async def ready(_: web.Request) -> web.Response:
        hindrance = state.hindrance()
        return _verdict(state.ready and not hindrance, state.reason or hindrance)

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def prometheus(_: web.Request) -> web.Response:
        return web.Response(
            body=await shared.get(),
            content_type="text/plain",
            charset="utf-8",
            headers={"X-Version": "0.0.4"},
        )

    async def report(_: web.Request) -> web.StreamResponse:
        file = result_dir / "report.html"
        if not file.is_file():
            return web.Response(status=404, text="no telemetry job has handed in a report yet\n")
        return web.FileResponse(file)

    app = web.Application(client_max_size=1024)
    app.router.add_get("/health/startup", startup)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/health/live", live)
    app.router.add_get("/metrics", prometheus)
    app.router.add_get("/telemetry/report", report)
    return app


def _verdict(good: bool, reason: str) -> web.Response:
    if good:
        return web.Response(text="ok\n")
    return web.Response(status=503, text=f"{reason}\n")


class _Shared:
    """Scrapes at the same time share one rendering: only its first caller costs anything."""

    def __init__(self, render: Callable[[], Awaitable[bytes]]) -> None:
        self._render = render
        self._running: asyncio.Task[bytes] | None = None

    async def get(self) -> bytes:
        """Return the text as of now, or of a rendering that has begun already."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._once())
        return await asyncio.shield(self._running)

    async def _once(self) -> bytes:
        try:
            return await self._render()
        finally:
            self._running = None
