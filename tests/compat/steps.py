"""What a case does on a channel, in one line each: publish with its fate, take, drain, be refused.

Every function works on a plain pika channel and knows no server; who is asked is the harness's
matter (conftest.py, servers.py).  Used by the cases of routing, settlement, limits, dead letters,
quorum queues and policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
from pika import exceptions
from pika.compat import long

from tests.integration.members import eventually, select_nothing

#: Two loaded cores, an Erlang node beside the member: only a failing case waits this long.
SECONDS = 60.0
QUORUM = {"x-queue-type": "quorum"}

Taken = tuple[Any, Any, bytes]


def queue(channel: Any, name: str = "", /, **arguments: Any) -> str:
    """Declare a durable classic queue; keyword `x_max_length` is argument `x-max-length`."""
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    answer = channel.queue_declare(name, durable=True, arguments=table)
    return str(answer.method.queue)


def quorum(channel: Any, name: str, /, **arguments: Any) -> str:
    """Declare a quorum queue."""
    return queue(channel, name, x_queue_type="quorum", **arguments)


def bound(channel: Any, exchange: str, *keys: str, name: str = "", **arguments: Any) -> str:
    """Declare a queue and bind it with every key."""
    made = queue(channel, name, **arguments)
    for key in keys:
        channel.queue_bind(made, exchange, key)
    return made


def exchange(channel: Any, name: str, kind: str = "direct", /, **settings: Any) -> str:
    """Declare an exchange; `alternate` is its alternate-exchange argument."""
    table = dict(settings.pop("arguments", {}))
    if "alternate" in settings:
        table["alternate-exchange"] = settings.pop("alternate")
    channel.exchange_declare(name, kind, arguments=table, **settings)
    return name


def confirming(connection: Any) -> Any:
    """Open a channel in confirm mode."""
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def publish(
    channel: Any,
    exchange: str,
    key: str,
    body: bytes | str = b"m",
    /,
    *,
    mandatory: bool = False,
    **properties: Any,
) -> str:
    """Publish on a confirming channel; return its fate: ack, nack or returned."""
    content = body.encode() if isinstance(body, str) else body
    try:
        channel.basic_publish(
            exchange, key, content, pika.BasicProperties(**properties), mandatory=mandatory
        )
    except exceptions.NackError:
        return "nack"
    except exceptions.UnroutableError:
        return "returned"
    return "ack"


def take(channel: Any, name: str, *, ack: bool = True) -> Taken:
    """Get one message, waiting for it; `ack=False` leaves it unacknowledged."""

    def got() -> Taken | None:
        answer: Taken = channel.basic_get(name, auto_ack=ack)
        return answer if answer[0] is not None else None

    answer: Taken = eventually(got, f"a message in {name}", SECONDS)
    return answer


def unacked(channel: Any, name: str) -> Taken:
    """Get one message, waiting for it, and leave it unacknowledged."""
    return take(channel, name, ack=False)


def drain(channel: Any, name: str) -> list[bytes]:
    """Take what is ready now; return the bodies."""
    return [body for _, _, body in drained(channel, name)]


def drained(channel: Any, name: str) -> Iterator[Taken]:
    """Take what is ready now, whole messages."""
    while True:
        answer = channel.basic_get(name, auto_ack=True)
        if answer[0] is None:
            return
        yield answer


def is_empty(channel: Any, name: str) -> bool:
    """Say whether nothing is ready, behind what this channel has returned.

    By a get, which takes what should not be there: a passive declare's count of a quorum queue is 0
    for an instant while a message returns.
    """
    return channel.basic_get(name, auto_ack=True)[0] is None


def ready(channel: Any, name: str) -> int:
    """Return how many messages are ready, as a passive declare tells."""
    return int(channel.queue_declare(name, passive=True).method.message_count)


def wait_ready(channel: Any, name: str, count: int) -> None:
    """Wait until so many messages are ready; for 0 the channel is the one that returned some."""
    eventually(lambda: ready(channel, name) == count, f"{count} ready in {name}", SECONDS)
    if count == 0:
        assert is_empty(channel, name), f"{name} was empty for an instant only"


def pause_ms(milliseconds: int) -> None:
    """Let a time to live of a test pass; what follows is polled."""
    select_nothing(milliseconds / 1000)


def is_there(connection: Any, kind: str, name: str) -> bool:
    """Say whether a queue or an exchange exists, on a channel of its own."""
    channel = connection.channel()
    try:
        if kind == "queue":
            channel.queue_declare(name, passive=True)
        else:
            channel.exchange_declare(name, passive=True)
    except exceptions.ChannelClosedByBroker as error:
        if error.reply_code != 404:
            raise
        return False
    channel.close()
    return True


def wait_gone(connection: Any, kind: str, name: str) -> None:
    """Wait until a queue or an exchange does not exist."""
    eventually(lambda: not is_there(connection, kind, name), f"{kind} {name} gone", SECONDS)


def wait_gone_untouched(connection: Any, name: str, period_ms: int) -> None:
    """Wait until a queue has expired; each look counts as use, so they are this far apart."""

    def gone() -> bool:
        pause_ms(period_ms)
        return not is_there(connection, "queue", name)

    eventually(gone, f"queue {name} expired", SECONDS)


def refused(channel: Any, action: Callable[[Any], Any]) -> tuple[str, int, str]:
    """Do what must be refused; return (channel or connection, code, text)."""
    try:
        action(channel)
        # An action without an answer (ack, publish) is refused at the next round trip.
        channel.queue_declare("", exclusive=True)
    except exceptions.ChannelClosedByBroker as error:
        return "channel", int(error.reply_code), str(error.reply_text)
    except exceptions.ConnectionClosedByBroker as error:
        return "connection", int(error.reply_code), str(error.reply_text)
    raise AssertionError("not refused")


def consumed(channel: Any, name: str, count: int, **settings: Any) -> list[Taken]:
    """Consume until `count` messages have come; the consumer stays."""
    received: list[Taken] = []
    channel.basic_consume(
        name,
        lambda _, method, properties, body: received.append((method, properties, body)),
        **settings,
    )
    wait_received(channel, received, count)
    return received


def wait_received(channel: Any, received: list[Any], count: int) -> None:
    """Serve the connection until so many deliveries stand in the list."""

    def come() -> bool:
        channel.connection.process_data_events(0.05)
        return len(received) >= count

    eventually(come, f"{count} deliveries, got {len(received)}", SECONDS)


def spoken(properties: Any) -> dict[str, Any]:
    """Return the headers of a message, none as an empty table."""
    return dict(properties.headers or {})


def deaths(properties: Any) -> list[dict[str, Any]]:
    """Return x-death without the times, which no two runs share.

    Each time is a timestamp and each count a long (R-DLX-22), which is pika's own type.
    """
    entries = []
    for entry in spoken(properties).get("x-death", []):
        rest = dict(entry)
        assert rest.pop("time").year > 2000
        assert isinstance(rest["count"], long)
        entries.append(rest)
    return entries
