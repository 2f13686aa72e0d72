"""What the table of `brokerctl browse` says of a message, whatever its headers hold."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.cluster.errors import GroupUnavailable
from brokerd.ctl import browse


@pytest.mark.parametrize(
    ("properties", "died"),
    [
        ([], None),
        ({"headers": {}}, None),
        ({"headers": {"x-death": []}}, None),
        ({"headers": {"x-death": "never"}}, None),
        ({"headers": {"x-death": ["never"]}}, None),
        ({"headers": {"x-death": [{}]}}, "None in None"),
        (
            {"headers": {"x-death": [{"reason": "rejected", "queue": "work"}, {"queue": "old"}]}},
            "rejected in work",
        ),
    ],
)
def test_the_last_death_is_shown_with_its_queue(properties: Any, died: str | None) -> None:
    assert browse._death(properties) == died


def test_the_catalog_is_no_number_to_a_client() -> None:
    assert str(GroupUnavailable(1, 20)) == "no leader of the catalog answered within 20 s"
    assert str(GroupUnavailable(7, 0.5)) == "no leader of group 7 answered within 0.5 s"
