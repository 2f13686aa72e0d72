"""BrokerClusters as StatefulSets: the Kubernetes shell's cluster driver.

Implements `engine.ports.ClusterDriver`: has Secrets and certificates made, applies the objects of
`manifests/` by server-side apply, and reads back how the pods are. Everything belongs to the
BrokerCluster by owner references, so its deletion needs no work here.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.broker import members
from brokerd_operator.broker.client import Target
from brokerd_operator.engine import keys
from brokerd_operator.engine.keys import Body
from brokerd_operator.engine.ports import ClusterReport
from brokerd_operator.manifests import cluster as cluster_manifests
from brokerd_operator.manifests import naming
from brokerd_operator.manifests import secrets as secret_manifests
from brokerd_operator.manifests.naming import Context
from brokerd_operator.manifests.remembered import Remembered
from brokerd_operator.reconcile import lifecycle, rollout, scaling, volumes
from brokerd_operator.reconcile.lifecycle import Pass
from brokerd_operator.reconcile.rollout import is_behind, is_pod_ready, is_pod_serving, pod_name
from brokerd_operator.reconcile.scaling import Fleet, Step, StepKind
from brokerd_operator.settings import Settings
from brokerd_operator.sources import serving_certificates, shown_certificates
from brokerd_operator.sources.api import Api, ApiError, Json, path_of
from brokerd_operator.sources.cluster_certificates import (
    CertificateReport,
    ClusterCertificates,
    Emit,
)
from brokerd_operator.sources.cluster_events import ClusterEvents
from brokerd_operator.sources.cluster_objects import ClusterObjects, Refusals
from brokerd_operator.sources.cluster_pods import ClusterPods, Outdated
from brokerd_operator.sources.cluster_routes import AGAIN_S as ROUTE_AGAIN_S
from brokerd_operator.sources.cluster_routes import ClusterRoutes
from brokerd_operator.sources.cluster_secrets import BeingRemoved, ClusterSecrets
from brokerd_operator.sources.cluster_volumes import ClusterVolumes
from brokerd_operator.sources.secret_reads import SecretReads
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.model import ClusterAddress, Meta, Reference

log = logging.getLogger(__name__)

WAITING_AGAIN_S = 5.0
STEP_AGAIN_S = 1.0
STEADY_AGAIN_S = 300.0
#: Time after which a missing pod, such as one that a quota refuses, is reported.
NO_POD_S = 4.0
#: Bound of the CRD.
END_MAX = 256
#: Of the driver's own; the engine knows the others.
CONDITIONS = (
    conditions.AVAILABLE,
    conditions.ALL_REPLICAS_READY,
    conditions.UPGRADE_PENDING,
    conditions.HIBERNATED,
    conditions.FENCED,
    conditions.CERTIFICATES_VALID,
    conditions.ROUTE_ACCEPTED,
)
#: What the scheduler says of a pod, for its claims among others.
UNSCHEDULABLE = "Unschedulable"
#: Fields of the StatefulSet that a message names.
PATHS_SHOWN_MAX = 3
#: What the API server refuses may be taken when a quota or a right has changed.
REFUSED_AGAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Taken:
    """The step that was taken in a pass, and why it failed."""

    step: Step
    problem: str
    outdated: Outdated
    #: Members that are in maintenance because the spec says so.
    fenced: tuple[str, ...]
    hold: rollout.Hold | None
    #: What is wrong with the certificates that members show, where that is why none can be asked.
    distrust: str = ""


class KubernetesClusters:
    """Owns what is known of clusters' specs and readiness.

    In one piece: it is the order of a pass over the parts that do the work, and decides nothing.
    """

    def __init__(self, api: Api, settings: Settings, emit: Emit, reads: SecretReads) -> None:
        self._api = api
        self._settings = settings
        self._emit = emit
        self._secrets = ClusterSecrets(api, reads)
        self._certificates = ClusterCertificates(api, self._secrets, settings.lifetimes, emit)
        self._objects = ClusterObjects(api)
        self._pods = ClusterPods(api)
        self._events = ClusterEvents(api)
        self._volumes = ClusterVolumes(api)
        self._routes = ClusterRoutes(api, self._objects.apply)
        self._contexts: dict[str, Context] = {}
        self._ready: dict[str, int] = {}
        #: Members without a pod, by cluster: since when that is so.
        self._missing: dict[str, dict[str, datetime.datetime]] = {}
        #: Secrets with certificates and authorities that running members have, by cluster.
        self._mounted: dict[str, tuple[str, ...]] = {}
        #: Whether members show certificates that the system's authorities have signed, by cluster.
        self._by_system: dict[str, bool] = {}
        #: Whom the admin Secret named last: it may be gone, the account is not.
        self._users: dict[str, str] = {}

    async def reconcile(self, body: Body, meta: Meta, spec: BrokerClusterSpec) -> ClusterReport:
        """Make everything that is missing or differs; say how the pods are."""
        refusals = Refusals()
        try:
            return await self._reconcile(body, meta, spec, refusals)
        except ApiError as error:
            # Raises it again where the API server did not answer: nothing could be written now.
            refusals.add(error.what or f"BrokerCluster {meta.name}", error)
        report = ClusterReport(refusals.reason, refusals.message, again_s=REFUSED_AGAIN_S)
        return _as_before(replace(report, refused=refusals.lasting), body)

    async def _reconcile(
        self, body: Body, meta: Meta, spec: BrokerClusterSpec, refusals: Refusals
    ) -> ClusterReport:
        path = path_of("apps/v1", "StatefulSet", meta.namespace, meta.name)
        stateful_set = await self._api.get(path)
        context, image = await self._context(body, meta, spec, stateful_set)
        obstacle = await self._ask_issuer(context, refusals)
        issued = secret_manifests.issued_certificate(context)
        context, unusable = await self._tls(context, stateful_set)
        if obstacle is None:
            obstacle = await self._obstacles(context, stateful_set)
        if obstacle is not None:
            return _as_before(obstacle, body)
        try:
            await refusals.collect("Secrets", self._secrets.make(context))
            certificates = await self._make_certificates(context, body, refusals)
        except BeingRemoved as error:
            text = f"Secret {error} of the BrokerCluster of this name before is still being removed"
            return ClusterReport("WaitingForSecret", text, again_s=STEP_AGAIN_S)
        context, plan, claims = await self._grow(context, stateful_set)
        is_going = bool((stateful_set or {}).get("metadata", {}).get("deletionTimestamp"))
        taken = await self._step(body, context, stateful_set or {}, is_going, refusals)
        manifests = _manifests(context, _replicas(stateful_set or {}), taken.step)
        if unusable and issued is not None and issued not in manifests:
            # It is asked for as long as the spec does, in force or not.
            manifests.append(issued)
        is_between = is_going or plan.is_recreated
        await self._objects.apply_all(
            context,
            [item for item in manifests if not (is_between and item["kind"] == "StatefulSet")],
            refusals,
        )
        await self._objects.remove_others(context, manifests, refusals)
        _log(meta, refusals)
        if plan.is_recreated and stateful_set is not None:
            await self._volumes.let_go(context, stateful_set, claims)
        if not is_between:
            stateful_set = await self._api.get(path)
        self._contexts[f"{meta.namespace}/{meta.name}"] = context
        now = datetime.datetime.now(datetime.UTC)
        state = await self._observed(body, context, stateful_set or {}, taken, claims, now)
        for said in state.refused_pods:
            refusals.add_lasting(said)
        state = replace(
            state,
            refused=(refusals.reason, refusals.message) if refusals else ("", ""),
            volumes=plan,
            growing=volumes.progress([volumes.claim_of(item) for item in claims]),
            is_between=is_between,
            pending_image=image.pending,
            unusable_certificate=unusable,
        )
        await self._tell_of_members(context, body, state)
        report = self._report(context, stateful_set or {}, state, claims)
        report = replace(report, refused=refusals.lasting)
        if certificates is not None:
            report = with_certificates(report, _unusable(certificates, unusable))
        return _with_route(report, await self._routes.reconcile(context))

    async def _tls(self, context: Context, stateful_set: Json | None) -> tuple[Context, str]:
        """The certificate that members are to have, and what is wrong with that of the spec.

        Members keep what they have until the operator has seen that another one will do: also one
        whose pod is made anew meanwhile must come back.
        """
        present = rollout.certificates_of(stateful_set or {})
        if present is None or context.has_own_certificate:
            return context, ""
        found = await self._certificates.inspect(context)
        if not found.problem:
            return context, ""
        shown = f" (TLS certificate: {found.shown})" if found.shown else ""
        text = f"Secret {context.tls_secret}: {found.problem}{shown}"
        if present == (context.tls_secret, context.ca_secret):
            return context, f"{text}; members are not restarted before, and keep what they loaded"
        secret, authority = present
        kept: dict[str, Any] = {"secret_name": secret, "ca_secret_name": authority}
        if secret == f"{context.name}-tls":
            kept = {"secret_name": None, "ca_secret_name": None}
        tls = context.spec.tls.model_copy(update={**kept, "issuer_ref": None})
        context = replace(context, spec=context.spec.model_copy(update={"tls": tls}))
        return context, f"{text}; spec.tls is not in force, members keep Secret {secret}"

    async def _obstacles(self, context: Context, stateful_set: Json | None) -> ClusterReport | None:
        """Without what nothing can be made: names of our own, certificates, the user's Secrets."""
        conflict = await self._conflict(context, stateful_set)
        if conflict:
            return ClusterReport("NameConflict", conflict, again_s=REFUSED_AGAIN_S)
        # Members that run have loaded their certificate, and _tls has said what is wrong.
        is_running = rollout.certificates_of(stateful_set or {}) is not None
        missing = await self._secrets.missing(context, is_tls_needed=not is_running)
        if missing:
            text = f"Secret {missing} does not exist"
            return ClusterReport("WaitingForSecret", text, again_s=WAITING_AGAIN_S)
        return None

    async def _conflict(self, context: Context, stateful_set: Json | None) -> str:
        """What to do about somebody else's objects without whose names no member can run."""
        if stateful_set is not None and naming.is_foreign(context, stateful_set):
            return naming.conflict(context, "StatefulSet", context.name)
        present = _replicas(stateful_set or {})
        wanted = range(present, max(present, context.spec.replicas))
        return await self._secrets.conflict(context) or await self._volumes.conflict(
            context, wanted
        )

    async def _make_certificates(
        self, context: Context, body: Body, refusals: Refusals
    ) -> CertificateReport | None:
        """How the certificates are; None if the API server did not let them be read."""
        try:
            return await self._certificates.make(context, body)
        except ApiError as error:
            refusals.add("certificates", error)
            return None

    async def _ask_issuer(self, context: Context, refusals: Refusals) -> ClusterReport | None:
        """Have cert-manager make the certificate, where the spec says so; why that must wait."""
        certificate = secret_manifests.issued_certificate(context)
        if certificate is None:
            return None
        if await self._api.get(f"/apis/{secret_manifests.CERT_MANAGER}") is None:
            text = "spec.tls.issuerRef needs cert-manager, whose kinds are not installed"
            return ClusterReport("CertManagerMissing", text, again_s=WAITING_AGAIN_S)
        await self._objects.apply_all(context, [certificate], refusals)
        if await self._secrets.read(context, context.tls_secret):
            return None
        text = f"cert-manager has not issued Secret {context.tls_secret} yet"
        return ClusterReport("WaitingForSecret", text, again_s=WAITING_AGAIN_S)

    async def _context(
        self, body: Body, meta: Meta, spec: BrokerClusterSpec, stateful_set: Json | None
    ) -> tuple[Context, rollout.Image]:
        """All that the manifests are made of, and the image that was decided on."""
        service = None
        if stateful_set is None:
            name = f"{meta.name}{naming.NODES_SUFFIX}"
            service = await self._api.get(path_of("v1", "Service", meta.namespace, name))
        known = Remembered.of(stateful_set, service)
        image = rollout.image(
            spec,
            self._settings.images.broker,
            known.image,
            keys.annotation(body, keys.APPROVED_IMAGE) or "",
        )
        context = Context(
            meta=meta,
            spec=spec,
            images=self._settings.images,
            operator_namespace=self._settings.namespace,
            initial_replicas=known.initial or None,
            members=known.members or None,
            image=image.name,
            volume_size=known.size,
            restart_at=keys.annotation(body, keys.RESTART_AT) or "",
            restarted_at=known.restarted_at,
        )
        return context, image

    async def _grow(
        self, context: Context, stateful_set: Json | None
    ) -> tuple[Context, volumes.Plan, list[Json]]:
        """Have the volume claims grow; `context.volume_size` is the size that they have."""
        claims = await self._volumes.claims(context)
        present = context.volume_size
        observed = [volumes.claim_of(item) for item in claims]
        plan = volumes.plan(context.spec.storage.size, present, observed)
        plan = await self._volumes.grow(context, plan, present)
        return replace(context, volume_size=plan.size), plan, claims

    async def _tell_of_members(self, context: Context, body: Body, state: Pass) -> None:
        """Events for members that were started again, and for what keeps one from starting, if it
        did so a look ago as well."""
        staying = lifecycle.staying(state.pods, context.is_member)
        for said in lifecycle.restarted(body.get("status") or {}, staying):
            await self._emit(body, "Warning", "MemberRestarted", said)
        before = conditions.find(body, conditions.READY)
        for line in map(conditions.scrub, state.obstacles):
            if before is not None and line in before.message:
                await self._emit(body, "Warning", "MemberBlocked", line)

    async def _step(
        self,
        body: Body,
        context: Context,
        stateful_set: Json,
        is_going: bool,
        refusals: Refusals,
    ) -> Taken:
        """Take the next step that is the broker's or a pod's; none without a StatefulSet."""
        if is_going:
            fenced = tuple((body.get("status") or {}).get("fenced") or ())
            return Taken(Step(StepKind.DONE), "", Outdated(), fenced, None)
        return await self._next_step(body, context, stateful_set, refusals)

    async def _next_step(
        self, body: Body, context: Context, stateful_set: Json, refusals: Refusals
    ) -> Taken:
        spec = context.spec
        pods = await self._pods.all(context) if stateful_set else []
        key = f"{context.namespace}/{context.name}"
        self._mounted[key] = rollout.certificate_secrets(pods)
        self._by_system[key] = rollout.is_by_system(pods)
        current = _replicas(stateful_set)
        ready = frozenset(pod_name(pod) for pod in pods if is_pod_serving(pod))
        fenced, complaint = await self._fence(body, context, pods)
        old = await self._pods.outdated(context, stateful_set, pods, fenced)
        hold = rollout.hold(spec, fenced, datetime.datetime.now(datetime.UTC))
        if hold is None and old.names:
            hold = await self._bad_certificate(context)
        target = await self._target(context, current) if ready else None
        listed = await members.listed(target) if spec.members_wanted else None
        distrust = None
        if listed is None and target is not None and spec.members_wanted:
            distrust = await self._distrust(context, target, pods)
        fleet = Fleet(
            name=context.name,
            desired=spec.members_wanted,
            current=current,
            before=context.members or 0,
            listed=listed,
            distrust=distrust,
            ready=ready,
            outdated=old.names,
            fenced=fenced,
            held=hold.message if hold is not None else "",
            template=await self._template(context, current, stateful_set) if old.names else "",
        )
        step = scaling.next_step(fleet)
        problem = complaint
        if not problem and step.kind in (StepKind.ADD, StepKind.REMOVE, StepKind.RESTART):
            is_up = step.member in ready
            problem = await self._take(body, context, step, current, refusals, pods, is_up=is_up)
        said = distrust.problem if distrust is not None else ""
        return Taken(step, problem, old, tuple(fenced), hold, said)

    async def _distrust(
        self, context: Context, target: Target, pods: list[Json]
    ) -> scaling.Distrust | None:
        """Whether certificates are why no member can be asked, and a restart mends that."""
        problem = await shown_certificates.problem(target)
        if not problem:
            return None
        wanted = (context.tls_secret, context.ca_secret)
        obstacle = rollout.unasked_obstacle(pods, wanted, datetime.datetime.now(datetime.UTC))
        if not obstacle:
            found = await self._certificates.inspect(context)
            obstacle = found.problem and f"Secret {context.tls_secret}: {found.problem}"
        return scaling.Distrust(problem, obstacle)

    async def _bad_certificate(self, context: Context) -> rollout.Hold | None:
        """Why no member is restarted: it would load a certificate that it does not yet show."""
        if context.has_own_certificate:
            return None
        found = await self._certificates.inspect(context)
        if not found.problem:
            return None
        text = f"no restarts before Secret {context.tls_secret} can be used: {found.problem}"
        return rollout.Hold("CertificateUnusable", text)

    async def _template(self, context: Context, count: int, stateful_set: Json) -> str:
        """What is still to change in the StatefulSet before members are made from it."""
        (manifest,) = (
            item
            for item in cluster_manifests.objects(context, count)
            if item["kind"] == "StatefulSet"
        )
        try:
            paths = await self._objects.pending(manifest, stateful_set)
        except ApiError as error:
            if not error.is_answer or error.is_passing:
                raise
            # Refused when it is applied as well, and told of then.
            return f"the API server refuses StatefulSet {context.name}"
        more = len(paths) - PATHS_SHOWN_MAX
        shown = [*paths[:PATHS_SHOWN_MAX], *([f"{more} more"] if more > 0 else ())]
        return f"StatefulSet {context.name}: {', '.join(shown)}" if shown else ""

    async def _take(
        self,
        body: Body,
        context: Context,
        step: Step,
        current: int,
        refusals: Refusals,
        pods: list[Json],
        *,
        is_up: bool,
    ) -> str:
        """Do what a step asks of the broker or of a pod; "" or why not."""
        problem = ""
        if step.unasked:
            await self._emit(body, "Warning", "RestartedUnasked", scaling.said(step))
        elif step.kind is not StepKind.RESTART or is_up:
            asked = await self._target(context, current, without=step.member)
            if asked is not None:
                address = context.peer_address(step.member)
                problem = await members.carry_out(asked, step, address)
                if problem and step.kind is StepKind.RESTART:
                    others = await self._ask_others(body, context, step, asked, pods)
                    problem = problem if others is None else others
        if step.kind is StepKind.RESTART and not problem:
            path = path_of("v1", "Pod", context.namespace, step.member)
            await refusals.collect(f"restart of Pod {step.member}", self._api.delete(path))
        return problem

    async def _ask_others(
        self, body: Body, context: Context, step: Step, asked: Target, pods: list[Json]
    ) -> str | None:
        """Ask those that show the wanted certificate, where the refused ones of the others are why
        not all can be asked (ADR 71): "" or why not; None where that is not why.
        """
        refused = await shown_certificates.refused(asked)
        wanted = (context.tls_secret, context.ca_secret)
        old = {
            self._address(context, pod_name(pod))
            for pod in pods
            if rollout.certificates_of_pod(pod) != wanted
        }
        rest = tuple(address for address in asked.addresses if address not in refused)
        if not refused or not rest or not old.issuperset(refused):
            return None
        text = next(iter(refused.values()))
        if too_early := rollout.unsettled(pods, datetime.datetime.now(datetime.UTC)):
            return f"{text}; {too_early}"
        problem = await members.carry_out(replace(asked, addresses=rest), step, "")
        if problem:
            return problem
        said = f"{scaling.said(step)}; not all members could be asked: {text}"
        await self._emit(body, "Warning", "RestartedUnasked", said)
        return ""

    async def _fence(self, body: Body, context: Context, pods: list[Json]) -> tuple[list[str], str]:
        """Put members into maintenance, or end that; who is in it because of us, and a problem.

        A member that restarted is out of it again, and is ready: then it is asked once more.
        """
        if not context.spec.members_wanted:
            return [], ""
        before = list((body.get("status") or {}).get("fenced") or ())
        wanted = {name for name in context.spec.fenced if context.is_member(name)}
        present = {pod_name(pod): pod for pod in pods}
        problem = ""
        fenced = [name for name in before if name in wanted]
        for name in sorted(wanted | set(before)):
            is_fenced = name in wanted
            if name not in present:
                continue
            if is_fenced and name in before and not is_pod_ready(present[name]):
                continue
            target = await self._target(context, 0, only=name)
            said = await members.set_fenced(target, name, is_fenced=is_fenced)
            if said:
                problem = f"{name} is to be {'fenced' if is_fenced else 'let in again'}: {said}"
            if (not said) == is_fenced and name not in fenced:
                fenced.append(name)
        return sorted(fenced), problem

    def _address(self, context: Context, member: str) -> str:
        return f"{context.member_host(member)}:{naming.PORT_GRPC}"

    async def _target(
        self, context: Context, count: int, without: str = "", only: str = ""
    ) -> Target | None:
        """How the first `count` members' administration is reached, or that of one alone."""
        login = await self._secrets.read(context, context.admin_secret)
        certificate = await self._certificates.of_operator(context)
        names = [only] if only else [f"{context.name}-{ordinal}" for ordinal in range(count)]
        addresses = tuple(self._address(context, name) for name in names if name != without)
        if not addresses or (certificate is None and not is_login(login)):
            return None
        key = f"{context.namespace}/{context.name}"
        known = self._users.get(key, secret_manifests.ADMIN_USER)
        user = self._users[key] = text_of(login, "username") or known
        return Target(
            addresses,
            user,
            text_of(login, "password"),
            await self._authorities(context),
            certificate=certificate,
        )

    async def teardown(self, body: Body, meta: Meta) -> bool:
        """The garbage collector follows the owner references; volumes go by their retention."""
        self._certificates.forget(meta)
        self._contexts.pop(f"{meta.namespace}/{meta.name}", None)
        self._ready.pop(f"{meta.namespace}/{meta.name}", None)
        self._missing.pop(f"{meta.namespace}/{meta.name}", None)
        self._users.pop(f"{meta.namespace}/{meta.name}", None)
        self._mounted.pop(f"{meta.namespace}/{meta.name}", None)
        self._by_system.pop(f"{meta.namespace}/{meta.name}", None)
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
        login = await self._secrets.read(context, context.admin_secret)
        if not is_login(login):
            return None
        is_tls = context.spec.tls.disable_plain
        port = naming.PORT_AMQPS if is_tls else naming.PORT_AMQP
        return ClusterAddress(
            (f"{context.client_host}:{port}",),
            text_of(login, "username"),
            text_of(login, "password"),
            is_tls,
            await self._authorities(context) if is_tls else b"",
        )

    async def _authorities(self, context: Context) -> bytes:
        """PEM of authorities that may have signed the members' certificates; empty if not known.

        While members are restarted for other certificates some still show the old ones: what the
        spec names and what running members have are both trusted.
        """
        key = f"{context.namespace}/{context.name}"
        wanted = context.spec.tls.ca_secret_name or context.tls_secret
        found = {(await self._secrets.read(context, wanted)).get("ca.crt", b""): None}
        for name in self._mounted.get(key, ()):
            # Of a BrokerCluster of this name before, whose pods still end: it signs nothing here.
            with contextlib.suppress(BeingRemoved):
                found[(await self._secrets.read(context, name)).get("ca.crt", b"")] = None
        named = list(filter(None, found))
        if named and (context.ca_secret is None or self._by_system.get(key, False)):
            # Alone they are what no name at all means; beside others they must be named as well.
            named.append(serving_certificates.system_authorities())
        return b"\n".join(named)

    # ---- status -------------------------------------------------------------------------------

    async def _observed(
        self,
        body: Body,
        context: Context,
        stateful_set: Json,
        taken: Taken,
        claims: list[Json],
        now: datetime.datetime,
    ) -> Pass:
        """How the members are after the step."""
        pods = {pod_name(pod): pod for pod in await self._pods.all(context)}
        total = _replicas(stateful_set)
        names = [f"{context.name}-{ordinal}" for ordinal in range(total)]
        key = f"{context.namespace}/{context.name}"
        missing = self._missing.get(key, {})
        self._missing[key] = {name: missing.get(name, now) for name in names if name not in pods}
        limit_s = context.spec.progress_deadline_seconds
        late = [
            f"{name} is not ready after {limit_s} s: {rollout.why_not_ready(pods.get(name))}"
            for name in names
            if name not in taken.fenced
            and not (name in pods and is_pod_serving(pods[name]))
            and rollout.overdue(pods.get(name), self._missing[key].get(name), now, limit_s)
        ]
        refused = await self._events.refused_pods(
            stateful_set, [name for name in names if self._is_missing(context, name, now)]
        )
        idle = [name for name in names if not (name in pods and is_pod_serving(pods[name]))]
        # Those that the API server refuses are reported as refusals.
        waiting = [name for name in idle if name not in refused]
        stuck = await self._obstacles_of(context, waiting, pods, claims, now)
        before = conditions.find(body, conditions.READY)
        return Pass(
            total=total,
            pods=tuple(pods[name] for name in sorted(pods)),
            ready=frozenset(name for name, pod in pods.items() if is_pod_serving(pod)),
            fenced=taken.fenced,
            step=taken.step,
            problem=taken.problem,
            outdated=taken.outdated.names,
            resizing=taken.outdated.resizing,
            hold=taken.hold,
            distrust=taken.distrust,
            late=tuple(late),
            obstacles=tuple(stuck),
            refused_pods=tuple(f"Pod {name}: {refused[name]}" for name in names if name in refused),
            was=before.reason if before is not None else "",
            seconds_to_window=rollout.seconds_to_window(context.spec, now),
        )

    async def _obstacles_of(
        self,
        context: Context,
        waiting: Sequence[str],
        pods: Mapping[str, Json],
        claims: list[Json],
        now: datetime.datetime,
    ) -> list[str]:
        """Why members cannot start, in words, with what other objects than their pods say of it."""
        if not waiting:
            return []
        unbound = await self._events.unbound(claims)
        unpulled = await self._missing_pull_secrets(context, pods.values())
        made = [pods[name] for name in waiting if name in pods and rollout.is_made(pods[name])]
        unmounted = await self._events.unmounted(made)
        found = []
        for name in waiting:
            pod = pods.get(name)
            why = self._obstacle(context, name, pod, now)
            claim = f"data-{name}"
            if claim in unbound and (not why or why.startswith(UNSCHEDULABLE)):
                why = f"PersistentVolumeClaim {claim} has no volume: {unbound[claim]}"
            elif why and pod is not None and rollout.is_unpullable(pod):
                why += unpulled
            why = why or unmounted.get(name, "")
            if why:
                found.append(f"{name}: {why}")
        return found

    def _obstacle(
        self, context: Context, name: str, pod: Json | None, now: datetime.datetime
    ) -> str:
        """Why a member cannot start; who has no pod yet gets some time for it."""
        if pod is not None:
            return rollout.obstacle(pod)
        if not self._is_missing(context, name, now):
            return ""
        return f"it has no pod; Events of StatefulSet {context.name} say why"

    def _is_missing(self, context: Context, name: str, now: datetime.datetime) -> bool:
        """Whether a member has had no pod for a while."""
        since = self._missing[f"{context.namespace}/{context.name}"].get(name)
        return since is not None and (now - since).total_seconds() >= NO_POD_S

    async def _missing_pull_secrets(self, context: Context, pods: Iterable[Json]) -> str:
        """What is to be said of an image that cannot be pulled: the kubelet passes over Secrets
        that are not there."""
        names = [item.name for item in context.spec.image_pull_secrets]
        if not names or not any(rollout.is_unpullable(pod) for pod in pods):
            return ""
        gone = [name for name in names if await self._secrets.live(context, name) is None]
        said = f"Secret {', '.join(gone)} of spec.imagePullSecrets does not exist"
        return f"; {said}" if gone else ""

    def _report(
        self,
        context: Context,
        stateful_set: Json,
        state: Pass,
        claims: list[Json],
    ) -> ClusterReport:
        meta = context.meta
        ready = len(state.ready)
        self._ready[f"{meta.namespace}/{meta.name}"] = ready
        reason, message = lifecycle.verdict(context.spec, state)
        selector = naming.selector(context)
        observed = [volumes.claim_of(item) for item in claims]
        fields: dict[str, Any] = {
            "replicas": int((stateful_set.get("status") or {}).get("replicas") or 0),
            "readyReplicas": ready,
            "selector": ",".join(f"{name}={value}" for name, value in sorted(selector.items())),
            "image": context.broker_image,
            "members": [_member(pod, state.fenced) for pod in state.pods][: naming.MEMBERS_MAX],
            "endpoints": _endpoints(context),
            "adminSecret": context.admin_secret,
            "binding": {"name": context.admin_secret},
            "operation": scaling.operation(
                state.step, context.spec.replicas, state.total, state.problem
            ),
            "fenced": list(state.fenced) or None,
            "volumes": [
                {"name": item.name, "size": item.capacity, "phase": item.phase} for item in observed
            ][: naming.MEMBERS_MAX]
            or None,
        }
        found = lifecycle.found_conditions(context.spec, state, meta.generation)
        again_s = _again_s(state, is_behind(stateful_set))
        ends = lifecycle.ends(lifecycle.staying(state.pods, context.is_member))
        return ClusterReport(reason, message, tuple(found), fields, again_s, ends=ends)


