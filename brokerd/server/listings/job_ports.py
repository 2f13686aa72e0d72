"""What the front doors ask about jobs of queues (core/triage/jobs.py has the shapes)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from brokerd.core.catalog.refusals import Refused

if TYPE_CHECKING:
    from brokerd.core.catalog.identity import Identity
    from brokerd.core.triage.jobs import JobOrder, JobStatus
    from brokerd.server.catalog.audit import Author


class JobRefused(Exception):
    """The caller lacks a right, the order makes no sense, or the queue has a job already."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.text)
        self.refused = refused


class QueueJobs(Protocol):
    """Starts, stops and shows jobs, whichever member leads the queue.

    Each raises JobRefused, and Unavailable where no leader answers in time.
    """

    async def start(self, order: JobOrder, identity: Identity, author: Author) -> JobStatus:
        """Start a job and return it as it begins: the order and the rights are checked first."""
        ...

    async def stop(self, vhost: str, queue: str, identity: Identity, author: Author) -> JobStatus:
        """Stop a queue's job: what is on its way is waited for, nothing more is taken."""
        ...

    async def statuses(
        self, vhost: str | None, queue: str | None, identity: Identity
    ) -> list[JobStatus]:
        """Return jobs under way and the last that ended, of what the caller may read.

        By queue, the newest first; None: of all.
        """
        ...
