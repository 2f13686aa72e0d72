"""The certificates of a BrokerCluster in Kubernetes: its own authority, for clients, for members.

Reads the Secrets, asks reconcile/rotation.py what is to be done next, and does it, one step after
the other. What the operator did not make is read, told of and never written. For the Kubernetes
driver (kubernetes_clusters.py); how certificates are made is in certificates.py.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.broker.client import ClientCertificate
from brokerd_operator.engine.keys import Body
from brokerd_operator.manifests import naming
from brokerd_operator.manifests import secrets as secret_manifests
from brokerd_operator.manifests.naming import Context
from brokerd_operator.reconcile import rotation
from brokerd_operator.reconcile.rotation import Authority, Leaf, Lifetimes, Shown, Trust
from brokerd_operator.sources import certificates, serving_certificates
from brokerd_operator.sources.api import Api, ApiError, Json, path_of
from brokerd_operator.sources.certificates import Unreadable
from brokerd_operator.sources.cluster_secrets import ClusterSecrets
from brokerd_operator.sources.kubernetes_store import decoded
from brokerd_operator.sources.serving_certificates import Inspection, Trusted
from brokerd_operator.specs.model import Meta

#: On the Secret of the authority, in seconds since 1970 (rotation.Trust).
CURRENT_SINCE = "brokerd.io/authority-trusted-since"
COMING_SINCE = "brokerd.io/coming-authority-trusted-since"
PREVIOUS_UNTIL = "brokerd.io/previous-authority-until"

#: Steps of a pass at most; a whole rotation has fewer.
STEPS_MAX = 16
#: Nothing is looked at more often.
AGAIN_MIN_S = 1.0

#: Of the life of the operator's own certificate.
RENEWED_AT = 2 / 3

Emit = Callable[[Body, str, str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class CertificateReport:
    """How the certificates are after a pass."""

    condition: conditions.Condition
    #: When each expires, in seconds since 1970, by Secret.
    expiries: Mapping[str, float]
    again_s: float | None


@dataclass(frozen=True, slots=True)
class OperatorLogin:
    """A certificate of the operator's, the CA that signed it, and when it is renewed."""

    ca: bytes = field(repr=False)
    certificate: ClientCertificate = field(repr=False)
    renew_at_s: float


@dataclass(slots=True)
class _Held:
    """What the Secrets hold."""

    trust: Trust
    leaves: list[Leaf] = field(default_factory=list)
    #: Authorities in the bundles of the leaves.
    known: list[Authority] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    live: dict[str, Json] = field(default_factory=dict)
    #: What is wrong with Secrets that are there, by name.
    problems: dict[str, str] = field(default_factory=dict)


