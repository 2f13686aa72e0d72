"""Growing the volumes of a BrokerCluster in Kubernetes; decided by reconcile/volumes.py.

The claims are asked to grow first, all of them or none. Then the StatefulSet, whose claims cannot
be changed, is deleted without its pods and made anew by the next pass. Claims that belong to the
StatefulSet (retention Delete) are taken from it before, so that no collection of garbage can take
data with it. For the Kubernetes driver (kubernetes_clusters.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brokerd_operator.manifests import naming
from brokerd_operator.manifests.naming import Context
from brokerd_operator.reconcile import volumes
from brokerd_operator.reconcile.volumes import Plan
from brokerd_operator.sources.api import Api, ApiError, Json, path_of

#: What the API server's admission says of a StorageClass without allowVolumeExpansion.
_CLASS_SAYS = "must support resize"


class ClusterVolumes:
    """Reads and patches claims; knows nothing itself."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def claims(self, context: Context) -> list[Json]:
        """The members' claims, those of members that were taken away included."""
        selector = ",".join(f"{k}={v}" for k, v in naming.selector(context).items())
        path = path_of("v1", "PersistentVolumeClaim", context.namespace)
        found, _ = await self._api.list(path, selector)
        prefix = f"data-{context.name}-"
        return [
            claim
            for claim in found
            if claim["metadata"]["name"].removeprefix(prefix).isdecimal()
            and not claim["metadata"].get("deletionTimestamp")
        ]

    async def conflict(self, context: Context, ordinals: Iterable[int]) -> str:
        """Return what to do about a claim that a new member would take and that is not ours."""
        for ordinal in ordinals:
            name = f"data-{context.name}-{ordinal}"
            claim = await self._api.get(
                path_of("v1", "PersistentVolumeClaim", context.namespace, name)
            )
            labels = {} if claim is None else claim["metadata"].get("labels") or {}
            is_ours = naming.selector(context).items() <= labels.items()
            if claim is not None and not is_ours and naming.is_foreign(context, claim):
                return naming.conflict(context, "PersistentVolumeClaim", name)
        return ""

    async def grow(self, context: Context, plan: Plan, present: str | None) -> Plan:
        """Ask the claims to grow; the plan, or what is left of it when that is refused."""
        patch = {"spec": {"resources": {"requests": {"storage": plan.size}}}}
        name = ""
        try:
            for is_dry in (True, False):
                for name in plan.grow:
                    path = path_of("v1", "PersistentVolumeClaim", context.namespace, name)
                    await self._api.merge(path, patch, is_dry=is_dry)
        except ApiError as error:
            if not error.status or error.is_passing:
                raise
            cause = f"PersistentVolumeClaim {name}: {error}"
            is_class = _CLASS_SAYS in str(error)
            return volumes.refused(plan, present or plan.size, cause, is_class=is_class)
        return plan

    async def let_go(self, context: Context, stateful_set: Json, claims: Sequence[Json]) -> None:
        """Take one step towards a StatefulSet that is gone while pods and claims stay."""
        metadata = stateful_set["metadata"]
        if metadata.get("deletionTimestamp"):
            return
        path = path_of("apps/v1", "StatefulSet", context.namespace, context.name)
        retention = stateful_set["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
        if retention.get("whenDeleted", "Retain") != "Retain":
            kept = {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain"}}
            await self._api.merge(path, {"spec": kept})
            return
        owned = [claim for claim in claims if _is_owned(claim, metadata["uid"])]
        for claim in owned:
            # The controller does the same, except for members that do not run.
            others = [
                owner
                for owner in claim["metadata"]["ownerReferences"]
                if owner.get("uid") != metadata["uid"]
            ]
            version = claim["metadata"]["resourceVersion"]
            freed = {"ownerReferences": others, "resourceVersion": version}
            name = claim["metadata"]["name"]
            claim_path = path_of("v1", "PersistentVolumeClaim", context.namespace, name)
            await self._api.merge(claim_path, {"metadata": freed})
        if not owned:
            await self._api.delete(path, "Orphan")


def _is_owned(claim: Json, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in claim["metadata"].get("ownerReferences") or ())
