"""Which groups of a redrive may go on: canaries first, and none that keeps dying.

Decided by what is known of the copies that were sent (outcomes.py).  Pure; for the job's worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from brokerd.core.triage.jobs import JobOrder, Outcomes

#: Why messages of a group stay.
CANARY_DIED = "canary died again"
DIED = "too many died again"
#: And why so far, of a job that goes on or was stopped.
CANARY_WAITS = "waits for its canaries"


class Gate(StrEnum):
    """How a group stands, once that is decided for good."""

    #: Its canaries were acknowledged.
    OPEN = "open"
    #: Its canaries, or later too many, died again.
    CANARY_DIED = "canary died"
    DIED = "died"


_REASONS = {Gate.CANARY_DIED: CANARY_DIED, Gate.DIED: DIED}


class Gates:
    """State: groups of which it is decided; what else is needed comes with each question.

    `changes` grows whenever a group may do something that it could not do before, or stops.
    """

    def __init__(self, order: JobOrder, decided: dict[str, Gate]) -> None:
        self._canary = order.canary
        self._deaths_max = order.stop_after_deaths or (1 if order.canary else 0)
        #: By group; part of the job's progress.
        self.decided = decided
        self.changes = 0
        #: Canaries that nobody will acknowledge any more, by group.
        self._replaced: dict[str, int] = {}

    def stays(self, group: str) -> str:
        """Return why no more of a group goes, "" if it may at some time."""
        decided = self.decided.get(group)
        return "" if decided is None else _REASONS.get(decided, "")

    def waits(self, group: str, outcomes: Outcomes, going: int) -> bool:
        """Tell whether a group's canaries are on their way, so that no other goes.

        going: messages of it that are about to be sent, or not confirmed.
        """
        if not self._canary or group in self.decided:
            return False
        return outcomes.sent + going - self._replaced.get(group, 0) >= self._canary

    def look(self, groups: Mapping[str, Outcomes], settled: Collection[str]) -> None:
        """Decide by what targets have said.

        settled: groups of which nothing was on its way when all targets were asked, and answered.
        """
        for name, outcomes in groups.items():
            before = self.decided.get(name)
            if before is None and self._canary:
                self._look_at_canaries(name, outcomes, name in settled)
            elif before in (None, Gate.OPEN) and self._has_died(outcomes):
                self._decide(name, Gate.DIED)

    def _has_died(self, outcomes: Outcomes) -> bool:
        return bool(self._deaths_max) and outcomes.died_again >= self._deaths_max

    def _look_at_canaries(self, name: str, outcomes: Outcomes, is_settled: bool) -> None:
        if self._has_died(outcomes):
            self._decide(name, Gate.CANARY_DIED)
        elif is_settled:
            if outcomes.acknowledged >= self._canary and not outcomes.waiting:
                self._decide(name, Gate.OPEN)
                return
            # Others go in the place of what was purged: no consumer has said anything of it.
            replaced = outcomes.removed + outcomes.unknown + outcomes.died_again
            if replaced > self._replaced.get(name, 0):
                self._replaced[name] = replaced
                self.changes += 1

    def _decide(self, name: str, gate: Gate) -> None:
        self.decided[name] = gate
        self.changes += 1
