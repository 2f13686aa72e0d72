"""What members tell each other of their logs, and what one does that has forgotten (G8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from brokerd.cluster.groups import replica_health
from brokerd.cluster.groups.liveness import Liveness
from brokerd.cluster.groups.peer_logs import QUIET_LOOKS, PeerLogs
from brokerd.cluster.groups.refilling import Refilling
from brokerd.cluster.groups.replica_health import ReplicaHealth
from brokerd.cluster.groups.write_queue import RefillStep, Step, WriteQueue
from brokerd.raft.inputs import TransferLeadership
from brokerd.raft.messages import CATALOG_GROUP, Configuration, NodeId
from brokerd.rpc.v1 import peer_pb2
from brokerd.storage.wal import WriteAheadLog
from tests.unit.storage.builders import THREE, entry, open_log, put

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
UID = 7


@dataclass
class FakeReplica:
    commit_index: int = 1
    term: int = 1
    configuration: Configuration = THREE


@dataclass(eq=False)
class FakeDriver:
    log: Any
    replica: FakeReplica = field(default_factory=FakeReplica)
    uid: int = UID
    log_uid: int = UID
    is_leader: bool = False
    is_volatile: bool = False
    is_closed: bool = False
    health: ReplicaHealth = field(default_factory=ReplicaHealth)
    inputs: list[Any] = field(default_factory=list)
    refilling: Any = None

    def learn(self, event: replica_health.Event) -> replica_health.Action | None:
        action = self.health.handle(event)
        if not self.health.may_vote:
            self.refilling.damaged(self)
        return action


class FakeHost:
    """What PeerLogs and Refilling see of a host."""

    def __init__(self, wal: WriteAheadLog) -> None:
        self.node = A
        self.all = [FakeDriver(wal.log(UID))]
        self.catalog: FakeDriver | None = None
        #: The members instead of which others were made to lead.
        self.renewed: list[NodeId] = []

    def renew(self, driver: Any, damaged: NodeId) -> None:
        self.renewed.append(damaged)

    def drivers(self) -> list[Any]:
        return self.all

    def driver_of(self, uid: int) -> Any:
        return self.catalog if uid == CATALOG_GROUP else None

    def schedule_flush(self) -> None:
        """Nothing is sent here."""


class FakeQueue:
    """Does what it is given when the test says so."""

    def __init__(self, wal: WriteAheadLog) -> None:
        self.wal = wal
        self.steps: list[Step] = []

    def add(self, step: Step) -> None:
        self.steps.append(step)

    def run(self) -> list[str]:
        steps, self.steps = self.steps, []
        for step in steps:
            step.run(self.wal)
            step.finish(self.wal)
        return [type(step).__name__ for step in steps]


class Rig:
    def __init__(self, directory: Path, *others: NodeId) -> None:
        self.directory = directory
        self.others = others or (B, C)
        self.start()

    def start(self) -> None:
        self.wal = open_log(self.directory)
        self.host = FakeHost(self.wal)
        self.queue = FakeQueue(self.wal)
        queue = cast(WriteQueue, self.queue)
        refilling = self.refilling = Refilling(self.host, self.wal, queue, self.host.renew)
        self.liveness = Liveness(1_500, 500)
        self.liveness.set_nodes(self.others, 0)
        self.peer_logs = PeerLogs(self.host, self.wal, queue, self.liveness, refilling)
        self.driver = self.host.all[0]
        self.driver.refilling = refilling

    def fake(self, uid: int) -> FakeDriver:
        return FakeDriver(self.wal.log(uid), uid=uid, log_uid=uid, refilling=self.refilling)

    def restart(self) -> None:
        self.wal.close()
        self.start()

    def write(self, index: int) -> None:
        put(self.wal, UID, entry(index))

    def says(self, to: NodeId = B) -> peer_pb2.Position:
        return peer_pb2.PeerFrame.FromString(self.peer_logs.said_to(to)).position


def exchange(one: Rig, other: Rig, one_name: NodeId, other_name: NodeId) -> None:
    """Both tell each other; what is new is on disk afterwards."""
    to_other, to_one = one.says(other_name), other.says(one_name)
    other.peer_logs.heard(one_name, to_other)
    one.peer_logs.heard(other_name, to_one)
    for rig in (one, other):
        rig.peer_logs.tick(10_000)
        rig.queue.run()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Rig, Rig]:
    return Rig(tmp_path / "a"), Rig(tmp_path / "b")


def test_a_member_that_is_put_back_loses_its_vote_and_admits_it(pair: tuple[Rig, Rig]) -> None:
    """The memory is the other's; what was forgotten is noted before it forgets that too."""
    mine, other = pair
    mine.write(1)
    exchange(mine, other, A, B)
    before = {path: path.read_bytes() for path in mine.directory.iterdir()}
    mine.write(2)
    exchange(mine, other, A, B)
    remembered = other.says(A).remembered
    mine.wal.close()
    for path in list(mine.directory.iterdir()):
        if path not in before:
            path.unlink()
    for path, image in before.items():
        path.write_bytes(image)
    mine.start()
    assert mine.driver.health.may_vote
    mine.peer_logs.heard(B, other.says(A))
    assert not mine.driver.health.may_vote
    assert mine.queue.run() == ["SuspicionStep"]
    # As long as that is not said, the other one remembers.
    other.peer_logs.heard(A, peer_pb2.Position(log=remembered.log, runs=mine.says().runs))
    assert other.says(A).remembered == remembered
    mine.restart()
    assert mine.wal.log(UID).damaged
    exchange(mine, other, A, B)
    assert other.says(A).remembered != remembered
    mine.wal.mark_refilled(UID)
    mine.wal.refilled(UID)
    mine.driver.learn(replica_health.RefillRecorded())
    exchange(mine, other, A, B)
    assert mine.driver.health.may_vote, "it is not held against it twice"
    for _ in range(QUIET_LOOKS):
        assert mine.wal.regressions.places()
        mine.peer_logs.look()
        mine.queue.run()
    assert not mine.wal.regressions.places(), "new groups are not suspected for ever"
    mine.peer_logs.look()


