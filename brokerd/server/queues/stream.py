"""What one channel tells its queues: what it publishes, settlements, gets, cancellations, its end.

Within a channel and queue, operations apply in the order of the calls; acknowledgements of other
channels may move forward (turn_settlements.py).  For sessions, Publish and Consume calls, links,
and what the member publishes by itself.  Opened by client.py.

Published messages are collected per queue while one read is taken, and go off as one batch per
queue, which turn.py joins with those of other channels; the answer says which of the channel's own
numbers were taken over.

A queue that hears of the end returns what the channel holds and forgets its publishes.  Each hears
of it when it has answered all that it was sent: what was refused (by a leader that is overloaded,
or not one any more) goes again behind that, so a publish would be taken over twice (R-QQ-8), and an
acknowledgement would come too late, so that its message would come again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from operator import itemgetter
from typing import Protocol

from brokerd.cluster.groups.asked import Asked
from brokerd.cluster.groups.group_client import Answer, ReplyStatus
from brokerd.core.message import Content, Range
from brokerd.core.queue import client_sessions, queue_commands, settling_gets
from brokerd.core.queue.certificates import Client, Details
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.enqueue_commands import EnqueueStatus
from brokerd.core.queue.queue_commands import Kind, ReturnCause, Written
from brokerd.server.queues.in_flight import HEAVY_BYTES, Source
from brokerd.server.queues.turn import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, Batch, Turn

log = logging.getLogger(__name__)

#: Batches of a channel in flight to one queue before the next one waits and grows: one is being
#: replicated while the next stands ready behind it.
BATCHES_IN_FLIGHT_MAX = 2

#: Channels are numbered by a counter below this many bits; their further names have more.
RENAMED_SHIFT = 48

#: First number of messages whose outcome is not counted; no run of numbered ones joins it.
UNNUMBERED = -1

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
    #: The same, and the client has withdrawn the credit for them.
    WITHDRAWN = 8


_COMMANDS = {
    Settle.ACCEPT: (Kind.SETTLE, 0),
    Settle.NACK: (Kind.RETURN, ReturnCause.NACK),
    Settle.REJECT: (Kind.RETURN, ReturnCause.REJECT),
    Settle.RECOVER: (Kind.RETURN, ReturnCause.RECOVER),
    Settle.DISCARD: (Kind.DISCARD, 0),
    Settle.DISCARD_REJECTED: (Kind.DISCARD, ReturnCause.REJECT),
    Settle.UNWRITTEN: (Kind.RETURN, ReturnCause.UNWRITTEN),
    Settle.WITHDRAWN: (Kind.RETURN, ReturnCause.WITHDRAWN),
}


class Target(Protocol):
    """A queue as routing returns it."""

    @property
    def uid(self) -> int:
        """Return the uid of the queue's group."""
        ...


#: Called with (first, count, accepted) per run of the channel's numbers: the first `accepted` of
#: them were taken over by one queue, the others refused.
Outcome = Callable[[list[tuple[int, int, int]]], None]

_HEADER, _BODY = itemgetter(1), itemgetter(2)


