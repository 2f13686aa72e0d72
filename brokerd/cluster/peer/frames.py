"""PeerFrame parts: what goes to a peer, encoded piece by piece, and back.

A PeerFrame's fields are repeated, so encoded parts can simply be laid end to end.  A part is a
list of byte strings that are joined once, when the frame leaves: an entry's data is copied once.
Everything but the large byte fields is encoded by protobuf itself.  For transport.py and host.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol, TypeAlias

from brokerd.cluster.errors import FrameError
from brokerd.raft.messages import (
    Entry,
    Message,
    MessageKind,
    NodeId,
    Snapshot,
    configuration_of,
)
from brokerd.rpc.v1 import peer_pb2

PROTOCOL_VERSION = 1

#: Byte strings to be joined, and their total size.
Part: TypeAlias = tuple[list[bytes], int]

# Field tags of protos/brokerd/rpc/v1/peer.proto: number << 3 | wire type 2 (length-delimited).
_FRAME_RAFT = b"\x12"
_FRAME_REQUEST = b"\x1a"
_FRAME_REPLY = b"\x22"
_FRAME_DELIVERY = b"\x2a"
_RAFT_ENTRY = b"\x4a"
_RAFT_SNAPSHOT = b"\x52"
_CHUNK_DATA = b"\x3a"
_CHUNK_LIVE = b"\x42"
_ENTRY_DATA = b"\x22"
_REQUEST_COMMAND = b"\x1a"
_REPLY_REPLY = b"\x22"
_DELIVERY_PAYLOAD = b"\x22"


def encode_hello(
    node: NodeId,
    incarnation: int,
    cluster_id: str,
    *,
    enquiry: peer_pb2.Enquiry | None = None,
    description: peer_pb2.Description | None = None,
) -> bytes:
    """Return the first frame of a stream, in either direction."""
    hello = peer_pb2.Hello(
        cluster_id=cluster_id,
        node=node,
        incarnation=incarnation,
        protocol_version=PROTOCOL_VERSION,
        enquiry=enquiry,
        description=description,
    )
    return peer_pb2.PeerFrame(hello=hello).SerializeToString()


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _with_data(tag: bytes, head: bytes, data_tag: bytes, data: bytes) -> Part:
    """Lay a sub-message out: `head` is its small fields, `data` its large one."""
    inner = head + data_tag + _varint(len(data))
    size = len(inner) + len(data)
    first = tag + _varint(size) + inner
    return [first, data], len(first) + len(data)


def _wrap(tag: bytes, head: bytes, pieces: list[bytes], size: int) -> Part:
    """Lay a sub-message out whose small fields are `head` and whose large ones are `pieces`."""
    first = tag + _varint(len(head) + size) + head
    return [first, *pieces], len(first) + size


def _entries(tag: bytes, entries: list[Entry]) -> Part:
    pieces: list[bytes] = []
    total = 0
    for entry in entries:
        head = b"\x08" + _varint(entry.index) + b"\x10" + _varint(entry.term)
        if entry.kind:
            head += b"\x18" + _varint(entry.kind)
        part, size = _with_data(tag, head, _ENTRY_DATA, entry.data)
        pieces += part
        total += size
    return pieces, total


def _raft_head(uid: int, message: Message) -> bytes:
    return peer_pb2.RaftMessage(
        group=uid,
        kind=message.kind,
        term=message.term,
        index=message.index,
        log_term=message.log_term,
        commit=message.commit,
        reject=message.reject,
        hint=message.hint,
        force=message.force,
    ).SerializeToString()


def encode_raft(uid: int, message: Message) -> Part:
    """Encode a Raft message without its snapshot."""
    pieces, size = _entries(_RAFT_ENTRY, message.entries) if message.entries else ([], 0)
    return _wrap(_FRAME_RAFT, _raft_head(uid, message), pieces, size)


def _chunk(
    uid: int, message: Message, snapshot: Snapshot, number: int, is_last: bool, body: Part
) -> Part:
    configuration = snapshot.configuration
    head = peer_pb2.SnapshotChunk(
        index=snapshot.index,
        term=snapshot.term,
        voters=configuration.voters if number == 0 else (),
        learners=configuration.learners if number == 0 else (),
        chunk=number,
        last=is_last,
        terms=chain.from_iterable(snapshot.terms) if number == 0 else (),
    ).SerializeToString()
    pieces, size = _wrap(_RAFT_SNAPSHOT, head, *body)
    return _wrap(_FRAME_RAFT, _raft_head(uid, message), pieces, size)


def _chunk_bodies(snapshot: Snapshot, chunk_bytes: int) -> Iterator[Part]:
    data = snapshot.data
    for at in range(0, len(data), chunk_bytes):
        piece = data[at : at + chunk_bytes]
        head = _CHUNK_DATA + _varint(len(piece))
        yield [head, piece], len(head) + len(piece)
    group: list[Entry] = []
    size = 0
    for entry in snapshot.live:
        if group and size + len(entry.data) > chunk_bytes:
            yield _entries(_CHUNK_LIVE, group)
            group, size = [], 0
        group.append(entry)
        size += len(entry.data)
    if group:
        yield _entries(_CHUNK_LIVE, group)


def encode_snapshot(uid: int, message: Message, chunk_bytes: int) -> Iterator[Part]:
    """Encode a SNAPSHOT message as parts of about `chunk_bytes` each, lazily.

    A single live entry that is larger goes in a part of its own.
    """
    snapshot = message.snapshot
    assert snapshot is not None
    number = 0
    body: Part = ([], 0)
    for next_body in _chunk_bodies(snapshot, chunk_bytes):
        if number or body[1]:
            yield _chunk(uid, message, snapshot, number, False, body)
            number += 1
        body = next_body
    yield _chunk(uid, message, snapshot, number, True, body)


def snapshot_size(snapshot: Snapshot) -> int:
    """Return about how many bytes a snapshot's parts have together."""
    return len(snapshot.data) + sum(len(entry.data) + 16 for entry in snapshot.live)


