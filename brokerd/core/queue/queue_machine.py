"""The queue machine: replicated state of one classic or quorum queue, driven by commands.

Deterministic and total: the same commands bring the same state, replies and effects on every
replica, and a command that cannot be done is answered, never raised.  It reads no clock (time
comes with each command), holds no message bodies (they stay in the log; effects say where), and
sends nothing (effects are data, realised by the leader).  The server's drivers use it; its parts
are `queue_state`, `queue_store`, `consumers`, `enqueuers`, `dead_letters`, `queue_jobs`,
`watched_copies`, `queue_decoders`, `queue_snapshot`.

Each command: time passes (expiry, lost consumers), the command acts, and then the queue serves:
deliver, expire what found no consumer (R-TTL-6), trim to the length limit (R-LEN-5).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from mypy_extensions import mypyc_attr

from brokerd.core.annotations import RedrivenFrom
from brokerd.core.machine import Meta, Outcome
from brokerd.core.message import Range
from brokerd.core.queue import (
    certificates,
    client_sessions,
    effects,
    enqueue_commands,
    queue_commands,
    queue_decoders,
    queue_snapshot,
    queue_summary,
)
from brokerd.core.queue.certificates import NO_DETAILS, Details
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.consumers import QUORUM_PREFETCH_MAX, Consumer
from brokerd.core.queue.dead_letters import DeadSpan
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.queue.enqueue_commands import EnqueueStatus, encode_enqueue_reply
from brokerd.core.queue.enqueuers import EnqueuerKey
from brokerd.core.queue.queue_commands import Kind, ReturnCause
from brokerd.core.queue.queue_jobs import RECEIPTS_MAX, Job, Receipt
from brokerd.core.queue.queue_state import DELIVERIES_PER_COMMAND_MAX, QueueState
from brokerd.core.queue.queue_store import Entry, Span, runs_of
from brokerd.core.queue.watched_copies import Became, JobKey, WatchedCopies
from brokerd.core.queue_options import QueueOptions
from brokerd.core.ranges import normalize

#: Level of a message without a priority, on quorum queues that tell levels apart (R-PRI-2).
QUORUM_PRIORITY = 4
#: A queue in which there is no more than this is small as its snapshot, and is made again in no
#: time: channels that publish to it, and what its messages take beside their bodies.
ENQUEUERS_MAX = 16
MESSAGES_BYTES_MAX = 4_096


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueMachine(QueueState):
    """One queue.

    State and invariants: see `QueueState`.
    """

    realise_everywhere = False

    @property
    def may_lose_last(self) -> bool:
        """A classic queue may hand out again what it handed out just before a crash (ADR 23)."""
        return not self._quorum

    # -- the machine's face -----------------------------------------------------------------

    def apply(self, meta: Meta, command: bytes) -> Outcome:
        """Apply one committed command."""
        try:
            kind, decoded = queue_decoders.decode(command)
        except queue_decoders.MALFORMED as error:
            return Outcome(_refusal(400, f"malformed queue command: {error!r}"[:200]))
        if meta.now_ms > self.clock_ms:
            self.clock_ms = meta.now_ms
        # Not of the field, since the command below may delete the queue.
        cause = self.deleted
        if cause is not None:
            return Outcome(self._reply_of_deleted(kind, decoded))
        if self.last_used_ms is None:
            self.last_used_ms = self.clock_ms
        self._index = meta.index
        self._time_passes()
        reply = _HANDLERS[kind](self, meta, decoded)
        if self.deleted is None:
            self._serve()
        return Outcome(reply, self._take_effects())

    def became_leader(self, meta: Meta) -> list[Any]:
        """Return what a new leader must realise again; deliveries are asked for by RESUME."""
        if self.deleted is not None:
            return [effects.QueueDeleted(self.deleted)]
        # Automatic acknowledgement settles when handing out: nothing could be sent again.
        begun: list[Any] = [effects.LeadershipBegun(tuple(self.query_resuming_consumers()))]
        if self.letters.count:
            begun.append(effects.DeadLettersWaiting())
        if self.job is not None:
            begun.append(effects.JobUnderWay())
        return begun

    def snapshot(self) -> bytes:
        """Return the state without message bodies."""
        return queue_snapshot.encode(self)

    def restore(self, data: bytes) -> None:
        """Replace the state by a snapshot's."""
        self._reset(None)
        queue_snapshot.decode_into(self, data)

    def live_indexes(self) -> Sequence[Range]:
        """Return the log indexes that hold ready, checked-out or dead-letter messages."""
        return self.store.live_indexes()

    def factory(self) -> tuple[Callable[[], QueueMachine], bytes] | None:
        """Return what makes another one, and the summary of this one; None while clients use it or
        much is in it.
        """
        is_used = self.consumers.registered or self.unacked or self.letters.count or self.suspected
        if is_used or self.delayed.count or self.deleted is not None or self.more_to_deliver:
            return None
        if self.job is not None or self.receipts or self.watched is not None:
            return None
        if len(self.enqueuers) > ENQUEUERS_MAX or self.store.memory_bytes() > MESSAGES_BYTES_MAX:
            return None
        return QueueMachine, self.summary()

    def summary(self) -> bytes:
        """Return what walks over all queues read of it."""
        return queue_summary.encode(self)

    def tick_command(self) -> bytes:
        """Return the command to propose at that deadline."""
        return queue_commands.encode_tick()

    def overview(self) -> dict[str, Any]:
        """Return counters and gauges (design/telemetry.md §6.5).

        What a job holds is told with what consumers do: nothing can be handed out of it.
        """
        head, job_bytes = self.store.head(), self.bytes_held_by_job
        return {
            "counters": dict(self.counters),
            "ready": self.store.ready,
            "unacked": self.unacked + self.held_by_job,
            "ready_bytes": self.store.ready_bytes,
            "unacked_bytes": self.unacked_bytes + job_bytes,
            "held_by_job": self.held_by_job,
            "delayed": self.delayed.count,
            "head_enqueued_ms": head.entry.enqueued_ms if head else None,
            "consumers": self.consumers.registered,
            "prefetch_sum": sum(c.limit() for c in self.consumers.rows() if c.registered),
            "dl_pending": self.letters.count,
            "dl_pending_since_ms": self.letters.oldest_ms(),
            "dl_old_terms": self.letters_of_old,
            "deleted": self.deleted,
        }

    def wants_messages(self) -> bool:
        """Say whether messages from elsewhere would be consumed here: none is ready, and a consumer
        of priority 0 or more could take one (R-FQ-2).
        """
        return not self.store.ready and self.consumers.could_take(0)

    def memory_bytes(self) -> int:
        """Estimate what the messages take beside their bodies."""
        return self.store.memory_bytes()

    def consumer_rows(self) -> list[dict[str, Any]]:
        """Return one row per registered consumer, in order of registration."""
        rows = [
            {
                "consumer": consumer.id,
                "user": consumer.user,
                "prefetch": consumer.prefetch,
                "no_ack": consumer.no_ack,
                "exclusive": consumer.exclusive,
                "priority": consumer.priority,
                "unacked": consumer.held.count,
                "suspected": consumer.suspected,
                "active": not self.options.single_active_consumer
                or consumer is self.consumers.active,
                "order": consumer.order,
            }
            for consumer in self.consumers.rows()
            if consumer.registered
        ]
        return sorted(rows, key=lambda row: int(row["order"]))

    # -- questions of others, who look at nothing else (rabbit_fifo has such, too) -----------

    def query_resuming_consumers(self) -> list[ConsumerId]:
        """Return the consumers that ask by RESUME for what got lost on the way to them."""
        return [c.id for c in self.consumers.rows() if c.registered and not c.no_ack]

    def query_is_registered(self, consumer_id: ConsumerId) -> bool:
        """Tell whether a consumer gets messages, now or when there are some."""
        consumer = self.consumers.get(consumer_id)
        return consumer is not None and consumer.registered

    def query_consumers(self) -> int:
        """Return how many consumers are registered."""
        return self.consumers.registered

    def query_consumer_nodes(self) -> set[str]:
        """Return the nodes of all consumers, of those that are gone and hold messages, too."""
        return {consumer.id.node for consumer in self.consumers.rows()}

    def query_client_nodes(self) -> set[str]:
        """Return the nodes whose channels consume from this queue or have sent to it."""
        nodes = self.query_consumer_nodes().union(self.senders.nodes())
        return nodes | self.enqueuers.nodes()

    def query_letters_taken(self) -> list[DeadSpan]:
        """Return the dead letters that a worker has taken and not settled, in death order."""
        return self.letters.held()

    def query_job(self) -> Job | None:
        """Return the job under way, to be looked at only."""
        return self.job

    def query_not_ready(self, end: int) -> tuple[int, int]:
        """Return how many messages of a lower number consumers hold, and how many are delayed."""
        held = [span for consumer in self.consumers.rows() for span in consumer.held]
        delayed = [span for _, span in self.delayed]
        return _below(held, end), _below(delayed, end)

    def query_receipts(self) -> tuple[Receipt, ...]:
        """Return those of the last jobs that have ended, the newest last."""
        return self.receipts

    def query_outcomes(self, source: int, job: int) -> dict[str, list[int]] | None:
        """Return what became of copies of a job of another queue, by group and `Became`; None: it
        is not known here.
        """
        return None if self.watched is None else self.watched.counts(JobKey(source, job))

    # -- once -------------------------------------------------------------------------------

    def _once(self, meta: Meta, command: client_sessions.Once) -> bytes:
        # What says no more than that a command of this kind was done.
        plain = b"" if command.kind == Kind.RETURN else _OK
        known = self.senders.answer(command, plain)
        if known is not None:
            return known
        reply = _HANDLERS[command.kind](self, meta, command.command)
        self.senders.applied(command, reply, plain)
        return reply

    def _reply_of_deleted(self, kind: int, command: Any) -> bytes:
        if kind != Kind.ONCE:
            return _reply_of_deleted(kind, command)
        reply = _reply_of_deleted(command.kind, command.command)
        known = self.senders.answer(command, reply)
        return reply if known is None or known == client_sessions.EARLY else known

    # -- settings ---------------------------------------------------------------------------

    def _update_options(self, meta: Meta, options: QueueOptions) -> bytes:
        held = self.store.ready + self.unacked + self.delayed.count + self.letters.count
        if (held or self.held_by_job) and self._quorum and options.queue_type != "quorum":
            # Each type has an order of its own for what comes back.  The other way round a machine
            # that was made without a type learns it, which a publish may precede.
            return _refusal(406, "the type of a queue that holds messages cannot change")
        before, self.options = self.options, options
        self._trimmed_from = self.counters["maxlen_drop"]
        self._configure()
        if self.unacked and (self._quorum or options.consumer_timeout_ms is not None):
            # Another timeout may hold now: all consumers are looked at.
            self.timeout_check_ms = self.clock_ms
        # The first command of each leader's term: a restart restarts the lease (R-Q-11).
        self._used()
        self._letters_follow(before)
        return _OK

    # -- time -------------------------------------------------------------------------------

    def _time_passes(self) -> None:
        if self.suspected:
            self._return_from_lost_nodes()
        if self.timeout_check_ms is not None and self.timeout_check_ms <= self.clock_ms:
            self._end_slow_consumers()
        if self.delayed.count:
            self._ready_again()
        if self.store.expiring:
            self._expire()

    def _end_slow_consumers(self) -> None:
        """R-QQ-22: what was held for too long returns, uncounted, and its consumer is cancelled.

        Where every return counts this one does, too: what consumers hang on must come to an end.
        """
        self.timeout_check_ms = None
        for consumer in list(self.consumers.rows()):
            timeout_ms = consumer.timeout_ms or self.options.consumer_timeout_ms
            if timeout_ms is None:
                continue
            latest_ms = self.clock_ms - timeout_ms
            late = []
            for span in consumer.held:
                if not span.taken_ms:
                    # Taken when there was no timeout: its time begins with it.
                    span.taken_ms = self._stamp(timeout_ms)
                elif span.taken_ms <= latest_ms:
                    late.append((span.first, span.end))
                else:
                    due_ms = span.taken_ms + timeout_ms
                    self.timeout_check_ms = min(self.timeout_check_ms or due_ms, due_ms)
            if not late:
                continue
            had = self._had(consumer, certificates.TIMED_OUT)
            self._put_back(self._take(consumer, late), counts=False, had=had)
            if consumer.registered or not consumer.id.tag:
                # Without a tag: a channel that holds what it got by basic.get.
                cause = effects.timed_out(timeout_ms)
                self._effects.append(effects.ConsumerCancelled(consumer.id, cause))
            if consumer.registered:
                self._unregister([consumer])
            else:
                self.consumers.settled(consumer)

    def _return_from_lost_nodes(self) -> None:
        """R-QQ-16: returned when the time is over; counted only where every return counts."""
        for node, since_ms in list(self.suspected.items()):
            if since_ms is None:
                continue
            if self.clock_ms - since_ms < self.options.disconnected_timeout_ms:
                continue
            self.suspected[node] = None
            for consumer in self.consumers.of_node(node):
                had = self._had(consumer, certificates.LOST)
                self._put_back(self._take_all(consumer), counts=False, had=had)
                self.consumers.drop_if_done(consumer)
            self.consumers.elect(suspects_lose=True)

    def _tick(self, meta: Meta, command: None) -> bytes:
        lease_end_ms = self._lease_end_ms()
        if lease_end_ms is not None and lease_end_ms <= self.clock_ms:
            self._end("expired")
        # R-AE-15: a consumer that stands there could have a message now.
        return _json({"ok": True, "takers": self.consumers.service_queue() is not None})

    def look(self, command: bytes, now_ms: int) -> bytes | None:
        """See brokerd.raft.machine.Machine: a declaration that renews no lease."""
        deadline_ms = self.next_deadline_ms()
        is_due = deadline_ms is not None and deadline_ms <= now_ms
        may_renew = self.options.declare_renews and self.options.expires_ms is not None
        if not client_sessions.is_look(command) or is_due or may_renew or self.deleted is not None:
            return None
        return self._counts()

    def _counts(self) -> bytes:
        fields = {"ready": self.store.ready, "consumers": self.consumers.registered}
        if self.options.holds_delayed:
            fields["ready"] += self.delayed.count + self.letters.count
        if self._quorum and (holders := self.consumers.holders()):
            fields["holders"] = holders
        return _json(fields)

    def _declared(self, meta: Meta, command: None) -> bytes:
        if self.options.declare_renews:
            # R-Q-11
            self._used()
        return self._counts()

    # -- settling ---------------------------------------------------------------------------

    def _settle(self, meta: Meta, command: queue_decoders.Ranges | queue_decoders.Get) -> bytes:
        consumer = self.consumers.get(command.consumer)
        if consumer is not None:
            spans = self._take(consumer, command.ranges)
            if self.watched is not None:
                self._left(spans, Became.ACKNOWLEDGED)
            for span in spans:
                self.counters["ack"] += span.end - span.first
                self.store.release(span)
            self.consumers.settled(consumer)
        return b""

    def _settle_joined(self, meta: Meta, commands: list[queue_decoders.Ranges]) -> bytes:
        for command in commands:
            self._settle(meta, command)
        return b""

    def _return(self, meta: Meta, command: queue_decoders.Ranges) -> bytes:
        consumer = self.consumers.get(command.consumer)
        if consumer is not None:
            self._returned(consumer, command.ranges, command.cause, command.details)
            self.consumers.settled(consumer)
        return b""

    def _discard(self, meta: Meta, command: queue_decoders.Ranges) -> bytes:
        consumer = self.consumers.get(command.consumer)
        if consumer is not None:
            spans = self._take(consumer, command.ranges)
            if command.cause is ReturnCause.REJECT:
                # R-DL-2 (4.3): reject counts whether it requeues or not; R-DLX-35 carries it on.
                for span in spans:
                    span.delivery_count += 1
            had = self._had(consumer, certificates.REJECTED, command.details)
            self._dead_letter("rejected", spans, had)
            self.consumers.settled(consumer)
        return b""

    # -- consumers --------------------------------------------------------------------------

    def _checkout(self, meta: Meta, command: Checkout) -> bytes:
        known = self.consumers.get(command.consumer)
        if not self._quorum:
            # R-CS-2; quorum queues accept and ignore the flag (O-13).  A repeated command of the
            # same consumer (its reply was lost) is no conflict.
            others = self.consumers.registered - (known is not None and known.registered)
            holder = self.consumers.exclusive_holder()
            if (holder is not None and holder is not known) or (command.exclusive and others):
                return _refusal(403, "in exclusive use")
            if command.exclusive and self.options.single_active_consumer:
                return _refusal(403, "in exclusive use")
        consumer = known or self.consumers.hold(command.consumer)
        prefetch = command.prefetch
        if self._quorum:
            prefetch = min(prefetch or QUORUM_PREFETCH_MAX, QUORUM_PREFETCH_MAX)
        consumer.prefetch = prefetch
        consumer.no_ack = command.no_ack
        consumer.exclusive = command.exclusive and not self._quorum
        self.consumers.set_priority(consumer, command.priority)
        consumer.user = command.user
        consumer.client = command.client
        consumer.timeout_ms = command.timeout_ms
        consumer.grant(command.credit)
        consumer.suspected = command.consumer.node in self.suspected
        self.consumers.register(consumer)
        if not command.drains:
            return _OK
        self._deliver()
        if self.consumers.may_take(consumer):
            # Others have taken all that one command hands out.
            self._hand_out(consumer, min(consumer.capacity(), DELIVERIES_PER_COMMAND_MAX))
        return _json({"ok": True, "credit": consumer.withdraw()})

    def _cancel(self, meta: Meta, command: ConsumerId) -> bytes:
        consumer = self.consumers.get(command)
        if consumer is not None:
            self._unregister([consumer])
        return _OK

    def _unregister(self, gone: list[Consumer]) -> None:
        before = self.consumers.registered
        for consumer in gone:
            self.consumers.unregister(consumer)
        if before and not self.consumers.registered:
            self._used()
            if self.options.auto_delete:
                # R-Q-10
                self._end("auto-delete")

    def _resume(self, meta: Meta, command: queue_decoders.Ranges) -> bytes:
        """Send again what is checked out to the consumer but did not arrive there."""
        consumer = self.consumers.get(command.consumer)
        if consumer is None:
            return _refusal(404, "consumer is not known")
        self._effects.append(effects.Resumed(consumer.id))
        missing: list[Span] = []
        held = sorted(command.ranges)
        at = 0
        for span in consumer.held:
            low = span.first
            while at < len(held) and held[at][1] <= low:
                at += 1
            i = at
            while low < span.end:
                if i < len(held) and held[i][0] <= low:
                    low = max(low, held[i][1])
                    i += 1
                    continue
                high = min(span.end, held[i][0]) if i < len(held) else span.end
                missing.append(span.part(low, high))
                low = high
        if missing:
            self._deliveries.setdefault(consumer.id, []).extend(runs_of(missing))
        return _OK

    def _get(self, meta: Meta, command: queue_decoders.Get) -> bytes:
        if command.ranges:
            self._settle(meta, command)
        if self._quorum and self.options.single_active_consumer:
            # R-CS-7, R-QQ-20
            return _refusal(
                405,
                "basic.get operations are not supported by quorum queues "
                "with single active consumer",
            )
        self._used()
        span = self._next_live(1)
        if span is None:
            self.counters["get_empty"] += 1
            return queue_commands.encode_get_reply(None, 0)
        run = span.run()
        if command.no_ack:
            self._settled(span)
        else:
            self._acquire(self.consumers.hold(command.consumer), span, False)
        if self.store.expiring and (command.no_ack or not self._quorum):
            # What has expired behind it is no longer counted (R-TTL-2, R-CS-8); quorum queues look
            # there when a message is settled.
            self._expire()
        return queue_commands.encode_get_reply(run, self.store.ready)

    def _channel_down(self, meta: Meta, command: queue_decoders.Node) -> bytes:
        key = EnqueuerKey(command.node, command.incarnation, command.channel)
        self.enqueuers.forget(key)
        gone = self.consumers.of_channel((key.node, key.incarnation, key.channel))
        self._give_back_unwritten(gone, command.written)
        self._consumers_died(gone, certificates.CLOSED, Details(client=command.client))
        return _OK

    def _publishers_ended(self, meta: Meta, ended: tuple[str, int, Sequence[int]]) -> bytes:
        node, incarnation, channels = ended
        for channel in channels:
            self.enqueuers.forget(EnqueuerKey(node, incarnation, channel))
        return _OK

    def _consumers_died(
        self, gone: list[Consumer], outcome: str, details: Details = NO_DETAILS
    ) -> None:
        """Their channel or process ended: messages return at once and count (R-DL-2)."""
        for consumer in gone:
            # Not yet known to be the last: the returned messages go to those that remain.
            had = self._had(consumer, outcome, NO_DETAILS if consumer.id.tag else details)
            self._put_back(self._take_all(consumer), counts=True, had=had)
        self._unregister(gone)

    def _node_down(self, meta: Meta, command: queue_decoders.Node) -> bytes:
        affected = self.consumers.of_node(command.node)
        if affected and command.node not in self.suspected:
            self.suspected[command.node] = self.clock_ms
            for consumer in affected:
                self.consumers.suspect(consumer, True)
        return _OK

    def _node_up(self, meta: Meta, command: queue_decoders.Node) -> bytes:
        self.suspected.pop(command.node, None)
        self.enqueuers.forget_earlier_incarnations(command.node, command.incarnation)
        self.senders.started(command.node, command.incarnation)
        gone: list[Consumer] = []
        for consumer in self.consumers.of_node(command.node):
            # A leader that has not heard of a restart yet says an earlier incarnation than is true.
            if consumer.id.incarnation < command.incarnation:
                gone.append(consumer)
            elif consumer.suspected:
                self.consumers.suspect(consumer, False)
        if command.leads and gone and not self._quorum:
            # Killed, or it would have said that they end: what they were sent in its last moment
            # may have been lost with it (ADR 23), and is flagged as RabbitMQ flags all that a
            # queue holds after such an end.
            self.doubtful_end = self.next_number
        self._consumers_died(gone, certificates.LOST)
        return _OK

    # -- the queue as a whole -----------------------------------------------------------------

    def _purge(self, meta: Meta, command: None) -> bytes:
        # R-QQ-19: what is delayed and waiting dead letters too.
        count = self.store.purge()
        for span in self.delayed.clear():
            count += span.end - span.first
            self.store.release(span)
        self.counters["purged"] += count
        if self.watched is not None:
            held = [span for consumer in self.consumers.rows() for span in consumer.held]
            if self.job is not None:
                held += self.job.held
            self.watched.only([(span.first, span.end) for span in held])
        letters = self._lose_letters()
        self._tell_dropped("purge", count, letters)
        return _json({"messages": count + letters})

    def _delete(self, meta: Meta, command: queue_decoders.Delete) -> bytes:
        messages, consumers = self.store.ready, self.consumers.registered
        answer: dict[str, Any] = {"deleted": False, "messages": messages, "consumers": consumers}
        if command.if_unused and consumers:
            return _json({**answer, "refused": 406, "text": "in use"})
        if command.if_empty and (messages or self.delayed.count or self.held_by_job):
            return _json({**answer, "refused": 406, "text": "not empty"})
        self._end(command.cause)
        return _json({**answer, "deleted": True})

    # -- at-least-once dead letters -------------------------------------------------------------

    def _dead_letters_checkout(self, meta: Meta, count: int) -> bytes:
        letters = [
            {"run": letter.span.run(), "reason": letter.reason, "time_ms": letter.time_ms}
            for letter in self.letters.checkout(count, meta.term)
        ]
        exchange, routing_key = self.options.letters_target()
        return _json({"letters": letters, "exchange": exchange, "routing_key": routing_key})

    def _dead_letters_discard(self, meta: Meta, command: None) -> bytes:
        count = self._lose_letters()
        self._tell_dropped("purge", 0, count)
        return _json({"messages": count})

    def _dead_letters_settle(self, meta: Meta, ranges: list[Range]) -> bytes:
        for span in self.letters.settle(ranges):
            self.counters["dl_confirmed"] += span.end - span.first
            self.store.release(span)
        return _OK

    # -- jobs ---------------------------------------------------------------------------------

    def _job_start(self, meta: Meta, command: queue_decoders.JobStart) -> bytes:
        if self.job is not None:
            user = self.job.user
            return _refusal(406, f"job {self.job.id} of user '{user}' is under way on this queue")
        self.last_job_id += 1
        self.job = Job(
            self.last_job_id, command.order, command.user, self.clock_ms, self.next_number
        )
        self._job_changed = True
        return _json({"ok": True, "id": self.job.id})

    def _job_take(self, meta: Meta, command: queue_decoders.JobTake) -> bytes:
        job = self.job
        if job is None or not _is_of(command, job, meta) or job.stopped_by is not None:
            return _json({"taken": []})
        ranges = job.may_take(command.ranges)
        if command.waiting:
            rows = self.delayed.take_numbers(ranges)
            spans = [row.span for row in rows]
        else:
            spans = self.store.take(ranges)
        # First: what is held may be joined with its neighbours.
        taken = normalize([(span.first, span.end) for span in spans])
        if command.waiting:
            job.hold_waiting(rows)
        else:
            job.hold(spans)
        return _json({"taken": taken})

    def _job_settle(self, meta: Meta, command: queue_decoders.JobSettle) -> bytes:
        """A confirmation counts, whichever leader's worker received it; all else is for the worker
        of this term, since the last leader's may not know what this one's is sending.
        """
        job = self.job
        if job is None or job.id != command.id:
            return _OK
        spans = job.let_go(command.gone).spans()
        if self.watched is not None:
            self._left(spans, Became.REMOVED)
        for span in spans:
            job.gone += span.end - span.first
            self.counters["job_out"] += span.end - span.first
            self.store.release(span)
        if _is_of(command, job, meta):
            self._back_from_job(job.let_go(command.staying))
            if command.progress is not None:
                job.progress = command.progress
        return _OK

    def _job_stop(self, meta: Meta, command: queue_decoders.JobStop) -> bytes:
        job = self.job
        if job is None:
            return _refusal(404, "no job is under way on this queue")
        if job.stopped_by is None:
            job.stopped_by = command.user
            self._job_changed = True
        return _json({"ok": True, "id": job.id})

    def _job_end(self, meta: Meta, command: queue_decoders.JobEnd) -> bytes:
        job = self.job
        if job is not None and _is_of(command, job, meta):
            self._back_from_job(job.let_all_go())
            self.job = None
            self._used()
            receipts = (*self.receipts, Receipt(job.id, command.receipt))
            self.receipts = receipts[-RECEIPTS_MAX:]
        return _OK

    # -- messages coming in: duplicates, reject-publish limits, TTL, priority --------------------

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
        since, so that no client waits any more, or the queue has lost what it knew: a gap for all.
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
        if self.options.holds_delayed:
            # Copies are not watched here: they go on to other queues.
            self._delay(entry, command, first, end)
            return
        if command.copies is not None:
            self._watch(command.copies, entry.first, first, end)
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
            # It lives from the time on at which it may be delivered.
            from_ms = max(self.clock_ms, traits.deliver_at_ms)
            expires_ms = from_ms + min(ttls) if ttls else None
            level = ordinary if traits.priority is None else min(traits.priority, highest)
            span = Span(entry, low, high, expires_ms, level, 0, traits.delivery_count)
            if from_ms > self.clock_ms:
                self.delayed.add(span, from_ms)
            else:
                self.store.add(span)

    def _watch(
        self, copies: list[tuple[int, RedrivenFrom]], start: int, first: int, end: int
    ) -> None:
        """Count what becomes of copies of a command, of which [first, end) have come in."""
        if self.watched is None:
            self.watched = WatchedCopies()
        for position, copy in copies:
            if first <= start + position < end:
                self.watched.came(start + position, copy)

    def _delay(self, entry: Entry, command: queue_decoders.Enqueue, first: int, end: int) -> None:
        """Keep messages of an exchange until each is due."""
        at = entry.first
        for count, traits in command.traits or ((entry.count, queue_decoders.PLAIN),):
            low, high = max(at, first), min(at + count, end)
            at += count
            if traits.delay_key is None:
                if low < high:
                    span = Span(entry, low, high, None, 0, 0, traits.delivery_count)
                    self.delayed.add(span, self.clock_ms + traits.delay_ms)
                continue
            for number in range(low, high):
                span = Span(entry, number, number + 1, None, 0, 0, traits.delivery_count)
                self._replace_delayed(span, traits)

    def _replace_delayed(self, span: Span, traits: queue_decoders.Traits) -> None:
        """Keep a message in the place of the waiting one with its key, or take that one away."""
        assert traits.delay_key is not None
        if self.job is not None:
            self.job.replace(traits.delay_key)
        gone = self.delayed.take(traits.delay_key)
        if not traits.cancels:
            self.delayed.add(span, self.clock_ms + traits.delay_ms, traits.delay_key)
        elif gone is None:
            gone = span
        else:
            self.store.release(span)
            self.counters["purged"] += 1
        if gone is not None:
            self.store.release(gone)
            self.counters["purged"] += 1

    def _refuse(self, entry: Entry, position: int, count: int) -> None:
        self.counters["refused"] += count - position
        options = self.options
        if options.overflow == "reject-publish-dlx" and options.dead_letter_exchange is not None:
            # R-LEN-4.  They never had a number here; the run says where they are in this entry.
            self.counters["dl_out"] += count - position
            run = Run(entry.first + position, count - position, entry.index, position, 0, 0)
            self._dead_runs("maxlen", options.dead_letter_exchange).append(run)


