"""GroupClient and commands that must not be applied twice: numbers, order, and what was too early.

A real queue machine is at the other end, so that both halves of core/queue/client_sessions.py are
held together.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest

from brokerd.cluster.config import ClientConfig
from brokerd.cluster.errors import GroupUnavailable
from brokerd.cluster.groups.group_client import GroupClient, ReplyStatus
from brokerd.core.queue import client_sessions, enqueue_commands, queue_commands
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.queue_commands import Kind
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import peer_pb2
from brokerd.server.queues.stream import ChannelStream, Settle
from tests.unit.cluster.groups.test_group_client import ME, UID, A, B, C, ScriptedNetwork
from tests.unit.core.queue_driver import QueueDriver, content
from tests.unit.server.messages.fakes import turn

OK, OVERLOADED = peer_pb2.GroupReply.OK, peer_pb2.GroupReply.OVERLOADED
CONSUMER = ConsumerId("me", 3, 1, "t")
CHECKOUT = queue_commands.encode_checkout(Checkout(CONSUMER, 10, False, False, 0, "guest"))
DOWN = queue_commands.encode_channel_down("me", 3, 1)
SETTLE = queue_commands.encode_ranges(Kind.SETTLE, CONSUMER, [(0, 1)])
DEADLINE_S = 60.0


@dataclass
class Target:
    """A queue as routing returns it."""

    uid: int


class Bench:
    """A client that knows its leader, and that leader's queue."""

    def __init__(self, config: ClientConfig | None = None) -> None:
        self.network = ScriptedNetwork()
        self.client = GroupClient(self.network, random.Random(1), config, incarnation=3)
        self.client.set_members(UID, (A, B, C))
        self.client.leader_changed(UID, A)
        self.queue = QueueDriver(queue_type="quorum")
        self.answers: list[bytes] = []

    def send(self, *commands: bytes) -> None:
        for command in commands:
            self.client.send(
                UID,
                command,
                lambda _, reply: self.answers.append(reply),
                once=client_sessions.is_once(command),
            )

    def arrive(self, at: int, *, is_answered: bool = True) -> None:
        """Let what was sent as number `at` reach the queue."""
        node, number, command = self.network.sent[at]
        reply = self.queue.send(command).reply
        if is_answered:
            self.client.reply_received(node, number, OK, None, reply)

    def refuse(self, at: int) -> None:
        node, number, _ = self.network.sent[at]
        self.client.reply_received(node, number, OVERLOADED, None, b"")

    async def resent(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.network.sent) < count:
                self.network.changed.clear()
                await self.network.changed.wait()

    def envelope(self, at: int) -> client_sessions.Once:
        return client_sessions.decode_envelope(self.network.sent[at][2])

    @property
    def consumers(self) -> int:
        return int(self.queue.machine.overview()["consumers"])


async def test_commands_that_may_go_twice_go_as_they_are() -> None:
    bench = Bench()
    bench.send(SETTLE, CHECKOUT)
    assert bench.network.commands()[0] == SETTLE
    assert client_sessions.inside(bench.network.commands()[1]) == CHECKOUT
    assert bench.network.commands()[1] != CHECKOUT


async def test_each_envelope_names_the_one_before_it_and_the_first_that_has_no_answer() -> None:
    bench = Bench()
    bench.send(CHECKOUT, SETTLE, CHECKOUT, DOWN)
    ids = [number for _, number, _ in bench.network.sent]
    chain = [bench.envelope(at) for at in (0, 2, 3)]
    assert [(e.node, e.incarnation) for e in chain] == [("me", 3)] * 3
    assert [(e.after, e.sequence) for e in chain] == [
        (0, ids[0]), (ids[0], ids[2]), (ids[2], ids[3]),
    ]  # fmt: skip
    assert {e.unanswered_from for e in chain} == {ids[0]}
    bench.arrive(0)
    bench.send(CHECKOUT)
    assert bench.envelope(4).unanswered_from == ids[2]
    assert bench.envelope(4).after == ids[3]


