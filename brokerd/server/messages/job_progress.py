"""How far a job is, as its worker knows it: counts by reason and by group, within bounds.

What a new leader's worker goes on with is a text in the queue's state, which `save` makes.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from brokerd.core.queue.queue_jobs import PROGRESS_CHARACTERS_MAX, Job
from brokerd.core.queue.watched_copies import OTHERS
from brokerd.core.triage import outcomes
from brokerd.core.triage.gates import Gate
from brokerd.core.triage.jobs import JobKind, JobOrder, JobState, JobStatus, Outcomes, order_of

#: Groups that are told apart; the rest is counted under `OTHERS`.
GROUPS_MAX = outcomes.GROUPS_MAX
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
        #: Groups that go on, or stop, for good (core/triage/gates.py).
        self.decided: dict[str, Gate] = {}
        if job.progress:
            self._go_on(json.loads(job.progress))

    def _go_on(self, saved: dict[str, Any]) -> None:
        for name, (count, copies) in saved["groups"].items():
            self.status.groups[name] = Outcomes(sent=int(count))
            self.status.copies[name] = int(copies)
        self.decided = {name: Gate(gate) for name, gate in saved["decided"].items()}
        for uid in saved["targets"]:
            outcomes.add_target(self.status, int(uid))

    def begin_pass(self) -> None:
        """The queue is looked at from its head: what stays is counted anew."""
        self.status.looked_at = 0
        self.status.total.stayed = {}
        for group in self.status.groups.values():
            group.stayed = {}

    def sent(self, group: str, targets: Collection[int] = ()) -> None:
        """Count a message that every target has confirmed, or that is deleted.

        targets: uids of the queues that have a copy.
        """
        status = self.status
        status.total.sent += 1
        if not group:
            return
        name = self.name_of(group)
        status.groups[name].sent += 1
        if self.order.kind is JobKind.REDRIVE:
            status.copies[name] = status.copies.get(name, 0) + len(targets)
            for uid in targets:
                outcomes.add_target(status, uid)

    def stayed(self, group: str, reason: str) -> None:
        """Count a message that stays."""
        counts = [self.status.total]
        if group:
            counts.append(self.status.groups[self.name_of(group)])
        for counted in counts:
            known = counted.stayed
            if reason not in known and len(known) >= REASONS_MAX:
                reason = OTHERS
            known[reason] = known.get(reason, 0) + 1

    def name_of(self, group: str) -> str:
        """Return the name under which a group is counted: its own, or that of all others."""
        groups = self.status.groups
        name = group if group in groups or len(groups) < GROUPS_MAX else OTHERS
        groups.setdefault(name, Outcomes())
        return name

    def save(self) -> str:
        """Return what another worker goes on with."""
        status = self.status
        saved = {
            "groups": {
                name: [group.sent, status.copies.get(name, 0)]
                for name, group in status.groups.items()
                if group.sent
            },
            "targets": list(status.targets),
            "decided": self.decided,
        }
        return json.dumps(saved, separators=(",", ":"))

    def receipt(self, state: JobState, why: str, now_ms: int) -> str:
        """Return the last status as text, without its groups where these make it too long."""
        last = replace(self.status, state=state, why=why, ended_ms=now_ms, held=0)
        text = json.dumps(last.as_json(), separators=(",", ":"))
        if len(text) <= PROGRESS_CHARACTERS_MAX:
            return text
        last = replace(last, targets=dict(last.targets))
        outcomes.without_groups(last)
        return json.dumps(last.as_json(), separators=(",", ":"))
