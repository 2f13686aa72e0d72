"""Asking the targets of a redrive what became of its copies.

The queues count (core/queue/watched_copies.py), core/triage/outcomes.py sums up; how a question
comes to a queue's leader is listings/job_targets.py's.  For the job's worker, and for listings of
jobs that have ended.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from brokerd.core.triage import outcomes

if TYPE_CHECKING:
    from brokerd.core.triage.jobs import JobStatus


@dataclass(slots=True, frozen=True)
class Answer:
    """What one target says of one job."""

    #: The queue's name, "" if it has been deleted.
    name: str
    consumers: int = 0
    #: By group, as watched_copies.Became; None: it does not know the job.
    counts: dict[str, list[int]] | None = None


class Asking(Protocol):
    """The way to the leaders of queues."""

    async def ask(self, uid: int, source: int, job: int) -> Answer | None:
        """Return what a queue says of a job of the queue `source`; None: no leader answers."""
        ...


@dataclass(slots=True)
class Looked:
    """What one round of questions has brought, beside the status."""

    #: Every target has answered.
    is_complete: bool = True
    #: Names of targets that have no consumers.
    without_consumers: list[str] = field(default_factory=list)


async def look(asking: Asking, source: int, status: JobStatus) -> Looked:
    """Ask all targets of a job of the queue `source`, and sum up in its status what they say."""
    looked = Looked()
    copies = dict(status.copies)
    uids = list(status.targets)
    answers = await asyncio.gather(*(asking.ask(int(uid), source, status.id) for uid in uids))
    for uid, answer in zip(uids, answers, strict=True):
        if answer is None:
            looked.is_complete = False
        elif not answer.name:
            outcomes.lost(status, uid)
        else:
            outcomes.heard(status, uid, answer.counts)
            if not answer.consumers:
                looked.without_consumers.append(answer.name)
    outcomes.count(status, copies if looked.is_complete else None)
    return looked
