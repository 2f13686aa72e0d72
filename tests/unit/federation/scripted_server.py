"""An AMQP server that does what a script says, through the amqp room's server role."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from brokerd.amqp import events, methods
from brokerd.amqp.config import ConnectionConfig, Role
from brokerd.amqp.connection import AmqpConnection
from brokerd.amqp.values import Table

Script = Callable[[AmqpConnection, events.Event], None]


def polite(machine: AmqpConnection, event: events.Event) -> None:
    """Let everybody in and answer declares."""
    if isinstance(event, events.AuthenticationRequested):
        machine.authentication_succeeded()
    elif isinstance(event, events.OpenRequested):
        machine.open_accepted()
    elif isinstance(event, events.ChannelOpened):
        machine.send(event.channel, methods.ChannelOpenOk())
    elif isinstance(event, events.ChannelClosed) and event.by_peer:
        machine.send(event.channel, methods.ChannelCloseOk())
    elif isinstance(event, events.ConnectionClosed) and event.by_peer:
        machine.send(0, methods.ConnectionCloseOk())
    elif isinstance(event, events.MethodReceived):
        if isinstance(event.method, methods.QueueDeclare):
            name = event.method.queue
            machine.send(event.channel, methods.QueueDeclareOk(name, 0, 0))
        elif isinstance(event.method, methods.ExchangeDeclare):
            machine.close_channel(event.channel, 404, "no exchange", 40, 10)
        elif isinstance(event.method, methods.BasicConsume):
            machine.send(event.channel, methods.BasicConsumeOk("t"))
            deliver = methods.BasicDeliver("t", 1, False, "x", "k")
            machine.send_content(event.channel, deliver, b"\x00\x00", b"body")
        elif isinstance(event.method, methods.BasicCancel):
            machine.send(event.channel, methods.BasicCancel("t"))


@asynccontextmanager
async def serving(
    script: Script,
    silent_close_delay_ms: int = 3000,
    tls: ssl.SSLContext | None = None,
    properties: Table | None = None,
) -> AsyncIterator[int]:
    """Serve on a free loopback port.  properties: what the server says of itself."""
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        config = ConnectionConfig(
            server_properties=properties or {"cluster_name": "far"},
            silent_close_delay_ms=silent_close_delay_ms,
        )
        machine = AmqpConnection(Role.SERVER, config, 0)
        try:
            while not machine.wants_close and (data := await reader.read(65_536)):
                for event in machine.receive_data(data, 0):
                    script(machine, event)
                writer.write(machine.data_to_send())
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
