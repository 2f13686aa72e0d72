"""Groups that stand still are folded, and nobody notices but the memory (ADR 61)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from brokerd.cluster.groups.group_clock import Moved
from brokerd.cluster.groups.hosted import HostedGroups
from brokerd.raft.messages import Configuration, NodeId
from tests.integration.cluster.test_cluster_hosts import ANSWER_S, NAMES, Cluster
from tests.integration.cluster_toy import Member, ToyMachine, leader_of, toy_config, until

UIDS = range(100, 180)
#: Of these so many stay as they are.
RESTED_MAX = 5

pytestmark = pytest.mark.timeout(240)


class SmallMachine(ToyMachine):
    """A toy that may be made again."""

    def factory(self) -> tuple[Callable[[], ToyMachine], bytes]:  # type: ignore[override]
        return SmallMachine, b"%d values" % len(self.values)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three members with many groups, which rest and are folded."""
    found = Cluster(tmp_path, toy_config(rested_max=RESTED_MAX))
    for name in NAMES:
        open_all(await found.start(name))
    await until(lambda: are_folded(found))
    yield found
    for name in list(found.members):
        await found.stop(name)


def open_all(member: Member) -> None:
    for uid in UIDS:
        member.host.open_group(uid, [NodeId(name) for name in NAMES], SmallMachine())
        member.client.set_members(uid, [NodeId(name) for name in NAMES])


def folded(member: Member) -> set[int]:
    return {uid for uid in UIDS if uid in member.host.folded}


def are_folded(cluster: Cluster) -> bool:
    return all(leader_of(cluster.all(), uid) is not None for uid in UIDS) and all(
        len(folded(member)) == len(UIDS) - RESTED_MAX for member in cluster.all()
    )


def values(member: Member, uid: int) -> dict[str, str]:
    return cast("ToyMachine", member.host.machine_of(uid)).values


async def test_a_command_to_a_folded_group_is_applied_everywhere(cluster: Cluster) -> None:
    for number, uid in enumerate(UIDS):
        member = cluster.all()[number % 3]
        assert await member.client.request(uid, b"x=%d" % number, ANSWER_S) == b"1"
        assert await member.client.request(uid, b"y=%d" % number, ANSWER_S) == b"2"

    def have_all() -> bool:
        # Those that stay awake may hear of the last commit with the next tick.
        return all(
            values(member, uid) == {"x": str(number), "y": str(number)}
            for number, uid in enumerate(UIDS)
            for member in cluster.all()
        )

    await until(lambda: are_folded(cluster) and have_all())
    for uid in UIDS:
        for member in cluster.all():
            summary = member.host.folded.summary_of(uid)
            assert summary == (b"2 values" if uid in member.host.folded else None)
    # Who looks leaves them as they are.
    assert are_folded(cluster)


async def test_what_is_told_of_a_folded_group_is_what_its_driver_says(cluster: Cluster) -> None:
    member = cluster.members["a"]
    host = member.host
    for uid in folded(member):
        told = (host.status_of(uid), host.progress_of(uid), host.leader_of(uid), host.term_of(uid))
        assert host.driver_of(uid) is not None
        assert uid not in host.folded
        assert told == (
            *(host.status_of(uid), host.progress_of(uid), host.leader_of(uid), host.term_of(uid)),
        )
    # Nobody gave them anything to do, so that they rest again.
    await until(lambda: are_folded(cluster))
    assert {driver.uid for driver in host.drivers()} == set(UIDS) == set(host.groups())
    assert not folded(member)


async def test_the_groups_of_a_member_that_is_lost_have_other_leaders(cluster: Cluster) -> None:
    lost = cluster.members["a"]

    def leads_all() -> bool:
        for uid in UIDS:
            leader = leader_of(cluster.all(), uid)
            if leader is not None and leader is not lost:
                leader.host.transfer_leadership(uid, lost.node)
        return all(leader_of(cluster.all(), uid) is lost for uid in UIDS)

    await until(leads_all)
    await until(lambda: are_folded(cluster))
    await cluster.stop("a")
    survivors = cluster.all()
    await until(lambda: all(leader_of(survivors, uid) is not None for uid in UIDS))
    for uid in UIDS:
        assert await survivors[0].client.request(uid, b"x=1", ANSWER_S) == b"1"
    again = await cluster.start("a")
    open_all(again)
    await until(lambda: all(values(again, uid) == {"x": "1"} for uid in UIDS))
    await until(lambda: are_folded(cluster))


async def test_a_follower_that_comes_back_is_told_of_all_of_a_folded_leader(
    cluster: Cluster,
) -> None:
    led = [uid for uid in UIDS if leader_of(cluster.all(), uid) is not cluster.members["c"]]
    await cluster.stop("c")
    for uid in led:
        await cluster.members["a"].client.request(uid, b"x=1", ANSWER_S)
    again = await cluster.start("c")
    open_all(again)
    await until(lambda: all(values(again, uid) == {"x": "1"} for uid in led))
    await until(lambda: are_folded(cluster))


