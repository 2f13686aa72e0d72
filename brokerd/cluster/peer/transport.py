"""Outgoing streams: one per peer, everything for it in one frame per flush.

Each member dials every other one and sends on the stream it dialled (peer.proto).  What is sent
goes into the peer's outbox as encoded parts; `flush` writes them as one gRPC message, within the
same call.  A frame is built when the socket and the peer's window can take it, so batches form by
what is there (design/hot-path.md rule 1).  Nothing here decides anything about groups: loss is
reported, and the raft room probes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from brokerd.cluster.config import HostConfig
from brokerd.cluster.errors import ClusterError, SnapshotUnreadable
from brokerd.cluster.peer import discovery, frames, peer_call, security
from brokerd.cluster.peer.peer_call import PeerCall
from brokerd.http2.errors import Http2Error
from brokerd.raft.messages import Message, MessageKind, NodeId
from brokerd.rpc.v1 import peer_pb2
from brokerd.storage.errors import StorageError

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Liveness:
    """What a node tells all others with each heartbeat."""

    alarms: tuple[str, ...] = ()
    memory_used: int = 0
    memory_limit: int = 0
    disk_free: int = 0


class Transport(Protocol):
    """How the host reaches other nodes; the simulator has its own."""

    #: None without certificates.
    tls: security.TlsContexts | None

    async def set_peers(self, peers: Mapping[NodeId, str]) -> None:
        """Have streams to these nodes and no others; values are addresses."""
        ...

    async def close(self) -> None:
        """End all streams."""
        ...

    def break_off(self, node: NodeId) -> None:
        """End the stream to a node, and begin another."""
        ...

    def send_heartbeats(self) -> None:
        """Tell every node that this one is alive."""
        ...

    def send_raft(self, node: NodeId, uid: int, message: Message) -> None:
        """Send, or drop and report as lost."""
        ...

    def send_request(self, node: NodeId, request_id: int, uid: int, command: bytes) -> bool:
        """Send a command; False: not connected, or over the peer's byte budget."""
        ...

    def send_reply(
        self, node: NodeId, request_id: int, status: int, leader: NodeId | None, reply: bytes
    ) -> None:
        """Send an answer; lost with the stream, which the asking side notices."""
        ...

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        """Send what a consumer's node is to have; lost with the stream."""
        ...

    def set_liveness(self, liveness: Liveness) -> bool:
        """Replace what heartbeats say; True: the alarms changed."""
        ...

    def introduce(self, node: NodeId) -> None:
        """Say first what the node must know before anything else (peer_logs.py)."""
        ...

    def flush(self) -> None:
        """Let everything go that was sent since the last flush."""
        ...


class TransportEvents(Protocol):
    """What the host hears of outgoing streams."""

    def position_for(self, node: NodeId) -> bytes:
        """Return what the node is to know of this member's log, as a frame's part."""
        ...

    def peer_connected(self, node: NodeId) -> None:
        """A stream stands; what was sent before may be lost."""
        ...

    def peer_lost(self, node: NodeId) -> None:
        """The stream broke with all that was on it."""
        ...

    def peer_refused(self, node: NodeId) -> None:
        """The node's port refuses connections."""
        ...

    def messages_dropped(self, node: NodeId, uids: set[int]) -> None:
        """Raft messages of these groups had found no room; there is room again."""
        ...

    def snapshot_unreadable(self, error: SnapshotUnreadable) -> None:
        """A group's snapshot cannot be sent, since entries cannot be read."""
        ...


@dataclass(slots=True)
class _Outbox:
    """Parts that wait for one peer; `size` is the sum of their sizes."""

    parts: deque[frames.Part] = field(default_factory=deque)
    size: int = 0
    snapshots: deque[tuple[int, Iterator[frames.Part]]] = field(default_factory=deque)
    #: With the position; at most one of each per frame: two would be merged by protobuf.
    liveness: bytes = b""
    #: Groups whose messages were dropped for want of room.
    dropped: set[int] = field(default_factory=set)

    def put(self, part: frames.Part) -> None:
        self.parts.append(part)
        self.size += part[1]

    def is_empty(self) -> bool:
        return not (self.parts or self.snapshots or self.liveness)

    def take(self, frame_bytes: int) -> tuple[list[bytes], int]:
        """Return the next frame in pieces, and its size: parts up to `frame_bytes` (one goes,
        however large), and one chunk of a snapshot.

        SnapshotUnreadable: that snapshot is given up; call again for the rest.
        """
        pieces = self._take_chunk() if self.snapshots else []
        size = 0
        parts = self.parts
        while parts and (not size or size + parts[0][1] <= frame_bytes):
            part, part_size = parts.popleft()
            pieces += part
            size += part_size
        self.size -= size
        if self.liveness:
            pieces.append(self.liveness)
            self.liveness = b""
        return pieces, sum(map(len, pieces))

    def _take_chunk(self) -> list[bytes]:
        uid, chunks = self.snapshots[0]
        try:
            # Encoding a chunk reads its live entries from the disk.
            chunk = next(chunks, None)
        except (StorageError, OSError) as error:
            self.snapshots.popleft()
            raise SnapshotUnreadable(uid) from error
        if chunk is None:
            self.snapshots.popleft()
            return []
        # The list belongs to the part; the frame adds to its own.
        return [*chunk[0]]


