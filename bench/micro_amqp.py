"""Micro bench of the AMQP room: ns per message for reading publishes and acks and for deliveries.

Use: `python bench/micro_amqp.py`.  Prints the best of several rounds; compare on one quiet machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from brokerd.amqp import events, methods
from brokerd.amqp.config import ConnectionConfig, Credentials, Role
from brokerd.amqp.connection import AmqpConnection
from brokerd.amqp.deliver import DeliverEncoder
from brokerd.amqp.frames import content_frames
from brokerd.amqp.properties import BasicProperties

ROUNDS = 30
MESSAGES = 200


def open_server() -> AmqpConnection:
    """A server machine with channel 1 open, by a real handshake."""
    server = AmqpConnection(Role.SERVER, ConnectionConfig(), 0)
    client = AmqpConnection(Role.CLIENT, ConnectionConfig(credentials=Credentials("u", "p")), 0)
    while not client.is_open:
        for event in server.receive_data(client.data_to_send(), 0):
            if type(event) is events.AuthenticationRequested:
                server.authentication_succeeded()
            elif type(event) is events.OpenRequested:
                server.open_accepted()
        client.receive_data(server.data_to_send(), 0)
    server.receive_data(methods.ChannelOpen().encode(1), 0)
    server.send(1, methods.ChannelOpenOk())
    server.data_to_send()
    return server


def message(number: int, body_size: int, is_unique: bool) -> bytes:
    """A publish as clients send it; unique ones carry a message id each."""
    properties = BasicProperties(content_type="text/plain", delivery_mode=2)
    if is_unique:
        properties.message_id = f"id-{number:012d}"
    publish = methods.BasicPublish(exchange="orders.in", routing_key="orders.eu.new")
    frames = content_frames(1, 60, properties.encode(), bytes(body_size), 131072)
    return publish.encode(1) + b"".join(frames)


def best_ns(name: str, count: int, work: Callable[[], object]) -> None:
    """Runs it some rounds and prints the best."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        work()
        best = min(best, (time.perf_counter_ns() - start) / count)
    print(f"{name:<58}{best:>9.0f} ns")


def chunked(server: AmqpConnection, data: bytes, size: int) -> None:
    """Feeds data in reads of one size, as a socket would."""
    for start in range(0, len(data), size):
        server.receive_data(data[start : start + size], 0)


def main() -> None:
    """All figures."""
    server = open_server()
    for body_size in (16, 1024, 16 * 1024):
        same = message(0, body_size, False) * MESSAGES
        unique = b"".join(message(n, body_size, True) for n in range(MESSAGES))
        best_ns(
            f"parse {body_size} B, equal properties, one read",
            MESSAGES,
            lambda data=same: server.receive_data(data, 0),  # type: ignore[misc]
        )
        best_ns(
            f"parse {body_size} B, unique message ids, one read",
            MESSAGES,
            lambda data=unique: server.receive_data(data, 0),  # type: ignore[misc]
        )
    same = message(0, 1024, False) * 2000
    best_ns("parse 1 KiB, reads of 64 KiB", 2000, lambda: chunked(server, same, 65536))
    large = message(0, 1024 * 1024, False)
    best_ns("parse 1 MiB, reads of 64 KiB", 1, lambda: chunked(server, large, 65536))
    acks = b"".join(methods.BasicAck(n).encode(1) for n in range(1, 1001))
    best_ns("acks, 1,000 in one read", 1000, lambda: server.receive_data(acks, 0))
    encoder = DeliverEncoder(1, "ctag-1", "orders.in", "orders.eu.new", 131072)
    header = BasicProperties(content_type="text/plain", delivery_mode=2).encode()
    for body_size in (16, 1024, 16 * 1024):
        items = [(header, bytes(body_size)) for _ in range(MESSAGES)]
        best_ns(
            f"deliver {body_size} B, joined, {MESSAGES} per batch",
            MESSAGES,
            lambda batch=items: encoder.frames(1, False, batch),  # type: ignore[misc]
        )
    headers = [
        BasicProperties(delivery_mode=2, message_id=f"id-{n}").encode() for n in range(MESSAGES)
    ]
    mixed = [(raw, bytes(1024)) for raw in headers]
    best_ns("deliver 1 KiB, unique properties", MESSAGES, lambda: encoder.frames(1, False, mixed))
    declare = methods.QueueDeclare(queue="q", durable=True, arguments={"x-queue-type": "quorum"})
    frame = declare.encode(1)
    best_ns("queue.declare, one method per read", 1, lambda: server.receive_data(frame, 0))


if __name__ == "__main__":
    main()
