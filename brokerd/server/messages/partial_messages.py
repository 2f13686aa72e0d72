"""Messages that have not come whole: what they hold of memory, and who goes when it is too much.

A client may begin many messages and end none; during a memory alarm they would keep the alarm on
that they have caused.  So all of them together stay within a share of the memory watermark.  Over
it connections of the user who holds most are closed, those first whose messages began first:
a client that completes a message does so in a moment.  Connections report once per read.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

MIB = 1024 * 1024

#: All connections together: this share of the watermark, and so much where that is less.
WATERMARK_SHARE = 8
BYTES_MAX_LEAST = 64 * MIB
#: One connection: this share of all, and two messages of the largest size where that is less.
CONNECTION_SHARE = 4
CONNECTION_BYTES_MAX_LEAST = 32 * MIB
#: What every connection may hold without being counted: the rest of a small frame.
COUNTED_BYTES_MIN = 4096

RESOURCE_ERROR = 506
TOO_MUCH = "messages that have not been sent to their ends hold too much memory"


class Holder(Protocol):
    """A connection."""

    user: str

    def close(self, code: int, text: str) -> None:
        """End it, for this reason; it reports what it holds then."""
        ...


class PartialMessages:
    """Invariant: `total` and `_by_user` add up `_held`, which is in the order in which the
    messages began; a connection that holds nothing does not stand in it.
    """

    def __init__(self) -> None:
        self.total = 0
        self.bytes_max = BYTES_MAX_LEAST
        self._held: dict[Holder, tuple[str, int]] = {}
        self._by_user: Counter[str] = Counter()

    def set_watermark(self, limit: int) -> None:
        """Memory may be used up to `limit` before the alarm."""
        self.bytes_max = max(limit // WATERMARK_SHARE, BYTES_MAX_LEAST)
        self._relieve()

    def note(self, holder: Holder, size: int) -> None:
        """Note how many bytes a connection holds now."""
        user, before = self._held.get(holder, (holder.user, 0))
        if not before and not size:
            return
        self._add(user, -before)
        if not size or size < before // 2:
            # It has sent something through: what it holds now began after that.
            self._held.pop(holder, None)
        if size:
            self._held[holder] = (holder.user, size)
            self._add(holder.user, size)
        if size > max(self.bytes_max // CONNECTION_SHARE, CONNECTION_BYTES_MAX_LEAST):
            self._close(holder)
        elif self.total > self.bytes_max:
            self._relieve()

    def _add(self, user: str, size: int) -> None:
        self.total += size
        self._by_user[user] += size
        if not self._by_user[user]:
            del self._by_user[user]

    def _relieve(self) -> None:
        # Each once: one that is closed already may still hold the rest of a frame.
        for _ in range(len(self._held)):
            if self.total <= self.bytes_max:
                return
            user = max(self._by_user, key=self._by_user.__getitem__)
            theirs = [(holder, size) for holder, (name, size) in self._held.items() if name == user]
            # Not one that holds next to nothing: closing it would free too little.
            average = self._by_user[user] // len(theirs)
            self._close(next(holder for holder, size in theirs if size >= average))

    def _close(self, holder: Holder) -> None:
        # Before it reports from within its end.
        user, size = self._held.pop(holder)
        self._add(user, -size)
        holder.close(RESOURCE_ERROR, TOO_MUCH)
