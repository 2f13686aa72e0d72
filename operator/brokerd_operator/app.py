"""The operator process: settings, health and metrics, Lease, engine and watches, in this order.

A standby that waits for the Lease is ready too, once the API server has answered: a rolling update
must not wait for it.
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
from brokerd_operator.engine.keys import Body, Key
from brokerd_operator.engine.running import run_engine
from brokerd_operator.engine.versions import Version
from brokerd_operator.settings import Settings
from brokerd_operator.sources.api import Api
from brokerd_operator.sources.kubernetes import KubernetesSource
from brokerd_operator.sources.kubernetes_clusters import KubernetesClusters
from brokerd_operator.sources.kubernetes_store import KubernetesStore
from brokerd_operator.sources.lease import Lease, LeaseLost
from brokerd_operator.sources.rights import Rights
from brokerd_operator.sources.secret_reads import SecretReads
from brokerd_operator.sources.shutdown import Shutdown
from brokerd_operator.sources.watched_namespaces import WatchedNamespaces
from brokerd_operator.specs.model import Reference

log = logging.getLogger(__name__)

#: An event loop that did not turn for so long is stuck: the liveness probe fails.
LOOP_LAG_MAX_S = 30.0
HEARTBEAT_S = 1.0
#: A renewal that hangs keeps its thread until its own time-out, while others are tried.
LEASE_THREADS = 4
#: Exit status of an operator that lost its Lease. The process goes on as a standby.
LEASE_LOST = 75


class Operator:
    """Owns everything that runs in the process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.api = Api()
        # The operator's own namespace ends with the operator in it.
        guarded = tuple(name for name in settings.namespaces if name != settings.namespace)
        guard = Rights(self.api, settings.role_binding, guarded)
        reads = SecretReads(self.api, self._secret_changed, self._is_secret_wanted)
        self.store = KubernetesStore(
            self.api, self._put, self._remove, settings.namespaces, guard.hold, reads
        )
        driver = KubernetesClusters(self.api, settings, self.store.emit, reads)
        self.engine = Engine(
            self.store,
            driver,
            EngineSettings(instance=settings.instance, workers=settings.workers),
        )
        places = WatchedNamespaces(
            self.api,
            self.engine,
            self.store,
            settings.namespaces or ("",),
            (settings.namespace, settings.lease_name),
        )
        self.source = KubernetesSource(
            self.api,
            self.engine,
            self.store,
            places,
            guard,
            settings.namespaces,
            reads,
        )
        self.shutdown = Shutdown(self.api, self.store, guard, settings.namespace, guarded)
        # Renewals do not wait behind slow requests of other work.
        self.lease_api = Api(LEASE_THREADS)
        self.lease = Lease(
            self.lease_api,
            settings.namespace,
            settings.lease_name,
            settings.identity,
            settings.lease_seconds,
        )
        self.engine.metrics.leads(lambda: self.lease.is_held)
        self._turned = time.monotonic()

    def _put(self, body: Body) -> None:
        self.engine.put(body)

    def _remove(self, key: Key, version: Version) -> None:
        self.engine.remove(key, version)

    def _secret_changed(self, namespace: str, name: str, clusters: frozenset[str]) -> None:
        self.engine.reference_changed(Reference("Secret", namespace, name))
        self.engine.wake(self._clusters_of(namespace, clusters))

    def _is_secret_wanted(self, namespace: str, name: str, clusters: frozenset[str]) -> bool:
        if not self.store.is_watched(namespace):
            # Its resources read it again when the namespace is back.
            return False
        named = self.engine.cache.referring_to(Reference("Secret", namespace, name))
        return bool(named or self._clusters_of(namespace, clusters))

    def _clusters_of(self, namespace: str, names: frozenset[str]) -> list[Key]:
        found = (Key("BrokerCluster", namespace, name) for name in names)
        return [key for key in found if self.engine.cache.get(key) is not None]

    async def run(self, stop: asyncio.Event) -> int:
        """Run until told to stop, or LEASE_LOST; the exit status."""
        runner = await self._serve_http()
        heartbeat = asyncio.get_running_loop().create_task(self._heartbeat())
        try:
            status = await self._lead(stop)
            if self.lease.is_held and not status:
                await self.lease.release()
                await self.shutdown.run()
            return status
        finally:
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)
            await self.lease.release()
            await self.store.close()
            await runner.cleanup()
            self.api.close()
            self.lease_api.close()

    async def _lead(self, stop: asyncio.Event) -> int:
        loop = asyncio.get_running_loop()
        stopping = loop.create_task(stop.wait())
        acquiring = loop.create_task(self.lease.acquire())
        tasks: set[asyncio.Task[Any]] = {stopping, acquiring}
        status = 0
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                return 0
            work = [self.lease.keep_apart(), self.source.run(), run_engine(self.engine)]
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
            return status
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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
        if self.lease.trouble:
            return web.Response(status=503, text=f"Lease: {self.lease.trouble}\n")
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
            log.error("%s: the work ends, and this process waits for the Lease again", error)
            return LEASE_LOST
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
    # `sources/kubernetes.py` logs the end of a watch once, and begins it anew.  kopf logs it for
    # every kind, with a traceback, and also that it has no signals in a thread.
    logging.getLogger("kopf._core.reactor").setLevel(logging.CRITICAL)
    with contextlib.suppress(KeyboardInterrupt):
        return asyncio.run(_run(settings))
    return 130


async def _run(settings: Settings) -> int:
    """Run operators one after another: what the one before knew may be old, so nothing is kept."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    while not stop.is_set():
        status = await Operator(settings).run(stop)
        if status != LEASE_LOST:
            return status
    return 0
