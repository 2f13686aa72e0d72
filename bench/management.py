"""What do the HTTP API, the page and /metrics cost with many queues and connections?

    python -m bench.management [--queues N] [--connections N] [--seconds N] [--rounds N] [--pairs N]
                               [--turns]

Three members with many quorum queues and idle connections; the first is asked.  For each request:
the median and the worst time on the clock, CPU of the member asked and of the others, the answer's
size, and the longest that a confirm took (asked again, with a publisher of 200/s beside it).
Then one publisher's p50 and p99 alone, with three pollers that each ask every POLL_S (what an
autoscaler, an exporter and a Prometheus ask for), and with a stranger: a program that sends no
requests and works as much as the pollers had the members work, in bursts as long.  What a stranger
costs, too, is the machine's.  With --rounds 0 only that; with --turns, too, and what of the member
asked takes long: the longest turns of its loop in CPU time, which a busy machine changes little,
with where it was seen (bench.turns).
"""

from __future__ import annotations

import argparse
import base64
import http.client
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import load_programs, processes
from bench.brokerd_nodes import PORTS, BrokerdCluster
from bench.connections import idle_connections
from bench.definitions import import_definitions, queue_definitions
from bench.processes import BenchError

#: Answers are shared for a second (management/figures.py): each round is to make its own.
APART_S = 1.2
POLL_S = 5.0
REST_S = 10.0
RATE = 200
OWN_QUEUE = "management-own"
TIMEOUT_S = 60
#: With --turns: how many are shown, and what of a stack.
TURNS = 12
PLACES, FRAMES = 3, 4
METRICS = "metrics"
#: Title, path; of METRICS the other listener.
REQUESTS = (
    ("the page", "/"),
    ("the page, by ready messages", "/?sort=messages_ready&sort_reverse=true"),
    ("a page of queues", "/api/queues?page=1&page_size=100"),
    ("the same, by messages", "/api/queues?page=1&page_size=100&sort=messages"),
    ("the same, name by a pattern", "/api/queues/%2F?page=1&page_size=100&name=9$&use_regex=true"),
    ("all queues", "/api/queues"),
    ("all queues, five columns", "/api/queues?columns=name,vhost,messages,consumers,node"),
    ("all queues, totals alone", "/api/queues?disable_stats=true&enable_queue_totals=true"),
    ("one queue", f"/api/queues/%2F/{OWN_QUEUE}"),
    ("overview", "/api/overview"),
    ("nodes", "/api/nodes"),
    ("a page of connections", "/api/connections?page=1&page_size=100"),
    ("all connections", "/api/connections"),
    ("/metrics", METRICS),
)
POLLERS = (
    ("autoscaler", ("/api/queues/%2F?page=1&page_size=100&name=9$&use_regex=true",)),
    ("exporter", ("/api/overview", "/api/nodes", "/api/queues")),
    ("Prometheus and the page", (METRICS, "/?sort=messages_ready&sort_reverse=true")),
)
#: Works in bursts: seconds of each, from one to the next, and the share of a core in it.  It works
#: for 0.4 ms at a time and rests then, as walks do (ADR 53).
STRANGER = """
import sys, time
burst_s, every_s, share = map(float, sys.argv[1:])
slice_s = 0.0004
while True:
    begun = time.perf_counter()
    while time.perf_counter() - begun < burst_s:
        worked = time.process_time()
        while time.process_time() - worked < slice_s:
            pass
        time.sleep(slice_s / share - slice_s)
    time.sleep(max(0.0, every_s - burst_s))
"""
AUTHORIZATION = "Basic " + base64.b64encode(b"guest:guest").decode()


class Asking:
    """One client of the first member, which keeps its connections."""

    def __init__(self, cluster: BrokerdCluster) -> None:
        offset = cluster.amqp_ports[0] - PORTS["amqp"]
        self._api = self._connection(PORTS["management"] + offset)
        self._metrics = self._connection(PORTS["http"] + offset)

    def _connection(self, port: int) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def ask(self, path: str) -> int:
        """Return how many bytes were answered."""
        connection = self._api
        if path == METRICS:
            connection, path = self._metrics, "/metrics"
        connection.request("GET", path, headers={"Authorization": AUTHORIZATION})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise BenchError(f"{path}: {answer.status} {body[:200]!r}")
        return len(body)


