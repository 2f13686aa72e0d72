"""From a channel's messages to the queues' leaders, and the answers back (hot path, outward half).

A `Publisher` belongs to one publishing channel (AMQP, gRPC, a federation link, the broker itself).
It collects what one read brought per queue, sends one enqueue batch per queue (which turn_batches
joins with those of other channels), and reports which of the channel's own numbers were taken over
or refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.core.message import Content
from brokerd.core.queue.enqueue_commands import EnqueueStatus
from brokerd.core.queue.queue_commands import Written
from brokerd.server.queues import ports
from brokerd.server.queues.stream import ChannelStream
from brokerd.server.queues.turn_batches import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    Batch,
    TurnBatches,
)

log = logging.getLogger(__name__)

#: So many batches of a channel are on their way to one queue before the next one waits and grows:
#: one is being replicated while the next stands ready behind it.
BATCHES_ON_WAY_MAX = 2

_HEADER, _BODY = itemgetter(1), itemgetter(2)

#: Channels are numbered by a counter below this many bits; their further names have more.
RENAMED_SHIFT = 48

#: While a queue has too much on its way, a publisher is held back that sends it so much at once or
#: has an earlier batch on the way; the others are when it has twice that much.
HEAVY_BYTES = 64 * 1024

#: On its way to all queues together: this share of the memory watermark, and so much where that is
#: less.
WATERMARK_SHARE = 8
MEMBER_BYTES_MAX_LEAST = 32 * 1024 * 1024

#: First number of messages whose outcome nobody counts; no run of numbered ones joins it.
UNNUMBERED = -1


class Target(Protocol):
    """A queue as routing returns it."""

    @property
    def uid(self) -> int:
        """Return the uid of the queue's group."""
        ...


#: Called with (first, count, accepted) per run of the channel's numbers: the first `accepted` of
#: them were taken over by one queue, the others refused.
Outcome = Callable[[list[tuple[int, int, int]]], None]


class Source(Protocol):
    """Where a client's publishes are read from (amqp/flow.py: ReadGate)."""

    def hold_flow(self, reason: str) -> None:
        """Read no more since too much is on its way."""
        ...

    def release_flow(self, reason: str) -> None:
        """That has arrived."""
        ...


