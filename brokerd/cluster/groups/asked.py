"""A command whose answer somebody waits for, until it is late or nobody wants it any more."""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias


class ReplyStatus(IntEnum):
    """How a command ended."""

    OK = 0
    #: The group has been deleted, or was never made known with `set_members`.
    GONE = 1
    #: Nobody takes it for now, says `refuse`; the reply is the reason.  It may still take effect.
    REFUSED = 2
    #: No answer in time, where somebody asked (`ask`).  It may still take effect.
    LATE = 3


Answer: TypeAlias = Callable[[ReplyStatus, bytes], None]


class Asked:
    """Invariant: `done` is called once, or never after `withdraw`."""

    __slots__ = ("_done", "timer", "withdrawn")

    def __init__(self, done: Answer) -> None:
        self._done: Answer | None = done
        #: Set by the group client: for `late`, and what it does when nobody waits any more.
        self.timer: TimerHandle | None = None
        self.withdrawn: Callable[[], None] | None = None

    def answered(self, status: ReplyStatus, reply: bytes) -> None:
        """The group, or its client, has answered."""
        done, self._done = self._done, None
        if done is not None:
            self._let_go()
            done(status, reply)

    def late(self) -> None:
        """It took too long."""
        done = self._done
        if done is not None:
            self.withdraw()
            done(ReplyStatus.LATE, b"")

    def withdraw(self) -> None:
        """Nobody waits for it any more."""
        if self._done is not None:
            self._done = None
            withdrawn = self.withdrawn
            self._let_go()
            if withdrawn is not None:
                withdrawn()

    def _let_go(self) -> None:
        """Both refer to this object: it goes with its last user, not when cycles are looked for."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.withdrawn = None
