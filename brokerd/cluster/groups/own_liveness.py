"""What this node tells all others of itself with each heartbeat: alarms, figures, a stalled disk.

For host.py; the server sets it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from brokerd.cluster.groups.liveness import Liveness
from brokerd.cluster.peer import transport
from brokerd.core.alarms import DISK_STALLED
from brokerd.raft.messages import NodeId


class Node(Protocol):
    """What this needs of the host."""

    @property
    def node(self) -> NodeId:
        """Return this node's name."""
        ...

    @property
    def liveness(self) -> Liveness:
        """Return whose disk does not answer."""
        ...

    @property
    def transport(self) -> transport.Transport:
        """Return the streams to other nodes."""
        ...


class OwnLiveness:
    """State: what was told last."""

    def __init__(self, host: Node) -> None:
        self._host = host
        self._told = transport.Liveness()

    def set_liveness(
        self, alarms: Iterable[str], memory_used: int, memory_limit: int, disk_free: int
    ) -> None:
        """Set alarms and figures; a stalled disk is not among these alarms (set_stalled)."""
        others = [alarm for alarm in alarms if alarm != DISK_STALLED]
        self._tell(transport.Liveness(tuple(others), memory_used, memory_limit, disk_free))

    def set_stalled(self, is_stalled: bool) -> None:
        """The disk here does not answer, or does again (ADR 68)."""
        self._host.liveness.set_stalled(self._host.node, is_stalled)
        self._tell(self._told)

    def _tell(self, told: transport.Liveness) -> None:
        """A changed alarm goes out at once."""
        self._told = told
        host = self._host
        if host.liveness.is_stalled(host.node):
            told = replace(told, alarms=(*told.alarms, DISK_STALLED))
        if host.transport.set_liveness(told):
            host.transport.send_heartbeats()
