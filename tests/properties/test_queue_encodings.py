"""One history of a queue, written down in two ways, ends the same (metamorphic).

A member may send what its channels do in many commands or in few: a batch whole or message by
message, the batches of several channels joined (ADR 62), settlements joined (ADR 65), a get with
the settlements before it (ADR 23).  No client can tell the difference.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.core.machine import Outcome
from brokerd.core.message import Content
from brokerd.core.queue import (
    effects,
    enqueue_commands,
    joined_settlements,
    queue_commands,
    settling_gets,
)
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.effects import Run
from brokerd.core.queue.queue_commands import Kind, ReturnCause
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.queue_driver import StepMeta, consumer, content

PUBLISHERS = (1, 2, 3)
#: One consumer: which of several gets a message depends on how many come at once.
CONSUMER = 1
#: Channels that get: they hold under the empty tag.
GETTERS = (4, 5)
HOLDERS = (CONSUMER, *GETTERS)
EXAMPLES = int(os.environ.get("ENCODING_EXAMPLES", "1500"))
OPTIONS: list[dict[str, Any]] = [
    {},
    {"queue_type": "quorum", "delivery_limit": 2, "dead_letter_exchange": "dlx"},
    {"max_length": 5, "overflow": "drop-head", "dead_letter_exchange": "dlx"},
    {"max_length": 5, "overflow": "reject-publish"},
    {"max_length": 5, "overflow": "reject-publish-dlx", "dead_letter_exchange": "dlx"},
    {"queue_type": "quorum", "max_length": 6, "overflow": "drop-head"},
    {"queue_type": "quorum", "max_length": 5, "overflow": "reject-publish"},
    {"max_priority": 3},
    {"message_ttl_ms": 30, "dead_letter_exchange": "dlx"},
    {"single_active_consumer": True},
    {
        "queue_type": "quorum",
        "delivery_count_mode": "4.3",
        "delivery_limit": 3,
        "delayed_retry": "all",
        "delayed_retry_min_ms": 20,
        "delayed_retry_max_ms": 50,
    },
    {
        "queue_type": "quorum",
        "at_least_once": True,
        "overflow": "reject-publish",
        "dead_letter_exchange": "dlx",
        "delivery_limit": 1,
    },
]


@dataclass(frozen=True, slots=True)
class Publish:
    """One channel's batch: sizes of bodies in bytes, priority."""

    channel: int
    sizes: tuple[int, ...]
    priority: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The oldest `count` that a channel holds."""

    channel: int
    count: int


@dataclass(frozen=True, slots=True)
class Return:
    """The oldest that a channel holds comes back, or is rejected."""

    channel: int
    cause: ReturnCause
    is_discarded: bool


@dataclass(frozen=True, slots=True)
class Get:
    """A get of a channel, which acknowledges first what it has got, if `settles`."""

    channel: int
    settles: bool


@dataclass(frozen=True, slots=True)
class Pass:
    """Time in milliseconds."""

    ms: int


Operation = Publish | Acknowledge | Return | Get | Pass

OPERATIONS = st.one_of(
    st.builds(
        Publish,
        st.sampled_from(PUBLISHERS),
        st.lists(st.integers(0, 9), min_size=1, max_size=5).map(tuple),
        st.integers(0, 4),
    ),
    st.builds(Acknowledge, st.sampled_from(HOLDERS), st.integers(1, 4)),
    st.builds(Return, st.sampled_from(HOLDERS), st.sampled_from(list(ReturnCause)), st.booleans()),
    st.builds(Get, st.sampled_from(GETTERS), st.booleans()),
    st.builds(Pass, st.integers(0, 40)),
)


@dataclass
class Told:
    """What clients and exchanges see of one way of writing the history down."""

    #: channel -> for each of its messages: was it accepted?
    confirms: dict[int, list[bool]] = field(default_factory=dict)
    #: channel -> what was delivered to it: (number, delivery count), in order.
    deliveries: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    #: What left for an exchange, in order: (reason, number).
    left: list[tuple[str, int]] = field(default_factory=list)


class Way:
    """A queue, and one way of telling it what happens."""

    def __init__(self, options: QueueOptions, prefetch: int | None, *, joins: bool) -> None:
        """prefetch: of the consumer; None: there is none.

        joins: in as few commands as a turn makes; else in as many as there can be.
        """
        self.machine = QueueMachine(options)
        self.joins = joins
        self.told = Told()
        self._held: dict[int, list[int]] = {}
        self._sequences: dict[int, int] = {}
        self._index = 0
        self._now_ms = 1_000
        # Of what comes at once to a queue with priorities, a consumer gets the highest first.
        if prefetch is not None and not options.max_priority:
            checkout = Checkout(_holder(CONSUMER), prefetch, False, False, 0, "u")
            self._send(queue_commands.encode_checkout(checkout))

    # -- the history

    def play(self, operations: Sequence[Operation]) -> None:
        """Do it all.  Neighbours of one kind go together where this way joins."""
        for run in _runs(operations):
            match run[0]:
                case Publish():
                    self._publish([each for each in run if isinstance(each, Publish)])
                case Acknowledge():
                    self._acknowledge([each for each in run if isinstance(each, Acknowledge)])
                case Return() as returned:
                    self._return(returned)
                case Get() as get:
                    self._get(get)
                case Pass() as passed:
                    self._now_ms += passed.ms
                    self._send(queue_commands.encode_tick())

    def _publish(self, batches: list[Publish]) -> None:
        each = [(b.channel, [_content(size, b.priority) for size in b.sizes]) for b in batches]
        if not self.joins:
            for channel, contents in each:
                for one in contents:
                    self._enqueue(channel, [one])
        elif len({channel for channel, _ in each}) == len(each) > 1:
            self._enqueue_joined(each)
        else:
            for channel, contents in each:
                self._enqueue(channel, contents)

    def _enqueue(self, channel: int, contents: list[Content]) -> None:
        first = self._sequences.get(channel, 1)
        self._sequences[channel] = first + len(contents)
        command = enqueue_commands.encode_enqueue("n1", 7, channel, first, contents)
        reply = enqueue_commands.decode_enqueue_reply(self._send(command).reply)
        self._confirm(channel, len(contents), reply[1])

    def _enqueue_joined(self, each: list[tuple[int, list[Content]]]) -> None:
        shares = [(channel, self._sequences.get(channel, 1), len(batch)) for channel, batch in each]
        for channel, first, count in shares:
            self._sequences[channel] = first + count
        flat = [one for _, batch in each for one in batch]
        reply = self._send(enqueue_commands.encode_joined("n1", 7, shares, flat)).reply
        status, accepted = enqueue_commands.decode_joined_reply(reply, len(shares))
        assert status == enqueue_commands.EnqueueStatus.OK
        for (channel, _, count), taken in zip(shares, accepted, strict=True):
            self._confirm(channel, count, taken)

    def _confirm(self, channel: int, count: int, accepted: int) -> None:
        answers = [place < accepted for place in range(count)]
        self.told.confirms.setdefault(channel, []).extend(answers)

    def _acknowledge(self, settlements: list[Acknowledge]) -> None:
        parts = []
        for each in settlements:
            held = self._held.get(each.channel, [])
            now, self._held[each.channel] = held[: each.count], held[each.count :]
            ranges = [(number, number + 1) for number in sorted(now)]
            if ranges:
                who = _holder(each.channel)
                parts.append(queue_commands.encode_ranges(Kind.SETTLE, who, ranges))
        if self.joins and len(parts) > 1:
            self._send(joined_settlements.encode(parts))
        else:
            for part in parts:
                self._send(part)

    def _return(self, returned: Return) -> None:
        held = self._held.get(returned.channel, [])
        if held:
            number = held.pop(0)
            kind = Kind.DISCARD if returned.is_discarded else Kind.RETURN
            ranges = [(number, number + 1)]
            who = _holder(returned.channel)
            self._send(queue_commands.encode_ranges(kind, who, ranges, returned.cause))

    def _get(self, get: Get) -> None:
        who = _holder(get.channel)
        command = queue_commands.encode_get(who, no_ack=False)
        held = self._held.get(get.channel, []) if get.settles else []
        ranges = [(number, number + 1) for number in held]
        if ranges:
            self._held[get.channel] = []
            if self.joins:
                command = settling_gets.encode(command, ranges)
            else:
                self._send(queue_commands.encode_ranges(Kind.SETTLE, who, ranges))
        reply = queue_commands.decode_reply(self._send(command).reply)
        if reply.get("run"):
            self._take(get.channel, Run(*reply["run"]))

    # -- what comes of it

    def _send(self, command: bytes) -> Outcome:
        self._index += 1
        outcome = self.machine.apply(StepMeta(self._index, 1, self._now_ms), command)
        self.machine.check_invariants()
        for effect in outcome.effects:
            match effect:
                case effects.Deliver():
                    for run in effect.runs:
                        self._take(effect.consumer.channel, run)
                case effects.DeadLetter() | effects.Reroute():
                    reason = str(getattr(effect, "reason", "rerouted"))
                    # What such a queue refuses has no numbers of its own.
                    has_numbers = self.machine.options.overflow != "reject-publish-dlx"
                    for run in effect.runs:
                        for number in range(run.first, run.first + run.length):
                            self.told.left.append((reason, number if has_numbers else -1))
        return outcome

    def _take(self, channel: int, run: Run) -> None:
        for number in range(run.first, run.first + run.length):
            self._held.setdefault(channel, []).append(number)
            self.told.deliveries.setdefault(channel, []).append((number, run.delivery_count))


def _holder(channel: int) -> effects.ConsumerId:
    return consumer("" if channel in GETTERS else "c", channel)


def _content(size: int, priority: int) -> Content:
    return content(b"x" * size, **({"priority": priority} if priority else {}))


def _runs(operations: Iterable[Operation]) -> list[list[Operation]]:
    """Neighbours of one kind that a turn joins."""
    runs: list[list[Operation]] = []
    for each in operations:
        if runs and isinstance(each, Publish | Acknowledge) and type(runs[-1][0]) is type(each):
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs


@pytest.mark.timeout(max(1200, EXAMPLES // 5))
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    options=st.sampled_from(OPTIONS),
    prefetch=st.sampled_from([None, 0, 1, 2, 5]),
    operations=st.lists(OPERATIONS, min_size=4, max_size=40),
)
def test_what_is_joined_ends_as_what_is_sent_one_by_one(
    options: dict[str, Any], prefetch: int | None, operations: list[Operation]
) -> None:
    """R-QQ-11, R-ACK-5, R-LEN-1"""
    ways = [Way(QueueOptions(**options), prefetch, joins=joins) for joins in (True, False)]
    for way in ways:
        way.play(operations)
    joined, single = ways
    assert joined.told.confirms == single.told.confirms
    assert joined.told.deliveries == single.told.deliveries
    assert joined.told.left == single.told.left
    assert joined.machine.overview() == single.machine.overview()
