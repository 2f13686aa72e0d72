"""The queue machine against a simple model, and against its own snapshot and replay.

At least STEPS commands are tried in one run, over all kinds of queues.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from brokerd.core.annotations import RedrivenFrom
from brokerd.core.machine import Outcome
from brokerd.core.message import Range
from brokerd.core.queue import (
    effects,
    enqueue_commands,
    joined_settlements,
    queue_commands,
    ready_spans,
    settling_gets,
)
from brokerd.core.queue.certificates import Certificate, Client
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.queue.queue_commands import Kind, ReturnCause
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.queue_driver import StepMeta, consumer, content, numbers

CHANNELS = (1, 2, 3)
TAGS = ("a", "b")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"queue_type": "quorum", "delivery_limit": 2, "dead_letter_exchange": "dlx"},
    {"queue_type": "quorum", "delivery_count_mode": "4.3", "message_ttl_ms": 50},
    {"max_length": 7, "overflow": "drop-head", "dead_letter_exchange": "dlx"},
    {"max_length": 5, "overflow": "reject-publish-dlx", "dead_letter_exchange": "dlx"},
    {"max_priority": 3, "max_length_bytes": 40},
    {
        "queue_type": "quorum",
        "at_least_once": True,
        "overflow": "reject-publish",
        "dead_letter_exchange": "dlx",
        "delivery_limit": 1,
        "max_length": 9,
    },
    {
        "queue_type": "quorum",
        "at_least_once": True,
        "overflow": "reject-publish",
        "dead_letter_exchange": "dlx",
        "delivery_limit": 1,
    },
    {"single_active_consumer": True},
    {"queue_type": "quorum", "single_active_consumer": True, "delivery_limit": 3},
    {
        "queue_type": "quorum",
        "delivery_limit": 4,
        "delivery_count_mode": "4.3",
        "delayed_retry": "all",
        "delayed_retry_min_ms": 20,
        "delayed_retry_max_ms": 50,
        "max_length": 8,
        "alternate_exchange": "alt",
        "reroute_overflow": True,
    },
    {"queue_type": "quorum", "consumer_timeout_ms": 40, "delivery_count_mode": "4.0"},
    {
        "queue_type": "quorum",
        "consumer_timeout_ms": 40,
        "delayed_retry": "failed",
        "delayed_retry_min_ms": 20,
        "delayed_retry_max_ms": 20,
        "overflow": "reject-publish",
        "max_length": 6,
        "max_length_bytes": 30,
        "max_priority": 31,
    },
    {"alternate_exchange": "alt", "max_length": 6, "message_ttl_ms": 70},
    {"consumer_timeout_ms": 40, "max_length": 6},
    # The default limit: only failures end a message, and what is dropped for it is counted.
    {
        "queue_type": "quorum",
        "delivery_limit": 1,
        "delivery_count_mode": "failures",
        "delivery_limit_is_default": True,
        "consumer_timeout_ms": 40,
    },
    {
        "queue_type": "quorum",
        "delivery_limit": 1,
        "delivery_count_mode": "failures",
        "delivery_limit_is_default": True,
        "dead_letter_exchange": "dlx",
        "delayed_retry": "returned",
        "delayed_retry_min_ms": 20,
        "delayed_retry_max_ms": 50,
    },
    {
        "queue_type": "quorum",
        "delivery_limit": 0,
        "delivery_count_mode": "4.3",
        "delivery_limit_is_default": True,
    },
]
#: Commands tried in one run of the test.
STEPS = int(os.environ.get("QUEUE_STEPS", "50000"))


def client_of(who: ConsumerId) -> Client:
    return Client(f"channel {who.channel}", who.tag, "1")


class QueueAgainstModel(RuleBasedStateMachine):
    """Every message is where the effects say it is, and nowhere else.

    The model knows each message by its own place only: ready, held by a consumer, dead letter
    pending, or gone; it moves them as effects and replies tell and compares totals.  What a message
    that comes back counts, and when it dies of that, the model knows by itself (R-DL-2, R-DL-3).
    """

    def __init__(self) -> None:
        super().__init__()
        self.machine = QueueMachine()
        self.replica = QueueMachine()
        self.meta = StepMeta(0, 1, 1_000)
        self.sequence: dict[int, int] = {}
        #: number -> consumer
        self.held: dict[int, ConsumerId] = {}
        self.handed_out: dict[int, int] = {}
        #: number -> what it brought along, and what it has counted here besides.
        self.brought: dict[int, int] = {}
        #: Numbers of messages that wait for their time, until then or later.
        self.due_ms: dict[int, int] = {}
        self.counted: dict[int, int] = {}
        #: How many died of the delivery limit, and how many of those in a way that is told.
        self.over_limit = 0
        #: Dead letters that were not to wait.
        self.sent_on = 0
        self.dropped = 0
        self.seen: set[int] = set()
        #: number -> when its holder got it
        self.taken_ms: dict[int, int] = {}
        #: number -> who had it last
        self.last_holder: dict[int, ConsumerId] = {}
        #: What dies says who had it; whether the time is known, since there was an exchange from
        #: the start.
        self.names_consumers = self.knows_times = False
        #: Numbers that have left for an exchange.
        self.gone: set[int] = set()
        #: Of consumers that have some: how many more they were granted than they were handed out.
        self.credit: dict[ConsumerId, int] = {}
        #: Numbers that the job holds, and how many jobs have taken out for good.
        self.at_job: set[int] = set()
        #: Those that a job once held: others may have gone ahead of them.
        self.passed_by: set[int] = set()
        self.job_out = 0
        #: All messages are copies that a redrive of another queue sent.
        self.are_copies = False
        self.copies = 0

    #: Commands tried so far, over all examples.
    steps: ClassVar[int] = 0

    # -- driving

    def apply(self, command: bytes) -> Outcome:
        QueueAgainstModel.steps += 1
        self.meta = StepMeta(self.meta.index + 1, self.meta.term, self.meta.now_ms)
        self.time_out()
        outcome = self.machine.apply(self.meta, command)
        twin = self.replica.apply(self.meta, command)
        assert outcome == twin, "two replicas differ"
        delivers = [e for e in outcome.effects if isinstance(e, effects.Deliver)]
        self.see_in_order([numbers(effect.runs) for effect in delivers])
        for effect in delivers:
            for run in effect.runs:
                self.hand_out(effect.consumer, run)
        self.see_leaving(outcome)
        due_ms = self.machine.delayed.next_due_ms()
        assert due_ms is None or due_ms > self.meta.now_ms, "delayed for longer than its time"
        return outcome

    def time_out(self) -> None:
        """R-QQ-22: what is held for too long is taken back before anything else is done."""
        timeout_ms = self.machine.options.consumer_timeout_ms
        if timeout_ms is None:
            return
        for number in list(self.held):
            if self.taken_ms[number] + timeout_ms <= self.meta.now_ms:
                self.take_back(number, is_failure=False)

    def take_back(self, number: int, is_failure: bool) -> None:
        """A message returns: count it, and let it die if that is too much."""
        del self.held[number]
        options = self.machine.options
        returns = self.handed_out[number] = self.handed_out.get(number, 0) + 1
        mode, is_quorum = options.delivery_count_mode, options.queue_type == "quorum"
        if is_failure or (is_quorum and mode in ("3.x", "4.0")):
            self.counted[number] = self.counted.get(number, 0) + 1
        if not is_quorum:
            return
        count = self.count_of(number)
        limit = options.delivery_limit
        dies = (
            limit is not None
            and {
                "3.x": count > limit,
                "4.0": returns > limit,
                "4.3": count > limit,
                # R-DL-9 does not hold for it: what a message brought along ends nothing here.
                "failures": is_failure and count > limit and returns > limit,
            }[mode]
        )
        if dies:
            self.over_limit += 1
            self.dropped += (
                options.delivery_limit_is_default and options.dead_letter_exchange is None
            )

    def give_back(self, number: int, unspends: bool = True) -> None:
        """A message that was not written returns, as it was."""
        who = self.held.pop(number)
        if unspends and who in self.credit:
            self.credit[who] += 1

    def count_of(self, number: int) -> int:
        return self.brought.get(number, 0) + self.counted.get(number, 0)

    def hold(self, number: int, who: ConsumerId) -> None:
        self.held[number] = who
        self.taken_ms[number] = self.meta.now_ms
        self.last_holder[number] = who

    def see_certificate(
        self, certificate: Certificate | None, reason: str, of: Iterable[int], died_ms: int
    ) -> None:
        """ADR 88: who had it, with its client, and for how long."""
        if not self.names_consumers or reason not in ("rejected", "delivery_limit"):
            assert certificate is None
            return
        assert certificate is not None
        for number in of:
            assert certificate.tag == self.last_holder[number].tag
            known = None if not certificate.tag else client_of(self.last_holder[number])
            assert certificate.client == known
            held_ms = died_ms - self.taken_ms[number]
            assert certificate.held_ms == held_ms or not self.knows_times

    def see_leaving(self, outcome: Outcome) -> None:
        """What went to an exchange never comes back, and goes once."""
        for effect in outcome.effects:
            if isinstance(effect, effects.DeadLetter):
                self.sent_on += sum(run.length for run in effect.runs)
                self.see_certificate(
                    effect.certificate, effect.reason, numbers(effect.runs), effect.now_ms
                )
            if isinstance(effect, effects.DeadLetter | effects.Reroute):
                if self.machine.options.overflow == "reject-publish-dlx":
                    # Refused messages have no numbers of their own.
                    continue
                left = set(numbers(effect.runs))
                assert not left & self.gone, "left twice"
                assert not left & self.held.keys(), "left while someone holds it"
                assert not left & self.at_job, "left while the job holds it"
                self.gone |= left

    def hand_out(self, who: ConsumerId, run: Run) -> None:
        row = next((r for r in self.machine.consumer_rows() if r["consumer"] == who), None)
        for number in range(run.first, run.first + run.length):
            assert number not in self.held, "handed out while someone holds it"
            assert number not in self.at_job, "handed out while the job holds it"
            assert number not in self.gone, "handed out after it had left"
            assert self.due_ms.get(number, 0) <= self.meta.now_ms, "handed out before its time"
            assert run.acquired_count == self.handed_out.get(number, 0)
            assert run.delivery_count == self.count_of(number)
            if row is not None and not row["no_ack"]:
                self.hold(number, who)
        if who in self.credit:
            self.credit[who] -= run.length
            assert self.credit[who] >= 0, "handed out more than was granted"

    def see_in_order(self, by_consumer: list[list[int]]) -> None:
        """R-QQ-11, G3: what is handed out for the first time comes in publish order."""
        known = self.seen | self.passed_by | self.due_ms.keys()
        first_time = [[n for n in given if n not in known] for given in by_consumer]
        if not self.machine.options.max_priority:
            assert all(given == sorted(given) for given in first_time)
            newest = max(self.seen, default=-1)
            assert all(number > newest for given in first_time for number in given)
        self.seen.update(number for given in first_time for number in given)

    def take(
        self, data: st.DataObject, kind: Kind, cause: ReturnCause
    ) -> tuple[ConsumerId, list[Range]]:
        who = data.draw(st.sampled_from(sorted(set(self.held.values()))))
        mine = sorted(n for n, c in self.held.items() if c == who)
        low = data.draw(st.sampled_from(mine))
        high = low + data.draw(st.integers(1, 6))
        for number in range(low, high):
            if self.held.get(number) != who:
                continue
            if kind == Kind.RETURN and cause in (ReturnCause.UNWRITTEN, ReturnCause.WITHDRAWN):
                self.give_back(number, unspends=cause is ReturnCause.UNWRITTEN)
            elif kind == Kind.RETURN:
                self.take_back(number, is_failure=cause is ReturnCause.REJECT)
            else:
                del self.held[number]
        return who, [(low, high)]

    # -- rules

    @initialize(
        options=st.sampled_from(OPTIONS), are_copies=st.booleans(), names_consumers=st.booleans()
    )
    def choose_options(
        self, options: dict[str, Any], are_copies: bool = False, names_consumers: bool = False
    ) -> None:
        self.are_copies = are_copies
        self.names_consumers = names_consumers
        self.knows_times = "dead_letter_exchange" in options
        chosen = QueueOptions(**options, names_consumers=names_consumers)
        self.apply(queue_commands.encode_update_options(chosen))
        # Something is in hand from the start, or most examples would end before it came to that.
        self.checkout(1, "a", 5, False, 0)
        self.enqueue(1, [2, 0, 4, 0, 6], None, 0, 0)

    @rule(
        channel=st.sampled_from(CHANNELS),
        sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8),
        ttl=st.none() | st.integers(0, 100),
        priority=st.integers(0, 4),
        repeat=st.integers(0, 3),
        brought=st.sampled_from([0, 0, 3]),
        later_ms=st.sampled_from([0, 0, 0, 15, 60]),
    )
    def enqueue(
        self,
        channel: int,
        sizes: list[int],
        ttl: int | None,
        priority: int,
        repeat: int,
        brought: int = 0,
        later_ms: int = 0,
    ) -> None:
        fields: dict[str, Any] = {"priority": priority} if priority else {}
        if brought:
            fields["delivery_count"] = brought
        if ttl is not None:
            fields["ttl_ms"] = ttl
        if later_ms:
            fields["deliver_at_ms"] = self.meta.now_ms + later_ms
        batch = [
            content(b"x" * size, **(fields if size % 2 else {}), **self.copy()) for size in sizes
        ]
        following = self.sequence.get(channel, 1)
        first = max(1, following - repeat)
        is_over = self.is_over_its_limit()
        if brought:
            new = enumerate(sizes[following - first :], self.machine.next_number)
            self.brought |= {number: brought for number, size in new if size % 2}
        before = self.machine.next_number
        if later_ms:
            # Those that are refused get no number, and what comes after them is not later.
            self.due_ms |= {
                number: self.meta.now_ms + later_ms
                for number, size in enumerate(sizes[following - first :], before)
                if size % 2
            }
        outcome = self.apply(enqueue_commands.encode_enqueue("n1", 7, channel, first, batch))
        refused = [number for number in self.due_ms if number >= self.machine.next_number]
        for number in refused:
            del self.due_ms[number]
        status, accepted, _ = enqueue_commands.decode_enqueue_reply(outcome.reply)
        assert status == enqueue_commands.EnqueueStatus.OK
        assert 0 <= accepted <= len(batch)
        if is_over:
            assert accepted <= following - first, "accepted over the limit"
        self.sequence[channel] = max(following, first + len(batch))
        # What was refused has no number: the next message gets it.
        for number in [n for n in self.brought if n >= self.machine.next_number]:
            del self.brought[number]

    def copy(self) -> dict[str, Any]:
        """What makes a message a copy; no two are of the same message."""
        if not self.are_copies:
            return {}
        self.copies += 1
        return {"redriven": RedrivenFrom(9, 3, self.copies, "ab"[self.copies % 2])}

    @rule(
        sizes=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=2, max_size=2),
        is_again=st.booleans(),
    )
    def enqueue_joined(self, sizes: list[list[int]], is_again: bool) -> None:
        """Both channels' messages, and what comes of a copy."""
        shares = [
            (channel, self.sequence.get(channel, 1), len(each))
            for channel, each in zip(CHANNELS, sizes, strict=False)
        ]
        batch = [content(b"x" * size, **self.copy()) for each in sizes for size in each]
        command = enqueue_commands.encode_joined("n1", 7, shares, batch)
        is_over, before = self.is_over_its_limit(), self.machine.next_number
        reply = self.apply(command).reply
        status, accepted = enqueue_commands.decode_joined_reply(reply, len(shares))
        assert status == enqueue_commands.EnqueueStatus.OK
        assert self.machine.next_number - before == sum(accepted)
        assert not (is_over and sum(accepted)), "accepted over the limit"
        for channel, first, count in shares:
            self.sequence[channel] = first + count
        if is_again:
            before = self.machine.next_number
            assert self.apply(command).reply == reply
            assert self.machine.next_number == before

    def is_over_its_limit(self) -> bool:
        """R-LEN-3, R-LEN-7, R-LEN-8: what is over, refuses."""
        options, view = self.machine.options, self.machine.overview()
        if options.overflow != "reject-publish" or options.max_length is None:
            return False
        letters = view["dl_pending"] - view["dl_old_terms"]
        return bool(view["ready"] + letters + view["delayed"] > options.max_length)

    @rule(channel=st.sampled_from(CHANNELS), ahead=st.integers(1, 5))
    def enqueue_with_a_gap(self, channel: int, ahead: int) -> None:
        expected = self.sequence.get(channel, 1)
        command = enqueue_commands.encode_enqueue("n1", 7, channel, expected + ahead, [content()])
        reply = enqueue_commands.decode_enqueue_reply(self.apply(command).reply)
        assert reply == (enqueue_commands.EnqueueStatus.GAP, 0, expected)

    @rule(
        channel=st.sampled_from(CHANNELS),
        tag=st.sampled_from(TAGS),
        prefetch=st.sampled_from([0, 1, 2, 5]),
        no_ack=st.booleans(),
        priority=st.integers(-1, 1),
        credit=st.sampled_from([None, None, 0, 1, 3]),
    )
    def checkout(
        self,
        channel: int,
        tag: str,
        prefetch: int,
        no_ack: bool,
        priority: int,
        credit: int | None = None,
    ) -> None:
        who = consumer(tag, channel)
        rows = self.machine.consumer_rows()
        if any(row["consumer"] == who for row in rows) or who in self.held.values():
            return
        self.credit.pop(who, None)
        if credit is not None:
            self.credit[who] = credit
        checkout = Checkout(
            who, prefetch, no_ack, False, priority, "u", credit=credit, client=client_of(who)
        )
        self.apply(queue_commands.encode_checkout(checkout))

    @rule(data=st.data(), credit=st.integers(0, 4), drains=st.booleans())
    @precondition(lambda self: self.credit)
    def grant(self, data: st.DataObject, credit: int, drains: bool) -> None:
        who = data.draw(st.sampled_from(sorted(self.credit)))
        rows = [row for row in self.machine.consumer_rows() if row["consumer"] == who]
        for row in rows:
            self.credit[who] += credit
            settings = (row["prefetch"], row["no_ack"], False, row["priority"], "u")
            checkout = Checkout(who, *settings, credit=credit, drains=drains, client=client_of(who))
            outcome = self.apply(queue_commands.encode_checkout(checkout))
            if drains:
                left = queue_commands.decode_reply(outcome.reply)["credit"]
                assert left == self.credit[who]
                self.credit[who] = 0

    @rule(channel=st.sampled_from(CHANNELS), tag=st.sampled_from(TAGS))
    def cancel(self, channel: int, tag: str) -> None:
        self.apply(queue_commands.encode_cancel(consumer(tag, channel)))

    # One rule for all three: hypothesis leaves out whole rules in most of its examples.
    @rule(
        data=st.data(),
        kind=st.sampled_from([Kind.SETTLE, Kind.RETURN, Kind.RETURN, Kind.DISCARD]),
        cause=st.sampled_from(list(ReturnCause)),
        after_ms=st.sampled_from([0, 0, 1, 15, 45]),
    )
    @precondition(lambda self: self.held)
    def let_go(self, data: st.DataObject, kind: Kind, cause: ReturnCause, after_ms: int) -> None:
        who, ranges = self.take(data, kind, cause)
        self.apply(queue_commands.encode_ranges(kind, who, ranges, cause))
        if after_ms:
            self.tick(after_ms)

    @rule(data=st.data(), count=st.integers(1, 4))
    @precondition(lambda self: self.held)
    def settle_together(self, data: st.DataObject, count: int) -> None:
        """Several consumers', or one's several times (ADR 65)."""
        parts = []
        while self.held and len(parts) < count:
            who, ranges = self.take(data, Kind.SETTLE, ReturnCause.NACK)
            parts.append(queue_commands.encode_ranges(Kind.SETTLE, who, ranges))
        assert self.apply(joined_settlements.encode(parts)).reply == b""

    @rule(channel=st.sampled_from(CHANNELS), no_ack=st.booleans(), settles=st.integers(0, 3))
    def get(self, channel: int, no_ack: bool, settles: int) -> None:
        who = consumer("", channel)
        command = queue_commands.encode_get(who, no_ack)
        mine = [number for number, holder in self.held.items() if holder == who][:settles]
        if mine:
            for number in mine:
                del self.held[number]
            command = settling_gets.encode(command, [(each, each + 1) for each in mine])
        reply = queue_commands.decode_reply(self.apply(command).reply)
        if reply.get("run"):
            run = Run(*reply["run"])
            assert run.length == 1
            assert run.first not in self.held
            assert run.delivery_count == self.count_of(run.first)
            self.see_in_order([[run.first]])
            if not no_ack:
                self.hold(run.first, who)

    @rule(channel=st.sampled_from(CHANNELS), data=st.data())
    def channel_down(self, channel: int, data: st.DataObject) -> None:
        mine = {number: who for number, who in self.held.items() if who.channel == channel}
        written: dict[str, list[Range]] | None = None
        if data.draw(st.booleans()):
            written = {}
            # What it does not hold any more is passed over.
            for number in data.draw(st.lists(st.sampled_from([*mine, 0]), unique=True)):
                tag = mine[number].tag if number in mine else "a"
                written.setdefault(tag, []).append((number, number + 1))
        sent = [number for ranges in (written or {}).values() for number, _ in ranges]
        for number in mine:
            if written is None or number in sent:
                self.take_back(number, is_failure=True)
            else:
                self.give_back(number)
        for who in [who for who in self.credit if who.channel == channel]:
            del self.credit[who]
        self.sequence.pop(channel, None)
        self.apply(queue_commands.encode_channel_down("n1", 7, channel, written))

    @rule(after_ms=st.integers(0, 60))
    def pass_time(self, after_ms: int) -> None:
        self.tick(after_ms)

    def tick(self, after_ms: int) -> None:
        self.meta = StepMeta(self.meta.index, self.meta.term, self.meta.now_ms + after_ms)
        self.apply(queue_commands.encode_tick())
        # A deadline that a tick leaves as it is would be told again and again, without a pause.
        deadline_ms = self.machine.next_deadline_ms()
        is_later = deadline_ms is None or deadline_ms > self.meta.now_ms
        assert is_later or self.machine.more_to_deliver

    @rule(what=st.sampled_from(["node", "node", "node", "purge"]))
    def disturb(self, what: str) -> None:
        if what == "purge":
            self.apply(queue_commands.encode_purge())
            assert self.machine.overview()["ready"] == 0
            return
        self.apply(queue_commands.encode_node_down("n1"))
        self.apply(queue_commands.encode_node_up("n1", 7))

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def resume(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(set(self.held.values()))))
        mine = sorted(n for n, c in self.held.items() if c == who)
        kept = data.draw(st.lists(st.sampled_from(mine), unique=True))
        for number in set(mine) - set(kept):
            del self.held[number]
        held = [(number, number + 1) for number in sorted(kept)]
        since_ms = dict(self.taken_ms)
        if who in self.credit:
            # Sent again is not handed out again.
            self.credit[who] += len(mine) - len(kept)
        outcome = self.apply(queue_commands.encode_resume(who, held))
        if who.tag == "" or all(row["consumer"] != who for row in self.machine.consumer_rows()):
            for effect in outcome.effects:
                if isinstance(effect, effects.Deliver) and effect.consumer == who:
                    for run in effect.runs:
                        for number in range(run.first, run.first + run.length):
                            self.held[number] = who
        assert sorted(n for n, c in self.held.items() if c == who)[: len(mine)] == mine
        for number in mine:
            # Sent again is not taken again: the time goes on (R-QQ-22).
            self.taken_ms[number] = since_ms[number]

    @rule(count=st.integers(1, 5), new_term=st.booleans(), part=st.integers(0, 5))
    def work_on_dead_letters(self, count: int, new_term: bool, part: int) -> None:
        if new_term:
            self.meta = StepMeta(self.meta.index, self.meta.term + 1, self.meta.now_ms)
        command = queue_commands.encode_dead_letters_checkout(count)
        letters = queue_commands.decode_reply(self.apply(command).reply)["letters"]
        runs = [Run(*letter["run"]) for letter in letters]
        assert sum(run.length for run in runs) <= count
        settled = [(run.first, run.first + run.length) for run in runs[:part]]
        before = self.machine.overview()["dl_pending"]
        self.apply(queue_commands.encode_dead_letters_settle(settled))
        gone = sum(high - low for low, high in settled)
        assert self.machine.overview()["dl_pending"] == before - gone

    @precondition(lambda self: self.machine.options.queue_type == "quorum")
    @rule(at_least_once=st.booleans(), exchange=st.sampled_from([None, "dlx", "other"]))
    def change_terms(self, at_least_once: bool, exchange: str | None) -> None:
        """R-ALO-9: not one letter that waits is lost for it."""
        options = replace(
            *(self.machine.options,),
            at_least_once=at_least_once and exchange is not None,
            dead_letter_exchange=exchange,
            letters_exchange=None,
            letters_routing_key=None,
        )
        before = self.machine.overview()
        self.knows_times = self.knows_times and exchange is not None
        self.apply(queue_commands.encode_update_options(options))
        after = self.machine.overview()
        grown = after["counters"]["dl_out"] - before["counters"]["dl_out"]
        assert after["counters"]["dl_lost"] == before["counters"]["dl_lost"]
        assert before["dl_pending"] <= after["dl_pending"] <= before["dl_pending"] + grown
        if after["dl_pending"]:
            assert self.machine.options.letters_target()[0] is not None

    def worker(self, kind: str, ranges: list[Range], other: list[Range], is_late: bool) -> bytes:
        """A command of the job's worker; of an earlier leader's, if it is late."""
        job = self.machine.query_job()
        number = self.machine.last_job_id if job is None else job.id
        term = self.meta.term - is_late
        if kind in ("take", "take waiting"):
            waiting = kind == "take waiting"
            return queue_commands.encode_job_take(number, term, ranges, waiting=waiting)
        if kind == "settle":
            return queue_commands.encode_job_settle(number, term, ranges, other, "so far")
        return queue_commands.encode_job_end(number, term, "receipt")

    @rule(
        data=st.data(),
        step=st.sampled_from(
            ["start", *["take"] * 3, *["take waiting"] * 2, *["settle"] * 2, "end", "stop"]
        ),
        is_late=st.sampled_from([False, False, False, True]),
    )
    def work_on_a_job(self, data: st.DataObject, step: str, is_late: bool) -> None:
        job = self.machine.query_job()
        if step == "start":
            reply = self.apply(queue_commands.encode_job_start("order", "u")).reply
            assert ("refused" in queue_commands.decode_reply(reply)) == (job is not None)
        elif step == "stop":
            reply = self.apply(queue_commands.encode_job_stop("u")).reply
            assert ("refused" in queue_commands.decode_reply(reply)) == (job is None)
        elif step in ("take", "take waiting"):
            self.take_by_number(data, step, is_late)
        elif step == "settle":
            self.settle_job(data, is_late)
        else:
            before = self.machine.query_receipts()
            self.apply(self.worker("end", [], [], is_late))
            if job is not None and not is_late:
                self.at_job.clear()
                assert self.machine.query_job() is None
                assert self.machine.query_receipts()[-1] == (job.id, "receipt")
            else:
                assert self.machine.query_receipts() == before

    def take_by_number(self, data: st.DataObject, step: str, is_late: bool) -> None:
        job = self.machine.query_job()
        delayed = [span for _, span in self.machine.delayed]
        spans = delayed if step == "take waiting" else [*self.machine.store]
        there = {n for span in spans for n in range(span.first, span.end)}
        starts = st.sampled_from(sorted(there | {0}))
        lows = data.draw(st.lists(starts, min_size=1, max_size=4))
        ranges = [(low, low + data.draw(st.integers(1, 4))) for low in lows]
        reply = self.apply(self.worker(step, ranges, [], is_late)).reply
        pairs = queue_commands.decode_reply(reply)["taken"]
        taken = {n for low, high in pairs for n in range(low, high)}
        if job is None or job.stopped_by is not None or is_late:
            assert not taken, "taken without a job"
            return
        asked = {n for low, high in ranges for n in range(low, high)}
        assert taken == {n for n in asked & there if n < job.end}, "not what was there of it"
        self.at_job |= taken
        self.passed_by |= taken

    def settle_job(self, data: st.DataObject, is_late: bool) -> None:
        mine = st.lists(st.sampled_from(sorted(self.at_job | {0})), unique=True)
        gone, staying = data.draw(mine), data.draw(mine)
        pairs = [[(n, n + 1) for n in numbers] for numbers in (gone, staying)]
        left = len(self.at_job & set(gone))
        job = self.machine.query_job()
        self.apply(self.worker("settle", *pairs, is_late))
        if job is None:
            return
        self.job_out += left
        self.at_job.difference_update(gone)
        self.gone |= set(gone) if left == len(gone) else set()
        if not is_late:
            self.at_job.difference_update(staying)
            assert job.progress == "so far"

    @rule()
    def replica_restarts_from_a_snapshot(self) -> None:
        data = self.machine.snapshot()
        self.replica = QueueMachine(QueueOptions("quorum"))
        self.replica.restore(data)
        assert self.replica.snapshot() == data

    # -- what must always hold

    @invariant()
    def books_balance(self) -> None:
        self.machine.check_invariants()
        view = self.machine.overview()
        counters = view["counters"]
        assert view["unacked"] == len(self.held) + len(self.at_job)
        assert view["held_by_job"] == len(self.at_job)
        assert counters["job_out"] == self.job_out
        pending = counters["dl_out"] - counters["dl_confirmed"] - counters["dl_lost"]
        assert view["dl_pending"] == pending - self.sent_on
        assert (counters["over_limit"], counters["default_limit_drop"]) == (
            self.over_limit,
            self.dropped,
        ), "another message died of the delivery limit, or did not"
        assert view == self.replica.overview()

    @invariant()
    def letters_say_who_had_them(self) -> None:
        for letter in self.machine.letters:
            of = range(letter.first, letter.end)
            self.see_certificate(letter.certificate, letter.reason, of, letter.time_ms)

    @invariant()
    def outcomes_are_those_of_the_books(self) -> None:
        """Where all messages are a redrive's copies, nothing else has left than they."""
        found = self.machine.query_outcomes(9, 3)
        if found is None:
            is_new = not self.machine.next_number or self.machine.deleted is not None
            assert is_new or not self.are_copies
            return
        view = self.machine.overview()
        books = view["counters"]
        deaths = ("rejected", "expired", "maxlen_drop", "over_limit")
        assert [sum(counts) for counts in zip(*found.values(), strict=True)] == [
            books["ack"],
            sum(books[name] for name in deaths),
            books["purged"] + books["job_out"],
            view["ready"] + view["unacked"] + view["delayed"],
            0,
        ]

    @invariant()
    def nobody_waits_beside_ready_messages(self) -> None:
        view = self.machine.overview()
        if view["ready"] == 0 or self.machine.options.single_active_consumer:
            return
        for row in self.machine.consumer_rows():
            if self.credit.get(row["consumer"]) == 0:
                continue
            limit = row["prefetch"]
            assert not row["no_ack"], "messages are ready beside a consumer without limit"
            assert limit, "messages are ready beside a consumer without limit"
            assert row["unacked"] >= limit

    @invariant()
    def live_indexes_are_ascending_and_cover_what_is_here(self) -> None:
        ranges = list(self.machine.live_indexes())
        flat = [number for pair in ranges for number in pair]
        assert flat == sorted(set(flat))
        view = self.machine.overview()
        here = view["ready"] + view["unacked"] + view["dl_pending"] + view["delayed"]
        assert bool(ranges) == bool(here)


@pytest.mark.timeout(max(600, STEPS // 50))
def test_the_queue_machine_does_as_the_model_over_fifty_thousand_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R-QQ-11, R-QQ-14, R-ACK-5, R-DL-2, R-LEN-1: whatever happens, in whatever order"""
    # Queues of a few messages pack what queues of thousands do.
    monkeypatch.setattr(ready_spans, "BLOCK_SPANS", 2)
    monkeypatch.setattr(ready_spans, "UNPACKED_MIN", 2)
    while QueueAgainstModel.steps < STEPS:
        before = QueueAgainstModel.steps
        run_state_machine_as_test(
            QueueAgainstModel,
            settings=settings(max_examples=500, stateful_step_count=50, deadline=None),
        )
        assert QueueAgainstModel.steps > before
