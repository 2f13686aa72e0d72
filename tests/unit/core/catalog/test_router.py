"""Routing over direct, fanout, topic, default and chains of exchanges (R-RT)."""

from __future__ import annotations

import pytest

from brokerd.core.catalog import names, router
from tests.unit.core.catalog_driver import CatalogDriver


@pytest.fixture
def catalog() -> CatalogDriver:
    driver = CatalogDriver()
    for name in ("q1", "q2", "q3"):
        driver.queue(name)
    return driver


def test_direct_matches_the_key_byte_for_byte(catalog: CatalogDriver) -> None:
    """R-RT-D1: the empty key is a key like others."""
    catalog.exchange("x")
    catalog.bind("x", "q1", "a")
    catalog.bind("x", "q2", "")
    assert catalog.routed("x", "a") == ["q1"]
    assert catalog.routed("x", "") == ["q2"]
    assert catalog.routed("x", "A") == []


def test_fanout_ignores_keys_and_headers(catalog: CatalogDriver) -> None:
    """R-RT-F1."""
    catalog.exchange("x", "fanout")
    catalog.bind("x", "q1", "a")
    catalog.bind("x", "q2", "b")
    assert catalog.routed("x", "zzz") == ["q1", "q2"]


def test_topic_exchange_matches_patterns(catalog: CatalogDriver) -> None:
    """R-RT-T1."""
    catalog.exchange("x", "topic")
    catalog.bind("x", "q1", "a.*")
    catalog.bind("x", "q2", "#.c")
    assert catalog.routed("x", "a.c") == ["q1", "q2"]
    assert catalog.routed("x", "a.b.c") == ["q2"]


def test_default_exchange_routes_by_queue_name_once_per_key(catalog: CatalogDriver) -> None:
    """R-RT-0, R-RT-C5."""
    assert catalog.routed("", "q1") == ["q1"]
    assert catalog.routed("", "q1", extra_keys=("q2", "q1", "nope")) == ["q1", "q2"]
    assert catalog.route("", "nope").unroutable


def test_a_queue_gets_one_copy_over_any_number_of_ways(catalog: CatalogDriver) -> None:
    """R-RT-2."""
    catalog.exchange("x", "topic")
    catalog.exchange("y", "fanout")
    for key in ("a", "*", "#"):
        catalog.bind("x", "q1", key)
    catalog.bind("x", "y", "a", kind="exchange")
    catalog.bind("y", "q1")
    assert [queue.name for queue in catalog.route("x", "a", extra_keys=("a", "b")).queues] == ["q1"]


def test_an_exchange_bound_to_itself_ends_with_one_copy(catalog: CatalogDriver) -> None:
    """R-RT-4, R-BND-10."""
    catalog.exchange("x", "fanout")
    catalog.exchange("y", "fanout")
    catalog.bind("x", "x", kind="exchange")
    catalog.bind("x", "y", kind="exchange")
    catalog.bind("y", "x", kind="exchange")
    catalog.bind("y", "q1")
    assert catalog.routed("x") == ["q1"]


def test_destination_exchange_matches_with_the_same_keys(catalog: CatalogDriver) -> None:
    """R-RT-E2."""
    catalog.exchange("x", "fanout")
    catalog.exchange("y", "direct")
    catalog.bind("x", "y", kind="exchange")
    catalog.bind("y", "q1", "k1")
    catalog.bind("y", "q2", "k2")
    assert catalog.routed("x", "k1", extra_keys=("k2",)) == ["q1", "q2"]
    assert catalog.routed("x", "k1") == ["q1"]


def test_bindings_to_a_queue_and_an_exchange_of_one_name_differ(catalog: CatalogDriver) -> None:
    """R-RT-E3."""
    catalog.exchange("x", "fanout")
    catalog.exchange("q1", "fanout")
    catalog.bind("q1", "q2")
    catalog.bind("x", "q1", "k")
    catalog.bind("x", "q1", "k", kind="exchange")
    assert catalog.routed("x") == ["q1", "q2"]
    catalog.unbind("x", "q1", "k")
    assert catalog.routed("x") == ["q2"]


