"""What all channels of a member publish in one turn of its loop: one command per queue (ADR 62).

For 200 publishers that await each confirm a batch has one message, and what a command costs on its
way through the log, the peers and the queue machine is most of what it costs.  Channels keep their
own numbers and hear their own outcome; only the command is one.  How long a turn lasts is decided
in looks.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from brokerd.cluster.groups.group_client import GroupClient, ReplyStatus
from brokerd.core.message import Content
from brokerd.core.queue import enqueue_commands, queue_commands
from brokerd.core.queue.enqueue_commands import EnqueueStatus
from brokerd.server.queues.looks import Looks
from brokerd.server.queues.turn_settlements import TurnSettlements

log = logging.getLogger(__name__)

#: So long a queue is not told that a publisher has ended, and so many go with one command.
ENDED_S = 0.5
ENDED_MAX = 4096

#: Messages and bytes of one enqueue command; larger batches are split, so that an entry stays well
#: below the peer stream's frame.
BATCH_MESSAGES_MAX = 2048
BATCH_BYTES_MAX = 1024 * 1024


class Publishing(Protocol):
    """One publishing channel."""

    def hand_over(self) -> None:
        """The turn is over: give what was offered."""
        ...

    def replied(
        self, uid: int, batch: Batch, status: ReplyStatus, verdict: EnqueueStatus, accepted: int
    ) -> None:
        """A batch has its answer; verdict and accepted (messages from its start) are the queue's
        where the status is OK.
        """
        ...


@dataclass(slots=True)
class Batch:
    """What one channel has for one queue."""

    contents: list[Content] = field(default_factory=list)
    #: The channel's own numbers of the contents as (first, count), in order.
    numbers: list[tuple[int, int]] = field(default_factory=list)
    size: int = 0
    #: What the queue knows it by, once it is on its way: the channel, and the first message's
    #: number there (0: it looks for no duplicates).
    channel: int = 0
    first_sequence: int = 0


@dataclass(slots=True)
class _Waiting:
    """What waits for the end of the turn, for one queue."""

    batches: dict[int, tuple[Batch, Publishing]] = field(default_factory=dict)
    count: int = 0
    size: int = 0


class TurnBatches:
    """State: who has something for this turn, and what waits, by queue.

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
    ) -> None:
        """before_flush: calls once all that this turn brings has been read (Host.before_flush).

        is_joining: False: each batch is a command of its own; for tests.  clock: seconds.
        refused(uid, count): so many messages were refused without the queue's word.
        """
        self.groups = groups
        self.node = node
        self.incarnation = incarnation
        self.refused = refused
        #: What is acknowledged goes before what is published.
        self.settlements = TurnSettlements(groups, before_flush, is_joining)
        #: Rises with each turn that had something.
        self.turn = 0
        self._before_flush = before_flush
        self._is_joining = is_joining
        self._clock = clock
        self._ended_s = ended_s
        self._waiting: dict[int, _Waiting] = {}
        #: Who has offered something, in the order of the first time.
        self._offered: dict[Publishing, None] = {}
        self._looks = Looks()
        #: The end of the turn has been asked for.
        self._is_due = False
        #: Channels that have ended, by queue.
        self._ended: dict[int, list[int]] = {}

    def offer(self, publisher: Publishing, size: int, has_more: bool) -> None:
        """Have somebody called at the end of the turn who has read so many more bytes.

        has_more: he is one who sends many messages at a time.
        """
        offered = self._offered
        is_another = bool(offered) and publisher not in offered
        offered[publisher] = None
        self._looks.came(size, has_more or is_another, self._clock())
        self._ask_for_end()

    def add(self, uid: int, batch: Batch, publisher: Publishing) -> bool:
        """Send a batch, together with what others have for the queue in this turn; False: it has
        been sent alone, since it cannot be joined.
        """
        if not batch.first_sequence or not self._is_joining():
            self._send(uid, _Waiting({batch.channel: (batch, publisher)}))
            return False
        count, size = len(batch.contents), batch.size
        waiting = self._waiting.get(uid)
        if waiting is not None and (
            batch.channel in waiting.batches
            or waiting.count + count > BATCH_MESSAGES_MAX
            or waiting.size + size > BATCH_BYTES_MAX
        ):
            self.send(uid)
            waiting = None
        if waiting is None:
            waiting = self._waiting[uid] = _Waiting()
        waiting.batches[batch.channel] = batch, publisher
        waiting.count += count
        waiting.size += size
        self._ask_for_end()
        return True

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

    def pending_bytes(self, uid: int) -> int:
        """Return the bytes for a queue that have no answer yet."""
        waiting = self._waiting.get(uid)
        return self.groups.pending_bytes(uid) + (0 if waiting is None else waiting.size)

    def _ask_for_end(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._before_flush(self._look)

    def _look(self) -> None:
        """End the turn, unless another look at the sockets is likely to bring more."""
        if self._looks.is_another_due(self._clock()):
            self._before_flush(self._look)
        else:
            self._end()

    def _end(self) -> None:
        """The turn is over: send what waits."""
        offered, self._offered = self._offered, {}
        self._looks = Looks()
        for publisher in offered:
            try:
                publisher.hand_over()
            except Exception:
                # One channel's fault is not the others'.
                log.exception("what a channel published could not be taken")
        self._is_due = False
        self.turn += 1
        waiting, self._waiting = self._waiting, {}
        for uid, each in waiting.items():
            self._send(uid, each)

    def send(self, uid: int) -> None:
        """Send what waits for a queue: what follows must not overtake it."""
        waiting = self._waiting.pop(uid, None)
        if waiting is not None:
            self._send(uid, waiting)

    def _send(self, uid: int, waiting: _Waiting) -> None:
        parts = list(waiting.batches.values())
        try:
            self.settlements.send(uid)
            if len(parts) == 1:
                self._send_alone(uid, *parts[0])
            else:
                self._send_joined(uid, parts)
        except Exception:
            # Whoever gave it to us is not here to be told.
            log.exception("messages for the queue group=%x could not be sent", uid)
            for batch, publisher in parts:
                _tell(uid, batch, publisher, ReplyStatus.REFUSED, EnqueueStatus.OK, 0)

    def _send_alone(self, uid: int, batch: Batch, publisher: Publishing) -> None:
        command = enqueue_commands.encode_enqueue(
            self.node, self.incarnation, batch.channel, batch.first_sequence, batch.contents
        )
        # They are in the command now; holding them twice would double the memory in flight.
        batch.contents = []
        self.groups.send(
            uid,
            command,
            partial(_answered_alone, uid, batch, publisher),
            early=enqueue_commands.GAP_REPLY,
            line=publisher,
        )

    def _send_joined(self, uid: int, parts: Sequence[tuple[Batch, Publishing]]) -> None:
        shares = [(batch.channel, batch.first_sequence, len(batch.contents)) for batch, _ in parts]
        contents = [content for batch, _ in parts for content in batch.contents]
        command = enqueue_commands.encode_joined(self.node, self.incarnation, shares, contents)
        for batch, _ in parts:
            batch.contents = []
        self.groups.send(
            uid,
            command,
            partial(_answered_joined, uid, parts),
            early=enqueue_commands.GAP_REPLY,
            line=self,
        )


def _ignore(_status: ReplyStatus, _reply: bytes) -> None:
    """What ended needs no answer."""


def _answered_alone(
    uid: int, batch: Batch, publisher: Publishing, status: ReplyStatus, reply: bytes
) -> None:
    verdict, accepted = EnqueueStatus.OK, 0
    if status is ReplyStatus.OK:
        verdict, accepted, _ = enqueue_commands.decode_enqueue_reply(reply)
    publisher.replied(uid, batch, status, verdict, accepted)


def _answered_joined(
    uid: int, parts: Sequence[tuple[Batch, Publishing]], status: ReplyStatus, reply: bytes
) -> None:
    verdict = EnqueueStatus.OK
    accepted: Sequence[int] = [0] * len(parts)
    if status is ReplyStatus.OK:
        verdict, accepted = enqueue_commands.decode_joined_reply(reply, len(parts))
    for (batch, publisher), taken in zip(parts, accepted, strict=True):
        _tell(uid, batch, publisher, status, verdict, taken)


def _tell(
    uid: int,
    batch: Batch,
    publisher: Publishing,
    status: ReplyStatus,
    verdict: EnqueueStatus,
    accepted: int,
) -> None:
    # One channel's fault is not the others'.
    try:
        publisher.replied(uid, batch, status, verdict, accepted)
    except Exception:
        log.exception("the outcome of a batch was not taken group=%x", uid)
