"""Alternate exchanges (R-AE): the references' own examples and every way a chain can end."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.catalog import policy
from tests.unit.core.catalog_driver import VHOST, CatalogDriver


@pytest.fixture
def catalog() -> CatalogDriver:
    driver = CatalogDriver()
    for name in ("routed", "unrouted", "third"):
        driver.queue(name)
    return driver


def alternate(name: str) -> dict[str, Any]:
    return {"arguments": {"alternate-exchange": name}}


def test_the_example_of_the_2009_page(catalog: CatalogDriver) -> None:
    """R-AE-2: direct my-direct with a fanout alternate."""
    catalog.exchange("my-direct", "direct", **alternate("my-ae"))
    catalog.exchange("my-ae", "fanout")
    catalog.bind("my-direct", "routed", "key1")
    catalog.bind("my-ae", "unrouted")
    assert catalog.routed("my-direct", "key1") == ["routed"]
    assert catalog.route("my-direct", "key1").used_alternate == 0
    assert catalog.routed("my-direct", "key2") == ["unrouted"]
    assert catalog.route("my-direct", "key2").alternates == (("my-direct", "my-ae"),)


def test_chain_of_three_ends_at_the_first_that_matches(catalog: CatalogDriver) -> None:
    """R-AE-3: each alternate is routed in full, its own type and alternate included."""
    catalog.exchange("a", "direct", **alternate("b"))
    catalog.exchange("b", "topic", **alternate("c"))
    catalog.exchange("c", "fanout")
    catalog.bind("b", "third", "x.#")
    catalog.bind("c", "unrouted")
    assert catalog.routed("a", "x.y") == ["third"]
    assert catalog.routed("a", "z") == ["unrouted"]
    assert catalog.route("a", "z").used_alternate == 2


@pytest.mark.parametrize("chain", [("a",), ("a", "b"), ("a", "b", "c")])
def test_cycle_of_alternates_ends_unroutable(
    catalog: CatalogDriver, chain: tuple[str, ...]
) -> None:
    """R-AE-3, R-RT-4: the exchange itself, two and three in a ring."""
    for name, following in zip(chain, chain[1:] + chain[:1], strict=True):
        catalog.exchange(name, "direct", **alternate(following))
    result = catalog.route("a", "k")
    assert result.unroutable
    assert result.ae_cycle
    assert result.used_alternate == len(chain) - 1


def test_missing_alternate_is_reported_and_used_once_it_exists(catalog: CatalogDriver) -> None:
    """R-AE-4, R-AE-8."""
    catalog.exchange("x", "direct", **alternate("m"))
    result = catalog.route("x", "k")
    assert (result.unroutable, result.ae_missing) == (True, ("x", "m"))
    catalog.exchange("m", "fanout", internal=True)
    catalog.bind("m", "unrouted")
    result = catalog.route("x", "k")
    assert [queue.name for queue in result.queues] == ["unrouted"]
    assert result.ae_missing is None
    catalog.delete("exchange", "m")
    assert catalog.route("x", "k").ae_missing == ("x", "m")


def test_alternate_does_not_fire_when_any_key_matched(catalog: CatalogDriver) -> None:
    """R-RT-C4."""
    catalog.exchange("x", "direct", **alternate("ae"))
    catalog.exchange("ae", "fanout")
    catalog.bind("ae", "unrouted")
    catalog.bind("x", "routed", "cc")
    assert catalog.routed("x", "miss", extra_keys=("cc",)) == ["routed"]
    assert catalog.routed("x", "miss", extra_keys=("miss too",)) == ["unrouted"]


def test_dead_end_uses_its_own_alternate_not_the_sources(catalog: CatalogDriver) -> None:
    """R-RT-E1."""
    catalog.exchange("x", "direct", **alternate("ae-of-x"))
    catalog.exchange("ae-of-x", "fanout")
    catalog.bind("ae-of-x", "unrouted")
    catalog.exchange("dead-end", "direct", **alternate("ae-of-end"))
    catalog.bind("x", "dead-end", "k", kind="exchange")
    result = catalog.route("x", "k")
    assert result.unroutable
    assert result.ae_missing == ("dead-end", "ae-of-end")
    catalog.exchange("ae-of-end", "fanout")
    catalog.bind("ae-of-end", "third")
    assert catalog.routed("x", "k") == ["third"]


def test_default_exchange_as_alternate_routes_nowhere(catalog: CatalogDriver) -> None:
    """R-AE-12."""
    catalog.exchange("x", "direct", **alternate(""))
    assert catalog.route("x", "routed").unroutable


def test_argument_beats_policy_and_policy_alone_works(catalog: CatalogDriver) -> None:
    """R-AE-1, R-AE-18: the next publish after a change."""
    catalog.exchange("arg", "direct", **alternate("by-arg"))
    catalog.exchange("pol", "direct")
    catalog.exchange("by-arg", "fanout")
    catalog.exchange("by-policy", "fanout")
    catalog.bind("by-arg", "third")
    catalog.bind("by-policy", "unrouted")
    assert catalog.route("pol", "k").unroutable
    definition = {"alternate-exchange": "by-policy"}
    catalog.put("policy", "p", {"pattern": "^(arg|pol)$", "definition": definition})
    assert catalog.routed("arg", "k") == ["third"]
    assert catalog.routed("pol", "k") == ["unrouted"]
    catalog.delete("policy", "p")
    assert catalog.route("pol", "k").unroutable


def test_inline_setting_ranks_as_argument(catalog: CatalogDriver) -> None:
    """design/operator.md §5.2."""
    spec: dict[str, Any] = {"type": "direct", "settings": {"alternate-exchange": "inline"}}
    catalog.put("exchange", "x", spec)
    catalog.exchange("inline", "fanout")
    catalog.bind("inline", "third")
    definition = {"alternate-exchange": "by-policy"}
    catalog.put("policy", "p", {"pattern": "^x$", "definition": definition})
    assert catalog.routed("x", "k") == ["third"]
    catalog.put("exchange", "x", spec | {"settings": {}})
    assert catalog.route("x", "k").ae_missing == ("x", "by-policy")


def test_default_exchange_never_has_an_alternate(catalog: CatalogDriver) -> None:
    """R-AE-13, R-POL-4."""
    catalog.put("policy", "p", {"pattern": ".*", "definition": {"alternate-exchange": "ae"}})
    catalog.exchange("ae", "fanout")
    catalog.bind("ae", "unrouted")
    assert catalog.route("", "nope").unroutable


def test_headers_alternate_asks_for_headers_only_when_it_is_reached(
    catalog: CatalogDriver,
) -> None:
    catalog.exchange("x", "direct", **alternate("h"))
    catalog.exchange("h", "headers")
    catalog.bind("x", "routed", "k")
    catalog.bind("h", "unrouted", "", {"x-match": "all", "kind": "lost"})
    assert not catalog.route("x", "k").needs_headers
    assert catalog.route("x", "miss").needs_headers
    assert catalog.routed("x", "miss", headers={"kind": "lost"}) == ["unrouted"]
    assert catalog.route("x", "miss", headers={}).unroutable


def test_no_queue_of_a_vhost_that_is_gone_has_an_alternate(catalog: CatalogDriver) -> None:
    assert policy.queues_with_alternate(catalog.view, "gone", "x") == []


def test_a_route_does_not_follow_an_exchange_that_is_not_there(catalog: CatalogDriver) -> None:
    """R-RT-1: pushed only if it exists"""
    catalog.exchange("x", "fanout")
    catalog.exchange("y", "fanout")
    catalog.bind("x", "y", kind="exchange")
    del catalog.view.vhosts[VHOST].exchanges["y"]
    assert catalog.routed("x") == []
