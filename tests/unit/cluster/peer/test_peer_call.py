"""Dialling another member: what becomes of a connection that nobody waits for any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokerd.cluster.config import HostConfig
from brokerd.cluster.peer import peer_call
from brokerd.cluster.peer.peer_connection import PeerConnection
from brokerd.raft.messages import NodeId


async def test_a_dial_that_is_cancelled_when_it_stands_leaves_no_timer_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop closes such a socket without connection_lost."""
    made: list[PeerConnection] = []

    async def cancelled(factory: Any, *_: Any, **__: Any) -> None:
        call = factory()
        call._watch(10.0)
        made.append(call)
        raise asyncio.CancelledError

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", cancelled, raising=False)
    with pytest.raises(asyncio.CancelledError):
        await peer_call.dial(HostConfig(), None, NodeId("n1"), "127.0.0.1:1", b"")
    [call] = made
    assert call.lost.done()
    assert call._keepalive is not None
    assert call._keepalive.cancelled()