def test_what_is_not_noted_yet_is_not_admitted(pair: tuple[Rig, Rig]) -> None:
    """G8: the other one forgets what is admitted, and a crash before the note forgets it here; a
    member that was put back had its vote (seed 17000112 of the cluster world).
    """
    mine, other = pair
    mine.write(1)
    exchange(mine, other, A, B)
    promise = peer_pb2.LogPromise(log=mine.says().log, run=1, mark=12345, batch=10**6)
    mine.peer_logs.heard(B, peer_pb2.Position(remembered=promise))
    assert not mine.driver.health.may_vote
    assert not mine.says().admitted
    assert mine.queue.run() == ["SuspicionStep"]
    assert [(run.mark, run.batch) for run in mine.says().admitted] == [(12345, 10**6)]
    mine.restart()
    assert [(run.mark, run.batch) for run in mine.says().admitted] == [(12345, 10**6)]


def test_a_disk_that_was_replaced_comes_back(pair: tuple[Rig, Rig], tmp_path: Path) -> None:
    """G8: a new disk has taken the place of one, and then the first one is put back: it knows
    nothing of what the new one has promised (seed 17000868 of the cluster world).
    """
    mine, other = pair
    mine.write(1)
    exchange(mine, other, A, B)
    mine.wal.close()
    mine.directory.rename(tmp_path / "first disk")
    mine.start()
    for _ in range(2):
        exchange(mine, other, A, B)
    assert mine.driver.health.may_vote, "whoever is new is not held to what it cannot know"
    assert other.says(A).remembered.log == mine.says().log
    mine.restart()
    exchange(mine, other, A, B)
    assert mine.driver.health.may_vote
    mine.wal.close()
    mine.directory.rename(tmp_path / "second disk")
    (tmp_path / "first disk").rename(mine.directory)
    mine.start()
    assert mine.driver.health.may_vote
    exchange(mine, other, A, B)
    assert not mine.driver.health.may_vote


def test_a_leader_that_has_committed_in_its_term_stays(pair: tuple[Rig, Rig]) -> None:
    mine, _ = pair
    mine.write(1)
    driver = mine.driver
    driver.is_leader = True
    promise = peer_pb2.LogPromise(log=mine.says().log, run=1, mark=12345, batch=10**6)
    volatile = FakeDriver(mine.wal.log(UID), is_volatile=True)
    mine.host.all.append(volatile)
    mine.peer_logs.heard(B, peer_pb2.Position(remembered=promise))
    assert [type(step) for step in mine.queue.steps][1:] == [RefillStep]
    assert driver.health.may_vote
    assert volatile.health.may_vote
    driver.replica.commit_index = 0
    promise.batch += 1
    mine.peer_logs.heard(B, peer_pb2.Position(remembered=promise))
    assert not driver.health.may_vote
    assert mine.host.renewed == [A]


