"""Entries that are cut out of a frame are what protobuf would have read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.cluster.peer import frame_entries, frames
from brokerd.cluster.peer.frame_entries import CUT_BYTES_MIN, NOTHING_CUT, cut_entries
from brokerd.raft.messages import Entry, Message, MessageKind
from brokerd.rpc.v1 import peer_pb2
from tests.unit.cluster.peer.test_frames import A, B, messages

LARGE = bytes(CUT_BYTES_MIN)


def laid(*parts: frames.Part) -> bytes:
    return b"".join(piece for pieces, _ in parts for piece in pieces)


def put_together(frame: bytes) -> list[tuple[int, Message]]:
    rest, cut = cut_entries(frame)
    found = []
    for number, raft in enumerate(peer_pb2.PeerFrame.FromString(rest).raft):
        message = frames.decode_raft(raft, A, B)
        if number in cut:
            assert not message.entries
            message.entries = cut[number]
        found.append((raft.group, message))
    return found


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), messages), min_size=1, max_size=4))
def test_what_was_cut_and_the_rest_are_the_whole_frame(sent: list[tuple[int, Message]]) -> None:
    big = Message(MessageKind.APPEND, A, B, 3, 1, 2, 1, entries=[Entry(2, 3, 0, LARGE)])
    sent = [*sent, (7, big)]
    others = laid(
        frames.encode_request(5, 6, b"command"),
        frames.encode_reply(5, peer_pb2.GroupReply.OK, B, b"reply"),
        frames.encode_delivery(6, 1, 2, b"payload"),
    )
    rafts = laid(*(frames.encode_raft(uid, message) for uid, message in sent))
    rest, cut = cut_entries(others + rafts)
    assert len(rest) < CUT_BYTES_MIN
    assert set(cut) == {n for n, (_, message) in enumerate(sent) if message.entries}
    assert put_together(others + rafts) == sent
    whole = peer_pb2.PeerFrame.FromString(rest)
    assert [whole.requests[0].command, whole.replies[0].reply] == [b"command", b"reply"]
    assert whole.deliveries[0].payload == b"payload"


def raft(**fields: object) -> bytes:
    return peer_pb2.PeerFrame(raft=[peer_pb2.RaftMessage(**fields)]).SerializeToString()  # type: ignore[arg-type]


ENTRY = peer_pb2.Entry(index=1, term=1, data=LARGE)
APPEND = raft(group=1, kind=6, term=1, entries=[ENTRY])
BARE = peer_pb2.Entry(index=1, term=1, data=LARGE).SerializeToString()


def wrapped(tag: int, inner: bytes) -> bytes:
    return bytes((tag,)) + frames._varint(len(inner)) + inner


@pytest.mark.parametrize(
    "frame",
    [
        peer_pb2.PeerFrame(hello=peer_pb2.Hello(cluster_id="x" * len(LARGE))).SerializeToString(),
        raft(group=1, snapshot=peer_pb2.SnapshotChunk(data=LARGE)),
        # No index, and a term of ten bytes: zeros are left out, and such terms do not come.
        raft(group=1, entries=[peer_pb2.Entry(term=1, data=LARGE)]),
        raft(group=1, term=2**64 - 1, entries=[ENTRY]),
        raft(group=1, force=True, entries=[ENTRY]),
        # A head that says something twice, or behind the entries.
        wrapped(0x12, b"\x18\x01\x18\x02" + wrapped(0x4A, BARE)),
        wrapped(0x12, wrapped(0x4A, BARE) + b"\x18\x02"),
        wrapped(0x12, b"\x09\x01" + wrapped(0x4A, BARE)[:3]) + LARGE,
        # An entry with something behind its data, or of a kind that has more than 32 bits.
        wrapped(0x12, wrapped(0x4A, BARE + b"\x10\x01")),
        wrapped(0x12, wrapped(0x4A, b"\x08\x01\x10\x01\x18\x80\x80\x80\x80\x10" + BARE[4:])),
        # Cut off, at the end and within a number.
        APPEND[:-1],
        wrapped(0x12, wrapped(0x4A, BARE)) + b"\x12\xff",
        wrapped(0x12, b"\x09\x01"),
        LARGE,
    ],
)
def test_what_is_laid_out_otherwise_is_left_to_protobuf(frame: bytes) -> None:
    padded = frame if len(frame) >= CUT_BYTES_MIN else wrapped(0x22, LARGE) + frame
    assert cut_entries(padded) == (padded, NOTHING_CUT)


def test_small_frame_is_left_whole() -> None:
    small = laid(
        frames.encode_raft(1, Message(MessageKind.APPEND, A, B, 1, entries=[Entry(1, 1, 0, b"x")]))
    )
    assert cut_entries(small) == (small, frame_entries.NOTHING_CUT)
