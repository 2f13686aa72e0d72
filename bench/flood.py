"""A flood in a small container: does the member live, and do consumers that come late get on?

    python -m bench.flood [--minutes M] [--sizes 1024,…] [--queues quorum,…] [--memory MIB]

One member in a cgroup (v1 or v2; root).  First the baseline: what a consumer takes of a queue that
was filled before, without publishers and without alarm.  Then two publishers with confirms send as
fast as they are let; after a third of the time two consumers come, and for the last third the alarm
is raised by hand, since many floods raise none.  What is printed for each size
and type of queue: the highest resident memory beside the watermark, seconds with the alarm, what
consumers take while the alarm is on and while it is off, of a queue that has messages, and the
baseline.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import load_programs, processes
from bench.brokerd_nodes import BrokerdCluster
from bench.processes import BenchError

MIB = 1 << 20
CGROUPS = Path("/sys/fs/cgroup")
#: The folder that the member's process puts itself into.
FOLDER = "BENCH_FLOOD_CGROUP"
SAMPLE_S = 0.5
SIZES = (1024, 100 * 1024, 10 * MIB)
#: classic-transient: bodies lie in memory and nowhere else.
TYPES = ("quorum", "classic", "classic-transient")
QUEUE = "flood"
PREFETCH = 200
#: Unconfirmed bytes of a publisher, about; at least this many messages.
IN_FLIGHT_BYTES = 16 * MIB
IN_FLIGHT_MIN = 4
COUNT_MAX = 50_000_000
#: Disk that a flood may take before it ends; what is left is for others.
DISK_FREE_MIN = 20 << 30
#: Rounds of the baseline, and bytes of each: a queue holds them in memory without the alarm.
BASELINE_ROUNDS = 4
BASELINE_BYTES = 64 * MIB
CALM_TIMEOUT_S = 60.0
#: Consumers are judged who had the alarm for so long.
JUDGED_S = 1.0
#: As scripts for rabbitmqctl have it.
RAISE_ALARM = "rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []})."
#: The watermark may be passed by this share, and consumers have this share of their rate.
OVERSHOOT_MAX = 0.10
RATE_MIN = 0.5


@contextmanager
def cgroup(limit_bytes: int) -> Iterator[Path]:
    """A new memory cgroup below this process's own."""
    is_v2 = (CGROUPS / "cgroup.controllers").exists()
    folder = (CGROUPS if is_v2 else CGROUPS / "memory") / f"brokerd-flood-{os.getpid()}"
    folder.mkdir()
    try:
        name = "memory.max" if is_v2 else "memory.limit_in_bytes"
        (folder / name).write_text(str(limit_bytes))
        yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


@dataclass(slots=True)
class Seen:
    """What one flood showed."""

    peak_bytes: int = 0
    limit_bytes: int = 0
    alarm_s: float = 0.0
    published: float = 0.0
    #: (seconds with consumers and messages, messages taken) with the alarm and without it.
    alarmed: list[float] = field(default_factory=lambda: [0.0, 0.0])
    calm: list[float] = field(default_factory=lambda: [0.0, 0.0])
    #: With the alarm consumers have taken all that there was.
    is_emptied: bool = False
    #: Messages per second without publishers and without alarm.
    baseline: float = 0.0
    fault: str = ""


