"""What a message over gRPC costs: CPU of the member and of Python's client.

    python -m bench.grpc_calls [--count N] [--per-request 1,100]

One member with a quorum queue, and a program with grpcio that publishes COUNT messages of 100 B
with 1,000 in flight, then consumes them with a credit of 2,000 and settles with `multiple`.  CPU
and no rates, so the figures hold on a busy machine.  Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import base64
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

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
        settle = messages.Settlement(
            delivery_tags=[answer.deliveries[-1].delivery_tag], multiple=True
        )
        requests.put(messages.ConsumeRequest(settle=settle))
        requests.put(messages.ConsumeRequest(credit=len(answer.deliveries)))
        left -= len(answer.deliveries)
        if not left:
            requests.put(None)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--per-request", default="1,100")
    options = parser.parse_args()
    cluster = BrokerdCluster(1)
    try:
        cluster.start()
        channel = grpc.insecure_channel(f"127.0.0.1:{cluster.rpc_ports[0]}")
        stub = messages_pb2_grpc.MessagesStub(channel)  # type: ignore[no-untyped-call]
        print(f"{cluster.title}; µs of CPU per message, member and client\n")
        print("| | member | client |\n|---|---|---|")
        for per_request in map(int, options.per_request.split(",")):
            name, port = new_queue(), cluster.amqp_ports[0]
            load_programs.run_amqpload("publish", port, queue=name, count=1)
            load_programs.run_amqpload("consume", port, queue=name, count=1)
            for what in ("publish", "consume"):
                before, own_s = processes.cpu_seconds(cluster.pids()), time.process_time()
                if what == "publish":
                    publish(stub, name, options.count, per_request)
                else:
                    consume(stub, name, options.count)
                spent_s = processes.cpu_seconds(cluster.pids()) - before
                own_s = time.process_time() - own_s
                figures = (each / options.count * 1e6 for each in (spent_s, own_s))
                row = " | ".join(f"{figure:.1f}" for figure in figures)
                print(f"| {what}, {per_request} per request | {row} |", flush=True)
            drop(port, name)
        channel.close()
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
