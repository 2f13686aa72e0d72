"""A flood in a small container: does the member live, and do consumers that come late get on?

    python -m bench.flood [--minutes M] [--sizes 1024,…] [--queues quorum,…] [--memory MIB]

One member in a cgroup (v1 or v2; root).  Two publishers with confirms send as fast as they are let;
after a third of the time two consumers come.  What is printed for each size and type of queue: the
highest resident memory beside the watermark, seconds with the alarm, what consumers take while the
alarm is on and while it is off, and after the publishers have ended.
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
#: Unconfirmed bytes of a publisher, about; at least this many messages.
IN_FLIGHT_BYTES = 16 * MIB
IN_FLIGHT_MIN = 4
COUNT_MAX = 50_000_000
#: Disk that a flood may take before it ends; what is left is for others.
DISK_FREE_MIN = 20 << 30
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
    #: (seconds, messages taken) with the alarm, without it, and without publishers.
    alarmed: list[float] = field(default_factory=lambda: [0.0, 0.0])
    calm: list[float] = field(default_factory=lambda: [0.0, 0.0])
    alone: list[float] = field(default_factory=lambda: [0.0, 0.0])
    fault: str = ""


def metrics(cluster: BrokerdCluster) -> dict[str, float]:
    with urllib.request.urlopen(cluster.metrics_url(0), timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def resident(cluster: BrokerdCluster) -> int:
    return int(processes.resident_mib(cluster.pids()) * MIB)


def sample(cluster: BrokerdCluster, seen: Seen, seconds: float, *, is_alone: bool) -> None:
    """Look for so long, or until the disk or the member has had enough."""
    ends = time.monotonic() + seconds
    at, taken = time.monotonic(), metrics(cluster)["brokerd_queue_messages_acknowledged_total"]
    while time.monotonic() < ends:
        time.sleep(SAMPLE_S)
        seen.peak_bytes = max(seen.peak_bytes, resident(cluster))
        found = metrics(cluster)
        now, after = time.monotonic(), found["brokerd_queue_messages_acknowledged_total"]
        is_alarmed = found['brokerd_alarm{resource="memory"}'] > 0
        seen.limit_bytes = int(found["brokerd_memory_limit_bytes"])
        seen.published = found["brokerd_queue_messages_enqueued_total"]
        seen.alarm_s += (now - at) * is_alarmed
        where = seen.alone if is_alone else seen.alarmed if is_alarmed else seen.calm
        if after > taken:
            where[0] += now - at
            where[1] += after - taken
        at, taken = now, after
        if found["brokerd_queue_messages_ready"] == 0 and is_alone:
            return
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
            with ExitStack() as publishers:
                many = {"count": COUNT_MAX // max(1, size // 1024), "queue": QUEUE, "size": size}
                many |= {"in_flight": max(IN_FLIGHT_MIN, min(1000, IN_FLIGHT_BYTES // size))}
                typed: dict[str, object] = {"type": kind.partition("-")[0], "timeout": 3600}
                if kind.endswith("transient"):
                    typed["transient"] = True
                for _ in range(2):
                    publishers.enter_context(
                        load_programs.amqpload_running("publish", port, **many, **typed)
                    )
                sample(cluster, seen, seconds / 3, is_alone=False)
                taking = {"queue": QUEUE, "count": COUNT_MAX, "prefetch": 200}
                for _ in range(2):
                    # They outlive the publishers.
                    stack.enter_context(
                        load_programs.amqpload_running(
                            "consume", port, **taking, **typed, no_declare=True
                        )
                    )
                sample(cluster, seen, seconds * 2 / 3, is_alone=False)
            sample(cluster, seen, max(10.0, seconds / 6), is_alone=True)
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
    if (
        seen.alarmed[0] > 1
        and rate(seen.alone)
        and rate(seen.alarmed) < RATE_MIN * rate(seen.alone)
    ):
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
        f"{rate(seen.alone):,.0f}",
        verdict(seen),
    ]
    return f"| {' | '.join(cells)} |"


HEADS = ("queue", "size", "published", "watermark, MiB", "highest RSS, MiB", "alarm, s")
RATES = ("taken/s in alarm", "without alarm", "without publishers", "")


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
