"""What an operator does after its last pass, so that its end holds nothing up. For `app.py`.

The Lease is released before, and none of it is in the next operator's way.
"""

from __future__ import annotations

import asyncio
import logging

from brokerd_operator.engine import keys
from brokerd_operator.engine.keys import Body
from brokerd_operator.engine.ports import Gone
from brokerd_operator.sources import rights
from brokerd_operator.sources.api import GROUP_PATH, Api, ApiError
from brokerd_operator.sources.kubernetes_store import KubernetesStore
from brokerd_operator.specs import registry

log = logging.getLogger(__name__)

#: An uninstalled release loses its pods and its bindings in no order: so long the bindings are
#: looked at. Less than the pod's time to end, 30 s by default, together with the other limit.
BINDINGS_S = 5.0
BINDINGS_PAUSE_S = 0.5
#: So long finalizers are taken off in the operator's own namespace when that ends.
OWN_NAMESPACE_S = 15.0


class Shutdown:
    """Made once; `run` is called at the end of a process that held the Lease."""

    def __init__(
        self,
        api: Api,
        store: KubernetesStore,
        guard: rights.Rights,
        namespace: str,
        guarded: tuple[str, ...],
    ) -> None:
        self._api = api
        self._store = store
        self._rights = guard
        self._namespace = namespace
        self._guarded = guarded

    async def run(self) -> None:
        """Never raises but a cancellation."""
        try:
            async with asyncio.timeout(OWN_NAMESPACE_S):
                await self._leave_own_namespace()
        except (TimeoutError, OSError) as error:
            log.warning("finalizers may be left in %s: %r", self._namespace, error)
        try:
            async with asyncio.timeout(BINDINGS_S):
                await asyncio.gather(*(self._let_go(name) for name in self._guarded))
        except (TimeoutError, OSError) as error:
            log.debug("bindings are looked at no more: %r", error)

    async def _leave_own_namespace(self) -> None:
        """Its pods go first, this one among them: no other process will take the finalizers off."""
        if not self._store.is_watched(self._namespace):
            return
        if not await self._store.is_namespace_terminating(self._namespace):
            return
        held: list[Body] = []
        for kind, plural in registry.PLURALS.items():
            path = f"{GROUP_PATH}/namespaces/{self._namespace}/{plural}"
            bodies, _ = await self._api.list(path)
            held += [{**body, "kind": kind} for body in bodies if keys.has_finalizer(body)]
        for body in held:
            try:
                await self._store.remove_finalizer(body)
            except (Gone, ApiError) as error:
                log.debug("finalizer of %s: %r", keys.key_of(body).resource, error)
        log.info("own namespace ends: let go resources=%d", len(held))

    async def _let_go(self, namespace: str) -> None:
        """Of a binding that is taken away while its namespace stays."""
        if not self._rights.guards(namespace):
            return
        while True:
            binding = await self._rights.read(namespace)
            if binding is None or not rights.is_held(binding):
                return
            if rights.is_ending(binding):
                if not await self._store.is_namespace_ending(namespace):
                    await self._rights.release(namespace)
                return
            await asyncio.sleep(BINDINGS_PAUSE_S)
