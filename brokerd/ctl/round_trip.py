"""`python -m brokerd.ctl.round_trip`: do messages go through? What `helm test` of a cluster runs.

Over AMQP with TLS, as a client would: declare two quorum queues, publish with a confirm, consume,
reject, and find the message in the dead letter queue. The queues have names of their own and go
at the end, or a minute later by themselves. Uses the AMQP client of the federation room.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from pathlib import Path
from typing import TypeVar

import click

from brokerd.amqp import methods
from brokerd.amqp.events import DeliveriesReceived
from brokerd.amqp.properties import BasicProperties
from brokerd.amqp.values import Table
from brokerd.ctl import errors, settings
from brokerd.federation.client import Channel, Connection
from brokerd.federation.errors import ClientError, UpstreamError
from brokerd.federation.upstream import Address

#: What is left behind goes by itself.
EXPIRES_MS = 60_000
#: Each of confirm, delivery and dead letter: a majority may be slow, not absent.
STEP_TIMEOUT_S = 30.0
#: Between two tries to connect.
PAUSE_S = 1.0
BODY = b"brokerd round trip"

T = TypeVar("T")
Delivery = tuple[methods.BasicDeliver, bytes, bytes]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--host", required=True, help="Name that the certificate has.")
@click.option("--port", default=5671, help="Port of AMQP with TLS, or without where --plain.")
@click.option("--plain", is_flag=True, help="Without TLS.")
@click.option("--ca-file", default="", help="PEM file of the authority (default: the system's).")
@click.option("--user", envvar="BROKERD_USER", required=True, help="[env var: BROKERD_USER]")
@click.option(
    "--password-file", type=click.Path(path_type=Path), required=True, help="- for standard input."
)
@click.option("--vhost", default="/")
@click.option("--patience", default=60.0, help="Seconds to try to connect.")
def main(
    host: str,
    port: int,
    plain: bool,
    ca_file: str,
    user: str,
    password_file: Path,
    vhost: str,
    patience: float,
) -> None:
    """Publish, consume, reject and find the dead letter."""
    options = (("cacertfile", ca_file),) if ca_file else ()
    scheme = "amqp" if plain else "amqps"
    shown = f"{scheme}://{host}:{port}"
    try:
        password = settings.password_in(password_file)
    except errors.CtlError as error:
        print(f"FAILED: {error}")
        sys.exit(error.exit_code)
    address = Address(
        host=host,
        port=port,
        tls=not plain,
        vhost=vhost,
        user=user,
        password=password,
        options=options,
        shown=shown,
    )
    try:
        asyncio.run(_run(address, vhost, patience))
    except (ClientError, UpstreamError, TimeoutError) as error:
        print(f"FAILED: {error}")
        sys.exit(1)
    print("round trip passed")


async def _run(address: Address, vhost: str, patience_s: float) -> None:
    connection = await _connect(address, vhost, patience_s)
    try:
        print(f"logged in at {address.shown}")
        await _round_trip(await connection.open_channel())
    finally:
        await connection.close()


async def _connect(address: Address, vhost: str, patience_s: float) -> Connection:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return await Connection.open(address, vhost, "helm test")
        except ClientError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(PAUSE_S)


async def _round_trip(channel: Channel) -> None:
    name = f"brokerd-round-trip-{secrets.token_hex(8)}"
    dead = f"{name}-dead"
    confirms: asyncio.Queue[bool] = asyncio.Queue()
    deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
    channel.on_confirm = lambda _tag, _multiple, is_confirmed: confirms.put_nowait(is_confirmed)

    def delivered(run: DeliveriesReceived) -> None:
        for body in run.bodies:
            deliveries.put_nowait((run.method, run.header, body))

    channel.on_deliveries = delivered
    try:
        await channel.call(_queue(dead))
        arguments: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        await channel.call(_queue(name, arguments))
        await channel.call(methods.ConfirmSelect())
        channel.publish("", name, BasicProperties(delivery_mode=2).encode(), BODY)
        if not await _within(confirms, "no confirm"):
            raise ClientError("the broker refused the message")
        print("published: confirmed")
        for queue in (name, dead):
            await channel.call(methods.BasicConsume(queue=queue, consumer_tag=queue))
        method, _, body = await _within(deliveries, "no delivery")
        _expect(method, body, name)
        print("consumed: the message came back whole")
        channel.cast(methods.BasicReject(method.delivery_tag, requeue=False))
        method, header, body = await _within(deliveries, "no dead letter")
        _expect(method, body, dead)
        if not (BasicProperties.decode(header).headers or {}).get("x-death"):
            raise ClientError("the dead letter has no x-death header")
        channel.cast(methods.BasicAck(method.delivery_tag))
        print("rejected: the dead letter arrived")
    finally:
        if channel.error is None:
            for queue in (name, dead):
                await channel.call(methods.QueueDelete(queue=queue))


def _queue(name: str, arguments: Table | None = None) -> methods.QueueDeclare:
    table: Table = {"x-queue-type": "quorum", "x-expires": EXPIRES_MS, **(arguments or {})}
    return methods.QueueDeclare(queue=name, durable=True, arguments=table)


async def _within(queue: asyncio.Queue[T], problem: str) -> T:
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            return await queue.get()
    except TimeoutError:
        raise ClientError(f"{problem} within {STEP_TIMEOUT_S:g} s") from None


def _expect(method: methods.BasicDeliver, body: bytes, consumer: str) -> None:
    if method.consumer_tag != consumer or body != BODY:
        raise ClientError(f"unexpected message of {len(body)} bytes from {method.consumer_tag}")


if __name__ == "__main__":
    main()
