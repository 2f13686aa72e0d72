"""Streams between members: ordered like TCP, slow, broken off, cut in any direction.

`SimTransport` is the Transport of brokerd/cluster on one member; `Wires` is the network between
them.  Frames are real ones, encoded and parsed.  A frame that meets a cut waits and is sent again,
as TCP does, until the stream is given up; only a broken stream loses what is on it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from brokerd.cluster.errors import SnapshotUnreadable
from brokerd.cluster.peer import frames
from brokerd.cluster.peer.transport import Liveness
from brokerd.raft.messages import Message, MessageKind, NodeId
from brokerd.rpc.v1 import peer_pb2
from brokerd.storage.errors import StorageError
from tests.simulation.broker.kernel import Kernel

if TYPE_CHECKING:
    from brokerd.cluster.groups.host import Host

DIAL_TIMEOUT_MS = 1_000
REDIAL_MS = 60
RETRANSMIT_MS = 80
#: After so long on a cut wire the sender's TCP gives up by itself.
GIVE_UP_MS = 6_000
CHUNK_BYTES = 512


class End(Protocol):
    """A member's process, as the network sees it."""

    @property
    def host(self) -> Host:
        """Return its host."""
        ...

    @property
    def is_up(self) -> bool:
        """Tell whether it runs."""
        ...

    @property
    def incarnation(self) -> int:
        """Return how often it was started."""
        ...

    def admits(self, node: NodeId) -> bool:
        """Tell whether another member is one of those that it talks to."""
        ...

    def enter(self, function: object, *arguments: object) -> None:
        """Call a function on the member's loop, soon."""
        ...


class _Wire:
    """One direction between two members; at most one stream at a time."""

    def __init__(self) -> None:
        self.is_connected = False
        #: Counts streams; what belongs to an earlier one does not arrive.
        self.epoch = 0
        self.frames: deque[bytes] = deque()
        self.is_moving = False
        self.stuck_since_ms: int | None = None
        #: The receiving process that the stream leads to.
        self.peer_life = 0


