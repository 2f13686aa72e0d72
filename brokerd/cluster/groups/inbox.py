"""What comes from other nodes, sorted to where it belongs; the receiving half of host.py.

One call per frame.  Answers requests for groups whose replica cannot take them; holds back a few
messages for groups that this node is about to open.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from brokerd.cluster.config import HostConfig
from brokerd.cluster.groups.driver import Done, Driver
from brokerd.cluster.groups.host_events import ClientEvents, HostEvents
from brokerd.cluster.groups.hosted import HostedGroups
from brokerd.cluster.groups.leader_transfer import LeaderTransfer
from brokerd.cluster.groups.liveness import Liveness
from brokerd.cluster.groups.peer_logs import PeerLogs
from brokerd.cluster.groups.refilling import Refilling
from brokerd.cluster.groups.snapshot_spool import SnapshotSpool
from brokerd.cluster.groups.write_queue import WriteQueue
from brokerd.cluster.peer.frame_entries import NOTHING_CUT, CutEntries
from brokerd.cluster.peer.frames import SnapshotAssembler, decode_raft
from brokerd.cluster.peer.transport import Transport
from brokerd.core.alarms import DISK_STALLED
from brokerd.core.queue import client_sessions
from brokerd.raft.inputs import Received
from brokerd.raft.messages import Message, MessageKind, NodeId
from brokerd.rpc.v1 import peer_pb2
from brokerd.storage.wal import WriteAheadLog

logger = logging.getLogger(__name__)

#: A new group's members learn of it one after the other, and its first election should not have to
#: wait for the slowest: unknown groups whose messages without entries are kept ...
EARLY_GROUPS_MAX = 4_096
#: ... and messages kept of each.
EARLY_MESSAGES_MAX = 4

#: Messages of a group that bring nothing to do and wait for its next input.
WAITING_INPUTS_MAX = 64


class Groups(Protocol):
    """What this needs of the host, which hears of all that is not a replica's own business."""

    @property
    def node(self) -> NodeId:
        """Return this node's name."""
        ...

    @property
    def config(self) -> HostConfig:
        """Return bounds and timings."""
        ...

    @property
    def clients(self) -> list[ClientEvents]:
        """Return those who wait for answers of other nodes."""
        ...

    @property
    def events(self) -> HostEvents:
        """Return the listener for what happens here."""
        ...

    @property
    def transport(self) -> Transport:
        """Return the streams to other nodes."""
        ...

    @property
    def liveness(self) -> Liveness:
        """Return who is heard, and whose disk does not answer."""
        ...

    @property
    def leader_transfer(self) -> LeaderTransfer:
        """Return who sees to it that another node leads."""
        ...

    def send(self, uid: int, message: Message) -> None:
        """Send with the next flush."""
        ...

    def node_heard(self, node: NodeId, incarnation: int | None = None) -> None:
        """A frame came (incarnation None), or a stream began."""
        ...

    def wake(self, driver: Driver) -> None:
        """The driver has inputs: it takes part in the next flush."""
        ...

    def schedule_flush(self) -> None:
        """Something was sent."""
        ...

    def flush_all(self) -> None:
        """Run every driver that has inputs now."""
        ...

    def propose(self, uid: int, command: bytes, done: Done, *, is_lazy: bool = False) -> None:
        """Propose to the replica here."""
        ...


