"""What happens to messages inside a queue: handing out, taking back, expiry, limits, death.

The state of the queue machine and the moves that keep its books; which command makes which move is
in `queue_machine.py`, the only module that uses this one (with `queue_snapshot`).  Deterministic;
no clock, no bodies.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from mypy_extensions import mypyc_attr

from brokerd.core.message import Range
from brokerd.core.queue import certificates, effects
from brokerd.core.queue.certificates import NO_DETAILS, Certificate, Details
from brokerd.core.queue.client_sessions import Senders
from brokerd.core.queue.consumers import Consumer, Consumers
from brokerd.core.queue.dead_letters import DeadLetters
from brokerd.core.queue.delayed import Delayed
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.queue.enqueuers import Enqueuers
from brokerd.core.queue.queue_commands import ReturnCause
from brokerd.core.queue.queue_jobs import Job, LetGo, Receipt
from brokerd.core.queue.queue_store import Entry, Place, Span, Store, append_run
from brokerd.core.queue.watched_copies import Became, WatchedCopies
from brokerd.core.queue_options import QueueOptions, kept
from brokerd.core.ranges import RangeSet

#: Cumulative, each message counted in exactly one place (design/telemetry.md §6.5).
COUNTERS: tuple[str, ...] = (
    "enq", "enq_bytes", "dlv", "redlv", "ack", "requeue",
    "rejected", "expired", "maxlen_drop", "over_limit", "orphaned", "purged",
    "refused", "dl_out", "dl_confirmed", "dl_lost", "get_empty",
    # Of over_limit: for the default limit, and without a dead letter exchange.
    "default_limit_drop",
    # Taken out by jobs: sent on, or deleted.
    "job_out",
)  # fmt: skip

REMOVALS = ("rejected", "expired", "maxlen_drop", "over_limit", "orphaned", "purged", "job_out")

#: The counter for each dead-letter reason (R-DLX-2, R-DL-3).
_COUNTER_OF_REASON = {
    "rejected": "rejected",
    "expired": "expired",
    "maxlen": "maxlen_drop",
    "delivery_limit": "over_limit",
}

#: Deliveries of one command.  Consumers without a prefetch limit would otherwise take a queue of
#: any depth at once; what is left goes out with ticks that the machine asks for at once.
DELIVERIES_PER_COMMAND_MAX = 4096
#: Runs of messages of an exchange that are due in one command; the next tick takes the others.
DUE_PER_COMMAND_MAX = 4096


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueState:
    """One queue's messages, consumers and books.

    Invariants (see `check_invariants`): message numbers are dense from 0; every message is in
    exactly one place (a FIFO, a consumer's hands, the delayed, a job's hands, the dead letters, or
    gone); enq - ack - removals == ready + unacked + delayed + held by the job.
    """

    def __init__(self, options: QueueOptions | None = None) -> None:
        self._reset(options)

    def _reset(self, options: QueueOptions | None) -> None:
        self.options = options or kept(QueueOptions())
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.store = Store()
        self.consumers = Consumers()
        self.letters = DeadLetters()
        self.delayed = Delayed()
        self.enqueuers = Enqueuers()
        self.senders = Senders()
        self.job: Job | None = None
        #: Of the last job that was started; they rise from 1.
        self.last_job_id = 0
        #: Of the last jobs that have ended, the newest last.
        self.receipts: tuple[Receipt, ...] = ()
        #: Copies that redrives sent here; None: no redrive has sent any.
        self.watched: WatchedCopies | None = None
        self.next_number = 0
        self.unacked = 0
        self.unacked_bytes = 0
        #: The latest time seen: a new leader's clock may be behind, expiry must not go back.
        self.clock_ms = 0
        #: R-Q-11: end of the last use; None before the first command.
        self.last_used_ms: int | None = None
        #: Unreachable nodes: since when, and None once their messages have been returned.
        self.suspected: dict[str, int | None] = {}
        #: No consumer's time is over before this; None: none holds anything that could time out.
        self.timeout_check_ms: int | None = None
        #: A quorum queue over its reject-publish limit, until it is well below (R-LEN-7).
        self.refusing = False
        #: Why the queue ended.
        self.deleted: str | None = None
        #: Messages with a lower number may have been delivered by commands that are lost.
        self.doubtful_end = 0
        #: The last command's deliveries were cut off; a tick goes on.
        self.more_to_deliver = False
        self._index = 0
        self._effects: list[Any] = []
        self._deliveries: dict[ConsumerId, list[Run]] = {}
        #: By reason, exchange and key at the time of death (R-DLX-8).
        #: In its order, with who had them.
        self._dead: dict[
            tuple[str, str, str | None], list[tuple[Certificate | None, list[Run]]]
        ] = {}
        #: To the queue's alternate exchange, by reason and exchange (R-MQ-2).
        self._rerouted: dict[tuple[str, str], list[Run]] = {}
        #: For the delivery limit, to nowhere.
        self._given_up: list[Run] = []
        self._letters_added = False
        self._job_changed = False
        #: maxlen_drop before this command changed the settings.
        self._trimmed_from: int | None = None
        self._configure()

    # -- checks --------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Assert everything that must hold between commands."""
        self.store.check()
        self.consumers.check()
        self.letters.check()
        self.delayed.check()
        if self.watched is not None:
            self.watched.check()
        held = [span for consumer in self.consumers.rows() for span in consumer.held]
        assert self.unacked == sum(span.end - span.first for span in held)
        assert self.unacked_bytes == sum(span.size_bytes() for span in held)
        delayed = [span for _, span in self.delayed]
        at_job: list[Span] = []
        if self.job is not None:
            self.job.check()
            assert self.job.id == self.last_job_id
            assert self.job.end <= self.next_number
            at_job = list(self.job.held)
        letters = [letter.span for letter in self.letters]
        spans = [*self.store, *held, *delayed, *at_job, *letters]
        numbers = sorted((span.first, span.end) for span in spans)
        for (_, end), (first, _) in pairwise(numbers):
            assert end <= first, "a message is in two places"
        assert not numbers or 0 <= numbers[0][0] < numbers[-1][1] <= self.next_number
        live: dict[int, int] = {}
        entries: dict[int, Entry] = {}
        for span in spans:
            assert self.store.holds(span.entry)
            live[span.entry.index] = live.get(span.entry.index, 0) + span.end - span.first
            entries[span.entry.index] = span.entry
        assert live == {index: entry.live for index, entry in entries.items()}
        at_rest = [*self.store, *delayed, *at_job, *letters]
        assert not any(span.since_ms for span in at_rest), "held by nobody since some time"
        counters = self.counters
        gone = counters["ack"] + sum(counters[name] for name in REMOVALS)
        here = self.store.ready + self.unacked + self.delayed.count + self.held_by_job
        assert counters["enq"] - gone == here, "the books do not balance"
        assert counters["enq"] == self.next_number
        assert all(count >= 0 for count in counters.values())

    # -- settings ------------------------------------------------------------------------------

    @property
    def _quorum(self) -> bool:
        return self.options.queue_type == "quorum"

    @property
    def _at_least_once(self) -> bool:
        """R-ALO-1; the options say so only if all of it holds, the exchange is checked again."""
        return (
            self._quorum
            and self.options.at_least_once
            and self.options.dead_letter_exchange is not None
        )

    @property
    def letters_of_old(self) -> int:
        """Return how many dead letters wait though the settings no longer have it so (R-ALO-9)."""
        return 0 if self._at_least_once else self.letters.count

    @property
    def held_by_job(self) -> int:
        """Return how many messages the job has in hand."""
        return 0 if self.job is None else self.job.held.count

    @property
    def bytes_held_by_job(self) -> int:
        """Return the bytes of those."""
        return 0 if self.job is None else self.job.size_bytes

    @property
    def _counts_rejects_only(self) -> bool:
        return self.options.delivery_count_mode in ("4.3", "failures")

    @property
    def _returns_to_the_back(self) -> bool:
        """R-DL-7: without a limit, unless it was switched off in a version that has a default."""
        options = self.options
        return options.delivery_limit is None and options.delivery_count_mode != "failures"

    def _configure(self) -> None:
        self.consumers.configure(self.options.single_active_consumer, self._quorum)

    def _used(self) -> None:
        self.last_used_ms = self.clock_ms

    def _lease_end_ms(self) -> int | None:
        # A job is a use: what it holds must not go with the queue.
        if self.options.expires_ms is None or self.consumers.registered or self.job is not None:
            return None
        if self.last_used_ms is None or self._expiry_waits():
            return None
        return self.last_used_ms + self.options.expires_ms

    def _expiry_waits(self) -> bool:
        """R-Q-11: messages here have yet to expire to the dead letter exchange, or to be confirmed.

        Frameworks make a queue for each delay, which nobody consumes: its messages must not go with
        it.  What stands behind a head that never expires would wait for ever, and does not count.
        """
        if not self.options.expiry_waits:
            return False
        if self.letters.count or self.delayed.count:
            return True
        has_exchange = self.options.dead_letter_exchange is not None
        return has_exchange and self.store.next_expiry_ms(self._quorum) is not None

    def next_deadline_ms(self) -> int | None:
        """Return when a tick is due, None if time changes nothing."""
        if self.deleted is not None:
            return None
        if self.more_to_deliver:
            return self.clock_ms
        deadlines = [
            since + self.options.disconnected_timeout_ms
            for since in self.suspected.values()
            if since is not None
        ]
        expiry = self.store.next_expiry_ms(self._quorum)
        if expiry is not None:
            deadlines.append(expiry)
        if self.timeout_check_ms is not None:
            deadlines.append(self.timeout_check_ms)
        due = self.delayed.next_due_ms()
        if due is not None:
            deadlines.append(due)
        lease = self._lease_end_ms()
        if lease is not None:
            deadlines.append(lease)
        return min(deadlines, default=None)

    def first_due_ms(self) -> int | None:
        """Return when the first of the messages that wait is due, or was: those that an exchange
        keeps here are dead letters from then until they are handed on.
        """
        since_ms = self.letters.oldest_ms() if self.options.holds_delayed else None
        return self.delayed.next_due_ms() if since_ms is None else since_ms

    def _limited(self) -> tuple[int, int]:
        """Return messages and bytes that count against the length limits (R-LEN-1, R-LEN-8)."""
        ready, ready_bytes = self.store.ready, self.store.ready_bytes
        if self.job is not None:
            # They may come back, and nothing must have taken their room.
            ready, ready_bytes = ready + self.job.held.count, ready_bytes + self.job.size_bytes
        letters, delayed = self.letters, self.delayed
        ready, ready_bytes = ready + delayed.count, ready_bytes + delayed.size_bytes
        if not self._at_least_once:
            # Those of older settings take no room from what comes under these.
            return ready, ready_bytes
        return ready + letters.count, ready_bytes + letters.size_bytes

    def _watch_limit(self) -> None:
        """R-LEN-7: over the limit a quorum queue refuses, until it is at four fifths of it."""
        options = self.options
        if options.overflow != "reject-publish" or not self._quorum:
            self.refusing = False
            return
        ready, ready_bytes = self._limited()
        part = 8 if self.refusing else 10
        self.refusing = (
            options.max_length is not None and ready > options.max_length * part // 10
        ) or (
            options.max_length_bytes is not None
            and ready_bytes > options.max_length_bytes * part // 10
        )

    # -- serving -------------------------------------------------------------------------------

    def _expire(self) -> None:
        expired = self.store.pop_expired(self.clock_ms, self._quorum)
        if expired:
            self._dead_letter("expired", expired)

    def _serve(self) -> None:
        self._deliver()
        if self.store.expiring:
            self._expire()
        options = self.options
        if options.max_length is not None or options.max_length_bytes is not None:
            self._trim()
        if self._quorum or self.refusing:
            self._watch_limit()

    def _deliver(self) -> None:
        """Hand ready messages to the consumers that may take them (R-CS-4).

        A round gives each consumer of the highest priority an equal share, so that a batch is
        spread as evenly as single messages would be, in runs.
        """
        store, consumers = self.store, self.consumers
        self.more_to_deliver = False
        if not store.ready:
            return
        budget = DELIVERIES_PER_COMMAND_MAX
        while store.ready:
            queue = consumers.service_queue()
            if queue is None:
                return
            if not budget:
                self.more_to_deliver = True
                return
            share = -(-min(store.ready, budget) // len(queue))
            for _ in range(len(queue)):
                if not store.ready or not budget:
                    break
                consumer = queue.popleft()
                consumer.queued = False
                if consumers.may_take(consumer):
                    limit = min(share, consumer.capacity(), budget)
                    budget -= self._hand_out(consumer, limit)
                    consumers.offer(consumer)

    def _hand_out(self, consumer: Consumer, limit: int) -> int:
        runs = self._deliveries.setdefault(consumer.id, [])
        given = 0
        while given < limit:
            span = self._next_live(limit - given)
            if span is None:
                break
            append_run(runs, span)
            given += span.end - span.first
            self._acquire(consumer, span, consumer.no_ack)
        if consumer.credit is not None:
            consumer.credit -= given
        return given

    def _next_live(self, limit: int) -> Span | None:
        """Take up to `limit` messages from the head; what has expired there goes.

        A message that came with this very command may still be delivered (R-TTL-6: TTL 0).
        """
        store = self.store
        while True:
            head = store.head()
            if head is None:
                return None
            over = head.expires_ms is not None and head.expires_ms <= self.clock_ms
            if not over or (head.entry.index == self._index and not head.acquired_count):
                span = store.pop(limit)
                if span.first < self.doubtful_end and not span.acquired_count:
                    # A span is of one command, so all of it came before the doubt.
                    span.acquired_count = 1
                return span
            self._dead_letter("expired", [store.pop(head.end - head.first)])

    def _acquire(self, consumer: Consumer, span: Span, no_ack: bool) -> None:
        if no_ack:
            self._settled(span)
        else:
            count = span.end - span.first
            self._count_delivered(span, count)
            self.unacked += count
            self.unacked_bytes += span.size_bytes()
            timeout_ms = consumer.timeout_ms or self.options.consumer_timeout_ms
            if timeout_ms is not None:
                span.taken_ms = self._stamp(timeout_ms)
            if self._names_consumers:
                span.since_ms = self.clock_ms
            consumer.held.add(span)

    def _settled(self, span: Span) -> None:
        """R-QQ-12: with automatic acknowledgement, when handed out."""
        count = span.end - span.first
        self._count_delivered(span, count)
        self.counters["ack"] += count
        if self.watched is not None:
            self.watched.left(span.first, span.end, Became.ACKNOWLEDGED)
        self.store.release(span)

    def _count_delivered(self, span: Span, count: int) -> None:
        self.counters["dlv"] += count
        if span.acquired_count:
            self.counters["redlv"] += count

    def _stamp(self, timeout_ms: int) -> int:
        """Return the time at which a message counts as taken, and see that it is looked at again.

        Rounded up to a 64th of the timeout: what was taken in about the same time stays one span.
        """
        grain = max(1, timeout_ms >> 6)
        taken_ms = -(-self.clock_ms // grain) * grain
        due_ms = taken_ms + timeout_ms
        if self.timeout_check_ms is None or due_ms < self.timeout_check_ms:
            self.timeout_check_ms = due_ms
        return taken_ms

    def _trim(self) -> None:
        """R-LEN-2, R-LEN-5, R-LEN-9, R-PRI-4: drop what would be delivered next."""
        options, store = self.options, self.store
        if options.overflow == "reject-publish" or (
            options.overflow == "reject-publish-dlx" and not self._quorum
        ):
            return
        while True:
            ready, ready_bytes = self._limited()
            head = store.head()
            if head is None:
                return
            excess = 0 if options.max_length is None else max(0, ready - options.max_length)
            if options.max_length_bytes is not None and ready_bytes > options.max_length_bytes:
                over_bytes = ready_bytes - options.max_length_bytes
                excess = max(excess, head.entry.covering(head.first, head.end, over_bytes))
            if not excess:
                return
            self._dead_letter("maxlen", [store.pop(excess)])

    # -- leaving a consumer's hands ------------------------------------------------------------

    def _take(self, consumer: Consumer, ranges: list[Range]) -> list[Span]:
        """Take messages out of a consumer's hands; what it does not hold is passed over."""
        spans: list[Span] = []
        for low, high in ranges:
            spans += consumer.held.take(low, high)
        self._taken(spans)
        return spans

    def _take_all(self, consumer: Consumer) -> list[Span]:
        spans = consumer.held.clear()
        self._taken(spans)
        return spans

    def _taken(self, spans: list[Span]) -> None:
        for span in spans:
            span.taken_ms = 0
            self.unacked -= span.end - span.first
            self.unacked_bytes -= span.size_bytes()

    @property
    def _names_consumers(self) -> bool:
        """Say whether what dies now says who had it."""
        options = self.options
        return options.names_consumers and options.dead_letter_exchange is not None

    def _had(
        self, consumer: Consumer, outcome: str, details: Details = NO_DETAILS
    ) -> Certificate | None:
        """Return what is said at a death of messages that a consumer had; None: nothing."""
        if not self._names_consumers:
            return None
        client = details.client or consumer.client
        return Certificate(client, consumer.id.tag, None, outcome, details.reason)

    def _put_back(
        self,
        spans: list[Span],
        counts: bool,
        asked: bool = False,
        had: Certificate | None = None,
    ) -> None:
        """Messages return; those over the delivery limit die (R-DL-2, R-DL-3).

        counts: this return is a counted failure in mode 4.3.  In the older modes every return is:
        3.x limits returns (and what a message brought along, R-DL-9), 4.0 deliveries.  In mode
        failures only a failure ends a message, and not before it has come back here so often:
        what it brought along ends nothing.
        asked: the client said so; where returns go to the back only such messages do (R-DL-7),
        those whose consumer is gone are served first as with a limit.
        had: who had them.
        """
        limit = self.options.delivery_limit if self._quorum else None
        mode = self.options.delivery_count_mode
        if not self._quorum:
            # No limit here; a dead letter takes the failures along (R-DLX-35).
            place, step = Place.ORIGINAL, int(counts)
        else:
            place = Place.BACK if asked and self._returns_to_the_back else Place.RETURNS
            step = 1 if counts or not self._counts_rejects_only else 0
        poison: list[Span] = []
        for span in spans:
            span.acquired_count += 1
            span.delivery_count += step
            if limit is not None and _counted(span, mode, counts) > limit:
                poison.append(span)
                continue
            span.since_ms = 0
            self.counters["requeue"] += span.end - span.first
            delay_ms = self._delay_ms(span, counts) if self._quorum else 0
            if delay_ms:
                self.delayed.add(span, self.clock_ms + delay_ms)
            else:
                self.store.add(span, place)
        if poison:
            self._dead_letter("delivery_limit", poison, had)
        if not self._quorum:
            # R-LEN-11: what returned counts at once, before it is handed out again.
            self._trim()

    def _returned(
        self,
        consumer: Consumer,
        ranges: list[Range],
        cause: ReturnCause | None,
        details: Details = NO_DETAILS,
    ) -> None:
        """A channel returns what one of its consumers holds."""
        if cause is ReturnCause.UNWRITTEN or cause is ReturnCause.WITHDRAWN:
            self._give_back(consumer, ranges, unspends=cause is ReturnCause.UNWRITTEN)
        else:
            spans = self._take(consumer, ranges)
            had = self._had(consumer, certificates.REQUEUED, details)
            self._put_back(spans, counts=cause is ReturnCause.REJECT, asked=True, had=had)

    def _give_back_unwritten(
        self, consumers: list[Consumer], written: dict[str, list[Range]] | None
    ) -> None:
        """A channel has ended: what its consumers hold besides `written`, by tag, returns.

        None: what their client was sent is not known, so all of it counts as sent.
        """
        if written is None:
            return
        for consumer in consumers:
            known = RangeSet(written.get(consumer.id.tag, ()))
            self._give_back(consumer, known.missing(0, self.next_number))

    def _give_back(self, consumer: Consumer, ranges: list[Range], *, unspends: bool = True) -> None:
        """Messages return that no client was sent, each to where it was: nothing counts (ADR 69).

        unspends: the consumer may have as many others.

        Those of a returns FIFO stand in front of it again, by number: in which order each of them
        had come back before is not kept.
        """
        has_returns = self._quorum and not self._returns_to_the_back
        for span in reversed(self._take(consumer, ranges)):
            span.since_ms = 0
            count = span.end - span.first
            self.counters["requeue"] += count
            if unspends and consumer.credit is not None:
                consumer.credit += count
            is_return = has_returns and span.acquired_count
            self.store.add(span, Place.FRONT if is_return else Place.ORIGINAL)
        if not self._quorum:
            # As in _put_back.
            self._trim()

    def _back_from_job(self, messages: LetGo) -> None:
        """Messages that a job had in hand are ready again, each where it was: no delivery, and
        nothing counts.  As for `_give_back`, those of a returns FIFO stand in front of it.  What
        waited waits again, unless another message has its key by now.
        """
        for span in messages.replaced:
            self.counters["purged"] += span.end - span.first
            self.store.release(span)
        for row in messages.waiting:
            self.delayed.add(*row)
        if messages.waiting:
            # Some may have been due for a while.
            self._ready_again()
        has_returns = self._quorum and not self._returns_to_the_back
        for span in reversed(messages.ready):
            if has_returns and span.acquired_count:
                self.store.add(span, Place.FRONT)
            else:
                self.store.put_back(span)

    def _delay_ms(self, span: Span, failed: bool) -> int:
        """Return how long a returned message has to wait (R-QQ-24)."""
        options = self.options
        if options.delayed_retry == "disabled":
            return 0
        if options.delayed_retry != "all" and failed != (options.delayed_retry == "failed"):
            return 0
        least = options.delayed_retry_min_ms
        return min(least * max(1, span.delivery_count), options.delayed_retry_max_ms)

    def _ready_again(self) -> None:
        """Delayed messages whose time has come are served before all others if they came back
        (R-QQ-14); those that an exchange keeps here go back to it.
        """
        if self.options.holds_delayed:
            self._dead_letter("expired", self.delayed.pop_due(self.clock_ms, DUE_PER_COMMAND_MAX))
            return
        place = Place.BACK if self._returns_to_the_back else Place.RETURNS
        for span in self.delayed.pop_due(self.clock_ms, DUE_PER_COMMAND_MAX):
            if span.acquired_count:
                self.store.add(span, place)
            else:
                # It waited for its time (core/catalog/delivery_times.py), and is as if new.
                span.is_late = True
                self.store.add(span)

    def _dead_letter(self, reason: str, spans: list[Span], had: Certificate | None = None) -> None:
        """Take messages out for a reason: to the queue's dead letter exchange if it has one.

        had: the consumer that had them, if one did.
        """
        count = sum(span.end - span.first for span in spans)
        self.counters[_COUNTER_OF_REASON[reason]] += count
        if self.watched is not None:
            self._left(spans, Became.DIED_AGAIN)
        exchange = self.options.dead_letter_exchange
        if exchange is not None and count:
            self.counters["dl_out"] += count
            if reason == "expired" and self.options.expiry_waits:
                # R-Q-11: their queue does not end with the command that lets them go.
                self._used()
            if self._at_least_once:
                for span in spans:
                    certificate = self._certificate(had, span)
                    self.letters.add([span], reason, self.clock_ms, certificate)
                self._letters_added = True
                return
            for span in spans:
                append_run(self._dead_runs(reason, exchange, self._certificate(had, span)), span)
        else:
            if reason == "delivery_limit":
                if self.options.delivery_limit_is_default:
                    self.counters["default_limit_drop"] += count
                for span in spans:
                    append_run(self._given_up, span)
            if self.options.alternate_exchange is not None and count:
                self._reroute(reason, self.options.alternate_exchange, spans)
        for span in spans:
            self.store.release(span)

    def _left(self, spans: list[Span], became: Became) -> None:
        """Say of copies that a redrive sent what became of them."""
        assert self.watched is not None
        for span in spans:
            self.watched.left(span.first, span.end, became)

    def _reroute(self, reason: str, exchange: str, spans: list[Span]) -> None:
        """R-MQ-2, R-MQ-11, R-MQ-12: what has no dead letter exchange may have an alternate one."""
        is_overflow = reason == "maxlen" and self.options.reroute_overflow
        if is_overflow or reason in ("rejected", "orphaned"):
            runs = self._rerouted.setdefault((reason, exchange), [])
            for span in spans:
                append_run(runs, span)

    def _certificate(self, had: Certificate | None, span: Span) -> Certificate | None:
        """Return what is said of these, which died just now: no consumer has them any more."""
        since_ms, span.since_ms = span.since_ms, 0
        if had is None or not since_ms:
            return had
        return had._replace(held_ms=self.clock_ms - since_ms)

    def _dead_runs(
        self, reason: str, exchange: str, certificate: Certificate | None = None
    ) -> list[Run]:
        """Return where the next run of these dead letters goes, so that they keep their order."""
        key = (reason, exchange, self.options.dead_letter_routing_key)
        groups = self._dead.setdefault(key, [])
        if not groups or groups[-1][0] != certificate:
            groups.append((certificate, []))
        return groups[-1][1]

    def _letters_follow(self, before: QueueOptions) -> None:
        """R-ALO-9: dead letters that wait follow a new exchange and key.  Where the settings name
        none any more, or are for at most once, they wait on under those that they had.
        """
        if not self.letters.count:
            return
        options = self.options
        if options.dead_letter_exchange is None:
            exchange, key = before.letters_target()
            old = replace(options, letters_exchange=exchange, letters_routing_key=key)
            self.options = kept(old)
        self._letters_added = True

    # -- the end -------------------------------------------------------------------------------

    def _tell_dropped(self, cause: str, messages: int, letters: int = 0) -> None:
        if messages or letters:
            self._effects.append(effects.Dropped(cause, messages, letters))

    def _lose_letters(self) -> int:
        count = self.letters.count
        self.counters["dl_lost"] += count
        for span in self.letters.clear():
            self.store.release(span)
        return count

    def _end(self, cause: str) -> None:
        """The queue is gone: nothing is dead-lettered (R-DLX-3); each message counts once."""
        saved = self._save_orphans()
        delayed = self.delayed.clear()
        ready = self.store.ready + sum(s.end - s.first for s in delayed)
        unacked = self.unacked + self.held_by_job
        self.counters["purged"] += ready
        self.counters["orphaned"] += unacked
        self._tell_dropped(cause, ready + unacked - saved, self._lose_letters())
        for consumer in self.consumers.clear():
            self._effects.append(effects.ConsumerCancelled(consumer.id, cause))
        self.store.forget()
        self.unacked = self.unacked_bytes = 0
        self.job, self.receipts, self.watched = None, (), None
        self.enqueuers.clear()
        self.suspected.clear()
        self.more_to_deliver = False
        self.deleted = cause
        self._effects.append(effects.QueueDeleted(cause))

    def _save_orphans(self) -> int:
        """R-MQ-2, R-MQ-3: what is left goes to the alternate exchange, in queue order; return how
        many those are.
        """
        exchange = self.options.alternate_exchange
        if exchange is None:
            return 0
        spans = [span for consumer in self.consumers.rows() for span in consumer.held]
        if self.job is not None:
            # Some may have been sent on; which, is not known before all targets have confirmed.
            spans += self.job.held
        if self.options.orphan_scope == "all":
            spans += [*self.store, *(span for _, span in self.delayed)]
        if spans:
            self._reroute("orphaned", exchange, sorted(spans, key=_first))
            # Before the queue's end, which comes with the effects.
            self._take_rerouted()
        return sum(span.end - span.first for span in spans)

    # -- effects -------------------------------------------------------------------------------

    def _take_rerouted(self) -> None:
        self._effects += [
            effects.Reroute(reason, exchange, runs)
            for (reason, exchange), runs in self._rerouted.items()
        ]
        self._rerouted = {}

    def _take_effects(self) -> list[Any]:
        result = self._effects
        if self._deliveries:
            result += [effects.Deliver(c, runs) for c, runs in self._deliveries.items() if runs]
            self._deliveries = {}
        if self._dead:
            result += [
                effects.DeadLetter(reason, exchange, key, runs, self.clock_ms, certificate)
                for (reason, exchange, key), groups in self._dead.items()
                for certificate, runs in groups
            ]
            self._dead = {}
        if self._rerouted:
            self._take_rerouted()
        if self._given_up:
            result.append(effects.GivenUp(self._given_up))
            self._given_up = []
        if self._trimmed_from is not None:
            trimmed = self.counters["maxlen_drop"] - self._trimmed_from
            self._trimmed_from = None
            if trimmed and self.options.dead_letter_exchange is None:
                result.append(effects.Dropped("policy", trimmed))
        if self._letters_added:
            self._letters_added = False
            if self.letters.count:
                result.append(effects.DeadLettersWaiting())
        if self._job_changed:
            self._job_changed = False
            result.append(effects.JobUnderWay())
        self._effects = []
        return result


def _first(span: Span) -> int:
    return span.first


def _counted(span: Span, mode: str, is_failure: bool) -> int:
    """Return what of a message that comes back is held against the delivery limit (R-DL-2)."""
    if mode == "failures":
        # How often it failed here is not known apart from what it brought along (R-DL-9), but it
        # was not more often than it came back here.
        return min(span.acquired_count, span.delivery_count) if is_failure else 0
    return span.acquired_count if mode == "4.0" else span.delivery_count
