"""Where the microseconds of a message go, member by member and stage by stage.

    python -m bench.profile [--work publish|single|consume|both|get|publishers|consumers|rpc]
                            [--in-flight N] [--count N] [--seconds N] [--places N]
                            [--type quorum|classic] [--via leader|follower]

Three members run under bench.sampler; the queue's leader is the first of them, the client is
there too or, with --via follower, at the second.  Figures are CPU time, not wall-clock, so they
hold on a busy machine as well: of each thread as the kernel counted it, and the main thread's
divided by where it was seen.  --places N: the N most frequent places of each member besides.
publishers: 200 with one in flight each; consumers: 200 with a prefetch of 1; rpc: 100 callers and
10 servers; all on one queue, for --seconds.  Connecting and declaring count nowhere.  For plain
Python: compiled functions leave no frames to see.  A run takes less than a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from bench import load_programs
from bench.brokerd_nodes import BrokerdCluster
from bench.processes import notes_of

WARM_UP_MESSAGES = 20_000
QUEUE = "profile"
#: Works of many clients, all at one member and on one queue: options of amqpload.
MANY: dict[str, dict[str, object]] = {
    "publishers": {"connections": 200},
    "consumers": {"connections": 200, "prefetch": 1},
    "rpc": {"connections": 100, "servers": 10, "prefetch": 10},
}
#: Which stage a file belongs to: the longest matching beginning counts.
STAGES = {
    "brokerd/amqp/": "AMQP: parse and frame",
    "brokerd/server/": "session: checks, numbers, confirms",
    "brokerd/server/amqp/connection": "connection: read, write the socket",
    "brokerd/server/amqp/channel_deliveries": "deliveries",
    "brokerd/server/queues/stream": "batch per queue",
    "brokerd/server/queues/turn": "batch per queue",
    "brokerd/server/queues/deliveries": "deliveries",
    "brokerd/core/": "queue machine and its commands",
    "brokerd/core/confirms": "session: checks, numbers, confirms",
    "brokerd/core/catalog/router": "routing",
    "brokerd/core/unacked": "deliveries",
    "brokerd/telemetry/": "telemetry counters",
    "brokerd/raft/": "raft",
    "brokerd/cluster/": "host, driver, group client",
    "brokerd/cluster/peer/": "peer frames",
    "brokerd/cluster/peer/deliveries": "deliveries",
    "brokerd/cluster/groups/inbox": "peer frames",
    "grpc": "peer frames",
    "brokerd/cluster/groups/write_queue": "log: hand over, index",
    "brokerd/storage/": "log: hand over, index",
    "loop": "event loop, system calls",
}


@dataclass(slots=True)
class Use:
    """What one member used for the load, in seconds of CPU."""

    threads: dict[str, float] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    places: list[tuple[str, float]] = field(default_factory=list)
    switches: int = 0


def stage_of(place: str) -> str:
    """The stage of a stack's innermost own frame."""
    innermost = place.partition(" ")[0]
    known = [prefix for prefix in STAGES if innermost.startswith(prefix)]
    return STAGES[max(known, key=len)] if known else "everything else"


