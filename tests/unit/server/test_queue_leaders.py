"""What a new leader sends by itself, and what it leaves to RESUME (R-QQ-10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from brokerd.cluster import deliveries as delivery_codec
from brokerd.core import policy
from brokerd.core.effects import (
    ConsumerCancelled,
    ConsumerId,
    Deliver,
    LeadershipBegun,
    Resumed,
    Run,
)
from brokerd.core.message import Content
from brokerd.core.queue_commands import (
    QueueOptions,
    encode_node_down,
    encode_node_up,
    encode_update_options,
)
from brokerd.raft.messages import NodeId
from brokerd.server import queue_leaders
from brokerd.server.broker import Broker
from brokerd.server.delivery import Part
from brokerd.server.queue_leaders import QueueLeaders

UID = 7
HERE = ConsumerId("n0", 1, 1, "tag")
FAR = ConsumerId("n9", 1, 1, "tag")
CONTENT: Content = (("", "q"), b"\x00\x00", b"body", b"")
RUN = Run(0, 1, 5, 0, 0, 0)


class Rig:
    """Leaders of node n0, with notes of what went out."""

    def __init__(self) -> None:
        self.delivered: list[ConsumerId] = []
        self.reminded: list[ConsumerId] = []
        self.sent: list[tuple[NodeId, int]] = []
        self.resumed: list[int] = []
        self.cancelled: list[ConsumerId] = []
        self.proposed: list[bytes] = []
        self.went_first: list[bool] = []
        self.replica = SimpleNamespace(applied_index=9, last_index=9)
        self.driver: Any = SimpleNamespace(replica=self.replica, term=3)
        self.answers: list[Callable[[bool, bytes, NodeId | None], None]] = []
        self.alive = {NodeId("n0")}
        rows = self.rows = {
            who: SimpleNamespace(id=who, registered=True, no_ack=False) for who in (HERE, FAR)
        }
        consumers = SimpleNamespace(
            rows=rows.values,
            of_node=lambda node: [row for row in rows.values() if row.id.node == node],
            get=rows.get,
        )
        machine = SimpleNamespace(
            consumers=consumers,
            enqueuers=SimpleNamespace(rows=list),
            senders=SimpleNamespace(nodes=list),
        )
        queue = SimpleNamespace(uid=UID, vhost="/", members=("n0", "n1", "n2"))
        broker: Any = SimpleNamespace(
            node="n0",
            incarnation=1,
            queue_of=lambda uid: queue,
            machine=lambda uid: machine,
            contents=lambda uid, run: [CONTENT] * run.length,
            deliveries=SimpleNamespace(
                deliver=self._deliver,
                cancelled=lambda consumer, cause: self.cancelled.append(consumer),
                leader_changed=self.resumed.append,
                groups=list,
                has_group=lambda uid: True,
            ),
            dead_letterer=SimpleNamespace(stop=lambda uid: None),
            membership=SimpleNamespace(wake=lambda uid: None),
            host=SimpleNamespace(
                has_group=lambda uid: True,
                driver_of=lambda uid: self.driver,
                alive=lambda: self.alive,
                propose=self._propose,
                send_delivery=lambda node, uid, term, kind, payload: self.sent.append((node, term)),
            ),
        )
        self.leaders = QueueLeaders(cast(Broker, broker))
        self.leaders.update_options = lambda uid: None  # type: ignore[method-assign]

    def _propose(
        self,
        uid: int,
        command: bytes,
        done: Callable[[bool, bytes, NodeId | None], None],
        *,
        first: bool,
    ) -> None:
        self.proposed.append(command)
        self.went_first.append(first)
        self.answers.append(done)

    def _deliver(self, consumer: ConsumerId, parts: list[Part]) -> None:
        (self.delivered if parts else self.reminded).append(consumer)

    def leads(self, term: int) -> None:
        self.leaders.leader_changed(UID, NodeId("n0"), term, True)


def test_a_new_leader_does_not_send_what_an_earlier_one_may_have_sent() -> None:
    """The consumer may have got and settled it; its SETTLE comes in order before its RESUME."""
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.realise(UID, 2, [Deliver(HERE, [RUN]), Deliver(FAR, [RUN])])
    assert (rig.delivered, rig.sent) == ([], [])
    assert rig.resumed == [UID]
    rig.leaders.realise(UID, 3, [Deliver(HERE, [RUN]), Deliver(FAR, [RUN])])
    assert (rig.delivered, rig.sent) == ([HERE], [(NodeId("n9"), 3)])


def test_what_a_cut_network_held_back_of_a_succeeded_leader_is_stale() -> None:
    """R-QQ-10: its successor has sent it again, and it may have been settled since."""
    rig = Rig()
    assert rig.leaders.is_stale(UID, 2)
    assert not rig.leaders.is_stale(UID, 3)
    assert not rig.leaders.is_stale(UID, 4)


def test_only_the_leader_of_the_newest_term_is_delivered() -> None:
    """R-QQ-10"""
    rig = Rig()
    payload = delivery_codec.encode(HERE, [(RUN, [CONTENT] * RUN.length)])
    rig.leaders.received(UID, 2, payload)
    assert rig.delivered == []
    rig.leaders.received(UID, 3, payload)
    assert rig.delivered == [HERE]


def test_nodes_without_a_replica_know_a_succeeded_leader_by_what_came_since() -> None:
    """R-QQ-10"""
    rig = Rig()
    rig.driver = None
    assert not rig.leaders.is_stale(UID, 1)
    rig.leaders.heard(UID, 2, is_announced=True)
    assert rig.leaders.is_stale(UID, 1)
    assert not rig.leaders.is_stale(UID, 2)


def test_a_replica_that_stood_in_vain_before_it_left_does_not_make_the_leader_stale() -> None:
    """It was told to take over, was cut off then and taken out of the group, which goes on in the
    older term: its clients must hear of that leader (R-QQ-10).
    """
    rig = Rig()
    rig.leaders.leader_changed(UID, NodeId("n1"), 3, False)
    rig.leaders.leader_changed(UID, None, 4, False)
    rig.driver = None
    rig.leaders.replica_closed(UID)
    assert rig.leaders.is_stale(UID, 2)
    assert not rig.leaders.is_stale(UID, 3)
    rig.resumed.clear()
    rig.leaders.heard(UID, 3, is_announced=True)
    assert rig.resumed == []
    rig.leaders.heard(UID, 5, is_announced=False)
    assert rig.resumed == [UID]
    rig.leaders.forget(UID)
    rig.leaders.replica_closed(UID)
    assert not rig.leaders.is_stale(UID, 1)


def test_cancellations_of_earlier_terms_are_told_again() -> None:
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.realise(UID, 2, [ConsumerCancelled(HERE, "gone")])
    assert rig.cancelled == [HERE]


def test_nodes_without_a_replica_resume_once_all_earlier_commands_are_applied() -> None:
    """A checkout among those commands may be the first of its node."""
    rig = Rig()
    rig.leads(term=3)
    assert rig.sent == []
    rig.leaders.realise(UID, 3, [LeadershipBegun()])
    assert rig.sent == [(NodeId("n9"), 3)]


def test_queues_learn_which_nodes_live_once_all_earlier_commands_are_applied() -> None:
    """R-ACK-8: before that a restarted member's machine knows none of its consumers."""
    rig = Rig()
    rig.leads(term=3)
    assert rig.proposed == []
    rig.leaders.realise(UID, 3, [LeadershipBegun()])
    assert rig.proposed == [encode_node_up("n0", 1), encode_node_down("n9")]


