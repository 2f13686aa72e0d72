"""The alarms of all members, and who is blocked by them.  Built by composition.py.

core/alarms.py decides when one is on; memory/alarms.py watches this member's memory and disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from brokerd.core.alarms import AlarmSet, transition_lines

log = logging.getLogger(__name__)


class Client(Protocol):
    """Who is blocked while an alarm is on."""

    def alarms_changed(self, reason: str) -> None:
        """reason: the text of connection.blocked; "" when no alarm is on."""
        ...


class ClusterAlarms:
    """The alarms of all members, and who is blocked by them (R-ALM-1, -5; R-MEM-12)."""

    def __init__(self, clients: Callable[[], Sequence[Client]], over: Callable[[], None]) -> None:
        """over: called after all clients when the last alarm has cleared."""
        self.all = AlarmSet()
        self._clients = clients
        self._over = over

    def reason(self) -> str:
        """Return the text of connection.blocked, "" when no alarm is on anywhere."""
        return self.all.reason()

    def set(self, node: str, on: frozenset[str]) -> None:
        """A member's alarms, as it says or as its death has it."""
        before, reason_before = self.all.on(node), self.reason()
        if not self.all.set_node(node, on):
            return
        for line in transition_lines(node, before, self.all.on(node), self.all.on()):
            log.warning("%s", line)
        reason = self.reason()
        if reason == reason_before:
            return
        for client in self._clients():
            client.alarms_changed(reason)
        if not reason:
            self._over()
