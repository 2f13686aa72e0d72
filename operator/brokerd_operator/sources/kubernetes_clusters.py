"""BrokerClusters as StatefulSets: the Kubernetes shell's cluster driver.

Implements `engine.shell.ClusterDriver`: makes Secrets and certificates once, applies the objects of
`manifests/` by server-side apply, and reads back how the pods are. Everything belongs to the
BrokerCluster by owner references, so its deletion needs no work here.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.broker import members
from brokerd_operator.broker.client import Target
from brokerd_operator.engine.keys import Body
from brokerd_operator.engine.shell import ClusterReport
from brokerd_operator.manifests import cluster as cluster_manifests
from brokerd_operator.manifests import naming
from brokerd_operator.manifests import secrets as secret_manifests
from brokerd_operator.manifests.naming import Context
from brokerd_operator.reconcile import scaling
from brokerd_operator.reconcile.scaling import Fleet, Step, StepKind
from brokerd_operator.settings import Settings
from brokerd_operator.sources import certificates
from brokerd_operator.sources.api import Api, Json, path_of
from brokerd_operator.sources.kubernetes_store import decoded
from brokerd_operator.specs import arguments
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.model import ClusterAddress, Meta, Reference

#: What was applied last, so that an unchanged object costs a GET and no write.
APPLIED_HASH = "brokerd.io/applied-hash"
#: Of the template that a pod was made from.
REVISION_LABEL = "controller-revision-hash"
WAITING_AGAIN_S = 5.0
STEP_AGAIN_S = 1.0
STEADY_AGAIN_S = 300.0


class KubernetesClusters:
    """Owns what is known of clusters' specs and readiness."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self._api = api
        self._settings = settings
        self._contexts: dict[str, Context] = {}
        self._ready: dict[str, int] = {}

    async def reconcile(self, body: Body, meta: Meta, spec: BrokerClusterSpec) -> ClusterReport:
        """Make everything that is missing or differs; say how the pods are."""
        key = f"{meta.namespace}/{meta.name}"
        stateful_set = await self._api.get(
            path_of("apps/v1", "StatefulSet", meta.namespace, meta.name)
        )
        initial = _annotated(stateful_set, naming.INITIAL_REPLICAS)
        before = _annotated(stateful_set, naming.MEMBERS) or initial
        context = Context(
            meta,
            spec,
            self._settings.images,
            self._settings.namespace,
            initial or None,
            before or None,
        )
        missing = await self._missing_secrets(context)
        if missing:
            return ClusterReport(
                "WaitingForSecret", f"Secret {missing} does not exist", again_s=WAITING_AGAIN_S
            )
        await self._make_secrets(context)
        step, problem = await self._step(context, stateful_set or {})
        count = _replicas(stateful_set or {})
        manifests = cluster_manifests.objects(
            context, step.count if step.kind is StepKind.RESIZE else count
        )
        for manifest in manifests:
            await self._apply(manifest)
        await self._remove_others(context, manifests)
        stateful_set = await self._api.get(
            path_of("apps/v1", "StatefulSet", meta.namespace, meta.name)
        )
        self._contexts[key] = context
        return await self._report(context, stateful_set or {}, step, problem)

    async def _step(self, context: Context, stateful_set: Json) -> tuple[Step, str]:
        """Take the next step that is the broker's or a pod's; the step, and why it failed."""
        pods = await self._pods(context) if stateful_set else []
        current = _replicas(stateful_set)
        ready = frozenset(_pod_name(pod) for pod in pods if is_pod_serving(pod))
        target = await self._target(context, current) if ready else None
        fleet = Fleet(
            context.name,
            context.spec.replicas,
            current,
            context.members or 0,
            await members.listed(target) if context.spec.replicas else None,
            ready,
            outdated(stateful_set, pods),
        )
        step = scaling.next_step(fleet)
        if step.kind not in (StepKind.ADD, StepKind.REMOVE, StepKind.RESTART):
            return step, ""
        problem = ""
        if step.kind is not StepKind.RESTART or step.member in ready:
            asked = await self._target(context, current, without=step.member)
            if asked is not None:
                address = context.peer_address(step.member)
                problem = await members.carry_out(asked, step, address)
        if step.kind is StepKind.RESTART and not problem:
            await self._api.delete(path_of("v1", "Pod", context.namespace, step.member))
        return step, problem

    async def _target(self, context: Context, count: int, without: str = "") -> Target | None:
        """How the first `count` members' administration is reached."""
        login = await self._secret(context, context.admin_secret)
        names = [f"{context.name}-{ordinal}" for ordinal in range(count)]
        addresses = tuple(
            f"{context.member_host(name)}:{naming.PORT_GRPC}" for name in names if name != without
        )
        if not addresses or "username" not in login or "password" not in login:
            return None
        tls = context.spec.tls
        ca = await self._secret(context, tls.ca_secret_name or context.tls_secret)
        return Target(
            addresses,
            login["username"].decode(),
            login["password"].decode(),
            ca.get("ca.crt", b""),
        )

    async def teardown(self, body: Body, meta: Meta) -> bool:
        """The garbage collector follows the owner references; volumes go by their retention."""
        self._contexts.pop(f"{meta.namespace}/{meta.name}", None)
        self._ready.pop(f"{meta.namespace}/{meta.name}", None)
        return True

    async def target(self, reference: Reference) -> Target | None:
        context = self._contexts.get(reference.key)
        if context is None or not self._ready.get(reference.key):
            return None
        return await self._target(context, context.members or context.spec.replicas)

    async def address(self, reference: Reference) -> ClusterAddress | None:
        context = self._contexts.get(reference.key)
        if context is None:
            return None
        login = await self._secret(context, context.admin_secret)
        if "username" not in login or "password" not in login:
            return None
        is_tls = context.spec.tls.disable_plain
        port = naming.PORT_AMQPS if is_tls else naming.PORT_AMQP
        return ClusterAddress(
            (f"{context.client_host}:{port}",),
            login["username"].decode(),
            login["password"].decode(),
            is_tls,
        )

    # ---- Secrets ------------------------------------------------------------------------------

    async def _secret(self, context: Context, name: str) -> Mapping[str, bytes]:
        found = await self._api.get(path_of("v1", "Secret", context.namespace, name))
        return {} if found is None else decoded(found)

    async def _missing_secrets(self, context: Context) -> str:
        """The first Secret that the user was to bring along and that is not there."""
        for reference in context.spec.references(context.meta):
            path = path_of("v1", "Secret", reference.namespace, reference.name)
            if await self._api.get(path) is None:
                return reference.name
        return ""

    async def _make_secrets(self, context: Context) -> None:
        """Random values and certificates are made once and never changed by a pass."""
        if not await self._secret(context, context.admin_secret):
            manifest = secret_manifests.admin_secret(context, secrets.token_urlsafe(24))
            await self._create(manifest)
        if not await self._secret(context, context.cluster_secret):
            manifest = secret_manifests.cluster_secret(context, secrets.token_urlsafe(32))
            await self._create(manifest)
        ca, ca_key = await self._certificate_authority(context)
        if context.spec.tls.secret_name is None and not await self._secret(
            context, context.tls_secret
        ):
            names = secret_manifests.serving_names(context)
            certificate = certificates.make_certificate(ca, ca_key, names)
            await self._create(secret_manifests.tls_secret(context, certificate))
        if not await self._secret(context, context.peer_tls_secret):
            names = secret_manifests.peer_names(context)
            certificate = certificates.make_certificate(ca, ca_key, names)
            await self._create(secret_manifests.peer_tls_secret(context, certificate))

    async def _certificate_authority(self, context: Context) -> tuple[bytes, bytes]:
        present = await self._secret(context, f"{context.name}-ca")
        if "ca.crt" not in present or "ca.key" not in present:
            ca, ca_key = certificates.make_ca(f"{context.namespace}/{context.name} CA")
            await self._create(secret_manifests.ca_secret(context, ca, ca_key))
            # Another operator may have been faster: what is stored counts.
            present = await self._secret(context, f"{context.name}-ca")
        return present["ca.crt"], present["ca.key"]

    async def _create(self, manifest: Json | None) -> None:
        if manifest is not None:
            await self._api.create(manifest)

    # ---- objects ------------------------------------------------------------------------------

    async def _apply(self, manifest: Json) -> None:
        """Apply what is not there, was changed by us, or by others."""
        metadata = manifest["metadata"]
        digest = arguments.digest(manifest, 32)
        path = path_of(
            manifest["apiVersion"], manifest["kind"], metadata["namespace"], metadata["name"]
        )
        live = await self._api.get(path)
        if live is not None:
            applied = (live["metadata"].get("annotations") or {}).get(APPLIED_HASH)
            if applied == digest and is_part(manifest, live):
                return
        marked = {
            **manifest,
            "metadata": {
                **metadata,
                "annotations": {**(metadata.get("annotations") or {}), APPLIED_HASH: digest},
            },
        }
        await self._api.apply(marked)

    async def _remove_others(self, context: Context, manifests: list[Json]) -> None:
        """What an earlier spec asked for and this one does not."""
        wanted = {
            (item["apiVersion"], item["kind"], item["metadata"]["name"]) for item in manifests
        }
        for api_version, kind, name in cluster_manifests.possible(context):
            if (api_version, kind, name) in wanted:
                continue
            path = path_of(api_version, kind, context.namespace, name)
            live = await self._api.get(path)
            if live is not None and _is_ours(live, context):
                await self._api.delete(path)

    # ---- status -------------------------------------------------------------------------------

    async def _report(
        self, context: Context, stateful_set: Json, step: Step, problem: str
    ) -> ClusterReport:
        meta, spec = context.meta, context.spec
        state = stateful_set.get("status") or {}
        pods = await self._pods(context)
        ready = sum(1 for pod in pods if is_pod_serving(pod))
        self._ready[f"{meta.namespace}/{meta.name}"] = ready
        total = _replicas(stateful_set)
        old = outdated(stateful_set, pods)
        reason, message = _verdict(spec, total, ready, step, problem)
        generation = meta.generation
        text = f"{ready} of {total} members are ready"
        has_majority = ready * 2 > total and ready > 0
        is_whole = ready == total and total > 0
        selector = naming.selector(context)
        fields: dict[str, Any] = {
            "replicas": int(state.get("replicas") or 0),
            "readyReplicas": ready,
            "selector": ",".join(f"{name}={value}" for name, value in sorted(selector.items())),
            "image": context.broker_image,
            "members": [_member(pod) for pod in sorted(pods, key=_pod_name)][:16],
            "endpoints": _endpoints(context),
            "adminSecret": context.admin_secret,
            "binding": {"name": context.admin_secret},
        }
        found = (
            conditions.build(
                conditions.AVAILABLE,
                has_majority,
                "Majority" if has_majority else "NoMajority",
                text,
                generation,
            ),
            conditions.build(
                conditions.ALL_REPLICAS_READY,
                is_whole,
                "AllReady" if is_whole else "NotAllReady",
                text,
                generation,
            ),
        )
        is_steady = step.kind is StepKind.DONE and not old and not is_behind(stateful_set)
        again = STEADY_AGAIN_S if is_steady and (is_whole or not total) else WAITING_AGAIN_S
        if step.kind not in (StepKind.DONE, StepKind.WAIT) and not problem:
            again = STEP_AGAIN_S
        return ClusterReport(reason, message, found, fields, again)

    async def _pods(self, context: Context) -> list[Json]:
        selector = ",".join(f"{k}={v}" for k, v in naming.selector(context).items())
        pods, _ = await self._api.list(path_of("v1", "Pod", context.namespace), selector)
        return pods