def metrics(cluster: BrokerdCluster) -> dict[str, float]:
    with urllib.request.urlopen(cluster.metrics_url(0), timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def resident(cluster: BrokerdCluster) -> int:
    return int(processes.resident_mib(cluster.pids()) * MIB)


def alarm(found: dict[str, float]) -> bool:
    return found['brokerd_alarm{resource="memory"}'] > 0


def baseline(cluster: BrokerdCluster, options: dict[str, object], size: int) -> float:
    """Fill the queue and empty it a few times; return what the consumer took per second."""
    port, count = cluster.amqp_ports[0], max(1, BASELINE_BYTES // size)
    taken_s = 0.0
    for _ in range(BASELINE_ROUNDS):
        load_programs.run_amqpload("publish", port, count=count, **options)
        ends = time.monotonic() + CALM_TIMEOUT_S
        while alarm(metrics(cluster)):
            if time.monotonic() > ends:
                raise BenchError("the alarm of the baseline lasts")
            time.sleep(SAMPLE_S)
        taking = {"queue": QUEUE, "count": count, "prefetch": PREFETCH}
        result = load_programs.run_amqpload("consume", port, **taking, no_declare=True)
        taken_s += result["seconds"]
    return BASELINE_ROUNDS * count / taken_s


def sample(cluster: BrokerdCluster, seen: Seen, seconds: float, *, has_consumers: bool) -> None:
    """Look for so long, or until the disk or the member has had enough."""
    ends = time.monotonic() + seconds
    before = metrics(cluster)
    at, taken = time.monotonic(), before["brokerd_queue_messages_acknowledged_total"]
    while time.monotonic() < ends:
        time.sleep(SAMPLE_S)
        seen.peak_bytes = max(seen.peak_bytes, resident(cluster))
        found = metrics(cluster)
        now, after = time.monotonic(), found["brokerd_queue_messages_acknowledged_total"]
        is_alarmed = alarm(found)
        seen.limit_bytes = int(found["brokerd_memory_limit_bytes"])
        seen.published = found["brokerd_queue_messages_enqueued_total"]
        seen.alarm_s += (now - at) * is_alarmed
        # Of an interval at whose begin it was otherwise nothing can be said.
        was_so = alarm(before) == is_alarmed and before["brokerd_queue_messages_ready"] > 0
        # Perhaps before the first look: then there is no interval to judge by.
        is_empty = found["brokerd_queue_messages_ready"] == 0
        seen.is_emptied |= has_consumers and is_alarmed and is_empty
        if has_consumers and was_so:
            where = seen.alarmed if is_alarmed else seen.calm
            where[0] += now - at
            where[1] += after - taken
        at, taken, before = now, after, found
        if shutil.disk_usage(cluster.data_of(0)).free < DISK_FREE_MIN:
            seen.fault = "the disk of this machine is nearly full"
            return


def flood(kind: str, size: int, seconds: float, limit_bytes: int) -> Seen:
    seen = Seen()
    with cgroup(limit_bytes) as folder, ExitStack() as stack:
        os.environ[FOLDER] = str(folder)
        cluster = BrokerdCluster(1, ("bench.flood", "member"))
        cluster.start()
        stack.callback(cluster.stop)
        port, pids = cluster.amqp_ports[0], cluster.pids()
        try:
            typed: dict[str, object] = {"type": kind.partition("-")[0], "timeout": 3600}
            if kind.endswith("transient"):
                typed["transient"] = True
            in_flight = max(IN_FLIGHT_MIN, min(1000, IN_FLIGHT_BYTES // size))
            sent: dict[str, object] = {"queue": QUEUE, "size": size, "in_flight": in_flight}
            seen.baseline = baseline(cluster, sent | typed, size)
            before = metrics(cluster)["brokerd_queue_messages_enqueued_total"]
            with ExitStack() as publishers:
                many = sent | {"count": COUNT_MAX // max(1, size // 1024)}
                for _ in range(2):
                    publishers.enter_context(
                        load_programs.amqpload_running("publish", port, **many, **typed)
                    )
                sample(cluster, seen, seconds / 3, has_consumers=False)
                taking = {"queue": QUEUE, "count": COUNT_MAX, "prefetch": PREFETCH}
                for _ in range(2):
                    # They outlive the publishers.
                    stack.enter_context(
                        load_programs.amqpload_running(
                            "consume", port, **taking, **typed, no_declare=True
                        )
                    )
                sample(cluster, seen, seconds / 3, has_consumers=True)
                alarm_s = seen.alarm_s
                cluster.control("eval", RAISE_ALARM)
                sample(cluster, seen, seconds / 3, has_consumers=True)
                seen.alarm_s = alarm_s
            seen.published -= before
        except (OSError, BenchError) as error:
            seen.fault = f"{type(error).__name__}: {error}"
        if cluster.pids() != pids:
            seen.fault = "the member was killed"
    return seen


def rate(pair: list[float]) -> float:
    return pair[1] / pair[0] if pair[0] else 0.0


def verdict(seen: Seen) -> str:
    if seen.fault:
        return seen.fault
    faults = []
    if seen.peak_bytes > seen.limit_bytes * (1 + OVERSHOOT_MAX):
        faults.append("watermark passed")
    if not seen.is_emptied:
        if seen.alarmed[0] < JUDGED_S:
            faults.append("consumers not judged")
        elif rate(seen.alarmed) < RATE_MIN * seen.baseline:
            faults.append("consumers held up")
    return ", ".join(faults) or "met"


def row(kind: str, size: int, seen: Seen) -> str:
    limit = seen.limit_bytes or 1
    cells = [
        kind,
        f"{size / 1024:,.0f} KiB",
        f"{seen.published:,.0f}",
        f"{seen.limit_bytes / MIB:.0f}",
        f"{seen.peak_bytes / MIB:.0f} ({100 * (seen.peak_bytes - limit) / limit:+.0f} %)",
        f"{seen.alarm_s:.0f}",
        f"{rate(seen.alarmed):,.0f}",
        f"{rate(seen.calm):,.0f}",
        f"{seen.baseline:,.0f}",
        verdict(seen),
    ]
    return f"| {' | '.join(cells)} |"


HEADS = ("queue", "size", "published", "watermark, MiB", "highest RSS, MiB", "alarm, s")
RATES = ("taken/s in alarm", "without alarm", "baseline", "")


def member() -> None:
    """Be the member: inside the cgroup from the first byte on."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    (Path(os.environ[FOLDER]) / "cgroup.procs").write_text(str(os.getpid()))
    sys.argv = ["brokerd", *sys.argv[2:]]
    runpy.run_module("brokerd", run_name="__main__")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0, help="of each flood [10]")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes of a message")
    parser.add_argument("--queues", default=",".join(TYPES), help=f"of {', '.join(TYPES)}")
    parser.add_argument("--memory", type=int, default=512, help="MiB of the cgroup [512]")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    args = parser.parse_args()
    lines = [f"| {' | '.join(HEADS + RATES)} |", "|---" * len(HEADS + RATES) + "|"]
    print("\n".join(lines))
    is_met = True
    for kind in args.queues.split(","):
        for size in map(int, args.sizes.split(",")):
            seen = flood(kind, size, args.minutes * 60, args.memory * MIB)
            is_met &= verdict(seen) == "met"
            lines.append(row(kind, size, seen))
            print(lines[-1], flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("\n".join([*lines, ""]))
    return 0 if is_met else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["member"]:
        member()
    else:
        sys.exit(main())
