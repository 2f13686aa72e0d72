"""Runs queue transcripts: a line per command, what came of it indented below.

    > publish 3 [ttl_ms=5 priority=1 size=10 channel=50]
    > consume TAG [prefetch=2 channel=1 node=n1 no_ack priority=1 exclusive]
    > settle|requeue|reject|discard|discard-rejected TAG LOW-HIGH … [channel=1 node=n1]
    > get [no_ack channel=1]   cancel TAG   channel-down 1   node-down n1   node-up n1 7
    > advance 100 (and a tick)   leader (a new term)   options name=value …   purge
    > delete [if_empty if_unused]   resume TAG LOW-HIGH …   letters 5   letters-done LOW-HIGH …
    > state

Replies are shown unless they only say ok; effects always.  Ranges are inclusive.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from brokerd.core.machine import Outcome
from brokerd.core.message import Range
from brokerd.core.queue import effects, enqueue_commands, queue_commands
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.queue.queue_commands import Kind, ReturnCause
from tests.transcripts.scenarios import Runner
from tests.unit.core.queue_driver import QueueDriver, StepMeta, consumer, content


class Transcript(Runner):
    """One queue, driven by lines."""

    def __init__(self) -> None:
        self.queue = QueueDriver()

    def step(self, line: str) -> list[str]:
        words = line.split()
        plain = [word for word in words[1:] if "=" not in word]
        options = {key: _value(text) for key, text in (w.split("=") for w in words if "=" in w)}
        outcome = _STEPS[words[0]](self, plain, options)
        return outcome if isinstance(outcome, list) else _show(outcome)

    def publish(self, words: list[str], options: dict[str, Any]) -> Outcome:
        channel = options.pop("channel", 50)
        body = b"x" * options.pop("size", 1)
        return self.queue.publish(*[content(body, **options)] * int(words[0]), channel=channel)

    def consume(self, words: list[str], options: dict[str, Any]) -> Outcome:
        flags = dict.fromkeys(words[1:], True)
        return self.queue.consume(words[0], **options, **flags)

    def settle(self, words: list[str], options: dict[str, Any]) -> Outcome:
        return self.queue.settle(*_ranges(words[1:]), who=_who(words, options))

    def requeue(self, words: list[str], options: dict[str, Any]) -> Outcome:
        return self.queue.requeue(*_ranges(words[1:]), who=_who(words, options))

    def reject(self, words: list[str], options: dict[str, Any]) -> Outcome:
        who = _who(words, options)
        return self.queue.requeue(*_ranges(words[1:]), who=who, cause=ReturnCause.REJECT)

    def discard(self, words: list[str], options: dict[str, Any]) -> Outcome:
        return self.queue.discard(*_ranges(words[1:]), who=_who(words, options))

    def discard_rejected(self, words: list[str], options: dict[str, Any]) -> Outcome:
        who = _who(words, options)
        return self.queue.discard(*_ranges(words[1:]), who=who, cause=ReturnCause.REJECT)

    def get(self, words: list[str], options: dict[str, Any]) -> Outcome:
        who = consumer("", options.get("channel", 1))
        return self.queue.send(queue_commands.encode_get(who, "no_ack" in words))

    def cancel(self, words: list[str], options: dict[str, Any]) -> Outcome:
        return self.queue.send(queue_commands.encode_cancel(_who(words, options)))

    def channel_down(self, words: list[str], options: dict[str, Any]) -> Outcome:
        return self.queue.channel_down(int(words[0]))

    def node_down(self, words: list[str], options: dict[str, Any]) -> Outcome:
        return self.queue.send(queue_commands.encode_node_down(words[0]))

    def node_up(self, words: list[str], options: dict[str, Any]) -> Outcome:
        return self.queue.send(queue_commands.encode_node_up(words[0], int(words[1])))

    def advance(self, words: list[str], options: dict[str, Any]) -> Outcome:
        return self.queue.tick(int(words[0]))

    def leader(self, words: list[str], options: dict[str, Any]) -> Outcome:
        self.queue.term += 1
        meta = StepMeta(self.queue.index, self.queue.term, self.queue.now_ms)
        return Outcome(b"", self.queue.machine.became_leader(meta))

    def options(self, words: list[str], options: dict[str, Any]) -> Outcome:
        return self.queue.configure(**options)

    def purge(self, words: list[str], options: dict[str, Any]) -> Outcome:
        return self.queue.send(queue_commands.encode_purge())

    def delete(self, words: list[str], options: dict[str, Any]) -> Outcome:
        command = queue_commands.encode_delete("if_empty" in words, "if_unused" in words, "client")
        return self.queue.send(command)

    def resume(self, words: list[str], options: dict[str, Any]) -> Outcome:
        held = _ranges(words[1:])
        return self.queue.send(queue_commands.encode_resume(_who(words, options), held))

    def letters(self, words: list[str], options: dict[str, Any]) -> Outcome:
        return self.queue.send(queue_commands.encode_dead_letters_checkout(int(words[0])))

    def letters_done(self, words: list[str], options: dict[str, Any]) -> Outcome:
        return self.queue.send(queue_commands.encode_dead_letters_settle(_ranges(words)))

    def state(self, words: list[str], options: dict[str, Any]) -> list[str]:
        view = self.queue.machine.overview()
        counted = [f"{name}={count}" for name, count in view["counters"].items() if count]
        return [
            f"ready={view['ready']} unacked={view['unacked']} dl_pending={view['dl_pending']}"
            + (f" delayed={view['delayed']}" if view["delayed"] else "")
            + f" consumers={view['consumers']} live={list(self.queue.machine.live_indexes())}",
            " ".join(counted),
        ]


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("-").isdigit() else text


def _who(words: list[str], options: dict[str, Any]) -> ConsumerId:
    return consumer(words[0], options.get("channel", 1), options.get("node", "n1"))


def _ranges(words: list[str]) -> list[Range]:
    ends = [word.partition("-") for word in words]
    return [(int(low), int(high or low) + 1) for low, _, high in ends]


def _run(run: Run) -> str:
    last = run.first + run.length - 1
    numbers = f"{run.first}-{last}" if run.length > 1 else f"{run.first}"
    counts = f" x{run.acquired_count}/{run.delivery_count}" if any(run[4:]) else ""
    return f"{numbers}@{run.entry}+{run.position}{counts}"


def _show(outcome: Outcome) -> list[str]:
    lines: list[str] = []
    reply = outcome.reply
    if reply[:1] == b"{":
        fields = queue_commands.decode_reply(reply)
        if fields != {"ok": True}:
            lines.append(json.dumps(fields))
    elif reply:
        status, accepted, expected = enqueue_commands.decode_enqueue_reply(reply)
        lines.append(f"{status.name} accepted={accepted} expected={expected}")
    return lines + [_effect(effect) for effect in outcome.effects]


def _effect(effect: Any) -> str:
    if isinstance(effect, effects.Deliver):
        return f"deliver {effect.consumer.tag}: " + ", ".join(map(_run, effect.runs))
    if isinstance(effect, effects.DeadLetter):
        where = f"{effect.exchange}/{effect.routing_key or ''}"
        return f"dead letter {effect.reason} to {where}: " + ", ".join(map(_run, effect.runs))
    if isinstance(effect, effects.Reroute):
        return f"reroute {effect.reason} to {effect.exchange}: " + ", ".join(map(_run, effect.runs))
    if isinstance(effect, effects.GivenUp):
        return "given up: " + ", ".join(map(_run, effect.runs))
    return str(effect)


_STEPS: dict[str, Callable[[Transcript, list[str], dict[str, Any]], Outcome | list[str]]] = {
    "publish": Transcript.publish,
    "consume": Transcript.consume,
    Kind.SETTLE.name.lower(): Transcript.settle,
    "requeue": Transcript.requeue,
    "reject": Transcript.reject,
    "discard": Transcript.discard,
    "discard-rejected": Transcript.discard_rejected,
    "get": Transcript.get,
    "cancel": Transcript.cancel,
    "channel-down": Transcript.channel_down,
    "node-down": Transcript.node_down,
    "node-up": Transcript.node_up,
    "advance": Transcript.advance,
    "leader": Transcript.leader,
    "options": Transcript.options,
    "purge": Transcript.purge,
    "delete": Transcript.delete,
    "resume": Transcript.resume,
    "letters": Transcript.letters,
    "letters-done": Transcript.letters_done,
    "state": Transcript.state,
}
