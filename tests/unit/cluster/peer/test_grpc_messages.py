"""gRPC's framing and headers, as peers send them and as they should not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.cluster.errors import CallRefused
from brokerd.cluster.peer import grpc_messages
from brokerd.cluster.peer.grpc_messages import METHOD, MessageReader, Status
from brokerd.http2.framing import Header


def framed(*messages: bytes) -> bytes:
    return b"".join(grpc_messages.prefix(len(message)) + message for message in messages)


@given(st.lists(st.binary(max_size=50), max_size=10), st.lists(st.integers(1, 30), min_size=1))
def test_messages_are_found_however_the_data_are_cut(
    messages: list[bytes], cuts: list[int]
) -> None:
    reader, data, found, at = MessageReader(50), framed(*messages), [], 0
    while at < len(data):
        size = cuts[at % len(cuts)]
        found += reader.feed(memoryview(data[at : at + size]))
        at += size
    assert found == messages
    assert MessageReader(50).feed(memoryview(data)) == messages


def test_message_over_the_limit_is_refused_before_it_comes() -> None:
    """SEC-47."""
    reader = MessageReader(10)
    assert reader.feed(memoryview(framed(bytes(10)))) == [bytes(10)]
    with pytest.raises(CallRefused) as caught:
        reader.feed(memoryview(grpc_messages.prefix(11)))
    assert caught.value.status == Status.RESOURCE_EXHAUSTED


def test_compressed_message_is_refused() -> None:
    """SEC-48."""
    with pytest.raises(CallRefused) as caught:
        MessageReader(10).feed(memoryview(b"\x01\0\0\0\x01x"))
    assert caught.value.status == Status.UNIMPLEMENTED


def request(**changes: bytes) -> list[Header]:
    headers = dict(grpc_messages.request_headers("http", "x:1", []))
    return list({**headers, **{name.encode(): value for name, value in changes.items()}}.items())


def test_our_own_request_is_taken() -> None:
    grpc_messages.check_request(request())
    grpc_messages.check_request([*request(), (b"grpc-encoding", b"identity")])


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        (b":method", b"GET", Status.INTERNAL),
        (b"content-type", b"text/html", Status.INTERNAL),
        (b":path", b"/brokerd.v1.Admin/GetTopology", Status.UNIMPLEMENTED),
        (b"grpc-encoding", b"gzip", Status.UNIMPLEMENTED),
    ],
)
def test_other_requests_are_refused(name: bytes, value: bytes, status: Status) -> None:
    with pytest.raises(CallRefused) as caught:
        grpc_messages.check_request([*(h for h in request() if h[0] != name), (name, value)])
    assert caught.value.status == status
    assert METHOD.endswith("Exchange")


@pytest.mark.parametrize("secret", [b"", b"s", b"se", b"sec", bytes(range(256))])
def test_binary_metadata_comes_back_as_it_went(secret: bytes) -> None:
    headers = grpc_messages.request_headers("https", "x:1", [("key-bin", secret)])
    assert grpc_messages.binary_metadata(headers) == [("key-bin", secret)]
    assert grpc_messages.binary_metadata([(b"key-bin", b"YQ==")]) == [("key-bin", b"a")]


def test_metadata_that_is_not_base64_is_left_out() -> None:
    headers = [(b"a-bin", b"!!!"), (b"b-bin", b"A"), (b"c-bin", b"\xff"), (b"d", b"YQ")]
    assert grpc_messages.binary_metadata(headers) == []


@pytest.mark.parametrize("text", ["plain", "100 % \n \x7f ü 'x'", ""])
def test_status_and_its_text_come_back_as_they_went(text: str) -> None:
    headers = grpc_messages.status_headers(Status.PERMISSION_DENIED, text)
    assert all(32 <= byte < 127 for _, value in headers for byte in value)
    assert grpc_messages.describe_end(headers) == f"PERMISSION_DENIED: {text}"


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ([(b":status", b"200"), (b"content-type", b"application/grpc")], ""),
        ([(b"grpc-status", b"0")], ""),
        ([(b":status", b"503")], "HTTP status 503"),
        ([(b"grpc-status", b"77"), (b"grpc-message", b"%zz%FF")], "status 77: %zz\ufffd"),
        ([(b"grpc-status", b"\xff")], "status \xff: "),
    ],
)
def test_end_of_a_call_is_told_from_its_headers(headers: list[Header], text: str) -> None:
    assert grpc_messages.describe_end(headers) == text


def test_what_is_missing_of_a_message_is_known_from_its_prefix_on() -> None:
    reader = MessageReader(100)
    assert reader.missing == 0
    reader.feed(memoryview(b"\0\0"))
    assert reader.missing == grpc_messages.PREFIX_BYTES - 2
    reader.feed(memoryview(b"\0\0\x0axy"))
    assert reader.missing == 8
    assert reader.feed(memoryview(bytes(8))) == [b"xy" + bytes(8)]
    assert reader.missing == 0
