"""Counts of vhosts and users over several members (R-CON-12)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerd.cluster.errors import DeliveryFormatError
from brokerd.core.effects import TopologyChanged
from brokerd.server import shared_counts
from brokerd.server.shared_counts import SharedCounts


class Member:
    """A broker as the counts see it; what it sends is carried by the test."""

    def __init__(self, node: str, limits: dict[tuple[str, str], dict[str, int]]) -> None:
        self.node = node
        self.own: dict[str, dict[str, int]] = {"vhost": {}, "user": {}, "channels": {}}
        self.sent: list[tuple[str, bytes]] = []
        self.has_sent = asyncio.Event()
        self.alive = {"a", "b"}
        self.connections = SimpleNamespace(counts=self.own.__getitem__)
        self.view = SimpleNamespace(
            members=lambda: {"a": "", "b": ""},
            spec=lambda kind, _, name: (
                {"limits": limits[kind, name]} if (kind, name) in limits else None
            ),
        )
        self.host = SimpleNamespace(
            alive=lambda: self.alive,
            send_delivery=self._send,
        )
        self.counts = SharedCounts(cast(Any, self))

    def _send(self, node: str, uid: int, term: int, kind: int, payload: bytes) -> None:
        self.sent.append((node, payload))
        self.has_sent.set()


@pytest.fixture
def limits() -> dict[tuple[str, str], dict[str, int]]:
    return {("vhost", "v"): {"max-connections": 3}, ("user", "u"): {"max-channels": 5}}


async def told(member: Member) -> list[tuple[str, bytes]]:
    """Wait until a member has sent something; take it."""
    async with asyncio.timeout(60):
        await member.has_sent.wait()
    member.has_sent.clear()
    sent, member.sent = member.sent, []
    return sent


async def test_counts_of_those_with_limits_are_told_and_added(
    limits: dict[tuple[str, str], dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-CON-12, R-CH-3: only what somebody has limited, once for many changes."""
    monkeypatch.setattr(shared_counts, "DELAY_S", 0.001)
    a, b = Member("a", limits), Member("b", limits)
    a.own["vhost"] = {"v": 2, "free": 7}
    a.own["user"] = a.own["channels"] = {"u": 4}
    for _ in range(3):
        a.counts.changed()
    ((node, payload),) = await told(a)
    assert node == "b"
    b.counts.received(cast(Any, "a"), payload)
    b.own["vhost"] = {"v": 1}
    assert b.counts.count("vhost", "v") == 3
    assert b.counts.count("vhost", "free") == 0
    # The user's connections have no limit, the channels have one.
    assert (b.counts.count("user", "u"), b.counts.count("channels", "u")) == (0, 4)
    # A limit that comes later makes the others say what they have.
    limits["user", "u"]["max-connections"] = 1
    a.counts.topology_changed(TopologyChanged("user", "", "u", False, 1, ""))
    ((_, payload),) = await told(a)
    b.counts.received(cast(Any, "a"), payload)
    assert b.counts.count("user", "u") == 4
    b.counts.node_changed(cast(Any, "a"), False)
    assert b.counts.count("vhost", "v") == 1


async def test_a_member_that_comes_is_told_at_once(
    limits: dict[tuple[str, str], dict[str, int]],
) -> None:
    a = Member("a", limits)
    a.own["vhost"] = {"v": 2}
    a.counts.node_changed(cast(Any, "a"), True)
    assert not a.sent
    a.counts.node_changed(cast(Any, "b"), True)
    assert [node for node, _ in a.sent] == ["b"]


async def test_nothing_is_said_twice_and_nothing_by_a_lone_member(
    limits: dict[tuple[str, str], dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_counts, "DELAY_S", 0.001)
    a = Member("a", limits)
    a.own["vhost"] = {"v": 2}
    a.counts.changed()
    await told(a)
    a.counts.changed()
    a.counts.topology_changed(TopologyChanged("queue", "v", "q", False, 1, ""))
    await asyncio.sleep(0.05)
    assert not a.sent
    a.view.members = lambda: {"a": ""}
    a.own["vhost"] = {"v": 3}
    a.counts.changed()
    await asyncio.sleep(0.05)
    assert not a.sent


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"vhost":{},"user":{},"channels":[]}',
        b'{"vhost":{"v":-1},"user":{},"channels":{}}',
        b'{"vhost":{"v":true},"user":{},"channels":{}}',
    ],
)
def test_what_are_no_counts_is_refused(payload: bytes) -> None:
    member = Member("a", {})
    with pytest.raises(DeliveryFormatError):
        member.counts.received(cast(Any, "b"), payload)
    assert member.counts.count("vhost", "v") == 0
