"""The running member, as administration, metrics and telemetry look at it.

Built by composition.py; the rooms name what they need of it in their ports (Runtime).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from brokerd.core.alarms import AlarmSet
from brokerd.raft.messages import NodeId
from brokerd.server.endpoints import Endpoints
from brokerd.server.lifecycle import Lifecycle
from brokerd.server.members.leadership import Leadership
from brokerd.server.memory.alarms import AlarmMonitor


class MemberRuntime:
    """State: none of its own."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        alarms: AlarmSet,
        monitor: AlarmMonitor,
        endpoints: Endpoints,
        leadership: Leadership,
    ) -> None:
        """alarms: of all members."""
        self.alarms = alarms
        self._lifecycle = lifecycle
        self._monitor = monitor
        self._endpoints = endpoints
        self._leadership = leadership

    @property
    def has_started(self) -> bool:
        """Tell whether clients have been let in."""
        return self._lifecycle.has_started

    @property
    def monitor(self) -> AlarmMonitor | None:
        """Return who watches memory and disk, None before the member has started."""
        return self._monitor if self.has_started else None

    @property
    def endpoints(self) -> Endpoints | None:
        """Return what AMQP clients connect to, None before the member has started."""
        return self._endpoints if self.has_started else None

    def link_rows(self) -> list[dict[str, Any]]:
        """Return the federation links of this member, for listings and telemetry."""
        return self._endpoints.link_rows()

    def transferable(self, avoid: Collection[NodeId] = ()) -> list[int]:
        """Return the groups led here that another member could lead."""
        return self._leadership.transferable(avoid)

    async def hand_over(self, timeout_s: float, avoid: Collection[NodeId] = ()) -> int:
        """Let others lead what is led here; return how many groups are left."""
        return await self._leadership.hand_over(timeout_s, avoid)
