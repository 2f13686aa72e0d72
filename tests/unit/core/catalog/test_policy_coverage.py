"""What policies hold for: matched, won, overridden, and what is under none (8.14)."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.catalog.policy_coverage import PolicyCoverage, PolicyUse
from tests.unit.core.catalog.test_policy import put, put_operator
from tests.unit.core.catalog_driver import VHOST, CatalogDriver

QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture
def catalog() -> CatalogDriver:
    return CatalogDriver()


def looked(catalog: CatalogDriver) -> PolicyCoverage:
    coverage = PolicyCoverage(catalog.view)
    topology = catalog.view.vhosts[VHOST]
    for record in (*topology.exchanges.values(), *topology.queues.values()):
        coverage.look(record)
    return coverage


def use(catalog: CatalogDriver, name: str, kind: str = "policy") -> PolicyUse:
    return looked(catalog).policies[VHOST, kind, name]


def without(catalog: CatalogDriver) -> dict[str, tuple[int, int]]:
    objects = looked(catalog).objects
    return {kind: (each.count, each.without_policy) for (_, kind), each in objects.items()}


def test_objects_are_counted_by_kind_and_whether_a_policy_holds_for_them(
    catalog: CatalogDriver,
) -> None:
    """Exchanges that no client made are none to speak of, nor is an operator's policy a policy."""
    catalog.queue("a")
    catalog.queue("b")
    catalog.queue("q", arguments=QUORUM)
    catalog.exchange("x")
    put(catalog, "p", {"max-length": 1}, pattern="^a$", apply_to="queues")
    put_operator(catalog, "o", {"max-length": 9})
    assert without(catalog) == {"classic": (2, 1), "quorum": (1, 1), "exchange": (1, 1)}


def test_a_policy_fits_and_wins_by_kind(catalog: CatalogDriver) -> None:
    """R-POL-4: of the exchanges that every vhost has, it fits all but the default one."""
    catalog.queue("a")
    catalog.queue("q", arguments=QUORUM)
    catalog.exchange("x")
    put(catalog, "p", {"max-length": 1})
    found = use(catalog, "p")
    assert found.matched == found.won == {"classic": 1, "quorum": 1, "exchange": 7}
    assert (found.apply_to, found.priority, found.lost_to) == ("all", 0, "")


def test_a_policy_that_fits_nothing_is_there_with_nothing(catalog: CatalogDriver) -> None:
    """R-POL-9: one whose key the queue's type does not know does not fit it."""
    catalog.queue("a")
    put(catalog, "p", {"max-length": 1}, pattern="^nothing")
    put(catalog, "quorum-only", {"delivery-limit": 1}, apply_to="queues")
    assert (use(catalog, "p").matched, use(catalog, "quorum-only").matched) == ({}, {})


def test_who_never_wins_is_told_with_who_does(catalog: CatalogDriver) -> None:
    """R-POL-3; policies of users and of operators do not compete (R-POL-8)."""
    catalog.queue("a")
    catalog.queue("b")
    put(catalog, "low", {"max-length": 1}, pattern="^a$", apply_to="queues", priority=1)
    put(catalog, "high", {"max-length": 2}, apply_to="queues", priority=2)
    put_operator(catalog, "o", {"max-length": 9})
    low, high = use(catalog, "low"), use(catalog, "high")
    assert (low.matched, low.won, low.lost_to) == ({"classic": 1}, {}, "high")
    assert (high.matched, high.won, high.lost_to) == ({"classic": 2}, {"classic": 2}, "")
    assert use(catalog, "o", "operator_policy").won == {"classic": 2}


@pytest.mark.parametrize(
    ("arguments", "definition", "overridden"),
    [
        ({"x-max-length": 3}, {"max-length": 5, "expires": 9}, {"max-length": 1}),
        # R-POL-6: the smaller one holds, which is the policy's.
        ({"x-max-length": 7}, {"max-length": 5}, {}),
        ({"x-max-length": 5}, {"max-length": 5}, {}),
        ({"x-dead-letter-exchange": "own"}, {"dead-letter-exchange": "p"},
         {"dead-letter-exchange": 1}),
        ({}, {"max-length": 5}, {}),
    ],
)  # fmt: skip
def test_an_argument_in_place_of_a_policys_key_is_told(
    catalog: CatalogDriver,
    arguments: dict[str, Any],
    definition: dict[str, Any],
    overridden: dict[str, int],
) -> None:
    """R-POL-6."""
    catalog.queue("q", arguments=arguments)
    put(catalog, "p", definition, apply_to="queues")
    assert use(catalog, "p").overridden == overridden


def test_what_an_operator_lowers_is_not_overridden_by_the_queue(catalog: CatalogDriver) -> None:
    """R-POL-8: neither policy's value is the queue's own."""
    catalog.queue("q", arguments={"x-max-length": 7})
    put(catalog, "p", {"max-length": 10}, apply_to="queues")
    put_operator(catalog, "o", {"max-length": 5})
    assert use(catalog, "p").overridden == {}


def test_arguments_and_settings_of_exchanges_come_before_policies(catalog: CatalogDriver) -> None:
    """R-AE-1, R-POL-11: one way of federation in place of another."""
    catalog.exchange("x", arguments={"alternate-exchange": "own"})
    spec = {"type": "topic", "durable": True, "settings": {"federation-upstream-set": "all"}}
    assert catalog.put("exchange", "fed", spec)["code"] == "OK"
    definition = {"alternate-exchange": "ae", "federation-upstream": "u"}
    put(catalog, "p", definition, pattern="^(x|fed)$", apply_to="exchanges")
    assert use(catalog, "p").overridden == {"alternate-exchange": 1, "federation-upstream": 1}


def test_a_policy_that_comes_in_the_middle_waits_for_the_next_look(catalog: CatalogDriver) -> None:
    catalog.queue("q")
    coverage = PolicyCoverage(catalog.view)
    put(catalog, "late", {"max-length": 5})
    coverage.look(catalog.found("q"))
    assert coverage.policies == {}
    assert use(catalog, "late").won["classic"] == 1
