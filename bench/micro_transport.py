"""What a message between members costs: framing alone, over sockets, and over grpc.aio.

    python -m bench.micro_transport [--count N]

One message there and one back, CPU and time of both ends together, in microseconds.  h2 is measured
where it is installed; the product does not need it (ADR 12).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import grpc
import uvloop

from brokerd.cluster.config import HostConfig, TransportConfig
from brokerd.cluster.peer import grpc_messages
from brokerd.cluster.peer.peer_connection import PeerConnection
from brokerd.http2 import one_stream

ROUNDS = 5
SIZES = (100, 1_100, 250_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3_000)
    count = parser.parse_args().count
    has_h2 = importlib.util.find_spec("h2") is not None
    for size in SIZES:
        times = count if size < 10_000 else count // 10
        row(f"framing, own, {size} B", partial(own_framing, size, times))
        if has_h2:
            row(f"framing, h2, {size} B", partial(h2_framing, size, times))
    for size in SIZES:
        times = count if size < 10_000 else count // 10
        row(f"sockets, own, {size} B", partial(running, own_sockets, size, times))
        row(f"sockets, grpc.aio, {size} B", partial(running, aio_sockets, size, times))


def running(
    measure: Callable[[int, int], Coroutine[None, None, tuple[float, float]]], size: int, count: int
) -> tuple[float, float]:
    """Run a measurement on a loop of its own."""
    found: tuple[float, float] = uvloop.run(measure(size, count))
    return found


def row(name: str, measure: Callable[[], tuple[float, float]]) -> None:
    """Print the medians of some rounds."""
    found = [measure() for _ in range(ROUNDS)]
    cpu, wall = (statistics.median(values) for values in zip(*found, strict=True))
    print(f"{name:34} cpu {cpu:9.1f} us  time {wall:9.1f} us")


class Watch:
    """CPU and time of the process since it was made."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def each_us(self, count: int) -> tuple[float, float]:
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        return cpu / count * 1e6, wall / count * 1e6


# ---- framing alone ------------------------------------------------------------------------------


def own_framing(size: int, count: int) -> tuple[float, float]:
    client, server = (
        one_stream.Http2Connection(is_client=True),
        one_stream.Http2Connection(is_client=False),
    )

    def move(
        sender: one_stream.Http2Connection, to: one_stream.Http2Connection
    ) -> list[one_stream.Event]:
        return to.receive(b"".join(sender.data_to_send()))

    client.send_headers(grpc_messages.request_headers("http", "x", []))
    move(client, server)
    server.send_headers(grpc_messages.response_headers())
    for each in (client, server):
        each.open_window(TransportConfig().window_bytes)
    move(server, client)
    move(client, server)
    readers = {each: grpc_messages.MessageReader(1 << 20) for each in (client, server)}
    message = bytes(size)
    watch = Watch()
    for _ in range(count):
        for sender, to in ((client, server), (server, client)):
            sender.send_data((grpc_messages.prefix(size), message), size + 5)
            for event in move(sender, to):
                assert isinstance(event, memoryview)
                readers[to].feed(event)
            if to.out:
                move(to, sender)
    return watch.each_us(count)


def h2_framing(size: int, count: int) -> tuple[float, float]:
    h2: Any = importlib.import_module("h2.connection")
    config: Any = importlib.import_module("h2.config")
    received: Any = importlib.import_module("h2.events").DataReceived
    client, server = (
        h2.H2Connection(config.H2Configuration(client_side=side, header_encoding=None))
        for side in (True, False)
    )
    for each in (client, server):
        each.initiate_connection()
        each.update_settings({4: TransportConfig().window_bytes, 5: one_stream.FRAME_BYTES_MAX})

    def settle() -> None:
        for _ in range(4):
            server.receive_data(client.data_to_send())
            client.receive_data(server.data_to_send())

    settle()
    client.send_headers(1, grpc_messages.request_headers("http", "x", []))
    settle()
    server.send_headers(1, grpc_messages.response_headers())
    for each in (client, server):
        each.increment_flow_control_window(TransportConfig().window_bytes)
    settle()
    message = bytes(size)
    watch = Watch()
    for _ in range(count):
        for sender, to in ((client, server), (server, client)):
            sender.send_data(1, grpc_messages.prefix(size) + message)
            for event in to.receive_data(sender.data_to_send()):
                if type(event) is received:
                    to.acknowledge_received_data(event.flow_controlled_length, 1)
            if back := to.data_to_send():
                sender.receive_data(back)
    return watch.each_us(count)


# ---- over sockets -------------------------------------------------------------------------------


class Echo(PeerConnection):
    """Sends each message back; the client stops when `left` is used up."""

    def __init__(self, *, is_client: bool, left: int = 0) -> None:
        super().__init__(HostConfig().transport, is_client=is_client)
        self.reader.bytes_max = self.limits.receive_bytes_max
        self.left = left
        self.done = asyncio.get_running_loop().create_future()

    def opened(self) -> None:
        if self.left:
            self.http2.send_headers(grpc_messages.request_headers("http", "x", []))
            self.http2.open_window(self.limits.window_bytes)

    def headers_received(self, event: one_stream.HeadersReceived) -> None:
        if not self.left:
            self.http2.send_headers(grpc_messages.response_headers())
            self.http2.open_window(self.limits.window_bytes)

    def message_received(self, message: bytes) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                self.done.set_result(None)
                return
        self.send_message((message,), len(message))
        self.flush()


async def own_sockets(size: int, count: int) -> tuple[float, float]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Echo(is_client=False), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, client = await loop.create_connection(
        lambda: Echo(is_client=True, left=count), "127.0.0.1", port
    )
    watch = Watch()
    client.send_message((bytes(size),), size)
    client.flush()
    await client.done
    result = watch.each_us(count)
    client.give_up(None)
    await client.lost
    server.close()
    return result


async def aio_sockets(size: int, count: int) -> tuple[float, float]:
    async def echo(_: object, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    server = grpc.aio.server()
    handler: Any = grpc.stream_stream_rpc_method_handler(echo)
    service, method = grpc_messages.METHOD.strip("/").split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_stream(grpc_messages.METHOD)()
        message = bytes(size)
        watch = Watch()
        for _ in range(count):
            await call.write(message)
            await call.read()
        result = watch.each_us(count)
        call.cancel()
    await server.stop(None)
    return result


if __name__ == "__main__":
    main()
