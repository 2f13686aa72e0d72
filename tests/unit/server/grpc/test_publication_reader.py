"""The reader of publications says what protobuf's own library says, whatever the octets."""

from __future__ import annotations

from typing import TypeAlias

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from brokerd.amqp import errors
from brokerd.amqp.properties import BasicProperties
from brokerd.rpc.v1 import messages_pb2
from brokerd.server.grpc import publication_reader, rpc_properties
from brokerd.server.grpc.publication_reader import Alike, PublicationReader
from brokerd.server.grpc.rpc_errors import CallRefused
from brokerd.server.queues.turn import BATCH_BYTES_MAX

BODY_BYTES_MAX = 16 * 1024 * 1024
#: Number, (exchange, routing key, mandatory), header, body.
Row: TypeAlias = tuple[int, tuple[str, str, bool], bytes, bytes]

PROPERTIES = st.builds(
    messages_pb2.Properties,
    content_type=st.sampled_from(["", "text/plain"]),
    delivery_mode=st.sampled_from([0, 2]),
    # More than is remembered, if all are there.
    message_id=st.sampled_from(["", "m" * 255]),
    app_id=st.sampled_from(["", "a" * 255]),
)
PUBLICATIONS = st.builds(
    messages_pb2.Publication,
    sequence=st.sampled_from([0, 1, 2, 3, 127, 128, (1 << 64) - 1]),
    exchange=st.sampled_from(["", "x"]),
    routing_key=st.sampled_from(["", "q", "r"]),
    properties=st.one_of(st.none(), PROPERTIES),
    body=st.sampled_from([b"", b"body", b"0\x01", b"*\x00" * 100]),
    mandatory=st.booleans(),
    raw_exchange=st.sampled_from([b"", b"\xff"]),
    raw_routing_key=st.sampled_from([b"", b"q\xff"]),
)
#: Fields as other encoders write them: in another order, twice, empty, unknown, damaged.
FIELDS = st.sampled_from(
    [
        b"\x08\x05", b"\x08\x85\x00", b"\x12\x01x", b"\x12\x00", b"\x1a\x01q", b"\x1a\x01r",
        b"\x22\x02\x20\x02", b"\x22\x00", b"\x2a\x03abc", b"\x2a\x00", b"\x30\x01", b"\x30\x00",
        b"\x4a\x02zz", b"\x3d1234", b"\x3912345678", b"\x12\x01\xff", b"\x92\x00\x01y", b"\x2a\x7f",
        b"\x3b", b"\xff", b"", b"\x3a\x02z\xff", b"\x42\x02z\xff",
    ]
)  # fmt: skip


def framed(items: list[bytes]) -> bytes:
    request = b""
    for item in items:
        size = len(item)
        request += b"\x0a" + bytes((size & 0x7F | 0x80, size >> 7)) + item
    return request


def rows_of(found: list[Alike]) -> list[Row]:
    return [
        (sequence, alike.head.key, alike.head.header, body)
        for alike in found
        for sequence, body in enumerate(alike.bodies, alike.first)
    ]


