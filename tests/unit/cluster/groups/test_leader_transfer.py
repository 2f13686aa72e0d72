"""A leader's replica that stopped tells one member after the other, until somebody leads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from brokerd.cluster.groups.driver import Driver
from brokerd.cluster.groups.leader_transfer import LeaderTransfer
from brokerd.raft.messages import Configuration, Message, MessageKind, NodeId

A, B, C, D = (NodeId(name) for name in "abcd")


@dataclass
class FakeReplica:
    matches: dict[NodeId, int]
    term: int = 5

    def match_of(self, node: NodeId) -> int | None:
        return self.matches.get(node)


@dataclass
class FakeDriver:
    uid: int
    replica: FakeReplica
    configuration: Configuration


@dataclass
class FakeHost:
    node: NodeId = A
    up: set[NodeId] = field(default_factory=lambda: {A, B, C, D})
    stalled: set[NodeId] = field(default_factory=set)
    drivers: dict[int, Any] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)

    def alive(self) -> set[NodeId]:
        return self.up

    def is_stalled(self, node: NodeId) -> bool:
        return node in self.stalled

    def driver_of(self, uid: int) -> Any:
        return self.drivers.get(uid)

    def send(self, uid: int, message: Message) -> None:
        self.sent.append(message)

    def wake(self, driver: Driver) -> None:
        raise AssertionError("no replica runs here")

    def schedule_flush(self) -> None:
        """Nothing to do here."""


def stop_a_leader(*, up: str) -> tuple[FakeHost, LeaderTransfer, Driver]:
    host = FakeHost(up={NodeId(name) for name in up})
    replica = FakeReplica({B: 7, C: 9, D: 9})
    driver = cast(Driver, FakeDriver(7, replica, Configuration((A, B, C), (D,))))
    host.drivers[7] = driver
    leader_transfer = LeaderTransfer(host)
    leader_transfer.stopped(driver)
    return host, leader_transfer, driver


def test_voter_with_the_longest_log_is_told_first_and_then_the_others() -> None:
    host, leader_transfer, _ = stop_a_leader(up="abcd")
    leader_transfer.remind()
    leader_transfer.remind()
    assert [message.to for message in host.sent] == [C, B, C]
    assert {message.kind for message in host.sent} == {MessageKind.TIMEOUT_NOW}
    assert {message.term for message in host.sent} == {5}


def test_dead_member_is_passed_over_until_it_is_back() -> None:
    host, leader_transfer, _ = stop_a_leader(up="ad")
    assert host.sent == []
    host.up.add(B)
    leader_transfer.remind()
    assert [message.to for message in host.sent] == [B]


def test_nobody_is_told_any_more_once_a_newer_term_was_heard() -> None:
    host, leader_transfer, driver = stop_a_leader(up="abc")
    leader_transfer.heard(driver, Message(MessageKind.APPEND_REPLY, B, A, 5))
    leader_transfer.remind()
    assert len(host.sent) == 2
    leader_transfer.heard(driver, Message(MessageKind.HEARTBEAT, C, A, 6))
    leader_transfer.remind()
    assert len(host.sent) == 2


def test_group_that_was_closed_is_forgotten() -> None:
    host, leader_transfer, driver = stop_a_leader(up="abc")
    host.drivers.clear()
    leader_transfer.remind()
    host.drivers[7] = driver
    leader_transfer.remind()
    assert len(host.sent) == 1


def test_a_member_whose_disk_does_not_answer_is_told_last() -> None:
    """ADR 68: it has the longest log, and cannot be elected."""
    host, leader_transfer, _ = stop_a_leader(up="a")
    host.up |= {B, C}
    host.stalled.add(C)
    leader_transfer.remind()
    assert [message.to for message in host.sent] == [B]