def _below(spans: list[Span], end: int) -> int:
    return sum([max(0, min(span.end, end) - span.first) for span in spans])


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _refusal(code: int, text: str) -> bytes:
    return _json({"refused": code, "text": text})


def _is_of(command: queue_decoders.OfJob, job: Job, meta: Meta) -> bool:
    """Say whether a command is about this job and of the worker beside the present leader."""
    return command.id == job.id and command.term == meta.term


_OK = _json({"ok": True})


def _reply_of_deleted(kind: int, command: Any) -> bytes:
    """Return what a queue that has ended answers to anything."""
    if kind == Kind.ENQUEUE:
        # R-PC-7: counts as taken over; a joined one reads no more than the status.
        return encode_enqueue_reply(EnqueueStatus.DELETED, command.head.count)
    if kind in (Kind.SETTLE, Kind.RETURN, Kind.DISCARD, Kind.JOINED_SETTLEMENTS):
        # R-ACK-10
        return b""
    return _REPLIES_OF_DELETED.get(kind, _OK)


_GONE = _refusal(404, "queue has been deleted")

_REPLIES_OF_DELETED: dict[int, bytes] = {
    Kind.CHECKOUT: _GONE,
    Kind.RESUME: _GONE,
    Kind.GET: _GONE,
    Kind.PURGE: _json({"messages": 0, "deleted": True}),
    Kind.DECLARED: _json({"deleted": True}),
    # R-Q-12
    Kind.DELETE: _json({"deleted": True, "messages": 0, "consumers": 0}),
    Kind.DEAD_LETTERS_DISCARD: _json({"messages": 0, "deleted": True}),
    Kind.DEAD_LETTERS_CHECKOUT: _json({"letters": [], "exchange": None, "routing_key": None}),
    Kind.JOB_START: _GONE,
    Kind.JOB_STOP: _GONE,
    Kind.JOB_TAKE: _json({"taken": []}),
}

