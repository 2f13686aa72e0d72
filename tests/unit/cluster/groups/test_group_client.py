"""GroupClient against a scripted network: order, windows, retries, refusals."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from brokerd.cluster.config import ClientConfig
from brokerd.cluster.errors import GroupGone, GroupStuck, GroupUnavailable
from brokerd.cluster.groups.driver import Done
from brokerd.cluster.groups.group_client import IDLE_MAX, GroupClient, ReplyStatus
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import peer_pb2

ME, A, B, C = (NodeId(name) for name in ("me", "a", "b", "c"))
UID = 9
OK, NOT_LEADER, UNKNOWN, OVERLOADED = (
    peer_pb2.GroupReply.OK,
    peer_pb2.GroupReply.NOT_LEADER,
    peer_pb2.GroupReply.UNKNOWN_GROUP,
    peer_pb2.GroupReply.OVERLOADED,
)


class ScriptedNetwork:
    """Remembers what was sent; tests answer."""

    node = ME

    def __init__(self) -> None:
        self.sent: list[tuple[NodeId, int, bytes]] = []
        self.proposed: list[tuple[bytes, Done]] = []
        self.lazy: list[bytes] = []
        self.local_leader: NodeId | None = None
        self.is_member = False
        self.is_connected = True
        self.up = {ME, A, B, C}
        self.changed = asyncio.Event()

    def has_group(self, uid: int) -> bool:
        return self.is_member

    def leader_of(self, uid: int) -> NodeId | None:
        return self.local_leader

    def propose(self, uid: int, command: bytes, done: Done, *, is_lazy: bool = False) -> None:
        self.proposed.append((command, done))
        if is_lazy:
            self.lazy.append(command)

    def send_request(self, node: NodeId, request_id: int, uid: int, command: bytes) -> bool:
        if self.is_connected:
            self.sent.append((node, request_id, command))
            self.changed.set()
        return self.is_connected

    def alive(self) -> set[NodeId]:
        return self.up

    def listen(self, client: GroupClient) -> None:
        pass

    def commands(self) -> list[bytes]:
        return [command for _, _, command in self.sent]


class Bench:
    """A client, its network, and the answers it gave."""

    def __init__(self, config: ClientConfig | None = None) -> None:
        self.network = ScriptedNetwork()
        self.client = GroupClient(self.network, random.Random(1), config)
        self.client.set_members(UID, (A, B, C))
        self.answers: list[tuple[ReplyStatus, bytes]] = []

    def send(self, *commands: bytes) -> None:
        for command in commands:
            self.client.send(UID, command, lambda *answer: self.answers.append(answer))

    def reply(self, status: int, leader: NodeId | None = None, at: int = -1) -> None:
        node, number, command = self.network.sent[at]
        self.client.reply_received(node, number, status, leader, b"<" + command + b">")

    async def resent(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.network.sent) < count:
                self.network.changed.clear()
                await self.network.changed.wait()


async def test_unknown_leader_is_found_with_one_command_before_the_others_follow() -> None:
    bench = Bench()
    bench.send(b"1", b"2", b"3")
    assert bench.network.commands() == [b"1"]
    bench.reply(OK)
    assert bench.network.commands() == [b"1", b"2", b"3"]
    assert len({node for node, _, _ in bench.network.sent}) == 1
    assert bench.answers == [(ReplyStatus.OK, b"<1>")]


async def test_hint_of_a_refusal_is_followed_at_once() -> None:
    bench = Bench()
    bench.send(b"1")
    first = bench.network.sent[0][0]
    hinted = C if first != C else A
    bench.reply(NOT_LEADER, hinted)
    assert bench.network.sent[1][0] == hinted


async def test_refusals_that_point_in_a_circle_do_not_spin() -> None:
    bench = Bench()
    bench.send(b"1")
    for _ in range(10):
        node = bench.network.sent[-1][0]
        count = len(bench.network.sent)
        bench.reply(NOT_LEADER, A if node != A else B)
        if len(bench.network.sent) == count:
            break
    assert len(bench.network.sent) <= 5
    await bench.resent(len(bench.network.sent) + 1)


async def test_others_are_believed_when_the_replica_here_has_been_left_out_of_its_group() -> None:
    """It takes its last leader for the leader for ever, and nobody tells it (seed 109661)."""
    bench = Bench(ClientConfig(retry_max_ms=10))
    bench.network.is_member, bench.network.local_leader = True, A
    bench.send(b"1")
    for count in range(1, 9):
        await bench.resent(count)
        is_asked = bench.network.sent[-1][0]
        if is_asked == C:
            break
        bench.reply(NOT_LEADER, C if is_asked == A and count > 4 else None)
    assert bench.network.sent[-1][0] == C
    bench.reply(OK)
    bench.client.peer_lost(C)
    bench.send(b"2")
    assert bench.network.sent[-1][::2] == (C, b"2")
    # Until the replica has news.
    bench.client.leader_changed(UID, None)
    bench.network.local_leader = B
    bench.client.leader_changed(UID, B)
    assert bench.network.sent[-1][::2] == (B, b"2")
    bench.client.peer_lost(B)
    await bench.resent(len(bench.network.sent) + 1)
    assert bench.network.sent[-1][::2] == (B, b"2")


async def test_a_leader_that_only_has_too_much_to_do_is_still_believed_in() -> None:
    bench = Bench(ClientConfig(retry_max_ms=10))
    bench.network.is_member, bench.network.local_leader = True, A
    bench.send(b"1")
    for count in range(2, 5):
        bench.reply(OVERLOADED)
        await bench.resent(count)
    assert {node for node, _, _ in bench.network.sent} == {A}


async def test_everything_on_the_way_goes_again_in_order_after_a_change_of_leader() -> None:
    bench = Bench()
    bench.client.leader_changed(UID, A)
    bench.send(b"1", b"2", b"3")
    assert bench.network.commands() == [b"1", b"2", b"3"]
    bench.reply(OK, at=0)
    bench.client.leader_changed(UID, B)
    assert bench.network.sent[3:] == [(B, *sent[1:]) for sent in bench.network.sent[1:3]]
    bench.reply(OK)
    bench.reply(OK, at=-2)
    assert len(bench.answers) == 3


async def test_late_answer_to_an_earlier_attempt_counts_and_late_refusal_does_not() -> None:
    bench = Bench()
    bench.client.leader_changed(UID, A)
    bench.send(b"1", b"2")
    bench.client.leader_changed(UID, B)
    first, second = (number for _, number, _ in bench.network.sent[:2])
    bench.client.reply_received(A, first, OK, None, b"late")
    bench.client.reply_received(A, second, NOT_LEADER, C, b"")
    assert bench.answers == [(ReplyStatus.OK, b"late")]
    assert [node for node, _, _ in bench.network.sent] == [A, A, B, B]
    bench.client.reply_received(B, 1, OK, None, b"twice")
    assert len(bench.answers) == 1


@pytest.mark.parametrize("status", [UNKNOWN, OVERLOADED, NOT_LEADER])
async def test_refused_command_is_tried_again_later(status: int) -> None:
    bench = Bench()
    bench.send(b"1")
    bench.reply(status)
    assert len(bench.network.sent) == 1
    await bench.resent(2)
    assert bench.network.sent[1][2] == b"1"


async def test_unknown_group_here_makes_the_client_ask_the_next_member() -> None:
    bench = Bench()
    bench.send(b"1")
    for count in (2, 3):
        bench.reply(UNKNOWN)
        await bench.resent(count)
    assert {node for node, _, _ in bench.network.sent} == {A, B, C}


async def test_lost_peer_means_sending_again() -> None:
    bench = Bench()
    bench.client.leader_changed(UID, A)
    bench.send(b"1", b"2")
    bench.client.peer_lost(B)
    assert len(bench.network.sent) == 2
    bench.client.peer_lost(A)
    await bench.resent(4)
    assert bench.network.commands()[2:] == [b"1", b"2"]


async def test_missing_connection_delays_and_its_return_hastens() -> None:
    bench = Bench(ClientConfig(retry_min_ms=60_000, retry_max_ms=60_000))
    bench.network.is_connected = False
    bench.client.leader_changed(UID, A)
    bench.send(b"1")
    bench.network.is_connected = True
    bench.client.peer_connected(B)
    assert bench.network.sent == []
    bench.client.peer_connected(A)
    assert bench.network.commands() == [b"1"]


async def test_dead_leader_is_not_asked() -> None:
    bench = Bench()
    bench.client.leader_changed(UID, A)
    bench.network.up = {ME, B}
    bench.send(b"1")
    assert bench.network.sent[0][0] == B


async def test_bytes_in_flight_are_bounded_and_one_large_command_still_goes() -> None:
    bench = Bench(ClientConfig(inflight_bytes=10))
    bench.client.leader_changed(UID, A)
    bench.send(b"x" * 50, b"y" * 4, b"z" * 4)
    assert len(bench.network.sent) == 1
    assert bench.client.pending_bytes(UID) == 58
    bench.reply(OK)
    assert len(bench.network.sent) == 3
    bench.send(b"w" * 4)
    assert len(bench.network.sent) == 3
    assert bench.client.pending_bytes(UID) == 12
    bench.client.forget(UID)


async def test_local_leader_is_proposed_to_directly() -> None:
    bench = Bench()
    bench.network.is_member, bench.network.local_leader = True, ME
    bench.send(b"1", b"2")
    assert bench.network.sent == []
    for command, done in list(bench.network.proposed):
        done(True, b"<" + command + b">", ME)
    assert bench.answers == [(ReplyStatus.OK, b"<1>"), (ReplyStatus.OK, b"<2>")]


async def test_local_refusal_moves_on_to_the_new_leader() -> None:
    bench = Bench()
    bench.network.is_member, bench.network.local_leader = True, ME
    bench.send(b"1", b"2")
    (_, first), (_, second) = bench.network.proposed
    bench.network.local_leader = B
    first(False, b"", B)
    second(False, b"", B)
    assert bench.network.sent[0][::2] == (B, b"1")
    bench.reply(OK)
    assert bench.network.sent[1][::2] == (B, b"2")


async def test_forgotten_group_answers_gone_from_the_loop() -> None:
    bench = Bench()
    bench.send(b"1", b"2")
    bench.client.forget(UID)
    bench.send(b"3")
    assert bench.answers == []
    await asyncio.sleep(0)
    assert [status for status, _ in bench.answers] == [ReplyStatus.GONE] * 3
    bench.client.reply_received(A, 1, OK, None, b"late")
    assert len(bench.answers) == 3


async def test_request_returns_raises_gone_and_gives_up() -> None:
    bench = Bench()
    bench.client.leader_changed(UID, A)
    asking = asyncio.ensure_future(bench.client.request(UID, b"1", 5))
    await asyncio.sleep(0)
    bench.reply(OK)
    assert await asking == b"<1>"
    with pytest.raises(GroupUnavailable):
        await bench.client.request(UID, b"2", 0.01)
    assert bench.client.pending_bytes(UID) == 0
    with pytest.raises(GroupGone):
        await bench.client.request(UID + 1, b"3", 5)


async def test_who_asks_hears_once_in_time_and_nothing_after_a_withdrawal() -> None:
    bench = Bench()
    bench.client.leader_changed(UID, A)
    heard: list[tuple[ReplyStatus, bytes]] = []
    answered = asyncio.Event()

    def done(*answer: Any) -> None:
        heard.append(answer)
        answered.set()

    taken = bench.client.ask(UID, b"1", 60, done)
    bench.reply(OK)
    taken.late()
    taken.withdraw()
    assert heard == [(ReplyStatus.OK, b"<1>")]
    answered.clear()
    bench.client.ask(UID, b"2", 0.01, done)
    async with asyncio.timeout(60):
        await answered.wait()
    bench.reply(OK)
    assert heard[1:] == [(ReplyStatus.LATE, b"")]
    dropped = bench.client.ask(UID, b"3", 60, done)
    dropped.withdraw()
    dropped.withdraw()
    bench.reply(OK)
    gone = bench.client.ask(UID + 1, b"4", 60, done)
    gone.withdraw()
    await asyncio.sleep(0)
    assert len(heard) == 2
    assert bench.client.pending_bytes(UID) == 0


async def test_only_the_replica_here_is_told_what_is_lazy() -> None:
    bench = Bench()
    bench.network.is_member, bench.network.local_leader = True, ME
    bench.client.send(UID, b"1", lambda *_: None, is_lazy=True)
    bench.client.send(UID, b"2", lambda *_: None)
    assert bench.network.lazy == [b"1"]


async def test_command_that_no_group_would_take_is_refused_here() -> None:
    client = GroupClient(ScriptedNetwork(), random.Random(1), command_bytes_max=10)
    client.set_members(UID, (A,))
    with pytest.raises(ValueError, match="too large"):
        client.send(UID, bytes(11), lambda *_: None)


async def test_an_answer_to_an_earlier_life_of_this_node_answers_nothing() -> None:
    """G1: a leader may answer after a restart what was asked before it; the streams are new."""
    before, after = ScriptedNetwork(), ScriptedNetwork()
    answers: list[bytes] = []
    for seed, network in ((1, before), (2, after)):
        client = GroupClient(network, random.Random(seed))
        client.set_members(UID, (A, B, C))
        client.send(UID, b"new", lambda _, reply: answers.append(reply))
    (target, number, _) = before.sent[0]
    client.reply_received(target, number, OK, None, b"old")
    assert answers == []
    (target, number, _) = after.sent[0]
    client.reply_received(target, number, OK, None, b"mine")
    assert answers == [b"mine"]


async def test_groups_without_commands_are_forgotten_and_known_again() -> None:
    bench = Bench()
    client, network = bench.client, bench.network
    for uid in range(100, 100 + 3 * IDLE_MAX):
        client.set_members(uid, (A, B, C))
        client.leader_changed(uid, A)
    assert len(client._groups) <= IDLE_MAX
    client.send(100, b"x=1", lambda *answer: bench.answers.append(answer))
    assert network.commands() == [b"x=1"]
    client.reply_received(network.sent[0][0], network.sent[0][1], OK, None, b"done")
    assert bench.answers == [(ReplyStatus.OK, b"done")]
    assert client.knows(100)
    client.forget(100)
    assert not client.knows(100)


async def test_groups_with_commands_are_not_forgotten() -> None:
    bench = Bench()
    bench.network.is_connected = False
    bench.send(b"x=1")
    bench.client.set_members(UID + 1, (A, B, C))
    bench.client.refuse(UID + 1, "stuck", False)
    for uid in range(100, 100 + 3 * IDLE_MAX):
        bench.client.set_members(uid, (A, B, C))
        bench.client.leader_changed(uid, A)
    assert bench.client.pending_bytes(UID) == 3
    assert bench.client.refusal(UID + 1) == "stuck"
    bench.client.forget(UID)


async def test_what_was_stalled_and_forgotten_is_stalled_no_more() -> None:
    bench = Bench()
    bench.network.is_connected = False
    with pytest.raises(GroupUnavailable):
        await bench.client.request(UID, b"x=1", 0.01)
    # Its last retry is still due; then nothing is left of it but that it was stalled.
    for _ in range(5_000):
        if bench.client._groups[UID].is_idle:
            break
        await asyncio.sleep(0.001)
    assert UID in bench.client._stalled
    for uid in range(100, 100 + 3 * IDLE_MAX):
        bench.client.set_members(uid, (A, B, C))
        bench.client.leader_changed(uid, A)
    assert UID not in bench.client._groups
    assert bench.client.stalled(float("inf")) == []
    assert UID not in bench.client._stalled


async def test_groups_that_live_at_a_node_that_is_down_refuse_until_it_is_up() -> None:
    bench, alone, other = Bench(), UID + 1, UID + 2
    client = bench.client
    for uid in (alone, other):
        client.set_members(uid, (A,))
    answers: list[tuple[ReplyStatus, bytes]] = []
    client.send(alone, b"settle", lambda *answer: answers.append(answer))
    client.send(alone, b"publish", lambda *answer: answers.append(answer), line=bench)
    assert client.pending_bytes(alone) == len(b"settlepublish")
    # A group of three, and one that has a reason to wait, are not touched.
    client.home_down(A, lambda uid: "" if uid == other else f"{uid} is down")
    assert answers == [(ReplyStatus.REFUSED, b"10 is down")]
    assert client.pending_bytes(alone) == len(b"settle")
    assert [client.refusal(uid) for uid in (UID, alone, other)] == ["", "10 is down", ""]
    assert [client.refuses_lines(uid) for uid in (UID, alone, other)] == [False, True, False]
    client.home_up(A)
    client.home_up(A)
    assert client.refusal(alone) == ""
    assert not client.refuses_lines(alone)


async def test_a_group_that_gets_its_first_command_later_refuses_as_well() -> None:
    bench, alone = Bench(), UID + 1
    bench.client.home_down(A, lambda uid: "down")
    bench.client.set_members(alone, (A,))
    assert bench.client.refusal(alone) == "down"
    assert bench.client.refuses_lines(alone)
    assert bench.client.refusal(UID) == ""
    with pytest.raises(GroupStuck, match="down"):
        await bench.client.request(alone, b"ask", 60)
    assert bench.client.refusal(alone) == "down"
    assert bench.client.refusal(UID + 7) == ""
