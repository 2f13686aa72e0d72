"""`brokerctl publish` and `get`: single messages, for people; programs have AMQP and gRPC.

By the service Messages of a member, with its checks, rights and limits.
"""

from __future__ import annotations

import base64
import json
import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brokerd.ctl import completing, errors, output, settings

if TYPE_CHECKING:
    from brokerd.rpc.v1 import messages_pb2

#: Of a payload: what brokerctl and a member take in one piece.
PAYLOAD_BYTES_MAX = 60 * 1024 * 1024
_TEXTS = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
    *("message_id", "type", "user_id", "app_id", "cluster_id"),
)
_NUMBERS = ("delivery_mode", "priority", "timestamp")
_OUTCOMES = {"ack": "ACCEPT", "requeue": "REQUEUE", "reject": "REJECT"}
_COLUMNS = ("exchange", "routing_key", "redelivered", "bytes", "properties", "payload")
#: Of a payload in a table.
_SHOWN_CHARACTERS = 60


@click.command(cls=settings.Command)
@click.option(
    "-e",
    "--exchange",
    default="",
    shell_complete=completing.exchange_names,
    help="Where to [default: the default exchange, where the key names a queue].",
)
@click.option("-k", "--routing-key", default="", help="Routing key.")
@click.option("--payload", help="The body, as text.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that holds the body; - is standard input.",
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help=f"One of {', '.join((*_TEXTS, *_NUMBERS))}.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help='A value that reads as JSON is that (5 is a number, "5" in quotes text), else text.',
)
def publish(
    exchange: str,
    routing_key: str,
    payload: str | None,
    file: Path | None,
    properties: tuple[str, ...],
    headers: tuple[str, ...],
) -> None:
    """Publish a message and wait for its confirm (option -p).

    It is persistent unless --property delivery_mode=1 says otherwise. Status 69: no queue took it.
    """
    from brokerd.ctl import typed_values
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import messages_pb2

    chosen = settings.current()
    if (payload is None) == (file is None):
        raise click.UsageError("give the body by --payload or --file, one of them")
    body = _read(file) if file is not None else str(payload).encode("utf-8", "surrogateescape")
    publication = messages_pb2.Publication(
        sequence=1,
        exchange=exchange,
        routing_key=routing_key,
        properties=_properties(typed_values.pairs(properties, "--property")),
        body=body,
        mandatory=True,
    )
    for name, value in typed_values.values(headers, "--header").items():
        publication.properties.headers[name].CopyFrom(value)
    where = f"exchange '{exchange}' in vhost '{chosen.vhost}'"
    chosen.say(f"Publishing {len(body):,} bytes to {where} with routing key '{routing_key}' ...")
    request = messages_pb2.PublishRequest(publications=[publication])
    with connect(chosen) as client:
        answer = client.message_call("PublishBatch", request, chosen.vhost)
    for returned in answer.returned:
        raise errors.CtlError(
            f"the message was not routed, and is gone: {returned.reply_code} "
            f"{returned.reply_text}; list_bindings shows where {where} leads",
            errors.EXIT_UNAVAILABLE,
        )
    if answer.rejected:
        raise errors.CtlError(
            f"a queue behind {where} refused the message: it is full, or away for now",
            errors.EXIT_UNAVAILABLE,
        )
    chosen.say("The message was routed and is confirmed.")


def _read(file: Path) -> bytes:
    try:
        if str(file) == "-":
            body = sys.stdin.buffer.read(PAYLOAD_BYTES_MAX + 1)
        else:
            with file.open("rb") as opened:
                body = opened.read(PAYLOAD_BYTES_MAX + 1)
    except OSError as error:
        raise errors.CtlError(f"--file: {file}: {error.strerror}", errors.EXIT_IO) from error
    if len(body) > PAYLOAD_BYTES_MAX:
        raise errors.CtlError(
            f"--file: {file} has more than {PAYLOAD_BYTES_MAX:,} bytes", errors.EXIT_DATA
        )
    return body


def _properties(given: dict[str, str]) -> messages_pb2.Properties:
    from brokerd.rpc.v1 import messages_pb2

    found = messages_pb2.Properties(delivery_mode=2)
    for name, value in given.items():
        if name in _TEXTS:
            setattr(found, name, value)
        elif name in _NUMBERS:
            try:
                setattr(found, name, int(value))
            except (ValueError, OverflowError) as error:
                raise errors.CtlError(
                    f"--property {name}: '{value}' is no number that it can hold",
                    errors.EXIT_USAGE,
                ) from error
        else:
            known = ", ".join((*_TEXTS, *_NUMBERS))
            raise errors.CtlError(
                f"--property {name}: there are {known}; --header takes all else",
                errors.EXIT_USAGE,
            )
    return found


