"""A member that leads many groups dies, and comes back: turns and ticks of the survivors have a
bound, and what is down is not waited for (design/replication.md §2.1).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from brokerd.cluster.groups import group_clock, host
from brokerd.raft.messages import NodeId
from tests.integration.cluster.test_cluster_hosts import ANSWER_S, NAMES, Cluster
from tests.integration.cluster_toy import Member, leader_of, toy_config, until

UIDS = range(100, 400)

pytestmark = pytest.mark.timeout(240)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """Three members with many times more groups than one turn or one tick takes."""
    monkeypatch.setattr(host, "GROUPS_PER_TURN", 16)
    monkeypatch.setattr(group_clock, "GROUPS_PER_TICK", 50)
    found = Cluster(tmp_path, toy_config())
    for name in NAMES:
        await found.start(name)
    for member in found.all():
        for uid in UIDS:
            member.open_group(uid, NAMES)
    yield found
    for name in list(found.members):
        await found.stop(name)


def are_led(cluster: Cluster) -> bool:
    return all(leader_of(cluster.all(), uid) is not None for uid in UIDS)


def is_led_by(cluster: Cluster, uid: int, heir: Member) -> bool:
    """Ask for it until it is so."""
    leader = leader_of(cluster.all(), uid)
    if leader is not None and leader is not heir:
        leader.host.transfer_leadership(uid, heir.node)
    return leader is heir


def are_at_rest(cluster: Cluster) -> bool:
    return all(member.host.active_count == 0 for member in cluster.all())


async def test_groups_are_led_and_at_rest_while_a_member_is_down_and_whole_when_it_is_back(
    cluster: Cluster,
) -> None:
    await until(lambda: are_led(cluster) and are_at_rest(cluster))
    lost = cluster.members["a"]
    await until(lambda: {is_led_by(cluster, uid, lost) for uid in UIDS} == {True})
    await until(lambda: are_at_rest(cluster))
    for member in cluster.all():
        member.events.nodes.clear()
    await cluster.stop("a")
    survivors = cluster.all()
    await until(lambda: are_led(cluster) and are_at_rest(cluster))
    # Nobody else was taken for dead, however much there was to do.
    assert {node for member in survivors for node, _, _ in member.events.nodes} == {NodeId("a")}

    changed = list(UIDS)[::30]
    for uid in changed:
        await survivors[0].client.request(uid, b"x=1", ANSWER_S)
    await until(lambda: are_at_rest(cluster))
    again = await cluster.start("a")
    for uid in UIDS:
        again.open_group(uid, NAMES)
    await until(lambda: all(again.machines[uid].values == {"x": "1"} for uid in changed))
    await until(lambda: are_at_rest(cluster))


async def test_one_turn_runs_so_many_groups_and_leaves_the_others_to_the_next(
    cluster: Cluster,
) -> None:
    await until(lambda: are_led(cluster) and are_at_rest(cluster))
    member = cluster.members["a"].host
    drivers = [driver for uid in UIDS if (driver := member.driver_of(uid)) is not None]
    for driver in drivers:
        member.wake(driver)
    member.flush()
    assert sum(driver.is_queued for driver in drivers) == len(UIDS) - host.GROUPS_PER_TURN
    member.flush_all()
    assert not any(driver.is_queued for driver in drivers)
