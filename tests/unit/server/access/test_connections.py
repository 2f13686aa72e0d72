"""The register of who is connected: counts that are given back, and who is sent away."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from brokerd.config import LimitConfig
from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.core.catalog.identity import Identity
from brokerd.server.access import connections as connections_module
from brokerd.server.access import limited_log
from brokerd.server.access.connections import LEAVING_MAX, Connections


@dataclass(eq=False)
class Guest:
    """A connection or a call."""

    user: str = "u"
    vhost: str = "v"
    peer: tuple[str, int] = ("10.0.0.1", 1)
    closed: list[tuple[int, str]] = field(default_factory=list)
    aborted: int = 0
    looked: int = 0
    uid: int = 1
    name: str = "g"
    identity: Identity = field(default_factory=lambda: Identity("u"))
    connected_ms: int = 0
    is_open: bool = True

    @property
    def caller(self) -> Guest:
        return self

    def abort(self) -> None:
        self.aborted += 1

    def close(self, code: int, text: str) -> None:
        self.closed.append((code, text))

    def rights_changed(self) -> None:
        self.looked += 1


def register(**limits: int) -> Connections[Guest]:
    return Connections(LimitConfig(**limits))


def test_connections_and_calls_are_counted_together_and_given_back() -> None:
    """R-CON-12, R-CH-3."""
    connections, call = register(), Guest()
    connection = Guest()
    assert connections.admit(connection)
    assert not connections.counts.of("vhost")
    connections.opened(connection)
    connections.counts.channel_opened("u")
    connections.call_opened(call)
    assert connections.counts.of("vhost") == {"v": 2}
    assert connections.counts.of("user") == connections.counts.of("channels") == {"u": 2}
    assert connections.channel_count == 2
    assert (len(connections), connections.call_count) == (1, 1)
    assert (connections.all(), connections.calls()) == ([connection], [call])
    for _ in range(2):
        # Told twice, counted once.
        connections.call_gone(call)
        connections.gone(connection)
    connections.counts.channel_closed("u")
    assert not any(connections.counts.of(kind) for kind in ("vhost", "user", "channels"))
    assert connections.channel_count == 0
    assert connections.call_count == 0


def test_those_of_a_deleted_vhost_or_user_are_sent_away() -> None:
    """R-VH-2."""
    connections = register()
    connection = Guest("gone")
    stays = Guest("stays", "other")
    call = Guest("gone")
    for one in (connection, stays):
        assert connections.admit(one)
        connections.opened(one)
    connections.call_opened(call)

    def changed(kind: str, name: str, deleted: bool) -> TopologyChanged:
        return TopologyChanged(
            kind=kind, vhost="", name=name, deleted=deleted, revision=1, cause=""
        )

    connections.topology_changed(changed("user", "gone", False))
    connections.topology_changed(changed("vhost", "gone", True))
    assert not connection.closed
    connections.topology_changed(changed("user", "gone", True))
    assert connection.closed == call.closed == [(320, "user 'gone' is deleted")]
    assert not stays.closed
    connections.vhost_deleted("other")
    assert stays.closed == [(320, "vhost 'other' is deleted")]


def test_unauthenticated_are_limited_by_address_and_in_all() -> None:
    """SEC-34: whoever stands there longest makes room; see core/test_unauthenticated.py."""
    connections = register(unauthenticated=3, unauthenticated_per_address=2)
    first: list[Guest] = [Guest() for _ in range(3)]
    assert [connections.admit(one) for one in first] == [True] * 3
    assert [one.aborted for one in first] == [1, 0, 0]
    others: list[Guest] = [Guest(peer=(f"2001:db8::{i}", 1)) for i in range(2)]
    assert [connections.admit(one) for one in others] == [True] * 2
    assert [one.aborted for one in first] == [1, 1, 0]
    for one in (first[2], *others):
        connections.logged_in(one)
    # Nobody who has logged in goes for somebody of the same network.
    third = Guest(peer=("2001:db8::3", 1))
    assert not connections.admit(third)
    assert (connections.accepted_total, connections.refused_total) == (5, 1)
    assert connections.displaced_total == 2
    connections.gone(others[0])
    assert connections.admit(third)
    connections.close_all("stop")
    assert [one.aborted for one in (first[2], others[1], third)] == [1, 1, 1]


async def test_what_unauthenticated_do_is_logged_a_few_lines_at_a_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And counted."""
    monkeypatch.setattr(limited_log, "COUNTED_S", 0.01)
    connections = register()
    for i in range(limited_log.BURST + 300):
        connections.handshake_broken(f"error {i}")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[: limited_log.BURST] == [f"error {i}" for i in range(limited_log.BURST)]
    # A loaded machine may have taken a second or more for all of them.
    assert len(lines) < limited_log.BURST + 100
    left_out = limited_log.BURST + 300 - len(lines)
    deadline = asyncio.get_running_loop().time() + 60
    while "than the log shows" not in caplog.text:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    assert f"{left_out} broken handshakes more than the log shows" in caplog.text


def test_a_line_a_second_is_written_after_the_first_few(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(limited_log.time, "monotonic", lambda: now[0])
    connections = register()
    for i in range(limited_log.BURST + 5):
        connections.handshake_broken(f"error {i}")
        now[0] += limited_log.EVERY_S
    assert len(caplog.records) == limited_log.BURST + 5


def test_clients_leave_descriptors_to_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-34: also those who have logged in."""
    left = connections_module.DESCRIPTORS_LEFT
    monkeypatch.setattr(
        connections_module.resource, "getrlimit", lambda _: (left + 130, left + 130)
    )
    connections = register()
    guests: list[Guest] = [Guest() for _ in range(131)]
    for guest in guests[:130]:
        assert connections.admit(guest)
        connections.opened(guest)
    assert not connections.admit(guests[130])
    connections.gone(guests[0])
    assert connections.admit(guests[130])


def test_so_many_closed_connections_wait_for_their_clients_end_and_no_more() -> None:
    """SEC-34: whoever never ends after close-ok holds no more descriptors than these."""
    connections = register()
    ended: list[Guest] = [Guest() for _ in range(LEAVING_MAX + 2)]
    for connection in ended[:LEAVING_MAX]:
        connections.leaves(connection)
    connections.left(ended[1])
    connections.left(ended[1])
    connections.leaves(ended[-2])
    assert not any(connection.aborted for connection in ended)
    connections.leaves(ended[-1])
    assert [connection for connection in ended if connection.aborted] == ended[:1]
    assert ended[0] not in connections.leaving
    assert len(connections.leaving) == LEAVING_MAX


def test_nobody_is_let_in_while_the_log_waits_for_a_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next socket would be the descriptor that the log needs."""
    connections = register()
    monkeypatch.setattr(connections_module.reserve, "_waiting", {1: 0.0})
    assert not connections.admit(Guest())
    assert connections.refused_total == 1
    monkeypatch.setattr(connections_module.reserve, "_waiting", {})
    assert connections.admit(Guest())
