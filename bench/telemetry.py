"""What counting costs the members: with telemetry and without, side by side, many queues beside it.

    python -m bench.telemetry [--rounds N] [--queues N]

Two clusters of three stand at the same time, one of them with BROKERD_TELEMETRY_ENABLED=false, each
with N idle quorum queues.  First both are watched while no client uses them, over three intervals
of telemetry; then a publisher (1,000 in flight, confirms, 1 KiB, a quorum queue of three) is
measured at one and the other in turns, so that a machine that becomes slower does so for both.
Prints a Markdown table; some four minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from bench import load_programs, processes
from bench.brokerd_nodes import BrokerdCluster
from bench.definitions import import_definitions, queue_definitions
from bench.rows import drop, new_queue

#: What the issue asks for at the most: a share of the rate, percent of a core, MB a member.
TARGETS = (0.03, 1.0, 20.0)
MEMBERS = 3
INTERVAL_S = 10.0
#: Queues that are new have told of themselves by then.
SETTLE_S = 2.5 * INTERVAL_S
IDLE_S = 3 * INTERVAL_S
MESSAGES = 400_000
WARM_UP_MESSAGES = 50_000


class Side:
    """One of the two clusters, and what was measured there."""

    def __init__(self, is_counting: bool) -> None:
        self.title = "with" if is_counting else "without"
        enabled = str(is_counting).lower()
        self.cluster = BrokerdCluster(MEMBERS, environment={"BROKERD_TELEMETRY_ENABLED": enabled})
        self.rates: list[float] = []
        self.cpu_us: list[float] = []
        self.idle_percent = 0.0
        self.mib = 0.0

    def cpu_s(self) -> float:
        """CPU of all members so far."""
        return processes.cpu_seconds(self.cluster.pids())

    def publish(self, count: int) -> None:
        """Publish once; what was measured is kept."""
        queue, before = new_queue(), self.cpu_s()
        port = self.cluster.amqp_ports[0]
        result = load_programs.run_amqpload(
            "publish", port, queue=queue, count=count, in_flight=1000, size=1024
        )
        self.rates.append(result["rate"])
        self.cpu_us.append((self.cpu_s() - before) * 1e6 / count)
        drop(port, queue)


def say(text: str) -> None:
    print(f"telemetry: {text}", file=sys.stderr, flush=True)


def measure(sides: list[Side], rounds: int, queues: int) -> None:
    for side in sides:
        side.cluster.start()
        with queue_definitions("quorum", range(queues)) as file:
            import_definitions(side.cluster, file)
        say(f"{side.title}: {queues:,} queues")
    time.sleep(SETTLE_S)
    before = [side.cpu_s() for side in sides]
    time.sleep(IDLE_S)
    for side, begin_s in zip(sides, before, strict=True):
        side.idle_percent = 100 * (side.cpu_s() - begin_s) / IDLE_S
        side.mib = processes.resident_mib(side.cluster.pids()) / MEMBERS
        say(f"{side.title}: idle {side.idle_percent:.1f} % of a core, {side.mib:.0f} MiB a member")
        side.publish(WARM_UP_MESSAGES)
        side.rates.clear()
        side.cpu_us.clear()
    for number in range(rounds):
        # The side that comes first has the cooler machine.
        for side in sides if number % 2 else sides[::-1]:
            side.publish(MESSAGES)
            say(f"{side.title}: {side.rates[-1]:,.0f}/s, {side.cpu_us[-1]:.2f} µs")


def table(counting: Side, silent: Side) -> str:
    """Return the figures of both, and what counting costs."""
    pairs = zip(counting.rates, silent.rates, strict=True)
    change = statistics.median(own / other for own, other in pairs) - 1
    idle = counting.idle_percent - silent.idle_percent
    megabytes = (counting.mib - silent.mib) * 2**20 / 1e6
    rows = [
        ("publishes a second, median", *(
            f"{statistics.median(side.rates):,.0f} ({min(side.rates):,.0f}-{max(side.rates):,.0f})"
            for side in (counting, silent)
        ), f"{change:+.1%} in the median of pairs", f"-{TARGETS[0]:.0%}"),
        ("CPU of all members, µs a message, median", *(
            f"{statistics.median(side.cpu_us):.2f}" for side in (counting, silent)
        ), "", ""),
        ("idle, all members, % of a core", f"{counting.idle_percent:.1f}",
         f"{silent.idle_percent:.1f}", f"{idle:.1f}", f"{TARGETS[1]:.0f}"),
        ("resident memory of a member, MiB", f"{counting.mib:.0f}", f"{silent.mib:.0f}",
         f"{megabytes:.1f} MB", f"{TARGETS[2]:.0f} MB"),
    ]  # fmt: skip
    heads = ("", "with telemetry", "without", "what it costs", "at most")
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--queues", type=int, default=10_000)
    args = parser.parse_args()
    sides = [Side(True), Side(False)]
    try:
        measure(sides, args.rounds, args.queues)
    finally:
        for side in sides:
            side.cluster.stop()
    print(f"{args.queues:,} idle quorum queues, {sides[0].cluster.title}\n\n{table(*sides)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
