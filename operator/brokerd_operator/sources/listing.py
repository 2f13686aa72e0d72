"""Listings of resources, compared with what the engine knows. For `sources/`.

design/operator.md §13.2.

A listing is of a moment, and watches go on meanwhile: what it shows counts only if it is news
(`engine/versions.py`), and what it does not show is gone only if a direct read says so too.
"""

from __future__ import annotations

import asyncio

from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Body, Key
from brokerd_operator.engine.versions import number_of
from brokerd_operator.sources.api import GROUP_PATH, Api
from brokerd_operator.sources.kubernetes_store import KubernetesStore
from brokerd_operator.specs import registry

#: Resources taken in between two moments for everything else that is due.
SLICE = 50


class Listing:
    """Fills the engine. Owns nothing."""

    def __init__(self, api: Api, engine: Engine, store: KubernetesStore) -> None:
        self._api = api
        self._engine = engine
        self._store = store

    async def take(self, namespace: str) -> list[Body]:
        """List all kinds in a namespace, or in all with an empty name; raises ApiError."""
        found: list[Body] = []
        for kind in registry.KINDS:
            found += await self._take_kind(kind, namespace)
        return found

    async def _take_kind(self, kind: str, namespace: str) -> list[Body]:
        where = f"/namespaces/{namespace}" if namespace else ""
        path = f"{GROUP_PATH}{where}/{registry.PLURALS[kind]}"
        listed, version = await self._api.list(path)
        bodies: list[Body] = [{**body, "kind": kind} for body in listed]
        seen = set()
        for number, body in enumerate(bodies):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            metadata = body["metadata"]
            seen.add(Key(kind, metadata["namespace"], metadata["name"]))
            self._engine.put(body)
        for key in self._engine.cache.of_kind(kind):
            if key not in seen and namespace in ("", key.namespace):
                await self._look_for(key, number_of(version))
        return bodies

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
