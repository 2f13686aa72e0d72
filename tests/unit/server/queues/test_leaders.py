"""What a new leader sends by itself, and what it leaves to RESUME (R-QQ-10)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from brokerd.cluster.peer import deliveries as delivery_codec
from brokerd.core.queue.effects import (
    ConsumerCancelled,
    ConsumerId,
    Deliver,
    LeadershipBegun,
    Resumed,
    Run,
)
from brokerd.core.queue.queue_commands import (
    encode_cancel,
    encode_node_down,
    encode_node_up,
    encode_update_options,
)
from brokerd.core.queue_options import QueueOptions
from brokerd.raft.messages import NodeId
from brokerd.server.queues import leaders
from brokerd.server.queues.leaders import QueueLeaders
from tests.unit.server.members.fakes import status
from tests.unit.server.messages import fakes
from tests.unit.server.messages.fakes import CONTENT

UID = 7
HERE = ConsumerId("n0", 1, 1, "tag")
FAR = ConsumerId("n9", 1, 1, "tag")
RUN = Run(0, 1, 5, 0, 0, 0)


class Rig:
    """Leaders of node n0 with a queue that both consume, and notes of what went out."""

    def __init__(self) -> None:
        self.queues = fakes.Queues(fakes.queue(UID))
        for who in (HERE, FAR):
            self.consume(who)
        self.replicas = fakes.Replicas()
        self.hub = fakes.Hub()
        self.options = fakes.Options()
        self.jobs = fakes.JobWorkers()
        self.leaders = QueueLeaders(
            fakes.Identity("n0"),
            self.queues,
            self.replicas,
            self.hub,
            fakes.DeadLetters(),
            self.jobs,
            self.options,
            wake_members=lambda uid: None,
            write_later=lambda operation: None,
            led={},
        )

    def consume(self, who: ConsumerId) -> None:
        self.queues.driver.consume(
            who.tag, 1, channel=who.channel, node=who.node, incarnation=who.incarnation
        )

    def leads(self, term: int) -> None:
        self.leaders.leader_changed(UID, NodeId("n0"), term, True)


def test_a_new_leader_does_not_send_what_an_earlier_one_may_have_sent() -> None:
    """The consumer may have got and settled it; its SETTLE comes in order before its RESUME."""
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.realise(UID, 2, [Deliver(HERE, [RUN]), Deliver(FAR, [RUN])])
    assert (rig.hub.delivered, rig.replicas.sent) == ([], [])
    assert rig.hub.resumed == [UID]
    rig.leaders.realise(UID, 3, [Deliver(HERE, [RUN]), Deliver(FAR, [RUN])])
    assert (rig.hub.delivered, rig.replicas.sent) == ([HERE], [(NodeId("n9"), 3)])


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
    assert rig.hub.delivered == []
    rig.leaders.received(UID, 3, payload)
    assert rig.hub.delivered == [HERE]


def test_nodes_without_a_replica_know_a_succeeded_leader_by_what_came_since() -> None:
    """R-QQ-10"""
    rig = Rig()
    rig.replicas.status = None
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
    rig.replicas.status = None
    rig.leaders.replica_closed(UID)
    assert rig.leaders.is_stale(UID, 2)
    assert not rig.leaders.is_stale(UID, 3)
    rig.hub.resumed.clear()
    rig.leaders.heard(UID, 3, is_announced=True)
    assert rig.hub.resumed == []
    rig.leaders.heard(UID, 5, is_announced=False)
    assert rig.hub.resumed == [UID]
    rig.leaders.forget(UID)
    rig.leaders.replica_closed(UID)
    assert not rig.leaders.is_stale(UID, 1)


def test_cancellations_of_earlier_terms_are_told_again() -> None:
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.realise(UID, 2, [ConsumerCancelled(HERE, "gone")])
    assert rig.hub.ended == [HERE]


def test_nodes_without_a_replica_resume_once_all_earlier_commands_are_applied() -> None:
    """A checkout among those commands may be the first of its node."""
    rig = Rig()
    rig.leads(term=3)
    assert rig.replicas.sent == []
    rig.leaders.realise(UID, 3, [LeadershipBegun()])
    assert rig.replicas.sent == [(NodeId("n9"), 3)]


def test_queues_learn_which_nodes_live_once_all_earlier_commands_are_applied() -> None:
    """R-ACK-8: before that a restarted member's machine knows none of its consumers."""
    rig = Rig()
    rig.leads(term=3)
    assert rig.replicas.proposed == []
    rig.leaders.realise(UID, 3, [LeadershipBegun()])
    assert rig.replicas.proposed == [encode_node_up("n0", 1, leads=True), encode_node_down("n9")]