def _again_s(state: Pass, is_stale: bool) -> float:
    """When to look again, if nothing tells before."""
    if state.is_between:
        return STEP_AGAIN_S
    if state.refused[0] or state.volumes.reason:
        return REFUSED_AGAIN_S
    if state.step.kind not in (StepKind.DONE, StepKind.WAIT, StepKind.HOLD) and not state.problem:
        return STEP_AGAIN_S
    is_steady = state.step.kind in (StepKind.DONE, StepKind.HOLD) and state.is_whole
    if not is_steady or is_stale or state.growing or state.resizing or state.problem:
        return WAITING_AGAIN_S
    if state.step.kind is StepKind.HOLD and state.seconds_to_window is not None:
        return min(STEADY_AGAIN_S, state.seconds_to_window + STEP_AGAIN_S)
    return STEADY_AGAIN_S


def with_certificates(report: ClusterReport, found: CertificateReport) -> ClusterReport:
    """The report, with how the certificates are and when they are to be looked at again."""
    waits = [item for item in (report.again_s, found.again_s) if item is not None]
    return replace(
        report,
        conditions=(*report.conditions, found.condition),
        expiries=found.expiries,
        again_s=min(waits, default=None),
    )


def _unusable(found: CertificateReport, text: str) -> CertificateReport:
    """The report, where the certificate of the spec is not the one that members have."""
    if not text or found.condition.status != conditions.TRUE:
        return found
    condition = conditions.build(
        conditions.CERTIFICATES_VALID, False, "Unusable", text, found.condition.observed_generation
    )
    return replace(found, condition=condition)


