"""The operator process: settings, health and metrics, Lease, engine and watches, in this order.

A standby that waits for the Lease is ready too: a rolling update must not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
import time
from typing import Any

from aiohttp import web

from brokerd_operator.engine.engine import Engine, EngineSettings
from brokerd_operator.engine.keys import Body
from brokerd_operator.settings import Settings
from brokerd_operator.sources.api import Api
from brokerd_operator.sources.kubernetes import KubernetesSource
from brokerd_operator.sources.kubernetes_clusters import KubernetesClusters
from brokerd_operator.sources.kubernetes_store import KubernetesStore
from brokerd_operator.sources.lease import Lease, LeaseLost

log = logging.getLogger(__name__)

#: An event loop that did not turn for so long is stuck: the liveness probe fails.
LOOP_LAG_MAX_S = 30.0
HEARTBEAT_S = 1.0


class Operator:
    """Owns everything that runs in the process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.api = Api()
        self.store = KubernetesStore(self.api, self._put, settings.namespaces)
        driver = KubernetesClusters(self.api, settings)
        self.engine = Engine(
            self.store,
            driver,
            EngineSettings(instance=settings.instance, workers=settings.workers),
        )
        self.source = KubernetesSource(self.api, self.engine, self.store, settings.namespaces)
        self.lease = Lease(
            self.api,
            settings.namespace,
            settings.lease_name,
            settings.identity,
            settings.lease_seconds,
        )
        self._turned = time.monotonic()

    def _put(self, body: Body) -> None:
        self.engine.put(body)

    async def run(self) -> int:
        """Run until a signal or the loss of the Lease; the exit status."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        runner = await self._serve_http()
        heartbeat = loop.create_task(self._heartbeat())
        try:
            return await self._lead(stop)
        finally:
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)
            await self.lease.release()
            await runner.cleanup()
            self.api.close()

    async def _lead(self, stop: asyncio.Event) -> int:
        loop = asyncio.get_running_loop()
        stopping = loop.create_task(stop.wait())
        acquiring = loop.create_task(self.lease.acquire())
        tasks: set[asyncio.Task[Any]] = {stopping, acquiring}
        watch_stop = asyncio.Event()
        status = 0
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                return 0
            work = [self.lease.keep(), self.source.sync(), self.engine.run()]
            work += [self.source.relist(), self._watch(watch_stop, stop)]
            running: set[asyncio.Task[Any]] = {loop.create_task(item) for item in work}
            tasks |= running
            while running and not stop.is_set():
                done, running = await asyncio.wait(
                    running | {stopping}, return_when=asyncio.FIRST_COMPLETED
                )
                running -= {stopping}
                status = _judge(done - {stopping}) or status
                if status:
                    break
            watch_stop.set()
            return status
        finally:
            watch_stop.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, watch_stop: asyncio.Event, stop: asyncio.Event) -> None:
        """kopf takes the signals for itself, so its end is the wish to end."""
        # Right after `helm install` the API server answers 429 for new kinds: that is waited for
        # once, by the listing, and not complained about by every watch.
        await self.engine.is_synced.wait()
        await self.source.watch(watch_stop)
        stop.set()

    async def _heartbeat(self) -> None:
        while True:
            self._turned = time.monotonic()
            await asyncio.sleep(HEARTBEAT_S)

    # ---- HTTP ---------------------------------------------------------------------------------

    async def _serve_http(self) -> web.AppRunner:
        app = web.Application(client_max_size=1024)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        site = web.TCPSite(runner, self.settings.http_bind or None, self.settings.http_port)
        await site.start()
        return runner

    async def _healthz(self, _: web.Request) -> web.Response:
        if time.monotonic() - self._turned > LOOP_LAG_MAX_S:
            return web.Response(status=503, text="the event loop is stuck\n")
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self.lease.is_held and not self.engine.is_synced.is_set():
            return web.Response(status=503, text="resources are not listed yet\n")
        return web.Response(text="ok\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self.engine.metrics.render(), content_type="text/plain", charset="utf-8"
        )


def _judge(done: set[asyncio.Task[Any]]) -> int:
    """An exit status when a task ended that must not end."""
    for task in done:
        error = task.exception()
        if isinstance(error, LeaseLost):
            log.error("%s: ending", error)
            return 1
        if error is not None:
            log.error("a task of the operator failed", exc_info=error)
            return 1
    return 0


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        found = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found)


def run(settings: Settings) -> int:
    """Set up logging and run the operator."""
    handler = logging.StreamHandler(sys.stderr)
    if settings.log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    # kopf tells of every event at this level.
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLogger().level))
    with contextlib.suppress(KeyboardInterrupt):
        return asyncio.run(_run(settings))
    return 130


async def _run(settings: Settings) -> int:
    return await Operator(settings).run()
