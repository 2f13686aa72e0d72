"""The Kubernetes API as the operator uses it: JSON in, JSON out, by path.

The `kubernetes` client is synchronous; every request goes through one executor of 8 threads
(design/operator.md §13.2). One client library for configuration, login plug-ins and requests. For
`sources/` only.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import urlencode

import kubernetes
import urllib3
from kubernetes.client.exceptions import ApiException

from brokerd_operator.engine.ports import StoreError
from brokerd_operator.specs import registry

THREADS = 8
REQUEST_TIMEOUT_S = 20
FIELD_MANAGER = "brokerd-operator"
GROUP_PATH = "/apis/brokerd.io/v1alpha1"
#: Objects per page of a listing.
PAGE = 500
#: A listing in pages is of one moment, which the API server forgets after some minutes.
LIST_TRIES = 3
EXPIRED = 410
#: Overloaded, broken or restarting for a moment; 0 is no answer at all.
PASSING = frozenset((0, 429, 500, 502, 503, 504))
#: Status codes that another try may change by itself, without a change of the spec.
LATER = frozenset((401, 408, 409, 429))
PAGE_TRIES = 5
PAGE_RETRY_S = 0.25

Json = dict[str, Any]


class Page(NamedTuple):
    """A part of a listing."""

    items: list[Json]
    #: Of the whole listing.
    version: str
    #: What came before it, if anything did, is of an earlier moment.
    is_first: bool


#: Objects, and the version that the listing is of.
Listed = tuple[list[Json], str]

#: Plural names of other kinds that the operator makes.
PLURALS = {
    **registry.PLURALS,
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "ConfigMap": "configmaps",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
    "Event": "events",
    "Namespace": "namespaces",
    "StatefulSet": "statefulsets",
    "ControllerRevision": "controllerrevisions",
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "CronJob": "cronjobs",
    "Job": "jobs",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Lease": "leases",
    "Certificate": "certificates",
    "TLSRoute": "tlsroutes",
    "TCPRoute": "tcproutes",
}
KINDS = {plural: kind for kind, plural in PLURALS.items()}


class ApiError(StoreError):
    """A request failed; `status` is the HTTP status, 0 without an answer.

    `reason` is the API server's word for it: a 409 may be AlreadyExists or Conflict.
    """

    def __init__(
        self, status: int, message: str, method: str = "", reason: str = "", what: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.is_read = method == "GET"
        self.what = what
        self.is_answer = status != 0
        self.is_passing = status in LATER or status >= 500

    @property
    def is_not_found(self) -> bool:
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        return self.status == 409


def path_of(api_version: str, kind: str, namespace: str, name: str = "") -> str:
    """The path of an object, or of its collection."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    parts = [root]
    if namespace:
        parts += ["namespaces", namespace]
    parts.append(PLURALS[kind])
    if name:
        parts.append(name)
    return "/".join(parts)


def shown(path: str, body: Any) -> str:
    """What a request is about, in words: `status of User alice`."""
    parts = path.partition("?")[0].strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    if not rest:
        return path
    kind = KINDS.get(rest[0], rest[0])
    name = rest[1] if len(rest) > 1 else _named(body)
    part = f"{rest[2]} of " if len(rest) > 2 else ""
    return f"{part}{kind} {name}".rstrip()


def _named(body: Any) -> str:
    """The name of an object that is to be made."""
    metadata = body.get("metadata") if isinstance(body, dict) else None
    return str((metadata or {}).get("name") or "")


