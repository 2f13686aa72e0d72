"""What each feature costs per message in the pure core, and that unused ones cost nothing.

One row per feature: nanoseconds per message for enqueue, delivery and settlement of a queue that
has the feature, beside the same queue without it; then routing by exchange type, and the dead
letter's way.  Single-threaded CPU time, medians of ROUNDS; no log, network or frames.

Run: .venv/bin/python -m bench.micro_features [--messages N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.micro_router import Topology
from brokerd.core import annotations as message_annotations
from brokerd.core.annotations import Annotations, Death
from brokerd.core.catalog import catalog_commands
from brokerd.core.message import Content
from brokerd.core.queue import deaths, enqueue_commands, queue_commands
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.effects import ConsumerId, Deliver
from brokerd.core.queue.queue_commands import Kind, ReturnCause
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from brokerd.raft.machine import Meta

BATCH = 200
ROUNDS = 5
BODY = b"x" * 1024
WHO = ConsumerId("n1", 1, 1, "c")
QUORUM: dict[str, Any] = {"queue_type": "quorum", "delivery_limit": 20}


@dataclass(slots=True)
class Feature:
    """A queue's options and what is special about its messages."""

    name: str
    options: dict[str, Any]
    kept: Annotations | None = None
    #: How a delivery ends: settle, return (then settle) or discard.
    ends: str = "settle"


FEATURES = (
    Feature("classic, nothing special", {}),
    Feature("quorum, nothing special", QUORUM),
    Feature("quorum, consumer timeout (the default)", QUORUM | {"consumer_timeout_ms": 1_800_000}),
    Feature("queue TTL", QUORUM | {"message_ttl_ms": 60_000}),
    Feature("TTL of each message", QUORUM, Annotations(ttl_ms=60_000)),
    Feature("priorities, classic", {"max_priority": 9}, Annotations(priority=5)),
    Feature("priorities, quorum", QUORUM | {"max_priority": 31}, Annotations(priority=5)),
    Feature("length limit, drop-head", QUORUM | {"max_length": 1_000_000}),
    Feature(
        "length limit, reject-publish",
        QUORUM | {"max_length": 1_000_000, "overflow": "reject-publish"},
    ),
    Feature("length limit in bytes", QUORUM | {"max_length_bytes": 1 << 40}),
    Feature("dead letter exchange, unused", QUORUM | {"dead_letter_exchange": "dlx"}),
    Feature(
        "dead letter exchange, all rejected",
        QUORUM | {"dead_letter_exchange": "dlx"},
        ends="discard",
    ),
    Feature("delivery limit, each returned once", QUORUM, ends="return"),
    Feature(
        "delayed retry, unused",
        QUORUM | {"delayed_retry": "all", "delayed_retry_min_ms": 10, "delayed_retry_max_ms": 10},
    ),
    Feature("alternate exchange of the queue, unused", QUORUM | {"alternate_exchange": "alt"}),
    Feature("single active consumer", QUORUM | {"single_active_consumer": True}),
)


def batches(messages: int, kept: Annotations | None) -> list[bytes]:
    """Encode the enqueue commands of one publishing channel."""
    raw = b"" if kept is None else message_annotations.encode(kept)
    contents: list[Content] = [(("", "q"), b"\x10\x00\x02", BODY, raw)] * BATCH
    return [
        enqueue_commands.encode_enqueue("n1", 1, 9, number + 1, contents)
        for number in range(0, messages, BATCH)
    ]


def through(feature: Feature, messages: int) -> float:
    """Return ns per message for a queue with this feature, batch by batch."""
    machine = QueueMachine(QueueOptions(**feature.options))
    checkout = Checkout(WHO, 0, False, False, 0, "u")
    machine.apply(Meta(1, 1, 1), queue_commands.encode_checkout(checkout))
    index, spent = 1, 0
    for command in batches(messages, feature.kept):
        work = [command]
        ends = feature.ends
        while work:
            index += 1
            started = time.process_time_ns()
            effects = machine.apply(Meta(index, 1, index), work.pop()).effects
            spent += time.process_time_ns() - started
            for effect in effects:
                if isinstance(effect, Deliver):
                    work.append(_end(ends, effect))
                    ends = "settle"
    assert machine.overview()["unacked"] == 0
    return spent / messages


def _end(how: str, effect: Deliver) -> bytes:
    ranges = [(run.first, run.first + run.length) for run in effect.runs]
    kinds = {"settle": Kind.SETTLE, "return": Kind.RETURN, "discard": Kind.DISCARD}
    cause = 0 if how == "settle" else ReturnCause.REJECT
    return queue_commands.encode_ranges(kinds[how], effect.consumer, ranges, cause)


def routing(exchange_type: str, bindings: int) -> Callable[[], object]:
    """Return a look-up that the router answers anew each time (headers) or from its cache."""
    topology = Topology("topic" if exchange_type == "topic" else "direct", bindings)
    if exchange_type != "headers":
        key = f"region.{bindings - 1}.order"
        return lambda: topology.router.route("/", "x", key)
    topology._put("exchange", "h", {"type": "headers"})
    for number in range(bindings):
        arguments = {"x-match": "all", "region": number, "kind": "order"}
        spec = {"source": "h", "destination": f"q{number % 100}", "arguments": arguments}
        topology._do(catalog_commands.put("binding", "/", "", spec, cause="amqp:u", declare=True))
    headers = {"region": bindings - 1, "kind": "order"}
    return lambda: topology.router.route("/", "h", "", headers)


def death() -> object:
    """Record one death of a message that has died before."""
    before = Annotations(
        deaths=[Death("q", "rejected", 1, 1, "", ["k"])],
        first_death=("rejected", "q", ""),
    )
    return deaths.record(
        before, queue="p", reason="expired", time_s=1, exchange="dlx", routing_keys=["k"]
    )


def per_call_ns(call: Callable[[], object], calls: int) -> float:
    started = time.process_time_ns()
    for _ in range(calls):
        call()
    return (time.process_time_ns() - started) / calls


def main() -> None:
    """Print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    messages: int = parser.parse_args().messages // BATCH * BATCH

    def report(name: str, run: Callable[[], float]) -> None:
        print(f"{name:<56} {statistics.median(run() for _ in range(ROUNDS)):9.1f} ns/message")

    for feature in FEATURES:
        report(feature.name, partial(through, feature, messages))
    for exchange_type, bindings in (
        ("direct", 100),
        ("topic", 100),
        ("topic", 100_000),
        ("headers", 10),
        ("headers", 1000),
    ):
        call = routing(exchange_type, bindings)
        calls = max(200, 200_000 // bindings) if exchange_type == "headers" else 100_000
        name = f"route, {exchange_type}, {bindings} bindings"
        report(name, partial(per_call_ns, call, calls))
    own = Annotations(ttl_ms=60_000, priority=5)
    for form, packed in (("JSON", False), ("packed", True)):
        encode = partial(message_annotations.encode, own, packed=packed)
        report(f"own TTL and priority, written as {form}", partial(per_call_ns, encode, 100_000))
        decode = partial(message_annotations.decode, encode())
        report(f"own TTL and priority, read from {form}", partial(per_call_ns, decode, 100_000))
    report("dead letter: history of one more death", partial(per_call_ns, death, 20_000))


if __name__ == "__main__":
    main()
