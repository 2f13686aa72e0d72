"""Two checkouts side by side on a busy machine: CPU and latency as ratios of neighbouring runs.

    python -m bench.pairs OLD [NEW] [--pairs N] [--only publish|get|many]

Three members of each checkout run at the same time and take turns in short loads, so both meet the
same disturbance; the median of the ratios of neighbours says what a change gained where rates say
nothing.  CPU is that of each member's threads, as the kernel counted it.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench import load_programs
from bench.brokerd_nodes import BrokerdCluster
from bench.many_rows import MANY_ROWS
from bench.profile import thread_seconds
from bench.rows import Row

WARM_UP_MESSAGES = 20_000
QUEUE = "pairs"
#: (title, options of amqpload, messages of one run).
WORKS: tuple[tuple[str, dict[str, object], int], ...] = (
    ("1,000 in flight", {}, 20_000),
    ("1,000 in flight, a write per message", {"per_write": 1}, 15_000),
    ("100 in flight", {"in_flight": 100}, 8_000),
    ("1 in flight", {"in_flight": 1}, 250),
    ("get, auto-ack, quorum", {"ack": "auto", "type": "quorum"}, 400),
    ("get and ack, quorum", {"ack": "each", "type": "quorum"}, 400),
    ("get, auto-ack, classic", {"ack": "auto", "type": "classic"}, 800),
)
#: Rows of the comparison with many clients that run here too, each for a quarter of its time.
MANY = ("publishers-1", "publishers-20", "publishers-200", "consumers-200", "rpc", "paced")
MANY_SCALE = 0.25
#: What a member does behind the publishes that a get's run begins with is over by then.
SETTLE_S = 0.3


def start(checkout: Path) -> BrokerdCluster:
    """Three members that run the code of this checkout."""
    os.chdir(checkout)
    os.environ["PYTHONPATH"] = str(checkout)
    cluster = BrokerdCluster()
    cluster.start()
    port = cluster.amqp_ports[0]
    for verb in ("publish", "consume"):
        load_programs.run_amqpload(verb, port, queue=QUEUE, count=WARM_UP_MESSAGES)
    return cluster


def run(cluster: BrokerdCluster, options: dict[str, object], count: int) -> list[float]:
    """Microseconds of CPU per message of the leader and of a follower, and the median latency (of
    gets: the mean).
    """
    port, pids = cluster.amqp_ports[0], cluster.pids()
    verb = "get" if "ack" in options else "publish"
    if verb == "get":
        filling = {"queue": QUEUE, "count": count, "type": options["type"], "in_flight": 1000}
        load_programs.run_amqpload("publish", port, **filling)
        time.sleep(SETTLE_S)
        options = {**options, "no_declare": True}
    before = [sum(thread_seconds(pid).values()) for pid in pids]
    result = load_programs.run_amqpload(verb, port, queue=QUEUE, count=count, **options)
    used = [
        (sum(thread_seconds(pid).values()) - first) * 1e6 / count
        for pid, first in zip(pids, before, strict=True)
    ]
    load_programs.run_amqpload("delete", port, queue=QUEUE)
    latency_us = result["seconds"] * 1e6 / count if verb == "get" else result["p50_us"]
    return [used[0], sum(used[1:]) / len(used[1:]), latency_us]


Figures = tuple[str, ...]
Run = Callable[[BrokerdCluster], list[float]]


def works(only: str | None) -> Iterator[tuple[str, Figures, Run]]:
    """Yield title, names of the figures and what runs it."""
    for title, options, count in WORKS:
        if only in (None, "get" if "ack" in options else "publish"):
            figures = ("CPU, leader, µs", "CPU, follower, µs", "p50, µs")
            yield title, figures, partial(run, options=options, count=count)
    for row in MANY_ROWS:
        if row.key in MANY and only in (None, "many"):
            names = {"broker_cpu_us": "CPU of all members, µs"}
            names |= {aim.figure: aim.unit for aim in row.aims}
            yield row.title, tuple(names.values()), partial(run_row, row=row, figures=tuple(names))


def run_row(cluster: BrokerdCluster, row: Row, figures: Figures) -> list[float]:
    """One run of a row of the comparison."""
    point = row.measure(cluster, MANY_SCALE)
    return [point[figure] for figure in figures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=Path.cwd())
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--only", choices=("publish", "get", "many"))
    args = parser.parse_args()
    checkouts = [args.old.resolve(), args.new.resolve()]
    clusters: list[BrokerdCluster] = []
    print("| work | figure | old | new | median of ratios |\n|---|---|---|---|---|")
    try:
        clusters += [start(checkout) for checkout in checkouts]
        for title, figures, work in works(args.only):
            found: list[list[list[float]]] = [[], []]
            for number in range(args.pairs):
                for side in (0, 1) if number % 2 else (1, 0):
                    found[side].append(work(clusters[side]))
            for place, figure in enumerate(figures):
                old, new = ([each[place] for each in side] for side in found)
                # The clock of a process counts hundredths of a second: a follower may use none.
                ratios = [after / before for before, after in zip(old, new, strict=True) if before]
                ratio = statistics.median(ratios) if ratios else math.nan
                spread = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "-"
                middles = f"{statistics.median(old):,.2f} | {statistics.median(new):,.2f}"
                print(f"| {title} | {figure} | {middles} | {ratio:.3f} ({spread}) |", flush=True)
    finally:
        for cluster in clusters:
            cluster.stop()


if __name__ == "__main__":
    main()
