"""Frame parts must be what protobuf would have written, and come back as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.cluster.errors import FrameError
from brokerd.cluster.peer import frames
from brokerd.raft.messages import Configuration, Entry, Message, MessageKind, NodeId, Snapshot
from brokerd.rpc.v1 import peer_pb2

A, B = NodeId("a"), NodeId("b")
numbers = st.integers(0, 2**63 - 1)
entries = st.builds(
    Entry,
    index=numbers,
    term=numbers,
    kind=st.integers(0, 2),
    data=st.binary(max_size=300),
)
messages = st.builds(
    Message,
    kind=st.sampled_from([kind for kind in MessageKind if kind is not MessageKind.SNAPSHOT]),
    sender=st.just(A),
    to=st.just(B),
    term=numbers,
    index=numbers,
    log_term=numbers,
    commit=numbers,
    reject=st.booleans(),
    hint=numbers,
    entries=st.lists(entries, max_size=4),
    force=st.booleans(),
)


def parsed(*parts: frames.Part) -> peer_pb2.PeerFrame:
    for pieces, size in parts:
        assert size == sum(map(len, pieces))
    data = b"".join(piece for pieces, _ in parts for piece in pieces)
    return peer_pb2.PeerFrame.FromString(data)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), messages), min_size=1, max_size=4))
def test_raft_messages_laid_end_to_end_come_back(sent: list[tuple[int, Message]]) -> None:
    frame = parsed(*(frames.encode_raft(uid, message) for uid, message in sent))
    assert [(raft.group, frames.decode_raft(raft, A, B)) for raft in frame.raft] == sent


@given(numbers, st.integers(0, 2**64 - 1), st.binary(max_size=400))
def test_requests_replies_and_deliveries_share_a_frame(number: int, uid: int, data: bytes) -> None:
    frame = parsed(
        frames.encode_request(number, uid, data),
        frames.encode_reply(number, peer_pb2.GroupReply.NOT_LEADER, B, data),
        frames.encode_delivery(uid, number, 2, data),
    )
    assert frame == peer_pb2.PeerFrame(
        requests=[peer_pb2.GroupRequest(id=number, group=uid, command=data)],
        replies=[peer_pb2.GroupReply(id=number, status="NOT_LEADER", leader="b", reply=data)],
        deliveries=[peer_pb2.Delivery(group=uid, term=number, kind=2, payload=data)],
    )


def snapshot_message(data: bytes, live: list[Entry]) -> Message:
    snapshot = Snapshot(90, 3, Configuration((A, B), (NodeId("c"),)), data, live)
    return Message(MessageKind.SNAPSHOT, A, B, 7, snapshot=snapshot)


@given(st.binary(max_size=300), st.lists(entries, max_size=5), st.integers(1, 200))
def test_snapshot_in_chunks_is_put_together(data: bytes, live: list[Entry], chunk: int) -> None:
    message = snapshot_message(data, live)
    assembler = frames.SnapshotAssembler(10_000)
    parts = list(frames.encode_snapshot(5, message, chunk))
    found = [assembler.add(parsed(part).raft[0], A, B) for part in parts]
    assert found[:-1] == [None] * (len(parts) - 1)
    assert found[-1] == message


def test_chunks_stay_near_their_bound_unless_one_entry_is_larger() -> None:
    live = [Entry(index, 1, 0, bytes(40)) for index in range(1, 20)]
    live.append(Entry(50, 1, 0, bytes(1_000)))
    sizes = [size for _, size in frames.encode_snapshot(5, snapshot_message(bytes(950), live), 100)]
    assert sum(size > 250 for size in sizes) == 1
    assert len(sizes) > 15


def test_missing_chunk_drops_the_snapshot_until_it_begins_again() -> None:
    assembler = frames.SnapshotAssembler(10_000)
    message = snapshot_message(bytes(100), [])
    first, _, third, *_ = chunks = [
        parsed(part).raft[0] for part in frames.encode_snapshot(5, message, 20)
    ]
    assert assembler.add(first, A, B) is None
    assert assembler.add(third, A, B) is None
    assert [assembler.add(chunk, A, B) for chunk in chunks[3:]] == [None, None]
    assert [assembler.add(chunk, A, B) for chunk in chunks][-1] == message


def test_snapshot_over_the_limit_is_refused() -> None:
    assembler = frames.SnapshotAssembler(50)
    chunks = [
        parsed(part).raft[0]
        for part in frames.encode_snapshot(5, snapshot_message(bytes(100), []), 20)
    ]
    assert [assembler.add(chunk, A, B) for chunk in chunks[:2]] == [None, None]
    with pytest.raises(FrameError, match="exceeds 50"):
        assembler.add(chunks[2], A, B)


def test_unknown_message_kind_is_a_frame_error() -> None:
    with pytest.raises(FrameError, match="99"):
        frames.decode_raft(peer_pb2.RaftMessage(kind=99), A, B)
