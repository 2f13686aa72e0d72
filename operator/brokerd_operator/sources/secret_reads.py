"""Secrets are read by name, never listed or watched (SEC-23, SEC-26). For `sources/`.

The right to list or watch Secrets is a right to read all of them, so the operator asks for neither.
What a pass has read is read again now and then instead, as long as a resource needs it; when it is
another one, the resources that need it are woken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from brokerd_operator.sources.api import Api, ApiError, Json, path_of

log = logging.getLogger(__name__)

#: A change is seen after this time, or later where there are more than thirty Secrets.
INTERVAL_S = 3.0
#: Between two reads: at most ten in a second.
PAUSE_S = 0.1

#: Namespace and name of a Secret, and the BrokerClusters that have read it for themselves.
Changed = Callable[[str, str, frozenset[str]], object]
IsWanted = Callable[[str, str, frozenset[str]], bool]


@dataclass(slots=True)
class _Seen:
    #: Of the object that was read last; empty: there was none.
    version: str
    clusters: set[str] = field(default_factory=set)


def _of_nobody(namespace: str, name: str, clusters: frozenset[str]) -> bool:
    return False


class SecretReads:
    """Owns which Secrets were read, and as what; nothing of what is in them.

    It knows as many as present resources name, and those that BrokerClusters have made.
    """

    def __init__(
        self,
        api: Api,
        changed: Changed = _of_nobody,
        is_wanted: IsWanted = _of_nobody,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._api = api
        self._changed = changed
        self._is_wanted = is_wanted
        self._interval_s = interval_s
        self._seen: dict[tuple[str, str], _Seen] = {}

    async def get(self, namespace: str, name: str, cluster: str = "") -> Json | None:
        """A Secret, None if it is not there; `cluster` is the BrokerCluster that it is read for.

        Raises ApiError.
        """
        found = await self._api.get(path_of("v1", "Secret", namespace, name))
        metadata = {} if found is None else found["metadata"]
        version = f"{metadata.get('uid', '')} {metadata.get('resourceVersion', '')}".strip()
        seen = self._seen.setdefault((namespace, name), _Seen(version))
        if cluster:
            seen.clusters.add(cluster)
        if seen.version != version:
            seen.version = version
            self._changed(namespace, name, frozenset(seen.clusters))
        return found

    async def follow(self) -> None:
        """Read again what somebody needs, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._interval_s
            await self.look()
            await asyncio.sleep(max(due - loop.time(), PAUSE_S))

    async def look(self) -> None:
        """One round."""
        for (namespace, name), seen in list(self._seen.items()):
            if not self._is_wanted(namespace, name, frozenset(seen.clusters)):
                del self._seen[namespace, name]
                continue
            try:
                await self.get(namespace, name)
            except ApiError as error:
                # The pass that needs it says what that means.
                log.debug("Secret %s/%s: %s", namespace, name, error)
            await asyncio.sleep(PAUSE_S)