def _verdict(
    spec: BrokerClusterSpec, total: int, ready: int, step: Step, problem: str
) -> tuple[str, str]:
    if not spec.replicas:
        return ("Stopped", "replicas is 0; the volumes are kept")
    text = f"{ready} of {total} members are ready"
    if problem:
        return ("BrokerRefused", f"{text}; {scaling.said(step)}: {problem}")
    if ready * 2 <= total:
        return ("WaitingForMembers", text)
    if step.kind is StepKind.DONE:
        return ("Available", text)
    return ("Progressing", f"{text}; {scaling.said(step)}")


def _replicas(stateful_set: Json) -> int:
    return int((stateful_set.get("spec") or {}).get("replicas") or 0)


def _annotated(stateful_set: Json | None, name: str) -> int:
    if stateful_set is None:
        return 0
    text = (stateful_set["metadata"].get("annotations") or {}).get(name, "")
    return int(text) if text.isdecimal() else 0


def is_behind(stateful_set: Json) -> bool:
    """Whether the controller has not looked at the newest template yet."""
    generation = (stateful_set.get("metadata") or {}).get("generation") or 0
    return int((stateful_set.get("status") or {}).get("observedGeneration") or 0) < generation


def outdated(stateful_set: Json, pods: Sequence[Json]) -> list[str]:
    """Names of pods that were made from an older template; none while that is not known."""
    newest = (stateful_set.get("status") or {}).get("updateRevision")
    if not newest or is_behind(stateful_set):
        return []
    return [
        _pod_name(pod)
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
        and (pod["metadata"].get("labels") or {}).get(REVISION_LABEL, newest) != newest
    ]


def is_pod_serving(pod: Json) -> bool:
    """Ready, and not on its way out (CO#1993)."""
    return is_pod_ready(pod) and not pod["metadata"].get("deletionTimestamp")


def is_pod_ready(pod: Json) -> bool:
    found = (pod.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in found)


def _pod_name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _member(pod: Json) -> Json:
    state = "ready" if is_pod_ready(pod) else "starting"
    if pod["metadata"].get("deletionTimestamp"):
        state = "stopping"
    return {"name": _pod_name(pod), "podUID": pod["metadata"].get("uid", ""), "state": state}


def _endpoints(context: Context) -> dict[str, str]:
    host = context.client_host
    found = {"amqps": f"{host}:{naming.PORT_AMQPS}", "grpc": f"{host}:{naming.PORT_GRPC}"}
    if not context.spec.tls.disable_plain:
        found["amqp"] = f"{host}:{naming.PORT_AMQP}"
    return found


def _is_ours(live: Json, context: Context) -> bool:
    owners = live["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == context.meta.uid for owner in owners)


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
