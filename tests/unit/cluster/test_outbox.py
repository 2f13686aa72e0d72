"""What waits for a peer: frames, budgets, snapshots between other traffic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerd.cluster.errors import SnapshotUnreadable
from brokerd.cluster.transport import _Outbox
from brokerd.raft.messages import Entry, Message, MessageKind, NodeId
from brokerd.rpc.v1 import peer_pb2
from brokerd.storage.errors import DamagedEntry

A, B = NodeId("a"), NodeId("b")


def notice(index: int, term: int = 3) -> Message:
    """The commit index alone, for a follower that has everything (raft/replication.py)."""
    return Message(MessageKind.APPEND, A, B, term, index, term, index, False, index)


def append(index: int, commit: int, term: int = 3) -> Message:
    entries = [Entry(index, term, 0, b"data")]
    return Message(MessageKind.APPEND, A, B, term, index - 1, term, commit, False, 0, entries)


def part(size: int, fill: bytes = b"x") -> tuple[list[bytes], int]:
    return [fill * size], size


def taken(outbox: _Outbox, frame_bytes: int) -> bytes:
    """The next frame as it leaves."""
    pieces, size = outbox.take(frame_bytes)
    frame = b"".join(pieces)
    assert len(frame) == size
    return frame


def test_parts_share_a_frame_up_to_its_size_in_order() -> None:
    outbox = _Outbox()
    for fill in (b"1", b"2", b"3", b"4"):
        outbox.put(part(40, fill))
    assert outbox.size == 160
    assert taken(outbox, 100) == b"1" * 40 + b"2" * 40
    assert outbox.size == 80
    assert taken(outbox, 100) == b"3" * 40 + b"4" * 40
    assert outbox.is_empty()
    assert taken(outbox, 100) == b""


def test_part_over_the_frame_size_goes_alone() -> None:
    outbox = _Outbox()
    outbox.put(part(500))
    outbox.put(part(1))
    assert len(taken(outbox, 100)) == 500
    assert len(taken(outbox, 100)) == 1


def test_snapshot_goes_on_beside_traffic_that_fills_every_frame() -> None:
    outbox = _Outbox()
    outbox.snapshots.append((7, iter([part(10, b"s"), part(10, b"s")])))
    for _ in range(3):
        outbox.put(part(100))
    assert taken(outbox, 100).count(b"s") == 10
    assert taken(outbox, 100).count(b"s") == 10
    assert not outbox.is_empty()
    assert taken(outbox, 100).count(b"s") == 0
    assert outbox.is_empty()


def test_snapshot_that_cannot_be_read_is_given_up_and_the_rest_goes() -> None:
    def chunks() -> Iterator[tuple[list[bytes], int]]:
        yield part(10, b"s")
        raise DamagedEntry(7, 3, "segment 1")

    outbox = _Outbox()
    outbox.snapshots.append((7, chunks()))
    outbox.put(part(5))
    assert taken(outbox, 100) == b"s" * 10 + b"x" * 5
    outbox.put(part(6))
    with pytest.raises(SnapshotUnreadable, match="group 7"):
        taken(outbox, 100)
    assert taken(outbox, 100) == b"x" * 6
    assert outbox.is_empty()


def test_last_liveness_goes_once_so_that_two_are_never_merged() -> None:
    outbox = _Outbox()
    for alarms in (["memory"], []):
        frame = peer_pb2.PeerFrame(liveness=peer_pb2.Liveness(alarms=alarms, memory_used=1))
        outbox.liveness = frame.SerializeToString()
    found = peer_pb2.PeerFrame.FromString(taken(outbox, 100))
    assert list(found.liveness.alarms) == []
    assert found.liveness.memory_used == 1
    assert outbox.is_empty()


def commits(outbox: _Outbox) -> list[tuple[int, int, int]]:
    """(group, commit, entries) of the next frame's Raft messages."""
    frame = peer_pb2.PeerFrame.FromString(taken(outbox, 1000))
    return [(raft.group, raft.commit, len(raft.entries)) for raft in frame.raft]


def test_only_the_newest_notice_of_a_group_leaves() -> None:
    outbox = _Outbox()
    outbox.notices[7] = notice(4)
    outbox.notices[8] = notice(2)
    outbox.notices[7] = notice(5)
    assert not outbox.is_empty()
    assert commits(outbox) == [(7, 5, 0), (8, 2, 0)]
    assert outbox.is_empty()


def test_entries_of_a_group_replace_its_notice_and_no_other() -> None:
    outbox = _Outbox()
    outbox.notices[7] = notice(4)
    outbox.notices[8] = notice(2)
    outbox.put_raft(7, append(5, commit=4))
    assert commits(outbox) == [(8, 2, 0), (7, 4, 1)]


def test_entries_that_know_less_leave_the_notice_in_place() -> None:
    outbox = _Outbox()
    outbox.notices[7] = notice(4)
    outbox.put_raft(7, append(5, commit=3))
    outbox.put_raft(7, Message(MessageKind.APPEND_REPLY, A, B, 3, 4))
    outbox.put_raft(7, append(9, commit=9, term=2))
    assert [(group, commit) for group, commit, count in commits(outbox) if not count] == [
        (7, 4),
        (7, 0),
    ]


def test_notices_are_in_the_first_frame_before_answers_that_do_not_fit() -> None:
    outbox = _Outbox()
    outbox.notices[7] = notice(4)
    outbox.put(part(500))
    assert peer_pb2.PeerFrame.FromString(taken(outbox, 100)[:-500]).raft[0].commit == 4
    assert outbox.is_empty()