def encode_request(request_id: int, uid: int, command: bytes) -> Part:
    """Encode a command for another node's group."""
    head = b"\x08" + _varint(request_id) + b"\x11" + uid.to_bytes(8, "little")
    return _with_data(_FRAME_REQUEST, head, _REQUEST_COMMAND, command)


def encode_reply(request_id: int, status: int, leader: NodeId | None, reply: bytes) -> Part:
    """Encode the answer to a request."""
    head = b"\x08" + _varint(request_id)
    if status:
        head += b"\x10" + _varint(status)
    if leader:
        name = leader.encode()
        head += b"\x1a" + _varint(len(name)) + name
    return _with_data(_FRAME_REPLY, head, _REPLY_REPLY, reply)


def encode_delivery(uid: int, term: int, kind: int, payload: bytes) -> Part:
    """Encode what a leader sends to a consumer's node."""
    head = b"\x09" + uid.to_bytes(8, "little") + b"\x10" + _varint(term)
    if kind:
        head += b"\x18" + _varint(kind)
    return _with_data(_FRAME_DELIVERY, head, _DELIVERY_PAYLOAD, payload)


# ---- back ---------------------------------------------------------------------------------------


def _decode_entry(entry: peer_pb2.Entry) -> Entry:
    return Entry(entry.index, entry.term, entry.kind, entry.data)


#: A look here takes a fifth of a call of the class.
_KINDS = {int(kind): kind for kind in MessageKind}


def decode_raft(raft: peer_pb2.RaftMessage, sender: NodeId, to: NodeId) -> Message:
    """Decode a Raft message, its snapshot aside; FrameError for an unknown kind."""
    kind = _KINDS.get(raft.kind)
    if kind is None:
        raise FrameError(f"unknown raft message kind {raft.kind}")
    return Message(
        kind,
        sender,
        to,
        raft.term,
        raft.index,
        raft.log_term,
        raft.commit,
        raft.reject,
        raft.hint,
        [Entry(entry.index, entry.term, entry.kind, entry.data) for entry in raft.entries],
        None,
        raft.force,
    )


@dataclass(slots=True)
class _Assembly:
    uid: int
    message_term: int
    snapshot: Snapshot
    chunks: int = 0
    size: int = 0
    data: list[bytes] = field(default_factory=list)
    live: list[Entry] = field(default_factory=list)


class Spool(Protocol):
    """Where live entries go as they come (snapshot_spool.py)."""

    def begin(self, group: int, snapshot: Snapshot, node: NodeId) -> None:
        """A snapshot begins."""
        ...

    def take(self, group: int, entries: list[Entry]) -> None:
        """Some of its live entries; FrameError if they cannot be."""
        ...

    def complete(self, group: int) -> Collection[Entry] | None:
        """That was all; return what stands for it, None if it is not wanted."""
        ...

    def drop(self, group: int) -> None:
        """It will not be completed."""
        ...


class SnapshotAssembler:
    """Puts the chunks of one stream together again.

    A sender finishes one snapshot before it begins the next, so one assembly per stream is enough;
    what does not continue it is dropped, and the raft room sends the snapshot again.  With a spool
    the live entries go there and the message comes without them.
    """

    def __init__(self, bytes_max: int, spool: Spool | None = None) -> None:
        self._bytes_max = bytes_max
        self._spool = spool
        self._assembly: _Assembly | None = None

    def add(self, raft: peer_pb2.RaftMessage, sender: NodeId, to: NodeId) -> Message | None:
        """Take a chunk; return the whole message with the last one."""
        chunk = raft.snapshot
        if chunk.chunk == 0:
            configuration = configuration_of(
                tuple(NodeId(name) for name in chunk.voters),
                tuple(NodeId(name) for name in chunk.learners),
            )
            terms = tuple(zip(chunk.terms[::2], chunk.terms[1::2], strict=False))
            empty = Snapshot(chunk.index, chunk.term, configuration, b"", terms=terms)
            self._drop()
            self._assembly = _Assembly(raft.group, raft.term, empty)
            if self._spool is not None:
                self._spool.begin(raft.group, empty, sender)
        assembly = self._assembly
        if assembly is None:
            return None
        snapshot = assembly.snapshot
        if (assembly.uid, assembly.message_term, snapshot.index, snapshot.term) != (
            raft.group,
            raft.term,
            chunk.index,
            chunk.term,
        ) or assembly.chunks != chunk.chunk:
            self._drop()
            return None
        assembly.chunks += 1
        assembly.data.append(chunk.data)
        assembly.size += len(chunk.data)
        live = [_decode_entry(entry) for entry in chunk.live]
        if self._spool is not None:
            self._spool.take(raft.group, live)
        else:
            assembly.live += live
            assembly.size += sum(len(entry.data) for entry in live)
        if assembly.size > self._bytes_max:
            self._drop()
            raise FrameError(f"snapshot of group {raft.group} exceeds {self._bytes_max} bytes")
        if not chunk.last:
            return None
        self._assembly = None
        live_entries = assembly.live if self._spool is None else self._spool.complete(raft.group)
        if live_entries is None:
            return None
        snapshot.data = b"".join(assembly.data)
        snapshot.live = live_entries
        message = decode_raft(raft, sender, to)
        message.snapshot = snapshot
        return message

    def _drop(self) -> None:
        if self._assembly is not None and self._spool is not None:
            self._spool.drop(self._assembly.uid)
        self._assembly = None
