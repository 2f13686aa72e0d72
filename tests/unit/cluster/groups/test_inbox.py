"""What the inbox does when a member's stream begins: who waits for answers asks again; and with
snapshots that nobody here can take.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

from brokerd.cluster.config import HostConfig
from brokerd.cluster.groups.driver import Done
from brokerd.cluster.groups.group_client import GroupClient, ReplyStatus
from brokerd.cluster.groups.group_clock import GroupClock
from brokerd.cluster.groups.inbox import Groups, Inbox
from brokerd.cluster.groups.replica_health import ReplicaHealth
from brokerd.cluster.peer import frames
from brokerd.raft.inputs import Received
from brokerd.raft.messages import (
    Configuration,
    Entry,
    Message,
    MessageKind,
    NodeId,
    Snapshot,
)
from brokerd.rpc.v1 import peer_pb2

ME, LEADER = NodeId("me"), NodeId("leader")
UID = 9
#: Far above the client's first pause.
DEADLINE_S = 60.0


class Members:
    """This node's host: one other member, which may be deaf for what it answers."""

    node = ME
    config = HostConfig()

    def __init__(self) -> None:
        self.clients: list[Any] = []
        self.sent: list[int] = []
        self.asked = asyncio.Event()
        self.told: list[tuple[int, Message]] = []

    def listen(self, client: GroupClient) -> None:
        self.clients.append(client)

    def has_group(self, uid: int) -> bool:
        return False

    def leader_of(self, uid: int) -> NodeId | None:
        return None

    def propose(self, uid: int, command: bytes, done: Done, *, is_lazy: bool = False) -> None:
        raise AssertionError("no replica is here")

    def send_request(self, node: NodeId, request_id: int, uid: int, command: bytes) -> bool:
        self.sent.append(request_id)
        self.asked.set()
        return True

    def alive(self) -> set[NodeId]:
        return {ME, LEADER}

    def send(self, uid: int, message: Message) -> None:
        self.told.append((uid, message))

    def schedule_flush(self) -> None:
        pass

    def node_heard(self, node: NodeId, incarnation: int | None = None) -> None:
        pass


def inbox_of(members: Members) -> Inbox:
    nothing = cast(Any, None)
    return Inbox(cast(Groups, members), {}, nothing, nothing, nothing, nothing)


async def test_what_was_asked_before_a_member_knew_that_its_stream_stands_is_asked_again() -> None:
    """R-QQ-10: it answers by that stream, so until then its answers go nowhere."""
    members = Members()
    inbox = inbox_of(members)
    client = GroupClient(members, random.Random(1))
    client.set_members(UID, [LEADER])
    inbox.stream_opened(LEADER, 1)
    answers: list[tuple[ReplyStatus, bytes]] = []
    client.send(UID, b"resume", lambda *answer: answers.append(answer))
    (first,) = members.sent
    members.asked.clear()
    # Its answer was lost; then it learns that the stream stands, and says that it is alive.
    inbox.frame_received(LEADER, peer_pb2.PeerFrame())
    async with asyncio.timeout(DEADLINE_S):
        await members.asked.wait()
    assert members.sent == [first, first]
    # Later frames say nothing of the kind.
    members.asked.clear()
    inbox.frame_received(LEADER, peer_pb2.PeerFrame())
    reply = peer_pb2.GroupReply(id=first, status=peer_pb2.GroupReply.OK, reply=b"done")
    inbox.frame_received(LEADER, peer_pb2.PeerFrame(replies=[reply]))
    assert answers == [(ReplyStatus.OK, b"done")]
    assert members.sent == [first, first]


async def test_a_snapshot_that_comes_before_its_group_is_refused() -> None:
    """Its leader would wait for an answer for half a minute before it sends it again."""
    members = Members()
    inbox = inbox_of(members)
    inbox.stream_opened(LEADER, 1)
    live = [Entry(index, 1, 0, bytes(100)) for index in (1, 2, 3)]
    snapshot = Snapshot(5, 1, Configuration((LEADER, ME)), b"the state", live)
    message = Message(MessageKind.SNAPSHOT, LEADER, ME, 3, snapshot=snapshot)
    parts = list(frames.encode_snapshot(UID, message, 150))
    assert len(parts) > 1
    for part in parts:
        assert members.told == []
        inbox.frame_received(LEADER, peer_pb2.PeerFrame.FromString(b"".join(part[0])))
    refusal = Message(MessageKind.SNAPSHOT_REPLY, ME, LEADER, 3, 5, reject=True)
    assert members.told == [(UID, refusal)]


class LeadersReplica:
    """Knows already what a late answer says."""

    def may_wait(self, message: Message) -> bool:
        return message.kind is MessageKind.APPEND_REPLY


class RestingDriver:
    """A group led here that has nothing to do."""

    uid = UID
    error = None
    health = ReplicaHealth()

    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.replica = LeadersReplica()


class Hosted:
    def __init__(self) -> None:
        self.clock = GroupClock(lambda uid: None)
        self.driver = RestingDriver()

    def get(self, uid: int) -> RestingDriver:
        return self.driver


async def test_a_late_answer_to_a_group_that_rests_comes_with_the_next_tick() -> None:
    """Nothing else would have the group run, and with an input it could not be folded."""
    hosted, nothing = Hosted(), cast(Any, None)
    members = cast(Groups, Members())
    inbox = Inbox(members, cast(Any, hosted), nothing, nothing, nothing, nothing)
    inbox.stream_opened(LEADER, 1)
    part = frames.encode_raft(UID, Message(MessageKind.APPEND_REPLY, LEADER, ME, 3, 5))
    inbox.frame_received(LEADER, peer_pb2.PeerFrame.FromString(b"".join(part[0])))
    assert [type(each) for each in hosted.driver.inputs] == [Received]
    assert list(hosted.clock.active) == [UID]
