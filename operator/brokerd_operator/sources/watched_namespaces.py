"""Which watched namespaces let the operator in, and telling of it. For `sources/`.

A namespace that is forbidden or gone is left out and said once, in the log, in a metric and in an
Event beside the operator's Lease; the others go on.
"""

from __future__ import annotations

import logging

from brokerd_operator.engine.engine import Engine
from brokerd_operator.sources import events, lease
from brokerd_operator.sources.api import Api, ApiError
from brokerd_operator.sources.kubernetes_store import KubernetesStore

log = logging.getLogger(__name__)


class WatchedNamespaces:
    """Owns the state of each place: a namespace, or all of them under an empty name."""

    def __init__(
        self,
        api: Api,
        engine: Engine,
        store: KubernetesStore,
        places: tuple[str, ...],
        lease_at: tuple[str, str],
    ) -> None:
        self._api = api
        self._engine = engine
        self._store = store
        #: Not looked at since the start.
        self._untried = set(places)
        self._places = places
        #: Namespace and name of the Lease, which the Events are about.
        self._lease_at = lease_at

    async def is_back(self, place: str) -> None:
        """A place was listed completely."""
        was_unavailable = place in self._store.unavailable
        self._store.unavailable.discard(place)
        self._tried(place)
        if place:
            self._engine.metrics.namespace_unavailable(place, False)
        if was_unavailable:
            self._engine.wake_namespace(place)
            log.info("namespace is available again namespace=%s", place)
            await self._emit("Normal", "NamespaceAvailable", f"namespace {place} is watched again")

    async def is_refused(self, place: str, error: str) -> None:
        """The API server forbids what must be read in a namespace."""
        is_news = place not in self._store.unavailable
        self._store.unavailable.add(place)
        self._tried(place)
        self._engine.metrics.namespace_unavailable(place, True)
        if is_news:
            log.warning("namespace is left out namespace=%s reason=%s", place, error)
            text = f"namespace {place} is left out until it can be read again: {error}"
            await self._emit("Warning", "NamespaceUnavailable", text)

    def _tried(self, place: str) -> None:
        """Ready is who knows of every place, and could read at least one."""
        self._untried.discard(place)
        if not self._untried and len(self._store.unavailable) < len(self._places):
            self._engine.is_synced.set()

    async def _emit(self, type_: str, reason: str, message: str) -> None:
        namespace, name = self._lease_at
        lease_ = {
            "apiVersion": lease.API_VERSION,
            "kind": "Lease",
            "namespace": namespace,
            "name": name,
        }
        try:
            await self._api.create(events.event(lease_, type_, reason, message))
        except ApiError as error:
            # Nothing depends on it; the log and the metric have said it.
            log.info("no Event %s: %s", reason, error)
