"""The watch shell: resources from the API server in, keys into the engine.

docs/design/operator.md §13.

Each watched namespace is listed and watched by itself: one that is forbidden or gone stops nobody
but its own watches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Any

from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.versions import version_of
from brokerd_operator.manifests import naming
from brokerd_operator.sources import rights
from brokerd_operator.sources.api import Api, ApiError, Json, forget_managers, path_of
from brokerd_operator.sources.kubernetes_store import KubernetesStore
from brokerd_operator.sources.listing import Listing, Taken, collection
from brokerd_operator.sources.places import Places
from brokerd_operator.sources.secret_reads import SecretReads
from brokerd_operator.sources.watch import Told, Watcher
from brokerd_operator.specs import registry

log = logging.getLogger(__name__)

#: Safety net under the watches.
RELIST_S = 600.0
#: A namespace whose rights end is looked at so often until nothing is left to do in it.
ENDING_S = 2.0
#: Back-off of a place that cannot be listed or watched.
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
RETRY_JITTER = 0.2
#: Of one that is allowed and fails all the same: while nobody watches, nothing is seen.
RETRY_BROKEN_MAX_S = 5.0
#: A watch that lasted so long was a good one: the next failure is a first one again.
GOOD_WATCH_S = 10.0
#: News that make a listing necessary come in numbers.
GATHER_S = 1.0
FORBIDDEN = 403
NAMESPACES = "/api/v1/namespaces"
STATEFUL_SETS = {"labelSelector": f"app.kubernetes.io/managed-by={naming.MANAGED_BY}"}


class WatchEnded(Exception):
    """A watch cannot go on; the place is listed and watched anew."""


class KubernetesSource:
    """Owns the listing and the watches of all places."""

    def __init__(
        self,
        api: Api,
        engine: Engine,
        store: KubernetesStore,
        places: Places,
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
                taken = await self._list(place)
                said = ""
                await self._watch(place, taken)
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

    async def _list(self, place: str) -> Taken:
        """Take in everything of a place. Raises ApiError."""
        version = ""
        if not place:
            namespaces, version = await self._api.list(NAMESPACES)
            self._store.namespaces_listed(namespaces)
        # What is watched besides: a refusal is found here, once, and not by a watch.
        await self._api.page(path_of("apps/v1", "StatefulSet", place), {"limit": "1"})
        taken = await self._listing.take(place)
        taken.versions["Namespace"] = version
        if taken.is_held:
            await self._rights.hold_again(place)
        await self._places.is_back(place)
        return taken

    # ---- watching -----------------------------------------------------------------------------

    async def _watch(self, place: str, taken: Taken) -> None:
        """Watch and relist until one of them fails; raises ApiError or WatchEnded."""
        async with Watcher(self._api) as watcher:
            tasks = [asyncio.create_task(self._relist(place))]
            for kind in registry.KINDS:
                path, version = collection(kind, place), taken.versions[kind]
                told = self._resource_handler(kind)
                tasks.append(asyncio.create_task(_until_ended(watcher, path, version, told)))
            for path, version, told, query in self._others(place, taken):
                following = _until_ended(watcher, path, version, told, query)
                tasks.append(asyncio.create_task(following))
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _others(self, place: str, taken: Taken) -> list[tuple[str, str, Told, dict[str, str]]]:
        """What is watched besides resources: path, version, handler, query."""
        sets = path_of("apps/v1", "StatefulSet", place)
        found: list[tuple[str, str, Told, dict[str, str]]] = []
        found.append((sets, "", self._on_stateful_set, STATEFUL_SETS))
        if not place:
            found.append((NAMESPACES, taken.versions["Namespace"], self._on_namespace, {}))
        elif self._rights.guards(place):
            bindings = path_of(rights.RBAC, "RoleBinding", place)
            named = {"fieldSelector": f"metadata.name={self._rights.binding}"}
            found.append((bindings, "", self._on_binding, named))
        return found

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
        if await self._store.is_namespace_ending(place) and (await self._list(place)).count:
            return True
        await self._rights.release(place)
        return True

    # ---- handlers -----------------------------------------------------------------------------

    def _resource_handler(self, kind: str) -> Told:
        def handler(type_: str, found: Json) -> None:
            body = forget_managers({**found, "kind": kind})
            if type_ == "DELETED":
                metadata = body["metadata"]
                key = Key(kind, metadata["namespace"], metadata["name"])
                self._engine.remove(key, version_of(body))
            else:
                self._engine.put(body)

        return handler

    def _on_stateful_set(self, _: str, body: dict[str, Any]) -> None:
        metadata = body["metadata"]
        key = Key("BrokerCluster", metadata["namespace"], metadata["name"])
        if self._engine.cache.get(key) is not None:
            self._engine.queue.add(key)

    def _on_binding(self, _: str, body: dict[str, Any]) -> None:
        nudge = self._nudges.get(body["metadata"]["namespace"])
        # One without its finalizer is new, or an earlier release's: is there something to guard?
        if nudge is not None and (rights.is_ending(body) or not rights.is_held(body)):
            nudge.set()

    def _on_namespace(self, type_: str, body: dict[str, Any]) -> None:
        self._store.namespace_changed(body, type_ == "DELETED")
        self._engine.wake_namespace(body["metadata"]["name"])


async def _until_ended(
    watcher: Watcher, path: str, version: str, told: Told, query: dict[str, str] | None = None
) -> None:
    """Follow a collection; raises WatchEnded: what it means is for the next listing to find out."""
    try:
        await watcher.follow(path, version, told, query)
    except ApiError as error:
        raise WatchEnded(f"{path}: {error}") from error
