"""Replicas over zones and hosts: what is chosen is never worse than the best that there is."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.cluster.groups.failure_domains import (
    ONE_ZONE,
    SAME_HOST,
    SPREAD,
    UNKNOWN,
    Domain,
    Domains,
)
from brokerd.raft.messages import NodeId

NODES = [NodeId(f"n{i}") for i in range(7)]
N0, N1, N2, N3, N4, N5, N6 = NODES

_any_domain = st.builds(
    Domain,
    st.sampled_from(("", "h0", "h1", "h2", "h3", "h4")),
    st.sampled_from(("", "a", "b", "c")),
)
#: Zones of different sizes, as clusters have them; few of the domains above fit together.
_real_domain = st.sampled_from(
    [Domain(host, zone) for zone, hosts in (("a", "0"), ("b", "123")) for host in hosts]
)
_said = st.dictionaries(st.sampled_from(NODES), _any_domain) | st.fixed_dictionaries(
    dict.fromkeys(NODES, _real_domain)
)


def places(*domains: tuple[str, str]) -> Domains:
    return Domains({node: Domain(*each) for node, each in zip(NODES, domains, strict=False)})


@given(
    _said,
    st.permutations(NODES),
    st.integers(0, 3),
    st.integers(1, 7),
    st.lists(st.integers(0, 4), min_size=7, max_size=7),
)
def test_no_other_choice_is_better(
    said: dict[NodeId, Domain], nodes: list[NodeId], there: int, wanted: int, loads: list[int]
) -> None:
    """R-QQ-4: zones first, then hosts, then the load; whatever is there already stays."""
    domains = Domains(said)
    load = dict(zip(NODES, loads, strict=True))
    present, others = nodes[:there], sorted(nodes[there:], key=lambda node: load[node])
    chosen = domains.extended(present, others, wanted)
    assert chosen[:there] == present
    assert len(set(chosen)) == len(chosen) == max(there, wanted)
    best = min(
        (*domains.cost([*present, *more]), sum(load[node] for node in more))
        for more in combinations(others, max(0, wanted - there))
    )
    assert (*domains.cost(chosen), sum(load[node] for node in chosen[there:])) == best


@given(_said, st.permutations(NODES), st.integers(1, 7))
def test_exchange_of_two_members_is_found_exactly_where_the_spread_is_not_the_best(
    said: dict[NodeId, Domain], nodes: list[NodeId], size: int
) -> None:
    domains = Domains(said)
    members = nodes[:size]
    best = min(domains.cost(each) for each in combinations(NODES, size))
    for _ in NODES:
        found = domains.better(members, NODES)
        if found is None:
            break
        leaver, comer = found
        members = [*(node for node in members if node != leaver), comer]
    assert domains.cost(members) == best


@given(st.lists(st.sampled_from("abc"), min_size=7, max_size=7), st.sampled_from((3, 5)))
def test_no_zone_holds_a_majority_if_there_are_three_with_enough_members(
    zones: list[str], size: int
) -> None:
    domains = places(*((f"h{i}", zone) for i, zone in enumerate(zones)))
    chosen = domains.extended([], NODES, size)
    others = [sum(each != zone for each in zones) for zone in "abc"]
    if len(set(zones)) == 3 and min(others) > size // 2:
        assert domains.standing(chosen) == SPREAD


def test_zones_come_before_hosts() -> None:
    """ADR 26: a zone that is lost takes more than a host."""
    domains = places(("h", "a"), ("h", "a"), ("i", "b"), ("j", "b"), ("k", "b"))
    assert domains.extended([N0], [N2, N3, N4, N1], 4) == [N0, N2, N3, N1]
    assert domains.better([N0, N2, N3, N4], [N1]) == (N4, N1)


def test_unknown_counts_as_a_place_of_its_own() -> None:
    assert Domains({}).extended([N0], [N1, N2, N3], 3) == [N0, N1, N2]
    domains = places(("h", "a"), ("h", "a"), ("", ""), ("", "b"))
    assert domains.extended([N0], NODES[:4], 3) == [N0, N2, N3]


def test_members_on_one_host_are_in_one_zone_whatever_they_say() -> None:
    """Else a member that has not said its zone yet would seem to be elsewhere."""
    domains = places(("h", ""), ("h", "b"), ("h", "a"), ("i", "c"))
    assert {domains.zone(node) for node in (N0, N1, N2)} == {("zone", "a")}
    assert domains.extended([N0], NODES[:4], 2) == [N0, N3]


def test_standing_is_told_as_it_is() -> None:
    domains = places(("h", "a"), ("h", "a"), ("i", "a"), ("j", "b"), ("k", "c"), ("l", ""))
    assert domains.standing([N0, N1, N3]) == SAME_HOST
    assert domains.standing([N0, N2, N3]) == ONE_ZONE
    assert domains.standing([N0, N3, N4]) == SPREAD
    assert domains.standing([N0, N3, N5]) == SPREAD
    assert domains.standing([N0, N3, N6]) == UNKNOWN
    assert domains.standing([N0]) == domains.standing([]) == ""


def test_fault_names_what_fails_together() -> None:
    domains = places(("h", "a"), ("h", "a"), ("i", "a"), ("j", "b"), ("k", "c"))
    assert domains.fault([N0, N3, N1]) == "replicas on one host, 'h': n0, n1"
    assert domains.fault([N0, N2, N3]) == "a majority of the replicas in one zone, 'a': n0, n2"
    assert domains.fault([N0, N3, N4]) == domains.fault([N0]) == domains.fault([N0, N3]) == ""
    assert domains.fault([N0, N2, N3, N4]) == "half of the replicas in one zone, 'a': n0, n2"
    assert domains.standing([N0, N2, N3, N4]) == ONE_ZONE
    assert domains.better([N0, N1, N3], NODES[:5]) == (N1, N4)
    assert domains.better([N0, N1, N3], [N2]) == (N1, N2)
    assert domains.better([N0, N3, N4], NODES[:5]) is None
