"""Who else is in the cluster, for telemetry: who is up, where each one's gRPC is reached, and how
far this member's clock is from theirs.

A job that is given one address finds the others by it, and knows which have sent nothing.  Used
by telemetry_hooks.py only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from brokerd.server.members.member_calls import Handler
from brokerd.server.members.ports import Json

_ASK = "telemetry_member"
#: What is less may be an answer of a busy member, and is slack in the job's books (30 s).
SKEW_MS_MIN = 5_000


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


def _now_ms() -> float:
    return time.time_ns() / 1e6


def _steady_ms() -> float:
    return time.monotonic_ns() / 1e6


class TelemetryPeers:
    """State: of each other member the gRPC port that it last sent, and how far its clock is ahead
    of the steady one here, which is never set.
    """

    def __init__(
        self,
        members: Members,
        grpc_port: int,
        clock_ms: Callable[[], float] = _now_ms,
        steady_ms: Callable[[], float] = _steady_ms,
        is_enabled: bool = True,
    ) -> None:
        self._members = members
        self._ports = {members.node: grpc_port}
        self._clock_ms, self._steady_ms = clock_ms, steady_ms
        self._ahead_ms: dict[str, float] = {}
        self._off: set[str] = set()

        async def answer(_: Json) -> Json:
            return {"grpc_port": grpc_port, "now_ms": clock_ms(), "is_enabled": is_enabled}

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
        asked_ms = self._steady_ms()
        answer = await self._members.calls.ask(name, _ASK)
        if answer is None:
            self._ahead_ms.pop(name, None)
            return
        self._ports[name] = int(answer["grpc_port"])
        if answer["is_enabled"]:
            self._off.discard(name)
        else:
            self._off.add(name)
        # It looked at its clock in the middle of that time.
        self._ahead_ms[name] = float(answer["now_ms"]) - (asked_ms + self._steady_ms()) / 2

    def skew_ms(self) -> int:
        """Return by how much the clock here is ahead of the middle of the members' clocks; 0 where
        that is little, or where no other member has answered.
        """
        own_ms = self._clock_ms() - self._steady_ms()
        skew_ms = round(own_ms - median((own_ms, *self._ahead_ms.values())))
        return skew_ms if abs(skew_ms) >= SKEW_MS_MIN else 0

    def standing(self) -> tuple[list[str], list[str]]:
        """Return the names of the other members: those that are up, those that are not."""
        alive = self._members.alive()
        others = [name for name in self._members.all() if name != self._members.node]
        return (
            [name for name in others if name in alive],
            [name for name in others if name not in alive],
        )

    def switched_off(self) -> list[str]:
        """Return the names of those that are up and have telemetry switched off."""
        return [name for name in self.standing()[0] if name in self._off]

    def addresses(self) -> dict[str, str]:
        """Return where each member's gRPC is reached, "" where that is not known."""
        found = {}
        for name, peer_address in self._members.all().items():
            host = peer_address.rpartition(":")[0]
            port = self._ports.get(name, 0)
            found[name] = f"{host}:{port}" if host and port else ""
        return found