class ClusterCertificates:
    """Makes certificates. State: the operator's own, which are nowhere else."""

    def __init__(
        self,
        api: Api,
        secrets: ClusterSecrets,
        lifetimes: Lifetimes,
        emit: Emit,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._secrets = secrets
        self._lifetimes = lifetimes
        self._emit = emit
        self._clock = clock
        self._operators: dict[tuple[str, str], OperatorLogin] = {}

    async def make(self, context: Context, body: Body) -> CertificateReport:
        """Make what is not there, renew what is due; say how all are."""
        now = self._clock()
        held = await self._read(context, now)
        refused = ""
        for _ in range(STEPS_MAX):
            step = rotation.next_step(held.trust, held.leaves, held.known, now, self._lifetimes)
            if step is None:
                break
            try:
                await self._carry_out(context, body, held, step, now)
            except ApiError as error:
                # Somebody else changed the Secret meanwhile: what it holds now counts.
                if not error.is_conflict:
                    refused = _refusal(error)
                    break
            held = await self._read(context, now)
        return await self._report(context, body, held, now, refused)

    async def of_operator(self, context: Context) -> ClientCertificate | None:
        """What the operator logs in by at this cluster's members (ADR 21); None without a CA."""
        present = await self._secrets.read(context, f"{context.name}-ca")
        ca, ca_key = present.get("ca.crt", b""), present.get("ca.key", b"")
        place = (context.namespace, context.name)
        held = self._operators.get(place)
        if held is not None and held.ca == ca and self._clock() < held.renew_at_s:
            return held.certificate
        try:
            made = certificates.make_operator_certificate(ca, ca_key)
        except (ValueError, TypeError):
            # There is none, or somebody wrote something else into it: there is the password yet.
            self._operators.pop(place, None)
            return None
        certificate = ClientCertificate(made.certificate, made.key)
        renew_at_s = self._clock() + certificates.OPERATOR_LIFE.total_seconds() * RENEWED_AT
        self._operators[place] = OperatorLogin(ca, certificate, renew_at_s)
        return certificate

    def forget(self, meta: Meta) -> None:
        """The cluster goes."""
        self._operators.pop((meta.namespace, meta.name), None)

    async def _report(
        self, context: Context, body: Body, held: _Held, now: float, refused: str
    ) -> CertificateReport:
        is_good, reason, message = rotation.health(held.shown, now)
        if refused:
            is_good, reason, message = False, "Refused", f"a Secret cannot be written: {refused}"
        condition = conditions.build(
            conditions.CERTIFICATES_VALID, is_good, reason, message, context.meta.generation
        )
        before = conditions.find(body, conditions.CERTIFICATES_VALID)
        if not is_good and (before is None or before.message != condition.message):
            await self._emit(body, "Warning", f"Certificate{reason}", message)
        expiries = {
            item.secret: item.validity.not_after for item in held.shown if item.validity is not None
        }
        again_s = rotation.look_again_s(held.trust, held.leaves, now, self._lifetimes)
        return CertificateReport(
            condition, expiries, None if again_s is None else max(again_s, AGAIN_MIN_S)
        )

    # ---- what is there --------------------------------------------------------------------------

    async def _read(self, context: Context, now: float) -> _Held:
        name = secret_manifests.ca_secret_name(context)
        held = _Held(Trust())
        await self._read_trust(context, name, held)
        for secret, names in _managed(context).items():
            await self._read_leaf(context, held, secret, names, now)
        if context.tls_secret not in _managed(context):
            found = await self.inspect(context)
            held.shown.append(
                Shown(
                    context.tls_secret,
                    found.validity,
                    is_renewed=False,
                    problem=found.problem,
                    shown=found.shown,
                )
            )
        return held

    async def inspect(self, context: Context) -> Inspection:
        """How the certificate is that the spec names for clients."""
        live = await self._secret(context, context.tls_secret)
        if live is None:
            return Inspection(None, problem="it does not exist: make it")
        trusted = Trusted("", serving_certificates.system_authorities())
        if context.ca_secret is not None:
            found = await self._secret(context, context.ca_secret)
            if found is None:
                problem = f"Secret {context.ca_secret}, its authority, does not exist: make it"
                return Inspection(None, problem=problem)
            trusted = Trusted(context.ca_secret, decoded(found).get("ca.crt", b""))
        data = decoded(live)
        hosts = [context.member_host(name) for name in context.spec.member_names(context.meta)]
        certificate, key = data.get("tls.crt", b""), data.get("tls.key", b"")
        return serving_certificates.inspect(certificate, key, trusted, hosts, self._clock())

    async def _secret(self, context: Context, name: str) -> Json | None:
        return await self._secrets.live(context, name)

    async def _read_trust(self, context: Context, name: str, held: _Held) -> None:
        live = await self._secret(context, name)
        if live is None:
            return
        held.live[name] = live
        data = decoded(live)
        is_ours = is_made_by_us(live, context)
        trust = Trust(
            is_ours=is_ours, previous=certificates.read_bundle(data.get("previous.crt", b""))
        )
        marks = live["metadata"].get("annotations") or {}
        try:
            current = certificates.read_authority(data.get("ca.crt", b""), data.get("ca.key", b""))
            trust = replace(trust, current=current, current_since=_seconds(marks, CURRENT_SINCE))
            held.shown.append(Shown(name, current.validity, is_renewed=is_ours))
        except Unreadable as error:
            held.problems[name] = str(error)
            held.shown.append(Shown(name, None, is_ours, str(error)))
        if not is_ours:
            # A bundle of the user's own: all of it is trusted, the first issues.
            held.trust = replace(trust, previous=certificates.read_bundle(data.get("ca.crt", b"")))
            return
        try:
            coming = certificates.read_authority(
                data.get("next.crt", b""), data.get("next.key", b"")
            )
            trust = replace(trust, coming=coming, coming_since=_seconds(marks, COMING_SINCE))
        except Unreadable:
            # None is the rule; one that was damaged is made anew.
            pass
        held.trust = replace(trust, previous_until=_seconds(marks, PREVIOUS_UNTIL))

    async def _read_leaf(
        self, context: Context, held: _Held, secret: str, names: frozenset[str], now: float
    ) -> None:
        live = await self._secret(context, secret)
        if live is None:
            held.leaves.append(Leaf(secret, None, names))
            return
        data = decoded(live)
        is_ours = is_made_by_us(live, context)
        held.shown.append(_shown(secret, data, is_ours))
        if not is_ours:
            return
        held.live[secret] = live
        bundle = certificates.read_bundle(data.get("ca.crt", b""))
        held.known += bundle
        try:
            pair = certificates.read_pair(data.get("tls.crt", b""), data.get("tls.key", b""))
        except Unreadable as error:
            held.problems[secret] = str(error)
            held.leaves.append(Leaf(secret, None, names))
            return
        trusted = [item for item in (held.trust.current, *held.trust.previous) if item is not None]
        held.leaves.append(
            Leaf(
                secret,
                pair.validity,
                names,
                pair.names,
                # Whatever became of its authority's Secret, the bundle still says who issued it.
                certificates.issuer_of(pair, (*trusted, *bundle)),
                tuple(item.pem for item in bundle),
            )
        )

    # ---- what is done ---------------------------------------------------------------------------

    async def _carry_out(
        self, context: Context, body: Body, held: _Held, step: rotation.Step, now: float
    ) -> None:
        ca = secret_manifests.ca_secret_name(context)
        if isinstance(step, rotation.Issue):
            await self._issue(context, body, held, step, now)
        elif isinstance(step, rotation.WriteBundle):
            values = {"ca.crt": b"".join(held.trust.bundle(now))}
            await self._change(context, held, step.secret, values)
        elif isinstance(step, rotation.MakeAuthority):
            await self._make_authority(context, body, held, step, now)
        elif isinstance(step, rotation.Keep):
            kept = {"previous.crt": b"".join(item.pem for item in step.previous)}
            dated = {CURRENT_SINCE: None, PREVIOUS_UNTIL: str(int(step.previous_until))}
            await self._change(context, held, ca, kept, dated)
            text = "holds another authority than before, which issues once all know it"
            await self._emit(body, "Warning", "AuthorityReplaced", f"Secret {ca} {text}")
        elif isinstance(step, rotation.MakeComing):
            certificate, key = self._new_ca(context, now)
            values = {"next.crt": certificate, "next.key": key}
            await self._change(context, held, ca, values, {COMING_SINCE: None})
            text = "a new authority is made; certificates are issued by it once all know it"
            await self._emit(body, "Normal", "AuthorityMade", f"Secret {ca}: {text}")
        elif isinstance(step, rotation.MarkTrusted):
            mark = COMING_SINCE if step.is_coming else CURRENT_SINCE
            await self._change(context, held, ca, {}, {mark: str(int(now))})
        elif isinstance(step, rotation.Switch):
            await self._switch(context, body, held, step)
        else:
            await self._change(context, held, ca, {"previous.crt": None}, {PREVIOUS_UNTIL: None})
            text = "the old authority is trusted no more"
            await self._emit(body, "Normal", "AuthorityDropped", f"Secret {ca}: {text}")

    def _new_ca(self, context: Context, now: float) -> tuple[bytes, bytes]:
        name = f"{context.namespace}/{context.name} CA"
        return certificates.make_ca(name, self._lifetimes.authority_s, now)

    async def _make_authority(
        self, context: Context, body: Body, held: _Held, step: rotation.MakeAuthority, now: float
    ) -> None:
        ca = secret_manifests.ca_secret_name(context)
        certificate, key = self._new_ca(context, now)
        values: dict[str, bytes | None] = {"ca.crt": certificate, "ca.key": key}
        # No member has to learn first of the very first one.
        marks: dict[str, str | None] = {CURRENT_SINCE: str(int(now)) if step.is_first else None}
        values["previous.crt"] = b"".join(item.pem for item in step.previous) or None
        marks[PREVIOUS_UNTIL] = str(int(step.previous_until)) if step.previous else None
        if ca not in held.live:
            # If another operator was faster, what is stored counts.
            present = {name: value for name, value in values.items() if value is not None}
            dated = {name: text for name, text in marks.items() if text is not None}
            await self._secrets.create(secret_manifests.ca_secret(context, present, dated))
        else:
            values |= {"next.crt": None, "next.key": None}
            await self._change(context, held, ca, values, {**marks, COMING_SINCE: None})
        if ca in held.live or step.previous:
            why = held.problems.get(ca, "it was gone or had expired")
            text = f"Secret {ca}: {why}; a new authority is made, the old one stays trusted"
            await self._emit(body, "Warning", "AuthorityReplaced", text)

    async def _switch(
        self, context: Context, body: Body, held: _Held, step: rotation.Switch
    ) -> None:
        ca = secret_manifests.ca_secret_name(context)
        data = decoded(held.live[ca])
        values = {
            "ca.crt": data["next.crt"],
            "ca.key": data["next.key"],
            "next.crt": None,
            "next.key": None,
            "previous.crt": b"".join(item.pem for item in step.previous),
        }
        marks = {
            CURRENT_SINCE: str(int(held.trust.coming_since or 0)),
            COMING_SINCE: None,
            PREVIOUS_UNTIL: str(int(step.previous_until)),
        }
        await self._change(context, held, ca, values, marks)
        text = "the new authority issues from now on; the old one stays trusted meanwhile"
        await self._emit(body, "Normal", "AuthoritySwitched", f"Secret {ca}: {text}")

    async def _issue(
        self, context: Context, body: Body, held: _Held, step: rotation.Issue, now: float
    ) -> None:
        secret = step.secret
        authority = decoded(held.live[secret_manifests.ca_secret_name(context)])
        made = certificates.make_certificate(
            authority["ca.crt"],
            authority["ca.key"],
            _ordered_names(context, secret),
            self._lifetimes.certificate_s,
            now,
        )
        made = replace(made, ca=b"".join(held.trust.bundle(now)))
        if secret not in held.live:
            await self._secrets.create(secret_manifests.certificate_secret(context, secret, made))
            return
        values = {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": made.ca}
        await self._change(context, held, secret, values)
        problem = held.problems.get(secret)
        if problem:
            text = f"Secret {secret}: {problem}; made anew"
            await self._emit(body, "Warning", "CertificateReplaced", text)
        else:
            # The date makes it another text each time: an Event of the same text is emitted once.
            end = rotation.date(certificates.read_pair(made.certificate, made.key).validity)
            text = f"Secret {secret}: renewed until {end}, because {step.why}"
            await self._emit(body, "Normal", "CertificateRenewed", text)

    async def _change(
        self,
        context: Context,
        held: _Held,
        secret: str,
        values: Mapping[str, bytes | None],
        marks: Mapping[str, str | None] | None = None,
    ) -> None:
        """Change a Secret as it was read: ApiError 409 if it is another one by now."""
        data: dict[str, Any] = {name: None for name, value in values.items() if value is None}
        data |= naming.encoded({name: value for name, value in values.items() if value is not None})
        version = held.live[secret]["metadata"]["resourceVersion"]
        metadata: dict[str, Any] = {"resourceVersion": version}
        if marks:
            metadata["annotations"] = dict(marks)
        patch = {"metadata": metadata, **({"data": data} if data else {})}
        await self._api.merge(path_of("v1", "Secret", context.namespace, secret), patch)


def _refusal(error: ApiError) -> str:
    """What the API server has against a write (no right, an immutable Secret): the rest of the
    cluster does not wait for it. Anything else is raised: the next pass tries again."""
    if error.status in (401, 404, 429) or not 400 <= error.status < 500:
        raise error
    return str(error)


def is_made_by_us(live: Json, context: Context) -> bool:
    """Whether the operator made a Secret for this BrokerCluster, so that it may write it."""
    metadata = live["metadata"]
    labels = metadata.get("labels") or {}
    owners = [item for item in metadata.get("ownerReferences") or () if item.get("controller")]
    return (
        labels.get("app.kubernetes.io/managed-by") == naming.MANAGED_BY
        and labels.get("app.kubernetes.io/instance") == context.name
        and all(item.get("uid") == context.meta.uid for item in owners)
    )


def _managed(context: Context) -> dict[str, frozenset[str]]:
    """Secrets with certificates of the cluster's own authority, and the names in them."""
    return {
        secret: frozenset(_ordered_names(context, secret))
        for secret in secret_manifests.certificate_secrets(context)
    }


def _ordered_names(context: Context, secret: str) -> tuple[str, ...]:
    return secret_manifests.certificate_secrets(context)[secret]


def _shown(secret: str, data: Mapping[str, bytes], is_renewed: bool) -> Shown:
    try:
        pair = certificates.read_pair(data.get("tls.crt", b""), data.get("tls.key", b""))
    except Unreadable as error:
        return Shown(secret, None, is_renewed, str(error))
    return Shown(secret, pair.validity, is_renewed)


def _seconds(marks: Mapping[str, str], name: str) -> float | None:
    """A date that a Secret was marked with; None for anything else that somebody wrote there."""
    text = marks.get(name, "")
    return float(text) if text.isdecimal() and len(text) < 16 else None
