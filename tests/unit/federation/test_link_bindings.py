"""Binding propagation (R-FX-7 to R-FX-10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerd.amqp.values import Table, Value
from brokerd.federation import link_bindings
from brokerd.federation.link_bindings import Ends

ENDS = Ends("here", "v", "x", "B", "there", "u", 2)


def came_from(cluster: str, vhost: str, hops: int) -> dict[str, Value]:
    return {"cluster-name": cluster, "vhost": vhost, "exchange": "v:x A", "hops": hops}


def test_a_first_hand_binding_carries_who_wants_it() -> None:
    """R-FX-8."""
    (binding,) = link_bindings.desired([("k", {"a": 1})], ENDS).values()
    assert binding.routing_key == "k"
    assert binding.arguments == {
        "a": 1,
        "x-bound-from": [
            {"cluster-name": "here", "vhost": "v", "exchange": "v:x B", "hops": 2},
        ],
    }


def test_bindings_that_are_equal_are_one_upstream() -> None:
    """R-FX-7, R-OPEN-8: by key and arguments, whatever they lead to."""
    bindings: list[tuple[str, Table]] = [("k", {}), ("k", {}), ("k", {"a": 1}), ("l", {})]
    assert len(link_bindings.desired(bindings, ENDS)) == 3


@pytest.mark.parametrize(
    ("previous", "max_hops", "expected"),
    [(3, 5, 2), (3, 1, 1), (2, 1, 1), (1, 5, 0), (0, 5, 0), (-4, 5, 0)],
)
def test_hops_shrink_from_link_to_link(previous: int, max_hops: int, expected: int) -> None:
    """R-FX-8, R-FX-9: min(previous - 1, own max-hops), and not at all with 0."""
    older = came_from("far", "v", previous)
    found = link_bindings.propagate(
        "k", {"x-bound-from": [older]}, replace(ENDS, max_hops=max_hops)
    )
    if not expected:
        assert found is None
        return
    assert found is not None
    carried = found.arguments["x-bound-from"]
    assert isinstance(carried, list)
    assert carried == [came_from("here", "v", expected) | {"exchange": "v:x B"}, older]


def test_a_binding_does_not_go_back_to_where_it_has_been() -> None:
    """R-FX-9: by cluster and vhost together."""
    seen: Table = {"x-bound-from": [came_from("a", "v", 9), came_from("there", "u", 9)]}
    other: Table = {"x-bound-from": [came_from("a", "v", 9), came_from("there", "w", 9)]}
    assert link_bindings.propagate("k", seen, ENDS) is None
    assert link_bindings.propagate("k", other, ENDS) is not None


@pytest.mark.parametrize(
    "strange",
    [["text"], [{}], [{"hops": "many"}], [{"hops": True}], [came_from("a", "v", 9)] * 300],
)
def test_a_strange_x_bound_from_is_not_carried_on(strange: list[Value]) -> None:
    assert link_bindings.propagate("k", {"x-bound-from": strange}, ENDS) is None


def test_changes_are_the_difference_additions_first() -> None:
    """R-FX-7, R-FX-10."""
    propagated = link_bindings.Propagated()
    first = propagated.update(link_bindings.desired([("a", {}), ("b", {})], ENDS))
    assert [binding.routing_key for binding in first.add] == ["a", "b"]
    second = propagated.update(link_bindings.desired([("b", {}), ("c", {})], ENDS))
    assert [binding.routing_key for binding in second.add] == ["c"]
    assert [binding.routing_key for binding in second.remove] == ["a"]
    assert not propagated.update(link_bindings.desired([("c", {}), ("b", {})], ENDS))
    assert len(propagated) == 2
