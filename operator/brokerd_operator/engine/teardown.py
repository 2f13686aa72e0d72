"""One pass over a topology resource that is being deleted (design/operator.md §10).

The table is `reconcile/deletion.py`; this module fetches what it looks at and does what it says.
For running.py only.
"""

from __future__ import annotations

import datetime

from brokerd_operator.broker.client import Result
from brokerd_operator.broker.errors import BrokerError
from brokerd_operator.engine import keys, status
from brokerd_operator.engine.cache import Entry
from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.session import BrokerSession, State
from brokerd_operator.reconcile import deletion, ownership, reserved
from brokerd_operator.reconcile.deletion import Reach, Release, Situation, Wait, Work
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.model import Identity, Invalid, TopologySpec

#: Of a BrokerConnection, which has no field for it.
TIMEOUT_MS = 600_000


class Teardown:
    """One pass. Made per call; owns nothing that outlives it."""

    def __init__(self, engine: Engine, key: Key, entry: Entry) -> None:
        self.engine = engine
        self.key = key
        self.entry = entry
        self.body = entry.body
        self.meta = entry.meta

    async def run(self) -> None:
        """Do what the table says."""
        if not keys.has_finalizer(self.body):
            return
        spec = self.entry.spec
        if isinstance(spec, Invalid) or not isinstance(spec, TopologySpec):
            # What cannot be read was never applied in this form; the sweep finds older objects.
            await self._release(Release())
            return
        session = self.engine.session(spec.broker_ref.reference(self.meta))
        if session is not None and session.state is State.CONNECTING:
            return
        situation = await self._situation(spec, session)
        token = ownership.token_of(
            spec.KIND, self.meta, spec, self.engine.settings.instance, keys.is_paused(self.body)
        )
        if session is None:
            await self._conclude(spec, Release())
            return
        verdict = deletion.decide(situation, token, self._primary(spec), session.topology)
        if isinstance(verdict, Work):
            verdict = Work(
                reserved.spared(verdict.first, session.account),
                reserved.spared(verdict.then, session.account),
                verdict.release,
            )
            verdict = await self._work(session, situation, token, verdict)
        await self._conclude(spec, verdict)

    def _primary(self, spec: TopologySpec) -> Identity | None:
        if spec.KIND != "Queue":
            return None
        return Identity("queue", spec.vhost, spec.resolved_name(self.meta))

    async def _situation(self, spec: TopologySpec, session: BrokerSession | None) -> Situation:
        store = self.engine.store
        reference = spec.broker_ref.reference(self.meta)
        broker = self.engine.cache.get(Key(reference.kind, reference.namespace, reference.name))
        reach = Reach.REACHABLE
        timeout_ms = TIMEOUT_MS
        if broker is None or session is None or keys.is_deleting(broker.body):
            reach = Reach.GONE
        elif session.state is State.DOWN:
            reach = Reach.UNREACHABLE
        if broker is not None and isinstance(broker.spec, BrokerClusterSpec):
            timeout_ms = broker.spec.deletion.timeout
        has_dependants = False
        if spec.KIND == "Vhost" and session is not None:
            has_dependants = self._has_dependants(spec, session)
        return Situation(
            policy=spec.deletion_policy,
            is_paused=keys.is_paused(self.body),
            reach=reach,
            age_ms=self._age_ms(),
            timeout_ms=timeout_ms,
            is_namespace_terminating=await store.is_namespace_terminating(self.meta.namespace),
            has_dependants=has_dependants,
        )

    def _has_dependants(self, spec: TopologySpec, session: BrokerSession) -> bool:
        if next(iter(self.engine.cache.vhost_users(self.key)), None) is not None:
            return True
        if spec.deletion_policy == "Delete":
            return False
        name = spec.resolved_name(self.meta)
        return any(item.kind == "queue" and item.vhost == name for item in session.topology)

    def _age_ms(self) -> int:
        text = (self.body.get("metadata") or {}).get("deletionTimestamp") or ""
        try:
            since = datetime.datetime.fromisoformat(str(text))
        except ValueError:
            return 0
        return int((datetime.datetime.now(datetime.UTC) - since).total_seconds() * 1000)

    async def _work(
        self,
        session: BrokerSession,
        situation: Situation,
        token: ownership.Token,
        work: Work,
    ) -> Release | Wait:
        try:
            refused = _refusal(await session.apply(work.first))
            if refused is None:
                # What the first ones took along is not found any more, and that is success.
                rest = [item for item in work.then if session.topology.has(item.identity)]
                refused = _refusal(await session.apply(rest))
            if refused is None:
                return work.release
            if refused.code == "UNAVAILABLE":
                return Wait("BrokerError", refused.message)
            verdict, actions = deletion.after_refusal(
                situation, token, session.topology, refused.message
            )
            await session.apply(actions)
            return verdict
        except BrokerError as error:
            session.nudge()
            return Wait("BrokerError", str(error))

    async def _conclude(self, spec: TopologySpec, verdict: Release | Wait) -> None:
        if isinstance(verdict, Release):
            await self._release(verdict)
            return
        self.engine.queue.add(self.key, verdict.retry_ms / 1000)
        value = status.topology_status(
            self.body.get("status") or {}, self.meta, spec, verdict.reason, verdict.message
        )
        await self.engine.write_status(self.key, self.body, value)

    async def _release(self, verdict: Release) -> None:
        if verdict.event:
            await self.engine.store.emit(self.body, "Warning", verdict.event, verdict.message)
            self.engine.metrics.left_behind(self.key.kind)
        await self.engine.store.remove_finalizer(self.body)


def _refusal(results: list[Result]) -> Result | None:
    """The first answer that is not success; an object that is gone or another's is not ours."""
    for result in results:
        if not result.is_done and result.code not in ("NOT_FOUND", "PRECONDITION"):
            return result
    return None
