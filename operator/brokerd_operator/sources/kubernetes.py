"""kopf as the watch shell (operator.md §13.1): events in, keys into the engine, nothing else.

Only this module and `app.py` know kopf. No handler of its own state, so no annotation of kopf's is
ever written to a resource; no posting of events; no peering.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import kopf

from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Key
from brokerd_operator.manifests import naming
from brokerd_operator.sources.api import GROUP_PATH, Api, ApiError
from brokerd_operator.sources.kubernetes_store import KubernetesStore
from brokerd_operator.specs import registry
from brokerd_operator.specs.model import Reference

log = logging.getLogger(__name__)

GROUP, VERSION = naming.API_VERSION.split("/")
#: Safety net under the watches.
RELIST_S = 600.0
CRDS_RETRY_S = 2.0


class KubernetesSource:
    """Owns the listing and the watches."""

    def __init__(
        self, api: Api, engine: Engine, store: KubernetesStore, namespaces: tuple[str, ...]
    ) -> None:
        self._api = api
        self._engine = engine
        self._store = store
        self._namespaces = namespaces

    async def list_all(self) -> None:
        """Tell the engine of every resource; what it knows and is not listed is gone."""
        if not self._namespaces:
            namespaces, _ = await self._api.list("/api/v1/namespaces")
            for body in namespaces:
                self._store.namespace_changed(body, False)
        seen: set[Key] = set()
        for kind in registry.KINDS:
            for place in self._namespaces or ("",):
                where = f"/namespaces/{place}" if place else ""
                path = f"{GROUP_PATH}{where}/{registry.PLURALS[kind]}"
                bodies, _ = await self._api.list(path)
                for body in bodies:
                    full = {**body, "kind": kind}
                    metadata = body["metadata"]
                    seen.add(Key(kind, metadata["namespace"], metadata["name"]))
                    self._engine.put(full)
        for key in self._engine.cache.all_keys():
            if key not in seen:
                self._engine.remove(key)

    async def sync(self) -> None:
        """List everything once; waits for the CRDs."""
        while True:
            try:
                await self.list_all()
                break
            except ApiError as error:
                log.warning("cannot list the resources yet (are the CRDs installed?): %s", error)
                await asyncio.sleep(CRDS_RETRY_S)
        self._engine.is_synced.set()

    async def relist(self) -> None:
        """Compare with a full listing now and then."""
        while True:
            await asyncio.sleep(RELIST_S)
            try:
                await self.list_all()
            except ApiError as error:
                log.warning("relisting failed: %s", error)

    async def watch(self, stop: asyncio.Event) -> None:
        """Run kopf until told to stop."""
        await kopf.operator(
            registry=self._registry(),
            settings=_settings(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=stop,
        )

    def _registry(self) -> kopf.OperatorRegistry:
        handlers = kopf.OperatorRegistry()
        kopf.on.login(registry=handlers)(_login)
        for kind in registry.KINDS:
            kopf.on.event(
                GROUP, VERSION, registry.PLURALS[kind], registry=handlers, id=f"watch-{kind}"
            )(self._resource_handler(kind))
        kopf.on.event(
            "apps",
            "v1",
            "statefulsets",
            labels={"app.kubernetes.io/managed-by": naming.MANAGED_BY},
            registry=handlers,
        )(self._on_stateful_set)
        if self._namespaces:
            # Cluster-wide there is no right to watch Secrets (SEC-26): they are read by name.
            kopf.on.event("", "v1", "secrets", registry=handlers)(self._on_secret)
        else:
            kopf.on.event("", "v1", "namespaces", registry=handlers)(self._on_namespace)
        return handlers

    def _resource_handler(self, kind: str) -> Any:
        async def on_event(event: dict[str, Any], **_: Any) -> None:
            body = {**event["object"], "kind": kind}
            metadata = body["metadata"]
            if event["type"] == "DELETED":
                self._engine.remove(Key(kind, metadata["namespace"], metadata["name"]))
            else:
                self._engine.put(body)

        return on_event

    async def _on_stateful_set(self, event: dict[str, Any], **_: Any) -> None:
        metadata = event["object"]["metadata"]
        key = Key("BrokerCluster", metadata["namespace"], metadata["name"])
        if self._engine.cache.get(key) is not None:
            self._engine.queue.add(key)

    async def _on_secret(self, event: dict[str, Any], **_: Any) -> None:
        metadata = event["object"]["metadata"]
        self._engine.reference_changed(Reference("Secret", metadata["namespace"], metadata["name"]))

    async def _on_namespace(self, event: dict[str, Any], **_: Any) -> None:
        body = event["object"]
        self._store.namespace_changed(body, event["type"] == "DELETED")
        name = body["metadata"]["name"]
        for key in self._engine.cache.all_keys():
            if key.namespace == name:
                self._engine.queue.add(key)


async def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_kubeconfig(**kwargs) or kopf.login_with_service_account(**kwargs)


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # No right to watch CRDs in the namespaced mode.
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 10
    return settings
