"""Looking up where a member is, while the name server answers and while it does not."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from brokerd.cluster.config import HostConfig
from brokerd.cluster.peer import discovery, peer_call
from brokerd.cluster.peer.discovery import Lookup
from brokerd.raft.messages import NodeId


class NameServer:
    """Stands for the system's lookups."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[str] = ["10.0.0.1", "10.0.0.1", "10.0.0.2"]
        self.error: OSError | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = 0
        monkeypatch.setattr(socket, "getaddrinfo", self.look)

    def look(self, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        self.asked += 1
        assert self.may_answer.wait(60)
        if self.error is not None:
            raise self.error
        return [(socket.AF_INET, None, None, "", (address, 0)) for address in self.answers]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    monkeypatch.setattr(discovery, "LOOKUP_WAIT_S", 0.02)
    return NameServer(monkeypatch)


@pytest.mark.parametrize(("address", "found"), [("127.0.0.1:5690", "127.0.0.1"), ("[::1]", "::1")])
async def test_an_address_is_not_looked_up(server: NameServer, address: str, found: str) -> None:
    assert await Lookup(address).addresses() == [found]
    assert not server.asked


async def test_what_was_found_stands_in_while_the_name_server_is_silent(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lookup is under way, however often the member is dialled: each would hold a thread."""
    lookup = Lookup("n1.example:5690")
    assert await lookup.addresses() == ["10.0.0.1", "10.0.0.2"]
    server.may_answer.clear()
    server.answers = ["10.0.0.9"]
    for _ in range(3):
        assert await lookup.addresses() == ["10.0.0.1", "10.0.0.2"]
    assert server.asked == 2
    server.may_answer.set()
    monkeypatch.setattr(discovery, "LOOKUP_WAIT_S", 60.0)
    assert await lookup.addresses() == ["10.0.0.9"]


async def test_who_is_cancelled_while_nothing_is_known_leaves_the_lookup_to_the_next(
    server: NameServer,
) -> None:
    lookup = Lookup("n1.example")
    server.may_answer.clear()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await lookup.addresses()
    assert server.asked == 1
    server.may_answer.set()
    assert await lookup.addresses() == ["10.0.0.1", "10.0.0.2"]


async def test_a_name_that_is_gone_is_told_from_a_server_that_cannot_be_reached(
    server: NameServer,
) -> None:
    lookup = Lookup("n1.example")
    server.error = socket.gaierror(socket.EAI_AGAIN, "later")
    with pytest.raises(socket.gaierror):
        await lookup.addresses()
    server.error = None
    await lookup.addresses()
    server.error = socket.gaierror(socket.EAI_AGAIN, "later")
    assert await lookup.addresses() == ["10.0.0.1", "10.0.0.2"]
    server.error = socket.gaierror(socket.EAI_NONAME, "gone")
    with pytest.raises(socket.gaierror):
        await lookup.addresses()


async def test_where_no_thread_is_to_be_had_the_next_dial_tries_again(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = Lookup("n1.example")

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as none:
        none.setattr(threading.Thread, "start", refused)
        with pytest.raises(OSError, match="new thread"):
            await lookup.addresses()
    assert await lookup.addresses() == ["10.0.0.1", "10.0.0.2"]


async def test_the_next_address_is_tried_where_nobody_answers_at_the_first(
    server: NameServer,
) -> None:
    begun: list[asyncio.StreamWriter] = []
    ours = await asyncio.start_server(lambda _, writer: begun.append(writer), "127.0.0.1", 0)
    port = ours.sockets[0].getsockname()[1]
    server.answers = ["127.0.0.2", "127.0.0.1"]
    call = await peer_call.dial(HostConfig(), None, NodeId("n1"), f"n1.example:{port}", b"")
    call.give_up(None)
    await call.lost
    server.answers = ["127.0.0.2"]
    with pytest.raises(ConnectionRefusedError):
        await peer_call.dial(HostConfig(), None, NodeId("n1"), f"n1.example:{port}", b"")
    for writer in begun:
        writer.close()
    ours.close()
    await ours.wait_closed()
