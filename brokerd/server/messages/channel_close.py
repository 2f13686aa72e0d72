"""What queues are told when a channel has ended, each when it has answered all that it was sent.

A queue that hears of the end returns what the channel holds and forgets its publishes.  What was
refused (by a leader that is overloaded, or not one any more) goes again behind that: a publish
would be taken over twice (R-QQ-8), and an acknowledgement would come too late, so that its message
would come again.  For whoever has a channel of its own: sessions, Publish and Consume calls, links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.core.queue import client_sessions
from brokerd.server.messages.turn_settlements import TurnSettlements


class ChannelClose:
    """State: commands of one channel that have no answer yet, by queue; who is still to be told.

    Invariant: every queue named to `ended` or `published` is told once.
    """

    __slots__ = ("_also", "_commands", "_forget", "_groups", "_late", "_owed", "_settlements")

    def __init__(self, settlements: TurnSettlements) -> None:
        self._settlements = settlements
        self._groups = settlements.groups
        self._owed: dict[int, int] = {}
        #: What each of them is told.
        self._commands: dict[int, bytes] = {}
        self._forget: Callable[[int], None] | None = None
        self._also: dict[int, list[bytes]] = {}
        #: Queues that owe answers, and are told when they have given them; whether the channel
        #: has only published there.
        self._late: dict[int, bool] = {}

    def send(
        self,
        uid: int,
        command: bytes,
        *,
        is_lazy: bool = False,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Send a command of the channel; `done` is called when it has an answer, whatever it is."""
        self._settlements.send(uid)
        self.sent(uid)
        answered = partial(self._answered, uid, done)
        self._groups.send(uid, command, answered, client_sessions.is_once(command), is_lazy=is_lazy)

    def settle(self, uid: int, command: bytes, *, is_lazy: bool) -> None:
        """Send a SETTLE command, together with what others settle in this turn."""
        self.sent(uid)
        self._settlements.add(uid, command, partial(self._answered, uid, None), is_lazy=is_lazy)

    def sent(self, uid: int) -> None:
        """A command of the channel was sent; `answered` follows."""
        self._owed[uid] = self._owed.get(uid, 0) + 1

    def answered(self, uid: int) -> None:
        """A command of the channel has its answer."""
        left = self._owed.pop(uid) - 1
        if left:
            self._owed[uid] = left
        elif uid in self._late:
            self._tell(uid, self._late.pop(uid))

    def add(self, uid: int, command: bytes) -> None:
        """This queue is to be told something else, too."""
        self._also.setdefault(uid, []).append(command)

    def ended(self, commands: Mapping[int, bytes]) -> None:
        """The channel has ended and sends nothing any more: these queues are told so, each by its
        command.
        """
        self._commands.update(commands)
        self._end(commands, False)

    def published(self, uids: Iterable[int], forget: Callable[[int], None]) -> None:
        """As `ended`, of queues that the channel had nothing from: nobody waits for what they do
        about it, so `forget` may take its time.
        """
        self._forget = forget
        self._end(uids, True)

    def _end(self, uids: Iterable[int], has_only_published: bool) -> None:
        for uid in dict.fromkeys(uids):
            if uid in self._owed:
                self._late[uid] = has_only_published
            else:
                self._tell(uid, has_only_published)

    def _tell(self, uid: int, has_only_published: bool) -> None:
        commands = self._also.pop(uid, [])
        if has_only_published and self._forget is not None:
            self._forget(uid)
        else:
            commands = [self._commands.pop(uid), *commands]
        for command in commands:
            # Where the queue is led here and this process ends, its channels end with it.
            self._groups.send(uid, command, _ignore, once=True, is_lazy=True)

    def _answered(
        self, uid: int, done: Callable[[], None] | None, _status: ReplyStatus, _reply: bytes
    ) -> None:
        self.answered(uid)
        if done is not None:
            done()


def _ignore(_status: ReplyStatus, _reply: bytes) -> None:
    """The end of a channel needs no answer."""