async def test_what_goes_again_after_a_change_of_leader_changes_nothing_twice() -> None:
    """R-QQ-8, R-CH-5: a consumer that has ended does not begin again (simulator seed 20066)."""
    bench = Bench()
    bench.send(CHECKOUT, DOWN, CHECKOUT, DOWN)
    for at in range(4):
        bench.arrive(at, is_answered=False)
    bench.client.leader_changed(UID, B)
    assert len(bench.network.sent) == 8
    assert (bench.envelope(4).after, bench.envelope(5).after) == (0, bench.envelope(4).sequence)
    seen: list[int] = []
    for at in range(4, 8):
        bench.arrive(at)
        seen.append(bench.consumers)
    assert seen == [0, 0, 0, 0]
    assert len(bench.answers) == 4


async def test_what_came_too_early_goes_again_behind_what_was_refused() -> None:
    """A channel's end must not overtake its consumer: the leader was overloaded for a moment."""
    bench = Bench()
    bench.send(CHECKOUT, DOWN)
    bench.refuse(0)
    bench.arrive(1)
    assert bench.answers == []
    await bench.resent(4)
    bench.arrive(2)
    assert bench.consumers == 1
    bench.arrive(3)
    assert bench.consumers == 0
    assert len(bench.answers) == 2


@pytest.mark.parametrize("how", [Settle.ACCEPT, Settle.DISCARD])
async def test_the_end_of_a_channel_waits_for_acknowledgements_that_were_refused(
    how: Settle,
) -> None:
    """G4: behind it they would come too late, and their messages come again."""
    bench = Bench()
    bench.queue.fill(2)
    bench.send(CHECKOUT)
    bench.arrive(0)
    assert bench.queue.machine.overview()["unacked"] == 2
    stream = ChannelStream(turn(bench.client, "me", 3), 1)
    for ranges in ([(0, 1)], [(1, 2)]):
        stream.settle((UID, CONSUMER), ranges, how, is_joined=False)
    stream.leave({UID: None})
    # Overloaded for a moment: what comes behind it is taken.
    on_way = len(bench.network.sent)
    bench.refuse(1)
    for at in range(2, on_way):
        bench.arrive(at)
    await bench.resent(on_way + 1)
    bench.arrive(on_way)
    await bench.resent(on_way + 2)
    bench.arrive(on_way + 1)
    assert bench.consumers == 0
    assert bench.queue.machine.store.ready == 0


async def test_too_early_takes_back_what_is_on_the_way_once() -> None:
    bench = Bench()
    bench.send(CHECKOUT, DOWN, CHECKOUT)
    # The first is lost without a word, which only the queue can notice.
    bench.arrive(1)
    bench.arrive(2)
    await bench.resent(6)
    assert [client_sessions.inside(data) for data in bench.network.commands()[3:]] == [
        CHECKOUT,
        DOWN,
        CHECKOUT,
    ]
    for at in (3, 4, 5):
        bench.arrive(at)
    assert bench.answers == [b'{"ok":true}'] * 3
    assert len(bench.network.sent) == 6


async def test_nothing_waits_for_a_command_that_was_given_up() -> None:
    bench = Bench()
    bench.send(SETTLE)
    bench.arrive(0)
    with pytest.raises(GroupUnavailable):
        await bench.client.request(UID, CHECKOUT, 0.01, once=True)
    bench.send(DOWN)
    # The queue never saw the first; the second goes again as one that follows nothing.
    bench.arrive(2)
    await bench.resent(4)
    assert bench.envelope(3).after == 0
    bench.arrive(3)
    assert len(bench.answers) == 2
    bench.arrive(1, is_answered=False)
    assert bench.consumers == 0


async def test_a_local_leader_is_sent_envelopes_too() -> None:
    bench = Bench()
    bench.network.is_member = True
    bench.network.local_leader = ME
    bench.client.leader_changed(UID, ME)
    answered: list[tuple[ReplyStatus, bytes]] = []
    bench.client.send(UID, CHECKOUT, lambda *answer: answered.append(answer), once=True)
    ((command, done),) = bench.network.proposed
    assert client_sessions.inside(command) == CHECKOUT
    done(True, bench.queue.send(command).reply, NodeId("me"))
    assert answered == [(ReplyStatus.OK, b'{"ok":true}')]


