"""Message properties between the Messages service and the bytes that the broker keeps.

Absent and empty are the same over gRPC: "" stands for a text that is not there.  AMQP's texts may
be any octets; those that are not UTF-8 go in fields of bytes beside protobuf's strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import grpc

from brokerd.amqp import errors, values
from brokerd.amqp.properties import EMPTY, BasicProperties
from brokerd.core.message import Content
from brokerd.core.queue.effects import Run, times_acquired
from brokerd.rpc.v1 import messages_pb2
from brokerd.server.grpc.rpc_errors import CallRefused

#: Plain properties, under the same name on both sides.
_TEXTS = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
#: AMQP's short strings (AMQP 0-9-1 §4.2.5.3).
NAME_BYTES_MAX = 255
_NUMBERS = ("delivery_mode", "priority", "timestamp")
_NOT_PLAIN = frozenset(("headers", "raw", "raw_headers"))


def encode(properties: messages_pb2.Properties) -> bytes:
    """Return the content header's property part; EncodeError says what does not fit."""
    found: dict[str, Any] = {}
    for field, value in properties.ListFields():
        if field.name not in _NOT_PLAIN:
            found[field.name] = value
    for name, octets in properties.raw.items():
        if name not in _TEXTS:
            raise errors.EncodeError(f"raw: '{name}' is no text among the properties")
        found[name] = text_of(octets)
    if properties.headers or properties.raw_headers:
        found["headers"] = table_of(properties.headers, properties.raw_headers)
    return BasicProperties(**found).encode() if found else EMPTY


def table_of(
    fields: Mapping[str, messages_pb2.Value], raw: Iterable[messages_pb2.RawField]
) -> values.Table:
    """Return a table as the broker keeps AMQP's."""
    table = {key: _value(value) for key, value in fields.items()}
    table.update({text_of(field.name): _value(field.value) for field in raw})
    return table


def _value(value: messages_pb2.Value) -> values.Value:
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "list":
        return [_value(item) for item in value.list.values]
    if kind == "table":
        return table_of(value.table.fields, value.table.raw_fields)
    plain: values.Value = getattr(value, kind)
    return plain


def decode(raw: bytes, acquired_count: int, delivery_count: int) -> messages_pb2.Properties:
    """Return stored properties; redelivered messages get their counts as headers (R-DL-4)."""
    result = messages_pb2.Properties()
    if raw == EMPTY and not acquired_count:
        return result
    try:
        properties = BasicProperties.decode(raw)
    except errors.ProtocolError:
        # Checked when it was published; if it was damaged since, the body is still worth having.
        return result
    for name in _TEXTS:
        text = getattr(properties, name)
        if text:
            text, raw_text = both(text)
            setattr(result, name, text)
            if raw_text:
                result.raw[name] = raw_text
    for name in _NUMBERS:
        number = getattr(properties, name)
        if number is not None:
            setattr(result, name, number)
    table: values.Table = dict(properties.headers or {})
    if acquired_count:
        table["x-acquired-count"] = acquired_count
        if delivery_count:
            table["x-delivery-count"] = delivery_count
    _fill_table(result.headers, result.raw_headers, table)
    return result


def head_of(run: Run, content: Content, *, has_counts: bool) -> messages_pb2.Delivered:
    """Return a message as clients are sent it, without its tag and body."""
    (exchange, routing_key), header = content[0], content[1]
    exchange, raw_exchange = both(exchange)
    routing_key, raw_routing_key = both(routing_key)
    acquired_count = times_acquired(run)
    return messages_pb2.Delivered(
        exchange=exchange,
        routing_key=routing_key,
        raw_exchange=raw_exchange,
        raw_routing_key=raw_routing_key,
        redelivered=acquired_count > 0,
        properties=decode(
            header,
            acquired_count if has_counts else 0,
            run.delivery_count if has_counts else 0,
        ),
    )


def both(text: str) -> tuple[str, bytes]:
    """Return text as protobuf accepts it, and its octets where those are not UTF-8."""
    if text.isascii():
        return text, b""
    octets = text.encode("utf-8", "surrogateescape")
    readable = octets.decode("utf-8", "replace")
    return readable, b"" if readable == text else octets


def name_of(what: str, text: str, raw: bytes) -> str:
    """Return a name that came as text or, where it is not UTF-8, as octets; CallRefused if it is
    too long.
    """
    octets = raw or text.encode("utf-8", "surrogateescape")
    if len(octets) > NAME_BYTES_MAX:
        raise CallRefused(
            grpc.StatusCode.INVALID_ARGUMENT, f"{what} is longer than {NAME_BYTES_MAX} bytes"
        )
    return text_of(octets)


def text_of(octets: bytes) -> str:
    """Return octets of a client as the broker keeps AMQP's texts."""
    return octets.decode("utf-8", "surrogateescape")


def _fill_table(fields: Any, raw_fields: Any, table: values.Table) -> None:
    for key, value in table.items():
        name, raw_name = both(key)
        _fill(raw_fields.add(name=raw_name).value if raw_name else fields[name], value)


def _fill(target: messages_pb2.Value, value: values.Value) -> None:
    match value:
        case None:
            pass
        case bool():
            target.boolean = value
        case int():
            target.integer = value
        case float():
            target.number = value
        case str():
            try:
                target.text = value
            except (UnicodeEncodeError, ValueError):
                target.binary = value.encode("utf-8", "surrogateescape")
        case bytes():
            target.binary = value
        case values.Decimal():
            target.number = value.value / 10**value.scale
        case list():
            target.list.SetInParent()
            for item in value:
                _fill(target.list.values.add(), item)
        case dict():
            target.table.SetInParent()
            _fill_table(target.table.fields, target.table.raw_fields, value)
