"""Which replicas of queues a member has open, and who hears of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.machine import Meta
from brokerd.core.queue import enqueue_commands, queue_commands
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from brokerd.raft.messages import NodeId
from brokerd.server.queues.replicas import Listeners, QueueGroups

UID = 7


@dataclass(slots=True)
class Status:
    is_damaged: bool
    log_uid: int


@dataclass(slots=True)
class Applied:
    """Of an entry: what a machine is told besides the command."""

    index: int
    term: int = 1
    now_ms: int = 1


class FakeHost:
    """Groups without logs and streams."""

    def __init__(self, said: list[str]) -> None:
        self.node = NodeId("n1")
        self.said = said
        self.machines: dict[int, QueueMachine] = {}
        self.log_uids: dict[int, int] = {}
        self.is_catalog_damaged = False
        #: Of these the host was told that nothing of them can have been here before.
        self.made_now: set[int] = set()
        #: Of these that this member is one of the first.
        self.first: set[int] = set()

    def has_group(self, uid: int) -> bool:
        return uid in self.machines

    def status_of(self, uid: int) -> Status:
        return Status(self.is_catalog_damaged, self.log_uids.get(uid, 0))

    def open_group(
        self,
        uid: int,
        members: Sequence[NodeId],
        machine: QueueMachine,
        *,
        volatile: bool,
        log_uid: int,
        is_made_now: bool,
        is_first: bool,
    ) -> None:
        if is_made_now:
            self.made_now.add(uid)
        if is_first:
            self.first.add(uid)
        self.machines[uid], self.log_uids[uid] = machine, log_uid
        self.said.append(f"open {uid} of {','.join(members)}" + " in memory" * volatile)

    def close_group(self, uid: int, forget: bool = False) -> None:
        del self.machines[uid]
        self.said.append(f"close {uid}")

    def transfer_leadership(self, uid: int, node: NodeId) -> None:
        self.said.append(f"{node} leads {uid}")

    def forget_logs(self, uids: Sequence[int]) -> None:
        self.said.append("forget logs")


class FakeGroups:
    def __init__(self, said: list[str]) -> None:
        self.said = said

    def set_members(self, uid: int, members: Sequence[NodeId]) -> None:
        """Where commands go is not asked here."""

    def forget(self, uid: int) -> None:
        self.said.append(f"forget {uid}")


class Catalog:
    """The queues of one vhost, by name."""

    def __init__(self) -> None:
        self.records: dict[str, Queue] = {}

    def queues(self) -> list[Queue]:
        return list(self.records.values())

    def queue(self, vhost: str, name: str) -> Queue | None:
        return self.records.get(name)


def record(*members: str, queue_type: str = "quorum", durable: bool = True) -> Queue:
    spec = {
        "type": queue_type,
        "durable": durable,
        "auto_delete": False,
        "arguments": {},
        "settings": {},
    }
    return Queue("/", "q", cast(Any, spec), UID, [NodeId(name) for name in members])


class Member:
    """One member's queues, with what follows from each change as lines."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.host = FakeHost(self.said)
        self.catalog = Catalog()
        self.led: dict[int, int] = {}

        def tell(what: str) -> Any:
            return lambda uid: self.said.append(f"{what} {uid}")

        listeners = Listeners(
            opened=lambda uid, count, since: self.said.append(f"opened {uid} of {count}"),
            leaving=(tell("leaving"),),
            left=(tell("left"),),
            vanishing=lambda gone: self.said.append(f"{gone.name} for {gone.cause or '?'}"),
            ending=(tell("ending"),),
            ended=(tell("ended"),),
            changed=tell("changed"),
            logs_known=lambda known: self.said.append(f"logs beside {list(known)}"),
            loaded=lambda: self.said.append("loaded"),
        )
        self.records: dict[int, Queue] = {}
        self.queues = QueueGroups(
            cast(Host, self.host),
            cast(GroupClient, FakeGroups(self.said)),
            cast(CatalogState, self.catalog),
            self.records,
            self.led,
            listeners,
        )

    def change(self, queue: Queue | None, uid: int = UID) -> list[str]:
        """Tell of a change of the queue; return what followed."""
        self.said.clear()
        self.catalog.records = {} if queue is None else {"q": queue}
        is_deleted = queue is None
        self.queues.topology_changed(
            TopologyChanged("queue", "/", "q", is_deleted, 1, "admin", uid)
        )
        return list(self.said)


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_options_that_come_behind_the_first_messages_are_taken(queue_type: str) -> None:
    """A leader that hands over in vain is refused at first, and publishers may be quicker: a queue
    that took itself for a classic one would refuse its own type, and its limits with it, for ever.
    """
    member = Member()
    member.change(record("n0", "n1", queue_type=queue_type))
    machine = member.host.machines[UID]
    assert machine.options == QueueOptions(queue_type=queue_type)
    content = (("", "q"), b"", b"body", b"")
    first = enqueue_commands.encode_enqueue("n0", 1, 1, 1, [content])
    options = QueueOptions(queue_type=queue_type, max_length=5)
    for index, command in enumerate((first, queue_commands.encode_update_options(options)), 1):
        machine.apply(cast(Meta, Applied(index)), command)
    assert machine.store.ready == 1
    assert machine.options == options


