"""Exchange types that choose one destination of many, by a hash or at random."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.core.catalog import spread
from brokerd.core.catalog.catalog_objects import Binding
from brokerd.core.catalog.refusals import Refused
from brokerd.core.catalog.spread import Asked, SpreadIndex
from tests.unit.core.catalog_driver import VHOST, CatalogDriver

KEYS = [f"order-{number}" for number in range(4_000)]


def binding(queue: str, weight: str = "1", *, revision: int = 1, name: str = "") -> Binding:
    spec = {
        "source": "spread",
        "destination_kind": "queue",
        "destination": queue,
        "routing_key": weight,
        "arguments": {},
    }
    made = Binding(VHOST, name or f"{queue}/{weight}", spec)
    made.revision = revision
    return made


def index(
    weights: Mapping[str, int] | Sequence[str],
    exchange_type: str = spread.CONSISTENT_HASH,
    arguments: Mapping[str, Any] | None = None,
) -> SpreadIndex:
    made = SpreadIndex(exchange_type, arguments or {})
    for queue in weights:
        weight = weights[queue] if isinstance(weights, Mapping) else 1
        made.add(binding(queue, str(weight)), (True, queue))
    return made


def route(
    of: SpreadIndex,
    key: str,
    headers: Mapping[str, Any] | None = None,
    property_of: Callable[[bytes, str], object] | None = None,
) -> str:
    found: dict[tuple[bool, str], None] = {}
    of.match(Asked((key, "copy"), headers, b"properties", property_of), found)
    [(is_queue, name)] = found
    assert is_queue
    return name


def test_a_key_goes_to_one_queue_and_keys_to_all_by_weight() -> None:
    of = index({"a": 1, "b": 1, "c": 2})
    counts = Counter(route(of, key) for key in KEYS)
    assert [counts[name] / len(KEYS) for name in "abc"] == pytest.approx(
        [0.25, 0.25, 0.5], abs=0.03
    )
    assert [route(of, key) for key in KEYS[:50]] == [route(of, key) for key in KEYS[:50]]


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(st.sampled_from([f"q{n}" for n in range(12)]), st.integers(1, 10), min_size=1),
    st.integers(1, 10),
    st.randoms(use_true_random=False),
)
def test_only_the_keys_of_a_new_queue_move_and_the_order_of_bindings_says_nothing(
    weights: dict[str, int], weight: int, rng: Any
) -> None:
    keys = KEYS[:300]
    before = {key: route(index(weights), key) for key in keys}
    of = index(weights)
    new = binding("new", str(weight))
    of.add(new, (True, "new"))
    after = {key: route(of, key) for key in keys}
    assert {after[key] for key in keys if after[key] != before[key]} <= {"new"}
    shuffled = list(weights.items())
    rng.shuffle(shuffled)
    assert {key: route(index(dict(shuffled)), key) for key in keys} == before
    of.remove(new, (True, "new"))
    assert {key: route(of, key) for key in keys} == before


def test_a_new_queue_takes_its_share_and_no_more() -> None:
    names = [f"q{number}" for number in range(9)]
    before, after = index(names), index([*names, "q9"])
    moved = sum(route(before, key) != route(after, key) for key in KEYS)
    assert moved / len(KEYS) == pytest.approx(0.1, abs=0.02)


def test_the_oldest_binding_of_a_queue_says_its_weight() -> None:
    of = index({"a": 1})
    of.add(binding("b", "9", revision=7), (True, "b"))
    of.add(binding("b", "1", revision=3), (True, "b"))
    counts = Counter(route(of, key) for key in KEYS)
    assert counts["b"] / len(KEYS) == pytest.approx(0.5, abs=0.03)


def test_a_stored_weight_that_is_none_counts_as_1() -> None:
    """Definitions of another broker; no route may fail for them."""
    of = SpreadIndex(spread.CONSISTENT_HASH, {})
    of.add(binding("a", "many"), (True, "a"))
    assert route(of, "key") == "a"


def test_a_header_is_hashed_and_what_is_missing_has_one_place() -> None:
    of = index([f"q{number}" for number in range(8)], arguments={"hash-header": "tenant"})
    assert of.needs_headers
    places = {route(of, "key", {"tenant": f"t{number}"}) for number in range(200)}
    assert len(places) == 8
    assert route(of, "one", {"tenant": b"t1"}) == route(of, "two", {"tenant": "t1"})
    assert route(of, "one", {"tenant": 7}) == route(of, "two", {"tenant": 7})
    missing = {route(of, key, headers) for key in KEYS[:20] for headers in ({}, None, {"x": 1})}
    assert len(missing) == 1


def test_a_property_is_hashed() -> None:
    of = index([f"q{number}" for number in range(8)], arguments={"hash-property": "message_id"})
    asked = []

    def property_of(header: bytes, name: str) -> object:
        asked.append((header, name))
        return "m1"

    first = route(of, "one", {}, property_of)
    assert route(of, "two", {}, property_of) == first
    assert asked == [(b"properties", "message_id")] * 2
    assert route(of, "one", {}) == route(of, "two", {}, lambda *_: None)


def test_modulus_hash_counts_by_name() -> None:
    of = index(["b", "a", "c"], spread.MODULUS_HASH, {"hash-header": "not for this type"})
    assert not of.needs_headers
    counts = Counter(route(of, key) for key in KEYS)
    assert [counts[name] / len(KEYS) for name in "abc"] == pytest.approx([1 / 3] * 3, abs=0.03)
    assert route(of, "x") == route(index(["c", "b", "a"], spread.MODULUS_HASH), "x")


def test_random_goes_anywhere_and_to_one_queue() -> None:
    of = index("abc", spread.RANDOM)
    assert of.needs_headers, "a route is not kept"
    counts = Counter(route(of, "key") for _ in KEYS)
    assert [counts[name] / len(KEYS) for name in "abc"] == pytest.approx([1 / 3] * 3, abs=0.04)
    pairs = [route(of, "key") for _ in KEYS]
    assert any(one == two for one, two in pairwise(pairs)), "no round robin"


def test_local_random_goes_to_the_queues_that_are_led_here() -> None:
    of = index("abcd", spread.LOCAL_RANDOM)
    # Stored by another broker: an exchange is led nowhere.
    of.add(binding("a", "", name="to an exchange"), (False, "a"))
    assert of.needs_headers, "a route is not kept"

    def places(here: str) -> set[tuple[bool, str]]:
        found: dict[tuple[bool, str], None] = {}
        for _ in range(60):
            of.match(Asked(("key",), {}, is_local=lambda name: name in here), found)
        return set(found)

    assert places("ac") == {(True, "a"), (True, "c")}
    assert places("d") == {(True, "d")}
    assert places("") == set()
    unasked: dict[tuple[bool, str], None] = {}
    of.match(Asked(("key",), {}), unasked)
    assert unasked == {}


def test_without_bindings_nothing_is_found() -> None:
    found: dict[tuple[bool, str], None] = {}
    for exchange_type in spread.TYPES:
        SpreadIndex(exchange_type, {}).match(Asked(("key",), {}), found)
    assert found == {}


# ---- declarations and routes ---------------------------------------------------------------------


@pytest.fixture
def driver() -> CatalogDriver:
    made = CatalogDriver()
    for queue in ("q1", "q2", "q3"):
        made.queue(queue)
    return made


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hash-header": "a", "hash-property": "message_id"}, "mutually exclusive"),
        ({"hash-property": "app_id"}, "Unsupported property: app_id"),
        ({"hash-header": 7}, "hash-header must be the name of a header"),
    ],
)
def test_a_declaration_says_what_is_hashed(
    driver: CatalogDriver, arguments: dict[str, Any], text: str
) -> None:
    refused = driver.exchange("spread", spread.CONSISTENT_HASH, arguments=arguments)
    assert isinstance(refused, Refused)
    assert text in refused.text
    assert not isinstance(driver.exchange("other", spread.RANDOM, arguments=arguments), Refused)


@pytest.mark.parametrize("key", ["", "0", "-1", "a", "1.5", "10001", "9" * 200, "٣"])
def test_a_binding_key_is_a_weight(driver: CatalogDriver, key: str) -> None:
    driver.exchange("spread", spread.CONSISTENT_HASH)
    driver.exchange("other", spread.MODULUS_HASH)
    refused = driver.bind("spread", "q1", key)
    assert isinstance(refused, Refused)
    assert "an integer from 1 to 10000" in refused.text
    for exchange, allowed in (("other", key), ("spread", "10000")):
        assert not isinstance(driver.bind(exchange, "q1", allowed), Refused)


def test_a_local_random_exchange_is_bound_to_queues_without_a_key(driver: CatalogDriver) -> None:
    driver.exchange("near", spread.LOCAL_RANDOM)
    driver.exchange("other", spread.RANDOM)
    for refused, text in (
        (driver.bind("near", "q1", "k"), "Non empty binding 'k' key not permitted"),
        (driver.bind("near", "other", "", kind="exchange"), "is bound to queues only"),
    ):
        assert isinstance(refused, Refused)
        assert refused.code == 406
        assert text in refused.text
    assert not isinstance(driver.bind("near", "q1", ""), Refused)


def test_a_router_asks_where_queues_are_led(driver: CatalogDriver) -> None:
    """R-AE-1: where none is local, the alternate exchange has the message."""
    driver.exchange("else", "fanout")
    driver.bind("else", "q3", "")
    driver.exchange("near", spread.LOCAL_RANDOM, arguments={"alternate-exchange": "else"})
    for queue in ("q1", "q2"):
        driver.bind("near", queue, "")
    assert [q.name for q in driver.route("near", "", headers={}).queues] == ["q3"], "none known"
    for name in ("q1", "q2"):
        led = {driver.found(name).uid}
        driver.router.leads = led.__contains__
        result = driver.route("near", "", headers={})
        assert ([q.name for q in result.queues], result.used_alternate) == ([name], 0)


def test_each_message_of_a_random_exchange_has_its_own_route(driver: CatalogDriver) -> None:
    driver.exchange("spread", spread.RANDOM)
    for queue in ("q1", "q2", "q3"):
        driver.bind("spread", queue, "")
    assert driver.route("spread", "key").needs_headers
    found = [driver.route("spread", "key", headers={}).queues for _ in range(60)]
    assert {len(queues) for queues in found} == {1}
    assert {queue.name for [queue] in found} == {"q1", "q2", "q3"}


def test_keys_are_routed_once_and_then_known(driver: CatalogDriver) -> None:
    driver.exchange("spread", spread.CONSISTENT_HASH)
    for queue in ("q1", "q2", "q3"):
        driver.bind("spread", queue, "10")
    first = driver.route("spread", "key")
    assert not first.needs_headers
    assert driver.route("spread", "key") is first
    assert driver.route("spread", "key", headers={}, extra_keys=("q2",)).queues == first.queues
