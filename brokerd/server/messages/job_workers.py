"""The workers of jobs on the queues that are led here, by queue.

Woken by what queues' machines ask for (queues/leaders.py); how far each is, listings/jobs.py asks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from brokerd.core.triage.jobs import JobStatus
from brokerd.server.messages.job_run import Around
from brokerd.server.messages.job_worker import JobWorker
from brokerd.server.queues import ports as queue_ports


class JobWorkers:
    """State: workers by uid of their queue."""

    def __init__(
        self,
        around: Around,
        sender: queue_ports.Sender,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """spawn(work) runs a worker until it has ended, or the member does."""
        self._around = around
        self._sender = sender
        self._spawn = spawn
        self._workers: dict[int, JobWorker] = {}

    def wake(self, uid: int, term: int) -> None:
        """A queue that is led here has a job to be done, or to be ended."""
        worker = self._workers.get(uid)
        if worker is None or worker.term != term:
            self.stop(uid)
            worker = JobWorker(uid, term, self._sender.next_uid(), self._around)
            self._workers[uid] = worker
            self._spawn(self._run(worker))
        worker.wake()

    async def _run(self, worker: JobWorker) -> None:
        await worker.run()
        if self._workers.get(worker.uid) is not worker:
            return
        del self._workers[worker.uid]
        # One that began while this was ending has woken this.
        queues = self._around.queues
        if queues.leads(worker.uid) and queues.machine(worker.uid).query_job() is not None:
            self.wake(worker.uid, worker.term)

    def stop(self, uid: int) -> None:
        """The leader is elsewhere now, or the queue is gone."""
        worker = self._workers.pop(uid, None)
        if worker is not None:
            worker.stop()

    def status_of(self, uid: int) -> JobStatus | None:
        """Return how far the job of a queue is that is led here; None: it has not begun here."""
        worker = self._workers.get(uid)
        return None if worker is None else worker.status