def test_the_first_member_of_a_new_queue_leads_it() -> None:
    """R-QQ-5."""
    assert Member().change(record("n1", "n0")) == [
        "open 7 of n1,n0",
        "opened 7 of 2",
        "n1 leads 7",
    ]
    assert Member().change(record("n0", "n1")) == ["open 7 of n0,n1", "opened 7 of 2"]


def test_one_of_the_first_members_that_opens_late_is_one_of_them_still() -> None:
    """A change was wanted meanwhile, so that nobody says who the others were; but what it holds is
    all that it ever held.
    """
    for joined in ({}, {"n1": 9}):
        member, queue = Member(), record("n0", "n1")
        queue.membership.is_founding, queue.membership.joined = False, joined
        assert member.change(queue)[0] == "open 7 of "
        assert member.host.first == (set() if joined else {UID})


def test_a_transient_queue_is_in_memory() -> None:
    assert Member().change(record("n1", durable=False))[0] == "open 7 of n1 in memory"


def test_a_queue_elsewhere_is_known_and_has_no_replica_here() -> None:
    member = Member()
    assert member.change(record("n0")) == []
    assert list(member.records) == [UID]
    assert not member.host.has_group(UID)


def test_a_member_that_is_taken_out_leaves_while_the_queue_goes_on() -> None:
    member = Member()
    member.change(record("n0", "n1"))
    assert member.change(record("n0")) == ["leaving 7", "close 7", "left 7"]
    assert UID in member.records


def test_a_deleted_queue_ends_for_everybody() -> None:
    member = Member()
    member.change(record("n0", "n1"))
    assert member.change(None) == ["q for admin", "ending 7", "close 7", "forget 7", "ended 7"]
    assert UID not in member.records


def test_a_queue_of_the_same_name_is_another_one() -> None:
    """Deleted and declared anew before this member looked: the old group ends."""
    member = Member()
    member.change(record("n0", "n1"))
    said = member.change(record("n0", "n1"), uid=6)
    # Not for what made the other one.
    assert said[0] == "q for ?"
    assert "ended 6" in said


def test_a_queue_that_is_led_here_hears_of_its_changes() -> None:
    member = Member()
    member.change(record("n1"))
    assert "changed 7" not in member.said
    member.led[UID] = 1
    assert member.change(record("n1")) == ["changed 7"]
    assert member.queues.declared_total == 1


def test_what_the_catalog_does_not_know_after_a_start_ends_and_its_log_goes() -> None:
    member = Member()
    member.change(record("n1"))
    member.said.clear()
    member.catalog.records = {}
    member.queues.load()
    assert member.said == [
        *("q for ?", "ending 7", "close 7", "forget 7", "ended 7"),
        *("logs beside []", "forget logs", "loaded"),
    ]


def test_what_waits_for_queues_hears_when_all_are_open() -> None:
    """R-ALO-6: a snapshot brings no changes; letters that found no queue are tried again."""
    member = Member()
    member.catalog.records = {"q": record("n1")}
    member.queues.load()
    assert member.said[-1] == "loaded"
    assert "opened 7 of 1" in member.said[:-1]


def test_no_log_goes_by_the_word_of_a_damaged_catalog() -> None:
    member = Member()
    member.host.is_catalog_damaged = True
    member.queues.load()
    assert member.said == ["loaded"]


def test_only_a_queue_declared_after_the_first_reading_counts_as_made_now() -> None:
    """G8: what the catalog brings at a start may have been on a directory that was put back, even
    if the catalog is whole by then.
    """
    member = Member()
    member.catalog.records = {"q": record("n0", "n1")}
    member.queues.load()
    assert member.host.has_group(UID)
    assert member.host.made_now == set()
    later = record("n0", "n1")
    later.uid = 8
    member.change(later, uid=8)
    assert member.host.made_now == {8}


def test_a_change_of_a_queue_that_comes_before_the_first_reading_says_nothing_of_its_age() -> None:
    """G8: the catalog is applied while the member starts."""
    member = Member()
    member.change(record("n0", "n1"))
    assert member.host.has_group(UID)
    assert member.host.made_now == set()
