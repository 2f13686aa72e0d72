"""Objects of a BrokerCluster in Kubernetes: applied one by one, and what the API server refused.

A refused object does not stop the others: they are applied all the same, and the refusals go into
the status. For the Kubernetes driver (kubernetes_clusters.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import Any

from brokerd_operator.manifests import cluster as cluster_manifests
from brokerd_operator.manifests import naming
from brokerd_operator.manifests.naming import Context
from brokerd_operator.sources.api import Api, ApiError, Json, path_of
from brokerd_operator.specs import arguments

#: What was applied last, so that an unchanged object costs a GET and no write.
APPLIED_HASH = "brokerd.io/applied-hash"
#: Of the metadata, what applying can change.
METADATA = ("labels", "annotations", "ownerReferences", "finalizers")
#: Refusals that a message names in full; the others are counted.
SHOWN_MAX = 3


class NameConflict(Exception):
    """An object of this name was made by somebody else; the text says which and what to do."""


@dataclass(slots=True)
class Refusals:
    """What the API server did not take in one pass, and what is somebody else's."""

    _lines: list[str] = field(default_factory=list)
    _lasting: list[str] = field(default_factory=list)
    _is_conflict: bool = False

    def add(self, what: str, error: ApiError) -> None:
        """Note a refusal; raises the error again if it is no answer, or that of a failed read.

        Those pass by themselves and say nothing about the objects: the queue tries again.
        """
        if not error.status or (error.is_read and error.is_passing):
            raise error
        line = f"{what}: {error}"
        if error.is_passing:
            self._lines.append(line)
        else:
            self.add_lasting(line)

    def add_lasting(self, line: str) -> None:
        """Note a refusal that somebody must do something about, of others' requests as well."""
        self._lines.append(line)
        self._lasting.append(line)

    async def collect(self, what: str, work: Awaitable[object]) -> bool:
        """Wait for `work`; whether the API server took it."""
        try:
            await work
        except ApiError as error:
            self.add(what, error)
            return False
        except NameConflict as error:
            self.add_conflict(error)
            return False
        return True

    def add_conflict(self, conflict: NameConflict) -> None:
        """Note an object that is not touched."""
        self._is_conflict = True
        self._lines.append(str(conflict))

    def __bool__(self) -> bool:
        return bool(self._lines)

    @property
    def reason(self) -> str:
        """Lasting ones come first: somebody has to do something about them."""
        if self._is_conflict:
            return "NameConflict"
        return "ApiRefused" if self._lasting else "WaitingForApi"

    @property
    def lasting(self) -> tuple[str, ...]:
        """Those that somebody must do something about."""
        return tuple(self._lasting)

    @property
    def message(self) -> str:
        shown = "; ".join(self._lines[:SHOWN_MAX])
        more = len(self._lines) - SHOWN_MAX
        return f"{shown}; and {more} more" if more > 0 else shown


class ClusterObjects:
    """Applies and removes; knows nothing itself."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def apply_all(
        self, context: Context, manifests: Iterable[Json], refusals: Refusals
    ) -> None:
        """Apply each, whatever became of those before it."""
        for manifest in manifests:
            what = f"{manifest['kind']} {manifest['metadata']['name']}"
            await refusals.collect(what, self.apply(context, manifest))

    async def apply(self, context: Context, manifest: Json) -> None:
        """Apply what is not there, was changed by us, or by others.

        Raises NameConflict where somebody else made an object of this name.
        """
        metadata = manifest["metadata"]
        path = path_of(
            manifest["apiVersion"], manifest["kind"], metadata["namespace"], metadata["name"]
        )
        live = await self._api.get(path)
        if live is not None:
            kind, name = manifest["kind"], metadata["name"]
            if owner := naming.controller(context, live):
                raise NameConflict(naming.controlled(context, kind, name, owner))
            if naming.is_foreign(context, live):
                raise NameConflict(naming.conflict(context, kind, name))
            if not await self.pending(manifest, live):
                return
        await self._api.apply(marked(manifest))

    async def pending(self, manifest: Json, live: Json) -> list[str]:
        """What applying an object would change of it, by path; nothing if it is as it is to be.

        What others have added or what admission makes of it is no difference: the API server knows
        which fields are whose, and is asked where the object is not simply equal. Raises ApiError.
        """
        wanted = marked(manifest)
        if is_part(wanted, live):
            return []
        return differences(_lasting(live), _lasting(await self._api.apply(wanted, is_dry=True)))

    async def remove_others(
        self, context: Context, manifests: list[Json], refusals: Refusals
    ) -> None:
        """What an earlier spec asked for and this one does not."""
        wanted = {
            (item["apiVersion"], item["kind"], item["metadata"]["name"]) for item in manifests
        }
        for api_version, kind, name in cluster_manifests.possible(context):
            if (api_version, kind, name) not in wanted:
                path = path_of(api_version, kind, context.namespace, name)
                await refusals.collect(f"{kind} {name}", self._remove(context, path))

    async def _remove(self, context: Context, path: str) -> None:
        live = await self._api.get(path)
        if live is not None and _is_ours(live, context):
            await self._api.delete(path)


def _is_ours(live: Json, context: Context) -> bool:
    owners = live["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == context.meta.uid for owner in owners)


def marked(manifest: Json) -> Json:
    """The manifest with its digest: what an earlier one set and this one leaves out goes only when
    it is applied, however equal all else is."""
    metadata = manifest["metadata"]
    annotations = {
        **(metadata.get("annotations") or {}),
        APPLIED_HASH: arguments.digest(manifest, 32),
    }
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _lasting(body: Json) -> Json:
    """What of an object writes change; the rest is the API server's and the controllers'."""
    metadata = {name: body["metadata"].get(name) or None for name in METADATA}
    kept = {name: value for name, value in body.items() if name not in ("status", "metadata")}
    return {**kept, "metadata": metadata}


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Paths at which two objects differ; entries of lists are named where they have names."""
    if before == after:
        return []
    if isinstance(before, dict) and isinstance(after, dict):
        names = [*before, *(name for name in after if name not in before)]
        found = [
            differences(before.get(name), after.get(name), f"{path}.{name}" if path else str(name))
            for name in names
        ]
        return [item for part in found for item in part]
    left, right = _by_name(before), _by_name(after)
    if left is None or right is None:
        return [path]
    names = [*left, *(name for name in right if name not in left)]
    found = [differences(left.get(name), right.get(name), f"{path}[{name}]") for name in names]
    # Only their order differs otherwise.
    return [item for part in found for item in part] or [path]


def _by_name(items: Any) -> dict[str, Any] | None:
    """Entries of a list by name; None where they have none."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return None
    found = {str(item["name"]): item for item in items if item.get("name")}
    return found if len(found) == len(items) else None


def is_part(wanted: Any, live: Any) -> bool:
    """Whether `live` holds all that `wanted` says; defaults of the API server may be more."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            is_part(value, live.get(name)) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(wanted) == len(live)
            and all(is_part(left, right) for left, right in zip(wanted, live, strict=True))
        )
    if wanted in (None, "", 0, False):
        # Empty values are left out by the API server.
        return live in (None, "", 0, False)
    return bool(wanted == live)
