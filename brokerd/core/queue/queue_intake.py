"""How messages come into a queue: duplicates, the reject-publish limits, TTL and priority.

The part of the queue machine that takes an enqueue command; `queue_machine.py` is the whole.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from brokerd.core.machine import Meta
from brokerd.core.queue import enqueue_commands, queue_decoders
from brokerd.core.queue.effects import Run
from brokerd.core.queue.enqueue_commands import EnqueueStatus, encode_enqueue_reply
from brokerd.core.queue.queue_state import QueueState
from brokerd.core.queue.queue_store import Entry, Span

#: Level of a message without a priority, on quorum queues that tell levels apart (R-PRI-2).
QUORUM_PRIORITY = 4


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueIntake(QueueState):
    """State and invariants: see `QueueState`."""

    def _enqueue(self, meta: Meta, command: queue_decoders.Enqueue) -> bytes:
        head = command.head
        if not head.first_sequence:
            accepted = self._take_over(meta, command, 0)
            return encode_enqueue_reply(EnqueueStatus.OK, accepted)
        if head.shares is not None:
            return self._enqueue_joined(meta, command, head.shares)
        channel, channels = head.channel, self.enqueuers.known(head.node, head.incarnation)
        expected = channels.expected(channel)
        first, end = head.first_sequence, head.first_sequence + head.count
        if first > expected:
            return encode_enqueue_reply(EnqueueStatus.GAP, 0, expected)
        # What came before is a duplicate (R-QQ-8); what is new in the batch is taken over.
        seen = min(end, expected) - first
        confirmed = channels.accepted_again(channel, first, first + seen) if seen else 0
        if seen < head.count:
            accepted = self._take_over(meta, command, seen)
            channels = self.enqueuers.of(head.node, head.incarnation)
            channels.seen(channel, end, first + seen + accepted)
            if confirmed == seen:
                confirmed += accepted
        return encode_enqueue_reply(EnqueueStatus.OK, confirmed)

    def _enqueue_joined(
        self, meta: Meta, command: queue_decoders.Enqueue, shares: list[enqueue_commands.Share]
    ) -> bytes:
        """Take over what several channels have sent together: all of it, or none.

        A copy finds all shares taken over.  Where it finds some of them only, a channel has ended
        since, so that nobody waits any more, or the queue has lost what it knew: a gap for all.
        """
        head = command.head
        channels = self.enqueuers.known(head.node, head.incarnation)
        new = 0
        for channel, first, count in shares:
            expected = channels.expected(channel)
            if first == expected:
                new += 1
            elif first + count > expected:
                return encode_enqueue_reply(EnqueueStatus.GAP, 0, expected)
        if not new:
            return enqueue_commands.encode_joined_reply(
                [channels.accepted_again(each, first, first + n) for each, first, n in shares]
            )
        if new < len(shares):
            return encode_enqueue_reply(EnqueueStatus.GAP, 0)
        left = self._take_over(meta, command, 0)
        channels = self.enqueuers.of(head.node, head.incarnation)
        accepted = []
        for channel, first, count in shares:
            # What is refused is so from there to the end of the command.
            taken = min(count, left)
            left -= taken
            channels.seen(channel, first + count, first + taken)
            accepted.append(taken)
        return enqueue_commands.encode_joined_reply(accepted)

    def _take_over(self, meta: Meta, command: queue_decoders.Enqueue, start: int) -> int:
        """Enqueue the messages from position `start` on; return how many were accepted."""
        head = command.head
        count = head.count
        columns = head.size_columns(payload_only=not self._quorum)
        entry = Entry(meta.index, self.next_number - start, self.clock_ms, count, columns)
        overflow = self.options.overflow
        # R-QQ-26: messages of channel 0 without sequence numbers, at-most-once dead letters, pass;
        # R-LEN-4: on quorum queues reject-publish-dlx behaves as drop-head.
        bypass = self._quorum and (
            overflow != "reject-publish" or not (head.first_sequence or head.channel)
        )
        if overflow == "drop-head" or bypass:
            if start < count:
                self._append(entry, command, start, count - start)
            return count - start
        position = start
        while position < count:
            length = self._room(entry, position, count)
            if not length:
                self._refuse(entry, position, count)
                break
            self._append(entry, command, position, length)
            position += length
            if position < count or self._quorum:
                # The limit lets in what consumers make room for, as if sent one by one.
                self._deliver()
                self._watch_limit()
        return position - start

    def _room(self, entry: Entry, position: int, count: int) -> int:
        """Return how many messages may come in, by the reject-publish limits (R-LEN-3).

        Checked before direct delivery.  A quorum queue takes the message that steps over the limit,
        and none from then on until it is at four fifths (R-LEN-7), as RabbitMQ's clients see it.
        """
        options = self.options
        over = 0
        if self._quorum:
            if self.refusing:
                return 0
            over = 1
        length = count - position
        ready, ready_bytes = self._limited()
        if options.max_length is not None:
            length = min(length, max(0, options.max_length - ready) + over)
        if options.max_length_bytes is not None:
            first = entry.first + position
            room_bytes = options.max_length_bytes - ready_bytes
            length = min(length, entry.fitting(first, first + length, room_bytes) + over)
        return length

    def _append(
        self, entry: Entry, command: queue_decoders.Enqueue, position: int, length: int
    ) -> None:
        first = entry.first + position
        end = first + length
        if not entry.live:
            self.store.add_entry(entry)
        entry.live += length
        self.next_number = end
        self.counters["enq"] += length
        self.counters["enq_bytes"] += entry.bytes_of(first, end)
        queue_ttl_ms = self.options.message_ttl_ms
        highest = self.options.max_priority
        ordinary = min(QUORUM_PRIORITY, highest) if self._quorum else 0
        if command.traits is None:
            expires_ms = None if queue_ttl_ms is None else self.clock_ms + queue_ttl_ms
            self.store.add(Span(entry, first, end, expires_ms, ordinary))
            return
        at = entry.first
        for count, traits in command.traits:
            low, high = max(at, first), min(at + count, end)
            at += count
            if low >= high:
                continue
            # R-TTL-1: the smallest of queue and message; fixed here.
            ttls = [ttl for ttl in (queue_ttl_ms, traits.ttl_ms) if ttl is not None]
            expires_ms = self.clock_ms + min(ttls) if ttls else None
            level = ordinary if traits.priority is None else min(traits.priority, highest)
            self.store.add(Span(entry, low, high, expires_ms, level, 0, traits.delivery_count))

    def _refuse(self, entry: Entry, position: int, count: int) -> None:
        self.counters["refused"] += count - position
        options = self.options
        if options.overflow == "reject-publish-dlx" and options.dead_letter_exchange is not None:
            # R-LEN-4.  They never had a number here; the run says where they are in this entry.
            self.counters["dl_out"] += count - position
            run = Run(entry.first + position, count - position, entry.index, position, 0, 0)
            self._dead_runs("maxlen", options.dead_letter_exchange).append(run)
