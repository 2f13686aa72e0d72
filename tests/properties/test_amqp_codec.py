"""The AMQP codec: what is written is read back, and garbage raises nothing but our errors."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.amqp.errors import ProtocolError
from brokerd.amqp.methods import METHODS, Method
from brokerd.amqp.properties import (
    BasicProperties,
    is_well_formed,
    with_headers,
    without_expiration,
)
from brokerd.amqp.values import Decimal, Timestamp, decode_table, encode_table

SHORT = st.binary(max_size=255).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | SHORT
    | st.binary(max_size=50)
    | st.builds(Timestamp, st.integers(0, 2**64 - 1))
    | st.builds(Decimal, st.integers(0, 255), st.integers(0, 2**32 - 1)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SHORT, inner, max_size=4),
    max_leaves=12,
)
TABLES = st.dictionaries(SHORT, VALUES, max_size=5)
PROPERTIES = st.builds(
    BasicProperties,
    content_type=st.none() | SHORT,
    content_encoding=st.none() | SHORT,
    headers=st.none() | TABLES,
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | SHORT,
    reply_to=st.none() | SHORT,
    expiration=st.none() | SHORT,
    message_id=st.none() | SHORT,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=st.none() | SHORT,
    user_id=st.none() | SHORT,
    app_id=st.none() | SHORT,
    cluster_id=st.none() | SHORT,
)


@settings(deadline=None)
@given(TABLES)
def test_tables_survive(table: dict[str, object]) -> None:
    """R-FRM-11."""
    raw = encode_table(table)  # type: ignore[arg-type]
    assert decode_table(raw, 0) == (table, len(raw))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_a_protocol_error(raw: bytes) -> None:
    """SEC-42: garbage never raises anything else, and what is read can be written."""
    framed = len(raw).to_bytes(4, "big") + raw
    try:
        table, end = decode_table(framed, 0)
    except ProtocolError:
        return
    assert end == len(framed)
    again = decode_table(encode_table(table), 0)[0]
    if not any(isinstance(value, float) and math.isnan(value) for value in table.values()):
        assert list(again) == list(table)


@settings(deadline=None)
@given(PROPERTIES)
def test_properties_survive_and_edits_touch_only_their_field(properties: BasicProperties) -> None:
    raw = properties.encode()
    assert is_well_formed(raw)
    assert BasicProperties.decode(raw) == properties
    properties.expiration = None
    assert BasicProperties.decode(without_expiration(raw)) == properties
    properties.headers = {"x": 1}
    edited = with_headers(without_expiration(raw), {"x": 1})
    assert BasicProperties.decode(edited) == properties


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_properties_or_a_protocol_error(raw: bytes) -> None:
    try:
        properties = BasicProperties.decode(raw)
    except ProtocolError:
        return
    assert is_well_formed(raw)
    # Headers may be written shorter or in other widths; their presence stays.
    assert BasicProperties.decode(properties.encode()).message_id == properties.message_id


@settings(deadline=None)
@given(st.sampled_from(list(METHODS.values())), st.binary(max_size=80))
def test_any_bytes_are_a_method_or_a_protocol_error(kind: type[Method], raw: bytes) -> None:
    """R-FRM-5."""
    ids = kind.CLASS_ID.to_bytes(2, "big") + kind.METHOD_ID.to_bytes(2, "big")
    try:
        method = kind.decode(ids + raw, 4)
    except ProtocolError:
        return
    if "nan" not in repr(method):
        assert kind.decode(method.encode(1)[7:-1], 4) == method
