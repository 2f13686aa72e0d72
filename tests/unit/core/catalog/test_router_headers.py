"""Headers exchanges (R-RT-H)."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.profiles import profile
from tests.unit.core.catalog_driver import CatalogDriver, is_refused


def matches(arguments: dict[str, Any], headers: dict[str, Any], profile_: str = "brokerd") -> bool:
    catalog = CatalogDriver(profile(profile_))
    catalog.exchange("h", "headers")
    catalog.queue("q")
    catalog.bind("h", "q", "", arguments)
    return catalog.routed("h", headers=headers) == ["q"]


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        # R-RT-H1
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x"}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
        ({"x-match": "any", "a": 1, "b": "x"}, {"b": "y"}, False),
        ({"x-match": "all", "a": 1, "x-b": 2}, {"a": 1}, True),
        ({"x-match": "all-with-x", "a": 1, "x-b": 2}, {"a": 1}, False),
        ({"x-match": "all-with-x", "a": 1, "x-b": 2}, {"a": 1, "x-b": 2}, True),
        ({"x-match": "any-with-x", "a": 1, "x-b": 2}, {"x-b": 2}, True),
        ({"x-match": "any", "a": 1, "x-b": 2}, {"x-b": 2}, False),
        # R-RT-H2
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {"b": 1}, False),
        # R-RT-H4
        ({"a": "1"}, {"a": 1}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": {"$bytes": "YQ=="}}, {"a": b"a"}, True),
        # Text and the same bytes meet in 4.3.6 as in 3.10.8.
        ({"a": "a"}, {"a": b"a"}, True),
        ({"a": "a"}, {"a": b"b"}, False),
        ({"a": {"$bytes": "YQ=="}}, {"a": "a"}, True),
        ({"a": {"$bytes": "YQ=="}}, {"a": 1}, False),
        ({"a": [1, {"b": "c"}]}, {"a": [1, {"b": "c"}]}, True),
        ({"a": [1, {"b": "c"}]}, {"a": [1, {"b": "d"}]}, False),
        # R-RT-H5
        ({"x-match": "all"}, {}, True),
        ({"x-match": "all-with-x"}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "any-with-x"}, {}, False),
        ({"x-only": 1}, {}, True),
        # R-RT-H6
        ({"a": 1}, {}, False),
    ],
)
def test_binding_matches_message(
    arguments: dict[str, Any], headers: dict[str, Any], expected: bool
) -> None:
    assert matches(arguments, headers) is expected


def test_one_equals_one_point_zero_only_where_the_profile_says_loose() -> None:
    """R-RT-H4."""
    assert not matches({"a": 1}, {"a": 1.0})
    assert matches({"a": 1}, {"a": 1.0}, "rabbitmq-3.10")
    assert not matches({"a": 1}, {"a": "1"}, "rabbitmq-3.10")


@pytest.mark.parametrize(
    ("wanted", "header", "expected"),
    [
        ({"$timestamp": 7}, 7, True),
        ({"$timestamp": 7}, 7.0, True),
        ({"$timestamp": 7}, 8, False),
        ({"$bytes": "YQ=="}, "a", True),
        ({"$bytes": "/w=="}, "\udcff", True),
        ("a", b"a", True),
        ("a", b"b", False),
        (1, True, False),
        (True, 1, False),
        ({"$decimal": [0, 1]}, 1, False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ([1], [1], True),
    ],
)
def test_loose_matching_looks_at_values_not_at_their_types(
    wanted: Any, header: Any, expected: bool
) -> None:
    """R-RT-H4: as RabbitMQ 3.10 does; the strict profile knows none of the crossings but text
    and bytes.
    """
    assert matches({"a": wanted}, {"a": header}, "rabbitmq-3.10") is expected
    if type(header) is not bytes and type(wanted) is not type(header) and type(wanted) is not dict:
        assert not matches({"a": wanted}, {"a": header})


def test_bad_x_match_is_refused_with_rabbitmqs_texts() -> None:
    """R-RT-H3, R-ERR-43."""
    catalog = CatalogDriver()
    catalog.exchange("h", "headers")
    catalog.queue("q")
    is_refused(
        catalog.bind("h", "q", "", {"x-match": "zz"}),
        406,
        'Invalid x-match field value <<"zz">>; expected all, any, all-with-x, or any-with-x',
    )
    is_refused(
        catalog.bind("h", "q", "", {"x-match": 1}),
        406,
        "Invalid x-match field type signedint (value 1); expected longstr",
    )


def test_result_is_not_cached_across_headers() -> None:
    catalog = CatalogDriver()
    catalog.exchange("h", "headers")
    for number in range(3):
        catalog.queue(f"q{number}")
        catalog.bind("h", f"q{number}", "", {"n": number})
    assert catalog.route("h").needs_headers
    assert [catalog.routed("h", headers={"n": n}) for n in (0, 1, 2, 3)] == [
        ["q0"],
        ["q1"],
        ["q2"],
        [],
    ]


def test_bindings_that_differ_in_key_only_are_two() -> None:
    """R-RT-H6: the key is ignored but part of the identity."""
    catalog = CatalogDriver()
    catalog.exchange("h", "headers")
    catalog.queue("q")
    for key in ("a", "b"):
        catalog.bind("h", "q", key, {"n": 1})
    catalog.unbind("h", "q", "a", {"n": 1})
    assert catalog.routed("h", headers={"n": 1}) == ["q"]
    catalog.unbind("h", "q", "b", {"n": 1})
    assert catalog.routed("h", headers={"n": 1}) == []
