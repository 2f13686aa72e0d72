"""The worker of one queue's job, beside the queue's leader: its beginning and its end.

The queue's state says which messages a job holds, so that nothing is lost with a worker: the next
leader's sends again what it finds there, and each copy of a redrive says which message it is of.
"""

from __future__ import annotations

import contextlib
import json
import logging
from typing import Any

from brokerd.cluster.errors import GroupGone
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.queue.queue_jobs import Job
from brokerd.core.triage.jobs import JobState, JobStatus
from brokerd.server.catalog.audit import Author, job_ended
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.messages.job_run import Around, Ended, JobRun

log = logging.getLogger(__name__)

#: Of a reason that stands in a receipt.
_WHY_CHARACTERS_MAX = 1_000


class JobWorker:
    """State: the run of the job, once it has begun.

    `term`: in which this member leads the queue; later ones have workers of their own.
    """

    def __init__(self, uid: int, term: int, channel: int, around: Around) -> None:
        """channel: of the worker's own."""
        self.uid = uid
        self.term = term
        self._channel = channel
        self._around = around
        self._run: JobRun | None = None
        self._is_stopped = False

    @property
    def status(self) -> JobStatus | None:
        """Return how far the job is; None before it has begun here."""
        if self._run is None:
            return None
        status = self._run.progress.status
        status.held = self._run.sending.count
        return status

    def wake(self) -> None:
        """Look at the job again."""
        if self._run is not None:
            self._run.wake()

    def stop(self) -> None:
        """End; the next leader's worker goes on."""
        self._is_stopped = True
        if self._run is not None:
            self._run.stop()

    async def run(self) -> None:
        """Work until the job is over, or this is stopped."""
        queues = self._around.queues
        queue = queues.queue_of(self.uid)
        if self._is_stopped or queue is None or not queues.leads(self.uid):
            return
        job = queues.machine(self.uid).query_job()
        if job is None:
            return
        log.info("job %d of queue '%s' goes on here", job.id, queue.name)
        try:
            self._run = JobRun(self.uid, self.term, self._channel, self._around, job, queue)
        except (ValueError, TypeError, KeyError) as error:
            log.warning("job %d of queue '%s' cannot be read: %s", job.id, queue.name, error)
            text = _unread(job, queue, str(error), self._around.clock_ms())
        else:
            text = ""
        with contextlib.suppress(Ended, GroupGone):
            await self._work(job.id, queue, text)
        if self._run is not None:
            self._run.sending.close()

    async def _work(self, number: int, queue: Queue, unread: str) -> None:
        run = self._run
        if run is None:
            # Once: where no majority answers, another leader's worker says the same.
            with contextlib.suppress(Unavailable):
                await self._around.client.end_job(self.uid, number, self.term, unread)
            return
        await run.go()
        await self._end(run, queue)

    async def _end(self, run: JobRun, queue: Queue) -> None:
        """Leave the receipt; the run's Ended where another leader's worker does."""
        around, progress = self._around, run.progress
        job = run.job()
        state, why = JobState.DONE, ""
        if job.stopped_by is not None:
            state, why = JobState.STOPPED, f"stopped by user '{job.stopped_by}'"
        receipt = progress.receipt(state, why, around.clock_ms())
        while True:
            try:
                await around.client.end_job(self.uid, job.id, self.term, receipt)
                break
            except Unavailable as error:
                around.routing.warn(f"a job of queue '{queue.name}' cannot end: {error}")
            await run.breathe()
            run.job()
        total = progress.status.total
        outcome = {"sent": total.sent, "stayed": sum(total.stayed.values())}
        log.info("job %d of queue '%s' has ended: %s", job.id, queue.name, outcome)
        author = Author(job.user, "job", around.node)
        around.audit.write(author, job_ended(queue.vhost, queue.name, job.id, state, outcome))


def _unread(job: Job, queue: Queue, why: str, now_ms: int) -> str:
    """Return the receipt of a job whose order is a later release's."""
    order = {"kind": "delete", "vhost": queue.vhost, "queue": queue.name, "to": "nowhere"}
    text = f"its order cannot be read here: {why}"[:_WHY_CHARACTERS_MAX]
    fields: dict[str, Any] = {"id": job.id, "order": order, "user": job.user, "groups": {}}
    fields |= {"state": "stopped", "why": text, "total": {"sent": job.gone}}
    return json.dumps(fields | {"started_ms": job.started_ms, "ended_ms": now_ms})