class _PeerStream:
    """One peer: its outbox, and the task that keeps a stream to it.

    Parts are taken only while the stream stands; with it everything unsent goes.
    """

    def __init__(self, node: NodeId, address: str, transport: GrpcTransport) -> None:
        self.node = node
        self.address = address
        self.outbox = _Outbox()
        self.is_connected = False
        self._transport = transport
        self._config = transport.config.transport
        self._call: PeerCall | None = None
        self._backoff_s = self._config.backoff_min_s
        self._complaint = ""
        self._loop = asyncio.get_running_loop()
        self._lookup = discovery.Lookup(address)
        self.task = self._loop.create_task(self._run(), name=f"peer {node}")

    def end(self) -> None:
        """Stop for good; await `task` afterwards."""
        self.task.cancel()

    def break_off(self) -> None:
        """End the stream; a new one is dialled."""
        if self._call is not None:
            self._call.give_up(ConnectionAbortedError("broken off"))

    # ---- sending --------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send what is there, as far as the socket and the peer's window take it."""
        call, outbox, config = self._call, self.outbox, self._config
        if call is None:
            return
        while call.can_send and not outbox.is_empty():
            try:
                pieces, size = outbox.take(config.frame_bytes)
            except SnapshotUnreadable as error:
                # Later, since this may be within a flush of the host.
                self._loop.call_soon(self._transport.events.snapshot_unreadable, error)
                continue
            if size:
                call.send_message(pieces, size)
                call.flush()
        if outbox.dropped and outbox.size < config.outbox_bytes // 2:
            uids, outbox.dropped = outbox.dropped, set()
            self._loop.call_soon(self._transport.events.messages_dropped, self.node, uids)

    # ---- the stream -----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._session()
            except (ClusterError, Http2Error, TimeoutError, UnicodeError) as fault:
                self._complain(fault)
            except OSError as error:
                if not self.is_connected:
                    self._transport.events.peer_refused(self.node)
                self._complain(error)
            if self.is_connected:
                self._disconnected()
            await asyncio.sleep(self._backoff_s * (0.5 + self._transport.rng.random() / 2))
            self._backoff_s = min(self._backoff_s * 2, self._config.backoff_max_s)

    def _complain(self, error: Exception) -> None:
        """Log a reason once, not with each attempt."""
        reason = str(error) or type(error).__name__
        if reason != self._complaint:
            self._complaint = reason
            logger.info("no stream to peer node=%s address=%s: %s", self.node, self.address, reason)

    async def _session(self) -> None:
        """Dial, introduce, and stay until something breaks, which is raised."""
        owner = self._transport
        call: PeerCall | None = None
        try:
            async with asyncio.timeout(self._config.dial_timeout_s):
                call = await peer_call.dial(
                    owner.config,
                    owner.tls,
                    self.node,
                    self.address,
                    owner.hello,
                    self.pump,
                    self._lookup,
                )
                await call.introduce(self.node)
            self._connected(call)
            await asyncio.wait((call.lost,))
            raise call.lost.result() or ConnectionResetError("it closed the connection")
        finally:
            self._call = None
            if call is not None:
                call.give_up(None)

    def _connected(self, call: PeerCall) -> None:
        self.outbox = _Outbox()
        self._call = call
        self._backoff_s = self._config.backoff_min_s
        self._complaint = ""
        self.is_connected = True
        logger.info("stream to peer stands node=%s address=%s", self.node, self.address)
        self._transport.events.peer_connected(self.node)

    def _disconnected(self) -> None:
        self.is_connected = False
        self.outbox = _Outbox()
        self._transport.events.peer_lost(self.node)


