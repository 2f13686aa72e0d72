"""What a member is at: starting, serving, ending; and why it ends.

One per process.  app.py moves it on; a component that finds that the member must end reports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brokerd.server.observe.health import HealthState
from brokerd.storage.descriptors import reserve


class Lifecycle:
    """Invariant: `stopping` is set once there is a `failure` or a `removal`."""

    def __init__(self) -> None:
        #: What probes see.
        self.health = HealthState(hindrance=self._hindrance)
        #: Each says what keeps the member from working at the moment, "" for nothing.
        self.hindrances: list[Callable[[], str]] = [log_waits]
        self.stopping = asyncio.Event()
        #: AMQP clients have been let in once.
        self.has_started = False
        #: Why nothing can be promised any more: the disk failed, say.
        self.failure: BaseException | None = None
        #: Set when this member learns that it is none any more.
        self.removal: Exception | None = None

    def _hindrance(self) -> str:
        return "; ".join(filter(None, (hindrance() for hindrance in self.hindrances)))

    def waits_for(self, what: str) -> None:
        """The start goes on once this is there; probes say so."""
        self.health.reason = f"waiting for {what}"

    def has_failed(self) -> bool:
        """Tell whether this member can promise nothing any more."""
        return self.failure is not None

    def failed(self, error: BaseException) -> None:
        """Nothing can be promised any more: the process ends."""
        self.failure = error
        self.stopping.set()

    def removed(self, error: Exception) -> None:
        """The cluster goes on without this member: the process ends."""
        self.removal = error
        self.stopping.set()


def log_waits() -> str:
    """Say for how long the log has had no descriptor for a file that it needs; "": it has."""
    waited_s = reserve.waiting_s()
    if waited_s is None:
        return ""
    return f"no file descriptor is left: the log, and publishing, have waited {waited_s:.0f} s"
