"""HTTP on port 15692: health for probes, metrics for Prometheus, the telemetry report.

startup: joined or bootstrapped.  ready: listeners are up, this member has caught up, and its log
waits neither for descriptors nor for a disk that does not answer; it never depends on the quorum of
others, else a full restart could not start.  live: the event loop turns.
http_server.py listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from aiohttp import web

from brokerd.server.observe import metrics_detailed

K = TypeVar("K")

#: Bytes of all answers of /metrics/detailed that clients have not taken yet; beyond them a request
#: gets a 503.  10,000 queues make 3 to 9 MB.
ANSWERS_BYTES_MAX = 64 * 1024 * 1024
CHUNK_BYTES = 64 * 1024


@dataclass(slots=True)
class HealthState:
    """Set by app.py as the start goes on."""

    started: bool = False
    ready: bool = False
    #: Why not ready, for the operator who looks at a probe that fails.
    reason: str = "starting"
    #: What keeps a member that is ready from working at the moment; "": nothing.
    hindrance: Callable[[], str] = str


@dataclass(slots=True, frozen=True)
class Pages:
    """What renders the Prometheus text, of /metrics and of /metrics/detailed."""

    metrics: Callable[[], Awaitable[bytes]]
    detailed: Callable[[metrics_detailed.Asked], Awaitable[bytes]]


def make_app(state: HealthState, pages: Pages, result_dir: Path) -> web.Application:
    """Return the application."""

    shared: _Shared[None] = _Shared(lambda _: pages.metrics())
    detailed = _Detailed(pages.detailed)

    async def startup(_: web.Request) -> web.Response:
        return _verdict(state.started, state.reason)

    async def ready(_: web.Request) -> web.Response:
        hindrance = state.hindrance()
        return _verdict(state.ready and not hindrance, state.reason or hindrance)

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def prometheus(_: web.Request) -> web.Response:
        return web.Response(body=await shared.get(None), headers=_HEADERS)

    async def report(_: web.Request) -> web.StreamResponse:
        file = result_dir / "report.html"
        if not file.is_file():
            return web.Response(status=404, text="no telemetry job has handed in a report yet\n")
        return web.FileResponse(file)

    async def telemetry_metrics(_: web.Request) -> web.StreamResponse:
        file = result_dir / "metrics.prom"
        if not file.is_file():
            return web.Response(status=404, text="no telemetry job has handed in figures yet\n")
        return web.FileResponse(file, headers=_HEADERS)

    app = web.Application(client_max_size=1024)
    app.router.add_get("/health/startup", startup)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/health/live", live)
    app.router.add_get("/metrics", prometheus)
    app.router.add_get("/metrics/detailed", detailed.answer)
    app.router.add_get("/metrics/per-object", detailed.answer_per_object)
    app.router.add_get("/telemetry/report", report)
    app.router.add_get("/telemetry/metrics", telemetry_metrics)
    return app


def _verdict(good: bool, reason: str) -> web.Response:
    if good:
        return web.Response(text="ok\n")
    return web.Response(status=503, text=f"{reason}\n")


#: How clients know the text format.
_HEADERS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8", "X-Version": "0.0.4"}


class _Detailed:
    """/metrics/detailed and /metrics/per-object, whose answers may be large.

    State: bytes of those under way.
    """

    def __init__(self, render: Callable[[metrics_detailed.Asked], Awaitable[bytes]]) -> None:
        self._shared = _Shared(render)
        self._held_bytes = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Render what the query names, and write it as the client takes it."""
        query = request.query
        wanted = metrics_detailed.asked(query.getall("family", []), query.getall("vhost", []))
        if wanted is None:
            text = f"more than {metrics_detailed.ASKED_MAX} families or vhosts\n"
            return web.Response(status=400, text=text)
        return await self._answer(request, wanted)

    async def answer_per_object(self, request: web.Request) -> web.StreamResponse:
        """Render all of them; a query says nothing."""
        return await self._answer(request, metrics_detailed.PER_OBJECT)

    async def _answer(
        self, request: web.Request, wanted: metrics_detailed.Asked
    ) -> web.StreamResponse:
        if self._held_bytes > ANSWERS_BYTES_MAX:
            text = "too much is on its way to clients that do not take it\n"
            return web.Response(status=503, text=text)
        body = await self._shared.get(wanted)
        self._held_bytes += len(body)
        try:
            response = web.StreamResponse(headers=_HEADERS)
            response.content_length = len(body)
            await response.prepare(request)
            for begin in range(0, len(body), CHUNK_BYTES):
                await response.write(body[begin : begin + CHUNK_BYTES])
            await response.write_eof()
        except ConnectionError:
            # A client that leaves in the middle of it needs no more.
            pass
        finally:
            self._held_bytes -= len(body)
        return response


class _Shared(Generic[K]):
    """Requests for the same at the same time share one rendering: only the first costs anything.

    One is made at a time; how many wait is bounded by the listener's connections.
    """

    def __init__(self, render: Callable[[K], Awaitable[bytes]]) -> None:
        self._render = render
        self._running: dict[K, asyncio.Task[bytes]] = {}
        self._one = asyncio.Lock()

    async def get(self, key: K) -> bytes:
        """Return the text as of now, or of a rendering that has begun already."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.get_running_loop().create_task(self._once(key))
        return await asyncio.shield(task)

    async def _once(self, key: K) -> bytes:
        try:
            async with self._one:
                return await self._render(key)
        finally:
            del self._running[key]
