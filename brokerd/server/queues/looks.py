"""How long a turn of the loop lasts: whether to look at the sockets once more (ADR 64).

Who writes a hundred messages one by one is read faster than it writes, and its first few would be
a command of their own.  So a turn goes on as long as each look brings more.
"""

from __future__ import annotations

#: So often a turn looks at the sockets again, for so long at the most, and with so much in hand.
LOOKS_MAX = 16
LOOKS_S = 0.002
LOOKS_BYTES_MAX = 1024 * 1024


class Looks:
    """State of one turn: what it has brought so far."""

    __slots__ = ("_began_s", "_bytes", "_count", "_is_more_likely")

    def __init__(self) -> None:
        self._bytes, self._count, self._began_s = 0, 0, -1.0
        #: The last look brought what may have more behind it.
        self._is_more_likely = False

    def came(self, size: int, has_more: bool, now_s: float) -> None:
        """`size` bytes have been read, perhaps from a client that sends more soon."""
        if self._began_s < 0:
            self._began_s = now_s
        self._bytes += size
        if has_more:
            self._is_more_likely = True

    def is_another_due(self, now_s: float) -> bool:
        """Return whether another look is likely to bring more, and count it."""
        if (
            not self._is_more_likely
            or self._count >= LOOKS_MAX
            or self._bytes >= LOOKS_BYTES_MAX
            or now_s - self._began_s >= LOOKS_S
        ):
            return False
        self._is_more_likely = False
        self._count += 1
        return True
