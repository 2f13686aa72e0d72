"""The queue machine against a simple model, and against its own snapshot and replay."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerd.core import effects, queue_commands
from brokerd.core.effects import ConsumerId, Run
from brokerd.core.machine import Outcome
from brokerd.core.message import Range
from brokerd.core.queue import QueueMachine
from brokerd.core.queue_commands import Kind, QueueOptions, ReturnCause
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
    {"single_active_consumer": True},
    {"queue_type": "quorum", "single_active_consumer": True, "delivery_limit": 3},
]


class QueueAgainstModel(RuleBasedStateMachine):
    """Every message is where the effects say it is, and nowhere else.

    The model knows each message by its own place only: ready, held by a consumer, dead letter
    pending, or gone; it moves them as effects and replies tell and compares totals.
    """

    def __init__(self) -> None:
        super().__init__()
        self.machine = QueueMachine("q")
        self.replica = QueueMachine("q")
        self.meta = StepMeta(0, 1, 1_000)
        self.sequence: dict[int, int] = {}
        #: number -> consumer
        self.held: dict[int, ConsumerId] = {}
        self.handed_out: dict[int, int] = {}
        self.seen: set[int] = set()

    # -- driving

    def apply(self, command: bytes) -> Outcome:
        self.meta = StepMeta(self.meta.index + 1, self.meta.term, self.meta.now_ms)
        outcome = self.machine.apply(self.meta, command)
        twin = self.replica.apply(self.meta, command)
        assert outcome == twin, "two replicas differ"
        delivers = [e for e in outcome.effects if isinstance(e, effects.Deliver)]
        self.see_in_order([numbers(effect.runs) for effect in delivers])
        for effect in delivers:
            for run in effect.runs:
                self.hand_out(effect.consumer, run)
        return outcome

    def hand_out(self, who: ConsumerId, run: Run) -> None:
        row = next((r for r in self.machine.consumer_rows() if r["consumer"] == who), None)
        for number in range(run.first, run.first + run.length):
            assert number not in self.held, "handed out while someone holds it"
            assert run.acquired_count == self.handed_out.get(number, 0)
            if row is not None and not row["no_ack"]:
                self.held[number] = who

    def see_in_order(self, by_consumer: list[list[int]]) -> None:
        """R-QQ-11, G3: what is handed out for the first time comes in publish order."""
        first_time = [[n for n in given if n not in self.seen] for given in by_consumer]
        if not self.machine.options.max_priority:
            assert all(given == sorted(given) for given in first_time)
            newest = max(self.seen, default=-1)
            assert all(number > newest for given in first_time for number in given)
        self.seen.update(number for given in first_time for number in given)

    def take(self, data: st.DataObject) -> tuple[ConsumerId, list[Range]]:
        who = data.draw(st.sampled_from(sorted(set(self.held.values()))))
        mine = sorted(n for n, c in self.held.items() if c == who)
        low = data.draw(st.sampled_from(mine))
        high = low + data.draw(st.integers(1, 6))
        for number in range(low, high):
            if self.held.get(number) == who:
                del self.held[number]
                self.handed_out[number] = self.handed_out.get(number, 0) + 1
        return who, [(low, high)]

    # -- rules

    @initialize(options=st.sampled_from(OPTIONS))
    def choose_options(self, options: dict[str, Any]) -> None:
        self.apply(queue_commands.encode_update_options(QueueOptions(**options)))

    @rule(
        channel=st.sampled_from(CHANNELS),
        sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8),
        ttl=st.none() | st.integers(0, 100),
        priority=st.integers(0, 4),
        repeat=st.integers(0, 3),
    )
    def enqueue(
        self, channel: int, sizes: list[int], ttl: int | None, priority: int, repeat: int
    ) -> None:
        fields: dict[str, Any] = {"priority": priority} if priority else {}
        if ttl is not None:
            fields["ttl_ms"] = ttl
        batch = [content(b"x" * size, **(fields if size % 2 else {})) for size in sizes]
        following = self.sequence.get(channel, 1)
        first = max(1, following - repeat)
        outcome = self.apply(queue_commands.encode_enqueue("n1", 7, channel, first, batch))
        status, accepted, _ = queue_commands.decode_enqueue_reply(outcome.reply)
        assert status == queue_commands.EnqueueStatus.OK
        assert 0 <= accepted <= len(batch)
        self.sequence[channel] = max(following, first + len(batch))

    @rule(channel=st.sampled_from(CHANNELS), ahead=st.integers(1, 5))
    def enqueue_with_a_gap(self, channel: int, ahead: int) -> None:
        expected = self.sequence.get(channel, 1)
        command = queue_commands.encode_enqueue("n1", 7, channel, expected + ahead, [content()])
        reply = queue_commands.decode_enqueue_reply(self.apply(command).reply)
        assert reply == (queue_commands.EnqueueStatus.GAP, 0, expected)

    @rule(
        channel=st.sampled_from(CHANNELS),
        tag=st.sampled_from(TAGS),
        prefetch=st.sampled_from([0, 1, 2, 5]),
        no_ack=st.booleans(),
        priority=st.integers(-1, 1),
    )
    def checkout(self, channel: int, tag: str, prefetch: int, no_ack: bool, priority: int) -> None:
        who = consumer(tag, channel)
        rows = self.machine.consumer_rows()
        if any(row["consumer"] == who for row in rows) or who in self.held.values():
            return
        checkout = queue_commands.Checkout(who, prefetch, no_ack, False, priority, "u")
        self.apply(queue_commands.encode_checkout(checkout))

    @rule(channel=st.sampled_from(CHANNELS), tag=st.sampled_from(TAGS))
    def cancel(self, channel: int, tag: str) -> None:
        self.apply(queue_commands.encode_cancel(consumer(tag, channel)))

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def settle(self, data: st.DataObject) -> None:
        who, ranges = self.take(data)
        self.apply(queue_commands.encode_ranges(Kind.SETTLE, who, ranges))

    @rule(data=st.data(), cause=st.sampled_from(list(ReturnCause)))
    @precondition(lambda self: self.held)
    def put_back(self, data: st.DataObject, cause: ReturnCause) -> None:
        who, ranges = self.take(data)
        self.apply(queue_commands.encode_ranges(Kind.RETURN, who, ranges, cause))

    @rule(data=st.data(), cause=st.sampled_from(list(ReturnCause)))
    @precondition(lambda self: self.held)
    def discard(self, data: st.DataObject, cause: ReturnCause) -> None:
        who, ranges = self.take(data)
        self.apply(queue_commands.encode_ranges(Kind.DISCARD, who, ranges, cause))

    @rule(channel=st.sampled_from(CHANNELS), no_ack=st.booleans())
    def get(self, channel: int, no_ack: bool) -> None:
        who = consumer("", channel)
        reply = queue_commands.decode_reply(
            self.apply(queue_commands.encode_get(who, no_ack)).reply
        )
        if reply.get("run"):
            run = queue_commands.run_of(reply["run"])
            assert run.length == 1
            assert run.first not in self.held
            self.see_in_order([[run.first]])
            if not no_ack:
                self.held[run.first] = who

    @rule(channel=st.sampled_from(CHANNELS))
    def channel_down(self, channel: int) -> None:
        for number, who in list(self.held.items()):
            if who.channel == channel:
                del self.held[number]
                self.handed_out[number] = self.handed_out.get(number, 0) + 1
        self.sequence.pop(channel, None)
        self.apply(queue_commands.encode_channel_down("n1", 7, channel))

    @rule()
    def node_down_and_up(self) -> None:
        self.apply(queue_commands.encode_node_down("n1"))
        self.apply(queue_commands.encode_node_up("n1", 7))

    @rule(after_ms=st.integers(0, 60))
    def tick(self, after_ms: int) -> None:
        self.meta = StepMeta(self.meta.index, self.meta.term, self.meta.now_ms + after_ms)
        self.apply(queue_commands.encode_tick())

    @rule()
    def purge(self) -> None:
        self.apply(queue_commands.encode_purge())
        assert self.machine.overview()["ready"] == 0

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def resume(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(set(self.held.values()))))
        mine = sorted(n for n, c in self.held.items() if c == who)
        kept = data.draw(st.lists(st.sampled_from(mine), unique=True))
        for number in set(mine) - set(kept):
            del self.held[number]
        held = [(number, number + 1) for number in sorted(kept)]
        outcome = self.apply(queue_commands.encode_resume(who, held))
        if who.tag == "" or all(row["consumer"] != who for row in self.machine.consumer_rows()):
            for effect in outcome.effects:
                if isinstance(effect, effects.Deliver) and effect.consumer == who:
                    for run in effect.runs:
                        for number in range(run.first, run.first + run.length):
                            self.held[number] = who
        assert sorted(n for n, c in self.held.items() if c == who)[: len(mine)] == mine

    @rule(count=st.integers(1, 5), new_term=st.booleans(), part=st.integers(0, 5))
    def work_on_dead_letters(self, count: int, new_term: bool, part: int) -> None:
        if new_term:
            self.meta = StepMeta(self.meta.index, self.meta.term + 1, self.meta.now_ms)
        command = queue_commands.encode_dead_letters_checkout(count)
        letters = queue_commands.decode_reply(self.apply(command).reply)["letters"]
        runs = [queue_commands.run_of(letter["run"]) for letter in letters]
        assert sum(run.length for run in runs) <= count
        settled = [(run.first, run.first + run.length) for run in runs[:part]]
        before = self.machine.overview()["dl_pending"]
        self.apply(queue_commands.encode_dead_letters_settle(settled))
        gone = sum(high - low for low, high in settled)
        assert self.machine.overview()["dl_pending"] == before - gone

    @rule()
    def replica_restarts_from_a_snapshot(self) -> None:
        data = self.machine.snapshot()
        self.replica = QueueMachine("other options than the snapshot's", QueueOptions("quorum"))
        self.replica.restore(data)
        assert self.replica.snapshot() == data

    # -- what must always hold

    @invariant()
    def books_balance(self) -> None:
        self.machine.check_invariants()
        view = self.machine.overview()
        counters = view["counters"]
        assert view["unacked"] == len(self.held)
        pending = counters["dl_out"] - counters["dl_confirmed"] - counters["dl_lost"]
        if self.machine.options.at_least_once:
            assert view["dl_pending"] == pending
        assert view == self.replica.overview()

    @invariant()
    def nobody_waits_beside_ready_messages(self) -> None:
        view = self.machine.overview()
        if view["ready"] == 0 or self.machine.options.single_active_consumer:
            return
        for row in self.machine.consumer_rows():
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
        here = view["ready"] + view["unacked"] + view["dl_pending"]
        assert bool(ranges) == bool(here)


TestQueueAgainstModel = QueueAgainstModel.TestCase
TestQueueAgainstModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
