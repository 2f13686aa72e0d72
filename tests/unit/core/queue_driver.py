"""Drives a queue machine in tests: numbers the log, moves the clock, checks after each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from brokerd.core import annotations
from brokerd.core.machine import Outcome
from brokerd.core.message import Content, Range
from brokerd.core.queue import effects, enqueue_commands, queue_commands
from brokerd.core.queue.certificates import NO_DETAILS, Client, Details
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.queue.queue_commands import Kind, ReturnCause, Written
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions

E = TypeVar("E")


@dataclass(slots=True)
class StepMeta:
    """A command's circumstances."""

    index: int
    term: int
    now_ms: int


def consumer(
    tag: str = "c", channel: int = 1, node: str = "n1", incarnation: int = 7
) -> ConsumerId:
    return ConsumerId(node, incarnation, channel, tag)


def content(body: bytes = b"x", **fields: Any) -> Content:
    known = annotations.encode(annotations.Annotations(**fields)) if fields else b""
    return (("ex", "rk"), b"\x00\x00", body, known)


def numbers(runs: Sequence[Run]) -> list[int]:
    return [n for run in runs for n in range(run.first, run.first + run.length)]


class QueueDriver:
    """One machine, its log and its clock."""

    def __init__(self, **options: Any) -> None:
        self.options = QueueOptions(**options)
        self.machine = QueueMachine(self.options)
        self.index = 0
        self.term = 1
        self.now_ms = 1_000
        self.log: list[tuple[StepMeta, bytes]] = []
        self.sequences: dict[int, int] = {}

    def send(self, command: bytes) -> Outcome:
        self.index += 1
        meta = StepMeta(self.index, self.term, self.now_ms)
        self.log.append((meta, command))
        outcome = self.machine.apply(meta, command)
        self.machine.check_invariants()
        return outcome

    def reply(self, command: bytes) -> dict[str, Any]:
        return queue_commands.decode_reply(self.send(command).reply)

    def publish(self, *contents: Content | bytes, channel: int = 50) -> Outcome:
        """Send a batch of the publishing channel, with its next sequence numbers."""
        batch = [c if isinstance(c, tuple) else content(c) for c in contents]
        first = self.sequences.get(channel, 1)
        self.sequences[channel] = first + len(batch)
        return self.send(enqueue_commands.encode_enqueue("n1", 7, channel, first, batch))

    def fill(self, count: int) -> Outcome:
        return self.publish(*[b"x"] * count)

    def accepted(self, *contents: Content | bytes) -> int:
        return enqueue_commands.decode_enqueue_reply(self.publish(*contents).reply)[1]

    def consume(
        self,
        tag: str = "c",
        prefetch: int = 0,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        priority: int = 0,
        channel: int = 1,
        node: str = "n1",
        incarnation: int = 7,
        credit: int | None = None,
        drains: bool = False,
        client: Client | None = None,
    ) -> Outcome:
        who = consumer(tag, channel, node, incarnation)
        return self.send(
            queue_commands.encode_checkout(
                Checkout(
                    who,
                    prefetch,
                    no_ack,
                    exclusive,
                    priority,
                    "guest",
                    credit=credit,
                    drains=drains,
                    client=client,
                )
            )
        )

    def settle(self, *ranges: Range, who: ConsumerId | None = None) -> Outcome:
        return self.send(queue_commands.encode_ranges(Kind.SETTLE, who or consumer(), ranges))

    def requeue(
        self,
        *ranges: Range,
        who: ConsumerId | None = None,
        cause: ReturnCause = ReturnCause.NACK,
        details: Details = NO_DETAILS,
    ) -> Outcome:
        who = who or consumer()
        return self.send(queue_commands.encode_ranges(Kind.RETURN, who, ranges, cause, details))

    def discard(
        self,
        *ranges: Range,
        who: ConsumerId | None = None,
        cause: ReturnCause = ReturnCause.NACK,
        details: Details = NO_DETAILS,
    ) -> Outcome:
        who = who or consumer()
        return self.send(queue_commands.encode_ranges(Kind.DISCARD, who, ranges, cause, details))

    def get(self, *, no_ack: bool = False, channel: int = 1) -> dict[str, Any]:
        return self.reply(queue_commands.encode_get(consumer("", channel), no_ack))

    def tick(self, after_ms: int = 0) -> Outcome:
        self.now_ms += after_ms
        return self.send(self.machine.tick_command())

    def configure(self, **options: Any) -> Outcome:
        return self.send(queue_commands.encode_update_options(QueueOptions(**options)))

    def channel_down(self, channel: int = 1, written: Written | None = None) -> Outcome:
        return self.send(queue_commands.encode_channel_down("n1", 7, channel, written))

    @property
    def ready(self) -> int:
        return int(self.machine.overview()["ready"])

    @property
    def unacked(self) -> int:
        return int(self.machine.overview()["unacked"])

    def count(self, name: str) -> int:
        return int(self.machine.overview()["counters"][name])


def only(outcome: Outcome, kind: type[E]) -> E:
    """Return the one effect of this kind."""
    found = [effect for effect in outcome.effects if isinstance(effect, kind)]
    assert len(found) == 1, outcome.effects
    return found[0]


def delivered(outcome: Outcome) -> dict[str, list[int]]:
    """Return the message numbers that each consumer tag got."""
    return {
        effect.consumer.tag: numbers(effect.runs)
        for effect in outcome.effects
        if isinstance(effect, effects.Deliver)
    }


def dead(outcome: Outcome) -> list[tuple[str, list[int]]]:
    """Return (reason, numbers) of each DeadLetter effect."""
    return [
        (effect.reason, numbers(effect.runs))
        for effect in outcome.effects
        if isinstance(effect, effects.DeadLetter)
    ]


def check_total(good: bytes) -> None:
    """The machine is total: it answers each cut of a command with a refusal, and each flipped bit,
    which may leave a valid command, but never raises or half-applies.
    """
    for size in range(len(good)):
        answer = QueueDriver().send(good[:size]).reply
        assert queue_commands.decode_reply(answer)["refused"] == 400
    for at in range(len(good)):
        for bit in range(8):
            q = QueueDriver()
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            assert q.send(bytes(bad)).reply
            q.machine.check_invariants()
