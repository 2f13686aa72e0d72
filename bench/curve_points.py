"""What is measured at each point of a curve, and how what grows is made to grow.

For bench.curves, which runs the clusters and prints the tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bench import load_programs, processes
from bench.connections import idle_connections
from bench.definitions import (
    EXCHANGE,
    binding_definitions,
    import_definitions,
    queue_definitions,
    vhost_definitions,
)
from bench.many_rows import run_many
from bench.processes import BenchError, Cluster
from bench.rows import Point, drop, new_queue

MESSAGES = 30_000
WARM_UP_MESSAGES = 20_000
#: How long an idle cluster is watched.
IDLE_S = 5.0
#: After something was created: a moment for what the brokers do behind it.
SETTLE_S = 2.0
#: New queues have told telemetry of themselves by then.
TOLD_S = 12.0
RESTART_TIMEOUT_S = 600
#: What fewer new things take is lost in what a member's memory does of itself.
GROWN_MIN = 90
#: Of the curve over members, for each member: with a fixed number of publishers in all, more
#: members would mean smaller batches at each, and the batch would be measured.
PUBLISHERS_PER_MEMBER = 30
QUEUES_PER_MEMBER = 30
SPREAD_SECONDS = 8
#: Connections, and messages a second of each: fifteen members then take one of two cores.
PACED_PER_MEMBER = 20
PACED_RATE = 3
CONSUME_SECONDS_MAX = 60
Measure = Callable[[Cluster, int], Iterator[tuple[int, Point]]]


def publish(cluster: Cluster, count: int = MESSAGES, **options: object) -> Point:
    """One measured run of amqpload; the queue must have been declared if options say so."""
    cpu = processes.cpu_seconds(cluster.pids())
    options = {"in_flight": 1000, "size": 1024} | options
    result = load_programs.run_amqpload("publish", cluster.amqp_ports[0], count=count, **options)
    spent = processes.cpu_seconds(cluster.pids()) - cpu
    return {"publish/s": result["rate"], "publish CPU µs": spent * 1e6 / count}


def consume(cluster: Cluster, queue: str, count: int) -> Point:
    cpu = processes.cpu_seconds(cluster.pids())
    result = load_programs.run_amqpload(
        "consume", cluster.amqp_ports[0], queue=queue, prefetch=1000, count=count
    )
    spent = processes.cpu_seconds(cluster.pids()) - cpu
    return {"consume/s": result["rate"], "consume CPU µs": spent * 1e6 / count}


def idle(cluster: Cluster) -> Point:
    """What the cluster costs while no client uses it."""
    time.sleep(SETTLE_S)
    cpu = processes.cpu_seconds(cluster.pids())
    time.sleep(IDLE_S)
    spent = processes.cpu_seconds(cluster.pids()) - cpu
    return {"idle CPU %": 100 * spent / IDLE_S}


def powers(first: int, last: int, at_most: int) -> list[int]:
    """1, 10, 100 … from first to last, none above at_most."""
    points = [first]
    while points[-1] * 10 <= last:
        points.append(points[-1] * 10)
    if points[-1] != last:
        points.append(last)
    return [point for point in points if point <= at_most]


def by_depth(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
    queue, depth = new_queue(), 0
    before = processes.resident_mib(cluster.pids())
    for point in powers(1_000, 1_000_000, at_most):
        load_programs.run_amqpload(
            "publish", cluster.amqp_ports[0], queue=queue, in_flight=1000, count=point - depth
        )
        figures = publish(cluster, queue=queue)
        figures |= consume(cluster, queue, MESSAGES)
        grown = processes.resident_mib(cluster.pids()) - before
        figures["bytes per message and member"] = grown * 2**20 / point / len(cluster.amqp_ports)
        depth = point
        yield point, figures


def by_bindings(kind: str) -> Measure:
    """Bindings of other keys at the exchange that is published to."""

    def measure(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
        queue, made = "curve-bound", 0
        load_programs.run_amqpload("publish", cluster.amqp_ports[0], queue=queue, count=1)
        for point in powers(10, 100_000, at_most):
            keys = [f"k{number}.other.*" for number in range(made, point - 1)]
            started = time.monotonic()
            with binding_definitions(kind, queue, [*keys, "wanted.key"]) as file:
                import_definitions(cluster, file)
            took = time.monotonic() - started
            made = point - 1
            figures = publish(
                cluster, queue=queue, exchange=EXCHANGE, key="wanted.key", no_declare=True
            )
            yield point, figures | {"import s": took}

    return measure


def by_queues(kind: str, last: int) -> Measure:
    """Idle queues beside the one that is used."""

    def measure(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
        made = 0
        for point in powers(1, last, at_most):
            before = processes.resident_mib(cluster.pids())
            started = time.monotonic()
            with queue_definitions(kind, range(made, point)) as file:
                import_definitions(cluster, file)
            took = time.monotonic() - started
            time.sleep(TOLD_S)
            figures = idle(cluster)
            grown = processes.resident_mib(cluster.pids()) - before
            if point - made >= GROWN_MIN:
                figures["KiB per new queue, all members"] = grown * 1024 / (point - made)
            made = point
            queue = new_queue()
            figures |= publish(cluster, queue=queue)
            drop(cluster.amqp_ports[0], queue)
            figures["restart s"] = restart(cluster)
            yield point, figures | {"import s": took}

    return measure


def restart(cluster: Cluster) -> float:
    """Seconds from the start of a member that was killed until it serves clients."""
    last = len(cluster.amqp_ports) - 1
    cluster.kill(last)
    began = time.monotonic()
    cluster.start_again(last)
    while not cluster.is_ready(last):
        if time.monotonic() - began > RESTART_TIMEOUT_S:
            raise BenchError(f"a member that was killed is not ready in {RESTART_TIMEOUT_S} s")
        time.sleep(0.05)
    return time.monotonic() - began


def by_members(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
    """Many publishers with one in flight each, over queues that are spread evenly; then as many
    messages for each member as for each of fewer, published, consumed and acknowledged.
    """
    ports = cluster.amqp_ports
    if len(ports) > at_most:
        return
    figures = idle(cluster)

    def spread(work: str, connections: int, **options: int) -> Point:
        queues, seconds = QUEUES_PER_MEMBER * len(ports), SPREAD_SECONDS
        options |= {"connections": connections * len(ports), "queues": queues, "seconds": seconds}
        return run_many(cluster, work, 1.0, queue=new_queue(), **options)

    point = spread("publishers", PUBLISHERS_PER_MEMBER)
    figures |= {"1 in flight/s": point["rate"], "1 in flight CPU µs": point["broker_cpu_us"]}
    # The machine's cores are the same however many members there are: so much of each that it is
    # the members that are compared, and not what waits for a core and is served together.
    point = spread("paced", PACED_PER_MEMBER, rate=PACED_RATE, prefetch=100)
    figures["alike per member CPU µs"] = point["broker_cpu_us"]
    queue = new_queue()
    figures |= publish(cluster, queue=queue)
    drop(ports[0], queue)
    figures["MiB per member"] = processes.resident_mib(cluster.pids()) / len(ports)
    yield len(ports), figures


def by_consumers(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
    """Consumers with a prefetch of 10 share what lies in one queue."""
    for point in powers(1, 1_000, at_most):
        queue, ports = new_queue(), cluster.amqp_ports
        load_programs.run_amqpload("publish", ports[0], queue=f"{queue}-0", count=MESSAGES)
        taken = run_many(
            cluster,
            "consumers",
            1.0,
            queue=queue,
            seconds=CONSUME_SECONDS_MAX,
            warm_up=0,
            connections=point,
            prefetch=10,
            count=MESSAGES,
        )
        figures = {"consume/s": taken["rate"], "consume CPU µs": taken["broker_cpu_us"]}
        yield point, figures


def by_vhosts(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
    """Vhosts with an idle queue each beside the one that is used."""
    made = 0
    for point in powers(1, 1_000, at_most):
        before = processes.resident_mib(cluster.pids())
        started = time.monotonic()
        with vhost_definitions(range(made, point)) as file:
            import_definitions(cluster, file)
        took = time.monotonic() - started
        figures = idle(cluster)
        grown = processes.resident_mib(cluster.pids()) - before
        if point - made >= GROWN_MIN:
            figures["KiB per new vhost, all members"] = grown * 1024 / (point - made)
        made = point
        queue = new_queue()
        figures |= publish(cluster, queue=queue)
        drop(cluster.amqp_ports[0], queue)
        yield point, figures | {"import s": took}


def by_connections(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
    for point in powers(1, 10_000, at_most):
        before = processes.resident_mib(cluster.pids())
        with idle_connections(cluster.amqp_ports, point):
            figures = idle(cluster)
            grown = processes.resident_mib(cluster.pids()) - before
            if point >= GROWN_MIN:
                figures["KiB per connection"] = grown * 1024 / point
            queue = new_queue()
            figures |= publish(cluster, queue=queue)
            drop(cluster.amqp_ports[0], queue)
        yield point, figures


def by_size(cluster: Cluster, at_most: int) -> Iterator[tuple[int, Point]]:
    for point in (16, 128, 1024, 8192, 65_536, 1 << 20, 4 << 20, 16 << 20):
        if point > at_most:
            break
        queue = new_queue()
        # 256 MiB at most, but for the largest: fewer messages say nothing.
        count = max(32, min(MESSAGES, (256 << 20) // point))
        # As many bytes as 100 messages of 64 KiB at most: a megabyte each would be a gigabyte.
        in_flight = max(10, min(1000, (64 << 20) // point))
        figures = publish(cluster, count, queue=queue, size=point, in_flight=in_flight)
        figures["MiB/s"] = figures["publish/s"] * point / 2**20
        drop(cluster.amqp_ports[0], queue)
        yield point, figures