def publishing(
    cluster: BrokerdCluster, seconds: float, act: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Publish RATE a second through the first member while act() goes on; return amqpload's."""
    with load_programs.amqpload_running(
        *("publish", cluster.amqp_ports[0]),
        queue=OWN_QUEUE,
        rate=RATE,
        count=int(RATE * seconds),
        in_flight=1_000_000,
    ) as result_of:
        act()
        return result_of()


@dataclass(slots=True)
class Cost:
    """Of one request: seconds and bytes."""

    took: list[float]
    asked_cpu: float
    others_cpu: float
    size: int
    longest_confirm: float


def used(cluster: BrokerdCluster) -> tuple[float, float]:
    """CPU seconds of the first member so far, and of the others."""
    first, *others = cluster.pids()
    return processes.cpu_seconds([first]), processes.cpu_seconds(others)


def resting(cluster: BrokerdCluster) -> tuple[float, float]:
    """CPU seconds per second of the first member and of the others while no client asks."""
    begun, before = time.perf_counter(), used(cluster)
    time.sleep(REST_S)
    passed, after = time.perf_counter() - begun, used(cluster)
    return (after[0] - before[0]) / passed, (after[1] - before[1]) / passed


def cost(cluster: BrokerdCluster, path: str, rounds: int, at_rest: tuple[float, float]) -> Cost:
    """Ask `rounds` times, then as often again while a client publishes."""
    asking = Asking(cluster)
    sizes, took = [asking.ask(path)], []
    begun, before = time.perf_counter(), used(cluster)
    for _ in range(rounds):
        time.sleep(APART_S)
        asked = time.perf_counter()
        sizes.append(asking.ask(path))
        took.append(time.perf_counter() - asked)
    passed, after = time.perf_counter() - begun, used(cluster)
    spent = [
        max(0.0, (now - was - share * passed) / rounds)
        for now, was, share in zip(after, before, at_rest, strict=True)
    ]

    def again() -> None:
        for _ in range(rounds):
            time.sleep(APART_S)
            asking.ask(path)

    published = publishing(cluster, rounds * (APART_S + max(took)), again)
    return Cost(took, spent[0], spent[1], max(sizes), published["max_us"] / 1e6)


@contextmanager
def pollers(cluster: BrokerdCluster) -> Iterator[list[float]]:
    """Three clients that each ask every POLL_S; yields how long each of their rounds took."""
    ended, rounds, failures = threading.Event(), [], []

    def poll(paths: Sequence[str], after_s: float) -> None:
        asking = Asking(cluster)
        due = time.monotonic() + after_s
        while not ended.wait(max(0.0, due - time.monotonic())):
            begun = time.perf_counter()
            try:
                for path in paths:
                    asking.ask(path)
            except (OSError, BenchError) as error:
                failures.append(error)
                return
            rounds.append(time.perf_counter() - begun)
            due += POLL_S

    threads = [
        threading.Thread(target=poll, args=(paths, number * POLL_S / len(POLLERS)))
        for number, (_, paths) in enumerate(POLLERS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield rounds
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    if failures:
        raise BenchError(f"a poller: {failures[0]}")


def say(text: str) -> None:
    print(text, flush=True)


def requests(cluster: BrokerdCluster, rounds: int) -> None:
    began = time.perf_counter()
    Asking(cluster).ask("/api/queues")  # From here on rates are sampled, and rows are kept.
    say(f"The first list of all queues took {(time.perf_counter() - began) * 1e3:,.0f} ms.")
    at_rest = resting(cluster)
    say(f"At rest: {100 * at_rest[0]:.1f} % of a core, the others {100 * at_rest[1]:.1f} %.\n")
    say("| request | median ms | worst ms | CPU ms | others' CPU ms | MB | longest confirm, ms |")
    say("|---|---|---|---|---|---|---|")
    for title, path in REQUESTS:
        found = cost(cluster, path, rounds, at_rest)
        figures = (statistics.median(found.took), max(found.took), found.asked_cpu)
        cells = [f"{value * 1e3:,.0f}" for value in (*figures, found.others_cpu)]
        cells += [f"{found.size / 1e6:.2f}", f"{found.longest_confirm * 1e3:,.0f}"]
        say(f"| {title} | {' | '.join(cells)} |")
    memory = [processes.resident_mib([pid]) for pid in cluster.pids()]
    say(f"\nResident now: {', '.join(f'{size:.0f} MiB' for size in memory)}.\n")


def say_turns(cluster: BrokerdCluster, folder: Path) -> None:
    """Tell what took long at the first member since this was told last: for each turn how often it
    was seen where, once each half millisecond.
    """
    found = processes.notes_of(cluster.pids()[0], folder)
    collections = ", ".join(
        f"generation {generation}: {each['count']}, the longest {each['longest'][0] * 1e3:.1f} ms "
        f"for {each['longest'][1]} objects"
        for generation, each in found["collections"].items()
    )
    say(f"\nTurns over 2 ms: {found['long_turns']}.  Collections: {collections}.")
    for took, places in found["turns"][:TURNS]:
        seen = "; ".join(
            f"{count} of {' < '.join(place.split(' ')[:FRAMES])}"
            for place, count in list(places.items())[:PLACES]
        )
        say(f"- {took * 1e3:.1f} ms: {seen}")


@contextmanager
def stranger(burst_s: float, cpu_s: float) -> Iterator[None]:
    """A program beside the cluster that uses cpu_s in a burst, for each of the pollers."""
    every_s = POLL_S / len(POLLERS)
    share = min(0.9, max(0.01, cpu_s / burst_s))
    program = subprocess.Popen(
        [sys.executable, "-c", STRANGER, str(burst_s), str(every_s), str(share)]
    )
    try:
        yield
    finally:
        program.kill()
        program.wait()


def polled(cluster: BrokerdCluster, seconds: float, pairs: int, turns: Path | None) -> None:
    """Turn about, so that all meet the same disturbance.  turns: where the member notes them."""
    say("| publishing 200/s | p50 ms | p99 ms | longest ms |\n|---|---|---|---|")
    if turns is not None:
        say_turns(cluster, turns)
    tails: dict[str, list[float]] = {}

    def row(title: str) -> float:
        """Measure; return the CPU seconds that all members used."""
        before = sum(used(cluster))
        found = publishing(cluster, seconds)
        spent = sum(used(cluster)) - before
        cells = (f"{found[name] / 1e3:.2f}" for name in ("p50_us", "p99_us", "max_us"))
        say(f"| {title} | {' | '.join(cells)} |")
        if turns is not None:
            say_turns(cluster, turns)
        tails.setdefault(title, []).append(found["p99_us"])
        return spent

    longest = 0.0
    for _ in range(pairs):
        alone_s = row("alone")
        with pollers(cluster) as rounds:
            polled_s = row("three pollers")
        longest = max(longest, *rounds)
        cost_s = (polled_s - alone_s) / max(1, len(rounds))
        with stranger(statistics.fmean(rounds), cost_s):
            row("a stranger")
        say(f"|  | (which works {cost_s * 1e3:.0f} ms for each of their rounds) |  |  |")
    say(f"\nA poller's round took {longest * 1e3:,.0f} ms at most.")
    for title in ("three pollers", "a stranger"):
        ratios = [mine / base for mine, base in zip(tails[title], tails["alone"], strict=True)]
        told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        say(f"p99 with {title}, of alone: {statistics.median(ratios):.2f} ({told}).")


def measure(cluster: BrokerdCluster, args: argparse.Namespace, folder: Path) -> None:
    with queue_definitions("quorum", range(args.queues)) as file:
        import_definitions(cluster, file)
    cluster.rebalance()
    load_programs.run_amqpload(
        "publish", cluster.amqp_ports[0], queue=OWN_QUEUE, count=5_000, in_flight=100
    )
    memory = [processes.resident_mib([pid]) for pid in cluster.pids()]
    say(f"{args.queues:,} quorum queues on three members, {args.connections:,} idle connections.")
    say(f"Resident before: {', '.join(f'{size:.0f} MiB' for size in memory)}.")
    with idle_connections(cluster.amqp_ports, args.connections):
        if args.rounds and not args.turns:
            requests(cluster, args.rounds)
        if args.pairs:
            polled(cluster, args.seconds, args.pairs, folder if args.turns else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--turns", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-turns-") as folder:
        program = ("bench.turns", folder) if args.turns else ("brokerd",)
        cluster = BrokerdCluster(program=program)
        try:
            cluster.start()
            measure(cluster, args, Path(folder))
        except BenchError as error:
            print(f"management: {error}", file=sys.stderr)
            return 1
        finally:
            cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