class OnWayLimits:
    """How much may be on its way from this member to one queue, and to all, whoever sends it."""

    __slots__ = ("member_bytes_max", "queue_bytes_max")

    def __init__(self, queue_bytes_max: int) -> None:
        self.queue_bytes_max = queue_bytes_max
        self.member_bytes_max = MEMBER_BYTES_MAX_LEAST

    def set_watermark(self, limit: int) -> None:
        """Memory may be used up to `limit` before the alarm."""
        self.member_bytes_max = max(limit // WATERMARK_SHARE, MEMBER_BYTES_MAX_LEAST)


@dataclass(slots=True, frozen=True)
class Credit:
    """What may be on its way, and what waits when it is more."""

    source: Source
    limits: OnWayLimits


class Publisher:
    """Owns the channel's enqueue numbers per queue (duplicate detection, replication.md §2.6).

    Invariant: batches of one queue are sent in order, numbers without gaps from 1.
    In one piece: each batch touches nearly all of it.
    """

    def __init__(
        self,
        turn: TurnBatches,
        channel: int,
        outcome: Outcome,
        in_flight: Callable[[int], None] | None = None,
        deduplicate: bool = True,
        stream: ChannelStream | None = None,
        credit: Credit | None = None,
        gone_takes: bool = True,
    ) -> None:
        """in_flight(bytes) is told when bytes go off (positive) and have arrived (negative).

        gone_takes: whether a queue that was deleted counts as having taken over (R-PC-7).
        stream: of a channel that sends its queues other things as well.
        credit: None for the member's own messages, which are never held back (R-ALM-9).
        """
        self._turn = turn
        self._groups = turn.groups
        self._stream = stream or ChannelStream(turn, channel)
        self._channel = channel
        self._outcome = outcome
        self._in_flight = in_flight
        self._deduplicate = deduplicate
        self._credit = credit
        self._gone_takes = gone_takes
        #: Queues whose room is waited for.
        self._awaited: set[int] = set()
        self._sequences: dict[int, int] = {}
        self._batches: dict[int, Batch] = {}
        #: Bytes that came since the last offer.
        self._read_bytes = 0
        #: Messages of the batch that was sent last: more than one, and more follow soon.
        self._last_count = 0
        #: Batches that have no answer yet, by queue.
        self._on_way: dict[int, int] = {}
        self._closed = False
        #: The turn in which something was handed over last that waits for its end, and for which
        #: queues.
        self._handed_in = -1
        self._handed: list[int] = []
        #: What the channel is called at queues that have lost what it was called before.
        self._channels: dict[int, int] = {}
        self._renamed = 0

    def add(self, targets: Sequence[Target], contents: list[Content], first_number: int) -> None:
        """Put a run of messages, numbered from `first_number` by the channel, into these queues."""
        size = sum(map(len, map(_HEADER, contents))) + sum(map(len, map(_BODY, contents)))
        count = len(contents)
        for target in targets:
            batch = self._batches.get(target.uid)
            if batch is not None and size >= BATCH_BYTES_MAX:
                # One command takes a message of the largest size, and little more.
                del self._batches[target.uid]
                self._send(target.uid, batch)
                batch = None
            if batch is None:
                batch = self._batches[target.uid] = Batch()
            batch.contents += contents
            numbers = batch.numbers
            last = numbers[-1] if numbers else (UNNUMBERED, 0)
            if last[0] != UNNUMBERED and last[0] + last[1] == first_number:
                numbers[-1] = (numbers[-1][0], numbers[-1][1] + count)
            else:
                numbers.append((first_number, count))
            batch.size += size
            self._read_bytes += size
            if self._in_flight is not None:
                self._in_flight(size)
            if batch.size >= BATCH_BYTES_MAX or len(batch.contents) >= BATCH_MESSAGES_MAX:
                del self._batches[target.uid]
                self._send(target.uid, batch)

    def offer(self) -> None:
        """Send what was added at the end of the turn, but let it wait for an answer where enough is
        on its way already.

        A batch costs about as much as 30 messages, so few large ones carry more (hot-path.md
        rule 1: what is there when the previous one ends); nothing waits while less is on its way.
        """
        size, self._read_bytes = self._read_bytes, 0
        on_way = self._on_way
        for uid, batch in self._batches.items():
            if on_way.get(uid, 0) < BATCHES_ON_WAY_MAX:
                has_more = self._last_count > 1 or len(batch.contents) > 1
                self._turn.offer(self, size, has_more)
                return

    def hand_over(self) -> None:
        """The turn is over (turn_batches.py: Publishing)."""
        on_way = self._on_way
        for uid in list(self._batches):
            if on_way.get(uid, 0) < BATCHES_ON_WAY_MAX:
                batch = self._batches.pop(uid)
                try:
                    self._send(uid, batch)
                except Exception:
                    # Whoever published is not here to be told otherwise.
                    log.exception("messages for the queue group=%x could not be sent", uid)
                    self._refused(batch)

    def flush(self) -> None:
        """Send all that was added: what follows must not overtake it."""
        if self._batches:
            batches, self._batches = self._batches, {}
            for uid, batch in batches.items():
                self._send(uid, batch)
        if self._handed_in == self._turn.turn:
            handed, self._handed = self._handed, []
            for uid in handed:
                self._turn.send(uid)

    def close(self) -> None:
        """The channel ended: outcomes interest nobody any more (R-PC-9)."""
        self.flush()
        self._closed = True

    def leave(self, others: Mapping[int, Written] | None = None) -> None:
        """Tell the queues that know this publisher, and `others`, that its channel has ended, each
        when it has answered all batches (queues/stream.py).

        others: queues that the channel had something from, and what its client was sent of it;
        these are told at once.
        """
        self.close()
        had_more = others or {}
        self._stream.ended(had_more)
        published = [uid for uid in self._sequences if uid not in had_more]
        self._stream.published(published, self._forget)

    def _forget(self, uid: int) -> None:
        """A queue need not look for duplicates of this channel any more."""
        self._turn.publisher_ended(uid, self._channel)

    def _send(self, uid: int, batch: Batch) -> None:
        if self._groups.refuses_lines(uid):
            # Before it takes numbers: the queue need not hear of what it never got.
            self._turn.refused(uid, len(batch.contents))
            asyncio.get_running_loop().call_soon(self._refused, batch)
            return
        count = self._last_count = len(batch.contents)
        first = 0
        if self._deduplicate:
            first = self._sequences.get(uid, 1)
            self._sequences[uid] = first + count
        batch.channel, batch.first_sequence = self._channels.get(uid, self._channel), first
        self._on_way[uid] = self._on_way.get(uid, 0) + 1
        self._stream.sent(uid)
        turn = self._turn
        # Numbers are never used again after a gap: a queue would confirm as a duplicate what it
        # does not have.
        if turn.add(uid, batch, self):
            if self._handed_in != turn.turn:
                self._handed_in = turn.turn
                self._handed.clear()
            self._handed.append(uid)
        if (credit := self._credit) is not None and uid not in self._awaited:
            self._hold(uid, batch.size, credit)

    def _hold(self, uid: int, size: int, credit: Credit) -> None:
        """Have no more read where a queue, or the member, has too much on its way.

        What is waited for is always the same queue's: those that take nothing keep nobody from the
        others.  Whoever has no more than an equal part of what the member may have goes on, up to
        twice as much of all.
        """
        limits = credit.limits
        pending, limit = self._turn.pending_bytes(uid), limits.queue_bytes_max
        total, queues = self._groups.pending_in_all()
        most = limits.member_bytes_max
        is_everyone = pending > 2 * limit or total > 2 * most
        if total > most and (is_everyone or pending * queues > most):
            limit = min(limit, pending - 1)
        is_heavy = size >= HEAVY_BYTES or self._on_way.get(uid, 0) > 1
        if pending > limit and (is_heavy or is_everyone):
            self._wait_for_room(uid, credit, limit // 2)

    def _wait_for_room(self, uid: int, credit: Credit, size: int) -> None:
        """Have no more read until no more than so many bytes are on their way to the queue."""
        self._awaited.add(uid)
        reason = f"queue {uid:x} of {self._channel}"
        credit.source.hold_flow(reason)

        def has_room() -> None:
            self._awaited.discard(uid)
            credit.source.release_flow(reason)

        self._groups.when_below(uid, size, has_room)

    def _refused(self, batch: Batch) -> None:
        """Nothing was sent: the queue's home is down, or it waits with damage that lasts."""
        if self._in_flight is not None:
            self._in_flight(-batch.size)
        if not self._closed:
            self._outcome([(first, count, 0) for first, count in batch.numbers])

    def replied(
        self, uid: int, batch: Batch, status: ReplyStatus, verdict: EnqueueStatus, accepted: int
    ) -> None:
        """A batch has its answer (turn_batches.py: Publishing)."""
        if status is ReplyStatus.REFUSED:
            self._turn.refused(uid, sum(count for _, count in batch.numbers))
            # It may have been taken over all the same, so its numbers are not used again.
            self._rename(uid, batch.channel)
        elif status is ReplyStatus.OK and verdict is EnqueueStatus.GAP:
            self._lost_at(uid, batch)
        if self._in_flight is not None:
            self._in_flight(-batch.size)
        if not self._closed:
            self._outcome(self._outcomes(uid, batch.numbers, status, verdict, accepted))
        on_way = self._on_way.pop(uid) - 1
        if on_way:
            self._on_way[uid] = on_way
        if (following := self._batches.pop(uid, None)) is not None:
            self._send(uid, following)
        self._stream.answered(uid)

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
        self._stream.add_name(uid, name)

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


def at_most_once(sender: ports.Sender) -> Publisher:
    """Return a publisher of the member's own whose outcomes nobody awaits.

    It publishes as channel 0, which passes length limits (R-QQ-26).
    """
    return Publisher(sender.batches, 0, _forget, deduplicate=False)


def _forget(_: list[tuple[int, int, int]]) -> None:
    """Nobody waits."""
