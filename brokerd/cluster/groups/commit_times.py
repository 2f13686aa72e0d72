"""How long commands take from their proposal to a replica here until they are applied, sampled.

One command at a time is timed, of all groups of the member together: the next one begins a moment
after it was answered.  So the cost is one look at a clock per command, and who asks learns of a
group that takes nothing while it waits.  Used by group_client.py, read by the server's metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from brokerd.cluster.groups.driver import Done
from brokerd.raft.messages import NodeId

#: One that has no answer for so long is given up, so that others are timed.
GIVEN_UP_S = 10.0
#: From an answer to the next command that is timed.
PAUSE_S = 0.01


class CommitTimes:
    """State: the command that is timed now, if any, and how long the last one took."""

    __slots__ = ("_clock_s", "_last_s", "_next_s", "_timed")

    def __init__(self, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._clock_s = clock_s
        self._last_s = 0.0
        self._next_s = 0.0
        self._timed: _Timed | None = None

    def timed(self, done: Done) -> Done:
        """Return what is to be called in the place of `done`."""
        if self._timed is not None:
            return done
        now_s = self._clock_s()
        if now_s < self._next_s:
            return done
        self._timed = _Timed(self, done, now_s)
        return self._timed

    def ended(self, timed: _Timed, is_accepted: bool) -> None:
        """Its command was applied, or refused."""
        if self._timed is timed:
            now_s = self._clock_s()
            self._timed = None
            self._next_s = now_s + PAUSE_S
            if is_accepted:
                self._last_s = now_s - timed.began_s

    def seconds(self) -> float:
        """Return how long the last one took; the one that is under way if that takes longer."""
        timed = self._timed
        if timed is None:
            return self._last_s
        waited_s = self._clock_s() - timed.began_s
        if waited_s > GIVEN_UP_S:
            self._timed = None
            self._last_s = waited_s
        return max(self._last_s, waited_s)


class _Timed:
    """The answer of one command."""

    __slots__ = ("_done", "_times", "began_s")

    def __init__(self, times: CommitTimes, done: Done, began_s: float) -> None:
        self._times = times
        self._done = done
        self.began_s = began_s

    def __call__(self, accepted: bool, reply: bytes, leader: NodeId | None) -> None:
        self._times.ended(self, accepted)
        self._done(accepted, reply, leader)
