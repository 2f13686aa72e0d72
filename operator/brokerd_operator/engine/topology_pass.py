"""One pass over one topology resource: gather, plan, act, tell.

Decisions are the planner's; this module fetches what it needs and carries out what it says.
For running.py only.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.broker.client import Result
from brokerd_operator.broker.errors import BrokerError
from brokerd_operator.engine import keys, status, warnings
from brokerd_operator.engine.cache import Entry
from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Body, Key
from brokerd_operator.engine.session import BrokerSession, State
from brokerd_operator.reconcile import dependencies, drift, granting, plan, reserved
from brokerd_operator.reconcile.actions import Action, Conflict, Plan, Precondition, Upsert
from brokerd_operator.reconcile.drift import Difference
from brokerd_operator.specs import arguments, registry
from brokerd_operator.specs.model import (
    ClusterAddress,
    DesiredObject,
    Inputs,
    Invalid,
    Meta,
    TopologySpec,
    Waiting,
)
from brokerd_operator.specs.user import UserSpec

#: Codes of the broker as reasons of conditions.
_REASONS = {
    "REFUSED": "BrokerRefused",
    "IMMUTABLE": "ImmutableChange",
    "UNAVAILABLE": "BrokerError",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass came to."""

    reason: str
    message: str
    drift: tuple[Difference, ...] = ()
    in_sync: bool | None = None
    warning: str = ""
    applied_hash: str = ""
    #: Try again after this time; None: only when something changes.
    again_s: float | None = None
    #: Try again with back-off.
    has_failed: bool = False
    extra: tuple[conditions.Condition, ...] = ()
    fields: Mapping[str, Any] | None = None


