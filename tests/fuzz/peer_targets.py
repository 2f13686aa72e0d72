"""What is fuzzed between members and on disk: HTTP/2, peer frames, Raft messages, the log.

A member is trusted no further than its certificate: what it sends is bounded and checked (SEC-50).
Used by `tests.fuzz` only.
"""

from __future__ import annotations

import random

from google.protobuf.message import DecodeError

from brokerd.cluster.errors import CallRefused, DeliveryFormatError, FrameError
from brokerd.cluster.peer import deliveries, frames, grpc_messages
from brokerd.core.queue.effects import Run
from brokerd.http2 import framing, one_stream
from brokerd.http2.errors import Http2Error
from brokerd.raft.inputs import Received
from brokerd.raft.machine import Meta
from brokerd.raft.membership import encode_configuration
from brokerd.raft.messages import (
    Configuration,
    Entry,
    EntryKind,
    GroupUid,
    HardState,
    Message,
    MessageKind,
    NodeId,
    Snapshot,
)
from brokerd.raft.replica import Replica
from brokerd.rpc.v1 import peer_pb2
from brokerd.storage import records, scan
from brokerd.storage.errors import StorageError
from tests.fuzz.target import Target
from tests.unit.core.queue_driver import consumer, content
from tests.unit.raft.cluster import Cluster, EchoMachine, EchoOutcome

A, B = NodeId("a"), NodeId("b")
SNAPSHOT_BYTES_MAX = 1 << 20
SEGMENT_BYTES = 16_384


#: More than what is answered to any input of a few kilobytes.
ANSWERS_BYTES_MAX = 65_536


def http2_stream(data: bytes) -> None:
    """Bytes of a stranger on a peer connection, of either side, with or without a good beginning.

    The first byte says which, the second how the bytes are cut.
    """
    is_client, begins_well = data[:1] > b"\x7f", bool(data[:1] and data[0] & 1)
    connection = one_stream.Http2Connection(is_client=is_client)
    reader = grpc_messages.MessageReader(1024)
    size = (data[1] if len(data) > 1 else 0) or len(data) or 1
    pieces = [data[at : at + size] for at in range(2, len(data), size)]
    if begins_well:
        pieces.insert(0, (b"" if is_client else framing.PREFACE) + framing.settings_frame([]))
    try:
        for piece in pieces:
            for event in connection.receive(piece):
                if isinstance(event, memoryview):
                    assert all(len(message) <= 1024 for message in reader.feed(event))
                elif isinstance(event, one_stream.HeadersReceived):
                    grpc_messages.binary_metadata(event.headers)
                    grpc_messages.describe_end(event.headers)
                    grpc_messages.check_request(event.headers)
    except (Http2Error, CallRefused):
        pass
    assert sum(map(len, connection.out)) < ANSWERS_BYTES_MAX


def http2_seeds() -> list[bytes]:
    """What a client and a server send, whole, cut, and without its beginning."""
    client = one_stream.Http2Connection(is_client=True)
    client.send_headers(grpc_messages.request_headers("http", "x:1", [("a-bin", b"secret")]))
    client.send_data([grpc_messages.prefix(5), b"hello"], 10)
    client.send_ping()
    server = one_stream.Http2Connection(is_client=False)
    there = b"".join(client.data_to_send())
    server.receive(there)
    server.send_headers(grpc_messages.response_headers())
    server.send_headers(grpc_messages.status_headers(grpc_messages.Status.OK, ""), ends_stream=True)
    server.send_goaway(framing.NO_ERROR, "bye")
    back = b"".join(server.data_to_send())
    floods = [
        framing.frame(framing.PING, 0, 0, bytes(8)) * 20,
        framing.frame(framing.RST_STREAM, 0, 1),
    ]
    return [
        *(bytes((0, cut)) + there for cut in (0, 1, 50)),
        *(bytes((255 - cut % 2, cut)) + back for cut in (0, 1, 50)),
        *(b"\x01\x00" + flood for flood in floods),
        b"\x01\x00" + there[len(framing.PREFACE) :],
    ]


def peer_frame(data: bytes) -> None:
    """A PeerFrame: its Raft messages go to a replica, its deliveries to their decoder."""
    try:
        frame = peer_pb2.PeerFrame.FromString(data)
    except DecodeError:
        return
    cluster = _cluster()
    assembler = frames.SnapshotAssembler(SNAPSHOT_BYTES_MAX)
    for raft in frame.raft:
        try:
            if raft.HasField("snapshot"):
                found = assembler.add(raft, A, B)
            else:
                found = frames.decode_raft(raft, A, B)
        except FrameError:
            continue
        if found is not None:
            _step(cluster, found)
    for each in frame.deliveries:
        delivery(each.payload)


class _Machine(EchoMachine):
    """Takes any command and any snapshot; what is fuzzed is the replica around it."""

    def apply(self, meta: Meta, command: bytes) -> EchoOutcome:
        """Answer without looking."""
        return EchoOutcome(b"")

    def restore(self, data: bytes) -> None:
        """Take over nothing."""


class _Cluster(Cluster):
    def start(self, name: str) -> Replica:
        """Boot a member with that machine."""
        node = NodeId(name)
        self.machines[node] = _Machine()
        disk, config, rng = self.disks[node], self.config, random.Random(ord(name))
        self.replicas[node] = Replica(
            GroupUid(7), node, self.bootstrap, self.machines[node], disk, config, rng
        )
        return self.replicas[node]


def _cluster() -> Cluster:
    cluster = _Cluster()
    cluster.elect("a")
    cluster.stabilize()
    return cluster