def thread_seconds(pid: int) -> dict[str, float]:
    """CPU of each thread so far, by thread id."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread of a pool may end while it is looked at.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def measure(pid: int, folder: Path, before: dict[str, float], switches: int) -> Use:
    """Put together what a member used since `before`."""
    after = thread_seconds(pid)
    seen = notes_of(pid, folder)
    names, places = seen["threads"], seen["places"]
    assert isinstance(names, dict)
    assert isinstance(places, list)
    use = Use(switches=int(str(seen["switches"])) - switches)
    for thread, seconds in after.items():
        name = "main" if thread == str(pid) else str(names.get(thread, "others"))
        name = name if name in ("main", "wal-writer") else "others"
        use.threads[name] = use.threads.get(name, 0.0) + seconds - before.get(thread, 0.0)
    total = sum(count for _, count in places) or 1
    for place, count in places:
        share = use.threads["main"] * count / total
        stage = stage_of(place)
        use.stages[stage] = use.stages.get(stage, 0.0) + share
        use.places.append((place, share))
    return use


def command_of(args: argparse.Namespace, ports: list[int]) -> list[str]:
    """The load on the queue that the first member leads; what it needs is there afterwards."""
    port = ports[1] if args.via == "follower" else ports[0]
    options: dict[str, object] = {"queue": QUEUE, "count": args.count, "no_declare": True}
    if args.work in MANY:
        options |= MANY[args.work] | {"seconds": args.seconds, "type": args.type}
        if args.work == "consumers":
            load_programs.run_amqpload(
                "publish", ports[0], queue=f"{QUEUE}-0", count=args.count, type=args.type
            )
        else:
            # The member that a queue is declared at leads it.
            options.pop("count")
            load_programs.run_amqpload(
                "publish", ports[0], queue=f"{QUEUE}-0", count=1, type=args.type
            )
        return load_programs.amqpload_command(args.work, port, announce=True, **options)
    if args.work in ("get", "consume"):
        load_programs.run_amqpload("publish", port, **options)
    if args.work == "get":
        options["ack"] = "auto"
    elif args.work != "consume":
        options |= {"in_flight": args.in_flight, "size": args.size}
    if args.work == "single":
        options["per_write"] = 1
    verb = {"single": "publish"}.get(args.work, args.work)
    return load_programs.amqpload_command(verb, port, announce=True, **options)


def table(uses: list[Use], titles: list[str], count: int) -> str:
    """Microseconds per message, Markdown."""
    scale = 1e6 / count
    rows = [f"| µs per message | {' | '.join(titles)} |", "|---|" + "---|" * len(uses)]

    def row(title: str, figures: list[float]) -> None:
        rows.append(f"| {title} | {' | '.join(f'{figure * scale:.2f}' for figure in figures)} |")

    stages = {stage for use in uses for stage in use.stages}
    for stage in sorted(stages, key=lambda s: -max(use.stages.get(s, 0.0) for use in uses)):
        row(stage, [use.stages.get(stage, 0.0) for use in uses])
    row("**main thread**", [use.threads["main"] for use in uses])
    row("log writer thread", [use.threads.get("wal-writer", 0.0) for use in uses])
    row("other threads", [use.threads.get("others", 0.0) for use in uses])
    row("**member**", [sum(use.threads.values()) for use in uses])
    switches = " | ".join(f"{use.switches / count:.3f}" for use in uses)
    rows.append(f"| thread switches per message | {switches} |")
    return "\n".join(rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    works = ("publish", "single", "consume", "both", "get", *MANY)
    parser.add_argument("--work", choices=works, default="publish")
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seconds", type=int, default=15, help="of many clients")
    parser.add_argument("--type", choices=("quorum", "classic"), default="quorum")
    parser.add_argument("--via", choices=("leader", "follower"), default="leader")
    parser.add_argument("--size", type=int, default=1024, help="of a message, bytes")
    parser.add_argument("--places", type=int, default=0)
    return parser.parse_args()


def profile(
    args: argparse.Namespace, cluster: BrokerdCluster, folder: Path
) -> tuple[dict[str, float], list[Use]]:
    """Run the load; return its figures and what each member used for it."""
    pids, ports = cluster.pids(), cluster.amqp_ports
    queue: dict[str, object] = {"queue": QUEUE, "type": args.type}
    warm_up = queue | {"count": min(WARM_UP_MESSAGES, args.count)}
    load_programs.run_amqpload("publish", ports[0], **warm_up)
    load_programs.run_amqpload("consume", ports[0], **warm_up)
    command = command_of(args, ports)
    switches: list[int] = []
    before: list[dict[str, float]] = []
    uses: list[Use] = []

    def begin() -> None:
        switches.extend(int(str(notes_of(pid, folder)["switches"])) for pid in pids)
        before.extend(thread_seconds(pid) for pid in pids)

    def end() -> None:
        uses.extend(measure(pid, folder, before[n], switches[n]) for n, pid in enumerate(pids))

    return load_programs.announced(command, begin, end), uses


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="bench-profile-") as name:
        cluster = BrokerdCluster(program=("bench.sampler", name))
        cluster.start()
        try:
            figures, uses = profile(args, cluster, Path(name))
        finally:
            cluster.stop()
    has_client = args.via == "leader"
    titles = ["leader, client" if has_client else "leader"]
    titles += ["follower" if has_client else "follower, client", "follower"]
    in_flight = 1 if args.work == "get" or args.work in MANY else args.in_flight
    count = int(figures["messages"])
    print(
        f"{args.work}, {in_flight} in flight, {count} messages: {figures['rate']:,.0f} per second, "
        f"{cluster.title}, client {figures['client_cpu_us']:.2f} µs of CPU per message"
    )
    print(table(uses, titles, count))
    for title, use in zip(titles, uses, strict=True):
        for place, seconds in use.places[: args.places]:
            print(f"{title}: {seconds * 1e6 / count:.3f} {place}")


if __name__ == "__main__":
    main()
