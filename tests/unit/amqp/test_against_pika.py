"""Our method table and properties against pika's, an independent reading of the specification."""

from __future__ import annotations

import inspect
from typing import Any

import pika
import pika.amqp_object
import pika.spec
import pytest

from brokerd.amqp.methods import METHODS, Method
from brokerd.amqp.properties import BasicProperties

#: An extension that pika does not know, and one whose decode is wrong in pika 1.4.
UNKNOWN_TO_PIKA = {"basic.recover-async", "connection.update-secret"}


def pika_class(kind: type[Method]) -> Any:
    found = pika.spec.methods.get((kind.CLASS_ID << 16) | kind.METHOD_ID)
    assert found is not None or kind.NAME in UNKNOWN_TO_PIKA, kind.NAME
    return None if kind.NAME in UNKNOWN_TO_PIKA else found


def sample(name: str, default: object) -> object:
    """A value that differs from the default, by the type of ours."""
    if isinstance(default, bool):
        return True
    if isinstance(default, int):
        return 7
    if isinstance(default, bytes):
        return b"longer string"
    if isinstance(default, str):
        return f"s-{name}"[:40]
    return {"x-max-length": 10, "nested": {"list": [1, "two", True, None]}}


def filled(kind: type[Method]) -> Method:
    method = kind()
    for name in kind.FIELDS:
        setattr(method, name, sample(name, getattr(method, name)))
    return method


@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.NAME)
def test_pika_reads_what_we_write_and_writes_the_same(kind: type[Method]) -> None:
    theirs = pika_class(kind)
    if theirs is None:
        return
    ours = filled(kind)
    payload = ours.encode(1)[7:-1]
    fields = [n for n in inspect.signature(theirs.__init__).parameters if n != "self"]
    decoded = theirs(**dict.fromkeys(fields)).decode(payload, 4)
    assert b"".join(decoded.encode()) == payload[4:]
    assert len(fields) == len(kind.FIELDS)
    for our_name, their_name in zip(kind.FIELDS, fields, strict=True):
        value = getattr(decoded, their_name)
        expected = getattr(ours, our_name)
        if isinstance(expected, bytes) and isinstance(value, str):
            value = value.encode()
        assert value == expected, (kind.NAME, our_name)


def test_every_method_of_pika_is_ours() -> None:
    assert set(pika.spec.methods) <= set(METHODS)


def test_properties_agree_with_pika() -> None:
    values: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "headers": {"a": 1, "b": "two"},
        "delivery_mode": 2,
        "priority": 5,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "t",
        "user_id": "guest",
        "app_id": "app",
        "cluster_id": "cl",
    }
    for names in [list(values), *([name] for name in values)]:
        chosen = {name: values[name] for name in names}
        theirs = b"".join(pika.BasicProperties(**chosen).encode())
        ours = BasicProperties(**chosen).encode()
        assert ours == theirs
        assert BasicProperties.decode(theirs) == BasicProperties(**chosen)
