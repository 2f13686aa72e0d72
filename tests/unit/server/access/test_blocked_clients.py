"""Who is blocked, and the two lines of the log per episode."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from brokerd.server.access.blocked_clients import USERS_MAX, BlockedClients


@dataclass(frozen=True)
class _Client:
    user: str
    name: str = "there -> here"


def test_an_episode_has_two_lines_however_many_clients_come_and_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    blocked = BlockedClients()
    # Nobody was: nobody is told.
    blocked.episode_over()
    for number in range(USERS_MAX + 5):
        client = _Client(f"u{number}")
        blocked.add(client, 1000 + number, "low on memory")
        assert (blocked.since_ms(client), len(blocked)) == (1000 + number, 1)
        blocked.discard(client)
    assert blocked.since_ms(client) is None
    blocked.episode_over()
    blocked.episode_over()
    begin, end = caplog.messages
    assert begin == "blocking publishers: low on memory; first is there -> here user=u0"
    names = ", ".join(f"u{number}" for number in range(10))
    assert end.startswith(
        f"publishers are not blocked any more: connections={USERS_MAX + 5} users={USERS_MAX} "
        f"({names} and more) after_s="
    )
    blocked.add(_Client("a"), 1, "low on disk")
    blocked.episode_over()
    assert "connections=1 users=1 (a) after_s=" in caplog.messages[-1]