class ChannelStream:
    """State: what one channel has published and not sent; its numbers at each queue (duplicate
    detection, replication.md §2.6); commands that have no answer yet; queues still to be notified.

    Invariants: batches of one queue are sent in order, numbers without gaps from 1; every queue
    named to `leave`, or published to, is notified of the end once.
    In one piece: each batch touches nearly all of it.
    """

    __slots__ = (
        "_awaited",
        "_batches",
        "_channel",
        "_channels",
        "_client",
        "_ends",
        "_gone_takes",
        "_groups",
        "_in_flight",
        "_is_closed",
        "_is_numbered",
        "_last_count",
        "_late",
        "_other_names",
        "_outcome",
        "_owed",
        "_read_bytes",
        "_renamed",
        "_sent_batches",
        "_sequences",
        "_settlements",
        "_source",
        "_turn",
    )

    def __init__(
        self,
        turn: Turn,
        channel: int,
        outcome: Outcome | None = None,
        *,
        source: Source | None = None,
        in_flight: Callable[[int], None] | None = None,
        is_numbered: bool = True,
        gone_takes: bool = True,
        client: Client | None = None,
    ) -> None:
        """See QueueClient.open."""
        self._turn = turn
        self._settlements = turn.settlements
        self._groups = turn.groups
        self._channel = channel
        self._outcome = outcome
        self._source = source
        self._in_flight = in_flight
        self._is_numbered = is_numbered
        self._gone_takes = gone_takes
        self._client = client
        #: What goes off next, by queue.
        self._batches: dict[int, Batch] = {}
        #: Batches that have no answer yet, by queue.
        self._sent_batches: dict[int, int] = {}
        #: The number of the next message, by queue.
        self._sequences: dict[int, int] = {}
        #: Queues whose room is waited for.
        self._awaited: set[int] = set()
        #: Bytes that were published since the last offer.
        self._read_bytes = 0
        #: Messages of the batch that was sent last: more than one, and more follow soon.
        self._last_count = 0
        self._is_closed = False
        #: What the channel is called at queues that have lost what it was called before.
        self._channels: dict[int, int] = {}
        self._renamed = 0
        #: Commands that have no answer yet, batches among them, by queue.
        self._owed: dict[int, int] = {}
        #: The command that notifies each queue of the end.
        self._ends: dict[int, bytes] = {}
        #: Further names of the channel that a queue knows: it hears of their end, too.
        self._other_names: dict[int, list[bytes]] = {}
        #: Queues that owe answers, and are notified when they have given them; whether the channel
        #: has only published there.
        self._late: dict[int, bool] = {}

    # ---- publishes ------------------------------------------------------------------------------

    def publish(self, queues: Sequence[Target], contents: list[Content], first: int) -> None:
        """Put a run of messages, numbered from `first` by the channel, into these queues.

        They go off when the batch is full, with the next `offer` or `flush`, or before the
        channel's next operation on the queue.
        """
        size = sum(map(len, map(_HEADER, contents))) + sum(map(len, map(_BODY, contents)))
        count = len(contents)
        for target in queues:
            uid = target.uid
            batch = self._batches.get(uid)
            if batch is not None and size >= BATCH_BYTES_MAX:
                # One command takes a message of the largest size, and little more.
                self._send_batch(uid, batch)
                batch = None
            if batch is None:
                batch = self._batches[uid] = Batch(self)
                if self._is_numbered and self._sent_batches.get(uid, 0) < BATCHES_IN_FLIGHT_MAX:
                    self._turn.join(uid, batch)
            batch.contents += contents
            numbers = batch.numbers
            last = numbers[-1] if numbers else (UNNUMBERED, 0)
            if last[0] != UNNUMBERED and last[0] + last[1] == first:
                numbers[-1] = (last[0], last[1] + count)
            else:
                numbers.append((first, count))
            batch.size += size
            self._read_bytes += size
            if self._in_flight is not None:
                self._in_flight(size)
            if batch.size >= BATCH_BYTES_MAX or len(batch.contents) >= BATCH_MESSAGES_MAX:
                self._send_batch(uid, batch)

    def offer(self) -> None:
        """A read has ended: send what was published with the turn, but let it wait for an answer
        where enough is in flight already.

        A batch costs about as much as 30 messages, so few large ones carry more (hot-path.md
        rule 1: what is there when the previous one ends); nothing waits while less is in flight.
        """
        size, self._read_bytes = self._read_bytes, 0
        for batch in self._batches.values():
            if batch.is_joined:
                has_more = self._last_count > 1 or len(batch.contents) > 1
                self._turn.offer(self, size, has_more)
                return

    def flush(self) -> None:
        """Send all that was published: nothing that follows overtakes it, at any queue."""
        for uid, batch in list(self._batches.items()):
            self._send_batch(uid, batch)

    def _flush_queue(self, uid: int) -> None:
        """An operation follows: what the channel published to the queue, and what channels have
        acknowledged there, goes first.
        """
        if self._batches and (batch := self._batches.get(uid)) is not None:
            self._send_batch(uid, batch)
        self._settlements.send(uid)

    def _send_batch(self, uid: int, batch: Batch) -> None:
        if batch.is_joined:
            self._turn.send(uid)
        else:
            self._turn.send_batches(uid, [batch])

    def take_numbers(self, uid: int, batch: Batch) -> None:
        """See turn.Publishing."""
        del self._batches[uid]
        count = self._last_count = len(batch.contents)
        if self._is_numbered:
            first = batch.first_sequence = self._sequences.get(uid, 1)
            self._sequences[uid] = first + count
        batch.channel = self._channels.get(uid, self._channel)
        self._sent_batches[uid] = self._sent_batches.get(uid, 0) + 1
        self._owed[uid] = self._owed.get(uid, 0) + 1

    def hold_back(self, uid: int, size: int) -> None:
        """Have no more read where a queue, or the member, has too much in flight (turn.py)."""
        source = self._source
        if source is None or uid in self._awaited:
            return
        in_flight = self._turn.in_flight
        is_heavy = size >= HEAVY_BYTES or self._sent_batches.get(uid, 0) > 1
        room = in_flight.room_to_await(uid, is_heavy)
        if room >= 0:
            self._awaited.add(uid)
            reason = f"queue {uid:x} of {self._channel}"
            source.hold_flow(reason)
            in_flight.when_below(uid, room, partial(self._has_room, uid, source, reason))

    def _has_room(self, uid: int, source: Source, reason: str) -> None:
        self._awaited.discard(uid)
        source.release_flow(reason)

    def refused(self, uid: int, batch: Batch) -> None:
        """The queue's home is down, or it waits with damage that lasts (turn.py)."""
        del self._batches[uid]
        asyncio.get_running_loop().call_soon(self._refused, batch)

    def _refused(self, batch: Batch) -> None:
        self._report(batch, [(first, count, 0) for first, count in batch.numbers])

    def replied(
        self, uid: int, batch: Batch, status: ReplyStatus, verdict: EnqueueStatus, accepted: int
    ) -> None:
        """See turn.Publishing."""
        if status is ReplyStatus.REFUSED:
            self._turn.refused(uid, sum(count for _, count in batch.numbers))
            # It may have been taken over all the same, so its numbers are not used again.
            self._rename(uid, batch.channel)
        elif status is ReplyStatus.OK and verdict is EnqueueStatus.GAP:
            self._lost_at(uid, batch)
        self._report(batch, self._outcomes(uid, batch.numbers, status, verdict, accepted))
        left = self._sent_batches.pop(uid) - 1
        if left:
            self._sent_batches[uid] = left
        following = self._batches.get(uid)
        if following is not None and self._is_numbered and not following.is_joined:
            # It has waited for this answer.
            self._turn.join(uid, following)
            self._turn.ask_for_end()
        self._answered(uid)

    def _report(self, batch: Batch, outcomes: list[tuple[int, int, int]]) -> None:
        if self._in_flight is not None:
            self._in_flight(-batch.size)
        if self._outcome is not None and not self._is_closed:
            self._outcome(outcomes)

    def _lost_at(self, uid: int, batch: Batch) -> None:
        """A queue has forgotten what this channel published, with all that it held: its only disk
        was lost.  What followed is refused; what comes next comes under another name, as numbers
        that were used must not be used again.
        """
        log.warning(
            "queue group=%x has lost what a channel published before: %d messages are refused",
            uid,
            sum(count for _, count in batch.numbers),
        )
        self._rename(uid, batch.channel)

    def _rename(self, uid: int, channel: int) -> None:
        if channel != self._channels.get(uid, self._channel):
            return
        self._renamed += 1
        name = self._channels[uid] = self._channel + (self._renamed << RENAMED_SHIFT)
        self._sequences[uid] = 1
        self._other_names.setdefault(uid, []).append(self._down(name, None))

    def _outcomes(
        self,
        uid: int,
        numbers: list[tuple[int, int]],
        status: ReplyStatus,
        verdict: EnqueueStatus,
        accepted: int,
    ) -> list[tuple[int, int, int]]:
        if status is ReplyStatus.REFUSED:
            return [(first, count, 0) for first, count in numbers]
        if status is ReplyStatus.GONE or verdict is EnqueueStatus.DELETED:
            self._sequences.pop(uid, None)
            accepted = sum(count for _, count in numbers) if self._gone_takes else 0
        outcomes = []
        for first, count in numbers:
            taken = min(count, accepted)
            outcomes.append((first, count, taken))
            accepted -= taken
        return outcomes

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
        reason: str = "",
    ) -> None:
        """Settle messages by their numbers in the queue.

        may_be_lost: by a crash of the leader's member; the messages come again then (ADR 23).
        is_joined: what is accepted goes with what others of the member accept in this turn; not
        behind the publishes of a transaction.
        done: called when it has an answer, whatever it is.
        reason: the client's, for what it does not accept.
        """
        uid, consumer = holder
        kind, cause = _COMMANDS[how]
        # Queues know the clients of consumers.
        client = None if kind is Kind.SETTLE or consumer.tag else self._client
        details = Details(reason, client)
        command = queue_commands.encode_ranges(kind, consumer, ranges, cause, details)
        if kind is Kind.SETTLE and is_joined:
            if self._batches and uid in self._batches:
                self._flush_queue(uid)
            self._owed[uid] = self._owed.get(uid, 0) + 1
            answered = partial(self._is_done, uid, done)
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
        self._flush_queue(uid)
        command = queue_commands.encode_get(getter, no_ack)
        if settled:
            command = settling_gets.encode(command, settled)
        return self._groups.ask(uid, command, timeout_s, answered, once=True, is_lazy=True)

    def _send(
        self,
        uid: int,
        command: bytes,
        done: Callable[[], None] | None,
        *,
        is_lazy: bool = False,
    ) -> None:
        self._flush_queue(uid)
        self._owed[uid] = self._owed.get(uid, 0) + 1
        answered = partial(self._is_done, uid, done)
        self._groups.send(uid, command, answered, client_sessions.is_once(command), is_lazy=is_lazy)

    def _is_done(
        self, uid: int, done: Callable[[], None] | None, _status: ReplyStatus, _reply: bytes
    ) -> None:
        self._answered(uid)
        if done is not None:
            done()

    def _answered(self, uid: int) -> None:
        """A command of the channel has its answer."""
        left = self._owed.pop(uid) - 1
        if left:
            self._owed[uid] = left
        elif uid in self._late:
            self._tell(uid, self._late.pop(uid))

    # ---- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """The channel publishes no more, and outcomes are no longer reported (R-PC-9)."""
        self.flush()
        self._is_closed = True

    def leave(self, held: Mapping[int, Written | None] | None = None) -> None:
        """The channel has ended and sends nothing any more: these queues, and those that know it as
        a publisher, are notified.

        held: queues that the channel had something from; by consumer tag what the client was sent
        and has not settled; what its consumers hold besides returns uncounted.  None: all that they
        hold counts as sent.
        """
        self.close()
        held = held or {}
        self._ends.update({uid: self._down(self._channel, by_tag) for uid, by_tag in held.items()})
        self._end(held, False)
        self._end([uid for uid in self._sequences if uid not in held], True)

    def _down(self, channel: int, written: Written | None) -> bytes:
        turn = self._turn
        # As above: for what it got without a consumer.
        client = self._client if written and "" in written else None
        return queue_commands.encode_channel_down(
            turn.node, turn.incarnation, channel, written, client
        )

    def _end(self, uids: Iterable[int], has_only_published: bool) -> None:
        for uid in uids:
            if uid in self._owed:
                self._late[uid] = has_only_published
            else:
                self._tell(uid, has_only_published)

    def _tell(self, uid: int, has_only_published: bool) -> None:
        commands = self._other_names.pop(uid, [])
        if has_only_published:
            # No client waits for what the queue does about it.
            self._turn.publisher_ended(uid, self._channel)
        else:
            commands = [self._ends.pop(uid), *commands]
        for command in commands:
            # Where the queue is led here and this process ends, its channels end with it.
            self._groups.send(uid, command, _ignore, once=True, is_lazy=True)


def _ignore(_status: ReplyStatus, _reply: bytes) -> None:
    """The end of a channel needs no answer."""