def name_of(text: str, raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape") if raw else text


def as_the_library_reads(request: bytes) -> list[Row]:
    return [
        (
            item.sequence,
            (
                name_of(item.exchange, item.raw_exchange),
                name_of(item.routing_key, item.raw_routing_key),
                item.mandatory,
            ),
            rpc_properties.encode(item.properties),
            item.body,
        )
        for item in messages_pb2.PublishRequest.FromString(request).publications
    ]


def same(requests: list[bytes]) -> None:
    """One reader reads them in turn, as the library does each."""
    reader = PublicationReader(BODY_BYTES_MAX)
    for request in requests:
        try:
            expected = as_the_library_reads(request)
        except DecodeError:
            with pytest.raises(CallRefused) as caught:
                reader.read(request, [])
            assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
            continue
        found: list[Alike] = []
        reader.read(request, found)
        assert rows_of(found) == expected
        assert [alike.size for alike in found] == [sum(map(len, a.bodies)) for a in found]


@given(st.lists(st.lists(PUBLICATIONS, max_size=6), max_size=4))
def test_what_generated_code_writes(requests: list[list[messages_pb2.Publication]]) -> None:
    same(
        [messages_pb2.PublishRequest(publications=items).SerializeToString() for items in requests]
    )


@given(st.lists(st.lists(st.lists(FIELDS, max_size=6).map(b"".join), max_size=5), max_size=3))
def test_what_others_write(requests: list[list[bytes]]) -> None:
    same([framed(items) for items in requests])


@given(st.lists(PUBLICATIONS, min_size=1, max_size=4), st.data())
def test_what_is_damaged(items: list[messages_pb2.Publication], data: st.DataObject) -> None:
    """One octet is another, or the end is missing; groups are refused that the library passes."""
    request = bytearray(messages_pb2.PublishRequest(publications=items).SerializeToString())
    if request:
        place = data.draw(st.integers(0, len(request) - 1))
        request[place] = data.draw(st.integers(0, 255))
        del request[data.draw(st.integers(0, len(request))) :]
    found: list[Alike] = []
    try:
        PublicationReader(BODY_BYTES_MAX).read(bytes(request), found)
    except (CallRefused, errors.EncodeError):
        return
    assert rows_of(found) == as_the_library_reads(bytes(request))


def test_runs_and_what_ends_them() -> None:
    """A gap in the numbers, another key, and a megabyte; heads are known again."""
    megabyte = b"m" * BATCH_BYTES_MAX
    rows = [(1, "q", b"a"), (2, "q", b"b"), (4, "q", b"c"), (5, "r", b"d"), (6, "q", megabyte)]
    rows += [(7, "q", b"e"), (8, "q", b"f")]
    request = messages_pb2.PublishRequest(
        publications=[
            messages_pb2.Publication(
                sequence=number,
                routing_key=key,
                body=body,
                properties=messages_pb2.Properties(delivery_mode=2),
            )
            for number, key, body in rows
        ]
    )
    found: list[Alike] = []
    PublicationReader(BODY_BYTES_MAX).read(request.SerializeToString(), found)
    assert [(alike.first, alike.head.key[1], len(alike.bodies)) for alike in found] == [
        (1, "q", 2),
        (4, "q", 1),
        (5, "r", 1),
        (6, "q", 1),
        (7, "q", 2),
    ]
    assert len({id(alike.head) for alike in found}) == 2
    assert found[0].head.header == BasicProperties(delivery_mode=2).encode()
    assert found[0].head.is_plain


def test_what_it_remembers_has_a_bound() -> None:
    reader = PublicationReader(BODY_BYTES_MAX)
    for number in range(2 * publication_reader.HEADS_MAX):
        item = messages_pb2.Publication(sequence=1, routing_key=f"q{number}", body=b"b")
        reader.read(framed([item.SerializeToString()]), [])
        long = messages_pb2.Publication(sequence=1, routing_key=f"{number}" * 600, body=b"b")
        reader.read(framed([long.SerializeToString()]), [])
    assert 0 < len(reader._heads) <= publication_reader.HEADS_MAX


@pytest.mark.parametrize("field", [b"\x0a\x00", b"\x10\x01"])
def test_a_request_has_a_bounded_number_of_fields(field: bytes) -> None:
    """Each costs time, known or not."""
    PublicationReader(BODY_BYTES_MAX).read(field * publication_reader.PUBLICATIONS_MAX, [])
    with pytest.raises(CallRefused, match="more than 4096 publications") as caught:
        PublicationReader(BODY_BYTES_MAX).read(
            field * (publication_reader.PUBLICATIONS_MAX + 1), []
        )
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_what_came_before_a_mistake_is_found() -> None:
    good = messages_pb2.Publication(sequence=1, routing_key="q", body=b"b").SerializeToString()
    found: list[Alike] = []
    with pytest.raises(CallRefused, match="cut off"):
        PublicationReader(BODY_BYTES_MAX).read(framed([good]) + b"\x0a\x09\x08", found)
    assert rows_of(found) == [(1, ("", "q", False), BasicProperties().encode(), b"b")]


def test_a_body_beyond_the_limit_of_amqp_is_refused_after_what_came_before_it() -> None:
    """R-FRM-8: whatever its publication looks like."""
    for is_mandatory in (False, True):
        found: list[Alike] = []
        items = [
            messages_pb2.Publication(
                sequence=n, routing_key="q", body=bytes(n), mandatory=is_mandatory
            )
            for n in (7, 8, 9, 10)
        ]
        request = messages_pb2.PublishRequest(publications=items).SerializeToString()
        with pytest.raises(
            errors.PreconditionFailed, match="message size 9 is larger than configured max size 8"
        ):
            PublicationReader(8).read(request, found)
        assert [(each.first, each.bodies) for each in found] == [(7, [bytes(7), bytes(8)])]
