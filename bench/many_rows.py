"""Rows of the comparison with many clients: how most programs use a broker.

A hundred pods with a handful of connections each, one message at a time, a confirm awaited before
the next, and many queues.  Clients and queues are spread over the members, as a service in front of
them does it; the load program is one C thread (load/many.c).  For bench.run.
"""

from __future__ import annotations

from bench import load_programs, processes
from bench.brokerd_nodes import BrokerdCluster
from bench.processes import Cluster
from bench.rows import Aim, Measure, Point, Row, at_most, drop, new_queue, scaled

#: A run that is measured for less than this says nothing.
SECONDS_MIN = 2
#: Of a run whose end is a number of messages.
RUN_SECONDS_MAX = 120
PUBLISHERS = 200
CONSUMERS = 200
#: More than 200 consumers take from one of 20 queues in the time that they are measured.
MESSAGES_PER_QUEUE = 5_000
#: Publications in a request of a gRPC client that has several at hand.
REQUEST_MESSAGES = 100


def ports_of(cluster: Cluster) -> str:
    return ",".join(str(port) for port in cluster.amqp_ports)


def run_many(
    cluster: Cluster, verb: str, scale: float, *, queue: str, seconds: int, **options: object
) -> Point:
    """One run of many connections; its queues are dropped afterwards."""
    ports = ports_of(cluster)
    lasting = max(round(seconds * scale), SECONDS_MIN)
    try:
        return load_programs.run_costed(
            verb, ports, cluster.pids(), queue=queue, seconds=lasting, **options
        )
    finally:
        load_programs.run_amqpload("drop", ports, queue=queue, queues=options.get("queues", 1))


def run_publishers(cluster: Cluster, publishers: int, count: int) -> Point:
    """Publishers with one in flight each, on one queue, until `count` messages are confirmed."""
    return run_many(
        cluster,
        "publishers",
        1.0,
        queue=new_queue(),
        seconds=RUN_SECONDS_MAX,
        connections=publishers,
        count=count,
    )


def one_in_flight(queues: int) -> Measure:
    def measure(cluster: Cluster, scale: float) -> Point:
        return run_many(
            cluster,
            "publishers",
            scale,
            queue=new_queue(),
            seconds=8,
            connections=PUBLISHERS,
            queues=queues,
        )

    return measure


def paced(cluster: Cluster, scale: float) -> Point:
    return run_many(
        cluster,
        "paced",
        scale,
        queue=new_queue(),
        seconds=20,
        warm_up=3,
        timeout=60,
        connections=scaled(1_000, scale),
        queues=100,
        rate=5,
        prefetch=100,
    )


def fair_dispatch(cluster: Cluster, scale: float) -> Point:
    queue, queues, count = new_queue(), 20, scaled(MESSAGES_PER_QUEUE, scale)
    for number in range(queues):
        port = cluster.amqp_ports[number % len(cluster.amqp_ports)]
        load_programs.run_amqpload("publish", port, queue=f"{queue}-{number}", count=count)
    return run_many(
        cluster,
        "consumers",
        scale,
        queue=queue,
        seconds=8,
        connections=CONSUMERS,
        queues=queues,
        prefetch=1,
        count=count,
    )


def rpc(**options: object) -> Measure:
    """100 callers with one call in flight each, 10 servers on one queue."""

    def measure(cluster: Cluster, scale: float) -> Point:
        return run_many(
            cluster,
            "rpc",
            scale,
            queue=new_queue(),
            seconds=8,
            connections=100,
            servers=10,
            prefetch=10,
            **options,
        )

    return measure


def churn(cluster: Cluster, scale: float) -> Point:
    """Two spells: what the first one makes grow is there for good, and the second is measured.

    What connections have left in queues is no memory of theirs: the queues are deleted first.
    """
    queue, ports = new_queue(), ports_of(cluster)
    options: dict[str, object] = {"queue": queue, "queues": 20, "connections": 20}

    def resident_mib() -> float:
        load_programs.run_amqpload("drop", ports, queue=queue, queues=20)
        return processes.resident_mib(cluster.pids())

    load_programs.run_amqpload("churn", ports, seconds=SECONDS_MIN, **options)
    before_mib = resident_mib()
    lasting = max(round(8 * scale), SECONDS_MIN)
    point = load_programs.run_costed("churn", ports, cluster.pids(), seconds=lasting, **options)
    grown_mib = resident_mib() - before_mib
    return point | {"grown_kib": grown_mib * 1024 / point["messages"]}


def grpc_stream(per_request: int) -> Measure:
    def measure(cluster: Cluster, scale: float) -> Point:
        assert isinstance(cluster, BrokerdCluster)
        queue, port = new_queue(), cluster.amqp_ports[0]
        load_programs.run_amqpload("publish", port, queue=queue, count=1)
        count = scaled(300_000 if per_request > 1 else 150_000, scale)
        point = load_programs.run_costed(
            "grpc",
            cluster.rpc_ports[0],
            cluster.pids(),
            queue=queue,
            count=count,
            in_flight=1000,
            per_write=per_request,
        )
        drop(port, queue)
        return point

    return measure


#: What a publisher that awaits each confirm sees.
CONFIRMS = (
    Aim("rate", "msg/s", 2.0),
    at_most("p50_us", "confirm p50, µs", 0.6),
    at_most("p99_us", "confirm p99, µs", 0.6),
)
CALLS = (
    Aim("rate", "calls/s", 1.5),
    Aim("delivery_p50_us", "p50, µs"),
    Aim("delivery_p99_us", "p99, µs"),
)
MANY_ROWS = (
    *(
        Row(
            f"publishers-{queues}",
            f"200 publishers, 1 in flight each, {queues} queue{'s' if queues > 1 else ''}",
            CONFIRMS,
            one_in_flight(queues),
        )
        for queues in (1, 20, 200)
    ),
    Row(
        "paced",
        "1,000 connections, 5 msg/s each, 100 queues, a consumer on each",
        (
            at_most("delivery_p50_us", "end to end p50, µs", 0.6),
            at_most("delivery_p99_us", "end to end p99, µs", 0.6),
            at_most("broker_cpu_us", "CPU of all members, µs per message", 0.5),
        ),
        paced,
    ),
    Row(
        "consumers-200",
        "200 consumers, prefetch 1, ack each, 20 queues",
        (Aim("rate", "msg/s", 2.0),),
        fair_dispatch,
    ),
    Row(
        "rpc",
        "100 RPC clients, direct reply-to, 10 servers, classic queue",
        CALLS,
        rpc(type="classic", transient=True),
    ),
    Row("rpc-quorum", "the same, quorum queue", CALLS, rpc()),
    Row(
        "churn",
        "connect, declare, publish, close; 20 at once",
        (
            Aim("rate", "connections/s", 2.0),
            Aim("p99_us", "p99, µs"),
            Aim("grown_kib", "memory kept, KiB per connection"),
        ),
        churn,
    ),
    Row(
        "grpc",
        f"gRPC stream, 1,000 in flight, {REQUEST_MESSAGES} per request (ratio: to AMQP's)",
        (Aim("rate", "msg/s", 1.0),),
        grpc_stream(REQUEST_MESSAGES),
        beside="publish-1000",
    ),
    Row(
        "grpc-single",
        "the same, a request per message (ratio: to AMQP's with a write per message)",
        (Aim("rate", "msg/s", 1.0),),
        grpc_stream(1),
        beside="publish-single",
    ),
)
