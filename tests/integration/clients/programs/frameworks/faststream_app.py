"""FastStream: a subscriber of a quorum queue, one of an auto-delete queue at a fanout, and RPC.

Arguments: the ports in the order in which they are tried, then the longest time of a call.  The
client that FastStream is built on takes one address, so each broker object is given the next one
when it cannot reach its own: as an application behind a load balancer, which this process is.
"""

import asyncio
import sys
import threading
from contextlib import suppress

import steady
from faststream.rabbit import ExchangeType, QueueType, RabbitBroker, RabbitExchange, RabbitQueue

CALL_TIMEOUT_S = 3.0
heard: set[int] = set()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


async def _balance(ports: list[int]) -> int:
    """Run a load balancer that takes the first member that answers; return its port."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in ports:
            with suppress(OSError):
                there = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(_pass_on(reader, there[1]), _pass_on(there[0], writer))
                return
        writer.close()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1])


def _subscribe(broker: RabbitBroker) -> RabbitExchange:
    events = RabbitExchange("faststream.events", type=ExchangeType.FANOUT, durable=True)

    @broker.subscriber(RabbitQueue("faststream", queue_type=QueueType.QUORUM, durable=True))
    async def double(number: int) -> int:
        return 2 * number

    @broker.subscriber(RabbitQueue("faststream.own", auto_delete=True, durable=False), events)
    async def hear(number: int) -> None:
        heard.add(number)

    return events


async def _main(ports: list[int], bound_s: float) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{await _balance(ports)}/?reconnect_interval=0.3"
    broker = RabbitBroker(url, logger=None)
    events = _subscribe(broker)
    await broker.start()
    loop = asyncio.get_running_loop()

    async def ask(number: int) -> None:
        answer = await broker.request(number, "faststream", timeout=CALL_TIMEOUT_S)
        assert await answer.decode() == 2 * number
        await broker.publish(number, exchange=events)

    def call(number: int) -> None:
        asked = asyncio.run_coroutine_threadsafe(ask(number), loop)
        try:
            asked.result(2 * CALL_TIMEOUT_S)
        finally:
            asked.cancel()

    calls = steady.Steady(call, bound_s)
    await loop.run_in_executor(None, calls.run)
    # The auto-delete queue is there again, wherever.
    for number in range(1_000_000, 1_000_050):
        await broker.publish(number, exchange=events)
        await asyncio.sleep(0.1)
        if number in heard:
            break
    assert any(number >= 1_000_000 for number in heard), "no event arrives"
    steady.done()


def main() -> None:
    *ports, bound_s = sys.argv[1:]
    threading.stack_size(0)
    asyncio.run(_main([int(port) for port in ports], float(bound_s)))


if __name__ == "__main__":
    main()
