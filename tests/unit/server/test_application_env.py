"""Variables of a member that scripts set by application:set_env."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.config import BrokerConfig
from brokerd.server.application_env import BadVariable, Variables


def test_variables_begin_with_the_configuration_and_change() -> None:
    """R-CON-7, R-CON-8."""
    variables = Variables(BrokerConfig())
    before = {row["name"]: row["value"] for row in variables.rows()}
    assert before == {
        "channel_max": 2047,
        "frame_max": 131072,
        "heartbeat": 60,
        "loopback_users": ["guest"],
    }
    variables.set("channel_max", 10)
    variables.set("loopback_users", [])
    assert (variables.channel_max, variables.loopback_users) == (10, [])
    assert variables.revision == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("channel_max", -1),
        ("channel_max", 65_536),
        ("channel_max", "many"),
        ("channel_max", True),
        ("frame_max", 4095),
        ("heartbeat", 1e3),
        ("loopback_users", "guest"),
        ("loopback_users", [1]),
        ("loopback_users", ["u"] * 1001),
        ("revision", 1),
        ("__class__", 1),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(name: str, value: Any) -> None:
    variables = Variables(BrokerConfig())
    with pytest.raises(BadVariable):
        variables.set(name, value)
    assert variables.revision == 0