class GrpcTransport:
    """gRPC streams to all peers.

    Owns one task per peer; `set_peers` starts and ends them, `close` ends all.
    """

    def __init__(
        self,
        node: NodeId,
        incarnation: int,
        config: HostConfig,
        events: TransportEvents,
        rng: random.Random,
    ) -> None:
        self.config = config
        self.events = events
        self.rng = rng
        self.hello = frames.encode_hello(node, incarnation, config.cluster_id)
        self.tls = security.TlsContexts(config.tls) if config.tls else None
        self._limits = config.transport
        self._streams: dict[NodeId, _PeerStream] = {}
        self._dirty: set[_PeerStream] = set()
        self._alarms: tuple[str, ...] = ()
        self._liveness = peer_pb2.PeerFrame(liveness=peer_pb2.Liveness()).SerializeToString()

    # ---- peers ----------------------------------------------------------------------------------

    async def set_peers(self, peers: Mapping[NodeId, str]) -> None:
        """Dial these and no others."""
        ended = [
            stream for node, stream in self._streams.items() if peers.get(node) != stream.address
        ]
        for stream in ended:
            del self._streams[stream.node]
            self._dirty.discard(stream)
            stream.end()
        await asyncio.gather(*(stream.task for stream in ended), return_exceptions=True)
        for stream in ended:
            if stream.is_connected:
                self.events.peer_lost(stream.node)
        for node, address in peers.items():
            if node not in self._streams:
                self._streams[node] = _PeerStream(node, address, self)

    async def close(self) -> None:
        """End all streams."""
        await self.set_peers({})

    def break_off(self, node: NodeId) -> None:
        """Give up a stream that leads nowhere: after a network split TCP may sleep for minutes."""
        stream = self._streams.get(node)
        if stream is not None and stream.is_connected:
            stream.break_off()

    def is_connected(self, node: NodeId) -> bool:
        """Tell whether a stream to the node stands."""
        stream = self._streams.get(node)
        return stream is not None and stream.is_connected

    # ---- sending --------------------------------------------------------------------------------

    def send_raft(self, node: NodeId, uid: int, message: Message) -> None:
        """See Transport.  Without a stream it is dropped silently: the loss was reported."""
        stream = self._streams.get(node)
        if stream is None or not stream.is_connected:
            return
        outbox = stream.outbox
        if message.kind is MessageKind.SNAPSHOT:
            self._queue_snapshot(stream, uid, message)
        elif outbox.size > self._limits.outbox_bytes:
            outbox.dropped.add(uid)
        else:
            outbox.put(frames.encode_raft(uid, message))
        self._dirty.add(stream)

    def _queue_snapshot(self, stream: _PeerStream, uid: int, message: Message) -> None:
        snapshots = stream.outbox.snapshots
        if any(queued == uid for queued, _ in snapshots):
            return
        if len(snapshots) >= self._limits.snapshots_queued_max:
            stream.outbox.dropped.add(uid)
            return
        chunks = frames.encode_snapshot(uid, message, self._limits.chunk_bytes)
        snapshots.append((uid, chunks))

    def send_request(self, node: NodeId, request_id: int, uid: int, command: bytes) -> bool:
        """See Transport."""
        stream = self._streams.get(node)
        if stream is None or not stream.is_connected:
            return False
        if stream.outbox.size > self._limits.outbox_bytes:
            return False
        stream.outbox.put(frames.encode_request(request_id, uid, command))
        self._dirty.add(stream)
        return True

    def send_reply(
        self, node: NodeId, request_id: int, status: int, leader: NodeId | None, reply: bytes
    ) -> None:
        """See Transport."""
        self._put(node, frames.encode_reply(request_id, status, leader, reply))

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        """See Transport."""
        self._put(node, frames.encode_delivery(uid, term, kind, payload))

    def _put(self, node: NodeId, part: frames.Part) -> None:
        stream = self._streams.get(node)
        if stream is None or not stream.is_connected:
            return
        if stream.outbox.size > self._limits.outbox_bytes_max:
            logger.warning("peer does not keep up, breaking its stream node=%s", node)
            stream.break_off()
            return
        stream.outbox.put(part)
        self._dirty.add(stream)

    def set_liveness(self, liveness: Liveness) -> bool:
        """See Transport."""
        is_changed = liveness.alarms != self._alarms
        self._alarms = liveness.alarms
        self._liveness = peer_pb2.PeerFrame(
            liveness=peer_pb2.Liveness(
                alarms=liveness.alarms,
                memory_used=liveness.memory_used,
                memory_limit=liveness.memory_limit,
                disk_free=liveness.disk_free,
            )
        ).SerializeToString()
        return is_changed

    def send_heartbeats(self) -> None:
        """Say to everybody that this node is alive, and how it is."""
        for stream in self._streams.values():
            if stream.is_connected:
                self.introduce(stream.node)
                stream.pump()

    def introduce(self, node: NodeId) -> None:
        """See Transport."""
        self._streams[node].outbox.liveness = self._liveness + self.events.position_for(node)

    def flush(self) -> None:
        """See Transport."""
        if self._dirty:
            for stream in self._dirty:
                stream.pump()
            self._dirty.clear()


def between(
    node: NodeId,
    incarnation: int,
    config: HostConfig,
    events: TransportEvents,
    rng: random.Random,
) -> Transport:
    """Return the transport of a member that runs in earnest."""
    return GrpcTransport(node, incarnation, config, events, rng)