async def test_folded_groups_are_deleted_without_being_made_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vhost may take ten thousand of them along, in one turn of the loop."""

    def make(*_: object) -> None:
        raise AssertionError("a group was made to be closed")

    monkeypatch.setattr(HostedGroups, "_unfold", make)
    gone = set.intersection(*map(folded, cluster.all()))
    assert len(gone) > 10
    for each in cluster.all():
        for uid in gone:
            each.host.close_group(uid, forget=True)
        assert not gone.intersection(each.host.groups())
        for name in NAMES:
            assert not gone.intersection(each.host._members.groups_with(NodeId(name)))
    await until(lambda: not any(gone.intersection(each.wal.groups()) for each in cluster.all()))


async def test_a_folded_group_is_deleted_and_comes_back_empty(cluster: Cluster) -> None:
    member = cluster.members["a"]
    uid = min(set.intersection(*map(folded, cluster.all())))
    await member.client.request(uid, b"x=1", ANSWER_S)
    await until(lambda: are_folded(cluster))
    for each in cluster.all():
        each.host.close_group(uid, forget=True)
        assert not each.host.has_group(uid)
        assert each.host.leader_of(uid) is None
        with pytest.raises(KeyError):
            each.host.status_of(uid)
    await until(lambda: all(uid not in each.wal.groups() for each in cluster.all()))


def spoil(member: Member, uid: int) -> None:
    """What is kept of a folded group cannot be read."""
    kept = member.host.folded.of(uid)
    kept.folded = replace(kept.folded, state=b"\xff")


async def test_what_was_kept_and_cannot_be_read_is_made_of_the_log(cluster: Cluster) -> None:
    uid = min(set.intersection(*map(folded, cluster.all())))
    client = cluster.members["a"].client
    await client.request(uid, b"x=1", ANSWER_S)
    for number, spoiled in enumerate((NAMES[:1], NAMES)):
        await until(lambda: are_folded(cluster))
        # Others are used after it, so that it is not among those that stay.
        for other in list(UIDS)[-2 * RESTED_MAX :]:
            await client.request(other, b"z=1", ANSWER_S)
        await until(lambda: all(uid in folded(each) for each in cluster.all()))
        for name in spoiled:
            spoil(cluster.members[name], uid)
        assert await client.request(uid, b"y=2", ANSWER_S) == b"%d" % (number + 2)
        await until(
            lambda: all(values(each, uid) == {"x": "1", "y": "2"} for each in cluster.all())
        )


async def test_a_folded_group_alone_leads_again_from_its_log(cluster: Cluster) -> None:
    member = cluster.members["a"]
    for uid in range(500, 510):
        member.host.open_group(uid, [member.node], SmallMachine())
        member.client.set_members(uid, [member.node])
    await until(lambda: 500 in member.host.folded)
    spoil(member, 500)
    assert await member.client.request(500, b"x=1", ANSWER_S) == b"1"


async def test_one_group_that_cannot_be_opened_leaves_the_others_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = cluster.members["a"]
    led = {uid for uid in folded(member) if member.host.leader_of(uid) == member.node}
    broken = min(led)
    spoil(member, broken)
    monkeypatch.setattr(member.host.folded.of(broken), "make", None)
    await cluster.stop("c")
    # All that it leads hear that a follower is lost.
    await until(lambda: not led - {broken} & folded(member))
    assert broken in folded(member)
    for uid in led - {broken}:
        assert await member.client.request(uid, b"x=1", ANSWER_S) == b"1"


async def test_logs_of_folded_groups_are_not_forgotten(cluster: Cluster) -> None:
    member = cluster.members["a"]
    member.host.forget_logs(())
    await member.client.request(min(folded(member)), b"x=1", ANSWER_S)
    assert set(UIDS) <= set(member.wal.groups())


async def test_members_of_a_folded_group_are_changed(cluster: Cluster) -> None:
    uid = min(set.intersection(*map(folded, cluster.all())))
    leader = await cluster.leader(uid)
    others = [NodeId(name) for name in NAMES if name != leader.node]
    answers: list[bool] = []
    wanted = Configuration(tuple(sorted([leader.node, others[0]])))
    leader.host.change_members(uid, wanted, lambda accepted, *_: answers.append(accepted))
    await until(lambda: answers)
    assert answers == [True]
    await until(lambda: leader.host.status_of(uid).members == wanted)


async def test_who_counts_memory_hears_of_folds_and_nobody_else(cluster: Cluster) -> None:
    host = cluster.members["a"].host
    watching: list[Moved] = [host.watch(), host.watch(folds=True)]
    for moved in watching:
        moved.take()
    uid = min(folded(cluster.members["a"]))
    assert host.driver_of(uid) is not None
    await until(lambda: are_folded(cluster))
    found = [uids for uids, _ in (moved.take() for moved in watching)]
    assert found[0] == set()
    assert found[1]
