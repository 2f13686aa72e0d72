"""Which groups of a redrive may go on, as its targets tell what became of the copies there.

Asks the targets again and again while the job goes on; core/triage/gates.py decides.  For
job_run.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from brokerd.core.triage.gates import Gates
from brokerd.server.messages.job_outcomes import Asking, Looked, look
from brokerd.server.messages.job_progress import JobProgress
from brokerd.server.messages.job_sending import Sending

#: Seconds between two rounds of questions.
LOOK_S = 1.0


class JobGates:
    """State: what was decided, and the groups that the walk over the queue has passed over."""

    def __init__(
        self,
        asking: Asking,
        uid: int,
        progress: JobProgress,
        sending: Sending,
        changed: Callable[[], None],
    ) -> None:
        """uid: of the job's queue.  changed(): a group may go on, or stops."""
        self._asking = asking
        self._uid = uid
        self._progress = progress
        self._sending = sending
        self._changed = changed
        self._gates = Gates(progress.order, progress.decided)
        self._looked = Looked()
        #: Groups that wait for their canaries, of this pass.
        self.waiting: set[str] = set()
        #: Changes of which the queue knows.
        self.told = 0

    @property
    def changes(self) -> int:
        """Return a number that grows with each decision."""
        return self._gates.changes

    def begin_pass(self) -> None:
        """The queue is looked at from its head."""
        self.waiting = set()

    def stays(self, group: str) -> str:
        """Return why a group's messages stay, "" if they may go."""
        return self._gates.stays(group)

    def waits(self, group: str, chosen: Counter[str]) -> bool:
        """Tell whether a group waits for its canaries; note it.

        chosen: how many of each group are about to be taken.
        """
        if not self._progress.order.canary:
            return False
        going = chosen[group] + self._sending.groups[group]
        if not self._gates.waits(group, self._progress.status.groups[group], going):
            return False
        self.waiting.add(group)
        return True

    async def watch(self) -> None:
        """Look until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Ask all targets what became of the copies there."""
        status, changes = self._progress.status, self.changes
        if not status.targets:
            return
        settled = set(status.groups).difference(self._sending.groups)
        self._looked = await look(self._asking, self._uid, status)
        self._gates.look(status.groups, settled if self._looked.is_complete else ())
        if changes != self.changes:
            self._changed()

    def why(self) -> str:
        """Return what the groups that were passed over wait for."""
        count, canary = len(self.waiting), self._progress.order.canary
        text = f"until consumers have acknowledged {canary} messages of"
        text = f"a group waits {text} it" if count == 1 else f"{count} groups wait {text} each"
        if not self._looked.is_complete:
            return f"{text}; not every target answers"
        idle = self._looked.without_consumers
        return f"{text}; queue '{idle[0]}' has no consumers" if idle else text
