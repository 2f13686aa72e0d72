"""How long does a large operation hold up a publisher that has nothing to do with it?

    python -m bench.stalls [--only brokerd|rabbitmq] [--bindings N] [--queues N] [--messages N]

A cluster of three; one publisher sends RATE messages per second with confirms to a quorum queue of
its own, through the member that leads it and that is asked for the operation. The result is the
longest time between a publish and its confirm meanwhile: of nothing but publishing, while a queue
with many bindings is deleted (its bindings go with it), while a queue with many messages is
deleted, beside many idle quorum queues over two intervals of telemetry (RabbitMQ: of its
statistics), while their leaders are rebalanced, and while their vhost is deleted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from bench import curve_points, curves, definitions, load_programs
from bench.processes import BenchError, Cluster

RATE = 200
#: Two intervals of brokerd's telemetry of 10 s.
WATCHED_S = 22
#: What is asked for at once may go on for so long.
BEHIND_S = 10
ASK_AFTER_S = 2.0
OWN_QUEUE = "stalls-own"
OTHER_QUEUE = "stalls-other"
VHOST = "stalls"


def longest_wait(cluster: Cluster, seconds: int, act: Callable[[], object] | None = None) -> float:
    """Return it in ms; act is called ASK_AFTER_S after the begin."""
    with load_programs.amqpload_running(
        "publish",
        cluster.amqp_ports[0],
        queue=OWN_QUEUE,
        rate=RATE,
        count=RATE * seconds,
        in_flight=1_000_000,
    ) as result_of:
        if act is not None:
            time.sleep(ASK_AFTER_S)
            act()
        return result_of()["max_us"] / 1e3


def delete_other(cluster: Cluster) -> None:
    load_programs.run_amqpload("delete", cluster.amqp_ports[0], queue=OTHER_QUEUE)


def bindings_go(cluster: Cluster, count: int) -> float:
    load_programs.run_amqpload("publish", cluster.amqp_ports[0], queue=OTHER_QUEUE, count=1)
    keys = [f"k{number}.other.*" for number in range(count)]
    with definitions.binding_definitions("topic", OTHER_QUEUE, keys) as file:
        definitions.import_definitions(cluster, file)
    return longest_wait(cluster, BEHIND_S, lambda: delete_other(cluster))


def messages_go(cluster: Cluster, count: int) -> float:
    load_programs.run_amqpload(
        "publish", cluster.amqp_ports[0], queue=OTHER_QUEUE, in_flight=1000, count=count
    )
    return longest_wait(cluster, BEHIND_S, lambda: delete_other(cluster))


def beside_queues(cluster: Cluster, count: int) -> float:
    cluster.control("add_vhost", VHOST)
    with definitions.queue_definitions("quorum", range(count), VHOST) as file:
        definitions.import_definitions(cluster, file)
    return longest_wait(cluster, WATCHED_S)


def leaders_move(cluster: Cluster) -> float:
    return longest_wait(cluster, BEHIND_S, cluster.rebalance)


def vhost_goes(cluster: Cluster) -> float:
    return longest_wait(cluster, BEHIND_S, lambda: cluster.control("delete_vhost", VHOST))


def measure(side: str, args: argparse.Namespace) -> tuple[str, dict[str, float]]:
    cluster = curves.CLUSTERS[side](3)
    waits: dict[str, float] = {}

    def row(title: str, wait_ms: float) -> None:
        waits[title] = wait_ms
        print(f"stalls: {cluster.title}: {title}: {wait_ms:,.0f} ms", file=sys.stderr, flush=True)

    try:
        cluster.start()
        load_programs.run_amqpload(
            "publish", cluster.amqp_ports[0], queue=OWN_QUEUE, count=curve_points.WARM_UP_MESSAGES
        )
        row("nothing else", longest_wait(cluster, BEHIND_S))
        title = f"a queue with {args.bindings:,} bindings is deleted"
        row(title, bindings_go(cluster, args.bindings))
        title = f"a queue with {args.messages:,} messages is deleted"
        row(title, messages_go(cluster, args.messages))
        title = f"{args.queues:,} idle quorum queues"
        row(title, beside_queues(cluster, args.queues))
        row("and their leaders are rebalanced", leaders_move(cluster))
        row(f"the vhost of these {args.queues:,} is deleted", vhost_goes(cluster))
    finally:
        cluster.stop()
    return cluster.title, waits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", choices=sorted(curves.CLUSTERS))
    parser.add_argument("--bindings", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=10_000)
    args = parser.parse_args()
    sides = [args.only] if args.only else sorted(curves.CLUSTERS)
    try:
        results = [measure(side, args) for side in sides]
    except BenchError as error:
        print(f"stalls: {error}", file=sys.stderr)
        return 1
    print(f"| longest wait for a confirm, ms | {' | '.join(title for title, _ in results)} |")
    print("|---" * (len(results) + 1) + "|")
    for title in results[0][1]:
        print(f"| {title} | {' | '.join(f'{waits[title]:,.0f}' for _, waits in results)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
