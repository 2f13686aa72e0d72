"""Policies that match, win and tie, and cycles of alternate exchanges, by the broker's rules."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from brokerd_operator.reconcile import standing
from brokerd_operator.reconcile.standing import Matched, View
from brokerd_operator.reconcile.topology import ObservedObject
from brokerd_operator.specs.model import Identity
from hypothesis import given
from hypothesis import strategies as st

from brokerd.core.catalog import policy as broker_policy
from brokerd.core.catalog import policy_keys
from brokerd.core.catalog.catalog_objects import Entry

EVIL = "^(a|aa)+$"


def queue(name: str, type_: str = "quorum", **spec: Any) -> ObservedObject:
    return ObservedObject("queue", "/", name, {"type": type_, **spec})


def exchange(name: str, alternate: str | None = None, **spec: Any) -> ObservedObject:
    settings = {} if alternate is None else {"alternate-exchange": alternate}
    return ObservedObject("exchange", "/", name, {"type": "fanout", "settings": settings} | spec)


def policy(
    name: str,
    pattern: str = ".*",
    priority: int = 0,
    apply_to: str = "all",
    kind: str = "policy",
    **definition: Any,
) -> ObservedObject:
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    spec = {
        "pattern": pattern,
        "priority": priority,
        "apply-to": apply_to,
        "definition": keys or {"max-length": 1},
    }
    return ObservedObject(kind, "/", name, spec)


def look(*objects: ObservedObject) -> View:
    matched = {
        item.identity: standing.match(item, objects)
        for item in objects
        if item.kind in standing.POLICY_KINDS
    }
    return standing.view(objects, matched)


def of(found: View, name: str, kind: str = "policy") -> standing.Standing:
    return found.policies[Identity(kind, "/", name)]


def oddities(found: View, kind: str, name: str) -> list[str]:
    told = found.oddities.get(Identity(kind, "/", name), ())
    return [f"{item.reason}: {item.text}" for item in told]


def test_table_of_unsupported_keys_is_the_brokers() -> None:
    """R-POL-9."""
    assert standing.UNSUPPORTED == policy_keys.UNSUPPORTED


def test_policy_without_rivals_is_in_force_for_all_it_matches() -> None:
    found = look(policy("p", "^a"), queue("a1"), queue("b"), exchange("a2"), exchange(""))
    assert of(found, "p") == standing.Standing(
        1, 1, 0, "InForce", "in force for all that it matches"
    )
    assert of(found, "p").is_effective
    assert found.oddities == {}


def test_policy_that_matches_nothing_is_not_effective() -> None:
    found = look(policy("p", "^a"), queue("b"), queue("a", exclusive=True))
    assert of(found, "p").reason == "NothingMatches"
    assert not of(found, "p").is_effective


@pytest.mark.parametrize(
    ("apply_to", "matches"),
    [
        ("all", (1, 2)),
        ("queues", (0, 2)),
        ("exchanges", (1, 0)),
        ("classic_queues", (0, 1)),
        ("quorum_queues", (0, 1)),
    ],
)
def test_apply_to_chooses_by_kind_and_type(apply_to: str, matches: tuple[int, int]) -> None:
    found = look(policy("p", apply_to=apply_to), queue("q"), queue("c", "classic"), exchange("x"))
    assert (of(found, "p").exchanges, of(found, "p").queues) == matches


def test_higher_priority_shadows_the_lower_and_says_where() -> None:
    found = look(policy("low"), policy("high", "^a", 5), queue("a"), queue("b"))
    assert of(found, "high").is_effective
    low = of(found, "low")
    assert (low.queues, low.skipped, low.reason) == (1, 1, "Shadowed")
    assert low.message == "a policy of higher priority wins for queue a (by high)"
    assert found.oddities == {}


def test_equal_priority_warns_both_and_names_the_object_and_the_rival() -> None:
    """R-POL-3: the broker takes the smallest name, which nobody should have to know."""
    found = look(policy("one"), policy("two"), queue("a"))
    assert of(found, "one").is_effective
    assert of(found, "two").reason == "EqualPriority"
    assert oddities(found, "policy", "one") == [
        "EqualPriority: it has the same priority as two for queue a; the smallest name wins"
    ]
    assert "same priority as one for queue a" in oddities(found, "policy", "two")[0]


def test_tie_below_a_winner_is_no_oddity() -> None:
    found = look(policy("one"), policy("two"), policy("top", priority=1), queue("a"))
    assert found.oddities == {}
    assert of(found, "one").reason == of(found, "two").reason == "Shadowed"


def test_policies_of_operators_and_users_do_not_rival() -> None:
    found = look(policy("one"), policy("two", kind="operator_policy"), queue("a"), exchange("x"))
    assert of(found, "two", "operator_policy") == standing.Standing(
        0, 1, 0, "InForce", "in force for all that it matches"
    )
    assert found.oddities == {}


def test_key_that_a_type_does_not_know_voids_the_policy_there() -> None:
    """R-POL-9; the next policy then wins."""
    objects = [queue("c", "classic"), queue("q")]
    found = look(policy("limit", priority=9, delivery_limit=3), policy("any"), *objects)
    assert (of(found, "limit").queues, of(found, "limit").skipped) == (1, 1)
    assert of(found, "limit").reason == "NotApplicable"
    assert "for queue c" in of(found, "limit").message
    assert of(found, "any").queues == 1


def test_message_names_five_and_counts_the_rest() -> None:
    found = look(policy("low"), policy("high", priority=1), *(queue(f"q{n}") for n in range(9)))
    assert of(found, "low").skipped == 9
    assert of(found, "low").message.endswith("queue q4 (by high) and 4 more")


def test_pattern_that_takes_too_long_is_given_up() -> None:
    """SEC-19: once, not for every name."""
    found = look(policy("evil", EVIL), *(queue("a" * 60 + str(n)) for n in range(50)))
    assert of(found, "evil").reason == "PatternTooSlow"


def test_pattern_of_a_foreign_object_that_does_not_compile_matches_nothing() -> None:
    assert standing.match(policy("p", "("), [queue("q")]) == Matched()


# ---- alternate exchanges ------------------------------------------------------------------------


def test_cycle_of_alternate_exchanges_warns_each_of_them() -> None:
    found = look(exchange("b", "c"), exchange("c", "a"), exchange("a", "b"), exchange("to", "a"))
    for name in "abc":
        (told,) = oddities(found, "exchange", name)
        assert told.startswith("AlternateExchangeCycle: the alternate exchanges form a cycle, ")
        assert "a -> b -> c -> a" in told
    assert oddities(found, "exchange", "to") == []


def test_policy_that_closes_a_cycle_is_warned_too() -> None:
    found = look(exchange("a", "b"), exchange("b"), policy("p", "^b$", alternate_exchange="a"))
    assert "a -> b -> a" in oddities(found, "exchange", "b")[0]
    assert "a -> b -> a" in oddities(found, "policy", "p")[0]


def test_own_alternate_exchange_comes_before_the_policys() -> None:
    """R-AE-1: argument, then inline setting, then policy."""
    closing = policy("p", "^b$", alternate_exchange="a")
    assert look(exchange("a", "b"), exchange("b", "c"), closing).oddities == {}
    argument = exchange("b", "a", arguments={"alternate-exchange": "c"})
    assert look(exchange("a", "b"), argument).oddities == {}


def test_exchange_that_is_its_own_alternate() -> None:
    assert "a -> a:" in oddities(look(exchange("a", "a")), "exchange", "a")[0]


def test_long_cycle_is_cut_in_the_message() -> None:
    names = [f"x{n}" for n in range(8)]
    ring = [exchange(name, names[(n + 1) % 8]) for n, name in enumerate(names)]
    assert "x0 -> x1 -> x2 -> x3 -> x4 -> …" in oddities(look(*ring), "exchange", "x5")[0]


def test_every_graph_of_four_exchanges() -> None:
    """All 625: a node is in a cycle if and only if its own steps lead back to it."""
    names = "abcd"
    for targets in itertools.product([None, *names], repeat=4):
        edges = {name: to for name, to in zip(names, targets, strict=True) if to is not None}
        found = standing.cycles(edges)
        expected = {name for name in names if _leads_back(edges, name)}
        assert {name for cycle in found for name in cycle} == expected
        assert sum(map(len, found)) == len(expected)
        for cycle in found:
            assert cycle[0] == min(cycle)
            assert [edges[name] for name in cycle] == [*cycle[1:], cycle[0]]


def _leads_back(edges: dict[str, str], start: str) -> bool:
    node = edges.get(start)
    for _ in range(len(edges)):
        if node == start:
            return True
        node = edges.get(node) if node is not None else None
    return False


POLICIES = st.lists(
    st.builds(
        policy,
        st.sampled_from("abcdef"),
        st.sampled_from([".*", "^a", "b$", "ab"]),
        st.integers(0, 2),
        st.sampled_from(["all", "queues", "classic_queues", "quorum_queues", "exchanges"]),
    ),
    unique_by=lambda item: item.name,
    max_size=6,
)


@given(POLICIES, st.sets(st.sampled_from(["a", "b", "ab", "ba", "aab"]), min_size=1))
def test_winner_is_the_one_that_the_broker_chooses(
    policies: list[ObservedObject], names: set[str]
) -> None:
    """R-POL-3, R-POL-5, by the broker's own code."""
    queues = [queue(name) for name in sorted(names)]
    found = look(*policies, *queues)
    wins: dict[str, int] = {}
    for item in queues:
        entries = [Entry("policy", "/", one.name, one.spec) for one in policies]
        best = broker_policy._best(
            entries,
            item.name,
            lambda spec: spec["apply-to"] in ("all", "queues", "quorum_queues"),
        )
        if best is not None:
            wins[best.name] = wins.get(best.name, 0) + 1
    assert {name.name: item.queues for name, item in found.policies.items() if item.queues} == wins
