"""When nodes are suspected and heard again, in virtual time (design/replication.md §2.1)."""

from __future__ import annotations

from brokerd.cluster.groups.liveness import Liveness
from brokerd.raft.messages import NodeId, configuration_of

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def liveness(*nodes: NodeId) -> Liveness:
    found = Liveness(suspicion_ms=1500, refused_ms=500)
    found.set_nodes(nodes or (A, B), 0)
    return found


def run(found: Liveness, until_ms: int, since_ms: int = 0) -> list[tuple[int, NodeId]]:
    return [(now, node) for now in range(since_ms, until_ms, 100) for node in found.check(now, 100)]


def test_node_that_never_speaks_is_suspected_once_after_the_silence() -> None:
    assert run(liveness(A), 5000) == [(1500, A)]


def test_node_is_up_when_first_heard_and_only_then() -> None:
    found = liveness()
    assert found.up() == set()
    assert found.nodes() == {A, B}
    assert found.heard(A, 10)
    assert not found.heard(A, 20)
    assert found.up() == {A}
    assert found.suspected() == {B}


def test_silence_is_counted_from_the_last_word() -> None:
    found = liveness(A)
    found.heard(A, 950)
    assert run(found, 4000) == [(2500, A)]
    assert found.heard(A, 4100)


def test_killed_process_is_noticed_by_its_refusals_before_the_silence() -> None:
    found = liveness(A)
    found.heard(A, 1000)
    found.refused(A, 1010)
    found.refused(A, 1300)
    assert run(found, 3000, 1000) == [(1600, A)]
    assert found.refuses(A)
    assert not found.refuses(B)


def test_connection_in_between_ends_the_refusal() -> None:
    found = liveness(A)
    found.heard(A, 1000)
    found.refused(A, 1010)
    found.connected(A)
    assert run(found, 2400, 1000) == []


def test_starting_node_that_refuses_has_the_full_time() -> None:
    found = liveness(A)
    found.refused(A, 0)
    assert run(found, 1400) == []


def test_own_pause_is_not_held_against_the_others() -> None:
    found = liveness(A)
    found.check(0, 100)
    found.heard(A, 0)
    assert found.check(10_000, 100) == []
    assert run(found, 13_000, 10_100) == [(11_400, A)]


def test_unknown_nodes_are_ignored_and_removed_ones_reported() -> None:
    found = liveness(A)
    assert not found.heard(B, 10)
    assert not found.knows(B)
    found.heard(A, 10)
    found.set_incarnation(A, 7)
    assert found.set_nodes([B], 20) == [(A, 7)]
    assert found.knows(B)
    assert not found.knows(A)


def test_heard_since_means_at_or_after() -> None:
    found = liveness(A)
    found.heard(A, 100)
    assert found.heard_since(A, 100)
    assert not found.heard_since(A, 101)
    assert not found.heard_since(B, 0)


def test_what_is_told_of_unauthenticated_is_not_remembered() -> None:
    """Frames and refusals may come from a node that has just been removed."""
    found = liveness(A)
    found.set_incarnation(B, 7)
    found.refused(B, 10)
    found.connected(B)
    assert found.incarnation(B) == 0
    found.set_incarnation(A, 3)
    found.set_nodes([A, B], 20)
    assert (found.incarnation(A), found.incarnation(B)) == (3, 0)
    found.heard(B, 100)
    assert run(found, 700, 100) == []


def test_refusals_are_not_counted_while_this_process_did_not_run() -> None:
    found = liveness(A)
    found.check(0, 100)
    found.heard(A, 0)
    found.refused(A, 50)
    assert found.check(10_000, 100) == []
    # 9,900 ms were lost: it has refused since 9,950, and 500 are too many.
    assert run(found, 13_000, 10_100) == [(10_500, A)]


def test_most_of_a_group_are_heard_where_this_node_and_enough_others_are_up() -> None:
    """C is this node, which is no other's matter; a voter that nobody dials does not count."""
    found = liveness()
    three = configuration_of((A, B, C))
    assert found.hears_most(configuration_of((C,)))
    assert not found.hears_most(three)
    found.heard(A, 10)
    assert found.hears_most(three)
    assert not found.hears_most(configuration_of((A, B, C, NodeId("d"), NodeId("e"))))
    run(found, 5000)
    assert not found.hears_most(three)


def test_silence_counts_from_the_last_frame_of_a_suspected_node() -> None:
    found = liveness(A)
    found.heard(A, 100)
    assert found.silent_ms(A, 400) == 0
    run(found, 3000)
    assert found.silent_ms(A, 5100) == 5000
    found.heard(A, 6000)
    assert found.silent_ms(A, 6100) == 0
    assert found.silent_ms(C, 6100) >= 2**31


def test_a_disk_is_stalled_as_its_node_says_until_that_is_suspected_or_removed() -> None:
    """ADR 68."""
    found = liveness(A, B)
    found.heard(A, 0)
    found.set_stalled(A, True)
    assert found.is_stalled(A)
    assert not found.is_stalled(B)
    found.set_stalled(A, False)
    assert not found.is_stalled(A)
    found.set_stalled(A, True)
    assert (1_500, A) in run(found, 2_000)
    assert not found.is_stalled(A)
    found.set_stalled(B, True)
    found.set_nodes([A], 2_000)
    assert not found.is_stalled(B)