def test_options_go_before_what_waits_and_other_news_do_not(monkeypatch: Any) -> None:
    """A new queue takes no message before it knows its limits and its dead letter exchange."""
    rig = Rig()
    broker: Any = rig.leaders._broker
    broker.config = SimpleNamespace(
        queues=SimpleNamespace(disconnected_timeout_ms=1, consumer_timeout_ms=0)
    )
    broker.view = broker.profile = None
    options = QueueOptions(queue_type="quorum", max_length=3)
    monkeypatch.setattr(policy, "effective_queue_options", lambda *_: options)
    monkeypatch.setattr(policy, "option_warnings", lambda *_: [])
    del rig.leaders.update_options
    rig.leads(term=3)
    rig.leaders.realise(UID, 3, [LeadershipBegun()])
    assert rig.proposed[0] == encode_update_options(options)
    assert rig.went_first == [True, False, False]


def test_a_leader_that_stepped_down_and_led_again_counts_from_its_new_term() -> None:
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.leader_changed(UID, None, 4, False)
    rig.leads(term=5)
    rig.leaders.realise(UID, 3, [Deliver(HERE, [RUN])])
    assert rig.delivered == []
    rig.leaders.realise(UID, 5, [Deliver(HERE, [RUN])])
    assert rig.delivered == [HERE]


async def test_a_consumer_of_earlier_terms_gets_nothing_before_it_has_resumed() -> None:
    """G3: what it missed would come after it; RESUME brings both, in order."""
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.realise(UID, 3, [LeadershipBegun((HERE,)), Deliver(HERE, [RUN])])
    assert rig.delivered == []
    rig.leaders.realise(UID, 3, [Resumed(HERE), Deliver(HERE, [RUN])])
    assert rig.delivered == [HERE]


