"""Who else is in the cluster, for telemetry: who is up, and where each one's gRPC is reached.

A job that is told one address finds the others by it, and knows of whom it has heard nothing.  Used
by telemetry_hooks.py only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from brokerd.server.members.member_calls import Handler
from brokerd.server.members.ports import Json

_ASK = "telemetry_member"


class Calls(Protocol):
    """Questions to other members (member_calls.py)."""

    def serve(self, name: str, handler: Handler) -> None:
        """Answer questions of this name by `handler`."""
        ...

    async def ask(self, node: str, name: str, fields: Json | None = None) -> Json | None:
        """Return a member's answer, None if there is none."""
        ...


@dataclass(slots=True, frozen=True)
class Members:
    """The members of the cluster, and the way to them."""

    node: str
    #: Name to peer address, this one included.
    all: Callable[[], Mapping[str, str]]
    alive: Callable[[], Collection[str]]
    calls: Calls


class TelemetryPeers:
    """State: the gRPC port that each member last told."""

    def __init__(self, members: Members, grpc_port: int) -> None:
        self._members = members
        self._ports = {members.node: grpc_port}

        async def answer(_: Json) -> Json:
            return {"grpc_port": grpc_port}

        members.calls.serve(_ASK, answer)

    async def run(self, interval_s: float) -> None:
        """Ask the others, again after each interval."""
        while True:
            await self.look()
            await asyncio.sleep(interval_s)

    async def look(self) -> None:
        """Ask all that are up, once; one of an earlier version does not answer."""
        up, _ = self.standing()
        await asyncio.gather(*map(self._ask, up))

    async def _ask(self, name: str) -> None:
        answer = await self._members.calls.ask(name, _ASK)
        if answer is not None:
            self._ports[name] = int(answer["grpc_port"])

    def standing(self) -> tuple[list[str], list[str]]:
        """Return the names of the other members: those that are up, those that are not."""
        alive = self._members.alive()
        others = [name for name in self._members.all() if name != self._members.node]
        return (
            [name for name in others if name in alive],
            [name for name in others if name not in alive],
        )

    def addresses(self) -> dict[str, str]:
        """Return where each member's gRPC is reached, "" where that is not known."""
        found = {}
        for name, peer_address in self._members.all().items():
            host = peer_address.rpartition(":")[0]
            port = self._ports.get(name, 0)
            found[name] = f"{host}:{port}" if host and port else ""
        return found
