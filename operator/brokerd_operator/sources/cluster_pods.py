"""The members' pods in Kubernetes: which are there, which are outdated, resizing running ones.

For the Kubernetes driver (kubernetes_clusters.py); decided by reconcile/rollout.py and resizing.py.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from brokerd_operator.manifests import naming
from brokerd_operator.manifests.naming import Context
from brokerd_operator.reconcile import resizing, rollout
from brokerd_operator.reconcile.resizing import State
from brokerd_operator.sources.api import Api, ApiError, Json, path_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outdated:
    """Members that have to be restarted, and what is said of those that need not be."""

    names: tuple[str, ...] = ()
    resizing: tuple[str, ...] = ()


class ClusterPods:
    """Reads and patches pods; knows nothing itself."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def all(self, context: Context) -> list[Json]:
        selector = ",".join(f"{k}={v}" for k, v in naming.selector(context).items())
        pods, _ = await self._api.list(path_of("v1", "Pod", context.namespace), selector)
        return pods

    async def outdated(
        self,
        context: Context,
        stateful_set: Json,
        pods: Sequence[Json],
        fenced: Collection[str],
    ) -> Outdated:
        """Members that need a restart; those that only need other resources get them meanwhile."""
        older = rollout.outdated(stateful_set, pods)
        if not older:
            return Outdated()
        newest = await self._template(context, stateful_set["status"]["updateRevision"])
        names, told = [], []
        for pod in older:
            name = rollout.pod_name(pod)
            old = await self._template(context, rollout.revision_of(pod))
            if newest is None or old is None or not resizing.is_possible(old, newest):
                names.append(name)
                continue
            state, said = resizing.state(pod, newest)
            is_touched = name not in fenced and rollout.is_pod_serving(pod)
            if state is State.ASK and is_touched and await self._resize(context, name, newest):
                state = State.PENDING
            if state in (State.ASK, State.IMPOSSIBLE):
                names.append(name)
            elif state is State.PENDING:
                told.append(f"{name} gets its resources without a restart{said and f' ({said})'}")
        return Outdated(tuple(names), tuple(told))

    async def _template(self, context: Context, revision: str) -> Json | None:
        """A template by its name; None: it cannot be read, so that differences are not known."""
        path = path_of("apps/v1", "ControllerRevision", context.namespace, revision)
        try:
            found = await self._api.get(path)
        except ApiError as error:
            if not error.status or error.is_passing:
                raise
            log.warning("template %s cannot be read: %s", revision, error)
            return None
        return None if found is None else found["data"]["spec"]["template"]

    async def _resize(self, context: Context, name: str, template: Json) -> bool:
        """Ask for it; False where the API server has no such thing, or does not take it."""
        path = f"{path_of('v1', 'Pod', context.namespace, name)}/resize"
        try:
            await self._api.request(
                "PATCH",
                path,
                resizing.patch(template),
                content_type="application/strategic-merge-patch+json",
            )
        except ApiError as error:
            if not error.status or error.is_passing:
                raise
            log.warning("pod %s is restarted rather than resized: %s", name, error)
            return False
        return True