async def test_consumers_behind_a_broken_stream_get_nothing_before_they_have_resumed() -> None:
    """G3"""
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.deliveries_lost(NodeId("n9"))
    rig.leaders.realise(UID, 3, [Deliver(FAR, [RUN]), Deliver(HERE, [RUN])])
    assert (rig.sent, rig.delivered) == ([], [HERE])
    rig.leaders.realise(UID, 3, [Resumed(FAR), Deliver(FAR, [RUN])])
    assert rig.sent == [(NodeId("n9"), 3)]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_consumers_that_do_not_resume_are_asked_until_they_have(monkeypatch: Any) -> None:
    """Whatever should have made them resume was lost: nobody is left in silence (R-QQ-10)."""
    monkeypatch.setattr(queue_leaders, "REMIND_S", 0.0)
    rig = Rig()
    rig.alive.add(NodeId("n9"))
    rig.leads(term=3)
    rig.leaders.realise(UID, 3, [LeadershipBegun((HERE, FAR))])
    announced = len(rig.sent)
    await turns()
    assert len(rig.reminded) > 1
    assert len(rig.sent) > announced + 1
    assert set(rig.sent) == {(NodeId("n9"), 3)}
    rig.leaders.realise(UID, 3, [Resumed(HERE), Resumed(FAR)])
    rig.reminded.clear()
    rig.sent.clear()
    await turns()
    assert (rig.reminded, rig.sent) == ([], [])
    assert not rig.leaders._is_reminding


async def test_consumers_behind_a_broken_stream_are_asked_when_their_node_lives(
    monkeypatch: Any,
) -> None:
    """Their RESUME may have come before this member noticed that the stream had broken."""
    monkeypatch.setattr(queue_leaders, "REMIND_S", 0.0)
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.deliveries_lost(NodeId("n9"))
    await turns()
    assert rig.sent == []
    rig.alive.add(NodeId("n9"))
    await turns()
    assert (NodeId("n9"), 3) in rig.sent


async def test_nobody_asks_consumers_that_have_gone_or_of_queues_led_elsewhere(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(queue_leaders, "REMIND_S", 0.0)
    rig = Rig()
    rig.alive.add(NodeId("n9"))
    rig.leads(term=3)
    rig.leaders.realise(UID, 3, [LeadershipBegun((HERE, FAR))])
    rig.rows[HERE].registered = False
    del rig.rows[FAR]
    rig.sent.clear()
    await turns()
    assert (rig.reminded, rig.sent) == ([], [])
    assert not rig.leaders._is_reminding
    rig.rows[HERE].registered = True
    rig.leaders.realise(UID, 3, [LeadershipBegun((HERE,))])
    rig.leaders.leader_changed(UID, NodeId("n1"), 4, False)
    await turns()
    assert rig.reminded == []
    assert not rig.leaders._is_reminding


async def test_a_leader_says_again_what_its_queue_refused_to_hear(monkeypatch: Any) -> None:
    """A member may come back while leadership is handed over in vain: its consumers must go."""
    monkeypatch.setattr(queue_leaders, "OWING_S", 0.0)
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.node_changed(NodeId("n9"), 2, False)
    refused = rig.answers.pop()
    rig.proposed.clear()
    refused(False, b"", NodeId("n0"))
    refused(False, b"", NodeId("n0"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert rig.proposed == [encode_node_up("n0", 1), encode_node_down("n9")]


async def test_a_former_leader_owes_its_queue_nothing(monkeypatch: Any) -> None:
    monkeypatch.setattr(queue_leaders, "OWING_S", 0.0)
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.node_changed(NodeId("n9"), 2, False)
    refused = rig.answers.pop()
    rig.proposed.clear()
    refused(False, b"", NodeId("n0"))
    rig.leaders.leader_changed(UID, NodeId("n1"), 4, False)
    for _ in range(5):
        await asyncio.sleep(0)
    assert rig.proposed == []


def test_a_queue_with_commands_on_their_way_hears_of_nodes_that_it_does_not_know_yet() -> None:
    """One of them may register a consumer of the node's earlier life, which would never end."""
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.node_changed(NodeId("n5"), 2, True)
    assert rig.proposed == []
    rig.replica.last_index = 10
    rig.leaders.node_changed(NodeId("n5"), 3, True)
    assert rig.proposed == [encode_node_up("n5", 3)]
