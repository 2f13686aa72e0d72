"""Jobs on queues' messages (redrive, move, delete) for the front doors, from any member.

Implements `job_ports.QueueJobs`.  A job is started and stopped by commands to its queue, and done
by a worker beside the queue's leader (server/messages/job_worker.py); how far it is, leaders are
asked.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from brokerd.cluster.errors import GroupGone
from brokerd.core.catalog import delayed_type, names, refusals
from brokerd.core.catalog.refusals import Refused
from brokerd.core.triage import outcomes
from brokerd.core.triage.jobs import JobError, JobState, JobStatus, To, order_of, status_of
from brokerd.server.catalog import audit
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.listings.job_ports import JobRefused
from brokerd.server.loop.chunks import in_chunks
from brokerd.server.messages import job_outcomes

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_objects import Queue
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.core.catalog.identity import Identity
    from brokerd.core.catalog.permissions import Access
    from brokerd.core.queue.queue_machine import QueueMachine
    from brokerd.core.triage.jobs import JobOrder
    from brokerd.server.members import ports as members_ports
    from brokerd.server.members.member_calls import MemberCalls
    from brokerd.server.messages.job_outcomes import Asking
    from brokerd.server.messages.job_workers import JobWorkers
    from brokerd.server.queues.client import QueueClient

log = logging.getLogger(__name__)

Json = dict[str, Any]

_ASK = "jobs"
#: How long a leader is looked for, and how often.
PATIENCE_S = 5.0
AGAIN_S = 0.1
#: Jobs that have ended of which one listing asks the targets what became of copies since.
LOOKS_MAX = 100
_ADMINISTRATOR = "administrator"


class Queues(Protocol):
    """The queues that are led here (queues/directory.py)."""

    #: Their terms, by uid.
    led: dict[int, int]

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record of a queue."""
        ...

    def machine(self, uid: int) -> QueueMachine:
        """Return the state of a queue that has a replica here."""
        ...


@dataclass(slots=True, frozen=True)
class Sources:
    """What jobs need of the member."""

    view: CatalogState
    client: QueueClient
    members: members_ports.Neighbours
    audit: audit.Audit
    clock_ms: Callable[[], int]
    outcomes: Asking


def serve(
    calls: MemberCalls, queues: Queues, workers: JobWorkers, is_folded: Callable[[int], bool]
) -> None:
    """Answer other members' questions, and this one's, about the queues that are led here.

    is_folded(uid): the queue's state is put away, so that it has no job, nor had one lately.
    """

    async def jobs(asked: Json) -> Json:
        uid = asked.get("uid")
        found: Json = {}
        async for chunk in in_chunks([uid] if uid is not None else list(queues.led)):
            for each in chunk:
                if each in queues.led and queues.queue_of(each) is not None:
                    rows = [] if is_folded(each) else _rows(queues.machine(each), workers, each)
                    if rows or uid is not None:
                        found[str(each)] = rows
        return {"jobs": found}

    calls.serve(_ASK, jobs)


def _rows(machine: QueueMachine, workers: JobWorkers, uid: int) -> list[Json]:
    """Return what is known of a queue's jobs, the newest first."""
    rows = []
    job = machine.query_job()
    if job is not None:
        status = workers.status_of(uid)
        if status is None or status.id != job.id:
            # The worker has not begun here.
            order = order_of(json.loads(job.order))
            status = JobStatus(job.id, order, job.user, JobState.RUNNING, started_ms=job.started_ms)
            status.total.sent, status.held = job.gone, job.held.count
        if job.stopped_by is not None and status.state is not JobState.STOPPING:
            status.state = JobState.STOPPING
        rows.append(status.as_json())
    return rows + [json.loads(receipt.text) for receipt in reversed(machine.query_receipts())]