def test_all_keys_take_part(catalog: CatalogDriver) -> None:
    """R-RT-C2."""
    catalog.exchange("x", "direct")
    catalog.bind("x", "q1", "a")
    catalog.bind("x", "q2", "b")
    assert catalog.routed("x", "a", extra_keys=("b",)) == ["q1", "q2"]


def test_missing_exchange_and_vhost_are_told_apart_from_unroutable(catalog: CatalogDriver) -> None:
    catalog.exchange("x")
    assert catalog.route("nope").exchange is None
    assert catalog.router.route("nope", "x", "").exchange is None
    result = catalog.route("x", "k")
    assert result.exchange is not None
    assert result.unroutable


def test_cached_route_is_the_same_object_until_the_topology_changes(catalog: CatalogDriver) -> None:
    catalog.exchange("x")
    catalog.bind("x", "q1", "a")
    first = catalog.route("x", "a")
    assert catalog.route("x", "a") is first
    catalog.bind("x", "q2", "a")
    assert catalog.routed("x", "a") == ["q1", "q2"]
    catalog.delete("queue", "q1")
    assert catalog.routed("x", "a") == ["q2"]
    catalog.unbind("x", "q2", "a")
    assert catalog.route("x", "a").unroutable


def test_a_change_in_another_vhost_leaves_cached_routes_alone(catalog: CatalogDriver) -> None:
    catalog.exchange("x")
    first = catalog.route("x", "a")
    catalog.put("vhost", "other", {}, vhost="")
    catalog.put("exchange", "x", {"type": "fanout"}, vhost="other")
    assert catalog.route("x", "a") is first


def test_vhost_that_is_made_again_is_not_served_from_the_cache(catalog: CatalogDriver) -> None:
    catalog.exchange("x", "fanout")
    catalog.bind("x", "q1")
    assert catalog.routed("x") == ["q1"]
    catalog.delete("vhost", "/", vhost="")
    assert catalog.route("x").exchange is None
    catalog.put("vhost", "/", {}, vhost="")
    assert catalog.route("x").exchange is None
    assert catalog.route("amq.fanout").unroutable


def test_restored_catalog_is_not_served_from_the_cache(catalog: CatalogDriver) -> None:
    catalog.exchange("x", "fanout")
    snapshot = catalog.machine.snapshot()
    catalog.bind("x", "q1")
    assert catalog.routed("x") == ["q1"]
    catalog.machine.restore(snapshot)
    assert catalog.routed("x") == []


@pytest.mark.plain
def test_cache_is_bounded_and_keeps_what_is_asked_often(
    catalog: CatalogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "CACHED_ROUTES_MAX", 10)
    catalog.exchange("x", "fanout")
    often = catalog.route("x", "often")
    for number in range(100):
        catalog.route("x", f"random {number}")
        assert catalog.route("x", "often") is often
    cache = catalog.router._caches["/"]
    assert len(cache.new) + len(cache.old) <= 20


def test_every_vhost_has_its_default_exchanges(catalog: CatalogDriver) -> None:
    """R-EX-1."""
    catalog.put("vhost", "v", {}, vhost="")
    for name, type_, internal in names.DEFAULT_EXCHANGES:
        exchange = catalog.view.exchange("v", name)
        assert exchange is not None
        assert (exchange.type, exchange.internal, exchange.durable) == (type_, internal, True)


def test_a_route_to_some_of_its_queues_is_the_same_otherwise(catalog: CatalogDriver) -> None:
    """R-AE-14: a queue that has gone before the commit."""
    catalog.exchange("ae", "fanout")
    catalog.exchange("x", arguments={"alternate-exchange": "ae"})
    catalog.bind("ae", "q1", "")
    catalog.bind("ae", "q2", "")
    result = catalog.route("x", "k")
    some = result.with_queues(result.queues[1:])
    assert [queue.name for queue in some.queues] == ["q2"]
    # Not `__slots__`: the compiled class has none.
    names = [name for name in dir(result) if not name.startswith("_") and name != "queues"]
    assert {
        "exchange",
        "alternates",
        "ae_missing",
        "ae_cycle",
        "needs_headers",
        "checks_hops",
    } <= set(names)
    for name in names:
        if not callable(getattr(result, name)):
            assert getattr(some, name) == getattr(result, name), name
