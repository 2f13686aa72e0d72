"""Members and leaders of new quorum queues (R-QQ-4, R-QQ-5) and who may stop (R-QQ-6)."""

from __future__ import annotations

import random

import pytest

from brokerd.cluster import placement
from brokerd.cluster.placement import GroupHealth
from brokerd.raft.messages import NodeId

NODES = [NodeId(f"n{i}") for i in range(5)]
N0, N1, N2, N3, N4 = NODES


def members(
    size: int | None = None,
    client: NodeId = N0,
    running: list[NodeId] = NODES,
    counts: dict[NodeId, int] | None = None,
    queues: int = 0,
    seed: int = 1,
) -> tuple[NodeId, ...]:
    return placement.choose_members(
        size, client, NODES, running, counts or {}, queues, random.Random(seed)
    )


def test_default_group_has_three_members_with_the_clients_node_first() -> None:
    """R-QQ-4."""
    for client in NODES:
        chosen = members(client=client)
        assert chosen[0] == client
        assert len(set(chosen)) == 3


@pytest.mark.parametrize(("size", "count"), [(1, 1), (2, 2), (5, 5), (9, 5), (0, 3), (-4, 1)])
def test_group_size_is_kept_within_the_cluster(size: int, count: int) -> None:
    """R-QQ-4: limited to cluster size."""
    assert len(members(size)) == count


def test_running_members_with_the_fewest_replicas_are_taken() -> None:
    """R-QQ-4."""
    counts = {N1: 9, N2: 1, N3: 2, N4: 8}
    assert members(counts=counts) == (N0, N2, N3)
    assert members(counts=counts, running=[N0, N1, N3]) == (N0, N3, N1)


def test_members_that_are_down_fill_up_the_group() -> None:
    assert set(members(running=[N0, N1])) > {N0, N1}
    assert len(members(running=[N0])) == 3


def test_many_queues_are_placed_by_chance() -> None:
    """R-QQ-4, O-23."""
    counts = {N1: 9, N2: 1, N3: 2, N4: 8}
    chosen = {members(counts=counts, queues=1000, seed=seed) for seed in range(50)}
    assert len(chosen) > 5


def test_client_that_is_no_member_gets_no_replica() -> None:
    assert NodeId("outside") not in members(client=NodeId("outside"))


def candidates(
    locator: str,
    client: NodeId = N1,
    running: list[NodeId] = NODES,
    counts: dict[NodeId, int] | None = None,
) -> tuple[NodeId, ...]:
    return placement.leader_candidates(
        locator, client, NODES[:3], running, counts or {}, 0, random.Random(1)
    )


def test_client_local_leader_is_on_the_clients_node_if_that_is_a_running_member() -> None:
    """R-QQ-5."""
    assert candidates("client-local")[0] == N1
    assert candidates("client-local", running=[N0, N2])[2] == N1
    assert set(candidates("client-local", client=N4)) == {N0, N1, N2}


@pytest.mark.parametrize("locator", ["balanced", "random", "least-leaders", "min-masters"])
def test_balanced_leader_is_where_the_fewest_are(locator: str) -> None:
    """R-QQ-5: legacy values act as balanced."""
    assert candidates(locator, counts={N0: 5, N1: 4, N2: 1}) == (N2, N1, N0)


def test_balanced_leader_is_a_matter_of_chance_where_there_are_many_queues() -> None:
    """R-QQ-5: from 1,000 queues on nobody counts leaders, members that are down still come last."""
    counts = {N0: 5, N1: 4, N2: 1}
    many = {
        placement.leader_candidates(
            "balanced", N0, [N0, N1, N2], [N0, N1], counts, 1000, random.Random(seed)
        )
        for seed in range(20)
    }
    assert many == {(N0, N1, N2), (N1, N0, N2)}


def group(uid: int, voters: list[NodeId], online: list[NodeId]) -> GroupHealth:
    return GroupHealth(uid, tuple(voters), frozenset(online))


def test_member_is_critical_where_it_makes_the_majority() -> None:
    """R-QQ-6."""
    groups = [
        group(1, [N0, N1, N2], [N0, N1, N2]),
        group(2, [N0, N1, N2], [N0, N1]),
        group(3, [N1, N2, N3], [N1, N2]),
        group(4, [N0, N1], [N0, N1]),
        group(5, [N0, N1, N2, N3], [N0, N1, N2]),
    ]
    assert placement.critical_groups(groups, N0) == [2, 4, 5]
    assert not placement.safe_to_stop(groups, N0)
    assert placement.safe_to_stop(groups[:1], N0)


def test_group_of_the_member_alone_does_not_keep_it_from_stopping() -> None:
    assert placement.safe_to_stop([group(1, [N0], [N0])], N0)
