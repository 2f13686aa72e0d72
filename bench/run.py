"""brokerd and RabbitMQ side by side: alternating rounds, the same programs, medians and ratios.

    python -m bench.run [--rounds N] [--quick] [--rows KEY,…] [--only brokerd|rabbitmq] [--out FILE]

Per round each broker is started as three members on loopback, runs all rows, and is ended; the two
take turns in going first, so that neither always meets the warmer machine. Quorum queues of three
with 1 KiB messages unless the row says otherwise. Prints a Markdown table; --out writes it as well.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import load_programs, processes
from bench.brokerd_nodes import BrokerdCluster
from bench.processes import BenchError, Cluster
from bench.rabbitmq import RabbitCluster
from bench.rows import ROWS, Row, new_queue

CLUSTERS: dict[str, Callable[[], Cluster]] = {"brokerd": BrokerdCluster, "rabbitmq": RabbitCluster}
#: A quick run sends this part of the messages and is good for a look only.
QUICK_SCALE = 0.2
WARM_UP_MESSAGES = 20_000
#: {side: {row key: [figure per round]}}
Figures = dict[str, dict[str, list[float]]]


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a fifth of the messages")
    parser.add_argument("--rows", default="", help="keys, comma-separated: " + ", ".join(keys()))
    parser.add_argument("--only", choices=sorted(CLUSTERS))
    parser.add_argument("--no-perftest", action="store_true")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    args = parser.parse_args()
    unknown = set(filter(None, args.rows.split(","))) - set(keys())
    if unknown or args.rounds < 1:
        parser.error(
            f"no such row: {', '.join(sorted(unknown))}" if unknown else "--rounds: 1 or more"
        )
    return args


def keys() -> list[str]:
    return [row.key for row in ROWS]


def chosen_rows(args: argparse.Namespace) -> list[Row]:
    wanted = args.rows.split(",") if args.rows else keys()
    return [
        row for row in ROWS if row.key in wanted and not (args.no_perftest and row.uses_perftest)
    ]


def measure_side(side: str, rows: list[Row], scale: float, figures: Figures) -> str:
    """One broker's turn; returns its title. A row that fails is reported and left empty."""
    cluster = CLUSTERS[side]()
    say(f"{cluster.title}: starting three members")
    started = time.monotonic()
    cluster.start()
    try:
        say(f"{cluster.title}: ready in {time.monotonic() - started:.1f} s; warming up")
        queue, port = new_queue(), cluster.amqp_ports[0]
        load_programs.run_amqpload("publish", port, queue=queue, count=WARM_UP_MESSAGES)
        load_programs.run_amqpload("consume", port, queue=queue, count=WARM_UP_MESSAGES)
        load_programs.run_amqpload("delete", port, queue=queue)
        for row in rows:
            measure_row(side, cluster, row, scale, figures)
    finally:
        cluster.stop()
    return cluster.title


def measure_row(side: str, cluster: Cluster, row: Row, scale: float, figures: Figures) -> None:
    cpu = processes.cpu_seconds(cluster.pids())
    try:
        figure = row.measure(cluster.amqp_ports, scale)
    except BenchError as error:
        say(f"{cluster.title}: {row.key}: FAILED: {error}")
        return
    figures.setdefault(side, {}).setdefault(row.key, []).append(figure)
    pids = cluster.pids()
    cost = (
        f"cpu {processes.cpu_seconds(pids) - cpu:.1f} s, rss {processes.resident_mib(pids):.0f} MiB"
    )
    say(f"{cluster.title}: {row.key}: {figure:,.0f} {row.unit} ({cost})")


def cell(values: list[float]) -> str:
    if not values:
        return "-"
    middle = f"**{statistics.median(values):,.0f}**"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.0f}-{max(values):,.0f})"


def table(rows: list[Row], titles: dict[str, str], figures: Figures) -> str:
    left, right = titles.get("brokerd", "brokerd"), titles.get("rabbitmq", "RabbitMQ")
    lines = [
        f"| work | unit | {left} | {right} | ratio | target |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours = figures.get("brokerd", {}).get(row.key, [])
        theirs = figures.get("rabbitmq", {}).get(row.key, [])
        ratio = "-"
        if ours and theirs:
            value = statistics.median(ours) / statistics.median(theirs)
            ratio = f"{value:.2f} {'met' if row.is_met_by(value) else 'missed'}"
        aim = f"{'≤' if row.lower_is_better else '≥'} {row.target:g}"
        lines.append(
            f"| {row.title} | {row.unit} | {cell(ours)} | {cell(theirs)} | {ratio} | {aim} |"
        )
    return "\n".join(lines)


def heading(args: argparse.Namespace) -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"Medians of {args.rounds} alternating rounds (lowest-highest) of `python -m bench.run "
        f"{' '.join(sys.argv[1:])}` on {os.cpu_count()} cores, {memory_gib:.0f} GiB, "
        f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}, "
        f"{time.strftime('%Y-%m-%d')}. Three members on loopback, 1 KiB messages, quorum queue of "
        "three unless the row says otherwise; publishes with confirms but for the classic row."
    )


def main() -> int:
    args = arguments()
    rows, scale = chosen_rows(args), QUICK_SCALE if args.quick else 1.0
    sides = [args.only] if args.only else sorted(CLUSTERS)
    figures: Figures = {}
    titles: dict[str, str] = {}
    try:
        load_programs.amqpload()
        if any(row.uses_perftest for row in rows):
            load_programs.perftest_jars()
        for number in range(args.rounds):
            say(f"round {number + 1} of {args.rounds}")
            for side in sides if number % 2 == 0 else reversed(sides):
                titles[side] = measure_side(side, rows, scale, figures)
    except BenchError as error:
        say("\n".join([str(error), *getattr(error, "__notes__", [])]))
        say("ended early: the table holds what was measured until then")
    text = f"{heading(args)}\n\n{table(rows, titles, figures)}\n"
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text)
    complete = all(
        len(figures.get(s, {}).get(r.key, [])) == args.rounds for s in sides for r in rows
    )
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
