"""However a stream is cut into reads, the same comes out; no bytes make the machine raise."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.amqp import events, methods
from brokerd.amqp.connection import AmqpConnection
from brokerd.amqp.properties import BasicProperties
from tests.unit.amqp.pair import (
    HEADER,
    body_frame,
    flat,
    frame,
    header_frame,
    opened_server,
    publish_bytes,
    sent,
    server,
    start_ok,
    tune_ok,
)

CHANNELS = st.integers(1, 3)
RAW = st.sampled_from(
    [b"\0\0", BasicProperties(delivery_mode=2).encode(), BasicProperties(headers={"a": 1}).encode()]
)
PUBLISHES = st.builds(
    publish_bytes,
    CHANNELS,
    st.binary(max_size=40),
    key=st.sampled_from(["a", "b"]),
    raw=RAW,
    cut=st.integers(1, 50),
)
ACKS = st.builds(
    lambda channel, tag, multiple: methods.BasicAck(tag, multiple).encode(channel),
    CHANNELS,
    st.integers(0, 2**64 - 1),
    st.booleans(),
)
OTHERS = st.builds(
    lambda channel, method: method.encode(channel),
    CHANNELS,
    st.sampled_from(
        [
            methods.QueueDeclare(queue="q", arguments={"x-max-length": 5}),
            methods.BasicNack(4, True, True),
            methods.ChannelClose(200, "x"),
            methods.ChannelOpen(),
            methods.ConfirmSelect(),
        ]
    ),
)
BEATS = st.just(frame(8, 0, b""))
#: Any frame, right or wrong, with any channel and end octet.
WRONG = st.one_of(
    st.builds(
        frame,
        st.sampled_from([1, 2, 3, 4, 8]),
        st.integers(0, 4),
        st.binary(max_size=30),
        st.sampled_from([0xCE, 0xCE, 0xCE, 0]),
    ),
    st.builds(header_frame, CHANNELS, st.integers(0, 2**64 - 1)),
    st.builds(body_frame, CHANNELS, st.binary(max_size=5)),
    st.binary(max_size=20),
)
GOOD = st.one_of(PUBLISHES, PUBLISHES, ACKS, OTHERS, BEATS)
STREAMS = st.builds(
    lambda before, wrong, after: b"".join(before) + wrong + b"".join(after),
    st.lists(GOOD, max_size=12),
    st.one_of(st.just(b""), WRONG),
    st.lists(GOOD, max_size=4),
)


def feed(machine: AmqpConnection, data: bytes, cuts: list[int]) -> list[object]:
    """Feeds the data in pieces and takes the batches apart."""
    out: list[object] = []
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, stop in itertools.pairwise(borders):
        out += flat(machine.receive_data(data[start:stop], 0))
        machine.check_invariants()
    return out


def without_quotes(found: list[object]) -> list[object]:
    """The text of a framing error quotes the octets that have arrived; cuts show in it."""
    for event in found:
        if isinstance(event, events.ConnectionFailed):
            event.reason = event.reason[:30]
    return found


def assert_same(data: bytes, cuts: list[int]) -> None:
    whole, pieces = opened_server(channels=(1, 2, 3)), opened_server(channels=(1, 2, 3))
    assert without_quotes(feed(pieces, data, cuts)) == without_quotes(feed(whole, data, []))
    assert pieces.overview() == whole.overview()
    assert kinds_sent(pieces) == kinds_sent(whole)


def kinds_sent(machine: AmqpConnection) -> list[tuple[int, str]]:
    return [(channel, method.NAME) for channel, method in sent(machine)]


@settings(deadline=None)
@given(STREAMS, st.lists(st.integers(0, 10_000), max_size=8))
def test_cutting_a_stream_anywhere_changes_nothing(data: bytes, cuts: list[int]) -> None:
    assert_same(data, cuts)


@settings(deadline=None)
@given(STREAMS)
def test_byte_at_a_time_equals_whole(data: bytes) -> None:
    assert_same(data, list(range(len(data))))


@settings(deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_make_an_unauthenticated_server_raise_or_talk(
    data: bytes, has_header: bool
) -> None:
    """R-CON-4, SEC-31: unknown peers get start, our header, or nothing."""
    machine = server()
    feed(machine, (HEADER if has_header else b"") + data, [])
    out = machine.data_to_send()
    assert out in (b"", HEADER) or out[7:11] == b"\x00\x0a\x00\x0a"


@settings(deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=10))
def test_pipelined_handshake_may_be_cut_anywhere(cuts: list[int]) -> None:
    data = HEADER + start_ok() + tune_ok() + methods.ConnectionOpen("/").encode(0)
    data += methods.ChannelOpen().encode(1) + publish_bytes(1, b"first")
    machine = server()
    found: list[object] = []
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, stop in itertools.pairwise(borders):
        pending = machine.receive_data(data[start:stop], 0)
        while pending:
            event = pending.pop(0)
            found += flat([event])
            if isinstance(event, events.AuthenticationRequested):
                pending += machine.authentication_succeeded()
            elif isinstance(event, events.OpenRequested):
                pending += machine.open_accepted()
    names = [type(event).__name__ for event in found]
    assert names == ["AuthenticationRequested", "OpenRequested", "ChannelOpened", "tuple"]


@settings(deadline=None)
@given(STREAMS, st.lists(st.integers(0, 10_000), max_size=6))
def test_holding_delays_but_changes_nothing(data: bytes, cuts: list[int]) -> None:
    """R-ALM-3."""
    plain, held = opened_server(channels=(1, 2, 3)), opened_server(channels=(1, 2, 3))
    expected = feed(plain, data, [])
    held.hold_publishes = True
    got = [e for e in feed(held, data, cuts) if not isinstance(e, events.PublishHeld)]
    assert not any(isinstance(e, tuple) and e[0] == "publish" for e in got)
    got += flat(held.resume_publishes())
    assert without_quotes(got) == without_quotes(expected)