def test_options_go_before_what_waits_and_other_news_do_not() -> None:
    """A new queue takes no message before it knows its limits and its dead letter exchange."""
    rig = Rig()
    rig.options.options = QueueOptions(queue_type="quorum", max_length=3)
    rig.leads(term=3)
    assert rig.replicas.went_first == [encode_update_options(rig.options.options)]
    assert rig.replicas.proposed == []
    rig.leaders.realise(UID, 3, [LeadershipBegun()])
    assert len(rig.replicas.went_first) == 1
    assert len(rig.replicas.proposed) == 2


def test_a_leader_that_stepped_down_and_led_again_counts_from_its_new_term() -> None:
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.leader_changed(UID, None, 4, False)
    rig.leads(term=5)
    rig.leaders.realise(UID, 3, [Deliver(HERE, [RUN])])
    assert rig.hub.delivered == []
    rig.leaders.realise(UID, 5, [Deliver(HERE, [RUN])])
    assert rig.hub.delivered == [HERE]


async def test_a_consumer_of_earlier_terms_gets_nothing_before_it_has_resumed() -> None:
    """G3: what it missed would come after it; RESUME brings both, in order."""
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.realise(UID, 3, [LeadershipBegun((HERE,)), Deliver(HERE, [RUN])])
    assert rig.hub.delivered == []
    rig.leaders.realise(UID, 3, [Resumed(HERE), Deliver(HERE, [RUN])])
    assert rig.hub.delivered == [HERE]


async def test_consumers_behind_a_broken_stream_get_nothing_before_they_have_resumed() -> None:
    """G3"""
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.deliveries_lost(NodeId("n9"))
    rig.leaders.realise(UID, 3, [Deliver(FAR, [RUN]), Deliver(HERE, [RUN])])
    assert (rig.replicas.sent, rig.hub.delivered) == ([], [HERE])
    rig.leaders.realise(UID, 3, [Resumed(FAR), Deliver(FAR, [RUN])])
    assert rig.replicas.sent == [(NodeId("n9"), 3)]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_consumers_that_do_not_resume_are_asked_until_they_have(monkeypatch: Any) -> None:
    """Whatever should have made them resume was lost: nobody is left in silence (R-QQ-10)."""
    monkeypatch.setattr(leaders, "REMIND_S", 0.0)
    rig = Rig()
    rig.replicas.others.add(NodeId("n9"))
    rig.leads(term=3)
    rig.leaders.realise(UID, 3, [LeadershipBegun((HERE, FAR))])
    announced = len(rig.replicas.sent)
    await turns()
    assert len(rig.hub.reminded) > 1
    assert len(rig.replicas.sent) > announced + 1
    assert set(rig.replicas.sent) == {(NodeId("n9"), 3)}
    rig.leaders.realise(UID, 3, [Resumed(HERE), Resumed(FAR)])
    rig.hub.reminded.clear()
    rig.replicas.sent.clear()
    await turns()
    assert (rig.hub.reminded, rig.replicas.sent) == ([], [])
    assert not rig.leaders._is_reminding


