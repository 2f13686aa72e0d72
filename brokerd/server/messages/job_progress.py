"""How far a job is, as its worker knows it: counts by reason and by group, within bounds.

What a new leader's worker goes on with is a text in the queue's state, which `save` makes.
"""

from __future__ import annotations

import json
from dataclasses import replace

from brokerd.core.queue.queue_jobs import PROGRESS_CHARACTERS_MAX, Job
from brokerd.core.triage.jobs import JobOrder, JobState, JobStatus, Outcomes, order_of

#: Groups that are told apart; the rest is counted under `OTHERS`.
GROUPS_MAX = 256
OTHERS = "others"
#: Reasons of one group or job that are told apart.
REASONS_MAX = 16


class JobProgress:
    """State: the status of a job that is under way.

    Invariant: `status.total.sent` is what the queue has counted, and what it is about to.
    """

    def __init__(self, job: Job) -> None:
        """Go on where the last leader's worker was; JobError, ValueError for what cannot be read:
        a later release's.
        """
        self.order: JobOrder = order_of(json.loads(job.order))
        state = JobState.RUNNING if job.stopped_by is None else JobState.STOPPING
        self.status = JobStatus(job.id, self.order, job.user, state, started_ms=job.started_ms)
        # Counted by the queue with each message, where the text may be one command behind.
        self.status.total.sent = job.gone
        if job.progress:
            for name, count in json.loads(job.progress).items():
                self.status.groups[name] = Outcomes(sent=int(count))

    def begin_pass(self) -> None:
        """The queue is looked at from its head: what stays is counted anew."""
        self.status.looked_at = 0
        self.status.total.stayed = {}
        for group in self.status.groups.values():
            group.stayed = {}

    def sent(self, group: str) -> None:
        """Count a message that every target has confirmed, or that is deleted."""
        self.status.total.sent += 1
        if group:
            self._group(group).sent += 1

    def stayed(self, group: str, reason: str) -> None:
        """Count a message that stays."""
        for outcomes in (self.status.total, self._group(group)) if group else (self.status.total,):
            known = outcomes.stayed
            if reason not in known and len(known) >= REASONS_MAX:
                reason = OTHERS
            known[reason] = known.get(reason, 0) + 1

    def _group(self, name: str) -> Outcomes:
        groups = self.status.groups
        if name not in groups and len(groups) >= GROUPS_MAX:
            name = OTHERS
        return groups.setdefault(name, Outcomes())

    def save(self) -> str:
        """Return what another worker goes on with."""
        sent = {name: group.sent for name, group in self.status.groups.items() if group.sent}
        return json.dumps(sent, separators=(",", ":"))

    def receipt(self, state: JobState, why: str, now_ms: int) -> str:
        """Return the last status as text, without its groups where these make it too long."""
        last = replace(self.status, state=state, why=why, ended_ms=now_ms, held=0)
        text = json.dumps(last.as_json(), separators=(",", ":"))
        if len(text) <= PROGRESS_CHARACTERS_MAX:
            return text
        return json.dumps(replace(last, groups={}).as_json(), separators=(",", ":"))
