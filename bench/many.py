"""What do many small publishers cost?  CPU of all members per publish, two checkouts side by side.

    python -m bench.many OLD [NEW] [--publishers N] [--queues N] [--each N] [--pairs N]

N connections (one client process) publish 1 KiB to quorum queues of three, each awaiting its
confirm before the next.  As in bench.pairs, three members of each checkout run at the same time
and take turns, so that the ratio holds on a busy machine; the client's own CPU is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection

from bench import processes
from bench.brokerd_nodes import BrokerdCluster
from bench.pairs import start

BODY = bytes(1024)
CONNECTIONS_AT_ONCE = 20


async def publisher(
    port: int, room: asyncio.Semaphore, connections: list[AbstractConnection]
) -> AbstractChannel:
    """Connect; a login costs the broker a password hash, so not all at once."""
    async with room:
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
        connections.append(connection)
        return await connection.channel()


async def publish(channel: AbstractChannel, queue: str, count: int) -> list[float]:
    """Return the seconds that each confirm took."""
    waits = []
    for _ in range(count):
        begun = time.perf_counter()
        await channel.default_exchange.publish(aio_pika.Message(BODY), queue)
        waits.append(time.perf_counter() - begun)
    return waits


async def measure(clusters: list[BrokerdCluster], args: argparse.Namespace) -> None:
    """Print the table."""
    room = asyncio.Semaphore(CONNECTIONS_AT_ONCE)
    queues = [f"many{number}" for number in range(args.queues)]
    sides = []
    connections: list[AbstractConnection] = []
    for cluster in clusters:
        port = cluster.amqp_ports[0]
        channels = await asyncio.gather(
            *(publisher(port, room, connections) for _ in range(args.publishers))
        )
        for queue in queues:
            await channels[0].declare_queue(
                queue, durable=True, arguments={"x-queue-type": "quorum"}
            )
        sides.append(channels)
    found: list[list[tuple[float, float]]] = [[], []]
    for number in range(args.pairs):
        for side in (0, 1) if number % 2 else (1, 0):
            pids = clusters[side].pids()
            before = processes.cpu_seconds(pids)
            waits = await asyncio.gather(
                *(
                    publish(channel, queues[place % len(queues)], args.each)
                    for place, channel in enumerate(sides[side])
                )
            )
            spent = processes.cpu_seconds(pids) - before
            flat = [wait for each in waits for wait in each]
            found[side].append((spent * 1e6 / len(flat), statistics.median(flat) * 1e6))
    print("| work | figure | old | new | median of ratios |\n|---|---|---|---|---|")
    work = f"{args.publishers} publishers, 1 in flight each, {args.queues} queues"
    for place, figure in enumerate(("CPU, all members", "p50")):
        old, new = ([figures[place] for figures in side] for side in found)
        ratio = statistics.median(after / before for before, after in zip(old, new, strict=True))
        middles = f"{statistics.median(old):,.0f} µs | {statistics.median(new):,.0f} µs"
        print(f"| {work} | {figure} | {middles} | {ratio:.3f} |", flush=True)
    await asyncio.gather(*(connection.close() for connection in connections))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=Path.cwd())
    parser.add_argument("--publishers", type=int, default=200)
    parser.add_argument("--queues", type=int, default=1)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=6)
    args = parser.parse_args()
    clusters: list[BrokerdCluster] = []
    try:
        for checkout in (args.old.resolve(), args.new.resolve()):
            clusters.append(start(checkout))
        asyncio.run(measure(clusters, args))
    finally:
        for cluster in clusters:
            cluster.stop()


if __name__ == "__main__":
    main()