async def test_a_batch_that_a_copy_of_itself_overtook_keeps_its_number() -> None:
    """G1, R-QQ-8: an old stream hands a batch to who leads by now, before the one that it follows;
    numbers that begin anew would have later messages confirmed as duplicates (simulator seed
    116726).
    """
    bench = Bench()
    outcomes: list[tuple[int, int, int]] = []
    publisher = ChannelStream(turn(bench.client, "me", 3), 1, outcomes.extend)
    for number in (1, 2):
        publisher.publish([Target(UID)], [content(b"%d" % number)], number)
        publisher.flush()
    # The answer counts though the batch is on its way again.
    node, second, command = bench.network.sent[1]
    late = bench.queue.send(command).reply
    assert late.startswith(enqueue_commands.GAP_REPLY)
    bench.client.reply_received(node, second, OK, None, late)
    assert outcomes == []
    await bench.resent(4)
    bench.arrive(2)
    bench.client.reply_received(node, second, OK, None, late)
    await bench.resent(5)
    bench.arrive(3, is_answered=False)
    bench.arrive(4)
    publisher.publish([Target(UID)], [content(b"3")], 3)
    publisher.flush()
    bench.arrive(5)
    assert outcomes == [(1, 1, 1), (2, 1, 1), (3, 1, 1)]
    assert bench.queue.machine.store.ready == 3


async def test_a_gap_that_stays_is_refused_and_the_channel_goes_on_under_another_name() -> None:
    """The queue's only disk was lost: it knows nobody.  Batches that follow what is gone would go
    again for ever, before all that this member has for the queue.
    """
    bench = Bench(ClientConfig(retry_min_ms=1, retry_max_ms=1, early_max=3))
    outcomes: list[tuple[int, int, int]] = []
    others: list[tuple[int, int, int]] = []
    publisher = ChannelStream(turn(bench.client, "me", 3), 1, outcomes.extend)
    other = ChannelStream(turn(bench.client, "me", 3), 2, others.extend)
    publisher.publish([Target(UID)], [content(b"1")], 1)
    publisher.flush()
    bench.arrive(0)
    bench.queue = QueueDriver(queue_type="quorum")
    # Both go off before anybody knows; another channel's first one is between them.
    for sender, number in ((publisher, 2), (other, 1), (publisher, 3)):
        sender.publish([Target(UID)], [content(b"%d" % number)], number)
        sender.flush()
    at = 1
    while len(outcomes) == 1:
        await bench.resent(at + 1)
        bench.arrive(at)
        at += 1
        assert at < 20
    assert outcomes == [(1, 1, 1), (2, 1, 0), (3, 1, 0)]
    publisher.publish([Target(UID)], [content(b"4")], 4)
    publisher.flush()
    while len(outcomes) == 3 or not others:
        await bench.resent(at + 1)
        bench.arrive(at)
        at += 1
        assert at < 40
    assert (outcomes[3:], others) == ([(4, 1, 1)], [(1, 1, 1)])
    assert bench.queue.machine.store.ready == 2
    publisher.leave()
    other.leave()
    for late in range(at, len(bench.network.sent)):
        bench.arrive(late)
    assert len(bench.queue.machine.enqueuers) == 0


async def test_copies_that_come_too_early_do_not_give_a_line_up_while_it_has_more_on_the_way() -> (
    None
):
    """G1: what is missing is on its way, however often a copy overtakes it."""
    bench = Bench(ClientConfig(retry_min_ms=1, retry_max_ms=1, early_max=2))
    outcomes: list[tuple[int, int, int]] = []
    publisher = ChannelStream(turn(bench.client, "me", 3), 1, outcomes.extend)
    for number in (1, 2):
        publisher.publish([Target(UID)], [content(b"%d" % number)], number)
        publisher.flush()
    for _ in range(4):
        last = len(bench.network.sent) - 1
        bench.arrive(last)
        await bench.resent(last + 3)
    assert outcomes == []
    last = len(bench.network.sent) - 1
    bench.arrive(last - 1)
    bench.arrive(last)
    assert outcomes == [(1, 1, 1), (2, 1, 1)]