async def test_consumers_behind_a_broken_stream_are_asked_when_their_node_lives(
    monkeypatch: Any,
) -> None:
    """Their RESUME may have come before this member noticed that the stream had broken."""
    monkeypatch.setattr(leaders, "REMIND_S", 0.0)
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.deliveries_lost(NodeId("n9"))
    await turns()
    assert rig.replicas.sent == []
    rig.replicas.others.add(NodeId("n9"))
    await turns()
    assert (NodeId("n9"), 3) in rig.replicas.sent


async def test_nobody_asks_consumers_that_have_gone_or_of_queues_led_elsewhere(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(leaders, "REMIND_S", 0.0)
    rig = Rig()
    rig.replicas.others.add(NodeId("n9"))
    rig.leads(term=3)
    rig.leaders.realise(UID, 3, [LeadershipBegun((HERE, FAR))])
    # One of them holds a message, so that the queue still knows it.
    rig.queues.driver.fill(1)
    for who in (HERE, FAR):
        rig.queues.driver.send(encode_cancel(who))
    consumers = rig.queues.machine(UID).consumers
    assert consumers.get(FAR) is None
    holder = consumers.get(HERE)
    assert holder is not None
    assert not holder.registered
    rig.replicas.sent.clear()
    await turns()
    assert (rig.hub.reminded, rig.replicas.sent) == ([], [])
    assert not rig.leaders._is_reminding
    rig.consume(HERE)
    rig.leaders.realise(UID, 3, [LeadershipBegun((HERE,))])
    rig.leaders.leader_changed(UID, NodeId("n1"), 4, False)
    await turns()
    assert rig.hub.reminded == []
    assert not rig.leaders._is_reminding


async def test_a_leader_says_again_what_its_queue_refused_to_hear(monkeypatch: Any) -> None:
    """A member may come back while leadership is handed over in vain: its consumers must go."""
    monkeypatch.setattr(leaders, "OWING_S", 0.0)
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.node_changed(NodeId("n9"), 2, False)
    refused = rig.replicas.answers.pop()
    rig.replicas.proposed.clear()
    refused(False, b"", NodeId("n0"))
    refused(False, b"", NodeId("n0"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert rig.replicas.proposed == [encode_node_up("n0", 1, leads=True), encode_node_down("n9")]


async def test_a_former_leader_owes_its_queue_nothing(monkeypatch: Any) -> None:
    monkeypatch.setattr(leaders, "OWING_S", 0.0)
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.node_changed(NodeId("n9"), 2, False)
    refused = rig.replicas.answers.pop()
    rig.replicas.proposed.clear()
    refused(False, b"", NodeId("n0"))
    rig.leaders.leader_changed(UID, NodeId("n1"), 4, False)
    for _ in range(5):
        await asyncio.sleep(0)
    assert rig.replicas.proposed == []


def test_a_queue_with_commands_on_their_way_hears_of_nodes_that_it_does_not_know_yet() -> None:
    """One of them may register a consumer of the node's earlier life, which would never end."""
    rig = Rig()
    rig.leads(term=3)
    rig.leaders.node_changed(NodeId("n5"), 2, True)
    assert rig.replicas.proposed == []
    rig.replicas.status = status(term=3, last=10, applied=9)
    rig.leaders.node_changed(NodeId("n5"), 3, True)
    assert rig.replicas.proposed == [encode_node_up("n5", 3)]


def test_what_a_consumer_here_has_to_wait_for_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large backlog for a socket that takes one message costs one message's reading."""
    rig = Rig()
    rig.leads(3)
    later: list[tuple[ConsumerId, list[Run]]] = []

    def defer(consumer_id: ConsumerId, runs: Sequence[Run]) -> bool:
        later.append((consumer_id, list(runs)))
        return bool(rig.hub.delivered)

    monkeypatch.setattr(rig.hub, "defer", defer)
    monkeypatch.setattr(leaders, "DELIVERY_BYTES_MAX", 1)
    others = [RUN._replace(first=number) for number in (1, 2)]
    rig.leaders.realise(UID, 3, [Deliver(HERE, [RUN, *others])])
    assert rig.hub.delivered == [HERE]
    assert later[-1] == (HERE, others)
