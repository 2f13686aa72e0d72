"""Message properties between the Messages service and the bytes that the broker keeps.

Absent and empty are the same over gRPC: "" and 0 stand for a property that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brokerd.amqp import errors, values
from brokerd.amqp.properties import EMPTY, BasicProperties
from brokerd.rpc.v1 import messages_pb2

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
)
_NUMBERS = ("delivery_mode", "priority", "timestamp")


def encode(properties: messages_pb2.Properties) -> bytes:
    """Return the content header's property part; EncodeError says what does not fit."""
    found: dict[str, Any] = {}
    for field, value in properties.ListFields():
        if field.name != "headers":
            found[field.name] = value
    if properties.headers:
        found["headers"] = _table(properties.headers)
    return BasicProperties(**found).encode() if found else EMPTY


def _table(fields: Mapping[str, messages_pb2.Value]) -> values.Table:
    return {key: _value(value) for key, value in fields.items()}


def _value(value: messages_pb2.Value) -> values.Value:
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "list":
        return [_value(item) for item in value.list.values]
    if kind == "table":
        return _table(value.table.fields)
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
            setattr(result, name, readable(text))
    for name in _NUMBERS:
        number = getattr(properties, name)
        if number:
            setattr(result, name, number)
    table: values.Table = dict(properties.headers or {})
    if acquired_count:
        table["x-acquired-count"] = acquired_count
        if delivery_count:
            table["x-delivery-count"] = delivery_count
    for key, value in table.items():
        _fill(result.headers[readable(key)], value)
    return result


def readable(text: str) -> str:
    """Return text that protobuf accepts: AMQP names may hold any bytes, its strings may not."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


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
            for key, item in value.items():
                _fill(target.table.fields[readable(key)], item)