@click.command(cls=settings.Command)
@click.argument("name", metavar="QUEUE", shell_complete=completing.queue_names)
@click.option("--count", type=click.IntRange(1, 10_000), default=1, show_default=True)
@click.option(
    "--ack-mode",
    type=click.Choice(tuple(_OUTCOMES)),
    default="requeue",
    show_default=True,
    help="What becomes of them when they have been shown: gone, back in the queue (a delivery that "
    "counts), or rejected, which dead-letters them.",
)
@click.option(
    "-o",
    "--output",
    "--formatter",
    "formatter",
    type=click.Choice(("table", "json", "yaml", "raw")),
    default=None,
    help="json: a message a line; raw: bodies as they are, one after the other [default: table].",
)
def get(name: str, count: int, ack_mode: str, formatter: str | None) -> None:
    """Take messages from the head of a queue and show them (option -p).

    `browse` shows them without taking them.
    """
    from brokerd.ctl.client import connect

    chosen = settings.current()
    # Its own option hides the common one, which has no raw.
    if formatter is not None:
        chosen.formatter = formatter
    if chosen.formatter != "raw":
        chosen.say(f"Messages of queue '{name}' in vhost '{chosen.vhost}' ...")
    with connect(chosen) as client:
        taking = _Taking(name, count)
        answers = client.message_stream("Consume", taking.requests(), chosen.vhost)
        found = taking.drained(answers)
        # Before anything is settled: what could not be shown goes back.
        _show(chosen, found)
        taking.settle(found, _OUTCOMES[ack_mode], answers)
    if chosen.formatter != "raw":
        become = {"ack": "acknowledged", "requeue": "back in the queue", "reject": "rejected"}
        chosen.say(f"{len(found):,} messages, {become[ack_mode]}.")


class _Taking:
    """One call of Consume: what is ready is taken once, then settled."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def requests(self) -> Iterator[Any]:
        """Return what is sent, as it comes."""
        from brokerd.rpc.v1 import messages_pb2

        subscribe = messages_pb2.Subscribe(queue=self._name, credit=self._count)
        self._send(subscribe=subscribe)
        self._send(drain=messages_pb2.Drain())
        return iter(self._requests.get, None)

    def drained(self, answers: Iterator[Any]) -> list[Any]:
        """Return what the queue had ready, up to the count."""
        found: list[Any] = []
        for answer in answers:
            found += answer.deliveries
            if answer.HasField("drained"):
                return found
            if answer.cancelled:
                break
        raise errors.CtlError(
            f"queue '{self._name}' has ended the call; what it had sent goes back to it",
            errors.EXIT_UNAVAILABLE,
        )

    def settle(self, found: list[Any], outcome: str, answers: Iterator[Any]) -> None:
        """Say what becomes of them, and end the call."""
        from brokerd.rpc.v1 import messages_pb2

        if found:
            settlement = messages_pb2.Settlement(
                outcome=outcome,
                delivery_tags=[each.delivery_tag for each in found],
            )
            self._send(settle=settlement)
        self._send(cancel=messages_pb2.Cancel())
        self._requests.put(None)
        for _ in answers:
            pass

    def _send(self, **fields: Any) -> None:
        from brokerd.rpc.v1 import messages_pb2

        self._requests.put(messages_pb2.ConsumeRequest(**fields))


def _show(chosen: settings.Settings, found: list[Any]) -> None:
    if chosen.formatter == "raw":
        for each in found:
            sys.stdout.buffer.write(each.body)
        sys.stdout.buffer.flush()
        return
    rows = [_row(each) for each in found]
    if chosen.formatter == "json":
        for row in rows:
            # ASCII, so that no payload steers a terminal.
            click.echo(json.dumps(row, separators=(",", ":")))
        return
    if chosen.formatter != "yaml":
        for row in rows:
            payload = row["payload"]
            if row["payload_encoding"] != "string":
                payload = f"base64:{payload}"
            if len(payload) > _SHOWN_CHARACTERS:
                payload = f"{payload[: _SHOWN_CHARACTERS - 1]}…"
            row["payload"] = payload
    columns = (*_COLUMNS, "payload_encoding") if chosen.formatter == "yaml" else _COLUMNS
    output.rows(chosen, columns, rows)


def _row(delivered: Any) -> dict[str, Any]:
    from brokerd.ctl import typed_values

    said = delivered.properties
    properties = {name: getattr(said, name) for name in _TEXTS if getattr(said, name)}
    properties |= {name: getattr(said, name) for name in _NUMBERS if said.HasField(name)}
    if said.headers or said.raw_headers:
        properties["headers"] = typed_values.table(said.headers, said.raw_headers)
    try:
        payload, encoding = delivered.body.decode(), "string"
    except UnicodeDecodeError:
        payload, encoding = base64.b64encode(delivered.body).decode(), "base64"
    return {
        "exchange": delivered.exchange,
        "routing_key": delivered.routing_key,
        "redelivered": delivered.redelivered,
        "bytes": len(delivered.body),
        "properties": properties,
        "payload": payload,
        "payload_encoding": encoding,
    }
