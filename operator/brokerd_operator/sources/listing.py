"""Listings of resources, compared with what the engine knows. For `sources/`.

design/operator.md §13.2.

A listing is of a moment, and watches go on meanwhile: what it shows counts only if it is news
(`engine/versions.py`), and what it does not show is gone only if a direct read says so too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from brokerd_operator.engine import keys
from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.versions import number_of
from brokerd_operator.sources.api import GROUP_PATH, Api, Page
from brokerd_operator.sources.kubernetes_store import KubernetesStore
from brokerd_operator.specs import registry

#: Resources taken in between two moments for everything else that is due.
SLICE = 50


@dataclass(slots=True)
class Taken:
    """What a listing showed: ten thousand bodies are not kept for it."""

    count: int = 0
    has_finalizers: bool = False


class Listing:
    """Fills the engine. Owns nothing."""

    def __init__(self, api: Api, engine: Engine, store: KubernetesStore) -> None:
        self._api = api
        self._engine = engine
        self._store = store

    async def take(self, namespace: str) -> Taken:
        """List all kinds in a namespace, or in all with an empty name; raises ApiError."""
        taken = Taken()
        for kind in registry.KINDS:
            await self._take_kind(kind, namespace, taken)
        return taken

    async def _take_kind(self, kind: str, namespace: str, taken: Taken) -> None:
        where = f"/namespaces/{namespace}" if namespace else ""
        path = f"{GROUP_PATH}{where}/{registry.PLURALS[kind]}"
        seen: set[Key] = set()
        version = ""
        async for page in self._api.pages(path):
            if page.is_first:
                seen.clear()
            version = page.version
            await self._take_page(kind, page, seen, taken)
        taken.count += len(seen)
        for key in self._engine.cache.of_kind(kind):
            if key not in seen and namespace in ("", key.namespace):
                await self._look_for(key, number_of(version))

    async def _take_page(self, kind: str, page: Page, seen: set[Key], taken: Taken) -> None:
        for number, body in enumerate(page.items):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            body["kind"] = kind
            seen.add(keys.key_of(body))
            taken.has_finalizers = taken.has_finalizers or keys.has_finalizer(body)
            self._engine.put(body)

    async def _look_for(self, key: Key, listed: int | None) -> None:
        """A resource that is known and was not listed."""
        known = self._engine.cache.version(key)
        if known is None:
            return
        if None not in (known.number, listed) and known.number > listed:  # type: ignore[operator]
            # Made or changed after the moment of the listing.
            return
        body = await self._store.read(key)
        if body is not None:
            self._engine.put(body)
        else:
            # Of the version that was known before: one made anew during the read stays.
            self._engine.remove(key, known)
