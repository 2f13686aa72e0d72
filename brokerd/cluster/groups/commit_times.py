"""How long commands take from their proposal to a replica here until they are applied, sampled.

One command at a time is timed, of all groups of the member together: the next one begins when it is
answered.  So the cost is one comparison per command, and who asks learns of a group that takes
nothing while it waits.  Used by group_client.py, read by the server's metrics.
"""

from __future__ import annotations

import time

from brokerd.cluster.groups.driver import Done
from brokerd.raft.messages import NodeId

#: One that has no answer for so long is given up, so that others are timed.
GIVEN_UP_S = 10.0


class CommitTimes:
    """State: the command that is timed now, if any, and how long the last one took."""

    __slots__ = ("_last_s", "_timed")

    def __init__(self) -> None:
        self._last_s = 0.0
        self._timed: _Timed | None = None

    def timed(self, done: Done) -> Done:
        """Return what is to be called in the place of `done`."""
        if self._timed is not None:
            return done
        self._timed = _Timed(self, done)
        return self._timed

    def ended(self, timed: _Timed, seconds: float | None) -> None:
        """Its command took so long; None: it was refused."""
        if self._timed is timed:
            self._timed = None
            if seconds is not None:
                self._last_s = seconds

    def seconds(self) -> float:
        """Return how long the last one took; the one that is under way if that takes longer."""
        timed = self._timed
        if timed is None:
            return self._last_s
        waited_s = time.perf_counter() - timed.began_s
        if waited_s > GIVEN_UP_S:
            self._timed = None
            self._last_s = waited_s
        return max(self._last_s, waited_s)


class _Timed:
    """The answer of one command."""

    __slots__ = ("_done", "_times", "began_s")

    def __init__(self, times: CommitTimes, done: Done) -> None:
        self._times = times
        self._done = done
        self.began_s = time.perf_counter()

    def __call__(self, accepted: bool, reply: bytes, leader: NodeId | None) -> None:
        self._times.ended(self, time.perf_counter() - self.began_s if accepted else None)
        self._done(accepted, reply, leader)
