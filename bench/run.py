"""brokerd and RabbitMQ side by side: alternating rounds, the same programs, medians and ratios.

    python -m bench.run [--rounds N] [--quick] [--rows KEY,…] [--only brokerd|rabbitmq] [--out FILE]

A round of all rows takes about 7 minutes on a quiet machine; no single run more than 5.
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
from bench.many_rows import MANY_ROWS
from bench.processes import BenchError, Cluster
from bench.rabbitmq import RabbitCluster
from bench.rows import ROWS as FEW_ROWS
from bench.rows import Aim, Point, Row, new_queue

ROWS = (*FEW_ROWS, *MANY_ROWS)

CLUSTERS: dict[str, Callable[[], Cluster]] = {"brokerd": BrokerdCluster, "rabbitmq": RabbitCluster}
#: A quick run sends this part of the messages and is good for a look only.
QUICK_SCALE = 0.2
WARM_UP_MESSAGES = 20_000
#: {side: {row key: [figures per round]}}
Figures = dict[str, dict[str, list[Point]]]


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
    if row.beside and side != "brokerd":
        return
    try:
        point = row.measure(cluster, scale)
    except BenchError as error:
        say(f"{cluster.title}: {row.key}: FAILED: {error}")
        return
    figures.setdefault(side, {}).setdefault(row.key, []).append(point)
    shown = ", ".join(f"{number(point[aim.figure])} {aim.unit}" for aim in row.aims)
    memory = processes.resident_mib(cluster.pids())
    cost = f"CPU {number(point['broker_cpu_us'])} µs" if "broker_cpu_us" in point else "CPU unknown"
    say(f"{cluster.title}: {row.key}: {shown} ({cost}, rss {memory:.0f} MiB)")


def number(value: float) -> str:
    """Three figures, or all before the point."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def cell(values: list[float]) -> str:
    if not values:
        return "-"
    middle = f"**{number(statistics.median(values))}**"
    return middle if len(values) == 1 else f"{middle} ({number(min(values))}-{number(max(values))})"


def values_of(figures: Figures, side: str, key: str, figure: str) -> list[float]:
    points = figures.get(side, {}).get(key, [])
    return [point[figure] for point in points if figure in point]


def ratio_cell(row: Row, aim: Aim, figures: Figures) -> str:
    ours = values_of(figures, "brokerd", row.key, aim.figure)
    if row.beside:
        theirs = values_of(figures, "brokerd", row.beside, aim.figure)
    else:
        theirs = values_of(figures, "rabbitmq", row.key, aim.figure)
    if not ours or not theirs or not statistics.median(theirs):
        return "-"
    value = statistics.median(ours) / statistics.median(theirs)
    verdict = "" if aim.target is None else " met" if aim.is_met_by(value) else " missed"
    return f"{value:.2f}{verdict}"


def cost_cell(row: Row, figures: Figures, side: str) -> str:
    """What a message cost this broker, and the client that drove it."""
    brokers = values_of(figures, side, row.key, "broker_cpu_us")
    clients = values_of(figures, side, row.key, "client_cpu_us")
    if not brokers or not clients:
        return "-"
    return f"{number(statistics.median(brokers))} + {number(statistics.median(clients))}"


def table(rows: list[Row], titles: dict[str, str], figures: Figures) -> str:
    """A line for each figure of a row; CPU stands beside the first."""
    left, right = titles.get("brokerd", "brokerd"), titles.get("rabbitmq", "RabbitMQ")
    lines = [
        f"| work | figure | {left} | {right} | ratio | target "
        "| CPU per message, members + client, µs | the same, RabbitMQ |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        costs = [cost_cell(row, figures, side) for side in ("brokerd", "rabbitmq")]
        for place, aim in enumerate(row.aims):
            ours, theirs = (
                cell(values_of(figures, side, row.key, aim.figure))
                for side in ("brokerd", "rabbitmq")
            )
            sign = "≤" if aim.lower_is_better else "≥"
            target = "-" if aim.target is None else f"{sign} {aim.target:g}"
            title, (own_cost, other_cost) = (row.title, costs) if not place else ("", ("", ""))
            lines.append(
                f"| {title} | {aim.unit} | {ours} | {theirs} | {ratio_cell(row, aim, figures)} "
                f"| {target} | {own_cost} | {other_cost} |"
            )
    return "\n".join(lines)


def machine() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, "
        f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}, "
        f"{time.strftime('%Y-%m-%d')}"
    )


def heading(args: argparse.Namespace) -> str:
    return (
        f"Medians of {args.rounds} alternating rounds (lowest-highest) of `python -m bench.run "
        f"{' '.join(sys.argv[1:])}` on {machine()}. Three members on loopback, 1 KiB messages, "
        "quorum queue of three unless the row says otherwise; publishes with confirms but for the "
        "classic row."
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
        len(figures.get(side, {}).get(row.key, [])) == args.rounds
        for side in sides
        for row in rows
        if side == "brokerd" or not row.beside
    )
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
