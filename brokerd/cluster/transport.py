"""Outgoing streams: one per peer, everything for it in one frame per flush.

Each member dials every other one and sends on the stream it dialled (peer.proto).  What is sent
goes into the peer's outbox as encoded parts; `flush` wakes the senders.  A frame is built when the
stream can take it, so batches form by what is there (hot-path rule 1).  Nothing here decides
anything about groups: loss is reported, and the raft room probes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from brokerd.cluster import frames, security
from brokerd.cluster.config import HostConfig, TransportConfig
from brokerd.cluster.errors import PeerRefusedError, SnapshotUnreadable
from brokerd.raft.messages import CATALOG_GROUP, Message, MessageKind, NodeId
from brokerd.rpc.v1 import peer_pb2
from brokerd.storage.errors import StorageError

logger = logging.getLogger(__name__)

METHOD = "/brokerd.v1.Peer/Exchange"

#: News that nobody waits for goes with the next frame, or after this.  A frame of its own for each
#: commit index would double the frames at one message in flight.
NOTICE_DELAY_S = 0.005

_APPEND = MessageKind.APPEND


@dataclass(slots=True)
class Liveness:
    """What a node tells all others with each heartbeat."""

    alarms: tuple[str, ...] = ()
    memory_used: int = 0
    memory_limit: int = 0
    disk_free: int = 0


class Transport(Protocol):
    """How the host reaches other nodes; the simulator has its own."""

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

    def flush(self) -> None:
        """Let everything go that was sent since the last flush."""
        ...


class TransportEvents(Protocol):
    """What the host hears of outgoing streams."""

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
    #: Commit indexes for followers that have everything, by group: the newest one counts, and
    #: entries that follow carry it anyway.  Not encoded before they leave, since few do.
    notices: dict[int, Message] = field(default_factory=dict)
    snapshots: deque[tuple[int, Iterator[frames.Part]]] = field(default_factory=deque)
    #: At most one per frame: two would be merged into one by protobuf.
    liveness: bytes = b""
    #: Groups whose messages were dropped for want of room.
    dropped: set[int] = field(default_factory=set)

    def put(self, part: frames.Part) -> None:
        self.parts.append(part)
        self.size += part[1]

    def is_empty(self) -> bool:
        return not (self.parts or self.notices or self.snapshots or self.liveness)

    def put_raft(self, uid: int, message: Message) -> None:
        """Add a Raft message; entries make the commit index that waits for them superfluous."""
        if self.notices and message.kind is _APPEND:
            notice = self.notices.get(uid)
            if notice is not None and (message.term, message.commit) >= (
                notice.term,
                notice.commit,
            ):
                del self.notices[uid]
        self.put(frames.encode_raft(uid, message))

    def take(self, frame_bytes: int) -> bytes:
        """Return the next frame: the notices, parts up to `frame_bytes` (one goes, however large),
        and one chunk of a snapshot.

        SnapshotUnreadable: that snapshot is given up; call again for the rest.
        """
        pieces = self._take_chunk() if self.snapshots else []
        if self.notices:
            for uid, notice in self.notices.items():
                pieces += frames.encode_raft(uid, notice)[0]
            self.notices.clear()
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
        return b"".join(pieces)

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
        self._wake = asyncio.Event()
        self._broken = asyncio.Event()
        self._backoff_s = self._config.backoff_min_s
        self._complaint = ""
        self._notice: asyncio.TimerHandle | None = None
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"peer {node}")

    def wake(self) -> None:
        self._wake.set()

    def end(self) -> None:
        """Stop for good; await `task` afterwards."""
        if self._notice is not None:
            self._notice.cancel()
        self.task.cancel()

    def wake_later(self) -> None:
        """Send what is there with the next frame, or soon."""
        if self._notice is None:
            loop = asyncio.get_running_loop()
            self._notice = loop.call_later(NOTICE_DELAY_S, self._notice_due)

    def _notice_due(self) -> None:
        self._notice = None
        if self.outbox.notices:
            self._wake.set()

    def break_off(self) -> None:
        """End the stream; a new one is dialled."""
        self._broken.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._session()
            except grpc.aio.AioRpcError as error:
                if not self.is_connected and error.code() is grpc.StatusCode.UNAVAILABLE:
                    self._transport.events.peer_refused(self.node)
                self._complain(f"{error.code().name}: {error.details()}")
            except (PeerRefusedError, TimeoutError, OSError, asyncio.InvalidStateError) as error:
                self._complain(str(error) or type(error).__name__)
            if self.is_connected:
                self._disconnected()
            await asyncio.sleep(self._backoff_s * (0.5 + self._transport.rng.random() / 2))
            self._backoff_s = min(self._backoff_s * 2, self._config.backoff_max_s)

    def _complain(self, reason: str) -> None:
        """Log a reason once, not with each attempt."""
        if reason != self._complaint:
            self._complaint = reason
            logger.info("no stream to peer node=%s address=%s: %s", self.node, self.address, reason)

    async def _session(self) -> None:
        """Dial, introduce, send until something breaks."""
        channel = self._transport.open_channel(self.node, self.address)
        tasks: list[asyncio.Future[object]] = []
        try:
            call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)(
                metadata=self._transport.metadata
            )
            async with asyncio.timeout(self._config.dial_timeout_s):
                await call.write(self._transport.hello)
                answer = await call.read()
            if not isinstance(answer, bytes):
                # The stream ended without an answer: its status says why.
                await call.code()
                raise PeerRefusedError(f"{(await call.code()).name}: {await call.details()}")
            self._transport.check_hello(self.node, answer)
            self._connected()
            tasks = [
                asyncio.ensure_future(self._send(call)),
                asyncio.ensure_future(call.read()),
                asyncio.ensure_future(self._broken.wait()),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task is not tasks[1]:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await channel.close(None)

    async def _send(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        outbox, config = self.outbox, self._config
        while True:
            if outbox.is_empty():
                self._wake.clear()
                await self._wake.wait()
            try:
                frame = outbox.take(config.frame_bytes)
            except SnapshotUnreadable as error:
                self._transport.events.snapshot_unreadable(error)
                continue
            if frame:
                await call.write(frame)
            if outbox.dropped and outbox.size < config.outbox_bytes // 2:
                uids, outbox.dropped = outbox.dropped, set()
                self._transport.events.messages_dropped(self.node, uids)

    def _connected(self) -> None:
        self.outbox = _Outbox()
        self._broken.clear()
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
    """Streams to all peers over grpc.aio.

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
        self.hello = hello_frame(node, incarnation, config)
        self.metadata = security.secret_metadata(config.secret)
        self._limits = config.transport
        self._streams: dict[NodeId, _PeerStream] = {}
        self._dirty: set[_PeerStream] = set()
        self._alarms: tuple[str, ...] = ()
        self._liveness = peer_pb2.PeerFrame(liveness=peer_pb2.Liveness()).SerializeToString()

    # ---- peers ----------------------------------------------------------------------------------

    async def set_peers(self, peers: Mapping[NodeId, str]) -> None:
        """Dial these and nobody else."""
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

    def open_channel(self, node: NodeId, address: str) -> grpc.aio.Channel:
        """Return a channel of its own for one dial."""
        options = channel_options(self._limits)
        if self.config.tls is None:
            return grpc.aio.insecure_channel(address, options=options)
        # The certificate must carry the member's name, whatever address it was reached at (SEC-4).
        options.append(("grpc.ssl_target_name_override", node))
        credentials = security.client_credentials(self.config.tls)
        return grpc.aio.secure_channel(address, credentials, options=options)

    def check_hello(self, node: NodeId, answer: bytes) -> None:
        """Make sure that the other side is the member that was dialled."""
        hello = peer_pb2.PeerFrame.FromString(answer).hello
        if hello.cluster_id != self.config.cluster_id:
            raise PeerRefusedError(f"it belongs to cluster {hello.cluster_id!r}")
        if hello.node != node:
            raise PeerRefusedError(f"it is {hello.node!r}")

    # ---- sending --------------------------------------------------------------------------------

    def send_raft(self, node: NodeId, uid: int, message: Message) -> None:
        """See Transport.  Without a stream it is dropped silently: the loss was reported."""
        stream = self._streams.get(node)
        if stream is None or not stream.is_connected:
            return
        outbox = stream.outbox
        if message.kind is MessageKind.SNAPSHOT:
            self._queue_snapshot(stream, uid, message)
        elif (
            uid != CATALOG_GROUP
            and message.kind is _APPEND
            and message.hint
            and not message.entries
        ):
            # Only the commit index for a follower that has everything (raft/replication.py).
            outbox.notices[uid] = message
            stream.wake_later()
            return
        elif outbox.size > self._limits.outbox_bytes:
            outbox.dropped.add(uid)
        else:
            outbox.put_raft(uid, message)
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
                stream.outbox.liveness = self._liveness
                stream.wake()

    def flush(self) -> None:
        """See Transport."""
        if self._dirty:
            for stream in self._dirty:
                stream.wake()
            self._dirty.clear()


def hello_frame(node: NodeId, incarnation: int, config: HostConfig) -> bytes:
    """Return the first frame of a stream, in either direction."""
    hello = peer_pb2.Hello(
        cluster_id=config.cluster_id,
        node=node,
        incarnation=incarnation,
        protocol_version=frames.PROTOCOL_VERSION,
    )
    return peer_pb2.PeerFrame(hello=hello).SerializeToString()


def channel_options(limits: TransportConfig) -> list[tuple[str, int | str]]:
    """Return gRPC's options for dialling: sizes (SEC-47), no compression (SEC-48), keep-alive."""
    return [
        ("grpc.max_receive_message_length", limits.receive_bytes_max),
        ("grpc.max_send_message_length", limits.receive_bytes_max),
        ("grpc.default_compression_algorithm", 0),
        ("grpc.keepalive_time_ms", limits.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 0),
        # A dial of its own each time: gRPC's shared connections bring their own back-off.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]
