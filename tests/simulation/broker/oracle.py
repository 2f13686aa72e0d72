"""What must always hold of queues, checked as members apply commands (G1 to G6, G8).

The first member that applies an index writes what happened into the ledger of the group; every
other member must see the same.  `require` remembers the first violation, since the rooms under test
catch exceptions of their own accord.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from brokerd.core import annotations
from brokerd.core.annotations import RedrivenFrom
from brokerd.core.machine import Meta
from brokerd.core.queue import client_sessions, effects, joined_settlements, queue_commands
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.enqueue_commands import EnqueueView
from brokerd.core.queue.queue_commands import Kind
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue.watched_copies import Became
from brokerd.raft.messages import NodeId
from tests.simulation.checkers import Violation


@dataclass(slots=True)
class Place:
    """Where a message went into a queue."""

    body: bytes
    index: int


@dataclass(slots=True)
class Ledger:
    """The history of one queue."""

    #: Queue names of its dead letter targets; empty: no dead lettering.
    targets: tuple[int, ...] = ()
    #: index -> what its application brought.
    applied: dict[int, tuple[object, ...]] = field(default_factory=dict)
    #: index -> checksum of the snapshot there.
    snapshots: dict[int, int] = field(default_factory=dict)
    messages: dict[int, Place] = field(default_factory=dict)
    #: body -> numbers; more than one only for what may be repeated (dead letters).
    numbers: dict[bytes, list[int]] = field(default_factory=dict)
    settled: dict[int, int] = field(default_factory=dict)
    buried: dict[int, int] = field(default_factory=dict)
    #: number -> (acquired, delivered) as last handed out.
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: number -> who it was handed out to last, and whether that one's client was written it, or
    #: nobody can say.
    holders: dict[int, ConsumerId] = field(default_factory=dict)
    may_count: set[int] = field(default_factory=set)
    #: Numbers that came back from one consumer and were handed out to another.
    passed_on: set[int] = field(default_factory=set)
    #: publisher -> its newest message here.
    newest: dict[bytes, int] = field(default_factory=dict)
    #: index -> checksum of the command, of messages that are still here.
    entries: dict[int, int] = field(default_factory=dict)
    #: index -> messages of it that are still here.
    alive: dict[int, int] = field(default_factory=dict)
    #: Commands of which one copy is enough: sender, its life and number -> index of the first copy
    #: that was taken.
    taken: dict[tuple[str, int, int], int] = field(default_factory=dict)
    #: How many further copies came.
    copies: int = 0
    #: Job -> the number at which it ends.
    job_ends: dict[int, int] = field(default_factory=dict)
    #: number -> which message of which job of another queue a copy is of.
    redriven: dict[int, RedrivenFrom] = field(default_factory=dict)


@dataclass(slots=True)
class Before:
    """What must be known of a machine before a command to judge what it did."""

    next_number: int
    held: list[int]
    letters: list[int]
    #: The queue does not know a command that comes in an envelope: it will be applied.
    is_new: bool
    #: What its job has in hand, and which job that is.
    at_job: set[int]
    job: int | None


class Oracle:
    """Ledgers of all queues, and what clients were told."""

    def __init__(self) -> None:
        self.ledgers: dict[int, Ledger] = {}
        self.violation: Violation | None = None
        #: (queue, body) as published by clients.
        self.published: set[tuple[int, bytes]] = set()
        self.confirmed: set[tuple[int, bytes]] = set()
        self.leader_of_term: dict[tuple[int, int], NodeId] = {}
        #: Consumers say what their clients were written, and queues are told.
        self.knows_writes = False

    def require(self, condition: object, text: str) -> None:
        """Remember and raise a violation unless the condition holds."""
        if not condition:
            violation = Violation(text)
            if self.violation is None:
                self.violation = violation
            raise violation

    # ---- consensus ------------------------------------------------------------------------------

    def on_leader(self, node: NodeId, uid: int, term: int, is_damaged: bool) -> None:
        """One leader per term; no damaged one (G8)."""
        other = self.leader_of_term.setdefault((uid, term), node)
        self.require(other == node, f"{other} and {node} both lead term {term} of queue {uid}")
        self.require(not is_damaged, f"damaged {node} was elected in queue {uid} (G8)")

    # ---- machines -------------------------------------------------------------------------------

    def before(self, machine: QueueMachine, uid: int, index: int, command: bytes) -> Before | None:
        """Look at a machine before a command; None: another member has been here before."""
        if index in self.ledgers[uid].applied:
            return None
        held: list[int] = []
        letters: list[int] = []
        kind = command[1]
        if kind in (Kind.SETTLE, Kind.JOINED_SETTLEMENTS):
            is_joined = kind == Kind.JOINED_SETTLEMENTS
            for part in joined_settlements.decode(command) if is_joined else [command]:
                consumer_id, ranges, _ = queue_commands.decode_ranges(part)
                consumer = machine.consumers.get(consumer_id)
                if consumer is not None:
                    held += _within(consumer.held, ranges)
        elif kind == Kind.DEAD_LETTERS_SETTLE:
            ranges = queue_commands.decode_json(command)["ranges"]
            letters = _within((letter.span for letter in machine.letters), ranges)
        elif kind in (Kind.NODE_DOWN, Kind.NODE_UP):
            # Nobody knows what the clients of such a member were written.
            node = queue_commands.decode_json(command)["node"]
            for consumer in machine.consumers.of_node(node):
                found = _within(consumer.held, [(0, 1 << 62)])
                self.ledgers[uid].may_count.update(found)
        is_new = kind == Kind.ONCE and _is_new(machine, command)
        job = machine.query_job()
        at_job = _at_job(machine)
        if kind == Kind.JOB_SETTLE:
            fields = queue_commands.decode_json(command)
            if job is not None and fields["id"] == job.id:
                letters = _within(job.held, fields["gone"])
        number = None if job is None else job.id
        return Before(machine.next_number, held, letters, is_new, at_job, number)

    def after(
        self,
        node: NodeId,
        machine: QueueMachine,
        uid: int,
        meta: Meta,
        command: bytes,
        reply: bytes,
        todo: Sequence[Any],
        before: Before | None,
    ) -> None:
        """Compare with others, or write the ledger."""
        ledger = self.ledgers[uid]
        counters = tuple(machine.counters.values())
        gauges = (machine.store.ready, machine.unacked, machine.letters.count, len(todo))
        value = (meta.term, meta.now_ms, crc32(command), crc32(reply), counters, gauges)
        known = ledger.applied.setdefault(meta.index, value)
        self.require(
            known == value,
            f"replicas differ: {node} at {meta.index} of queue {uid} (kind {command[1]}): "
            f"{value}, before it was {known}",
        )
        if before is None:
            return
        if command[1] == Kind.ONCE:
            self._came(ledger, f"queue {uid}", meta.index, command, reply, before)
        if machine.next_number > before.next_number:
            self._enqueued(ledger, uid, meta.index, command, before.next_number, machine)
        for number in before.held:
            self._gone(ledger, number)
            ledger.settled[number] = meta.index
        if before.letters:
            left = set(_within((letter.span for letter in machine.letters), [(0, 1 << 62)]))
            left |= _at_job(machine)
            for number in before.letters:
                if number not in left:
                    self._buried(ledger, uid, number, meta.index)
        self._follow_job(ledger, f"queue {uid} at {meta.index}", machine, command, before)
        for effect in todo:
            if isinstance(effect, effects.Deliver):
                self._delivered(ledger, uid, meta.index, effect, machine)

    def _follow_job(
        self, ledger: Ledger, where: str, machine: QueueMachine, command: bytes, before: Before
    ) -> None:
        """What a job has in hand is its own, until it says what became of it."""
        job = machine.query_job()
        if job is not None and job.id != before.job:
            ledger.job_ends[job.id] = before.next_number
        now = _at_job(machine)
        kind = command[1]
        lost = before.at_job - now
        self.require(
            not lost or kind in (Kind.JOB_SETTLE, Kind.JOB_END),
            f"{where}: command {kind} took {sorted(lost)[:5]} from job {before.job}",
        )
        for number in now - before.at_job:
            assert job is not None
            is_there = number not in ledger.settled and number not in ledger.buried
            self.require(is_there, f"{where}: message {number} had gone, and a job has it")
            self.require(
                number < ledger.job_ends[job.id], f"{where}: message {number} came after the job"
            )

    def _came(
        self,
        ledger: Ledger,
        where: str,
        index: int,
        command: bytes,
        reply: bytes,
        before: Before,
    ) -> None:
        """What must take effect once does (client_sessions.py), however often it comes."""
        if reply in (client_sessions.EARLY, client_sessions.OUTLIVED):
            return
        envelope = client_sessions.decode_envelope(command)
        key = (envelope.node, envelope.incarnation, envelope.sequence)
        first = ledger.taken.setdefault(key, index)
        if first != index:
            ledger.copies += 1
            self.require(
                not before.is_new,
                f"{where}: command {envelope.sequence} (kind {envelope.kind}) of {envelope.node} "
                f"was applied at {first}, and is again at {index}",
            )

    def _enqueued(
        self,
        ledger: Ledger,
        uid: int,
        index: int,
        command: bytes,
        first: int,
        machine: QueueMachine,
    ) -> None:
        view = EnqueueView(command)
        count = machine.next_number - first
        ledger.entries[index] = crc32(command)
        ledger.alive[index] = count
        # What was taken over is the end of the batch: the front may be repeated.  No queue of the
        # simulation has a limit that refuses the rear.
        for offset, content in enumerate(view.contents(view.count - count, count)):
            body = content[2]
            self.require(self._is_known(uid, body), f"queue {uid}: {body!r} is invented (G2)")
            ledger.messages[first + offset] = Place(body, index)
            ledger.numbers.setdefault(body, []).append(first + offset)
            redriven = annotations.decode(content[3]).redriven
            if redriven is not None:
                ledger.redriven[first + offset] = redriven
            if view.first_sequence:
                publisher, _, rest = body.partition(b"/")
                sequence = int(rest.partition(b"/")[0])
                last = ledger.newest.get(publisher, 0)
                self.require(
                    sequence > last,
                    f"queue {uid}: {body[:20]!r} came after {last} of the same channel (G3)",
                )
                ledger.newest[publisher] = sequence

    def _is_known(self, uid: int, body: bytes) -> bool:
        """Tell whether a client sent a message here, or it may have come as a dead letter."""
        return (uid, body) in self.published or any(
            uid in source.targets and body in source.numbers for source in self.ledgers.values()
        )

    def _gone(self, ledger: Ledger, number: int) -> None:
        index = ledger.messages[number].index
        ledger.alive[index] -= 1
        if not ledger.alive[index]:
            del ledger.alive[index], ledger.entries[index]

    def _buried(self, ledger: Ledger, uid: int, number: int, index: int) -> None:
        """G6: not before every target has it."""
        body = ledger.messages[number].body
        self.require(
            number not in ledger.buried, f"queue {uid}: {body[:20]!r} was sent on and is again"
        )
        for target in ledger.targets:
            self.require(
                body in self.ledgers[target].numbers,
                f"queue {uid}: {body[:20]!r} was dropped before its target {target} had it (G6)",
            )
        self._gone(ledger, number)
        ledger.buried[number] = index

    def _delivered(
        self, ledger: Ledger, uid: int, index: int, effect: effects.Deliver, machine: QueueMachine
    ) -> None:
        limit = machine.options.delivery_limit
        for run in effect.runs:
            for number in range(run.first, run.first + run.length):
                where = f"queue {uid} message {number} at {index}"
                self.require(number in ledger.messages, f"{where}: delivered, never enqueued (G2)")
                self.require(number not in ledger.settled, f"{where}: settled and again (G4)")
                self.require(number not in ledger.buried, f"{where}: buried and again (G6)")
                counts = (run.acquired_count, run.delivery_count)
                last = ledger.counts.get(number, (0, 0))
                self.require(
                    counts[0] >= last[0] and counts[1] >= last[1],
                    f"{where}: delivery count fell from {last} to {counts} (G5)",
                )
                self.require(
                    limit is None or counts[1] <= limit, f"{where}: over the limit {limit} (G5)"
                )
                if self.knows_writes and counts[0] > last[0]:
                    self.require(
                        number in ledger.may_count,
                        f"{where}: counts {counts} after {last}, and "
                        f"{ledger.holders.get(number)} was not written it (ADR 69)",
                    )
                holder = ledger.holders.get(number)
                if counts[0] > last[0] or holder != effect.consumer:
                    ledger.may_count.discard(number)
                if holder not in (None, effect.consumer):
                    ledger.passed_on.add(number)
                ledger.holders[number] = effect.consumer
                ledger.counts[number] = counts

    def on_snapshot(self, node: NodeId, uid: int, index: int, data: bytes) -> None:
        """Machines at equal index have equal bytes."""
        checksum = crc32(data)
        known = self.ledgers[uid].snapshots.setdefault(index, checksum)
        self.require(known == checksum, f"{node}: state at {index} of queue {uid} differs")

    # ---- clients --------------------------------------------------------------------------------

    def on_received(self, uid: int, number: int, body: bytes) -> None:
        """A client got a message: it is the one that was enqueued under this number."""
        place = self.ledgers[uid].messages.get(number)
        self.require(place is not None, f"queue {uid}: client got unknown message {number} (G2)")
        assert place is not None
        self.require(
            place.body == body,
            f"queue {uid}: message {number} is {place.body[:20]!r}, client got {body[:20]!r}",
        )

    def on_written(self, uid: int, number: int, consumer_id: ConsumerId) -> None:
        """A consumer's client was written a message: it may count when it comes back."""
        ledger = self.ledgers[uid]
        if ledger.holders.get(number) == consumer_id:
            ledger.may_count.add(number)

    def unsettled(self, uid: int) -> list[int]:
        """Return the entries that must be readable: those with messages that are still here."""
        return sorted(self.ledgers[uid].alive)

    def on_end(self) -> None:
        """G1: every confirmed message was settled by a consumer, here or as a dead letter."""
        for uid, body in self.confirmed:
            self.require(
                self._is_accounted(uid, body),
                f"queue {uid}: confirmed {body[:20]!r} is lost (G1)",
            )

    def judge_outcomes(self, uid: int, machine: QueueMachine) -> int:
        """A queue at rest counts its copies of redrives as their consumers did; return how many it
        still tells of.
        """
        ledger, seen = self.ledgers[uid], set()
        expected: dict[tuple[int, int], list[int]] = {}
        for number, copy in sorted(ledger.redriven.items()):
            counts = expected.setdefault((copy.source, copy.job), [0] * len(Became))
            became = Became.ACKNOWLEDGED if number in ledger.settled else Became.WAITING
            if copy[:3] in seen:
                became = Became.DUPLICATE
            seen.add(copy[:3])
            counts[became] += 1
        told = 0
        for (source, job), counts in expected.items():
            groups = machine.query_outcomes(source, job)
            if groups is not None:
                sums = [sum(column) for column in zip(*groups.values(), strict=True)]
                text = f"queue {uid}: outcomes of job {job} are {sums}, consumers say {counts}"
                self.require(sums == counts, text)
                told += sum(counts)
        self.require(told or not expected, f"queue {uid} tells nothing of its copies")
        return told

    def _is_accounted(self, uid: int, body: bytes) -> bool:
        ledger = self.ledgers[uid]
        for number in ledger.numbers.get(body, ()):
            if number in ledger.settled:
                return True
            if number in ledger.buried:
                return all(self._is_accounted(target, body) for target in ledger.targets)
        return False


def _at_job(machine: QueueMachine) -> set[int]:
    job = machine.query_job()
    return set() if job is None else set(_within(job.held, [(0, 1 << 62)]))


def _is_new(machine: QueueMachine, command: bytes) -> bool:
    return machine.senders.answer(client_sessions.decode_envelope(command), b"known") is None


def _within(spans: Any, ranges: Sequence[Sequence[int]]) -> list[int]:
    return [
        number
        for span in spans
        for low, high in ranges
        for number in range(max(span.first, low), min(span.end, high))
    ]
