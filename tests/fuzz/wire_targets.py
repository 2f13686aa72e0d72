"""What is fuzzed of the wire: AMQP streams of both roles, methods, tables, properties, logins.

Each target takes any bytes and may raise only what it says; whatever else it raises is a finding.
A target also checks what must hold of the result, such as that what was read can be written and
read again.  Used by `tests.fuzz` only.
"""

from __future__ import annotations

from collections.abc import Iterator

from brokerd.amqp import events, methods, properties, sasl, spec, values
from brokerd.amqp.channel import decode_method, method_class
from brokerd.amqp.config import ConnectionConfig, Credentials, Role
from brokerd.amqp.connection import AmqpConnection
from brokerd.amqp.errors import AmqpError, EncodeError, ProtocolError
from brokerd.amqp.properties import BasicProperties
from tests.fuzz.target import Target
from tests.unit.amqp import pair

#: Unread bytes that a machine may keep: one frame, and what a decision holds back.
UNREAD_BYTES_MAX = 2 * 131_072

TABLE: values.Table = {
    "a": 1,
    "big": 2**40,
    "f": 1.5,
    "t": "text",
    "b": b"\x00\xff",
    "n": None,
    "on": True,
    "at": values.Timestamp(7),
    "d": values.Decimal(2, 314),
    "l": [1, "x", [None, {}]],
    "deep": {"deeper": {"deepest": []}},
}
PROPERTIES = (
    BasicProperties(),
    BasicProperties(delivery_mode=2, priority=5, expiration="60000", user_id="guest"),
    BasicProperties(headers=TABLE, reply_to="amq.rabbitmq.reply-to", timestamp=2**63),
    BasicProperties("a", "b", {}, 1, 0, "c", "d", "0", "e", 1, "f", "g", "h", "i"),
    BasicProperties(headers={"CC": ["a", "b"], "BCC": ["c"], "x-death": [{"count": 1}]}),
)


def _pieces(data: bytes) -> Iterator[bytes]:
    """The stream after the first byte, in reads of as many bytes as that byte says."""
    size = data[0] or len(data)
    yield from (data[at : at + size] for at in range(1, len(data), size))


def _feed(machine: AmqpConnection, data: bytes) -> None:
    """Nothing a peer sends makes the machine raise, or keep more than a frame."""
    now_ms = 0
    for piece in _pieces(data):
        now_ms += 1
        for event in machine.receive_data(piece, now_ms):
            _answer(machine, event)
        assert len(machine._unread) <= UNREAD_BYTES_MAX, "unread bytes pile up"
        machine.data_to_send()
    machine.tick(now_ms + 1_000_000)
    machine.receive_eof(now_ms + 1_000_001)


def _answer(machine: AmqpConnection, event: object) -> None:
    """Answer what waits for a decision, so that the stream goes on."""
    if isinstance(event, events.AuthenticationRequested):
        machine.authentication_succeeded()
    elif isinstance(event, events.OpenRequested):
        machine.open_accepted()
    elif isinstance(event, events.ChannelOpened) and machine.role is Role.SERVER:
        machine.send(event.channel, methods.ChannelOpenOk())


def server_stream(data: bytes) -> None:
    """Anything a client may send once it is let in (SEC-40, R-FRM-1 to R-FRM-8)."""
    if data:
        _feed(pair.opened_server((1, 2)), data)


def server_handshake(data: bytes) -> None:
    """Anything a client may send from the first byte on (SEC-31, R-CON-1 to R-CON-15)."""
    if data:
        _feed(pair.server(), data)


def client_stream(data: bytes) -> None:
    """Anything an upstream may send to a federation link (SEC-57)."""
    if data:
        config = ConnectionConfig(credentials=Credentials("guest", "guest"))
        _feed(AmqpConnection(Role.CLIENT, config, 0), data)


def method(data: bytes) -> None:
    """A method's payload; what is read can be written, and is then read as the same."""
    try:
        found = decode_method(method_class(data), data)
    except ProtocolError:
        return
    try:
        frame = found.encode(1)
    except EncodeError:
        # A long string of octets that is no text and longer than a short one may be.
        return
    assert type(found).decode(frame[7:-1]) == found or "nan" in repr(found)


def table(data: bytes) -> None:
    """A field table, alone (R-FRM-11, SEC-42)."""
    try:
        found, end = values.decode_table(data, 0)
    except AmqpError:
        return
    assert 4 <= end <= len(data)
    again, _ = values.decode_table(values.encode_table(found), 0)
    assert repr(again) == repr(found)


