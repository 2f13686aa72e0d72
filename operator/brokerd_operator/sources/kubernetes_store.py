"""Resources in Kubernetes: statuses, finalizers, events, Secrets. Implements engine.ports.Store."""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from brokerd_operator.engine import keys
from brokerd_operator.engine.keys import FINALIZER, Body, Key
from brokerd_operator.engine.ports import Gone
from brokerd_operator.engine.versions import Version, version_of
from brokerd_operator.manifests import naming
from brokerd_operator.manifests import secrets as secret_manifests
from brokerd_operator.sources import events
from brokerd_operator.sources.api import Api, ApiError, Json, merge_patch, path_of
from brokerd_operator.sources.secret_reads import SecretReads
from brokerd_operator.specs.model import Meta
from brokerd_operator.specs.user import UserSpec

log = logging.getLogger(__name__)

#: So long an answer about a namespace counts.
TERMINATING_FRESH_S = 2.0
#: Tries of a change of finalizers, which others write as well.
CONFLICTS_MAX = 5
#: Events that are remembered, so that the same one is emitted once per generation.
EVENTS_REMEMBERED = 4096


class KubernetesStore:
    """Owns what is known of namespaces and which events were told."""

    def __init__(
        self,
        api: Api,
        put: Callable[[Body], None],
        remove: Callable[[Key, Version], None],
        namespaces: tuple[str, ...],
        hold: Callable[[str], Awaitable[None]],
        reads: SecretReads,
    ) -> None:
        self._api = api
        self._reads = reads
        self._recorder = events.EventRecorder(api)
        #: Take what the API server answered: newer than what the watch has told so far.
        self._put = put
        self._remove = remove
        self._watched = namespaces
        #: Keeps the operator's rights in a namespace, before the first finalizer is set there.
        self._hold = hold
        #: Watched namespaces that do not let the operator in.
        self.unavailable: set[str] = set()
        self._namespaces: dict[str, Json] = {}
        #: Namespaced operators read a namespace when they must know: whether it was being deleted,
        #: and when that was found.
        self._terminating: dict[str, tuple[bool, float]] = {}
        self._told: OrderedDict[tuple[Any, ...], None] = OrderedDict()
        self.status_writes = 0

    async def close(self) -> None:
        """After the last pass."""
        await self._recorder.close()

    def namespace_changed(self, body: Body, is_gone: bool) -> None:
        """News of a namespace (cluster-wide operators only)."""
        name = (body.get("metadata") or {}).get("name") or ""
        if is_gone:
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = dict(body)

    def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        metadata = self._namespaces.get(namespace, {}).get("metadata") or {}
        return metadata.get("labels") or {"kubernetes.io/metadata.name": namespace}

    async def is_namespace_terminating(self, namespace: str) -> bool:
        if not self._watched:
            metadata = self._namespaces.get(namespace, {}).get("metadata") or {}
            return bool(metadata.get("deletionTimestamp"))
        found, since = self._terminating.get(namespace, (False, -TERMINATING_FRESH_S))
        if time.monotonic() - since < TERMINATING_FRESH_S:
            return found
        try:
            return await self.is_namespace_ending(namespace)
        except ApiError as error:
            # Without the right to read it nothing new is known.
            log.debug("namespace %s: %s", namespace, error)
            self._terminating[namespace] = (found, time.monotonic())
            return found

    async def is_namespace_ending(self, namespace: str) -> bool:
        """Whether a namespace is being deleted or gone, asked now; raises ApiError."""
        body = await self._api.get(path_of("v1", "Namespace", "", namespace))
        found = body is None or bool(body["metadata"].get("deletionTimestamp"))
        self._terminating[namespace] = (found, time.monotonic())
        return found

    def is_watched(self, namespace: str) -> bool:
        is_ours = not self._watched or namespace in self._watched
        return is_ours and namespace not in self.unavailable

    # ---- resources ----------------------------------------------------------------------------

    def _path(self, key: Key) -> str:
        return path_of(naming.API_VERSION, key.kind, key.namespace, key.name)

    async def names(self, kind: str, namespace: str) -> frozenset[str]:
        bodies, _ = await self._api.list(path_of(naming.API_VERSION, kind, namespace))
        return frozenset(body["metadata"]["name"] for body in bodies)

    async def read(self, key: Key) -> Body | None:
        found = await self._api.get(self._path(key))
        return None if found is None else {**found, "kind": key.kind}

    async def write_status(self, body: Body, status: Mapping[str, Any]) -> None:
        """Patch what differs. The uid in the patch keeps it off a resource made anew."""
        key = keys.key_of(body)
        patch = merge_patch(body.get("status") or {}, status)
        wanted = {"metadata": {"uid": body["metadata"].get("uid")}, "status": patch}
        try:
            found = await self._api.merge(f"{self._path(key)}/status", wanted)
        except ApiError as error:
            if error.is_not_found or (error.is_conflict and await self._is_another(body)):
                raise Gone from error
            raise
        self.status_writes += 1
        self._put({**found, "kind": key.kind})

    async def _is_another(self, body: Body) -> bool:
        """A conflict may mean that the resource was made anew, or only that others write too."""
        current = await self._api.get(self._path(keys.key_of(body)))
        return current is None or current["metadata"].get("uid") != body["metadata"].get("uid")

    async def add_finalizer(self, body: Body) -> None:
        await self._hold(keys.key_of(body).namespace)
        await self._change_finalizers(body, add=True)

    async def remove_finalizer(self, body: Body) -> None:
        await self._change_finalizers(body, add=False)

    async def _change_finalizers(self, body: Body, *, add: bool) -> None:
        key = keys.key_of(body)
        current: Body | None = body
        for _ in range(CONFLICTS_MAX):
            if current is None or current["metadata"].get("uid") != body["metadata"].get("uid"):
                raise Gone
            metadata = current["metadata"]
            names = [name for name in metadata.get("finalizers") or () if name != FINALIZER]
            if add:
                names.append(FINALIZER)
            patch = {
                "metadata": {
                    "finalizers": names,
                    "resourceVersion": metadata.get("resourceVersion"),
                }
            }
            try:
                found = await self._api.merge(self._path(key), patch)
            except ApiError as error:
                if error.is_not_found:
                    raise Gone from error
                if not error.is_conflict:
                    raise
                current = await self._api.get(self._path(key))
                continue
            left = found["metadata"]
            if left.get("deletionTimestamp") and not left.get("finalizers"):
                # It is gone with its last finalizer, whether a watch says so or not.
                self._remove(key, version_of(found))
            else:
                self._put({**found, "kind": key.kind})
            return
        raise ApiError(409, f"{key.resource} changes all the time")

    async def emit(self, body: Body, type_: str, reason: str, message: str) -> None:
        """An Event, once per generation and text."""
        key = keys.key_of(body)
        metadata = body["metadata"]
        mark = (metadata.get("uid"), metadata.get("generation"), reason, message)
        if mark in self._told and reason != "DriftRepaired":
            return
        self._told[mark] = None
        if len(self._told) > EVENTS_REMEMBERED:
            self._told.popitem(last=False)
        involved = {
            "apiVersion": naming.API_VERSION,
            "kind": key.kind,
            "namespace": key.namespace,
            "name": key.name,
            "uid": metadata.get("uid"),
            "resourceVersion": metadata.get("resourceVersion"),
        }
        self._recorder.tell(events.event(involved, type_, reason, message))

    # ---- Secrets ------------------------------------------------------------------------------

    async def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        found = await self._reads.get(namespace, name)
        return None if found is None else decoded(found)

    async def make_user_secret(self, body: Body, meta: Meta, spec: UserSpec, host: str) -> None:
        name = spec.secret_name(meta)
        if await self._reads.get(meta.namespace, name) is not None:
            return
        if await self.is_namespace_terminating(meta.namespace):
            return
        await self._api.create(
            secret_manifests.user_secret(
                meta, spec.resolved_name(meta), secrets.token_urlsafe(24), host
            )
        )


def decoded(secret: Mapping[str, Any]) -> dict[str, bytes]:
    """The data of a Secret."""
    found = {}
    for name, text in (secret.get("data") or {}).items():
        try:
            found[name] = base64.b64decode(text)
        except (binascii.Error, ValueError, TypeError):
            continue
    return found
