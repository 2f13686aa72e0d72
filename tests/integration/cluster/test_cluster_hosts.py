"""Real hosts on loopback, one process: commits, failover, restart, snapshots, requests, faults."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from brokerd.cluster.config import HostConfig
from brokerd.cluster.errors import GroupGone, GroupUnavailable
from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.raft.messages import Configuration, Entry, NodeId
from brokerd.storage.disk import Disk
from brokerd.storage.errors import DamagedEntry
from brokerd.storage.group_log import GroupLog
from tests.integration.cluster_toy import Member, leader_of, toy_config, until
from tests.ports import free_ports

NAMES = ("a", "b", "c")
UID = 77
#: A loaded machine may hold an election between any two commands.
ANSWER_S = 60.0

pytestmark = pytest.mark.timeout(240)


class Cluster:
    """Members in one process; `start` gives a stopped one its data and its port again."""

    def __init__(self, directory: Path, config: HostConfig) -> None:
        self.directory = directory
        self.config = config
        self.members: dict[str, Member] = {}
        self.addresses: dict[NodeId, str] = {}
        self.incarnation = 0

    async def start(self, name: str, disk: Disk | None = None) -> Member:
        self.incarnation += 1
        member = Member(name, self.directory / name, self.config, self.incarnation, disk)
        self.members[name] = member
        known = self.addresses.get(member.node)
        await member.host.start(self.addresses, known or f"127.0.0.1:{free_ports(1)[0]}")
        if known is None:
            self.addresses[member.node] = f"127.0.0.1:{member.host.port}"
            for other in self.members.values():
                await other.host.set_peers(self.addresses)
        return member

    async def stop(self, name: str) -> None:
        await self.members.pop(name).close()

    def all(self) -> list[Member]:
        return list(self.members.values())

    async def leader(self, uid: int = UID) -> Member:
        await until(lambda: leader_of(self.all(), uid) is not None)
        found = leader_of(self.all(), uid)
        assert found is not None
        return found


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three members with one group of all of them."""
    found = Cluster(tmp_path, toy_config())
    for name in NAMES:
        await found.start(name)
    for member in found.all():
        member.open_group(UID, NAMES)
    yield found
    for name in list(found.members):
        await found.stop(name)


async def test_command_is_applied_on_every_member_and_realised_by_the_leader_only(
    cluster: Cluster,
) -> None:
    leader = await cluster.leader()
    assert await leader.client.request(UID, b"x=1", ANSWER_S) == b"1"
    await until(lambda: all(m.machines[UID].values.get("x") == "1" for m in cluster.all()))
    assert (UID, "x") in leader.events.effects
    assert all((UID, "x") not in m.events.effects for m in cluster.all() if m is not leader)


async def test_request_through_a_member_that_does_not_lead_reaches_the_leader(
    cluster: Cluster,
) -> None:
    leader = await cluster.leader()
    for other in cluster.all():
        if other is not leader:
            assert int(await other.client.request(UID, b"x=1", ANSWER_S)) > 0
    assert leader.machines[UID].count == 2


async def test_request_from_a_node_outside_the_group_finds_the_leader(cluster: Cluster) -> None:
    outside = await cluster.start("d")
    outside.client.set_members(UID, [NodeId(name) for name in NAMES])
    assert await outside.client.request(UID, b"x=1", ANSWER_S) == b"1"


async def test_commands_of_one_sender_keep_their_order(cluster: Cluster) -> None:
    leader = await cluster.leader()
    sender = next(m for m in cluster.all() if m is not leader)
    replies: list[int] = []
    for number in range(500):
        sender.client.send(
            UID, b"k%d=%d" % (number, number), lambda status, reply: replies.append(int(reply))
        )
    assert sender.client.pending_bytes(UID) > 0
    await until(lambda: len(replies) == 500)
    assert replies == sorted(replies)
    assert list(leader.machines[UID].values) == [f"k{number}" for number in range(500)]
    assert sender.client.pending_bytes(UID) == 0


