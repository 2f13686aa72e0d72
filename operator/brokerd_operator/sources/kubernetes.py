"""kopf as the watch shell (design/operator.md §13.1): events in, keys into the engine.

Only this module knows kopf. No handler of its own state, so no annotation of kopf's is ever written
to a resource; no posting of events; no peering.

Each watched namespace is listed and watched by itself, with a kopf of its own in a thread of its
own: a kopf ends as a whole when one of its watches is refused, and cancels every task of its event
loop that began after it. So a namespace that is forbidden or gone stops only its own watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import kopf

from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Body, Key
from brokerd_operator.manifests import naming
from brokerd_operator.sources import rights
from brokerd_operator.sources.api import PAGE, Api, ApiError, path_of
from brokerd_operator.sources.hand_over import HandOver
from brokerd_operator.sources.kubernetes_store import KubernetesStore
from brokerd_operator.sources.listing import Listing
from brokerd_operator.sources.resource_news import ResourceNews
from brokerd_operator.sources.secret_reads import SecretReads
from brokerd_operator.sources.watched_namespaces import WatchedNamespaces
from brokerd_operator.specs import registry

log = logging.getLogger(__name__)

GROUP, VERSION = naming.API_VERSION.split("/")
#: Safety net under the watches.
RELIST_S = 600.0
#: A namespace whose rights end is looked at so often until nothing is left to do in it.
ENDING_S = 2.0
#: Back-off of a place that cannot be listed or watched.
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
RETRY_JITTER = 0.2
#: Of one that is allowed and fails all the same: without a watch, nothing is seen.
RETRY_BROKEN_MAX_S = 5.0
#: A watch that lasted so long was a good one: the next failure is a first one again.
GOOD_WATCH_S = 10.0
#: kopf's own tries of a request, which are as far apart as ours at most.
KOPF_BACKOFFS_S = (1, 1, 2, 3, 5, 5, 5)
#: kopf keeps what it needs to work on a resource for so long after an event of it.
IDLE_S = 0.1
#: News that make a listing necessary come in numbers.
GATHER_S = 1.0
#: kopf takes so long at most to end; no thread may write its log while the process ends.
JOIN_S = 3.0
FORBIDDEN = 403


class WatchEnded(Exception):
    """kopf has given up; the place is listed and watched anew."""


class KubernetesSource:
    """Owns the listing and the watches of all places."""

    def __init__(
        self,
        api: Api,
        engine: Engine,
        store: KubernetesStore,
        places: WatchedNamespaces,
        guard: rights.Rights,
        namespaces: tuple[str, ...],
        reads: SecretReads,
    ) -> None:
        self._api = api
        self._reads = reads
        self._engine = engine
        self._store = store
        self._places = places
        self._rights = guard
        self._namespaces = namespaces
        self._listing = Listing(api, engine, store)
        #: Set when a place must be looked at before the next relisting is due.
        self._nudges = {place: asyncio.Event() for place in namespaces or ("",)}

    async def run(self) -> None:
        """Follow every place until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reads.follow())
            for place in self._nudges:
                tasks.create_task(self._follow(place))

    async def _follow(self, place: str) -> None:
        """List, watch, and begin again when either fails."""
        loop = asyncio.get_running_loop()
        delay = RETRY_FIRST_S
        said = ""
        while True:
            began = loop.time()
            try:
                await self._list(place)
                said = ""
                await self._watch(place)
            except ApiError as error:
                if error.status == FORBIDDEN and place:
                    await self._places.is_refused(place, str(error))
                else:
                    delay = min(delay, RETRY_BROKEN_MAX_S)
                    if str(error) != said:
                        said = str(error)
                        log.warning("cannot list the resources (are the CRDs there?): %s", error)
            except WatchEnded as error:
                delay = min(delay, RETRY_BROKEN_MAX_S)
                log.warning("watching begins anew place=%s reason=%s", place or "all", error)
            if loop.time() - began > GOOD_WATCH_S:
                delay = RETRY_FIRST_S
            await asyncio.sleep(delay * (1 + random.uniform(0, RETRY_JITTER)))
            delay = min(2 * delay, RETRY_MAX_S)

    async def _list(self, place: str) -> int:
        """Take in everything of a place; how many resources there are. Raises ApiError."""
        if not place:
            namespaces, _ = await self._api.list("/api/v1/namespaces")
            for body in namespaces:
                self._store.namespace_changed(body, False)
        else:
            # What kopf will watch besides: a refusal is found here, once, and not by a watch.
            await self._api.page(path_of("apps/v1", "StatefulSet", place), {"limit": "1"})
        taken = await self._listing.take(place)
        if taken.has_finalizers:
            await self._rights.hold_again(place)
        await self._places.is_back(place)
        return taken.count

    # ---- watching -----------------------------------------------------------------------------

    async def _watch(self, place: str) -> None:
        """Watch and relist until one of them fails; raises ApiError or WatchEnded."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        watch = _Watch(place, self._registry(place), loop, ended)
        relisting = loop.create_task(self._relist(place))
        watch.start()
        try:
            either: set[asyncio.Future[Any]] = {relisting, ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if relisting.done():
                relisting.result()
            raise WatchEnded(ended.result())
        finally:
            relisting.cancel()
            watch.stop()
            await asyncio.gather(relisting, return_exceptions=True)
            if not ended.done():
                await asyncio.to_thread(watch.join)

    async def _relist(self, place: str) -> None:
        """Compare with a full listing now and then; raises ApiError when the place is lost."""
        nudge = self._nudges[place]
        nudge.clear()
        pause = 0.0 if self._rights.guards(place) else RELIST_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await nudge.wait()
                await asyncio.sleep(GATHER_S)
            nudge.clear()
            try:
                is_ending = await self._see_to_rights(place)
                if not is_ending and pause:
                    await self._list(place)
                pause = ENDING_S if is_ending else RELIST_S
            except ApiError as error:
                if error.status == FORBIDDEN:
                    self._rights.forget(place)
                    raise
                log.warning("relisting failed place=%s: %s", place or "all", error)
                pause = RETRY_MAX_S

    async def _see_to_rights(self, place: str) -> bool:
        """Let go of the rights when they are taken away and nothing is left to do with them.

        True while they are about to end.
        """
        if not self._rights.guards(place):
            return False
        binding = await self._rights.read(place)
        if binding is None or not rights.is_ending(binding):
            return False
        # In a namespace that ends nothing can be made: what is not there now will never be.
        if await self._store.is_namespace_ending(place) and await self._list(place):
            return True
        await self._rights.release(place)
        return True

    # ---- handlers of the watches --------------------------------------------------------------

    def _registry(self, place: str) -> kopf.OperatorRegistry:
        events = HandOver(asyncio.get_running_loop())

        def on_event(function: Callable[[str, Body], None]) -> Any:
            async def handler(event: dict[str, Any], **_: Any) -> None:
                events.give(function, event["type"] or "", event["object"])

            return handler

        def on_resource(kind: str) -> Any:
            async def handler(event: dict[str, Any], **_: Any) -> None:
                news.take(kind, event["type"], event["object"])

            return handler

        handlers = kopf.OperatorRegistry()
        kopf.on.login(registry=handlers)(_login)
        news = ResourceNews(self._engine, events, self._nudges[place].set)
        for kind in registry.KINDS:
            kopf.on.event(
                GROUP, VERSION, registry.PLURALS[kind], registry=handlers, id=f"watch-{kind}"
            )(on_resource(kind))
        kopf.on.event(
            "apps",
            "v1",
            "statefulsets",
            labels={"app.kubernetes.io/managed-by": naming.MANAGED_BY},
            registry=handlers,
        )(on_event(self._on_stateful_set))
        if self._namespaces:
            if self._rights.guards(place):
                kopf.on.event(
                    "rbac.authorization.k8s.io",
                    "v1",
                    "rolebindings",
                    field="metadata.name",
                    value=self._rights.binding,
                    registry=handlers,
                )(on_event(self._on_binding))
        else:
            kopf.on.event("", "v1", "namespaces", registry=handlers)(on_event(self._on_namespace))
        return handlers

    def _on_stateful_set(self, _: str, body: Body) -> None:
        metadata = body["metadata"]
        key = Key("BrokerCluster", metadata["namespace"], metadata["name"])
        if self._engine.cache.get(key) is not None:
            self._engine.queue.add(key)

    def _on_binding(self, _: str, body: Body) -> None:
        nudge = self._nudges.get(body["metadata"]["namespace"])
        # One without its finalizer is new, or an earlier release's: is there something to guard?
        if nudge is not None and (rights.is_ending(body) or not rights.is_held(body)):
            nudge.set()

    def _on_namespace(self, type_: str, body: Body) -> None:
        self._store.namespace_changed(body, type_ == "DELETED")
        self._engine.wake_namespace(body["metadata"]["name"])


class _Watch:
    """Owns one kopf and its thread. `ended` gets the reason when it ends by itself."""

    def __init__(
        self,
        place: str,
        handlers: kopf.OperatorRegistry,
        loop: asyncio.AbstractEventLoop,
        ended: asyncio.Future[str],
    ) -> None:
        self._place = place
        self._handlers = handlers
        self._loop = loop
        self._ended = ended
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_stopped = False
        self._lock = threading.Lock()
        # It holds nothing that must be put away: the process need not wait for it.
        self._thread = threading.Thread(
            target=self._run, name=f"watch {place or 'all'}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask for the end; what still comes from it does no harm."""
        with self._lock:
            self._is_stopped = True
            if self._own_loop is not None and self._stop is not None:
                with contextlib.suppress(RuntimeError):
                    self._own_loop.call_soon_threadsafe(self._stop.set)

    def join(self) -> None:
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except Exception as error:
            self._say(repr(error))

    def _say(self, reason: str) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell, reason)

    def _tell(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(reason)

    async def _watch(self) -> None:
        with self._lock:
            if self._is_stopped:
                return
            self._own_loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        tasks = await kopf.spawn_tasks(
            registry=self._handlers,
            settings=_settings(),
            standalone=True,
            clusterwide=not self._place,
            namespaces=(self._place,) if self._place else (),
            stop_flag=self._stop,
        )
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # Reported at once: a kopf whose watch was refused can take for ever to end the other ones.
        errors = [repr(task.exception()) for task in done if task.exception() is not None]
        self._say(", ".join(errors) or "it ended")
        for task in left:
            task.cancel()


async def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_kubeconfig(**kwargs) or kopf.login_with_service_account(**kwargs)


class _NoDiffs(kopf.DiffBaseStorage):  # type: ignore[misc]
    """Watches deliver whole bodies: no handler asks what changed, and kopf need not find out."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        return None

    def fetch(self, *, body: Any) -> Any:
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        pass


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.posting.enabled = False
    # No right to watch CRDs in the namespaced mode.
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 10
    # By default it takes a whole collection in one answer.
    settings.watching.chunk_size = PAGE
    # Each resource that there was an event of has a queue, a task and the body for so long: by
    # default 5 s, which after a start are all resources at once.
    settings.queueing.idle_timeout = IDLE_S
    settings.networking.error_backoffs = KOPF_BACKOFFS_S
    return settings
