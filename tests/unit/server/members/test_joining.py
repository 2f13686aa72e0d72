"""A member that finds its cluster by asking: what it does with the answers."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from brokerd.cluster.config import HostConfig
from brokerd.cluster.peer import join_request
from brokerd.config import BrokerConfig
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.raft.messages import CATALOG_GROUP, Configuration, NodeId
from brokerd.rpc.v1 import peer_pb2
from brokerd.server.lifecycle import Lifecycle
from brokerd.server.members import cluster_file, joining
from brokerd.server.members.joining import Ask, Joining, Removed
from tests.unit.core.catalog_driver import StepMeta

NEW = NodeId("new")
Standing = peer_pb2.Description.Standing


class Groups:
    """The way to groups' leaders."""

    def __init__(self) -> None:
        self.members: dict[int, list[NodeId]] = {}

    def set_members(self, uid: int, members: Any) -> None:
        self.members[uid] = list(members)


class Refill:
    """Notes what is suspected."""

    def __init__(self) -> None:
        self.is_on = False
        self.joined_at = 0
        self.opened_here: list[tuple[int, int]] = []

    def begin(self, joined_at: int = 0) -> None:
        self.is_on = True
        self.joined_at = joined_at

    def opened(self, uid: int, member_count: int) -> None:
        self.opened_here.append((uid, member_count))


@dataclass
class Status:
    """Of the catalog's group."""

    members: Configuration = field(default_factory=lambda: Configuration(()))
    members_index: int = 0
    commit: int = 0
    last: int = 0


class Host:
    """The replicas here: no leader is known at first."""

    node = NEW
    incarnation = 1
    config = HostConfig()

    def __init__(self) -> None:
        self.peers: dict[NodeId, str] = {}
        self.voters: list[NodeId] | None = None
        self.status = Status()
        self.leader: NodeId | None = None
        self.heard: set[NodeId] = {NEW}

    async def set_peers(self, peers: dict[NodeId, str]) -> None:
        self.peers = dict(peers)

    def open_group(self, uid: int, voters: list[NodeId], _machine: object) -> None:
        assert uid == CATALOG_GROUP
        self.voters = voters

    def has_group(self, _uid: int) -> bool:
        return self.voters is not None

    def leader_of(self, _uid: int) -> NodeId | None:
        return self.leader

    def alive(self) -> set[NodeId]:
        return self.heard

    def status_of(self, _uid: int) -> Status:
        return self.status