async def test_group_goes_on_after_its_leader_stopped(cluster: Cluster) -> None:
    leader = await cluster.leader()
    await leader.client.request(UID, b"x=1", ANSWER_S)
    await cluster.stop(leader.node)
    survivor = cluster.all()[0]
    started = time.monotonic()
    await survivor.client.request(UID, b"y=2", ANSWER_S)
    print(f"answered {time.monotonic() - started:.2f} s after the leader stopped")
    taken_over = await cluster.leader()
    assert taken_over.machines[UID].values == {"x": "1", "y": "2"}


async def test_stopped_member_is_suspected_and_heard_again_with_its_new_incarnation(
    cluster: Cluster,
) -> None:
    await cluster.leader()
    observer = cluster.members["a"]
    await until(lambda: NodeId("c") in observer.host.alive())
    await cluster.stop("c")
    await until(lambda: NodeId("c") not in observer.host.alive())
    restarted = await cluster.start("c")
    restarted.open_group(UID, NAMES)
    await until(lambda: (NodeId("c"), cluster.incarnation, True) in observer.events.nodes)
    assert NodeId("c") in observer.host.alive()


async def test_restarted_member_recovers_from_disk_and_catches_up(cluster: Cluster) -> None:
    leader = await cluster.leader()
    follower = next(m for m in cluster.all() if m is not leader)
    await leader.client.request(UID, b"x=1", ANSWER_S)
    await until(lambda: follower.machines[UID].count == 1)
    await cluster.stop(follower.node)
    await leader.client.request(UID, b"y=2", ANSWER_S)
    again = await cluster.start(follower.node)
    machine = again.open_group(UID, NAMES)
    await until(lambda: machine.values == {"x": "1", "y": "2"})


async def test_whole_cluster_restarts_from_disk(cluster: Cluster) -> None:
    leader = await cluster.leader()
    for number in range(20):
        await leader.client.request(UID, b"k%d=v" % number, ANSWER_S)
    for name in NAMES:
        await cluster.stop(name)
    for name in NAMES:
        (await cluster.start(name)).open_group(UID, NAMES)
    assert await cluster.members["a"].client.request(UID, b"last=1", ANSWER_S) == b"21"


async def test_follower_far_behind_is_brought_up_by_a_snapshot_in_chunks(tmp_path: Path) -> None:
    config = toy_config(snapshot_entries=20)
    config.transport.chunk_bytes = 1000
    cluster = Cluster(tmp_path, config)
    for name in NAMES:
        (await cluster.start(name)).open_group(UID, NAMES)
    leader = await cluster.leader()
    follower = next(m for m in cluster.all() if m is not leader)
    await cluster.stop(follower.node)
    for number in range(100):
        await leader.client.request(UID, b"k%d=%s" % (number, b"v" * 500), ANSWER_S)
    await until(lambda: leader.host.status_of(UID).snapshot >= 80)
    again = await cluster.start(follower.node)
    machine = again.open_group(UID, NAMES)
    await until(lambda: machine.count == 100)
    assert machine.values == leader.machines[UID].values
    # Bodies that the state refers to came along (design/replication.md §2.8).
    first = machine.entries["k0"]
    assert again.host.entry_data(UID, first) == b"k0=" + b"v" * 500
    assert leader.host.entry_data(UID, first) == b"k0=" + b"v" * 500
    for name in NAMES:
        await cluster.stop(name)