class Api:
    """Owns the client and its threads."""

    def __init__(self, threads: int = THREADS) -> None:
        configuration = kubernetes.client.Configuration()
        try:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
            # A proxy is for what is outside the cluster, whatever NO_PROXY says of its addresses.
            configuration.proxy = None
        except kubernetes.config.ConfigException:
            kubernetes.config.load_kube_config(client_configuration=configuration)
        # Retries are the work queue's.
        configuration.retries = False
        configuration.connection_pool_maxsize = threads
        self._client = kubernetes.client.ApiClient(configuration)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kubernetes")

    def close(self) -> None:
        """End the threads and connections."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._client.rest_client.pool_manager.clear()

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """One request; raises ApiError."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, self._request, method, path, body, query, content_type
        )

    def _request(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, str] | None,
        content_type: str,
    ) -> Json:
        if query:
            path = f"{path}?{urlencode(query)}"
        prepared = self._client.param_serialize(
            method,
            path,
            header_params={"Accept": "application/json", "Content-Type": content_type},
            auth_settings=["BearerToken"],
        )
        prepared_method, url, headers, _, post = prepared
        try:
            response = self._client.call_api(
                prepared_method, url, headers, body, post, _request_timeout=REQUEST_TIMEOUT_S
            )
            data = response.read()
        except ApiException as error:
            message = _said(error.body, "message") or str(error.reason)
            reason = _said(error.body, "reason")
            status = error.status or 0
            raise ApiError(status, message, method, reason, shown(path, body)) from error
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, f"the API server does not answer: {error}") from error
        if not 200 <= response.status <= 299:
            message = _said(data, "message") or str(response.reason)
            reason = _said(data, "reason")
            raise ApiError(response.status, message, method, reason, shown(path, body))
        found = json.loads(data, object_hook=_shared) if data else {}
        if not isinstance(found, dict):
            return {}
        for body in (found, *(found.get("items") or ())):
            forget_managers(body)
        return found

    async def get(self, path: str) -> Json | None:
        """An object, or None."""
        try:
            return await self.request("GET", path)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    async def list(self, path: str, selector: str = "") -> Listed:
        """All objects of a collection, and the version the listing is of."""
        found: list[Json] = []
        version = ""
        async for page in self.pages(path, selector):
            if page.is_first:
                found.clear()
            found += page.items
            version = page.version
        return found, version

    async def pages(self, path: str, selector: str = "") -> AsyncIterator[Page]:
        """A collection by pages, so that no caller has to keep it whole; all are of one moment.

        When the API server has forgotten that moment they begin anew, with a first page.
        """
        for tries_left in reversed(range(LIST_TRIES)):
            query = {"limit": str(PAGE)}
            if selector:
                query["labelSelector"] = selector
            try:
                while True:
                    found = await self.page(path, query)
                    metadata = found.get("metadata") or {}
                    version = str(metadata.get("resourceVersion") or "")
                    yield Page(found.pop("items", None) or [], version, "continue" not in query)
                    following = metadata.get("continue")
                    if not following:
                        return
                    query["continue"] = following
            except ApiError as error:
                if error.status != EXPIRED or not tries_left:
                    raise

    async def page(self, path: str, query: Mapping[str, str]) -> Json:
        """One page of a listing, which is of many: a passing failure does not undo the others."""
        pause = PAGE_RETRY_S
        for _ in range(PAGE_TRIES - 1):
            try:
                return await self.request("GET", path, query=query)
            except ApiError as error:
                if error.status not in PASSING:
                    raise
            await asyncio.sleep(pause)
            pause *= 2
        return await self.request("GET", path, query=query)

    async def merge(self, path: str, patch: Json, *, is_dry: bool = False) -> Json:
        """A JSON merge patch; `is_dry` only asks whether it would be taken."""
        dry = {"dryRun": "All"} if is_dry else {}
        return await self.request(
            "PATCH",
            path,
            patch,
            {"fieldManager": FIELD_MANAGER, **dry},
            "application/merge-patch+json",
        )

    async def apply(self, manifest: Json, *, is_dry: bool = False) -> Json:
        """Server-side apply: our fields win, others' fields stay; `is_dry` only asks what would
        come of it."""
        metadata = manifest["metadata"]
        path = path_of(
            manifest["apiVersion"], manifest["kind"], metadata["namespace"], metadata["name"]
        )
        dry = {"dryRun": "All"} if is_dry else {}
        return await self.request(
            "PATCH",
            path,
            manifest,
            {"fieldManager": FIELD_MANAGER, "force": "true", **dry},
            "application/apply-patch+yaml",
        )

    async def create(self, manifest: Json) -> Json | None:
        """Make an object; None if it is there already."""
        path = path_of(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["namespace"])
        try:
            return await self.request("POST", path, manifest, {"fieldManager": FIELD_MANAGER})
        except ApiError as error:
            # Another conflict, that of a quota counted at the same time, has made nothing.
            if error.reason == "AlreadyExists":
                return None
            raise

    async def delete(self, path: str, propagation: str = "Background") -> None:
        """Remove an object, if it is there."""
        try:
            await self.request("DELETE", path, {"propagationPolicy": propagation})
        except ApiError as error:
            if not error.is_not_found:
                raise


def forget_managers(body: Json) -> Json:
    """The body without what says who wrote which field: as large as the rest, and of no use here.

    Ten thousand bodies are kept.
    """
    metadata = body.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    return body


def _shared(found: Json) -> Json:
    """An object of an answer with names that all answers share: of ten thousand bodies that are
    kept the names of their fields would be a quarter."""
    return {sys.intern(name): value for name, value in found.items()}


def _said(data: bytes | str | None, name: str) -> str:
    """A field of an error; of a group that is not installed it is plain text, not JSON."""
    try:
        return str(json.loads(data or b"")[name])
    except (TypeError, ValueError, KeyError):
        return ""


def merge_patch(old: Any, new: Any) -> Any:
    """The merge patch that turns `old` into `new`; an empty dict when nothing differs."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    patch: Json = {name: None for name in old if name not in new}
    for name, value in new.items():
        if name not in old:
            patch[name] = value
        elif old[name] != value:
            patch[name] = merge_patch(old[name], value)
    return patch
