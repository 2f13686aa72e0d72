"""Headers exchanges (spec chapter 2.4.4): every x-match form, every type of value on the wire."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from brokerd.amqp import methods
from tests.compat import steps
from tests.compat.servers import Differs, Server, expected
from tests.integration.members import eventually
from tests.integration.raw_client import RawClient, frame, publish


def field(value: bytes) -> bytes:
    """Return a table of one field `v` with this type octet and payload."""
    entry = b"\x01v" + value
    return struct.pack(">I", len(entry)) + entry


def nested(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content)) + content


#: Type octet and payload, as nothing but a raw socket can choose them.
VALUES = {
    "int8": b"b\x01",
    "uint8": b"B\x01",
    "int16": b"s\x00\x01",
    "uint16": b"u\x00\x01",
    "int32": b"I\x00\x00\x00\x01",
    "uint32": b"i\x00\x00\x00\x01",
    "int64": b"l" + struct.pack(">q", 1),
    "float": b"f" + struct.pack(">f", 1.0),
    "double": b"d" + struct.pack(">d", 1.0),
    "double 1.5": b"d" + struct.pack(">d", 1.5),
    "boolean": b"t\x01",
    "longstr": nested(b"S", b"1"),
    "bytes": nested(b"x", b"1"),
    "timestamp": b"T" + struct.pack(">Q", 1),
    "decimal": b"D\x00" + struct.pack(">i", 1),
    "table int32": nested(b"F", b"\x01nI\x00\x00\x00\x01"),
    "table int64": nested(b"F", b"\x01nl" + struct.pack(">q", 1)),
    "array int32": nested(b"A", b"I\x00\x00\x00\x01"),
    "array int64": nested(b"A", b"l" + struct.pack(">q", 1)),
    "void": b"V",
}
NUMBERS = {
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float", "double", "timestamp"
}  # fmt: skip
TEXTS = {"longstr", "bytes"}
#: Header values that a criterion of each kind is met by. Only the value counts in 3.10, not its
#: type; inside tables and arrays the width of an integer counts there and not here.
MET_BY: dict[str, set[str] | Differs[set[str]]] = (
    dict.fromkeys(sorted(NUMBERS), NUMBERS)
    | dict.fromkeys(sorted(TEXTS), TEXTS)
    | {name: {name} for name in ("double 1.5", "boolean", "decimal")}
    | {
        f"{kind} {width}": Differs({f"{kind} {width}"}, {f"{kind} int32", f"{kind} int64"}, "D-101")
        for kind in ("table", "array")
        for width in ("int32", "int64")
    }
    | {"void": set(VALUES)}
)


def bind(raw: RawClient, queue: str, exchange: str, table: bytes) -> None:
    """Bind with arguments as they are."""
    texts = b"".join(bytes([len(x)]) + x.encode() for x in (queue, exchange, ""))
    raw.send(1, frame(1, 1, struct.pack(">HHH", 50, 20, 0) + texts + b"\x00" + table))
    raw.expect(methods.QueueBindOk)


def wait_confirms(raw: RawClient, count: int) -> None:
    """Read the confirms of so many publishes."""
    confirmed: set[int] = set()
    while len(confirmed) < count:
        ack = raw.expect(methods.BasicAck)
        first = 1 if ack.multiple else ack.delivery_tag
        confirmed.update(range(first, ack.delivery_tag + 1))


@pytest.mark.parametrize("criterion", MET_BY)
def test_value_types(server: Server, vhost: str, criterion: str) -> None:
    """R-RT-H2, R-RT-H4: headers of twenty types against one criterion."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q")
        bind(raw, "q", "amq.headers", field(VALUES[criterion]))
        raw.send(1, methods.ConfirmSelect())
        raw.expect(methods.ConfirmSelectOk)
        for name, value in VALUES.items():
            raw.send(1, publish(1, "amq.headers", "", name.encode(), b"\x20\x00" + field(value)))
        wait_confirms(raw, len(VALUES))
        met_by = set()
        for _ in range(raw.count(1, "q")):
            raw.send(1, methods.BasicGet(0, "q", True))
            met_by.add(raw.content(methods.BasicGetOk)[2].decode())
    assert met_by == expected(server, MET_BY[criterion])