class Wires:
    """All wires, and what is cut."""

    def __init__(self, kernel: Kernel, rng: random.Random, delay_ms_max: float) -> None:
        self.kernel = kernel
        self.rng = rng
        self.delay_ms_max = delay_ms_max
        self.blocked: set[tuple[NodeId, NodeId]] = set()
        #: Directions in which nothing comes through, though the other one stands.
        self.muted: set[tuple[NodeId, NodeId]] = set()
        self.members: dict[NodeId, End] = {}
        self._wires: dict[tuple[NodeId, NodeId], _Wire] = {}

    def add(self, node: NodeId, member: End) -> None:
        """A member joins the network."""
        for other in self.members:
            self._wires[node, other] = _Wire()
            self._wires[other, node] = _Wire()
        self.members[node] = member

    def wire(self, sender: NodeId, to: NodeId) -> _Wire:
        """Return one direction."""
        return self._wires[sender, to]

    # ---- streams --------------------------------------------------------------------------------

    def started(self, node: NodeId) -> None:
        """A process begins: it dials everybody."""
        for other in self.members:
            if other != node:
                delay_ms = 1 + self.rng.random() * 20
                self.kernel.after(delay_ms, self._dial, node, other, self._life(node))

    def ended(self, node: NodeId) -> None:
        """A process ends with all its streams; the others' kernels hear it unless cut off."""
        for other in self.members:
            if other == node:
                continue
            self._break(node, other, is_told=False)
            if (node, other) not in self.blocked:
                self.kernel.after(1 + self.rng.random() * 5, self.break_off, other, node)
            if self.members[other].is_up:
                self._tell_closed(node, other)

    def _life(self, node: NodeId) -> int:
        return self.members[node].incarnation

    def _dial(self, sender: NodeId, to: NodeId, life: int) -> None:
        member, peer = self.members[sender], self.members[to]
        wire = self._wires[sender, to]
        if not member.is_up or self._life(sender) != life or wire.is_connected:
            return
        if {(sender, to), (to, sender)} & self.blocked:
            self.kernel.after(DIAL_TIMEOUT_MS, self._dial, sender, to, life)
            return
        if (sender, to) in self.muted:
            self.kernel.after(RETRANSMIT_MS, self._dial, sender, to, life)
            return
        if not member.admits(to):
            self.kernel.after(REDIAL_MS, self._dial, sender, to, life)
            return
        if not (peer.is_up and peer.admits(sender)):
            if not peer.is_up:
                member.enter(member.host.peer_refused, to)
            self.kernel.after(REDIAL_MS + self.rng.random() * 100, self._dial, sender, to, life)
            return
        wire.epoch += 1
        wire.frames.clear()
        wire.is_moving = False
        wire.stuck_since_ms = None
        wire.peer_life = peer.incarnation
        peer.enter(peer.host._inbox.stream_opened, sender, life)
        # The one that was dialled knows of the stream first, and may act on it.
        late_ms = self.rng.choice((0.05, 1.0, 30.0))
        self.kernel.after(late_ms, self._stands, sender, to, life, wire.epoch)

    def _stands(self, sender: NodeId, to: NodeId, life: int, epoch: int) -> None:
        member, peer, wire = self.members[sender], self.members[to], self._wires[sender, to]
        if not member.is_up or self._life(sender) != life or wire.epoch != epoch:
            return
        if not peer.is_up or peer.incarnation != wire.peer_life:
            self.kernel.after(REDIAL_MS, self._dial, sender, to, life)
            return
        wire.is_connected = True
        member.enter(self._connected, sender, to, epoch)

    def _connected(self, sender: NodeId, to: NodeId, epoch: int) -> None:
        if self._wires[sender, to].epoch == epoch:
            self.members[sender].host.peer_connected(to)

    def break_off(self, sender: NodeId, to: NodeId) -> None:
        """The stream ends with all that is on it."""
        self._break(sender, to, is_told=True)

    def _break(self, sender: NodeId, to: NodeId, *, is_told: bool) -> None:
        wire = self._wires[sender, to]
        if not wire.is_connected:
            return
        wire.is_connected = False
        wire.epoch += 1
        wire.frames.clear()
        wire.is_moving = False
        if not is_told or not self.members[sender].is_up:
            return
        member = self.members[sender]
        member.enter(member.host.peer_lost, to)
        is_same_life = self.members[to].is_up and self._life(to) == wire.peer_life
        if (sender, to) not in self.blocked and is_same_life:
            self._tell_closed(sender, to)
        life = self._life(sender)
        self.kernel.after(REDIAL_MS + self.rng.random() * 100, self._dial, sender, to, life)

    def _tell_closed(self, sender: NodeId, to: NodeId) -> None:
        peer = self.members[to]
        peer.enter(peer.host._inbox.stream_closed, sender)

    def mute(self, sender: NodeId, to: NodeId, for_ms: int, *, is_told: bool) -> None:
        """Lose what one member says to another for a while, in one direction: requests arrive,
        answers do not.  is_told: the sender's stream breaks off at once and cannot be dialled;
        otherwise the sender hears of it when that time is over.
        """
        if (sender, to) in self.muted:
            return
        self.muted.add((sender, to))
        if is_told:
            self.break_off(sender, to)
        self.kernel.after(for_ms, self._unmute, sender, to)

    def _unmute(self, sender: NodeId, to: NodeId) -> None:
        # It may have been healed before.
        if (sender, to) in self.muted:
            self.muted.discard((sender, to))
            self.break_off(sender, to)

    # ---- frames ---------------------------------------------------------------------------------

    def send(self, sender: NodeId, to: NodeId, frame: bytes) -> None:
        """Put a frame on the stream."""
        wire = self._wires[sender, to]
        if wire.is_connected:
            wire.frames.append(frame)
            if not wire.is_moving:
                self._move_later(sender, to, wire, self.rng.random() * self.delay_ms_max)

    def _move_later(self, sender: NodeId, to: NodeId, wire: _Wire, delay_ms: float) -> None:
        wire.is_moving = True
        self.kernel.after(0.05 + delay_ms, self._move, sender, to, wire.epoch)

    def _move(self, sender: NodeId, to: NodeId, epoch: int) -> None:
        wire = self._wires[sender, to]
        if wire.epoch != epoch or not wire.is_connected:
            return
        if (sender, to) in self.blocked or (sender, to) in self.muted:
            now_ms = self.kernel.now_ms
            if wire.stuck_since_ms is None:
                wire.stuck_since_ms = now_ms
            if now_ms - wire.stuck_since_ms > GIVE_UP_MS:
                self.break_off(sender, to)
            else:
                self._move_later(sender, to, wire, RETRANSMIT_MS)
            return
        wire.stuck_since_ms = None
        wire.is_moving = False
        peer = self.members[to]
        if not peer.is_up or peer.incarnation != wire.peer_life:
            # The process that had the other end is gone: a reset.
            self.break_off(sender, to)
            return
        arrived, wire.frames = wire.frames, deque()
        for data in arrived:
            peer.enter(self._arrive, sender, to, epoch, data)

    def _arrive(self, sender: NodeId, to: NodeId, epoch: int, data: bytes) -> None:
        if self._wires[sender, to].epoch == epoch:
            frame = peer_pb2.PeerFrame.FromString(data)
            self.members[to].host._inbox.frame_received(sender, frame)


