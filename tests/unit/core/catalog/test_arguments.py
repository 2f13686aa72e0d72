"""The JSON form of argument values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.amqp.values import Decimal, Timestamp
from brokerd.core.catalog import arguments, names
from tests.unit.core.catalog_driver import VHOST

KEYS = st.text(max_size=5) | st.sampled_from(["$bytes", "$timestamp", "$decimal", "$table"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=10)
    | st.binary(max_size=10)
    | st.integers(0, 2**40).map(Timestamp)
    | st.builds(Decimal, st.integers(0, 255), st.integers(0, 2**32 - 1)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_amqp_values_survive_the_catalog(table: dict[str, Any]) -> None:
    """Tables that look like our own forms included: a client may send {"$bytes": 5}."""
    stored = json.loads(names.canonical_json(arguments.to_json(table)))
    found = arguments.from_json(stored, Timestamp, Decimal)
    assert found == table
    # Equality alone would take a Timestamp for an integer.
    assert names.canonical_json(arguments.to_json(found)) == names.canonical_json(stored)


@pytest.mark.parametrize(
    "value",
    [
        {"$bytes": 5},
        {"$bytes": "not base64!"},
        {"$timestamp": "now"},
        {"$decimal": [1]},
        {"$decimal": [1, True]},
        {"$table": 3},
        {"$timestamp": 5, "and": "more"},
    ],
)
def test_malformed_special_forms_are_plain_tables(value: dict[str, Any]) -> None:
    assert arguments.from_json(value) == value
    assert arguments.type_name(value) == "table"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("x", "longstr"),
        (2**31 - 1, "signedint"),
        (-(2**31), "signedint"),
        (2**31, "long"),
        (True, "bool"),
        (1.5, "double"),
        ({"a": 1}, "table"),
        ([1], "array"),
        (None, "void"),
        (b"x", "binary"),
        (Timestamp(5), "timestamp"),
        (Decimal(1, 5), "decimal"),
    ],
)
def test_type_names_in_texts(value: Any, name: str) -> None:
    assert arguments.type_name(arguments.to_json(value)) == name


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        ("1", 1, False),
        ([1, [2]], [1, [2]], True),
        ([1, [2]], [1, [True]], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
    ],
)
def test_equality_is_by_type_class_and_value(left: Any, right: Any, expected: bool) -> None:
    """R-Q-4."""
    assert arguments.are_equal(left, right) is expected


def test_names_that_are_not_utf_8_have_a_form_and_a_hash() -> None:
    """R-NAM-1: UTF-8 is expected, not enforced."""
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert json.loads(names.canonical_json({name: name})) == {name: name}
    assert len(names.digest({name: name})) == 16
    assert not names.is_too_long(name * 127)
    assert names.is_too_long(name * 128)


@pytest.mark.parametrize(
    ("argument", "value", "text"),
    [
        ("x-queue-mode", "busy", "\"unsupported queue mode 'busy'\""),
        ("x-queue-mode", "lazy", None),
        ("x-queue-version", 1, "\"unsupported queue version '1'\""),
        ("x-queue-version", 2, None),
    ],
)
def test_arguments_of_older_versions(argument: str, value: Any, text: str | None) -> None:
    """R-Q-5, R-Q-6"""
    refused = arguments.check_queue_arguments("classic", {argument: value}, VHOST, "q")
    assert (None if refused is None else refused.text.partition(": ")[2]) == text


#: Values that RabbitMQ 4.3.6 takes, by queue type; then some that it refuses.
IDLE = [
    *(("classic", "x-queue-mode", value) for value in ("odd", 5, True)),
    *(("quorum", "x-delivery-limit", value) for value in ("x", True, 1.5, {"a": [None]})),
    *((kind, "x-consumer-timeout", 0) for kind in ("classic", "quorum")),
    *(("quorum", "x-delayed-retry-type", value) for value in ("odd", 5)),
    *(("quorum", f"x-delayed-retry-{end}", value) for end in ("min", "max") for value in ("x", -1)),
]
WRONG = [
    ("quorum", "x-queue-mode", "lazy"),
    ("quorum", "x-consumer-timeout", -1),
    ("quorum", "x-consumer-timeout", "x"),
    ("quorum", "x-consumer-disconnected-timeout", -1),
    ("quorum", "x-max-length", "x"),
    ("classic", "x-delivery-limit", "x"),
    ("classic", "x-consumer-timeout", "x"),
    ("classic", "x-delayed-retry-type", "odd"),
    ("classic", "x-queue-version", 1),
]


@pytest.mark.parametrize(("kind", "argument", "value"), [*IDLE, *WRONG])
def test_values_without_effect_are_taken_where_that_is_asked_for(
    kind: str, argument: str, value: Any
) -> None:
    """R-Q-6; tried with 4.3.6."""
    table = {argument: value}
    assert arguments.check_queue_arguments(kind, table, VHOST, "q") is not None
    refused = arguments.check_queue_arguments(kind, table, VHOST, "q", takes_idle=True)
    is_idle = (kind, argument, value) in IDLE
    assert (refused is None) == is_idle
    if is_idle:
        assert arguments.idle_values(kind, table | {"x-max-length": 5}) == [argument]


def test_values_with_an_effect_are_not_idle() -> None:
    table = {"x-delivery-limit": 3, "x-consumer-timeout": 9, "x-delayed-retry-min": 1, "x-a": "b"}
    assert arguments.idle_values("quorum", table) == []
    assert arguments.idle_values("classic", {"x-queue-mode": "lazy"}) == []


def test_the_type_is_among_the_arguments_once() -> None:
    """As RabbitMQ 4.3 has them."""
    for table in ({"x-max-length": 5}, {"x-max-length": 5, "x-queue-type": "quorum"}):
        shown = arguments.with_type(table, "quorum")
        assert shown == {"x-max-length": 5, "x-queue-type": "quorum"}