class Jobs:
    """State: none of its own."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    async def start(self, order: JobOrder, identity: Identity, author: audit.Author) -> JobStatus:
        """See QueueJobs."""
        try:
            order.check()
        except JobError as error:
            raise JobRefused(refusals.precondition_failed(str(error))) from error
        queue = self._queue(order.vhost, order.queue, identity)
        self._check_target(order, identity)
        sources = self._sources
        if identity.scopes is not None or sources.view.user(identity.user) is None:
            raise JobRefused(
                refusals.access_refused(
                    "a job goes on for longer than a token is good: start it as a user of the "
                    "broker, whose rights are asked about all the while"
                )
            )
        text = json.dumps(order.as_json(), separators=(",", ":"))
        try:
            number = await sources.client.start_job(queue.uid, text, identity.user)
        except GroupGone as error:
            raise JobRefused(_no_queue(queue.vhost, queue.name)) from error
        if isinstance(number, Refused):
            raise JobRefused(number)
        noted = audit.job(queue.vhost, queue.name, "start-job", number, order.as_json())
        sources.audit.write(author, noted)
        now_ms = sources.clock_ms()
        return JobStatus(number, order, identity.user, JobState.RUNNING, started_ms=now_ms)

    async def stop(
        self, vhost: str, queue: str, identity: Identity, author: audit.Author
    ) -> JobStatus:
        """See QueueJobs."""
        record = self._queue(vhost, queue, identity)
        sources = self._sources
        try:
            number = await sources.client.stop_job(record.uid, identity.user)
        except GroupGone as error:
            raise JobRefused(_no_queue(vhost, queue)) from error
        if isinstance(number, Refused):
            raise JobRefused(number)
        sources.audit.write(author, audit.job(vhost, queue, "stop-job", number, {}))
        for status in await self._of_queue(record):
            if status.id == number:
                return status
        raise Unavailable(f"job {number} of queue '{queue}' is being stopped; ask again")

    async def statuses(
        self, vhost: str | None, queue: str | None, identity: Identity
    ) -> list[JobStatus]:
        """See QueueJobs."""
        if vhost is not None and queue is not None:
            asked = self._queue(vhost, queue, identity)
            newest = await self._of_queue(asked)
            await self._look_again([(asked.uid, status) for status in newest])
            return newest
        cluster, view = self._sources.members, self._sources.view
        answers = await cluster.calls.ask_all(cluster.host.alive(), _ASK)
        rows: dict[int, list[Json]] = {}
        for answer in answers.values():
            rows |= {int(uid): found for uid, found in answer["jobs"].items()}
        shown: list[tuple[str, str, list[JobStatus]]] = []
        known: list[tuple[int, JobStatus]] = []
        access: dict[str, Access] = {}
        for uid, texts in rows.items():
            record = cluster.queue_of(uid)
            if record is None or vhost not in (None, record.vhost):
                continue
            if record.vhost not in access:
                access[record.vhost] = identity.access(view, record.vhost)
            rights = access[record.vhost]
            if rights.check_vhost() or rights.check("read", "queue", record.name):
                continue
            found = [status_of(text) for text in texts]
            shown.append((record.vhost, record.name, found))
            known += [(uid, status) for status in found]
        await self._look_again(known)
        return [status for _, _, each in sorted(shown, key=lambda row: row[:2]) for status in each]

    async def _look_again(self, known: list[tuple[int, JobStatus]]) -> None:
        """What waited at the end of a job may have been acknowledged, or have died, since."""
        ended = [
            (uid, status)
            for uid, status in known
            if status.ended_ms is not None and outcomes.may_change(status)
        ]
        asking = self._sources.outcomes
        await asyncio.gather(
            *(job_outcomes.look(asking, uid, status) for uid, status in ended[:LOOKS_MAX])
        )

    # ---- who may --------------------------------------------------------------------------------

    def _queue(self, vhost: str, name: str, identity: Identity) -> Queue:
        """Return the queue if its messages may be taken, as for basic.get."""
        view = self._sources.view
        access = identity.access(view, vhost)
        refused = access.check_vhost() or access.check("read", "queue", name)
        if refused is not None:
            raise JobRefused(refusals.access_refused(refused.text))
        queue = view.queue(vhost, name)
        if queue is None:
            raise JobRefused(_no_queue(vhost, name))
        if queue.exclusive_owner is not None and _ADMINISTRATOR not in identity.tags:
            resource = names.resource("queue", vhost, name)
            text = f"{resource} is exclusive: administrators alone may start jobs on it"
            raise JobRefused(refusals.locked(text))
        return queue

    def _check_target(self, order: JobOrder, identity: Identity) -> None:
        """Refuse what could never be sent; each batch asks again."""
        if order.to in (To.NOWHERE, To.REPUBLISH):
            return
        view, vhost = self._sources.view, order.vhost
        exchange = order.target if order.to is To.EXCHANGE else ""
        access = identity.access(view, vhost)
        refused = access.check("write", "exchange", exchange)
        if refused is None and order.to is To.EXCHANGE:
            record = view.exchange(vhost, exchange)
            if record is None:
                resource = names.resource("exchange", vhost, exchange)
                raise JobRefused(refusals.not_found(f"no {resource}"))
            if record.type == delayed_type.TYPE and (order.canary or order.stop_after_deaths):
                text = (
                    f"target: exchange '{exchange}' delays messages, and what becomes of them "
                    "there is not known: leave canary and stop_after_deaths out, or name another "
                    "target"
                )
                raise JobRefused(refusals.precondition_failed(text))
            if order.routing_key is not None:
                refused = access.check_topic("write", record, [order.routing_key])
        if refused is not None:
            raise JobRefused(refused)
        if order.to is To.QUEUE and view.queue(vhost, order.target) is None:
            raise JobRefused(_no_queue(vhost, order.target))

    # ---- the leader's word ----------------------------------------------------------------------

    async def _of_queue(self, queue: Queue) -> list[JobStatus]:
        """Return a queue's jobs as its leader knows them; Unavailable where none answers."""
        cluster = self._sources.members
        clock = asyncio.get_running_loop().time
        deadline = clock() + PATIENCE_S
        while True:
            nodes = set(queue.members) & set(cluster.host.alive())
            hint = cluster.host.leader_of(queue.uid)
            first = [hint] if hint in nodes else []
            for node in [*first, *sorted(nodes.difference(first))]:
                answer = await cluster.calls.ask(node, _ASK, {"uid": queue.uid})
                rows = None if answer is None else answer["jobs"].get(str(queue.uid))
                if rows is not None:
                    return [status_of(row) for row in rows]
            if clock() >= deadline:
                text = f"queue '{queue.name}' in vhost '{queue.vhost}'"
                raise Unavailable(f"no leader of {text} has answered in time")
            await asyncio.sleep(AGAIN_S)


def _no_queue(vhost: str, name: str) -> Refused:
    return refusals.not_found(f"no {names.resource('queue', vhost, name)}")
