"""A command whose answer a caller waits for, until it is late or not wanted any more."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias


class ReplyStatus(IntEnum):
    """How a command ended."""

    OK = 0
    #: The group has been deleted, or was never made known with `set_members`.
    GONE = 1
    #: No member takes it for now, says `refuse`; the reply is the reason.  It may yet take effect.
    REFUSED = 2
    #: No answer in time to a command that was asked (`ask`).  It may yet take effect.
    LATE = 3


Answer: TypeAlias = Callable[[ReplyStatus, bytes], None]


class Asked:
    """Invariant: `done` is called once, or never after `withdraw`."""

    __slots__ = ("_done", "line", "withdrawn")

    def __init__(self, done: Answer) -> None:
        self._done: Answer | None = done
        #: Where it stands among the deadlines, if it does.
        self.line: Line | None = None
        #: Set by the group client: what it does when the caller waits no more.
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
        """The caller waits no more."""
        if self._done is not None:
            self._done = None
            withdrawn = self.withdrawn
            self._let_go()
            if withdrawn is not None:
                withdrawn()

    def _let_go(self) -> None:
        """Both refer to this object: it goes with its last user, not when cycles are looked for."""
        if self.line is not None:
            del self.line.waiting[self]
        self.line = self.withdrawn = None


class Line:
    """Those that wait equally long: who came first is late first."""

    __slots__ = ("timeout_s", "waiting")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        #: Until when, in the loop's time.
        self.waiting: dict[Asked, float] = {}


class Deadlines:
    """When which command is late.

    One timer for all with the same time-out, which is nearly always a setting's: an answer comes
    soon, and a timer of its own would cost a get more than what its queue does.
    Invariant: each line has a timer, and ends with it when it is empty.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[float, Line] = {}

    def add(self, asked: Asked, timeout_s: float) -> None:
        """Call `asked.late` in `timeout_s` seconds."""
        line = self._lines.get(timeout_s)
        if line is None:
            line = self._lines[timeout_s] = Line(timeout_s)
            self._loop.call_later(timeout_s, self._look, line)
        line.waiting[asked] = self._loop.time() + timeout_s
        asked.line = line

    def _look(self, line: Line) -> None:
        now = self._loop.time()
        for asked, due in list(line.waiting.items()):
            if due > now:
                self._loop.call_later(due - now, self._look, line)
                return
            # An earlier one's caller may have withdrawn it.
            asked.late()
        if line.waiting:
            self._loop.call_later(line.timeout_s, self._look, line)
        else:
            del self._lines[line.timeout_s]