def content_properties(data: bytes) -> None:
    """The properties of a content header, whole and field by field, and the edits of them."""
    if not properties.is_well_formed(data):
        try:
            BasicProperties.decode(data)
        except ProtocolError:
            return
        raise AssertionError("malformed properties were read")
    try:
        found = BasicProperties.decode(data)
    except ProtocolError:
        # The inside of a headers table is read when somebody decodes it.
        return
    assert repr(BasicProperties.decode(found.encode())) == repr(found)
    assert properties.expiration(data) == found.expiration
    assert properties.user_id(data) == found.user_id
    assert repr(properties.headers(data)) == repr(found.headers or {})
    changed = BasicProperties.decode(
        properties.without_expiration(properties.with_headers(data, {"a": 1}))
    )
    assert (changed.expiration, changed.headers) == (None, {"a": 1})


def login(data: bytes) -> None:
    """The answers to PLAIN and AMQPLAIN (SEC-20)."""
    for parse in (sasl.parse_plain, sasl.parse_amqplain):
        try:
            user, password = parse(data)
        except (ProtocolError, ValueError):
            continue
        assert isinstance(user, str)
        assert isinstance(password, str)


def _contents() -> bytes:
    return b"".join(
        pair.publish_bytes(1, b"body" * n, raw=each.encode(), cut=5)
        for n, each in enumerate(PROPERTIES)
    )


def stream_seeds() -> list[bytes]:
    """Good streams of an open connection, read whole and byte by byte."""
    ordinary = [
        methods.QueueDeclare(queue="q", arguments=TABLE).encode(1),
        methods.BasicConsume(queue="q", consumer_tag="c", arguments={"x-priority": 5}).encode(1),
        b"".join(methods.BasicAck(tag, tag % 2 == 0).encode(1) for tag in range(6)),
        _contents(),
        methods.ChannelClose(200, "bye").encode(2) + methods.ChannelOpen().encode(2),
        spec.HEARTBEAT_FRAME + methods.ConnectionClose(200, "bye").encode(0),
    ]
    return [bytes((cut,)) + stream for stream in (*ordinary, b"".join(ordinary)) for cut in (0, 1)]


def handshake_seeds() -> list[bytes]:
    """Good and half good beginnings."""
    opened = methods.ConnectionOpen("/").encode(0) + methods.ChannelOpen().encode(1)
    whole = pair.HEADER + pair.start_ok() + pair.tune_ok() + opened
    amqplain = values.encode_table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
    other = methods.ConnectionStartOk(TABLE, "AMQPLAIN", amqplain, "en_US").encode(0)
    return [
        b"\x00" + whole,
        b"\x01" + whole,
        b"\x00AMQP\x01\x01\x00\x0a",
        b"\x00" + pair.HEADER + other,
    ]


def client_seeds() -> list[bytes]:
    """What a server says to a link, up to a delivery."""
    said = [
        methods.ConnectionStart(0, 9, TABLE, b"PLAIN AMQPLAIN", b"en_US").encode(0),
        methods.ConnectionTune(2047, 131_072, 60).encode(0),
        methods.ConnectionOpenOk().encode(0),
        methods.ChannelOpenOk().encode(1),
        methods.BasicDeliver("c", 1, False, "x", "k").encode(1),
        pair.header_frame(1, 4, raw=PROPERTIES[2].encode()) + pair.body_frame(1, b"body"),
        methods.ConnectionBlocked("low on memory").encode(0),
        methods.ConnectionClose(320, "CONNECTION_FORCED").encode(0),
    ]
    return [bytes((cut,)) + b"".join(said[:upto]) for cut in (0, 3) for upto in (3, len(said))]


def method_seeds() -> list[bytes]:
    """One payload of each method."""
    made = [kind() for kind in methods.METHODS.values()]
    made += [methods.QueueDeclare(queue="q", arguments=TABLE), methods.ConnectionStart(0, 9, TABLE)]
    return [each.encode(1)[7:-1] for each in made]


def table_seeds() -> list[bytes]:
    """Tables of every type."""
    deep: values.Table = {}
    for _ in range(spec.TABLE_NESTING_MAX // 2):
        deep = {"a": deep}
    return [values.encode_table(each) for each in ({}, TABLE, deep, {"l": [TABLE, TABLE]})]


def property_seeds() -> list[bytes]:
    """Properties with none, some and all fields."""
    return [each.encode() for each in PROPERTIES]


def login_seeds() -> list[bytes]:
    """Good logins."""
    amqplain = values.encode_table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
    return [b"\0guest\0guest", b"as\0guest\0guest", amqplain]


TARGETS: dict[str, Target] = {
    "server-stream": Target(server_stream, stream_seeds),
    "server-handshake": Target(server_handshake, handshake_seeds, 1024),
    "client-stream": Target(client_stream, client_seeds),
    "methods": Target(method, method_seeds, 512),
    "tables": Target(table, table_seeds, 1024),
    "properties": Target(content_properties, property_seeds, 512),
    "logins": Target(login, login_seeds, 256),
}
