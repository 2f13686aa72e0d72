"""What waits for a peer: frames, budgets, snapshots between other traffic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerd.cluster.errors import SnapshotUnreadable
from brokerd.cluster.peer.transport import _Outbox
from brokerd.rpc.v1 import peer_pb2
from brokerd.storage.errors import DamagedEntry


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
