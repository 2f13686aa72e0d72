"""Counts of vhosts and users over several members (R-CON-12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from brokerd.cluster.errors import DeliveryFormatError
from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.raft.messages import NodeId
from brokerd.server.access import shared_counts
from brokerd.server.access.shared_counts import SharedCounts


class View:
    """A catalog with two members and these limits."""

    def __init__(self, limits: dict[tuple[str, str], dict[str, int]]) -> None:
        self._limits = limits
        self._members = {"a": "", "b": ""}

    def members(self) -> dict[str, str]:
        return self._members

    def spec(self, kind: str, _: str, name: str) -> dict[str, Any] | None:
        found = self._limits.get((kind, name))
        return None if found is None else {"limits": found}

    def forget(self, node: str) -> None:
        del self._members[node]


class Member:
    """A member and its counts; what it sends is carried by the test."""

    def __init__(self, node: str, limits: dict[tuple[str, str], dict[str, int]]) -> None:
        self.own: dict[str, dict[str, int]] = {"vhost": {}, "user": {}, "channels": {}}
        self.sent: list[tuple[str, bytes]] = []
        self.has_sent = asyncio.Event()
        self.view = View(limits)
        view: Any = self.view
        self.counts = SharedCounts(node, view, self, self)

    def of(self, kind: str) -> dict[str, int]:
        return self.own[kind]

    def listen(self, listener: Callable[[], None]) -> None:
        self.tell = listener

    def alive(self) -> set[NodeId]:
        return {NodeId("a"), NodeId("b")}

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
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
        a.tell()
    ((node, payload),) = await told(a)
    assert node == "b"
    b.counts.received(NodeId("a"), payload)
    b.own["vhost"] = {"v": 1}
    assert b.counts.count("vhost", "v") == 3
    assert b.counts.count("vhost", "free") == 0
    # The user's connections have no limit, the channels have one.
    assert (b.counts.count("user", "u"), b.counts.count("channels", "u")) == (0, 4)
    # A limit that comes later makes the others say what they have.
    limits["user", "u"]["max-connections"] = 1
    a.counts.topology_changed(TopologyChanged("user", "", "u", False, 1, ""))
    ((_, payload),) = await told(a)
    b.counts.received(NodeId("a"), payload)
    assert b.counts.count("user", "u") == 4
    b.counts.node_changed(NodeId("a"), False)
    assert b.counts.count("vhost", "v") == 1


async def test_a_member_that_comes_is_told_at_once(
    limits: dict[tuple[str, str], dict[str, int]],
) -> None:
    a = Member("a", limits)
    a.own["vhost"] = {"v": 2}
    a.counts.node_changed(NodeId("a"), True)
    assert not a.sent
    a.counts.node_changed(NodeId("b"), True)
    assert [node for node, _ in a.sent] == ["b"]


async def test_nothing_is_said_twice_and_nothing_by_a_lone_member(
    limits: dict[tuple[str, str], dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_counts, "DELAY_S", 0.001)
    a = Member("a", limits)
    a.own["vhost"] = {"v": 2}
    a.tell()
    await told(a)
    a.tell()
    a.counts.topology_changed(TopologyChanged("queue", "v", "q", False, 1, ""))
    await asyncio.sleep(0.05)
    assert not a.sent
    a.view.forget("b")
    a.own["vhost"] = {"v": 3}
    a.tell()
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
        member.counts.received(NodeId("b"), payload)
    assert member.counts.count("vhost", "v") == 0
