"""How long a start takes with a deep quorum queue on disk: brokerd beside RabbitMQ.

    python -m bench.recovery --messages 1000000 --rounds 3

Per round and broker: three members on loopback, a quorum queue of three, messages of 1 KiB through
AMQP with confirms.  Then kill -9 of all three and their start: how long until every member
serves clients, and until the first message is delivered.  Then the same with one member alone,
while the others go on.  Afterwards all messages must still be there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import load_programs, processes
from bench.processes import BenchError, Cluster
from bench.rows import new_queue
from bench.run import CLUSTERS, say

START_TIMEOUT_S = 600
#: A broker that counts its messages before it has recovered them all is asked again.
POLL_S = 0.1

#: Key, and title in the table.
FIGURES = {
    "all_ready_s": "all members killed: every member ready",
    "all_first_s": "all members killed: first message delivered",
    "one_ready_s": "one member killed: it is ready",
    "one_first_s": "one member killed: first message delivered through it",
    "rss_mib": "memory of the three members afterwards, MiB",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--in-flight", type=int, default=1_000)
    parser.add_argument("--per-write", type=int, default=0, help="1: few messages per log entry")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=sorted(CLUSTERS))
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def until(what: str, check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not check():
        if time.monotonic() > deadline:
            raise BenchError(f"not within {START_TIMEOUT_S} s: {what}")
        time.sleep(POLL_S)


def delivers(port: int, queue: str) -> bool:
    """Whether a consumer at this member gets a message (which goes back when it leaves)."""
    try:
        load_programs.run_amqpload(
            "consume", port, queue=queue, count=1, prefetch=1, no_declare=True, timeout=5
        )
    except BenchError:
        return False
    return True


def restart(cluster: Cluster, members: list[int], queue: str) -> tuple[float, float]:
    """Kill these members and start them; return the seconds to ready and to a first delivery."""
    for number in members:
        cluster.kill(number)
    began = time.monotonic()
    for number in members:
        cluster.start_again(number)
    until("the members are ready", lambda: all(cluster.is_ready(n) for n in members))
    ready_s = time.monotonic() - began
    port = cluster.amqp_ports[members[-1]]
    until("a message is delivered", lambda: delivers(port, queue))
    return ready_s, time.monotonic() - began


def measure(side: str, args: argparse.Namespace) -> tuple[str, dict[str, float]]:
    """One broker's turn: its title, and its figures."""
    cluster = CLUSTERS[side]()
    cluster.start()
    try:
        queue = new_queue()
        filled = load_programs.run_amqpload(
            "publish",
            cluster.amqp_ports[0],
            queue=queue,
            count=args.messages,
            in_flight=args.in_flight,
            per_write=args.per_write,
        )
        say(f"{cluster.title}: {args.messages:,} messages in, {filled['rate']:,.0f} per second")
        everybody = list(range(len(cluster.amqp_ports)))
        figures: dict[str, float] = {}
        for key, members in (("all", everybody), ("one", everybody[-1:])):
            ready_s, first_s = restart(cluster, members, queue)
            figures[f"{key}_ready_s"], figures[f"{key}_first_s"] = ready_s, first_s
            say(f"{cluster.title}: {key}: ready {ready_s:.1f} s, first message {first_s:.1f} s")
        figures["rss_mib"] = processes.resident_mib(cluster.pids())
        left = args.messages - 2
        got = load_programs.run_amqpload(
            "consume", cluster.amqp_ports[0], queue=queue, count=left, no_declare=True
        )
        say(f"{cluster.title}: all {left:,} messages are there, {got['rate']:,.0f} per second")
    finally:
        cluster.stop()
    return cluster.title, figures


def table(found: dict[str, list[dict[str, float]]], titles: dict[str, str]) -> str:
    sides = list(found)
    lines = [
        "| | " + " | ".join(titles[side] for side in sides) + " |",
        "|---|" + "---|" * len(sides),
    ]
    for key, title in FIGURES.items():
        cells = [statistics.median(row[key] for row in found[side]) for side in sides]
        lines.append(f"| {title} | " + " | ".join(f"{cell:,.1f}" for cell in cells) + " |")
    return "\n".join(lines)


def main() -> int:
    args = arguments()
    sides = [args.only] if args.only else sorted(CLUSTERS)
    found: dict[str, list[dict[str, float]]] = {}
    titles: dict[str, str] = {}
    load_programs.amqpload()
    try:
        for number in range(args.rounds):
            for side in sides if number % 2 == 0 else sides[::-1]:
                titles[side], figures = measure(side, args)
                found.setdefault(side, []).append(figures)
                print(json.dumps({"side": side, **figures}), file=sys.stderr, flush=True)
    except BenchError as error:
        say("\n".join([str(error), *getattr(error, "__notes__", [])]))
        return 1
    text = (
        f"{args.messages:,} messages of 1 KiB, {args.in_flight:,} in flight, seconds, medians of "
        f"{args.rounds} (`python -m bench.recovery {' '.join(sys.argv[1:])}`)\n\n"
        f"{table(found, titles)}\n"
    )
    print(text)
    if args.out:
        args.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
