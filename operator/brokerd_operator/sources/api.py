"""The Kubernetes API as the operator uses it: JSON in, JSON out, by path.

The `kubernetes` client is synchronous; every request goes through one executor of 8 threads
(operator.md §13.2). One client library for configuration, login plug-ins and requests. For
`sources/` only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import kubernetes
import urllib3
from kubernetes.client.exceptions import ApiException

from brokerd_operator.specs import registry

THREADS = 8
REQUEST_TIMEOUT_S = 20
FIELD_MANAGER = "brokerd-operator"
GROUP_PATH = "/apis/brokerd.io/v1alpha1"
#: Objects per page of a listing.
PAGE = 500

Json = dict[str, Any]

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
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "CronJob": "cronjobs",
    "Job": "jobs",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Lease": "leases",
}


class ApiError(OSError):
    """A request failed; `status` is the HTTP status, 0 without an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

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


class Api:
    """Owns the client and its threads."""

    def __init__(self) -> None:
        configuration = kubernetes.client.Configuration()
        try:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        except kubernetes.config.ConfigException:
            kubernetes.config.load_kube_config(client_configuration=configuration)
        # Retries are the work queue's.
        configuration.retries = False
        configuration.connection_pool_maxsize = THREADS
        self._client = kubernetes.client.ApiClient(configuration)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kubernetes")

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
            raise ApiError(error.status or 0, _message(error)) from error
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, f"the API server does not answer: {error}") from error
        found = json.loads(data) if data else {}
        if not 200 <= response.status <= 299:
            raise ApiError(response.status, str(found.get("message") or response.reason))
        return found if isinstance(found, dict) else {}

    async def get(self, path: str) -> Json | None:
        """An object, or None."""
        try:
            return await self.request("GET", path)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    async def list(self, path: str, selector: str = "") -> tuple[list[Json], str]:
        """All objects of a collection, and the version the listing is of."""
        found: list[Json] = []
        query = {"limit": str(PAGE)}
        if selector:
            query["labelSelector"] = selector
        while True:
            page = await self.request("GET", path, query=query)
            found += page.get("items") or []
            metadata = page.get("metadata") or {}
            following = metadata.get("continue")
            if not following:
                return found, str(metadata.get("resourceVersion") or "")
            query["continue"] = following

    async def merge(self, path: str, patch: Json) -> Json:
        """A JSON merge patch."""
        return await self.request(
            "PATCH",
            path,
            patch,
            {"fieldManager": FIELD_MANAGER},
            "application/merge-patch+json",
        )

    async def apply(self, manifest: Json) -> Json:
        """Server-side apply: our fields win, others' fields stay."""
        metadata = manifest["metadata"]
        path = path_of(
            manifest["apiVersion"], manifest["kind"], metadata["namespace"], metadata["name"]
        )
        return await self.request(
            "PATCH",
            path,
            manifest,
            {"fieldManager": FIELD_MANAGER, "force": "true"},
            "application/apply-patch+yaml",
        )

    async def create(self, manifest: Json) -> Json | None:
        """Make an object; None if it is there already."""
        path = path_of(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["namespace"])
        try:
            return await self.request("POST", path, manifest, {"fieldManager": FIELD_MANAGER})
        except ApiError as error:
            if error.is_conflict:
                return None
            raise

    async def delete(self, path: str) -> None:
        """Remove an object, if it is there."""
        try:
            await self.request("DELETE", path, {"propagationPolicy": "Background"})
        except ApiError as error:
            if not error.is_not_found:
                raise


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)


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
