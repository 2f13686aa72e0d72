"""The engine: takes resources from a shell, knows who is to look again, and owns what passes share.

design/operator.md §13.1.

Level-triggered: events only say which key to look at again; retries belong to the queue. Used by
both shells and by the passes; owns the cache, the queue and the broker sessions. running.py works
on the queue.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.broker.client import Target
from brokerd_operator.broker.errors import BrokerError
from brokerd_operator.engine import keys, status
from brokerd_operator.engine.admin_account import AdminAccount
from brokerd_operator.engine.cache import ResourceCache
from brokerd_operator.engine.dead_letters import DeadLetters
from brokerd_operator.engine.drift_watch import DriftWatch
from brokerd_operator.engine.findings import Findings
from brokerd_operator.engine.health import Health
from brokerd_operator.engine.kept_aside import KeptAside
from brokerd_operator.engine.keys import Body, Key
from brokerd_operator.engine.links import Links
from brokerd_operator.engine.metrics import Metrics
from brokerd_operator.engine.policy_coverage import PolicyCoverage
from brokerd_operator.engine.ports import ClusterDriver, Store, StoreError
from brokerd_operator.engine.refusals import Refusals, failed_status
from brokerd_operator.engine.session import BrokerSession, NotKnownYet
from brokerd_operator.engine.turns import Line
from brokerd_operator.engine.versions import Version
from brokerd_operator.engine.work_queue import CLUSTERS, WorkQueue
from brokerd_operator.reconcile import reserved
from brokerd_operator.reconcile.topology import ObservedObject
from brokerd_operator.specs.access import Grant
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.broker_connection import BrokerConnectionSpec
from brokerd_operator.specs.model import Identity, Reference, TopologySpec

log = logging.getLogger(__name__)

#: The broker removes these by the object's own terms (design/operator.md §8).
EXPIRY_CAUSES = frozenset(("expired", "auto-delete"))
BROKER_KINDS = ("BrokerCluster", "BrokerConnection")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What may differ between engines."""

    instance: str = "brokerd"
    workers: int = 8
    links_interval_s: float = 10.0
    #: How often brokers are asked what their members keep aside.
    kept_aside_interval_s: float = 10.0
    #: How often brokers with Queues are asked where their dead letters are.
    dead_letters_interval_s: float = 30.0
    #: How often brokers are asked for alarms and members.
    health_interval_s: float = 10.0
    #: How often brokers are asked what the telemetry job found; it runs once an hour.
    findings_interval_s: float = 60.0
    #: How soon a change of policies, queues or exchanges shows on others of them.
    policy_coverage_interval_s: float = 2.0
    #: The orphan sweep waits so long after all resources are known.
    sweep_delay_s: float = 30.0


