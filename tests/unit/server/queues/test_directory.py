"""The queues of a member: which it leads and what lies in them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from brokerd.cluster.groups.folded_groups import FoldedGroups
from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.cluster.peer import deliveries
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.queue import enqueue_commands, queue_commands
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from brokerd.raft.folded import Figures, Folded
from brokerd.raft.messages import CATALOG_GROUP, Configuration, HardState, NodeId
from brokerd.server.queues.directory import MemberQueues
from brokerd.storage.wal import WriteAheadLog

UID = 70_000
N0 = NodeId("n0")
CONTENT = (("", "q"), b"header", b"body", b"")
SPEC: Any = {
    "type": "quorum",
    "durable": True,
    "auto_delete": False,
    "arguments": {},
    "settings": {},
}


class Replicas:
    """One replica, with one entry in its log."""

    def __init__(self) -> None:
        self.is_here = True
        self.folded = FoldedGroups(N0, cast(WriteAheadLog, None))
        self.entries = {3: enqueue_commands.encode_enqueue("n0", 1, 1, 1, [CONTENT])}

    def has_group(self, uid: int) -> bool:
        return self.is_here

    def machine_of(self, uid: int) -> QueueMachine:
        return QueueMachine(QueueOptions(queue_type="quorum"))

    def entry_data(self, uid: int, index: int) -> bytes | None:
        return self.entries.get(index)


class NoLog:
    """Nothing is kept of it."""

    def limit_cache(self, bytes_max: int | None) -> None:
        return

    def cached_bytes(self) -> int:
        return 0


class Member:
    def __init__(self) -> None:
        self.replicas = Replicas()
        self.queues = MemberQueues(
            cast(Host, self.replicas),
            cast(GroupClient, None),
            log_cache=NoLog(),
        )
        self.queues.records[UID] = Queue("/", "q", SPEC, UID, [NodeId("n0")])


@pytest.fixture
def member() -> Member:
    return Member()


def run_at(entry: int) -> Run:
    return Run(1, 1, entry, 0, 0, 0)


def test_led_queues_are_those_with_a_record_a_leader_and_a_replica_here(member: Member) -> None:
    queues = member.queues
    assert (queues.queue_uids(), queues.queue_of(1)) == ([UID], None)
    assert (queues.leads(UID), queues.led_queues([UID])) == (False, [])
    queues.led[UID] = 4
    assert [queue.uid for queue, _ in queues.led_queues([UID, 1])] == [UID]
    member.replicas.is_here = False
    assert (queues.leads(UID), queues.led_queues([UID])) == (True, [])


def test_messages_are_read_where_the_log_has_them(member: Member) -> None:
    assert member.queues.contents(UID, run_at(3)) == [CONTENT]
    assert member.queues.contents_if_here(UID, run_at(9)) is None
    with pytest.raises(AssertionError, match="entry 9 is live but not in the log"):
        member.queues.contents(UID, run_at(9))


def test_a_reply_to_a_get_from_elsewhere_brings_its_message_along(member: Member) -> None:
    queues, nobody = member.queues, ConsumerId("n1", 1, 1, "")
    command = queue_commands.encode_get(nobody, no_ack=False)
    reply = queue_commands.encode_get_reply(run_at(3), 5)
    completed = queues.complete_reply(UID, command, reply)
    assert completed.startswith(reply + b"\n")
    found = deliveries.decode(completed[len(reply) + 1 :])[1]
    assert [contents for _, contents in found] == [[CONTENT]]
    # Asked again: the message is settled, and gone.
    late = queues.complete_reply(UID, command, queue_commands.encode_get_reply(run_at(9), 5))
    assert queue_commands.decode_reply(late)["run"] is None
    empty = queue_commands.encode_get_reply(None, 0)
    assert queues.complete_reply(UID, command, empty) == empty
    for uid, other in ((CATALOG_GROUP, command), (UID, queue_commands.encode_purge())):
        assert queues.complete_reply(uid, other, reply) == reply


def test_who_walks_reads_of_a_folded_queue_what_is_kept_of_it(member: Member) -> None:
    machine = member.queues.machine(UID)
    assert member.queues.summary(UID) == machine.summary()
    kept = b"an summary"
    state = Figures(0, 0, 0, 0, 0, 0).pack() + machine.snapshot()
    folded = Folded(N0, HardState(), Configuration((N0,)), 0, (), state)
    member.replicas.folded.put(UID, folded, 1, QueueMachine, kept)
    assert member.queues.summary(UID) == kept
    again = member.replicas.folded.machine_of(UID)
    assert again is not None
    assert again.snapshot() == machine.snapshot()
