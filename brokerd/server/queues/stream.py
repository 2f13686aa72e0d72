"""What one channel tells its queues besides what it publishes: settlements, gets, cancellations,
its end.

Within a channel and queue, operations apply in the order of the calls; acknowledgements of other
channels may move forward (turn_settlements.py).  For sessions, Publish and Consume calls, links.

A queue that hears of the end returns what the channel holds and forgets its publishes.  Each hears
of it when it has answered all that it was sent: what was refused (by a leader that is overloaded,
or not one any more) goes again behind that, so a publish would be taken over twice (R-QQ-8), and an
acknowledgement would come too late, so that its message would come again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import partial

from brokerd.cluster.groups.asked import Asked
from brokerd.cluster.groups.group_client import Answer, ReplyStatus
from brokerd.core.message import Range
from brokerd.core.queue import client_sessions, queue_commands, settling_gets
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.queue_commands import Kind, ReturnCause, Written
from brokerd.server.queues.turn_batches import TurnBatches

#: Ranges of acknowledgements that one get takes along.
GET_SETTLES_MAX = settling_gets.SETTLED_MAX

#: Numbers of all messages that a consumer can hold.
ALL_HELD: Range = (0, 1 << 62)

#: Queue uid and consumer: who holds what is settled.
Holder = tuple[int, ConsumerId]


class Settle(IntEnum):
    """What becomes of messages that a consumer holds."""

    ACCEPT = 1
    #: basic.nack with requeue.
    NACK = 2
    #: basic.reject with requeue.
    REJECT = 3
    #: basic.recover.
    RECOVER = 4
    #: basic.nack without requeue: to the dead letters.
    DISCARD = 5
    #: basic.reject without requeue.
    DISCARD_REJECTED = 6
    #: The client was never sent them: they return as if they had not left (ADR 69).
    UNWRITTEN = 7


_COMMANDS = {
    Settle.ACCEPT: (Kind.SETTLE, 0),
    Settle.NACK: (Kind.RETURN, ReturnCause.NACK),
    Settle.REJECT: (Kind.RETURN, ReturnCause.REJECT),
    Settle.RECOVER: (Kind.RETURN, ReturnCause.RECOVER),
    Settle.DISCARD: (Kind.DISCARD, 0),
    Settle.DISCARD_REJECTED: (Kind.DISCARD, ReturnCause.REJECT),
    Settle.UNWRITTEN: (Kind.RETURN, ReturnCause.UNWRITTEN),
}


class ChannelStream:
    """State: commands of one channel that have no answer yet, by queue; who is still to be told.

    Invariant: every queue named to `ended` or `published` is told once.
    """

    __slots__ = (
        "_channel",
        "_ends",
        "_forget",
        "_groups",
        "_late",
        "_other_names",
        "_owed",
        "_settlements",
        "_turn",
    )

    def __init__(self, turn: TurnBatches, channel: int) -> None:
        """channel: its number in this life of the member."""
        self._turn = turn
        self._settlements = turn.settlements
        self._groups = turn.groups
        self._channel = channel
        self._owed: dict[int, int] = {}
        #: What each queue that is to be told is told.
        self._ends: dict[int, bytes] = {}
        self._forget: Callable[[int], None] | None = None
        self._other_names: dict[int, list[bytes]] = {}
        #: Queues that owe answers, and are told when they have given them; whether the channel
        #: has only published there.
        self._late: dict[int, bool] = {}

    # ---- what consumers hold --------------------------------------------------------------------

    def settle(
        self,
        holder: Holder,
        ranges: list[Range],
        how: Settle,
        *,
        may_be_lost: bool = False,
        is_joined: bool = True,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Settle messages by their numbers in the queue.

        may_be_lost: by a crash of the leader's member; the messages come again then (ADR 23).
        is_joined: what is accepted goes with what others of the member accept in this turn; not
        behind the publishes of a transaction.
        done: called when it has an answer, whatever it is.
        """
        uid, consumer = holder
        kind, cause = _COMMANDS[how]
        command = queue_commands.encode_ranges(kind, consumer, ranges, cause)
        if kind is Kind.SETTLE and is_joined:
            self.sent(uid)
            answered = partial(self._answered, uid, done)
            self._settlements.add(uid, command, answered, is_lazy=may_be_lost)
        else:
            self._send(uid, command, done, is_lazy=may_be_lost)

    def cancel(self, holder: Holder) -> None:
        """Remove a consumer, without waiting for it (QueueClient.cancel waits)."""
        uid, consumer = holder
        self._send(uid, queue_commands.encode_cancel(consumer), None)

    def get(
        self,
        holder: Holder,
        no_ack: bool,
        settled: list[Range],
        timeout_s: float,
        answered: Answer,
    ) -> Asked:
        """Ask for one message; `settled` of what was got before is settled first, by the same
        command.

        answered(status, reply) is called once, unless it is withdrawn; see gets.py for the reply.
        The queue may not have heard of `settled` where the status is not OK.
        """
        uid, getter = holder
        self._settlements.send(uid)
        command = queue_commands.encode_get(getter, no_ack)
        if settled:
            command = settling_gets.encode(command, settled)
        return self._groups.ask(uid, command, timeout_s, answered, once=True, is_lazy=True)

    # ---- answers that are owed ------------------------------------------------------------------

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

    def _send(
        self,
        uid: int,
        command: bytes,
        done: Callable[[], None] | None,
        *,
        is_lazy: bool = False,
    ) -> None:
        self._settlements.send(uid)
        self.sent(uid)
        answered = partial(self._answered, uid, done)
        self._groups.send(uid, command, answered, client_sessions.is_once(command), is_lazy=is_lazy)

    def _answered(
        self, uid: int, done: Callable[[], None] | None, _status: ReplyStatus, _reply: bytes
    ) -> None:
        self.answered(uid)
        if done is not None:
            done()

    # ---- the end --------------------------------------------------------------------------------

    def add_name(self, uid: int, channel: int) -> None:
        """A queue knows the channel by another number, too."""
        self._other_names.setdefault(uid, []).append(self._down(channel, None))

    def ended(self, written: Mapping[int, Written | None]) -> None:
        """The channel has ended and sends nothing any more: these queues are told so.

        written: by consumer tag what the client was sent and has not settled; what its consumers
        hold besides returns uncounted.  None: all that they hold counts as sent.
        """
        self._ends.update(
            {uid: self._down(self._channel, by_tag) for uid, by_tag in written.items()}
        )
        self._end(written, False)

    def published(self, uids: Iterable[int], forget: Callable[[int], None]) -> None:
        """As `ended`, of queues that the channel had nothing from: nobody waits for what they do
        about it, so `forget` may take its time.
        """
        self._forget = forget
        self._end(uids, True)

    def _down(self, channel: int, written: Written | None) -> bytes:
        turn = self._turn
        return queue_commands.encode_channel_down(turn.node, turn.incarnation, channel, written)

    def _end(self, uids: Iterable[int], has_only_published: bool) -> None:
        for uid in dict.fromkeys(uids):
            if uid in self._owed:
                self._late[uid] = has_only_published
            else:
                self._tell(uid, has_only_published)

    def _tell(self, uid: int, has_only_published: bool) -> None:
        commands = self._other_names.pop(uid, [])
        if has_only_published and self._forget is not None:
            self._forget(uid)
        else:
            commands = [self._ends.pop(uid), *commands]
        for command in commands:
            # Where the queue is led here and this process ends, its channels end with it.
            self._groups.send(uid, command, _ignore, once=True, is_lazy=True)


def _ignore(_status: ReplyStatus, _reply: bytes) -> None:
    """The end of a channel needs no answer."""
