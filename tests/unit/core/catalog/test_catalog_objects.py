"""Which passwords of a user are right (ADR 21)."""

from __future__ import annotations

import pytest

from brokerd.core.catalog.catalog_objects import User

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
