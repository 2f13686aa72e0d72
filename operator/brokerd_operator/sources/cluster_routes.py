"""The route of a BrokerCluster through a Gateway, where the Gateway API is installed.

For `kubernetes_clusters.py`. A route is an addition: whatever goes wrong with it becomes the
condition RouteAccepted, and nothing else of the cluster waits for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from brokerd_operator.conditions import Condition
from brokerd_operator.manifests import gateway
from brokerd_operator.manifests.naming import Context
from brokerd_operator.sources.api import PLURALS, Api, ApiError, Json, path_of
from brokerd_operator.sources.cluster_objects import NameConflict

#: Gateways are asked again so often while one has not accepted; nothing is watched.
AGAIN_S = 15.0


class ClusterRoutes:
    """Makes, looks at and removes routes; keeps nothing."""

    def __init__(self, api: Api, apply: Callable[[Context, Json], Awaitable[None]]) -> None:
        self._api = api
        self._apply = apply

    async def reconcile(self, context: Context) -> Condition | None:
        """Make the route that is asked for, remove others; None where none is asked for."""
        wanted = gateway.kind(context)
        try:
            served = await self._served()
            for kind, version in served.items():
                if kind != wanted:
                    await self._remove(context, kind, version)
            if wanted is None:
                return None
            if wanted not in served:
                return gateway.missing(context)
            manifest = gateway.route(context, served[wanted])
            assert manifest is not None
            await self._apply(context, manifest)
            live = await self._api.get(_path(context, wanted, served[wanted]))
            return gateway.accepted(context, live or manifest)
        except (ApiError, NameConflict) as error:
            return gateway.failed(context, str(error)) if wanted is not None else None

    async def _served(self) -> dict[str, str]:
        """The newest version of each kind of route that the API server has."""
        group = await self._api.get(f"/apis/{gateway.GROUP}") or {}
        versions = {item["version"] for item in group.get("versions") or ()}
        found: dict[str, str] = {}
        for version in gateway.VERSIONS:
            if version not in versions:
                continue
            listed = await self._api.get(f"/apis/{gateway.GROUP}/{version}") or {}
            names = {item["name"] for item in listed.get("resources") or ()}
            for kind in gateway.KINDS.values():
                if PLURALS[kind] in names:
                    found.setdefault(kind, version)
        return found

    async def _remove(self, context: Context, kind: str, version: str) -> None:
        path = _path(context, kind, version)
        live = await self._api.get(path)
        owners = live["metadata"].get("ownerReferences") or () if live is not None else ()
        if any(owner.get("uid") == context.meta.uid for owner in owners):
            await self._api.delete(path)


def _path(context: Context, kind: str, version: str) -> str:
    return path_of(f"{gateway.GROUP}/{version}", kind, context.namespace, context.name)
