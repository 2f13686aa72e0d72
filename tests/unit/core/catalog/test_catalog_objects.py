"""Which passwords of a user are right (ADR 21), and what queues have in common."""

from __future__ import annotations

import pytest

from brokerd.core.catalog.catalog_objects import Queue, User, kept_json

SPEC = {"tags": [], "password_hash": "new", "previous_password_hash": "old"}


@pytest.mark.parametrize(
    ("spec", "now_ms", "expected"),
    [
        (SPEC | {"previous_until_ms": 10}, 9, ("new", "old")),
        (SPEC | {"previous_until_ms": 10}, 10, ("new",)),
        (SPEC | {"previous_until_ms": 10, "password_hash": ""}, 9, ("old",)),
        ({"tags": [], "password_hash": "new"}, 0, ("new",)),
        ({"tags": [], "password_hash": ""}, 0, ()),
    ],
)
def test_password_of_before_is_right_for_a_while(
    spec: dict[str, object], now_ms: int, expected: tuple[str, ...]
) -> None:
    assert User("user", "", "u", spec).accepted_hashes(now_ms) == expected


def test_what_queues_have_alike_is_there_once() -> None:
    spec = {"type": "quorum", "durable": True, "auto_delete": False, "settings": {"a": [1]}}
    one, two = (
        Queue("/", name, spec | {"arguments": {"x-max-length": 1}}, 7, []) for name in ("a", "b")
    )
    assert one.arguments is two.arguments
    assert one.settings is two.settings


def test_equal_values_of_other_types_are_not_alike() -> None:
    found = [kept_json({"x-max-length": value}) for value in (1, True, 1.0, "1")]
    assert [type(each["x-max-length"]) for each in found] == [int, bool, float, str]
