"""How many connections and channels vhosts and users have at this member.

AMQP connections with their channels, and calls of the Messages service, which count as a connection
and a channel.  connections.py counts; shared_counts.py tells the other members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol


class Counted(Protocol):
    """Who has opened a vhost."""

    vhost: str
    user: str


class ClientCounts:
    """Invariant: a name that has nothing is not kept."""

    def __init__(self) -> None:
        self._by_vhost: Counter[str] = Counter()
        self._by_user: Counter[str] = Counter()
        self._channels_by_user: Counter[str] = Counter()
        self.opened_total = 0
        self.channel_count = 0
        self.channels_opened_total = 0
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after each change of a count by vhost or user."""
        self._listeners.append(listener)

    def of(self, kind: str) -> Mapping[str, int]:
        """Return connections by "vhost" or "user", or "channels" by user."""
        return {
            "vhost": self._by_vhost,
            "user": self._by_user,
            "channels": self._channels_by_user,
        }[kind]

    def opened(self, guest: Counted) -> None:
        """Somebody has opened a vhost."""
        self.opened_total += 1
        self._by_vhost[guest.vhost] += 1
        self._by_user[guest.user] += 1
        self._changed()

    def gone(self, guest: Counted) -> None:
        """Somebody who had has left."""
        _less(self._by_vhost, guest.vhost)
        _less(self._by_user, guest.user)
        self._changed()

    def channel_opened(self, user: str) -> None:
        """One more channel of this user."""
        self.channel_count += 1
        self.channels_opened_total += 1
        self._channels_by_user[user] += 1
        self._changed()

    def channel_closed(self, user: str) -> None:
        """One less."""
        self.channel_count -= 1
        _less(self._channels_by_user, user)
        self._changed()

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()


def _less(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]
