"""What a user who has logged in may open, and the texts of refusals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from brokerd.config import LimitConfig
from brokerd.core.catalog.catalog_commands import put
from brokerd.core.catalog.identity import Identity
from brokerd.server.access.admission import Admission
from tests.unit.core.catalog_driver import CatalogDriver

RIGHTS = {"configure": ".*", "write": ".*", "read": ".*"}


class Clients:
    """So many connections and channels of this member."""

    def __init__(self) -> None:
        self.count = self.channel_count = 0

    def __len__(self) -> int:
        return self.count


class Counts:
    """So many of a vhost, a user, or a user's channels at all members."""

    def __init__(self) -> None:
        self.by_kind: Counter[tuple[str, str]] = Counter()

    def count(self, kind: str, name: str) -> int:
        return self.by_kind[kind, name]


class Door:
    """A member with vhost `v` and user `u`, who may enter it."""

    def __init__(self, *, vhost_limit: int | None = None, **user_limits: int) -> None:
        driver = CatalogDriver()
        limits = {} if vhost_limit is None else {"max-connections": vhost_limit}
        named = {name.replace("_", "-"): limit for name, limit in user_limits.items()}
        user = {"password_hash": "h", "tags": [], "limits": named}
        for operation in (
            put("vhost", "", "v", {"limits": limits}, cause="admin"),
            put("vhost", "", "closed", {}, cause="admin"),
            put("user", "", "u", user, cause="admin"),
            put("permission", "v", "u", RIGHTS, cause="admin"),
        ):
            assert driver.do(operation)["code"] == "OK"
        self.clients, self.counts = Clients(), Counts()
        counts: Any = self.counts
        limits_here = LimitConfig(connections=100, channels=1000)
        self.admission = Admission("n0", driver.view, limits_here, self.clients, counts)

    def text(self) -> str:
        return self.admission.may_open(Identity("u"), "v") or ""

    def channel_text(self) -> str:
        return self.admission.may_open_channel("u") or ""


def test_a_vhost_needs_to_be_there_and_a_right_to_it() -> None:
    """R-CON-11."""
    admission = Door().admission
    assert admission.may_open(Identity("u"), "v") is None
    assert admission.may_open(Identity("u"), "w") == "vhost w not found"
    assert (
        admission.may_open(Identity("u"), "closed")
        == "access to vhost 'closed' refused for user 'u'"
    )


@pytest.mark.parametrize(
    ("kind", "name", "limits", "text"),
    [
        (
            "vhost",
            "v",
            {"vhost_limit": 2},
            "access to vhost 'v' refused for user 'u': connection limit (2) is reached",
        ),
        (
            "user",
            "u",
            {"max_connections": 2},
            "connection refused for user 'u': user connection limit (2) is reached",
        ),
    ],
)
def test_connections_at_all_members_are_limited_by_vhost_and_user(
    kind: str, name: str, limits: dict[str, int], text: str
) -> None:
    """R-CON-12, SEC-44."""
    door = Door(**limits)
    door.counts.by_kind[kind, name] = 1
    assert door.text() == ""
    door.counts.by_kind[kind, name] = 2
    assert door.text() == text


def test_connections_of_this_member_are_limited() -> None:
    """R-CON-12, SEC-44."""
    door = Door()
    door.clients.count = 99
    assert door.text() == ""
    door.clients.count = 100
    assert door.text() == "connection refused: node connection limit (100) is reached"


def test_a_limit_of_zero_forbids_and_a_negative_one_is_none() -> None:
    """R-CON-12, R-CH-3."""
    assert Door(vhost_limit=0).text()
    assert Door(max_connections=0).text()
    assert Door(max_channels=0).channel_text()
    door = Door(vhost_limit=-1, max_connections=-1, max_channels=-1)
    for key in (("vhost", "v"), ("user", "u"), ("channels", "u")):
        door.counts.by_kind[key] = 10_000
    assert (door.text(), door.channel_text()) == ("", "")


def test_channels_are_limited_by_user_and_by_member() -> None:
    """R-CH-3, SEC-44."""
    door = Door(max_channels=3)
    door.counts.by_kind["channels", "u"] = 2
    door.clients.channel_count = 999
    assert door.channel_text() == ""
    door.counts.by_kind["channels", "u"] = 3
    assert door.channel_text() == (
        "number of channels opened for user 'u' has reached the maximum allowed user limit of (3)"
    )
    door.clients.channel_count = 1000
    assert door.channel_text() == (
        "number of channels opened on node 'n0' has reached the maximum allowed limit of (1000)"
    )
