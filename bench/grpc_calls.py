"""What a message over gRPC costs: CPU of the member and of Python's client.

    python -m bench.grpc_calls [--count N] [--calls N] [--per-request 1,100]

One member with a quorum queue, and a program with grpcio that publishes COUNT messages of 100 B
with 1,000 in flight, then consumes them with a credit of 2,000 and settles with `multiple`.  Then
CALLS single messages, each after the confirm of the one before: by PublishBatch, by PublishBatch
from 50 threads, and by pika; and as many health checks, a call that asks nothing of a queue.  CPU
and no rates, so the figures hold on a busy machine.  Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import base64
import queue
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import pika
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench import load_programs, processes
from bench.brokerd_nodes import BrokerdCluster
from bench.rows import drop, new_queue
from brokerd.rpc.v1 import messages_pb2 as messages
from brokerd.rpc.v1 import messages_pb2_grpc

BODY = bytes(100)
IN_FLIGHT_MAX = 1000
CREDIT = 2000
LOGIN = (("authorization", "Basic " + base64.b64encode(b"guest:guest").decode()),)


def publish(stub: Any, name: str, count: int, per_request: int) -> None:
    """Publish with confirms."""
    room = threading.Semaphore(IN_FLIGHT_MAX)

    def requests() -> Iterator[Any]:
        for first in range(1, count + 1, per_request):
            numbers = range(first, min(first + per_request, count + 1))
            for _ in numbers:
                room.acquire()
            yield messages.PublishRequest(
                publications=[
                    messages.Publication(sequence=number, routing_key=name, body=BODY)
                    for number in numbers
                ]
            )

    for answer in stub.Publish(requests(), metadata=LOGIN):
        for span in answer.confirmed:
            room.release(span.last - span.first + 1)


def consume(stub: Any, name: str, count: int) -> None:
    """Take and settle all."""
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    subscribe = messages.Subscribe(queue=name, credit=CREDIT)
    requests.put(messages.ConsumeRequest(subscribe=subscribe))
    left = count
    for answer in stub.Consume(iter(requests.get, None), metadata=LOGIN):
        if not answer.deliveries:
            continue
        settle = messages.Settlement(
            delivery_tags=[answer.deliveries[-1].delivery_tag], multiple=True
        )
        requests.put(messages.ConsumeRequest(settle=settle))
        requests.put(messages.ConsumeRequest(credit=len(answer.deliveries)))
        left -= len(answer.deliveries)
        if not left:
            requests.put(None)


def publish_batches(stub: Any, name: str, count: int, threads: int) -> None:
    """Publish message by message, from so many threads."""
    request = messages.PublishRequest(
        publications=[messages.Publication(sequence=1, routing_key=name, body=BODY)]
    )

    def work() -> None:
        for _ in range(count // threads):
            stub.PublishBatch(request, metadata=LOGIN)

    working = [threading.Thread(target=work) for _ in range(threads)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()


def publish_by_pika(port: int, name: str, count: int) -> None:
    """Publish message by message over AMQP."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(count):
            channel.basic_publish("", name, BODY)


def check_health(channel: grpc.Channel, count: int) -> None:
    """Make calls that ask nothing of a queue."""
    stub = health_pb2_grpc.HealthStub(channel)
    for _ in range(count):
        stub.Check(health_pb2.HealthCheckRequest())


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--per-request", default="1,100")
    options = parser.parse_args()
    cluster = BrokerdCluster(1)
    try:
        cluster.start()
        channel = grpc.insecure_channel(f"127.0.0.1:{cluster.rpc_ports[0]}")
        stub = messages_pb2_grpc.MessagesStub(channel)  # type: ignore[no-untyped-call]
        print(f"{cluster.title}; µs of CPU per message, member and client\n")
        print("| | member | client |\n|---|---|---|")

        def measure(what: str, count: int, work: Callable[[], None]) -> None:
            before, own_s = processes.cpu_seconds(cluster.pids()), time.process_time()
            work()
            spent_s = processes.cpu_seconds(cluster.pids()) - before
            own_s = time.process_time() - own_s
            figures = (each / count * 1e6 for each in (spent_s, own_s))
            row = " | ".join(f"{figure:.1f}" for figure in figures)
            print(f"| {what} | {row} |", flush=True)

        for per_request in map(int, options.per_request.split(",")):
            name, port = new_queue(), cluster.amqp_ports[0]
            load_programs.run_amqpload("publish", port, queue=name, count=1)
            load_programs.run_amqpload("consume", port, queue=name, count=1)
            count, of = options.count, f"{per_request} per request"
            measure(f"publish, {of}", count, partial(publish, stub, name, count, per_request))
            measure(f"consume, {of}", count, partial(consume, stub, name, count))
            drop(port, name)
        name, port, count = new_queue(), cluster.amqp_ports[0], options.calls
        load_programs.run_amqpload("publish", port, queue=name, count=1)
        measure("PublishBatch, 1 at a time", count, partial(publish_batches, stub, name, count, 1))
        measure("PublishBatch, 50 at once", count, partial(publish_batches, stub, name, count, 50))
        measure("pika, 1 at a time", count, partial(publish_by_pika, port, name, count))
        measure("health check", count, partial(check_health, channel, count))
        drop(port, name)
        channel.close()
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