H = dict[str, Any]
#: Binding arguments, message headers (None: no table at all), is it matched.
HEADERS: dict[str, tuple[H, H | None, bool]] = {
    "all is the default": ({"a": "1", "b": "2"}, {"a": "1"}, False),
    "default with both": ({"a": "1", "b": "2"}, {"a": "1", "b": "2", "c": "3"}, True),
    "all, one missing": ({"x-match": "all", "a": "1", "b": "2"}, {"b": "2"}, False),
    "all, both there": ({"x-match": "all", "a": "1", "b": "2"}, {"b": "2", "a": "1"}, True),
    "any, one there": ({"x-match": "any", "a": "1", "b": "2"}, {"b": "2"}, True),
    "any, none there": ({"x-match": "any", "a": "1", "b": "2"}, {"b": "3"}, False),
    "all leaves out x-": ({"x-match": "all", "a": "1", "x-b": "2"}, {"a": "1"}, True),
    "any leaves out x-": ({"x-match": "any", "a": "1", "x-b": "2"}, {"x-b": "2"}, False),
    "all-with-x, x- missing": ({"x-match": "all-with-x", "a": "1", "x-b": "2"}, {"a": "1"}, False),
    "all-with-x, x- there": ({"x-match": "all-with-x", "x-b": "2"}, {"x-b": "2"}, True),
    "any-with-x, x- there": ({"x-match": "any-with-x", "a": "1", "x-b": "2"}, {"x-b": "2"}, True),
    "any-with-x never x-match": ({"x-match": "any-with-x"}, {"x-match": "any-with-x"}, False),
    "all, nothing asked": ({"x-match": "all"}, {"a": "1"}, True),
    "no arguments, no headers": ({}, None, True),
    "any, nothing asked": ({"x-match": "any"}, {"a": "1"}, False),
    "all of only x-": ({"x-a": "1"}, {"b": "2"}, True),
    "any of only x-": ({"x-match": "any", "x-a": "1"}, {"x-a": "1"}, False),
    "all, no headers table": ({"a": "1"}, None, False),
    "void asks for presence": ({"a": None}, {"a": "whatever"}, True),
    "void, key absent": ({"a": None}, {"b": "1"}, False),
    "a void header has a key": ({"a": None}, {"a": None}, True),
    "a void header has no value": ({"a": "1"}, {"a": None}, False),
    "keys know case": ({"a": "1"}, {"A": "1"}, False),
    "true is not false": ({"a": True}, {"a": False}, False),
    "arrays in another order": ({"a": [1, 2]}, {"a": [2, 1]}, False),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_table(connection: Any, case: str) -> None:
    """R-RT-H1, H2, H4, H5, H6."""
    arguments, headers, is_matched = HEADERS[case]
    channel = steps.confirming(connection)
    name = steps.queue(channel)
    channel.queue_bind(name, "amq.headers", "ignored", arguments)
    fate = steps.publish(channel, "amq.match", "x", mandatory=True, headers=headers)
    assert fate == "returned"  # amq.match is another exchange
    fate = steps.publish(channel, "amq.headers", "x", mandatory=True, headers=headers)
    assert fate == ("ack" if is_matched else "returned")
    assert len(steps.drain(channel, name)) == is_matched


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("zz", 'Invalid x-match field value <<"zz">>; expected all, any'),
        (1, "Invalid x-match field type signedint (value 1); expected longstr"),
    ],
)
def test_bad_x_match_is_refused(channel: Any, value: Any, text: str) -> None:
    """R-RT-H3, R-ERR-43."""
    name = steps.queue(channel)
    scope, code, said = steps.refused(
        channel, lambda c: c.queue_bind(name, "amq.headers", "", {"x-match": value})
    )
    assert (scope, code) == ("channel", 406)
    assert text in said


# --- what the broker does to headers ----------------------------------------------------------


def all_types(extra: bytes = b"") -> bytes:
    """Return a headers table with one field of each type, in the order of their names."""
    fields = [bytes([len(name)]) + name.encode() + value for name, value in sorted(VALUES.items())]
    body = b"".join(fields) + extra
    return struct.pack(">I", len(body)) + body


def got(raw: RawClient, queue: str, ack: bool) -> bytes:
    """Get a message that will come; return its properties."""

    def come() -> bytes | None:
        raw.send(1, methods.BasicGet(0, queue, ack))
        found = raw.next_frame()
        assert found is not None
        if found[2][:4] == b"\x00\x3c\x00\x48":
            return None
        assert found[2][:4] == b"\x00\x3c\x00\x47"
        header, body = raw.next_frame(), raw.next_frame()
        assert header is not None
        assert body is not None
        return header[2][12:]

    properties: bytes = eventually(come, f"a message in {queue}", steps.SECONDS)
    return properties


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("how", ["untouched", "BCC", "rejected", "redelivered"])
def test_types_of_headers_survive(
    server: Server, vhost: str, channel: Any, how: str, kind: str
) -> None:
    """R-RT-C2, R-DLX-15, R-DLX-25, R-DL-4: whatever the broker takes away or adds beside them."""
    dead = steps.bound(channel, "amq.fanout", "", name="dead")
    steps.queue(channel, "q", x_queue_type=kind, x_dead_letter_exchange="amq.fanout")
    bcc = b"\x03BCC" + nested(b"A", nested(b"S", b"other")) if how == "BCC" else b""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, publish(1, "", "q", b"m", b"\x20\x00" + all_types(bcc)))
        if how in ("rejected", "redelivered"):
            got(raw, "q", False)
            raw.send(1, methods.BasicReject(1, how == "redelivered"))
        properties = got(raw, dead if how == "rejected" else "q", True)
    assert all_types()[4:] in properties
    # x-death begins with an entry whose count is a long; x-delivery-count is one.
    if how == "rejected":
        assert b"\x05countl" + struct.pack(">q", 1) in properties
    if how == "redelivered" and kind == "quorum":
        assert b"\x10x-delivery-countl" + struct.pack(">q", 1) in properties