def test_a_copy_is_trusted_when_all_others_have_spoken(tmp_path: Path) -> None:
    mine = Rig(tmp_path / "a")
    mine.wal.bootstrap([(CATALOG_GROUP, THREE)])
    mine.write(1)
    mine.wal.close()
    mine.directory.rename(tmp_path / "kept")
    mine.directory.mkdir()
    for path in (tmp_path / "kept").iterdir():
        (mine.directory / path.name).write_bytes(path.read_bytes())
    mine.others = (B,)
    mine.start()
    mine.driver.learn(replica_health.LogOpened(mine.wal.log(UID).damaged))
    assert not mine.driver.health.may_vote
    for node in (B, C):
        mine.peer_logs.look()
        assert mine.queue.run() == []
        mine.peer_logs.heard(node, Rig(tmp_path / node).says(A))
    assert mine.queue.run() == ["TrustStep"]
    assert mine.driver.health.may_vote
    assert mine.driver.inputs == []


def test_a_lone_member_trusts_its_copy(tmp_path: Path) -> None:
    mine = Rig(tmp_path / "a")
    alone = Configuration((A,))
    mine.wal.bootstrap([(CATALOG_GROUP, alone)])
    mine.write(1)
    mine.wal.close()
    mine.directory.rename(tmp_path / "kept")
    mine.directory.mkdir()
    for path in (tmp_path / "kept").iterdir():
        (mine.directory / path.name).write_bytes(path.read_bytes())
    mine.start()
    mine.liveness.set_nodes([], 0)
    mine.driver.learn(replica_health.LogOpened(mine.wal.log(UID).damaged))
    mine.driver.replica.configuration = alone
    mine.peer_logs.look()
    # One is opened while that is on its way to the disk.
    late: Any = mine.fake(30)
    mine.peer_logs.opens(late, is_new=False)
    assert not late.health.may_vote
    mine.host.all = [*mine.host.all, late]
    assert mine.queue.run() == ["TrustStep"]
    assert mine.driver.inputs == [TransferLeadership(A)]
    assert late.health.may_vote


def test_a_queue_that_comes_after_the_catalog_is_whole_is_not_suspected(tmp_path: Path) -> None:
    """Two of three under suspicion could elect no leader for a queue that is declared today."""
    mine = Rig(tmp_path / "a")
    mine.write(1)
    where = mine.wal.regressions.begin()
    mine.wal.regressions.write(where, mine.wal.regressions.promises())

    def opened(uid: int, *, is_new: bool) -> bool:
        driver: Any = mine.fake(uid)
        mine.peer_logs.opens(driver, is_new=is_new)
        return not driver.health.may_vote

    assert opened(20, is_new=True), "no catalog yet"
    mine.host.catalog = mine.fake(CATALOG_GROUP)
    mine.host.catalog.learn(replica_health.LogOpened(is_damaged=True))
    assert opened(21, is_new=True), "it may be an old one"
    mine.host.catalog.learn(replica_health.RefillRecorded())
    assert opened(UID, is_new=False)
    assert not opened(22, is_new=True)
    mine.wal.bootstrap([(21, THREE), (22, THREE)])
    mine.restart()
    assert mine.wal.log(21).damaged
    assert not mine.wal.log(22).damaged


def test_a_log_at_rest_is_settled_once(tmp_path: Path) -> None:
    mine = Rig(tmp_path / "a")
    mine.write(1)
    mine.peer_logs.tick(100)
    assert mine.queue.run() == []
    mine.peer_logs.tick(200)
    assert mine.queue.run() == ["SettleStep"]
    mine.peer_logs.tick(300)
    mine.peer_logs.tick(400)
    assert mine.queue.run() == []


def test_nonsense_of_a_member_is_passed_over(tmp_path: Path) -> None:
    mine = Rig(tmp_path / "a")
    run = peer_pb2.LogRun(number=1, mark=1, batch=1)
    for position in (
        peer_pb2.Position(),
        peer_pb2.Position(log=1),
        peer_pb2.Position(log=1, runs=[run] * 1_000),
        peer_pb2.Position(log=1, runs=[run], admitted=[run] * 1_000),
    ):
        mine.peer_logs.heard(B, position)
    assert not mine.says().HasField("remembered")