class Inbox:
    """Implements FrameSink for the host."""

    def __init__(
        self,
        host: Groups,
        hosted: HostedGroups,
        wal: WriteAheadLog,
        queue: WriteQueue,
        refilling: Refilling,
        peer_logs: PeerLogs,
    ) -> None:
        self._host = host
        self._hosted = hosted
        self._refilling = refilling
        self._peer_logs = peer_logs
        self.spool = SnapshotSpool(wal, queue, host.config.raft, self._log_of)
        self._assemblers: dict[NodeId, SnapshotAssembler] = {}
        self._early: dict[int, list[Message]] = {}
        self._early_before: dict[int, list[Message]] = {}
        #: Members whose new stream has brought nothing yet.
        self._unheard: set[NodeId] = set()

    def _log_of(self, uid: int) -> int | None:
        driver = self._hosted.get(uid)
        return None if driver is None or driver.is_volatile else driver.log_uid

    # ---- FrameSink ------------------------------------------------------------------------------

    def stream_opened(self, node: NodeId, incarnation: int) -> None:
        """A member's stream begins: its answers to our requests may be lost with the last one."""
        host = self._host
        self.spool.node_lost(node)
        self._assemblers[node] = SnapshotAssembler(
            host.config.transport.snapshot_bytes_max, self.spool
        )
        for client in host.clients:
            client.peer_lost(node)
        self._unheard.add(node)
        host.node_heard(node, incarnation)

    def stream_closed(self, node: NodeId) -> None:
        """The stream ended; silence or refused connections will say whether the node is gone."""
        self._assemblers.pop(node, None)
        self.spool.node_lost(node)

    def frame_received(
        self, node: NodeId, frame: peer_pb2.PeerFrame, cut: CutEntries = NOTHING_CUT
    ) -> None:
        """Take one frame, and the entries that were cut out of it; FrameError ends the stream."""
        host = self._host
        host.node_heard(node)
        if node in self._unheard:
            # The member did not know before now that its stream stands, and what it answered until
            # then went nowhere: what was asked after `stream_opened` would wait for ever.
            self._unheard.discard(node)
            for client in host.clients:
                client.peer_lost(node)
        if frame.HasField("position"):
            # First: what it says of this log may take a vote away that the rest of the frame is
            # about.
            self._peer_logs.heard(node, frame.position)
        if frame.raft:
            self._take_raft(node, frame.raft, cut)
            if frame.replies:
                # Who hears an answer finds its effect in the replica here, if the news came along.
                host.flush_all()
        for request in frame.requests:
            self._take_request(node, request)
        for reply in frame.replies:
            leader = NodeId(reply.leader) if reply.leader else None
            for client in host.clients:
                client.reply_received(node, reply.id, reply.status, leader, reply.reply)
        for delivery in frame.deliveries:
            host.events.delivered(
                node, delivery.group, delivery.term, delivery.kind, delivery.payload
            )
        if frame.HasField("liveness"):
            state = frame.liveness
            host.liveness.set_stalled(node, DISK_STALLED in state.alarms)
            host.events.liveness_received(
                node,
                tuple(state.alarms),
                state.memory_used,
                state.memory_limit,
                state.disk_free,
            )

    # ---- raft messages --------------------------------------------------------------------------

    def _take_raft(
        self, node: NodeId, messages: Sequence[peer_pb2.RaftMessage], cut: CutEntries
    ) -> None:
        host = self._host
        for number, raft in enumerate(messages):
            if raft.HasField("snapshot"):
                assembled = self._assemblers[node].add(raft, node, host.node)
                if assembled is None:
                    if raft.snapshot.last:
                        self._refuse_snapshot(node, raft)
                    continue
                message = assembled
            else:
                message = decode_raft(raft, node, host.node)
                if number in cut:
                    message.entries = cut[number]
            driver = self._hosted.get(raft.group)
            if driver is None:
                self._keep_early(raft.group, message)
            elif driver.error is not None:
                host.leader_transfer.heard(driver, message)
            else:
                if message.reject and message.kind is MessageKind.APPEND_REPLY:
                    self._look_for_loss(driver, message)
                if not driver.health.may_vote:
                    self._refilling.heard(driver, message)
                inputs = driver.inputs
                inputs.append(Received(message))
                if len(inputs) < WAITING_INPUTS_MAX and driver.replica.may_wait(message):
                    # With the tick at the latest, also where the group rests.
                    self._hosted.clock.active[driver.uid] = None
                    continue
                host.wake(driver)

    def _refuse_snapshot(self, node: NodeId, raft: peer_pb2.RaftMessage) -> None:
        """It came before this member has opened the group, or not all of it came.

        Otherwise the leader would wait half a minute for an answer before it sends it again
        (RaftConfig.snapshot_resend_ticks): now it does when it is answered otherwise.
        """
        host = self._host
        kind, index = MessageKind.SNAPSHOT_REPLY, raft.snapshot.index
        refusal = Message(kind, host.node, node, raft.term, index, reject=True)
        host.send(raft.group, refusal)
        host.schedule_flush()

    def _look_for_loss(self, driver: Driver, message: Message) -> None:
        """A member refuses what it had acknowledged: its disk lost it (replication.md §1).

        Raft has no way back below what was acknowledged, but a new leader begins without such
        knowledge and finds out what is there.  Streams keep their order, so this is no old news.
        """
        replica = driver.replica
        match = replica.match_of(message.sender)
        if match and message.index <= match and message.term == replica.term:
            self._host.leader_transfer.renew(driver, message.sender)

    def _keep_early(self, uid: int, message: Message) -> None:
        if message.entries or message.snapshot is not None:
            return
        kept = self._early.get(uid)
        if kept is None:
            if len(self._early) >= EARLY_GROUPS_MAX:
                return
            kept = self._early[uid] = []
        if len(kept) < EARLY_MESSAGES_MAX:
            kept.append(message)

    def early_messages(self, uid: int) -> list[Received]:
        """Return what came for a group before it was opened."""
        kept = self._early_before.pop(uid, []) + self._early.pop(uid, [])
        return [Received(message) for message in kept]

    def expire(self) -> None:
        """Drop what has been kept for a round; called every few seconds."""
        self._early_before, self._early = self._early, {}
        self.spool.sweep()

    # ---- requests -------------------------------------------------------------------------------

    def _take_request(self, node: NodeId, request: peer_pb2.GroupRequest) -> None:
        host = self._host
        uid, command = request.group, request.command
        driver = self._hosted.get(uid)
        if driver is None or driver.error is not None:
            self._answer(node, request.id, peer_pb2.GroupReply.UNKNOWN_GROUP, None, b"")
            return
        size = len(command)
        # One is always taken, however large.
        if driver.requests_bytes and driver.requests_bytes + size > host.config.requests_bytes_max:
            self._answer(node, request.id, peer_pb2.GroupReply.OVERLOADED, None, b"")
            return
        driver.requests_bytes += size
        done = partial(self._request_done, driver, node, request.id, command)
        host.propose(uid, command, done, is_lazy=client_sessions.is_lazy(command))

    def _request_done(
        self,
        driver: Driver,
        node: NodeId,
        request_id: int,
        command: bytes,
        accepted: bool,
        reply: bytes,
        leader: NodeId | None,
    ) -> None:
        driver.requests_bytes -= len(command)
        if accepted:
            status = peer_pb2.GroupReply.OK
            reply = self._host.events.complete_reply(driver.uid, command, reply)
        elif leader == self._host.node:
            status = peer_pb2.GroupReply.OVERLOADED
        else:
            status = peer_pb2.GroupReply.NOT_LEADER
        self._answer(node, request_id, status, leader, reply if accepted else b"")

    def _answer(
        self, node: NodeId, request_id: int, status: int, leader: NodeId | None, reply: bytes
    ) -> None:
        self._host.transport.send_reply(node, request_id, status, leader, reply)
        self._host.schedule_flush()
