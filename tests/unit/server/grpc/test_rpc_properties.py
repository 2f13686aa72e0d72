"""Properties between gRPC messages and the bytes the broker keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.amqp import properties as amqp
from brokerd.amqp.errors import EncodeError
from brokerd.amqp.values import Decimal, Table, Timestamp
from brokerd.rpc.v1 import messages_pb2
from brokerd.server.grpc import rpc_properties

Properties = messages_pb2.Properties
Value = messages_pb2.Value

texts = st.text(max_size=20)
values = st.recursive(
    st.one_of(
        st.builds(Value),
        st.builds(lambda text: Value(text=text), texts),
        st.builds(lambda n: Value(integer=n), st.integers(-(2**63), 2**63 - 1)),
        st.builds(lambda x: Value(number=x), st.floats(allow_nan=False)),
        st.builds(lambda flag: Value(boolean=flag), st.booleans()),
        st.builds(lambda raw: Value(binary=raw), st.binary(max_size=20)),
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda items: Value(list=messages_pb2.List(values=items)), st.lists(inner, max_size=3)
        ),
        st.builds(
            lambda fields: Value(table=messages_pb2.Table(fields=fields)),
            st.dictionaries(texts, inner, max_size=3),
        ),
    ),
    max_leaves=8,
)
all_properties = st.builds(
    Properties,
    content_type=texts,
    headers=st.dictionaries(texts, values, max_size=4),
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    expiration=texts,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    user_id=texts,
    cluster_id=texts,
)


@given(all_properties)
def test_properties_come_back_as_they_were(properties: Properties) -> None:
    raw = rpc_properties.encode(properties)
    assert amqp.is_well_formed(raw)
    assert rpc_properties.decode(raw, 0, 0) == properties


def test_no_properties_are_the_shared_empty_ones() -> None:
    """The ordinary message is recognised by its bytes (design/hot-path.md rule 2)."""
    assert rpc_properties.encode(Properties()) is amqp.EMPTY


@pytest.mark.parametrize(
    "properties",
    [
        Properties(priority=256),
        Properties(content_type="x" * 256),
        Properties(headers={"k" * 256: Value(boolean=True)}),
    ],
)
def test_what_amqp_cannot_hold_is_refused(properties: Properties) -> None:
    with pytest.raises(EncodeError):
        rpc_properties.encode(properties)


def test_deeply_nested_headers_are_refused() -> None:
    """SEC-42: the bound of AMQP tables holds here too."""
    value = Value(boolean=True)
    for _ in range(20):
        value = Value(list=messages_pb2.List(values=[value]))
    with pytest.raises(EncodeError, match="nested"):
        rpc_properties.encode(Properties(headers={"deep": value}))


def test_redelivered_messages_carry_their_counts() -> None:
    """R-DL-4: from the second delivery on."""
    raw = rpc_properties.encode(Properties(headers={"a": Value(text="b")}))
    headers = rpc_properties.decode(raw, 2, 1).headers
    assert (headers["a"].text, headers["x-acquired-count"].integer) == ("b", 2)
    assert headers["x-delivery-count"].integer == 1
    assert "x-delivery-count" not in rpc_properties.decode(amqp.EMPTY, 1, 0).headers


def test_amqp_types_without_a_counterpart_become_the_nearest_one() -> None:
    table: Table = {"t": Timestamp(7), "d": Decimal(2, 314), "s": "\udcff"}
    raw = amqp.BasicProperties(headers=table, app_id="\udcff").encode()
    decoded = rpc_properties.decode(raw, 0, 0)
    assert decoded.headers["t"].integer == 7
    assert decoded.headers["d"].number == pytest.approx(3.14)
    assert decoded.headers["s"].binary == b"\xff"
    assert (decoded.app_id, decoded.raw["app_id"]) == ("�", b"\xff")


def test_damaged_properties_do_not_keep_the_message_from_its_consumer() -> None:
    assert rpc_properties.decode(b"\xff\xff\x00", 0, 0) == Properties()


octets = st.binary(min_size=1, max_size=9).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
shallow = st.dictionaries(octets, st.integers(0, 9), max_size=3)


@given(
    st.builds(
        amqp.BasicProperties,
        message_id=octets,
        correlation_id=octets,
        reply_to=octets,
        type=octets,
        cluster_id=octets,
        headers=st.dictionaries(octets, st.integers(0, 9) | shallow, min_size=1, max_size=3),
    )
)
def test_octets_that_are_not_utf_8_are_sent_on_as_they_came(
    properties: amqp.BasicProperties,
) -> None:
    over_grpc = rpc_properties.decode(properties.encode(), 0, 0)
    # As a client has it.
    over_grpc = Properties.FromString(over_grpc.SerializeToString())
    assert amqp.BasicProperties.decode(rpc_properties.encode(over_grpc)) == properties


def test_raw_names_a_text() -> None:
    for name in ("priority", "headers", "no such"):
        with pytest.raises(EncodeError, match=f"'{name}' is no text"):
            rpc_properties.encode(Properties(raw={name: b"x"}))