async def test_leader_that_cannot_read_what_a_snapshot_refers_to_stops_and_another_serves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design/replication.md §1: the group goes on elsewhere, and the follower gets everything."""
    cluster = Cluster(tmp_path, toy_config(snapshot_entries=20))
    for name in NAMES:
        (await cluster.start(name)).open_group(UID, NAMES)
    leader = await cluster.leader()
    behind = next(m for m in cluster.all() if m is not leader)
    await cluster.stop(behind.node)
    for number in range(80):
        await leader.client.request(UID, b"k%d=%d" % (number, number), ANSWER_S)
    await until(lambda: leader.host.status_of(UID).snapshot >= 60)
    read = GroupLog.load_live

    def load_live(log: GroupLog, index: int, border: int) -> list[Entry]:
        if log is leader.wal.log(UID):
            raise DamagedEntry(UID, index, "nowhere")
        return read(log, index, border)

    monkeypatch.setattr(GroupLog, "load_live", load_live)
    behind = await cluster.start(behind.node)
    behind.open_group(UID, NAMES)
    await until(lambda: behind.machines[UID].count == 80)
    assert "cannot be read" in leader.host.status_of(UID).error
    assert leader.host.leader_of(UID) is None
    assert await leader.client.request(UID, b"k80=80", ANSWER_S) == b"81"
    for name in list(cluster.members):
        await cluster.stop(name)


async def test_lost_connection_is_dialled_again_and_requests_are_sent_again(
    cluster: Cluster,
) -> None:
    leader = await cluster.leader()
    other = next(m for m in cluster.all() if m is not leader)
    await other.client.request(UID, b"x=0", ANSWER_S)
    replies: list[bytes] = []
    for number in range(50):
        other.client.send(UID, b"k%d=1" % number, lambda status, reply: replies.append(reply))
        if number % 10 == 0:
            other.host.transport.break_off(leader.node)
            leader.host.transport.break_off(other.node)
            await asyncio.sleep(0)
    await until(lambda: len(replies) == 50)
    assert all(f"k{number}" in leader.machines[UID].values for number in range(50))


async def test_volatile_group_answers_without_touching_the_log(tmp_path: Path) -> None:
    # By itself: an election of another group would be on the same disk.
    cluster = Cluster(tmp_path, toy_config())
    member = await cluster.start("a")
    syncs = member.wal.stats.syncs
    member.open_group(500, ["a"], volatile=True)
    for number in range(10):
        await member.client.request(500, b"k=%d" % number, ANSWER_S)
    assert member.machines[500].values == {"k": "9"}
    assert member.host.entry_data(500, member.machines[500].entries["k"]) == b"k=9"
    assert member.wal.stats.syncs == syncs
    member.host.close_group(500, forget=True)
    assert not member.host.has_group(500)
    await cluster.stop("a")


async def test_what_waits_for_a_flush_is_called_once_all_its_groups_have_run(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    host = cluster.members["a"].host
    for uid in (UID + 1, UID + 2):
        cluster.members["a"].open_group(uid, ("a",), volatile=True)
    order: list[str] = []

    def break_down() -> None:
        raise RuntimeError("broken on purpose")

    def done(accepted: bool, reply: bytes, leader: NodeId | None) -> None:
        order.append(f"answered {reply.decode()}")
        host.call_after_flush(break_down)
        host.call_after_flush(lambda: order.append(f"after {reply.decode()}"))

    await until(lambda: all(host.leader_of(UID + n) == "a" for n in (1, 2)))
    for uid in (UID + 1, UID + 2):
        host.propose(uid, b"x=1", done)
    await until(lambda: len(order) >= 4)
    assert order == ["answered 1", "answered 1", "after 1", "after 1"]
    assert caplog.text.count("a call around a flush failed") == 2
    host.call_after_flush(lambda: order.append("soon"))
    assert order[-1] != "soon"
    await until(lambda: order[-1] == "soon")


async def test_who_asks_in_a_flush_for_the_next_one_need_not_wait_for_the_tick(
    tmp_path: Path,
) -> None:
    """ADR 64: a turn goes on so."""
    cluster = Cluster(tmp_path, toy_config(tick_ms=60_000))
    host, seen = (await cluster.start("a")).host, list[str]()
    host.before_flush(lambda: host.before_flush(lambda: seen.append("next")))
    for _ in range(6):
        await asyncio.sleep(0)
    assert seen == ["next"]
    await cluster.stop("a")


async def test_durable_group_of_one_leads_itself_at_once(tmp_path: Path) -> None:
    # An election by time-out would take minutes.
    cluster = Cluster(tmp_path, toy_config(election_ticks_min=10_000, election_ticks_max=20_000))
    member = await cluster.start("a")
    member.open_group(501, ["a"])
    assert await member.client.request(501, b"x=1", ANSWER_S) == b"1"
    await cluster.stop("a")


async def test_forgotten_group_answers_gone_and_leaves_the_log(cluster: Cluster) -> None:
    member = cluster.members["a"]
    member.open_group(502, ["a", "nobody", "nowhere"])
    answers: list[ReplyStatus] = []
    member.client.send(502, b"x=1", lambda status, reply: answers.append(status))
    member.host.close_group(502, forget=True)
    member.client.forget(502)
    await until(lambda: answers == [ReplyStatus.GONE])
    with pytest.raises(GroupGone):
        await member.client.request(502, b"x=1", 1)
    await until(lambda: 502 not in member.wal.groups())


async def test_request_without_a_majority_times_out_and_is_withdrawn(cluster: Cluster) -> None:
    member = cluster.members["a"]
    member.open_group(503, ["a", "nobody", "nowhere"])
    with pytest.raises(GroupUnavailable):
        await member.client.request(503, b"x=1", 0.3)
    assert member.client.pending_bytes(503) == 0


async def test_leadership_moves_where_it_is_told_to(cluster: Cluster) -> None:
    leader = await cluster.leader()
    await leader.client.request(UID, b"x=1", ANSWER_S)
    heir = next(m for m in cluster.all() if m is not leader)
    leader.host.transfer_leadership(UID, heir.node)
    await until(lambda: heir.host.status_of(UID).is_leader)
    await until(lambda: (UID, "leader") in heir.events.effects)
    await until(lambda: leader.host.status_of(UID).leader == heir.node)


async def test_member_is_added_and_caught_up(cluster: Cluster) -> None:
    leader = await cluster.leader()
    await leader.client.request(UID, b"x=1", ANSWER_S)
    new = await cluster.start("d")
    machine = new.open_group(UID, [])
    nodes = tuple(NodeId(name) for name in NAMES)
    for configuration in (
        Configuration(nodes, (NodeId("d"),)),
        Configuration((*nodes, NodeId("d"))),
    ):
        answers: list[tuple[bool, bytes]] = []
        leader.host.change_members(
            UID, configuration, lambda ok, reply, _, found=answers: found.append((ok, reply))
        )
        await until(lambda: bool(answers))  # noqa: B023
        assert answers == [(True, b"")]
        await until(lambda: machine.values == {"x": "1"})
    assert leader.host.status_of(UID).members.voters == ("a", "b", "c", "d")
    others = {*NAMES, "d"} - {leader.node}
    await until(lambda: leader.host.status_of(UID).lag == dict.fromkeys(others, 0))
    status = leader.host.status_of(UID)
    assert status.may_change
    assert 0 < status.members_index <= status.commit
    # It votes, now that it has caught up.
    await until(lambda: not new.host.status_of(UID).is_damaged)


async def test_member_that_comes_again_begins_another_log(cluster: Cluster) -> None:
    """A log that was removed is never written again (design/replication.md §2.4)."""
    leader = await cluster.leader()
    await leader.client.request(UID, b"x=1", ANSWER_S)
    nodes = tuple(NodeId(name) for name in NAMES)
    follower = next(m for m in cluster.all() if m is not leader)
    rest = tuple(node for node in nodes if node != follower.node)

    async def change(voters: tuple[NodeId, ...], learners: tuple[NodeId, ...] = ()) -> None:
        answers: list[bool] = []
        configuration = Configuration(voters, learners)
        leader.host.change_members(UID, configuration, lambda ok, _, __: answers.append(ok))
        await until(lambda: bool(answers))
        assert answers == [True]

    await change(rest)
    follower.host.close_group(UID, forget=True)
    await leader.client.request(UID, b"x=2", ANSWER_S)
    machine = follower.open_group(UID, [], log_uid=UID + 1)
    assert follower.host.status_of(UID).is_damaged
    await change(rest, (follower.node,))
    await change(nodes)
    await until(lambda: machine.values == {"x": "2"})
    await until(lambda: not follower.host.status_of(UID).is_damaged)
    name = str(follower.node)
    await cluster.stop(name)
    again = await cluster.start(name)
    again.host.forget_logs({UID + 1})
    machine = again.open_group(UID, [], log_uid=UID + 1)
    await until(lambda: machine.values == {"x": "2"})
    assert not again.host.status_of(UID).is_damaged
    assert again.host.status_of(UID).members.voters == nodes


async def test_machine_deadline_ticks_a_quiet_group(cluster: Cluster) -> None:
    leader = await cluster.leader()
    at_ms = int(time.time() * 1000) + 400
    await leader.client.request(UID, b"deadline=%d" % at_ms, ANSWER_S)
    await until(lambda: "tick" in leader.machines[UID].values)
    assert int(time.time() * 1000) >= at_ms


async def test_deliveries_reach_other_nodes_and_this_one(cluster: Cluster) -> None:
    a, b = cluster.members["a"], cluster.members["b"]
    await until(lambda: a.host.transport.is_connected(b.node))
    a.host.send_delivery(b.node, UID, 3, 1, b"payload")
    a.host.send_delivery(a.node, UID, 3, 1, b"own")
    assert not a.events.deliveries, "never from within the call"
    await until(lambda: b.events.deliveries == [(a.node, UID, 3, 1, b"payload")])
    await until(lambda: a.events.deliveries == [(a.node, UID, 3, 1, b"own")])


async def test_heartbeats_carry_alarms(cluster: Cluster) -> None:
    a, b = cluster.members["a"], cluster.members["b"]
    await until(lambda: a.host.transport.is_connected(b.node))
    a.host.own.set_liveness(["memory"], 10, 20, 30)
    await until(lambda: (a.node, ("memory",), 10, 20, 30) in b.events.liveness)
    assert not b.host.is_stalled(a.node)
    a.host.own.set_stalled(True)
    await until(lambda: b.host.is_stalled(a.node) and a.host.is_stalled(a.node))
    a.host.own.set_stalled(False)
    await until(lambda: not b.host.is_stalled(a.node))


class BrokenDisk(Disk):
    """A disk whose syncs fail once told so."""

    is_broken = False

    def data_sync(self, descriptor: int) -> None:
        if self.is_broken:
            raise OSError(5, os.strerror(5))
        super().data_sync(descriptor)


async def test_failed_sync_ends_the_member_and_confirms_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, toy_config())
    disk = BrokenDisk()
    member = await cluster.start("a", disk)
    member.open_group(UID, ["a"])
    await member.client.request(UID, b"x=1", ANSWER_S)
    disk.is_broken = True
    answers: list[ReplyStatus] = []
    member.client.send(UID, b"y=2", lambda status, reply: answers.append(status))
    await until(lambda: bool(member.events.failures))
    assert member.machines[UID].values == {"x": "1"}
    assert answers == []
    await cluster.stop("a")


async def test_first_election_of_a_new_group_does_not_wait_for_the_slowest_member(
    tmp_path: Path,
) -> None:
    """Votes that are asked for before a member knows the group are kept for it (R-QQ-5)."""
    # An election by time-out would take minutes.
    config = toy_config(election_ticks_min=10_000, election_ticks_max=20_000)
    # What waits for a member goes with its stream: silence must not break one here.
    config.suspicion_ms = 600_000
    cluster = Cluster(tmp_path, config)
    for name in NAMES:
        await cluster.start(name)
    a, b, c = cluster.all()
    # That they hear each other is not enough: each sends on the stream that it dialled itself.
    await until(lambda: all(a.host.transport.is_connected(other.node) for other in (b, c)))
    a.open_group(UID, NAMES)
    a.host.transfer_leadership(UID, a.node)
    await asyncio.sleep(0.1)
    b.open_group(UID, NAMES)
    c.open_group(UID, NAMES)
    await until(lambda: a.host.status_of(UID).is_leader)
    for name in NAMES:
        await cluster.stop(name)


async def test_member_with_a_damaged_log_is_refilled_by_its_leader_before_it_counts(
    cluster: Cluster,
) -> None:
    """G8: the member gives up its vote until it holds again what was committed."""
    leader = await cluster.leader()
    for number in range(30):
        await leader.client.request(UID, b"k%d=%s" % (number, b"v" * 200), ANSWER_S)
    follower = next(m for m in cluster.all() if m is not leader)
    await until(lambda: follower.machines[UID].count == 30)
    await cluster.stop(follower.node)
    segment = max((cluster.directory / follower.node).glob("*.log"), key=os.path.getsize)
    image = bytearray(segment.read_bytes())
    at = image.rfind(b"k20=vvv")
    image[at + 10] ^= 0xFF
    segment.write_bytes(image)
    again = await cluster.start(follower.node)
    machine = again.open_group(UID, NAMES)
    assert again.host.status_of(UID).is_damaged
    again.host.transfer_leadership(UID, again.node)
    await leader.client.request(UID, b"after=1", ANSWER_S)
    await until(lambda: machine.values == leader.machines[UID].values)
    await leader.client.request(UID, b"more=1", ANSWER_S)
    await until(lambda: not again.host.status_of(UID).is_damaged)


@pytest.mark.parametrize("is_installed", [False, True])
async def test_what_an_older_snapshot_refers_to_is_given_back_before_there_is_another(
    tmp_path: Path, is_installed: bool
) -> None:
    """After a restart, or at a member that got its leader's (design/replication.md §2.8)."""
    cluster = Cluster(tmp_path, toy_config(snapshot_entries=20, collect_interval_ms=50))
    names = NAMES if is_installed else NAMES[:1]
    for name in names:
        (await cluster.start(name)).open_group(UID, names)
    leader = await cluster.leader()
    looked_at = next(m for m in cluster.all() if m is not leader) if is_installed else leader
    if is_installed:
        await cluster.stop(looked_at.node)
    for number in range(30):
        await leader.client.request(UID, b"k%d=1" % number, 30)
    await until(lambda: leader.host.status_of(UID).snapshot >= 20, 30)
    if not is_installed:
        await cluster.stop(leader.node)
    member = await cluster.start(looked_at.node)
    machine = member.open_group(UID, names)
    await until(lambda: machine.count == 30, 30)
    log = member.wal.log(UID)
    first, snapshot = machine.entries["k0"], log.snapshot_index
    assert snapshot >= 20
    assert log.entry_data(first) is not None
    await (await cluster.leader()).client.request(UID, b"k0=2", 30)
    await until(lambda: log.entry_data(first) is None, 30)
    assert log.snapshot_index == snapshot
    for name in names:
        await cluster.stop(name)


async def test_last_list_of_peers_wins(cluster: Cluster) -> None:
    member = cluster.members["a"]
    await until(lambda: len(member.host.alive()) == 3)
    without_b = {node: at for node, at in cluster.addresses.items() if node != "b"}
    lists = [without_b, cluster.addresses, {}, without_b]
    await asyncio.gather(*(member.host.set_peers(peers) for peers in lists))
    assert member.host.is_peer(NodeId("c"))
    assert not member.host.is_peer(NodeId("b"))
    await until(lambda: member.host.alive() == {"a", "c"})
    await until(lambda: (NodeId("b"), 2, False) in member.events.nodes)
