"""Members and leaders of new quorum queues (R-QQ-4, R-QQ-5) and who may stop (R-QQ-6)."""

from __future__ import annotations

import random

import pytest

from brokerd.cluster.groups import placement
from brokerd.cluster.groups.failure_domains import Domain, Domains
from brokerd.cluster.groups.placement import GroupHealth
from brokerd.raft.messages import NodeId

NODES = [NodeId(f"n{i}") for i in range(5)]
N0, N1, N2, N3, N4 = NODES
UNKNOWN = Domains({})


def members(
    size: int | None = None,
    client: NodeId = N0,
    running: list[NodeId] = NODES,
    counts: dict[NodeId, int] | None = None,
    queues: int = 0,
    seed: int = 1,
    domains: Domains = UNKNOWN,
) -> tuple[NodeId, ...]:
    return placement.choose_members(
        size, client, NODES, running, counts or {}, queues, random.Random(seed), domains
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


def test_members_that_no_majority_can_spare_are_named_while_they_run() -> None:
    """R-QQ-6."""
    whole = group(1, [N0, N1, N2], [N0, N1, N2])
    assert placement.critical_members([whole]) == frozenset()
    assert placement.critical_members([whole, group(2, [N0, N1, N2], [N0, N1])]) == {N0, N1}
    # N2 is down: whoever else is in a group with it is needed, N3 is in none.
    groups = [group(1, [N0, N1, N2], [N0, N1]), group(2, [N3], [N3])]
    assert placement.critical_members(groups) == {N0, N1}
    assert placement.critical_members([]) == frozenset()


def counts_of(leaders: dict[int, NodeId]) -> list[int]:
    return sorted(list(leaders.values()).count(node) for node in NODES)


def after(leaders: dict[int, NodeId], voters: dict[int, list[NodeId]]) -> dict[int, NodeId]:
    moves = placement.balanced_leaders(leaders, voters, NODES)
    assert len({uid for uid, _ in moves}) == len(moves)
    for uid, node in moves:
        assert node in voters[uid]
        assert leaders[uid] != node
    return leaders | dict(moves)


def test_leaders_are_spread_evenly() -> None:
    """R-QQ-23: rebalance."""
    leaders = dict.fromkeys(range(10), N0)
    spread = after(leaders, dict.fromkeys(range(10), NODES))
    assert counts_of(spread) == [2, 2, 2, 2, 2]
    assert placement.balanced_leaders(spread, dict.fromkeys(range(10), NODES), NODES) == []


def test_leaders_that_are_spread_as_evenly_as_can_be_stay() -> None:
    leaders = {1: N0, 2: N0, 3: N1}
    assert placement.balanced_leaders(leaders, {1: [N0, N1], 2: [N0, N1], 3: [N1]}, NODES) == []
    assert placement.balanced_leaders({1: N0, 2: N0}, {1: [N0], 2: [N0]}, NODES) == []
    assert placement.balanced_leaders({1: N0, 2: N0}, {}, NODES) == []


def test_leadership_goes_by_a_third_member_where_there_is_no_straight_way() -> None:
    """n0 leads three that only n1 shares; n1 leads one that n2 shares."""
    leaders = {1: N0, 2: N0, 3: N0, 4: N1}
    voters = {1: [N0, N1], 2: [N0, N1], 3: [N0, N1], 4: [N1, N2]}
    spread = after(leaders, voters)
    assert counts_of(spread) == [0, 0, 1, 1, 2]
    assert spread[4] == N2


def test_only_members_that_run_lead_and_only_their_leaders_move() -> None:
    leaders = {1: N0, 2: N0, 3: N0, 4: N3}
    voters = dict.fromkeys(leaders, NODES)
    moves = placement.balanced_leaders(leaders, voters, [N0, N1])
    assert [node for _, node in moves] == [N1]
    assert moves[0][0] in (1, 2, 3)


def test_random_spreads_end_where_no_move_helps() -> None:
    rng = random.Random(7)
    for _ in range(60):
        voters = {uid: rng.sample(NODES, rng.randint(1, 5)) for uid in range(rng.randint(1, 40))}
        leaders = {uid: rng.choice(nodes) for uid, nodes in voters.items()}
        spread = after(leaders, voters)
        counts = {node: list(spread.values()).count(node) for node in NODES}
        for uid, node in spread.items():
            for other in voters[uid]:
                assert counts[node] - counts[other] < 2 or other == node


def test_new_replicas_go_where_there_are_fewest() -> None:
    """R-QQ-23"""
    counts = placement.replica_counts([["n0", "n1"], ["n1", "n2"], ["n1"]])
    assert counts == {N0: 1, N1: 3, N2: 1}
    assert placement.newcomers({N0, N1, N2, N3}, [], counts, 2, UNKNOWN) == [N3, N0]
    assert placement.newcomers({N1, N2}, [N1], counts, 2, UNKNOWN) == [N2]


#: n0 and n1 share a host, n3 and n4 a zone; n0, n1 and n2 another one.
PLACES = Domains(
    {
        N0: Domain("a1", "a"),
        N1: Domain("a1", "a"),
        N2: Domain("a2", "a"),
        N3: Domain("b1", "b"),
        N4: Domain("b2", "b"),
    }
)


def test_new_queues_are_spread_over_zones_then_hosts_and_only_then_by_load() -> None:
    """R-QQ-4."""
    idle_neighbour = {N1: 0, N2: 9, N3: 8, N4: 7}
    assert members(size=2, counts=idle_neighbour, domains=PLACES) == (N0, N4)
    assert members(size=4, counts=idle_neighbour, domains=PLACES) == (N0, N4, N3, N2)
    for seed in range(20):
        chosen = members(size=3, queues=2000, seed=seed, domains=PLACES)
        assert not {N0, N1} <= set(chosen)


def test_member_that_is_up_is_taken_before_one_on_another_host() -> None:
    chosen = members(size=3, running=[N0, N1, N4], domains=PLACES)
    assert chosen == (N0, N4, N1)


def test_groups_grow_where_they_have_no_replica_yet() -> None:
    """R-QQ-23."""
    counts = {N1: 0, N2: 5, N3: 7, N4: 7}
    assert placement.newcomers(NODES, [N0], counts, 2, PLACES) == [N3, N2]
    assert placement.newcomers({N1, N2}, [N0, N3], counts, 1, PLACES) == [N2]
    assert placement.newcomers({N1}, [N0, N3], counts, 1, PLACES) == [N1]
