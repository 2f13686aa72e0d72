"""What all channels of a member publish in one turn of its loop: one command per queue (ADR 62).

For 200 publishers that await each confirm a batch has one message, and what a command costs on its
way through the log, the peers and the queue machine is most of what it costs.  Channels keep their
own numbers and hear their own outcome; only the command is one.  How long a turn lasts is decided
in looks.py.  Used by stream.py and client.py alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from brokerd.cluster.groups.group_client import GroupClient, ReplyStatus
from brokerd.core.message import Content
from brokerd.core.queue import enqueue_commands, queue_commands
from brokerd.core.queue.enqueue_commands import EnqueueStatus
from brokerd.server.queues.in_flight import InFlight
from brokerd.server.queues.looks import Looks
from brokerd.server.queues.turn_settlements import TurnSettlements

log = logging.getLogger(__name__)

#: Seconds before a queue is notified of ended publishers, and the most of them in one command.
ENDED_S = 0.5
ENDED_MAX = 4096

#: Messages and bytes of one enqueue command; larger batches are split, so that an entry stays well
#: below the peer stream's frame.
BATCH_MESSAGES_MAX = 2048
BATCH_BYTES_MAX = 1024 * 1024


class Publishing(Protocol):
    """One publishing channel (stream.py)."""

    def take_numbers(self, uid: int, batch: Batch) -> None:
        """A batch is about to go off: give it what the queue knows it by."""
        ...

    def hold_back(self, uid: int, size: int) -> None:
        """A batch of this size has gone off: see whether too much is in flight now."""
        ...

    def refused(self, uid: int, batch: Batch) -> None:
        """A batch is not sent, and takes no numbers."""
        ...

    def replied(
        self, uid: int, batch: Batch, status: ReplyStatus, verdict: EnqueueStatus, accepted: int
    ) -> None:
        """A batch has its answer; verdict and accepted (messages from its start) are the queue's
        where the status is OK.
        """
        ...


class Batch:
    """What one channel has for one queue; it grows until it goes off."""

    __slots__ = (
        "channel",
        "contents",
        "first_sequence",
        "is_joined",
        "numbers",
        "publisher",
        "size",
    )

    def __init__(self, publisher: Publishing) -> None:
        self.publisher = publisher
        self.contents: list[Content] = []
        #: The channel's own numbers of the contents as (first, count), in order.
        self.numbers: list[tuple[int, int]] = []
        self.size = 0
        #: It goes with the turn.
        self.is_joined = False
        #: What the queue knows it by: the channel, and the first message's number there (0: it
        #: looks for no duplicates).
        self.channel = self.first_sequence = 0


class Turn:
    """State: what goes off with this turn, by queue; what is in flight.

    Invariant: batches of one channel for one queue go out in the order in which they came.
    """

    def __init__(
        self,
        groups: GroupClient,
        node: str,
        incarnation: int,
        before_flush: Callable[[Callable[[], None]], None],
        is_joining: Callable[[], bool] = lambda: True,
        ended_s: float = ENDED_S,
        clock: Callable[[], float] = time.monotonic,
        refused: Callable[[int, int], None] = lambda _uid, _count: None,
        in_flight: InFlight | None = None,
    ) -> None:
        """before_flush: calls once all that this turn brings has been read (Host.before_flush).

        is_joining: False: each batch is a command of its own; for tests.  clock: seconds.
        refused(uid, count): this number of messages was refused without the queue's word.
        """
        self.groups = groups
        self.node = node
        self.incarnation = incarnation
        self.refused = refused
        self.in_flight = in_flight or InFlight()
        #: What is acknowledged goes before what is published.
        self.settlements = TurnSettlements(groups, before_flush, is_joining)
        self._before_flush = before_flush
        self._is_joining = is_joining
        self._clock = clock
        self._ended_s = ended_s
        #: At most one batch of a channel for a queue.
        self._waiting: dict[int, list[Batch]] = {}
        #: Who has offered something in this turn.
        self._offered: set[Publishing] = set()
        self._looks = Looks()
        #: The end of the turn has been asked for.
        self._is_due = False
        #: Channels that have ended, by queue.
        self._ended: dict[int, list[int]] = {}

    def join(self, uid: int, batch: Batch) -> None:
        """Have a batch go with what others have for the queue in this turn, as it is then."""
        batch.is_joined = True
        waiting = self._waiting.get(uid)
        if waiting is None:
            self._waiting[uid] = [batch]
        else:
            waiting.append(batch)

    def offer(self, publisher: Publishing, size: int, has_more: bool) -> None:
        """Have the turn end some time soon: a channel has read `size` more bytes of what joins.

        has_more: the channel sends many messages at a time.
        """
        offered = self._offered
        is_another = bool(offered) and publisher not in offered
        offered.add(publisher)
        self._looks.came(size, has_more or is_another, self._clock())
        self.ask_for_end()

    def ask_for_end(self) -> None:
        """Have the turn end when all that it brings has been read."""
        if not self._is_due:
            self._is_due = True
            self._before_flush(self._look)

    def _look(self) -> None:
        """End the turn, unless another look at the sockets is likely to bring more."""
        if self._looks.is_another_due(self._clock()):
            self._before_flush(self._look)
            return
        self._offered.clear()
        self._looks = Looks()
        self._is_due = False
        for uid in list(self._waiting):
            try:
                self.send(uid)
            except Exception:
                # One channel's fault is not the others'.
                log.exception("a channel could not be held back group=%x", uid)

    def send(self, uid: int) -> None:
        """Send what waits for a queue, which has something: what follows must not overtake it."""
        waiting = self._waiting.pop(uid)
        if not self._is_joining():
            for batch in waiting:
                self.send_batches(uid, [batch])
            return
        first = count = size = 0
        for at, batch in enumerate(waiting):
            count += len(batch.contents)
            size += batch.size
            if at > first and (count > BATCH_MESSAGES_MAX or size > BATCH_BYTES_MAX):
                self.send_batches(uid, waiting[first:at])
                first, count, size = at, len(batch.contents), batch.size
        self.send_batches(uid, waiting[first:] if first else waiting)

    def send_batches(self, uid: int, batches: list[Batch]) -> None:
        """Send batches of different channels as one command; without numbers one goes alone."""
        if self.groups.refuses_lines(uid):
            # Before they take numbers: the queue need not hear of what it never got.
            for batch in batches:
                self.refused(uid, len(batch.contents))
                batch.publisher.refused(uid, batch)
            return
        # Numbers are never used again after a gap: a queue would confirm as a duplicate what it
        # does not have.
        for batch in batches:
            batch.publisher.take_numbers(uid, batch)
        try:
            self.settlements.send(uid)
            if len(batches) == 1:
                self._send_alone(uid, batches[0])
            else:
                self._send_joined(uid, batches)
        except Exception:
            # The publisher is not here to hear of it otherwise.
            log.exception("messages for the queue group=%x could not be sent", uid)
            for batch in batches:
                _tell(uid, batch, ReplyStatus.REFUSED, EnqueueStatus.OK, 0)
            return
        for batch in batches:
            batch.publisher.hold_back(uid, batch.size)

    def _send_alone(self, uid: int, batch: Batch) -> None:
        command = enqueue_commands.encode_enqueue(
            self.node, self.incarnation, batch.channel, batch.first_sequence, batch.contents
        )
        # They are in the command now; holding them twice would double the memory in flight.
        batch.contents = []
        size = len(command)
        self.groups.send(
            uid,
            command,
            partial(self._answered_alone, uid, batch, size),
            early=enqueue_commands.GAP_REPLY,
            line=batch.publisher,
        )
        self.in_flight.add(uid, size)

    def _send_joined(self, uid: int, batches: Sequence[Batch]) -> None:
        shares = [(batch.channel, batch.first_sequence, len(batch.contents)) for batch in batches]
        contents = [content for batch in batches for content in batch.contents]
        command = enqueue_commands.encode_joined(self.node, self.incarnation, shares, contents)
        for batch in batches:
            batch.contents = []
        size = len(command)
        self.groups.send(
            uid,
            command,
            partial(self._answered_joined, uid, batches, size),
            early=enqueue_commands.GAP_REPLY,
            line=self,
        )
        self.in_flight.add(uid, size)

    def _answered_alone(
        self, uid: int, batch: Batch, size: int, status: ReplyStatus, reply: bytes
    ) -> None:
        self.in_flight.remove(uid, size)
        verdict, accepted = EnqueueStatus.OK, 0
        if status is ReplyStatus.OK:
            verdict, accepted, _ = enqueue_commands.decode_enqueue_reply(reply)
        batch.publisher.replied(uid, batch, status, verdict, accepted)

    def _answered_joined(
        self, uid: int, batches: Sequence[Batch], size: int, status: ReplyStatus, reply: bytes
    ) -> None:
        self.in_flight.remove(uid, size)
        verdict = EnqueueStatus.OK
        accepted: Sequence[int] = [0] * len(batches)
        if status is ReplyStatus.OK:
            verdict, accepted = enqueue_commands.decode_joined_reply(reply, len(batches))
        for batch, taken in zip(batches, accepted, strict=True):
            _tell(uid, batch, status, verdict, taken)

    # ---- channels that have ended ---------------------------------------------------------------

    def publisher_ended(self, uid: int, channel: int) -> None:
        """Have a queue forget a channel that has its answers, some time soon.

        A program that connects for one message would else cost a queue a second command.
        """
        if not self._is_joining():
            down = queue_commands.encode_channel_down(self.node, self.incarnation, channel)
            self.groups.send(uid, down, _ignore, once=True, is_lazy=True)
            return
        if not self._ended:
            asyncio.get_running_loop().call_later(self._ended_s, self._tell_ended)
        self._ended.setdefault(uid, []).append(channel)

    def _tell_ended(self) -> None:
        ended, self._ended = self._ended, {}
        encode = queue_commands.encode_publishers_ended
        for uid, channels in ended.items():
            for at in range(0, len(channels), ENDED_MAX):
                part = channels[at : at + ENDED_MAX]
                command = encode(self.node, self.incarnation, part)
                self.groups.send(uid, command, _ignore, is_lazy=True)


def _ignore(_status: ReplyStatus, _reply: bytes) -> None:
    """What ended needs no answer."""


def _tell(
    uid: int, batch: Batch, status: ReplyStatus, verdict: EnqueueStatus, accepted: int
) -> None:
    # One channel's fault is not the others'.
    try:
        batch.publisher.replied(uid, batch, status, verdict, accepted)
    except Exception:
        log.exception("the outcome of a batch was not taken group=%x", uid)
