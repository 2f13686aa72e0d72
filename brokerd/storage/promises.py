"""How far the logs of a cluster's members were synced, as they told each other.  Pure.

A member tells the others the number of its last synced write, and each remembers it on its own disk
(PROMISES records).  A directory that was put back to an earlier state contradicts that: the member
has forgotten writes that it had acknowledged, though every checksum in it is right.

A log counts its starts (runs).  A member that remembers write 900 of run 7 learns from the run
after it, which began with what was readable then, whether those writes were still there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Runs that a log remembers of itself; what others remember of earlier ones cannot be judged.
RUNS_MAX = 16
#: Members that are remembered at most.
OTHERS_MAX = 256


class Run(NamedTuple):
    """One start of a log: its number, a random mark, and the last write that was readable."""

    number: int
    mark: int
    batch: int


class Promise(NamedTuple):
    """What a member said last: its log, the run, and the number of its last synced write."""

    log: int
    run: int
    mark: int
    batch: int


@dataclass(slots=True)
class Promises:
    """What a log knows of itself and of others; the content of PROMISES records."""

    #: Random, drawn when the log was made; 0: not yet.
    log: int = 0
    #: Ascending; the last one is this process's.
    runs: list[Run] = field(default_factory=list)
    #: Broken promises that have been dealt with: mark of the run, or another log, -> number of the
    #: write.
    admitted: dict[int, int] = field(default_factory=dict)
    #: By name of the member.
    others: dict[str, Promise] = field(default_factory=dict)

    def begin(self, mark: int, batch: int) -> None:
        """Note a start at which `batch` was the last readable write."""
        number = self.runs[-1].number + 1 if self.runs else 1
        self.runs = [*self.runs[1 - RUNS_MAX :], Run(number, mark, batch)]

    def is_behind(self, promise: Promise) -> bool:
        """Tell whether this log has lost something of what it had promised."""
        if not self.runs:
            return False
        if promise.log != self.log:
            # This one is new, and knows the other one by then, or it is an earlier disk's.
            return promise.log not in self.admitted
        if promise.batch <= self.admitted.get(promise.mark, -1):
            return False
        for run, following in zip(self.runs, self.runs[1:], strict=False):
            if run.mark == promise.mark:
                return following.batch < promise.batch
        if self.runs[-1].mark == promise.mark:
            return False
        # A run that is not known: forgotten with what it wrote, or too long ago to be kept.
        return promise.run >= self.runs[0].number

    @property
    def is_first_run(self) -> bool:
        """Tell whether this process has made the log."""
        return len(self.runs) == 1 and self.runs[0].number == 1

    def admit(self, promise: Promise) -> None:
        """Note a broken promise as dealt with; that of another log with all that it promised."""
        key = promise.mark if promise.log == self.log else promise.log
        self.admitted[key] = max(promise.batch, self.admitted.get(key, -1))
        while len(self.admitted) > RUNS_MAX:
            del self.admitted[next(iter(self.admitted))]

    def hear(self, node: str, said: Promise, claims: Promises) -> bool:
        """Take over what a member says of its log, unless it contradicts what it said before and
        has not dealt with that; True: something new.

        claims: its log, runs and admissions.
        """
        before = self.others.get(node)
        if before == said:
            return False
        if before is not None and claims.is_behind(before):
            return False
        if before is None and len(self.others) >= OTHERS_MAX:
            return False
        self.others[node] = said
        return True

    def copy(self) -> Promises:
        """Return one that another thread may read."""
        return Promises(self.log, list(self.runs), dict(self.admitted), dict(self.others))

    def encode(self) -> bytes:
        value = {
            "log": self.log,
            "runs": self.runs,
            "admitted": list(self.admitted.items()),
            "others": self.others,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Promises:
        value: dict[str, Any] = json.loads(data)
        return cls(
            value["log"],
            [Run(*run) for run in value["runs"]],
            dict(value["admitted"]),
            {node: Promise(*promise) for node, promise in value["others"].items()},
        )
