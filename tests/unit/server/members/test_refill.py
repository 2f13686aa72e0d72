"""A member with an empty disk starts when its groups are refilled, and remembers it."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.members import cluster_file, refill
from brokerd.server.members.refill import Refill
from tests.unit.server.members.fakes import Replicas, Tasks, status

UID = 7


class Bench:
    """A member whose groups are refilled by the commands that it sends their leaders."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.host = Replicas(NodeId("n0"), NodeId("n1"))
        self.doubted: list[int] = []
        self.nudges: list[int] = []
        self.tasks = Tasks()
        self.refill = Refill(data_dir, self.host, self, self.nudge, self.tasks.spawn)
        cluster_file.save(data_dir, cluster_file.Remembered("uid", {}, is_refilling=True))

    def suspect(self, uid: int) -> bool:
        if not self.host.has_group(uid):
            return False
        self.doubted.append(uid)
        self.host.by_uid[uid] = status(is_damaged=True, is_suspected=True)
        return True

    def nudge(self, uid: int) -> None:
        self.nudges.append(uid)
        self.host.by_uid[uid] = status()

    def open(self, uid: int, member_count: int = 3, since: int = 0) -> None:
        self.host.by_uid[uid] = status()
        self.refill.opened(uid, member_count, since)

    @property
    def is_remembered(self) -> bool:
        return cluster_file.load(self.data_dir).is_refilling


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(refill, "POLL_S", 0.0)
    return Bench(tmp_path)


async def test_quiet_groups_are_nudged_until_all_are_refilled(bench: Bench) -> None:
    bench.refill.begin()
    bench.open(CATALOG_GROUP)
    bench.open(UID)
    bench.open(UID + 1, member_count=1)
    bench.refill.opened(UID + 2, 3)
    assert bench.doubted == [CATALOG_GROUP, UID], "nobody else could refill the others"
    assert set(bench.refill.left()) == {CATALOG_GROUP, UID}
    await bench.refill.started()
    assert set(bench.nudges) == {CATALOG_GROUP, UID}
    assert not bench.is_remembered
    bench.open(UID + 3)
    assert bench.doubted == [CATALOG_GROUP, UID], "what comes now is its own"


async def test_what_nobody_can_refill_does_not_keep_a_member_from_starting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bench.refill, "_send_nudge", lambda uid: None)
    bench.refill.begin()
    bench.open(UID)
    await bench.refill.started(patience_s=0.01)
    assert "1 groups are not refilled yet" in caplog.text
    assert bench.is_remembered
    # It stopped, or was deleted: then it is not waited for.
    bench.host.by_uid[UID] = status(is_suspected=True, error="broken")
    assert bench.refill.left() == []
    del bench.host.by_uid[UID]
    assert bench.refill.left() == []
    await bench.tasks.wait()
    assert not bench.is_remembered


async def test_a_member_with_its_own_disk_doubts_nothing(bench: Bench) -> None:
    bench.open(UID)
    await bench.refill.started()
    assert (bench.doubted, bench.nudges) == ([], [])
    assert bench.is_remembered


def test_a_replica_that_came_after_the_disk_has_no_past(bench: Bench) -> None:
    """G8 (ADR 36): a queue on two members that join would have no majority for ever."""
    bench.refill.begin(joined_at=20)
    bench.open(UID, since=20)
    bench.open(UID + 1, since=21)
    bench.open(UID + 2)
    assert bench.doubted == [UID, UID + 2]


def test_nothing_is_known_of_the_age_of_a_disk_that_an_earlier_release_joined_with(
    bench: Bench,
) -> None:
    bench.refill.begin()
    bench.open(UID, since=21)
    assert bench.doubted == [UID]
