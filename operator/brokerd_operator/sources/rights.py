"""The operator's rights in a namespace outlive its finalizers there. For `sources/`.

A namespace that is deleted takes its RoleBindings along, and with the operator's own binding goes
the right to take its finalizers off: the namespace would never end. So the binding carries a
finalizer too, from before the first resource has one, and loses it when it is itself deleted and
nothing is left to do: no resource is left in a namespace that ends, or the namespace stays, and
somebody has taken the rights away on purpose (an uninstalled release, a shorter list of watched
namespaces).
"""

from __future__ import annotations

import logging

from brokerd_operator.engine.keys import PREFIX, Body
from brokerd_operator.sources.api import Api, ApiError, Json, path_of

log = logging.getLogger(__name__)

RBAC = "rbac.authorization.k8s.io/v1"
FINALIZER = PREFIX + "rights"
#: Tries of a change of the binding, which others write as well.
CONFLICTS_MAX = 5


def is_held(binding: Body) -> bool:
    return FINALIZER in (binding["metadata"].get("finalizers") or ())


def is_ending(binding: Body) -> bool:
    return bool(binding["metadata"].get("deletionTimestamp"))


class Rights:
    """Owns which namespaces' bindings are held. `binding` is empty where there is none to hold."""

    def __init__(self, api: Api, binding: str, namespaces: tuple[str, ...]) -> None:
        self._api = api
        self.binding = binding
        self._namespaces = frozenset(namespaces) if binding else frozenset()
        self._held: set[str] = set()

    def guards(self, namespace: str) -> bool:
        return namespace in self._namespaces

    async def hold(self, namespace: str) -> None:
        """Before a finalizer is set in a namespace; raises ApiError."""
        if namespace in self._held or not self.guards(namespace):
            return
        for _ in range(CONFLICTS_MAX):
            binding = await self.read(namespace)
            if binding is None:
                # The rights come from elsewhere; they are not ours to keep.
                log.warning("namespace %s has no RoleBinding %s to keep", namespace, self.binding)
                break
            if is_held(binding) or is_ending(binding):
                break
            if await self._change(namespace, binding, add=True):
                break
        self._held.add(namespace)

    async def hold_again(self, namespace: str) -> None:
        """For resources that have the finalizer: who set it may have known no binding to hold, and
        the binding may have been made anew since."""
        self.forget(namespace)
        try:
            await self.hold(namespace)
        except ApiError as error:
            log.warning("the RoleBinding of namespace %s is not held: %s", namespace, error)

    def forget(self, namespace: str) -> None:
        """The binding may be another one when the namespace comes back."""
        self._held.discard(namespace)

    async def read(self, namespace: str) -> Json | None:
        return await self._api.get(path_of(RBAC, "RoleBinding", namespace, self.binding))

    async def release(self, namespace: str) -> None:
        """Let the binding go; raises ApiError."""
        for _ in range(CONFLICTS_MAX):
            binding = await self.read(namespace)
            if binding is None or not is_held(binding):
                return
            if await self._change(namespace, binding, add=False):
                log.info("rights are let go namespace=%s", namespace)
                return

    async def _change(self, namespace: str, binding: Json, *, add: bool) -> bool:
        metadata = binding["metadata"]
        names = [name for name in metadata.get("finalizers") or () if name != FINALIZER]
        if add:
            names.append(FINALIZER)
        patch = {
            "metadata": {"finalizers": names, "resourceVersion": metadata.get("resourceVersion")}
        }
        try:
            await self._api.merge(path_of(RBAC, "RoleBinding", namespace, self.binding), patch)
        except ApiError as error:
            if error.is_conflict:
                return False
            if not error.is_not_found:
                raise
        return True