def text_of(data: Mapping[str, bytes], key: str) -> str:
    """A text of a Secret; "" if it is not there, or none."""
    try:
        return data.get(key, b"").decode()
    except UnicodeDecodeError:
        return ""


def is_login(data: Mapping[str, bytes]) -> bool:
    return bool(text_of(data, "username") and text_of(data, "password"))


def _with_route(report: ClusterReport, route: conditions.Condition | None) -> ClusterReport:
    if route is None:
        return report
    again_s = report.again_s
    if route.status != conditions.TRUE:
        again_s = min(ROUTE_AGAIN_S, again_s or ROUTE_AGAIN_S)
    return replace(report, conditions=(*report.conditions, route), again_s=again_s)


def _manifests(context: Context, count: int, step: Step) -> list[Json]:
    """The objects, with as many members as there are or as the step asks for."""
    return cluster_manifests.objects(context, step.count if step.kind is StepKind.RESIZE else count)


def _log(meta: Meta, refusals: Refusals) -> None:
    if refusals:
        key = f"{meta.namespace}/{meta.name}"
        log.warning("the API server refuses key=%s %s", key, refusals.message)


def _as_before(report: ClusterReport, body: Body) -> ClusterReport:
    """The report of a pass that learned nothing of all else: that stays as it was told."""
    return replace(report, conditions=conditions.carried(body, CONDITIONS))


def _replicas(stateful_set: Json) -> int:
    return int((stateful_set.get("spec") or {}).get("replicas") or 0)


def _member(pod: Mapping[str, Any], fenced: tuple[str, ...]) -> Json:
    state = "ready" if is_pod_ready(pod) else "starting"
    if pod_name(pod) in fenced:
        state = "fenced"
    if pod["metadata"].get("deletionTimestamp"):
        state = "stopping"
    found = {"name": pod_name(pod), "podUID": pod["metadata"].get("uid", ""), "state": state}
    restarts = rollout.restarts(pod)
    if restarts.count:
        found |= {"restarts": restarts.count, "lastEnd": restarts.last_end[:END_MAX]}
    return found


def _endpoints(context: Context) -> dict[str, str]:
    host = context.client_host
    found = {"amqps": f"{host}:{naming.PORT_AMQPS}", "grpc": f"{host}:{naming.PORT_GRPC}"}
    if not context.spec.tls.disable_plain:
        found["amqp"] = f"{host}:{naming.PORT_AMQP}"
    return found