class TopologyPass:
    """One pass. Made per call; owns nothing that outlives it."""

    def __init__(self, engine: Engine, key: Key, entry: Entry) -> None:
        self.engine = engine
        self.key = key
        self.entry = entry

    @property
    def body(self) -> Body:
        return self.entry.body

    @property
    def meta(self) -> Meta:
        return self.entry.meta

    async def run(self) -> None:
        """Reconcile and write the status."""
        spec = self.entry.spec
        if isinstance(spec, Invalid):
            await self._tell(None, Outcome(spec.reason, spec.message))
            return
        assert isinstance(spec, TopologySpec)
        if not keys.has_finalizer(self.body):
            # The finalizer comes before the first write to the broker (design/operator.md §10).
            if await self.engine.store.is_namespace_terminating(self.meta.namespace):
                return
            await self.engine.store.add_finalizer(self.body)
            again = self._look_anew()
            if again is None:
                return
            spec = again
        session = self.engine.session(spec.broker_ref.reference(self.meta))
        outcome = await self._gather(spec, session)
        if outcome is None:
            return
        # What the API server does not take is a failure as well, and has the back-off of one.
        await self._tell(spec, outcome, session)
        if outcome.has_failed:
            self.engine.queue.retry(self.key)
        else:
            self.engine.queue.succeed(self.key)
            if outcome.again_s is not None:
                self.engine.queue.add(self.key, outcome.again_s)
            if session is not None and outcome.reason == "Applied":
                now = datetime.datetime.now(datetime.UTC)
                later_s = await warnings.tell_of_rights(
                    self.engine, self.key, self.entry, session, now
                )
                if later_s is not None:
                    self.engine.queue.add(self.key, later_s)

    def _look_anew(self) -> TopologySpec | None:
        """Go on with what the API server answered; None when that is for another pass."""
        entry = self.engine.cache.get(self.key)
        if entry is None or not isinstance(entry.spec, TopologySpec):
            return None
        if keys.is_deleting(entry.body):
            return None
        self.entry = entry
        self.engine.queue.catch_up(self.key)
        return entry.spec

    async def _gather(self, spec: TopologySpec, session: BrokerSession | None) -> Outcome | None:
        """Everything up to the plan; None while it is too early to say anything."""
        reference = spec.broker_ref.reference(self.meta)
        rival = self.engine.cache.older_rival(self.key)
        if rival is not None:
            return Outcome(
                "NameConflict", f"{rival.kind} {rival.namespace}/{rival.name} was there first"
            )
        if session is None:
            return Outcome("WaitingForBroker", f"{reference.kind} {reference.key} does not exist")
        refused = self._refused_by_grants(spec)
        if refused is not None:
            return refused
        if session.state is State.CONNECTING:
            return None
        if session.state is State.DOWN:
            return Outcome("WaitingForBroker", session.problem)
        try:
            await self._give_back(spec, session)
        except BrokerError as error:
            session.nudge()
            return Outcome("BrokerError", str(error), has_failed=True)
        taken = self._reserved(spec, session)
        if taken is not None:
            return taken
        inputs = await self._inputs(spec, session)
        desired = registry.desired(spec, self.meta, inputs)
        if isinstance(desired, Invalid | Waiting):
            return Outcome(desired.reason, desired.message)
        found = dependencies.check(spec.dependencies(self.meta), session.topology.has)
        self.engine.wait_for(self.key, session.reference, found.absent)
        if found.waiting is not None:
            return Outcome(found.waiting.reason, found.waiting.message)
        return await self._plan(spec, session, desired, found.warning)

    def _reserved(self, spec: TopologySpec, session: BrokerSession) -> Outcome | None:
        """The operator's own account: said before a Secret is made or waited for."""
        named = spec.identities(self.meta, Inputs(users=self.engine.cache.users()))
        for identity in named:
            if reserved.is_reserved(identity, session.account):
                return Outcome("Reserved", reserved.refusal(identity, session.account))
        return None

    def _refused_by_grants(self, spec: TopologySpec) -> Outcome | None:
        reference = spec.broker_ref.reference(self.meta)
        if reference.namespace == self.meta.namespace:
            return None
        refusal = granting.refusal(
            spec,
            self.meta,
            self.engine.grants(reference),
            self.engine.store.namespace_labels(self.meta.namespace),
            self.engine.cache.users(),
        )
        return Outcome("NotGranted", refusal) if refusal else None

    async def _inputs(self, spec: TopologySpec, session: BrokerSession) -> Inputs:
        store = self.engine.store
        if isinstance(spec, UserSpec) and spec.has_generated_secret:
            host = session.client.address.rpartition(":")[0] if session.client else ""
            await store.make_user_secret(self.body, self.meta, spec, host)
        secrets: dict[str, Mapping[str, bytes]] = {}
        clusters: dict[str, ClusterAddress] = {}
        for reference in spec.references(self.meta):
            if reference.kind == "Secret":
                data = await store.secret(reference.namespace, reference.name)
                if data is not None:
                    secrets[reference.key] = data
            elif reference.kind == "BrokerCluster":
                address = await self.engine.driver.address(reference)
                if address is not None:
                    clusters[reference.key] = address
        return Inputs(secrets, clusters, self.engine.cache.users())

    async def _plan(
        self,
        spec: TopologySpec,
        session: BrokerSession,
        desired: tuple[DesiredObject, ...],
        warning: str,
    ) -> Outcome:
        rest_s = self.engine.drift.rest_s(self.key, self.meta.generation, time.monotonic())
        if rest_s > 0:
            return Outcome(
                "FightingDrift",
                "something else keeps changing it; left alone for some minutes",
                in_sync=False,
                again_s=rest_s,
            )
        confirm = keys.annotation(self.body, keys.CONFIRM)
        try:
            await self._compare_passwords(spec, session, desired)
        except BrokerError as error:
            session.nudge()
            return Outcome("BrokerError", str(error), has_failed=True)
        context = plan.Context(
            instance=self.engine.settings.instance,
            is_paused=keys.is_paused(self.body),
            may_take_over=keys.annotation(self.body, keys.TAKEOVER) == "true",
            confirmed_generation=int(confirm) if confirm and confirm.isdecimal() else None,
            expired_generation=self.engine.expired_generation(self.key, session),
            written=session.written,
            account=session.account,
        )
        resource = plan.Resource(spec.KIND, self.meta, spec, desired)
        found = plan.plan(resource, session.topology, context)
        if isinstance(found, Conflict):
            in_sync = False if found.drift else None
            return Outcome(found.reason, found.message, found.drift, in_sync, warning)
        try:
            results = await session.apply(found.actions, self.key)
        except BrokerError as error:
            session.nudge()
            return Outcome("BrokerError", str(error), found.drift, has_failed=True)
        failure = self._judge(found, results, warning)
        if failure is not None:
            return failure
        self._remember(session, found.actions, results)
        await self._tell_of_repairs(found)
        return self._success(spec, context, found, desired, warning)

    async def _give_back(self, spec: TopologySpec, session: BrokerSession) -> None:
        """Let go of the operator's own account, if an earlier release adopted it."""
        name = f"{spec.KIND}/{self.meta.namespace}/{self.meta.name}"
        owned = session.topology.owned_by(name)
        await session.apply(reserved.let_go(owned, session.account))

    async def _compare_passwords(
        self, spec: TopologySpec, session: BrokerSession, desired: tuple[DesiredObject, ...]
    ) -> None:
        """Learn which users without an owner have the password already: the broker finds that
        nothing would change. The planner takes it for what we wrote ourselves.
        """
        if not isinstance(spec, UserSpec) or session.client is None:
            return
        for item in desired:
            present = session.topology.get(item.identity)
            if present is None or (present.owner is not None and present.owner.managed_by):
                continue
            if drift.differences(item, present.spec):
                continue
            asked = Upsert(item, None, Precondition(hash=present.hash))
            (result,) = await session.client.apply([asked], dry_run=True)
            if result.code == "UNCHANGED":
                session.written[item.identity] = plan.Written(plan.full_digest(item), present.hash)

    def _judge(self, found: Plan, results: list[Result], warning: str) -> Outcome | None:
        """The first answer that is not success."""
        for action, result in zip(found.actions, results, strict=True):
            if result.is_done or (result.code == "NOT_FOUND" and not isinstance(action, Upsert)):
                continue
            if result.code in ("PRECONDITION", "NOT_FOUND"):
                # Somebody was faster; the next pass sees what they did.
                return Outcome(
                    "BrokerError", result.message, found.drift, again_s=0.2, warning=warning
                )
            reason = _REASONS.get(result.code, "BrokerError")
            if result.code == "REFUSED" and action.identity.kind == "queue":
                reason = "QueueNotEmpty" if not isinstance(action, Upsert) else reason
            message = f"{plan.shown(action.identity)}: {result.message or result.code}"
            if result.needs_confirmation:
                reason = "ConfirmationRequired"
                message += f'; annotate brokerd.io/confirm: "{self.meta.generation}" to go on'
            return Outcome(
                reason,
                message,
                found.drift,
                in_sync=False,
                warning=warning,
                # A refusal may end by itself: a limit is raised, a queue becomes empty.
                again_s=60.0 if reason != "BrokerError" else None,
                has_failed=reason == "BrokerError",
            )
        return None

    def _remember(
        self, session: BrokerSession, actions: tuple[Action, ...], results: list[Result]
    ) -> None:
        for action, result in zip(actions, results, strict=True):
            if isinstance(action, Upsert) and action.item.write_only and result.current:
                session.written[action.identity] = plan.Written(
                    plan.full_digest(action.item), result.current.hash
                )

    async def _tell_of_repairs(self, found: Plan) -> None:
        before = conditions.find(self.body, conditions.READY)
        observed = (self.body.get("status") or {}).get("observedGeneration")
        was_applied = before is not None and before.status == conditions.TRUE
        if found.actions and was_applied and observed == self.meta.generation:
            what = [plan.shown(identity) for identity in found.missing]
            what += [item.path for item in found.drift]
            if not what:
                return
            self.engine.drift.repaired(self.key, self.meta.generation, time.monotonic())
            self.engine.metrics.repaired(self.key.kind)
            # Another look says it, when this was once too often.
            self.engine.queue.add(self.key)
            message = f"put back: {', '.join(what[:5])}"
            await self.engine.store.emit(self.body, "Normal", "DriftRepaired", message)
        elif found.is_adoption:
            message = "an object that nobody owned was adopted"
            await self.engine.store.emit(self.body, "Normal", "Adopted", message)

    def _success(
        self,
        spec: TopologySpec,
        context: plan.Context,
        found: Plan,
        desired: tuple[DesiredObject, ...],
        warning: str,
    ) -> Outcome:
        if context.is_paused:
            return Outcome("Paused", "paused by annotation; nothing is written", warning=warning)
        broker = spec.broker_ref.reference(self.meta).key
        message = f"{plan.shown(desired[0].identity)} on {broker}" if desired else broker
        if spec.drift_policy == "Report" and not found.is_in_sync:
            text = "driftPolicy is Report: it differs or is not there, and nothing is written"
            return Outcome("NotApplied", text, found.drift, False, warning)
        return Outcome(
            "Applied",
            message,
            (),
            True,
            warning,
            applied_hash=public_hash(desired),
        )

    async def _tell(
        self, spec: TopologySpec | None, outcome: Outcome, session: BrokerSession | None = None
    ) -> None:
        fields: dict[str, Any] = dict(outcome.fields or {})
        if outcome.applied_hash:
            fields["appliedHash"] = outcome.applied_hash
            fields["ownerToken"] = self.meta.uid
        extra = list(outcome.extra)
        found = await warnings.gather(
            self.engine, self.key, self.entry, session, outcome.reason, outcome.warning
        )
        fields |= found.fields
        extra.extend(found.conditions)
        value = status.topology_status(
            self.body.get("status") or {},
            self.meta,
            spec,
            outcome.reason,
            outcome.message,
            drift=outcome.drift,
            in_sync=outcome.in_sync,
            extra=extra,
            fields=fields,
            broker_uid=session.info.cluster_id if session and session.info else "",
        )
        await self.engine.write_status(self.key, self.body, value)


def public_hash(desired: tuple[DesiredObject, ...]) -> str:
    """Hash of the objects without their secrets: a hash of a weak password gives it away."""
    shown = []
    for item in desired:
        spec = {key: value for key, value in item.spec.items() if key not in item.write_only}
        if isinstance(spec.get("value"), dict):
            hidden = {path.partition(".")[2] for path in item.write_only}
            spec["value"] = {k: v for k, v in spec["value"].items() if k not in hidden}
        shown.append([item.kind, item.vhost, item.name, spec])
    return f"sha256:{arguments.digest(shown, 64)}"