class Engine:
    """Owns cache, queue, sessions. `put` and `remove` are all that a shell calls.

    In one piece: it is what the passes see of each other, and decides nothing. Who wakes whom goes
    through all of its parts, which are classes of their own.
    """

    def __init__(
        self, store: Store, driver: ClusterDriver, settings: EngineSettings | None = None
    ) -> None:
        self.store = store
        self.driver = driver
        self.settings = settings or EngineSettings()
        self.random = random.Random()
        self.cache = ResourceCache()
        self.queue: WorkQueue[Key] = WorkQueue(
            time.monotonic, self.random, self._line, self.settings.workers
        )
        self.drift = DriftWatch()
        self.links = Links()
        self.kept_aside = KeptAside()
        self.dead_letters = DeadLetters()
        self.health = Health()
        self.findings = Findings()
        self.policy_coverage = PolicyCoverage()
        #: Resources that keep a condition from before the start, not known anew yet.
        self.carrying: set[Key] = set()
        #: Resources whose last pass failed: what it wrote may be there or not.
        self.unsure: set[Key] = set()
        #: Vhosts in which an Event has said that the administrator has no rights.
        self.told_of_rights: set[Key] = set()
        #: What failed, as statuses report it.
        self.refusals = Refusals(time.monotonic)
        #: Set when a broker can be asked for the first time.
        self.is_asking = asyncio.Event()
        self.metrics = Metrics()
        #: Generations at which the broker removed the object by its own terms.
        self.expired: dict[Key, int] = {}
        #: True once the shell has listed everything: nothing can be called an orphan before.
        self.is_synced = asyncio.Event()
        #: BrokerClusters that the driver has looked at since the start. Before that nothing is said
        #: of their brokers, so that a restart writes no status.
        self.looked_at: set[Reference] = set()
        self._sessions: dict[Reference, BrokerSession] = {}
        self._accounts: dict[Reference, AdminAccount] = {}
        self._waiting: dict[tuple[Reference, Identity], set[Key]] = {}
        self._waits_of: dict[Key, list[tuple[Reference, Identity]]] = {}

    # ---- from the shell -----------------------------------------------------------------------

    def put(self, body: Body) -> None:
        """A resource is there or has changed."""
        key = keys.key_of(body)
        before = self.cache.get(key)
        status_before = None if before is None else before.body.get("status") or {}
        needs_pass, woken = self.cache.put(body)
        if not needs_pass:
            self._see_to_status(key, status_before)
            return
        entry = self.cache.get(key)
        if entry is not None:
            if before is None and conditions.is_expired(body):
                # It was so before this process began.
                self.expired[key] = entry.meta.generation
            if self.expired.get(key) not in (None, entry.meta.generation) or (
                before is not None and keys.is_asked_anew(before.body, body)
            ):
                self.expired.pop(key, None)
        self.queue.succeed(key)
        self.queue.add(key)
        self.wake(woken)

    def _see_to_status(self, key: Key, before: Mapping[str, Any] | None) -> None:
        """A status that somebody else edited or took away is written again.

        What a pass writes itself comes here while it is at work, or is known by its version.
        """
        entry = self.cache.get(key)
        if before is None or entry is None or self.queue.is_working(key):
            return
        if not conditions.is_same_status(before, entry.body.get("status") or {}):
            self.queue.add(key)

    def remove(self, key: Key, version: Version | None = None) -> None:
        """A resource is gone: of this version, or whatever is there."""
        woken = self.cache.remove(key, version)
        if woken is None:
            return
        self.queue.forget(key)
        self.drift.forget(key)
        self.expired.pop(key, None)
        self.carrying.discard(key)
        self.unsure.discard(key)
        self.told_of_rights.discard(key)
        self.refusals.forget(key)
        self._stop_waiting(key)
        if key.kind in BROKER_KINDS:
            self.health.forget(key.reference)
            self.findings.forget(key.reference)
            self.dead_letters.forget(key.reference)
            self.policy_coverage.forget(key.reference)
            self.looked_at.discard(key.reference)
            self._accounts.pop(key.reference, None)
            session = self._sessions.pop(key.reference, None)
            if session is not None:
                session._spawn(session.close())
        self.wake(woken)

    def wake_namespace(self, namespace: str) -> None:
        """All resources of a namespace look again."""
        self.wake(key for key in self.cache.all_keys() if key.namespace == namespace)

    def reference_changed(self, reference: Reference) -> None:
        """A Secret or another object that resources name has changed."""
        self.wake(self.cache.referring_to(reference))

    def _line(self, key: Key) -> Line:
        """Whose turn a pass takes."""
        if key.kind in BROKER_KINDS:
            return Line(key.namespace, CLUSTERS)
        entry = self.cache.get(key)
        if entry is None or not isinstance(entry.spec, TopologySpec):
            return Line(key.namespace)
        reference = entry.spec.broker_ref.reference(entry.meta)
        return Line(key.namespace, f"{reference.kind}/{reference.key}")

    # ---- for the passes -----------------------------------------------------------------------

    def wake(self, woken: Iterable[Key]) -> None:
        for key in woken:
            self.queue.add(key)

    def carry(self, key: Key, body: Body, *types: str) -> tuple[conditions.Condition, ...]:
        """Conditions that stay as they are until somebody knows; the resource is then woken."""
        found = conditions.carried(body, types)
        if found:
            self.carrying.add(key)
        return found

    def wake_carrying(self) -> None:
        """Something is known for the first time."""
        woken, self.carrying = self.carrying, set()
        self.wake(woken)

    def wake_all_of(self, broker: Reference) -> None:
        """Everything that belongs to a broker looks again."""
        self.wake(self.cache.referring_to(broker))

    def session(self, reference: Reference) -> BrokerSession | None:
        """The session of a broker whose resource exists, made when first asked for."""
        key = Key(reference.kind, reference.namespace, reference.name)
        if self.cache.get(key) is None:
            return None
        session = self._sessions.get(reference)
        if session is None:
            session = BrokerSession(reference, self._resolve, self, self.random)
            self._sessions[reference] = session
            session.start()
        return session

    def account(self, reference: Reference) -> AdminAccount:
        """The operator's own account in a broker, as it was seen last."""
        return self._accounts.setdefault(reference, AdminAccount())

    def sessions(self) -> list[BrokerSession]:
        return list(self._sessions.values())

    def nudge(self, reference: Reference) -> None:
        """A broker may be reachable now, or otherwise: its session looks at once."""
        if reference in self._sessions:
            self._sessions[reference].nudge()

    async def close_sessions(self) -> None:
        """Nothing is asked of brokers any more."""
        sessions, self._sessions = list(self._sessions.values()), {}
        await asyncio.gather(*(session.close() for session in sessions))

    def grants(self, reference: Reference) -> tuple[Grant, ...]:
        entry = self.cache.get(Key(reference.kind, reference.namespace, reference.name))
        if entry is None or not isinstance(entry.spec, BrokerClusterSpec | BrokerConnectionSpec):
            return ()
        return entry.spec.access

    def expired_generation(self, key: Key, session: BrokerSession) -> int | None:
        """The generation of a resource whose object the broker removed by its own terms.

        While no operator ran it may have been the one whose status says that it was applied.
        """
        entry = self.cache.get(key)
        if entry is not None and key not in self.expired and conditions.was_applied(entry.body):
            ended = session.topology.ended
            if any(identity in ended for _, identity in entry.claims):
                self.expired[key] = entry.meta.generation
        return self.expired.get(key)

    def wait_for(self, key: Key, broker: Reference, absent: Iterable[Identity]) -> None:
        """Wake a resource when one of these objects appears."""
        self._stop_waiting(key)
        names = [(broker, identity) for identity in absent]
        for name in names:
            self._waiting.setdefault(name, set()).add(key)
        if names:
            self._waits_of[key] = names

    def _stop_waiting(self, key: Key) -> None:
        for name in self._waits_of.pop(key, ()):
            waiting = self._waiting.get(name)
            if waiting is not None:
                waiting.discard(key)
                if not waiting:
                    del self._waiting[name]

    async def write_status(
        self, key: Key, body: Body, value: Mapping[str, Any], refused: Sequence[str] = ()
    ) -> None:
        """Write a status if it says something new.

        An Event reports one that the API server refuses, and it is tried again with back-off
        whatever wakes the resource meanwhile. `refused` is for the Events (status.write).
        """
        if self.refusals.is_resting(key, body):
            return
        try:
            if await status.write(self.store, body, value, refused):
                self.metrics.status_written(key.kind)
        except StoreError as error:
            if not error.is_answer or error.is_passing:
                raise
            await self._status_refused(key, body, error)
        else:
            self.refusals.status_taken(key)

    async def _status_refused(self, key: Key, body: Body, error: StoreError) -> None:
        pause_s = self.refusals.status_refused(key, body)
        self.queue.add(key, pause_s)
        self.metrics.failed(key.kind)
        text = f"{error.what}: {error}"
        log.warning("status refused key=%s retry_s=%.0f %s", key.resource, pause_s, text)
        await self.store.emit(body, "Warning", status.REFUSED, text)

    async def tell_failure(self, key: Key, error: Exception) -> None:
        """Say in the status what made a pass fail, once it does not pass by itself.

        Raises OSError or Gone where that is not to be had, either.
        """
        said = self.refusals.failed(key, error)
        entry = self.cache.get(key)
        if said is not None and entry is not None:
            await self.write_status(key, entry.body, failed_status(entry.body, said))

    async def _resolve(self, reference: Reference) -> Target | None:
        if reference.kind == "BrokerCluster":
            if reference not in self.looked_at:
                raise NotKnownYet
            return await self.driver.target(reference)
        return await self._connection_target(reference)

    async def _connection_target(self, reference: Reference) -> Target | None:
        entry = self.cache.get(Key(reference.kind, reference.namespace, reference.name))
        if entry is None or not isinstance(entry.spec, BrokerConnectionSpec):
            return None
        if not self.store.is_watched(reference.namespace):
            raise BrokerError(f"namespace {reference.namespace} is not available to the operator")
        spec = entry.spec
        namespace = reference.namespace
        data = await self.store.secret(namespace, spec.credentials_secret_ref.name)
        if data is None or "username" not in data or "password" not in data:
            name = spec.credentials_secret_ref.name
            raise BrokerError(f"Secret {name} with username and password does not exist")
        ca = None
        if spec.tls is not None:
            secret = await self.store.secret(namespace, spec.tls.ca_secret_ref.name)
            if secret is None or "ca.crt" not in secret:
                raise BrokerError(f"Secret {spec.tls.ca_secret_ref.name} has no ca.crt")
            ca = secret["ca.crt"]
        try:
            username, password = data["username"].decode(), data["password"].decode()
        except UnicodeDecodeError as error:
            raise BrokerError("the credentials are not UTF-8") from error
        server_name = spec.tls.server_name if spec.tls else None
        return Target(spec.endpoints, username, password, ca, server_name)

    # ---- from the sessions --------------------------------------------------------------------

    def broker_synced(self, session: BrokerSession) -> None:
        """Everything of this broker is compared: a full listing is cheap, and writes nothing."""
        self.policy_coverage.mark_all(session.reference)
        self.is_asking.set()
        self.wake_broker(session.reference)

    def broker_down(self, session: BrokerSession) -> None:
        self.health.lost(session.reference)
        self.wake_broker(session.reference)

    def wake_broker(self, reference: Reference) -> None:
        """A broker and everything that belongs to it look again."""
        self.wake_all_of(reference)
        self.wake_broker_itself(reference)

    def wake_broker_itself(self, reference: Reference) -> None:
        self.queue.add(Key(reference.kind, reference.namespace, reference.name))

    def object_changed(
        self,
        session: BrokerSession,
        identity: Identity,
        before: ObservedObject | None,
        cause: str,
        author: Key | None = None,
    ) -> None:
        """Wake the resources that own, want or wait for an object, but not its author."""
        broker = session.reference
        self.policy_coverage.mark(broker, identity)
        woken = self.cache.claiming(broker, identity)
        present = session.topology.get(identity)
        if present is None and cause in EXPIRY_CAUSES:
            for key in woken:
                entry = self.cache.get(key)
                if entry is not None:
                    self.expired[key] = entry.meta.generation
        if (before is None) != (present is None):
            woken |= self._waiting.get((broker, identity), set())
            if present is None:
                woken |= self.cache.depending_on(broker, identity)
        for item in (before, present):
            if item is not None and item.owner is not None:
                woken |= self._owner_key(item.owner.resource)
        if identity == reserved.user(session.account):
            woken.add(Key(broker.kind, broker.namespace, broker.name))
        self.wake(woken - {author})

    def _owner_key(self, resource: str) -> set[Key]:
        parts = resource.split("/", 2)
        if len(parts) != 3:
            return set()
        key = Key(*parts)
        return {key} if self.cache.get(key) is not None else set()