_HANDLERS: dict[int, Callable[[QueueMachine, Meta, Any], bytes]] = {
    Kind.ENQUEUE: QueueMachine._enqueue,
    Kind.SETTLE: QueueMachine._settle,
    Kind.RETURN: QueueMachine._return,
    Kind.DISCARD: QueueMachine._discard,
    Kind.CHECKOUT: QueueMachine._checkout,
    Kind.CANCEL: QueueMachine._cancel,
    Kind.RESUME: QueueMachine._resume,
    Kind.GET: QueueMachine._get,
    Kind.PURGE: QueueMachine._purge,
    Kind.DELETE: QueueMachine._delete,
    Kind.CHANNEL_DOWN: QueueMachine._channel_down,
    Kind.NODE_DOWN: QueueMachine._node_down,
    Kind.NODE_UP: QueueMachine._node_up,
    Kind.UPDATE_OPTIONS: QueueMachine._update_options,
    Kind.TICK: QueueMachine._tick,
    Kind.DEAD_LETTERS_CHECKOUT: QueueMachine._dead_letters_checkout,
    Kind.DEAD_LETTERS_DISCARD: QueueMachine._dead_letters_discard,
    Kind.DEAD_LETTERS_SETTLE: QueueMachine._dead_letters_settle,
    Kind.DECLARED: QueueMachine._declared,
    Kind.ONCE: QueueMachine._once,
    Kind.PUBLISHERS_ENDED: QueueMachine._publishers_ended,
    Kind.JOINED_SETTLEMENTS: QueueMachine._settle_joined,
    Kind.JOB_START: QueueMachine._job_start,
    Kind.JOB_TAKE: QueueMachine._job_take,
    Kind.JOB_SETTLE: QueueMachine._job_settle,
    Kind.JOB_STOP: QueueMachine._job_stop,
    Kind.JOB_END: QueueMachine._job_end,
}
