"""What Kubernetes' controllers tell of pods and volumes that they cannot make, from their Events.

A quota, a LimitRange, an admission policy or a missing StorageClass refuses what a StatefulSet or a
claim asks for; no object but the Event says so. For the Kubernetes driver (kubernetes_clusters.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from brokerd_operator.sources.api import Api, ApiError, Json, path_of

log = logging.getLogger(__name__)

#: Of a StatefulSet: a pod or a claim of it is refused.
FAILED_CREATE = "FailedCreate"
#: Of a claim: it gets no volume until somebody does something.
UNPROVISIONED = ("ProvisioningFailed", "FailedBinding")
#: Of a pod: its node cannot mount one of its volumes.
FAILED_MOUNT = "FailedMount"
#: In its message where the node's next try mends it.
PASSING_MOUNT = "failed to sync"
#: Pods that are looked at in one pass; the others wait for the same thing.
PODS_MAX = 3
#: Claims that are looked at in one pass; the others wait for the same thing.
CLAIMS_MAX = 3


class ClusterEvents:
    """Reads Events; knows nothing itself."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def refused_pods(self, stateful_set: Json, missing: Iterable[str]) -> dict[str, str]:
        """What was said last about pods that are not there, by pod."""
        names = list(missing)
        uid = (stateful_set.get("metadata") or {}).get("uid")
        if not names or not uid:
            return {}
        found = await self._of(stateful_set["metadata"]["namespace"], uid, (FAILED_CREATE,))
        said = {}
        for item in found:
            text = str(item.get("message") or "")
            for name in names:
                if f" {name} in StatefulSet " in text:
                    said[name] = _cause(text)
        return said

    async def unbound(self, claims: Iterable[Json]) -> dict[str, str]:
        """Why claims have no volume yet, by claim, where an Event says so."""
        waiting = [item for item in claims if (item.get("status") or {}).get("phase") == "Pending"][
            :CLAIMS_MAX
        ]
        said = {}
        for claim in waiting:
            metadata = claim["metadata"]
            found = await self._of(metadata["namespace"], metadata["uid"], UNPROVISIONED)
            if found:
                said[str(metadata["name"])] = str(found[-1].get("message") or "")
        return said

    async def unmounted(self, pods: Iterable[Json]) -> dict[str, str]:
        """What was said last about volumes that cannot be mounted, by pod; one text for one time,
        whatever the order in which a node tries them."""
        said = {}
        for pod in list(pods)[:PODS_MAX]:
            metadata = pod["metadata"]
            found = [
                item
                for item in await self._of(metadata["namespace"], metadata["uid"], (FAILED_MOUNT,))
                if PASSING_MOUNT not in str(item.get("message"))
            ]
            texts = [str(i.get("message") or "") for i in found if _when(i) == _when(found[-1])]
            if texts:
                said[str(metadata["name"])] = min(texts)
        return said

    async def _of(self, namespace: str, uid: str, reasons: tuple[str, ...]) -> list[Json]:
        """Events about an object, the newest last; none where they may not be read."""
        found: list[Json] = []
        path = path_of("v1", "Event", namespace)
        try:
            answer = await self._api.request(
                "GET", path, query={"fieldSelector": f"involvedObject.uid={uid}", "limit": "500"}
            )
            found = answer.get("items") or []
        except ApiError as error:
            if not error.is_answer or error.is_passing:
                raise
            log.debug("no Events of namespace %s: %s", namespace, error)
        return sorted((item for item in found if item.get("reason") in reasons), key=_when)


def _when(event: Json) -> Any:
    series = event.get("series") or {}
    return series.get("lastObservedTime") or event.get("lastTimestamp") or ""


def _cause(text: str) -> str:
    """The API server's own words, without those of the controller before them."""
    _, mark, cause = text.partition(" failed error: ")
    return cause if mark else text
