"""Listings of resources, compared with what the engine knows. For `sources/`.

design/operator.md §13.2.

A listing is of a moment, and watches go on meanwhile: what it shows counts only if it is news
(`engine/versions.py`), and what it does not show is gone only if a direct read says so too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from brokerd_operator.engine import keys
from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.versions import number_of
from brokerd_operator.sources.api import EXPIRED, GROUP_PATH, LIST_TRIES, Api, ApiError, Json
from brokerd_operator.sources.kubernetes_store import KubernetesStore
from brokerd_operator.specs import registry

#: Resources taken in between two moments for everything else that is due.
SLICE = 50


@dataclass(slots=True)
class Taken:
    """What a listing of all kinds has found."""

    count: int = 0
    #: Any of them bears the operator's finalizer.
    is_held: bool = False
    #: The version that each kind's listing is of: where a watch goes on.
    versions: dict[str, str] = field(default_factory=dict)


class Listing:
    """Fills the engine. Owns nothing: each page is let go before the next one is asked for."""

    def __init__(self, api: Api, engine: Engine, store: KubernetesStore) -> None:
        self._api = api
        self._engine = engine
        self._store = store

    async def take(self, namespace: str) -> Taken:
        """List all kinds in a namespace, or in all with an empty name; raises ApiError."""
        taken = Taken()
        for kind in registry.KINDS:
            seen = await self._seen(kind, namespace, taken)
            for key in self._engine.cache.of_kind(kind):
                if key not in seen and namespace in ("", key.namespace):
                    await self._look_for(key, number_of(taken.versions[kind]))
            taken.count += len(seen)
        return taken

    async def _seen(self, kind: str, namespace: str, taken: Taken) -> set[Key]:
        """Take a kind's resources; those that one and the same listing has shown."""
        path = collection(kind, namespace)
        for left in reversed(range(LIST_TRIES)):
            seen: set[Key] = set()
            try:
                async for items, version in self._api.pages(path):
                    taken.versions[kind] = version
                    await self._take_page(kind, items, seen, taken)
                return seen
            except ApiError as error:
                # The moment that the pages are of is too long ago: take them of a newer one.
                if error.status != EXPIRED or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _take_page(
        self, kind: str, items: Iterable[Json], seen: set[Key], taken: Taken
    ) -> None:
        for number, found in enumerate(items):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            body = {**found, "kind": kind}
            seen.add(keys.key_of(body))
            taken.is_held = taken.is_held or keys.has_finalizer(body)
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


def collection(kind: str, namespace: str) -> str:
    """The path of a kind's resources in a namespace, or in all with an empty name."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{GROUP_PATH}{where}/{registry.PLURALS[kind]}"
