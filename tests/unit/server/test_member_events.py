"""What the host tells reaches whom it concerns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from brokerd.cluster.peer.deliveries import DeliveryKind
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.access.cluster_alarms import ClusterAlarms
from brokerd.server.member_events import EventListeners, MemberEvents

A = NodeId("a")


class Client:
    def __init__(self) -> None:
        self.told: list[str] = []

    def alarms_changed(self, reason: str) -> None:
        self.told.append(reason)


class Leaders:
    def __init__(self, said: list[Any]) -> None:
        self.said = said

    def realise(self, uid: int, term: int, todo: list[Any]) -> None:
        self.said.append(("realise", uid, term, todo))

    def leader_changed(self, uid: int, leader: NodeId | None, term: int, is_local: bool) -> None:
        self.said.append(("leader", uid, leader, term, is_local))

    def node_changed(self, node: NodeId, incarnation: int, up: bool) -> None:
        self.said.append(("leaders: node", node, incarnation, up))

    def deliveries_lost(self, node: NodeId) -> None:
        self.said.append(("lost", node))


class Stuck:
    def __init__(self, said: list[Any]) -> None:
        self.said = said

    def leader_changed(self, uid: int, leader: NodeId | None) -> None:
        self.said.append(("stuck: leader", uid, leader))

    def node_changed(self, node: NodeId, up: bool) -> None:
        self.said.append(("stuck: node", node, up))


class Told:
    """A member's rooms, and what they heard."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.client = Client()
        self.alarms = ClusterAlarms(lambda: [self.client], lambda: None)
        self.figures: dict[str, tuple[int, int, int, list[str]]] = {}

        def catalog(todo: Sequence[Any]) -> None:
            self.said.append(("catalog", list(todo)))

        self.events = MemberEvents(
            EventListeners(
                leaders=Leaders(self.said),
                stuck=Stuck(self.said),
                alarms=self.alarms,
                catalog=catalog,
                node_changed=(lambda node, up: self.said.append(("node", node, up)),),
                figures=self.figures,
                complete=lambda uid, command, reply: reply + b"!",
                received={DeliveryKind.CALL: lambda *what: self.said.append(what)},
                failed=lambda error: self.said.append(("failed", str(error))),
            )
        )


@pytest.fixture
def told() -> Told:
    return Told()


def test_effects_of_the_catalog_and_of_queues_go_to_different_rooms(told: Told) -> None:
    told.events.realise(CATALOG_GROUP, 3, ["x"])
    told.events.realise(70000, 4, ["y"])
    assert told.said == [("catalog", ["x"]), ("realise", 70000, 4, ["y"])]


def test_leaders_of_the_catalog_concern_no_queue(told: Told) -> None:
    told.events.leader_changed(CATALOG_GROUP, A, 3, False)
    assert told.said == []
    told.events.leader_changed(70000, A, 3, False)
    assert told.said == [("leader", 70000, A, 3, False), ("stuck: leader", 70000, A)]


def test_alarms_of_a_member_block_until_it_takes_them_back_or_is_lost(told: Told) -> None:
    """R-ALM-1, R-MEM-12."""
    told.events.liveness_received(A, ["memory"], 9, 10, 1000)
    told.events.liveness_received(A, ["memory"], 9, 10, 999)
    assert told.figures == {A: (9, 10, 999, ["memory"])}
    told.events.node_changed(A, 7, False)
    assert len(told.client.told) == 2
    assert [bool(reason) for reason in told.client.told] == [True, False]
    assert told.said == [
        ("leaders: node", A, 7, False),
        ("stuck: node", A, False),
        ("node", A, False),
    ]


def test_what_a_later_version_sends_is_left_alone(told: Told) -> None:
    told.events.delivered(A, 1, 2, 250, b"?")
    assert told.said == []
    told.events.delivered(A, 1, 2, DeliveryKind.CALL, b"question")
    assert told.said == [(A, 1, 2, b"question")]


def test_replies_are_completed_and_failures_told(told: Told) -> None:
    assert told.events.complete_reply(1, b"get", b"reply") == b"reply!"
    told.events.failed(OSError("no disk"))
    told.events.deliveries_lost(A)
    assert told.said == [("failed", "no disk"), ("lost", A)]


def test_a_stalled_disk_elsewhere_is_an_alarm_and_blocks_no_client(told: Told) -> None:
    """ADR 68, R-ALM-1: beside one that blocks, too."""
    told.events.liveness_received(A, ["disk_stalled"], 9, 10, 1000)
    assert told.alarms.all.on(A) == {"disk_stalled"}
    assert told.client.told == []
    told.events.liveness_received(A, ["memory", "disk_stalled"], 9, 10, 1000)
    told.events.liveness_received(A, ["memory"], 9, 10, 1000)
    assert told.client.told == ["low on memory"]
