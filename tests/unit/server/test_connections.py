"""The register of who is connected: counts that are given back, and who is sent away."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from brokerd.config import LimitConfig
from brokerd.core.effects import TopologyChanged
from brokerd.server.connections import Connections


@dataclass(eq=False)
class Guest:
    """A connection or a call."""

    user: str = "u"
    vhost: str = "v"
    peer: tuple[str, int] = ("10.0.0.1", 1)
    closed: list[tuple[int, str]] = field(default_factory=list)

    def close(self, code: int, text: str) -> None:
        self.closed.append((code, text))


def register(**limits: int) -> Connections:
    return Connections(LimitConfig(**limits))


def test_connections_and_calls_are_counted_together_and_given_back() -> None:
    """R-CON-12, R-CH-3."""
    connections, call = register(), Guest()
    connection: Any = Guest()
    assert connections.admit(connection)
    assert not connections.counts("vhost")
    connections.opened(connection)
    connections.channel_opened("u")
    connections.call_opened(call)
    assert connections.counts("vhost") == {"v": 2}
    assert connections.counts("user") == connections.counts("channels") == {"u": 2}
    assert connections.channel_count == 2
    assert (len(connections), connections.call_count) == (1, 1)
    for _ in range(2):
        # Told twice, counted once.
        connections.call_gone(call)
        connections.gone(connection)
    connections.channel_closed("u")
    assert not any(connections.counts(kind) for kind in ("vhost", "user", "channels"))
    assert connections.channel_count == 0
    assert connections.call_count == 0


def test_those_of_a_deleted_vhost_or_user_are_sent_away() -> None:
    """R-VH-2."""
    connections = register()
    connection: Any = Guest("gone")
    stays: Any = Guest("stays", "other")
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


def test_strangers_are_limited_by_address_and_in_all() -> None:
    """SEC-34."""
    connections = register(unauthenticated=3, unauthenticated_per_address=2)
    first: list[Any] = [Guest() for _ in range(3)]
    assert [connections.admit(one) for one in first] == [True, True, False]
    others: list[Any] = [Guest(peer=(f"10.0.1.{i}", 1)) for i in range(2)]
    assert [connections.admit(one) for one in others] == [True, False]
    connections.gone(first[0])
    assert connections.admit(first[2])
    assert (connections.accepted_total, connections.refused_total) == (4, 2)