def _step(cluster: Cluster, message: Message) -> None:
    """The replica ignores or handles it, and stays sound (`feed` checks its invariants)."""
    cluster.feed("b", Received(message))
    cluster.sync("b")


def delivery(data: bytes) -> None:
    """The payload of a Delivery frame, of every kind."""
    for decode in (deliveries.decode, deliveries.decode_cancelled, deliveries.decode_sync):
        try:
            decode(data)
        except DeliveryFormatError:
            continue


def segment(data: bytes) -> None:
    """A segment of the log with anything in it: every record is told to be whole, torn or lost.

    The first byte says whether it is the one that was being written.  What follows replaces bytes
    of a good segment: pairs of offset and length, then the bytes.
    """
    image = bytearray(_segment())
    at = 1
    while at + 4 <= len(data):
        offset = int.from_bytes(data[at : at + 2], "big") % SEGMENT_BYTES
        size = data[at + 2]
        image[offset : offset + size] = data[at + 3 : at + 3 + size]
        at += 3 + size
    whole = bytes(image)
    try:
        header = records.decode_segment_header(whole, "wal")
        found = scan.scan_segment(whole, header, "wal", is_tail=data[:1] > b"\x7f")
    except (StorageError, UnicodeDecodeError):
        return
    assert records.SEGMENT_DATA_START <= found.end <= len(whole)


def record_data(data: bytes) -> None:
    """The small records' data, whose checksum was right: only a different build wrote it wrong."""
    try:
        state, reset = records.decode_group_state(data)
    except (ValueError, KeyError, TypeError, RecursionError, IndexError):
        return
    assert records.decode_group_state(records.encode_group_state(state, reset=bool(reset)))


def _segment() -> bytes:
    header = records.SegmentHeader(3, SEGMENT_BYTES, 0x5A17, True, "a")
    out = records.encode_segment_header(header).ljust(records.SEGMENT_DATA_START, b"\0")
    state = records.GroupState(HardState(1, A, 1), Configuration((A, B)))
    for kind, uid, index, data in (
        (records.BATCH, 0, 1, b""),
        (records.GROUP, 7, 0, records.encode_group_state(state, reset=False)),
        (records.ENTRY, 7, 1, b"stamp..." * 20),
        (records.BATCH, 0, 2, b""),
        (records.ENTRY, 7, 2, b"x" * 700),
    ):
        out += records.encode_record(
            header.seed, header.salt, len(out), kind, uid, index, 1, data, 0, 1
        )
    return out.ljust(SEGMENT_BYTES, b"\0")


def _frame(part: frames.Part) -> bytes:
    return b"".join(part[0])


def peer_frame_seeds() -> list[bytes]:
    """One message of each kind, and a snapshot in chunks."""
    stamp = bytes(8)
    entries = [
        Entry(2, 1, EntryKind.COMMAND, stamp + b"x"),
        Entry(3, 1, EntryKind.CONFIG, encode_configuration(Configuration((A, B)))),
        Entry(4, 1, EntryKind.NOOP, b""),
    ]
    found = [
        _frame(frames.encode_raft(GroupUid(7), Message(kind, A, B, 2, 1, 1, 1)))
        for kind in MessageKind
        if kind is not MessageKind.SNAPSHOT
    ]
    append = Message(MessageKind.APPEND, A, B, 1, 1, 1, 2, entries=entries)
    found.append(_frame(frames.encode_raft(GroupUid(7), append)))
    value = Snapshot(9, 1, Configuration((A, B)), b"[]", [Entry(8, 1, 0, stamp + b"y")])
    whole = Message(MessageKind.SNAPSHOT, A, B, 1, 9, 1, snapshot=value)
    chunks = [_frame(part) for part in frames.encode_snapshot(GroupUid(7), whole, 16)]
    return [*found, b"".join(found), b"".join(chunks), *(chunks[:1])]


def delivery_seeds() -> list[bytes]:
    """Deliveries with and without annotations, a cancellation, a question."""
    runs = [(Run(0, 2, 5, 0, 0, 0), [content(b"a"), content(b"b")])]
    noted = [(Run(0, 1, 5, 0, 1, 1), [content(b"a", priority=5)])]
    return [
        deliveries.encode(consumer(), runs),
        deliveries.encode(consumer(), noted + runs),
        deliveries.encode_cancelled(consumer(), "queue deleted"),
        deliveries.encode_sync(3, 9),
    ]


def segment_seeds() -> list[bytes]:
    """Flipped, cut and doubled spots of a good segment."""
    spots = (0, 512, 1024, 1030, 1100, 1400, 2200)
    return [
        bytes((tail,)) + spot.to_bytes(2, "big") + bytes((len(damage),)) + damage
        for tail in (0, 255)
        for spot in spots
        for damage in (b"\x01", b"\0" * 60, b"\xff" * 200)
    ]


def record_seeds() -> list[bytes]:
    """What a group's record holds."""
    state = records.GroupState(HardState(3, A, 2), Configuration((A,), (B,)), 5, 2, 9, (1,), (2,))
    return [records.encode_group_state(each, reset=True) for each in (state, records.GroupState())]


TARGETS: dict[str, Target] = {
    "http2-streams": Target(http2_stream, http2_seeds),
    "peer-frames": Target(peer_frame, peer_frame_seeds),
    "deliveries": Target(delivery, delivery_seeds, 1024),
    "segments": Target(segment, segment_seeds),
    "records": Target(record_data, record_seeds, 512),
}