class SimTransport:
    """brokerd.cluster.peer.transport.Transport over Wires."""

    def __init__(
        self, node: NodeId, wires: Wires, host: Host, on_vote: Callable[[int], None]
    ) -> None:
        """on_vote(uid) is told of each vote that leaves."""
        self._on_vote = on_vote
        self._node = node
        self._wires = wires
        self._host = host
        self._outbox: dict[NodeId, list[bytes]] = {}
        #: At most one per frame.
        self._positions: dict[NodeId, bytes] = {}
        self._alarms: tuple[str, ...] = ()
        self._liveness = peer_pb2.PeerFrame(liveness=peer_pb2.Liveness()).SerializeToString()

    async def set_peers(self, peers: Mapping[NodeId, str]) -> None:
        """Everybody is dialled from the start, and let in if both ends name each other."""
        for node in self._wires.members:
            if node != self._node and node not in peers:
                self._wires.break_off(self._node, node)
                self._wires.break_off(node, self._node)

    def break_off(self, node: NodeId) -> None:
        """See GrpcTransport."""
        self._wires.break_off(self._node, node)

    def is_connected(self, node: NodeId) -> bool:
        """See GrpcTransport."""
        return self._wires.wire(self._node, node).is_connected

    def send_raft(self, node: NodeId, uid: int, message: Message) -> None:
        """See Transport."""
        if not self.is_connected(node):
            return
        if message.kind is MessageKind.VOTE_REPLY and not message.reject:
            self._on_vote(uid)
        if message.kind is not MessageKind.SNAPSHOT:
            self._put(node, frames.encode_raft(uid, message))
            return
        try:
            chunks = list(frames.encode_snapshot(uid, message, CHUNK_BYTES))
        except (StorageError, OSError):
            self._host._loop.call_soon(self._host.snapshot_unreadable, SnapshotUnreadable(uid))
            return
        for chunk in chunks:
            self._flush(node)
            self._put(node, chunk)

    def send_request(self, node: NodeId, request_id: int, uid: int, command: bytes) -> bool:
        """See Transport."""
        if not self.is_connected(node):
            return False
        self._put(node, frames.encode_request(request_id, uid, command))
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
        if self.is_connected(node):
            self._outbox.setdefault(node, []).extend(part[0])

    def set_liveness(self, liveness: Liveness) -> bool:
        """See Transport."""
        is_changed = liveness.alarms != self._alarms
        self._alarms = liveness.alarms
        told = peer_pb2.Liveness(alarms=liveness.alarms)
        self._liveness = peer_pb2.PeerFrame(liveness=told).SerializeToString()
        return is_changed

    def send_heartbeats(self) -> None:
        """Say to everybody that this node is alive."""
        for node in self._wires.members:
            if node != self._node and self.is_connected(node):
                self._outbox.setdefault(node, []).append(self._liveness)
                self.introduce(node)

    def introduce(self, node: NodeId) -> None:
        """See Transport."""
        self._outbox.setdefault(node, [])
        self._positions[node] = self._host.position_for(node)

    def flush(self) -> None:
        """See Transport."""
        for node in list(self._outbox):
            self._flush(node)

    def _flush(self, node: NodeId) -> None:
        pieces = [*self._outbox.pop(node, ()), self._positions.pop(node, b"")]
        if any(pieces):
            self._wires.send(self._node, node, b"".join(pieces))