class Catalog:
    """Of a member that knows nothing yet."""

    def __init__(self) -> None:
        self.machine = CatalogMachine()
        self.view = self.machine.state
        #: How often somebody wanted it to be current.
        self.caught_up = 0

    def knows(self, *members: str) -> None:
        """Apply what a cluster begins with."""
        first = [catalog_commands.bootstrap("uid", "of the test")]
        first += [catalog_commands.put_member(node, f"{node}:1") for node in members]
        self.machine.apply(StepMeta(1), catalog_commands.encode_batch(first))

    async def catch_up(self) -> None:
        self.caught_up += 1

    async def write(self, operation: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError(f"nobody needs {operation}")


class Member:
    """A member that starts."""

    def __init__(self, data_dir: Path, founders: str = "a=a:1,b=b:1") -> None:
        self.host = Host()
        self.config = BrokerConfig.model_validate(
            {
                "node": {"name": "new", "data_dir": str(data_dir)},
                "cluster": {"members": founders, "address": "new:1", "secret": "s"},
            }
        )
        self.lifecycle = Lifecycle()
        self.refill = Refill()
        self.catalog = Catalog()
        self.tasks: list[asyncio.Task[None]] = []

    def joining(self, ask: Ask) -> Joining:
        parts: Any = (self.config, self.host, Groups(), self.catalog, self.refill, self.lifecycle)
        return Joining(*parts, self.spawn, ask)

    def spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.append(task)
        return task

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class Cluster:
    """What the others answer, by whether the one that asks has data."""

    def __init__(self) -> None:
        self.answers: dict[bool, peer_pb2.Description] = {}
        #: What one of them alone answers.
        self.answers_of: dict[str, peer_pb2.Description] = {}
        self.questions: list[peer_pb2.Enquiry] = []

    async def ask(
        self,
        config: HostConfig,
        node: NodeId,
        incarnation: int,
        peer: NodeId,
        address: str,
        enquiry: peer_pb2.Enquiry,
    ) -> peer_pb2.Description:
        self.questions.append(enquiry)
        answer = self.answers_of.get(peer) or self.answers.get(enquiry.has_data)
        if answer is None:
            raise join_request.NoAnswer("nobody listens")
        return answer


def described(standing: Standing.ValueType) -> peer_pb2.Description:
    members = {"a": "a:1", "b": "b:1", "new": "new:1"}
    return peer_pb2.Description(
        standing=standing, cluster_uid="uid", revision=7, members=members, voters=["a", "b"]
    )


async def test_a_member_without_data_joins_and_is_doubted(tmp_path: Path) -> None:
    """G8: the disk is new, the cluster is not; a crash makes it no trusted one."""
    member, cluster = Member(tmp_path), Cluster()
    cluster.answers[False] = described(Standing.MEMBER)
    finding = member.joining(cluster.ask)
    await finding.settle()
    assert member.refill.is_on
    assert member.refill.opened_here == [(CATALOG_GROUP, 0)]
    assert member.host.voters == []
    assert cluster_file.load(tmp_path).is_refilling
    await member.end()


async def test_a_member_that_is_removed_while_it_joins_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its catalog has no leader any more, and nobody else would tell it."""
    monkeypatch.setattr(joining, "LEADERLESS_S", 0.01)
    member, cluster = Member(tmp_path), Cluster()
    cluster.answers[False] = described(Standing.MEMBER)
    finding = member.joining(cluster.ask)
    await finding.settle()
    cluster.answers[True] = described(Standing.REMOVED)
    async with asyncio.timeout(10):
        await member.lifecycle.stopping.wait()
    assert isinstance(member.lifecycle.removal, Removed)
    assert "was removed from the cluster" in str(member.lifecycle.removal)
    await member.end()


async def test_a_founder_that_the_others_went_on_without_hears_that_it_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it had heard anything of what it had founded with them (seed 17004758)."""
    monkeypatch.setattr(joining, "LEADERLESS_S", 0.01)
    member, cluster = Member(tmp_path, "a=a:1,b=b:1,new=new:1"), Cluster()
    cluster.answers[False] = peer_pb2.Description(standing=Standing.UNFOUNDED)
    await member.joining(cluster.ask).settle()
    cluster.answers[True] = described(Standing.REMOVED)
    async with asyncio.timeout(10):
        await member.lifecycle.stopping.wait()
    assert isinstance(member.lifecycle.removal, Removed)
    await member.end()


async def test_a_member_that_joins_never_asks_again_as_one_without_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has no data and asks is made a member: a removed one would be one again."""
    monkeypatch.setattr(joining, "LEADERLESS_S", 0.01)
    member, cluster = Member(tmp_path), Cluster()
    cluster.answers[False] = cluster.answers[True] = described(Standing.MEMBER)
    finding = member.joining(cluster.ask)
    await finding.settle()
    before = len(cluster.questions)
    async with asyncio.timeout(10):
        while len(cluster.questions) < before + 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert all(question.has_data for question in cluster.questions[before:])
    await member.end()


async def test_a_catalog_that_is_being_read_makes_nobody_forgotten(tmp_path: Path) -> None:
    """It may not know its own leader yet, without whom it is never read to its end: a new disk of
    an old member hung (cluster seed 21000613).
    """
    member, cluster = Member(tmp_path), Cluster()
    cluster.answers[False] = described(Standing.MEMBER)
    cluster.answers[False].members["leader"] = "leader:1"
    cluster.answers[False].revision = 1
    finding = member.joining(cluster.ask)
    await finding.settle()
    member.catalog.knows("a", "b", "new")
    finding.dial_members()
    await asyncio.sleep(0)
    assert "leader" in member.host.peers
    assert "leader" in cluster_file.load(tmp_path).members
    member.lifecycle.has_started = True
    finding.dial_members()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sorted(member.host.peers) == ["a", "b", "new"]
    assert sorted(cluster_file.load(tmp_path).members) == ["a", "b", "new"]
    await member.end()


async def test_a_member_that_does_not_hear_its_leader_asks_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a vote it keeps to that leader, and learned no address for ever."""
    monkeypatch.setattr(joining, "LEADERLESS_S", 0.01)
    member, cluster = Member(tmp_path), Cluster()
    cluster.answers[False] = cluster.answers[True] = described(Standing.MEMBER)
    member.host.leader = NodeId("leader")
    member.host.heard.add(NodeId("leader"))
    finding = member.joining(cluster.ask)
    await finding.settle()
    before = len(cluster.questions)
    await asyncio.sleep(0.1)
    assert len(cluster.questions) == before
    member.host.heard.discard(NodeId("leader"))
    cluster.answers[True] = described(Standing.MEMBER)
    cluster.answers[True].members["leader"] = "leader:2"
    cluster.answers[True].revision = 8
    async with asyncio.timeout(10):
        while member.host.peers.get(NodeId("leader")) != "leader:2":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await member.end()


async def test_whom_the_catalog_names_without_a_word_is_dialled_when_no_leader_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others said was no news, and the leader was never dialled (seed 23000699)."""
    monkeypatch.setattr(joining, "LEADERLESS_S", 0.01)
    member, cluster = Member(tmp_path), Cluster()
    cluster.answers[True] = described(Standing.MEMBER)
    cluster.answers[True].revision = 1
    finding = member.joining(cluster.ask)
    await finding.open_if_data(has_data=True)
    member.catalog.knows("a", "b", "late", "new")
    await finding.settle()
    async with asyncio.timeout(10):
        while "late" not in member.host.peers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await member.end()


async def test_what_was_said_before_the_catalog_went_on_is_passed_over(tmp_path: Path) -> None:
    """An answer waits for the slowest one: members that came meanwhile were given up for good (seed
    23000219 of the cluster world).
    """
    member, cluster = Member(tmp_path), Cluster()
    cluster.answers[True] = described(Standing.MEMBER)
    cluster.answers[True].revision = 1
    came = asyncio.Event()

    async def ask(*arguments: Any) -> peer_pb2.Description:
        answer = await cluster.ask(*arguments)
        await came.wait()
        return answer

    finding = member.joining(ask)
    await finding.open_if_data(has_data=True)
    await finding.settle()
    await asyncio.sleep(0.01)
    assert cluster.questions
    member.catalog.knows("a", "b", "late", "new")
    finding.dial_members()
    member.lifecycle.has_started = True
    came.set()
    await asyncio.sleep(0.05)
    assert sorted(member.host.peers) == ["a", "b", "late", "new"]
    await member.end()


async def test_a_disk_is_as_old_as_the_earliest_catalog_that_was_current_after_it(
    tmp_path: Path,
) -> None:
    """G8 (ADR 36): and it stays so over a crash, until the member is refilled."""
    member, cluster = Member(tmp_path), Cluster()
    cluster.answers_of = {"a": described(Standing.MEMBER), "b": described(Standing.UNKNOWN)}
    cluster.answers_of["b"].revision = 2
    finding = member.joining(cluster.ask)
    await finding.settle()
    assert member.refill.joined_at == cluster_file.load(tmp_path).joined_at == 7
    cluster.answers_of["b"] = described(Standing.MEMBER)
    cluster.answers_of["b"].revision = 5
    other = Member(tmp_path / "other")
    (tmp_path / "other").mkdir()
    await other.joining(cluster.ask).settle()
    assert other.refill.joined_at == 5
    again = Member(tmp_path / "other")
    await again.joining(cluster.ask).open_if_data(has_data=True)
    assert again.refill.joined_at == 5
    for each in (member, other, again):
        await each.end()


async def test_a_founder_whose_log_has_lost_the_founders_knows_them(tmp_path: Path) -> None:
    """They stand in no entry that a leader could send: without them it would never stand for
    election (seed 17001082).
    """
    listed = "a=a:1,b=b:1,new=new:1"
    member, cluster = Member(tmp_path, listed), Cluster()
    for peer in ("a", "b"):
        cluster.answers_of[peer] = peer_pb2.Description(standing=Standing.UNFOUNDED)
    await member.joining(cluster.ask).settle()
    founders = [NodeId("a"), NodeId("b"), NEW]
    assert member.host.voters == founders
    again = Member(tmp_path, listed)
    await again.joining(cluster.ask).open_if_data(has_data=True)
    assert again.host.voters == founders
    assert again.refill.opened_here == [(CATALOG_GROUP, 3)]
    for each in (member, again):
        await each.end()


async def test_one_that_came_back_with_an_empty_disk_knows_them_too(tmp_path: Path) -> None:
    member, cluster = Member(tmp_path), Cluster()
    cluster.answers[False] = described(Standing.MEMBER)
    cluster.answers[False].voters.append("new")
    await member.joining(cluster.ask).settle()
    again = Member(tmp_path)
    await again.joining(cluster.ask).open_if_data(has_data=True)
    assert again.host.voters == member.host.voters == [NodeId("a"), NodeId("b"), NEW]
    for each in (member, again):
        await each.end()


async def test_voters_are_remembered_once_their_change_is_settled(tmp_path: Path) -> None:
    """One that is not committed may be taken back; of a group in which this member only learns, it
    hears by the log.
    """
    member, cluster = Member(tmp_path), Cluster()
    finding = member.joining(cluster.ask)
    await finding.open_if_data(has_data=True)
    member.lifecycle.has_started = True
    member.catalog.knows("a", "b", "new")

    def remembered(index: int, commit: int, *voters: str) -> list[str]:
        found = Configuration(tuple(NodeId(name) for name in voters))
        member.host.status = Status(found, index, commit)
        finding.remember()
        return cluster_file.load(tmp_path).voters

    assert remembered(0, 5, "a", "b") == []
    assert remembered(7, 5, "a", "b", "new") == []
    assert remembered(7, 7, "a", "b", "new") == ["a", "b", "new"]
    assert remembered(9, 9, "a", "b") == ["a", "b", "new"]
    await member.end()


async def test_who_is_asked_by_a_member_catches_up_and_changes_nothing(tmp_path: Path) -> None:
    """A change, even one of nothing, is answered when all members have it: with thirty each start
    had each of 29 ask 28 others.
    """
    member, cluster = Member(tmp_path), Cluster()
    finding = member.joining(cluster.ask)
    await finding.open_if_data(has_data=True)
    member.catalog.knows("a", "new")
    answer = await finding.describe(NodeId("a"), peer_pb2.Enquiry(address="a:1", has_data=True))
    assert answer.standing == Standing.MEMBER
    assert member.catalog.caught_up == 1
    await member.end()
