"""Jobs in the simulation: what their workers need of a member, and a client that starts them."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.core.catalog.router import RouteResult
from brokerd.core.triage.jobs import JobKind, JobOrder, To
from brokerd.server.messages.job_outcomes import Answer
from brokerd.server.messages.job_run import Around
from brokerd.server.messages.job_worker import JobWorker

if TYPE_CHECKING:
    from tests.simulation.broker.member import SimBroker
    from tests.simulation.broker.world import BrokerWorld

#: Between two tries to start a job, and the chance that one is stopped instead.
START_MS, STOP_CHANCE = 250, 0.15
_ALL = {"configure": ".*", "write": ".*", "read": ".*"}


class SimView:
    """The catalog, as far as rights ask it: one user, who may do all."""

    def __init__(self) -> None:
        self.vhosts = {"/": None}
        self.access_revision = 0

    def user(self, name: str) -> object:
        """See CatalogState."""
        return self

    def get(self, kind: str, vhost: str, name: str) -> object:
        """See CatalogState."""
        return self

    def spec(self, kind: str, vhost: str, name: str) -> dict[str, Any]:
        """See CatalogState."""
        return _ALL

    def exchange(self, vhost: str, name: str) -> None:
        """See CatalogState."""


class SimRouting:
    """Routes by the name of a queue."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self.counters, self.profile, self.router = broker.counters, broker.profile, self

    def warn(self, text: str) -> None:
        """See ports.Routing."""
        self._broker.warn(text)

    def route(self, vhost: str, exchange: str, routing_key: str, *_: Any) -> RouteResult:
        """See Router."""
        here: Any = self
        result = RouteResult(here)
        found = [queue for queue in self._broker.world.queues.values() if queue.name == routing_key]
        queues = (self._broker.queue_of(queue.uid) for queue in found)
        result.queues = tuple(queue for queue in queues if queue is not None)
        return result


class SimJobs:
    """The workers of one member (server/messages/job_workers.py)."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self._workers: dict[int, JobWorker] = {}

    def _around(self) -> Around:
        broker = self._broker
        parts: dict[str, Any] = {"queues": broker, "routing": SimRouting(broker), "view": SimView()}
        return Around(
            node=broker.node,
            client=broker.queue_client,
            audit=self,
            alarm=lambda: "",
            clock_ms=lambda: 0,
            outcomes=self,
            **parts,
        )

    async def ask(self, uid: int, source: int, job: int) -> Answer | None:
        """See job_outcomes.Asking: by the leader's machine, wherever that is."""
        leader = self._broker.world._leader(uid)
        if leader is None:
            return None
        machine = leader.host.machine_of(uid)
        return Answer("q", machine.query_consumers(), machine.query_outcomes(source, job))

    def write(self, author: object, fields: object) -> None:
        """See audit.Audit."""

    def wake(self, uid: int, term: int) -> None:
        """See JobWorkers."""
        worker = self._workers.get(uid)
        if worker is None or worker.term != term:
            self.stop(uid)
            worker = JobWorker(uid, term, self._broker.next_uid(), self._around())
            self._workers[uid] = worker
            self._broker.spawn(self._run(worker))
        worker.wake()

    async def _run(self, worker: JobWorker) -> None:
        await worker.run()
        if self._workers.get(worker.uid) is not worker:
            return
        del self._workers[worker.uid]
        machine = self._broker.machine
        if self._broker.leads(worker.uid) and machine(worker.uid).query_job() is not None:
            self.wake(worker.uid, worker.term)

    def stop(self, uid: int) -> None:
        """See JobWorkers."""
        worker = self._workers.pop(uid, None)
        if worker is not None:
            worker.stop()


def keep_moving(world: BrokerWorld) -> None:
    """Start a job that moves the parked messages, or sends them back, again and again, and stop one
    now and then.
    """
    uid = world.parked
    assert uid is not None
    leader = world._leader(uid)
    members = [member for member in world.members.values() if member.is_up]
    has_work = leader is None or leader.host.machine_of(uid).overview()["ready"]
    if members and has_work:
        member = world.rng.choice(members)
        is_stop = world.is_chaotic and world.strikes(STOP_CHANCE)
        kind = world.rng.choice((JobKind.MOVE, JobKind.REDRIVE))
        canary = world.rng.choice((0, 3)) if kind is JobKind.REDRIVE else 0
        source, target = world.queues[uid], world.queues[world.queues[uid].targets[0]]
        order = JobOrder(kind, "/", source.name, to=To.QUEUE, target=target.name, canary=canary)
        member.enter(partial(_ask, member.broker, uid, None if is_stop else order))
    world.kernel.after(START_MS, keep_moving, world)


def _ask(broker: SimBroker, uid: int, order: JobOrder | None) -> None:
    """None: the job is stopped."""
    client = broker.queue_client
    if order is None:
        broker.spawn(client.stop_job(uid, "u"))
    else:
        broker.spawn(client.start_job(uid, json.dumps(order.as_json()), "u"))
