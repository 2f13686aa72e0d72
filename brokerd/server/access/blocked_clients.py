"""Which clients of this member an alarm keeps from publishing, and since when.

The log gets one line when the first client of an episode is blocked and one when its last alarm has
cleared, however many clients come and go in between.  Owned by connections.py.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

log = logging.getLogger(__name__)

#: Users that the line at the end of an episode names.
USERS_NAMED_MAX = 10
#: Users that an episode remembers.
USERS_MAX = 1000


class Blocked(Protocol):
    """An AMQP connection, or the caller of a Publish call."""

    user: str

    @property
    def name(self) -> str:
        """Return what listings and the log call it."""
        ...


class BlockedClients:
    """Invariant: an episode is under way while `_began_s` is set; a blocked client is in one."""

    def __init__(self) -> None:
        self._since_ms: dict[object, int] = {}
        self._began_s: float | None = None
        self._users: dict[str, None] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._since_ms)

    def add(self, client: Blocked, now_ms: int, reason: str) -> None:
        """An alarm has stopped a client at this time of the wall clock."""
        self._since_ms[client] = now_ms
        self._count += 1
        if len(self._users) < USERS_MAX:
            self._users[client.user] = None
        if self._began_s is None:
            self._began_s = time.monotonic()
            log.warning(
                "blocking publishers: %s; first is %s user=%s", reason, client.name, client.user
            )

    def discard(self, client: object) -> None:
        """It may publish again, or has gone."""
        self._since_ms.pop(client, None)

    def since_ms(self, client: object) -> int | None:
        """Return when an alarm stopped it, None: it is not stopped."""
        return self._since_ms.get(client)

    def episode_over(self) -> None:
        """No alarm is on anywhere any more."""
        if self._began_s is None:
            return
        users = [*self._users][:USERS_NAMED_MAX]
        more = "" if len(self._users) <= USERS_NAMED_MAX else " and more"
        log.warning(
            "publishers are not blocked any more: connections=%d users=%d (%s%s) after_s=%.1f",
            self._count,
            len(self._users),
            ", ".join(users),
            more,
            time.monotonic() - self._began_s,
        )
        self._began_s, self._count = None, 0
        self._users.clear()
