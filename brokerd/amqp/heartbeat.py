"""Heartbeats of one connection as two deadlines (R-HB-1, R-HB-2).

The sender looks every half period whether anything was sent; the receiver looks every period
whether anything came and gives up at the second silent look in a row.
"""

from __future__ import annotations

#: Silent looks in a row that end the connection (R-HB-1: between 2T and 3T after the last byte).
SILENT_CHECKS_MAX = 2


class Heartbeats:
    """Owns the two deadlines and the byte counters seen at the last look."""

    __slots__ = (
        "_period_ms",
        "_received_seen",
        "_sent_seen",
        "_silent_checks",
        "is_paused",
        "next_receive_ms",
        "next_send_ms",
    )

    def __init__(self, period_s: int, now_ms: int) -> None:
        self._period_ms = period_s * 1000
        self._received_seen = 0
        self._sent_seen = 0
        self._silent_checks = 0
        self.is_paused = False
        self.next_send_ms = now_ms + self._period_ms // 2
        self.next_receive_ms = now_ms + self._period_ms

    @property
    def next_deadline_ms(self) -> int:
        """When to look again."""
        return min(self.next_send_ms, self.next_receive_ms)

    def is_send_due(self, now_ms: int, sent_total: int) -> bool:
        """Whether a heartbeat has to go out now."""
        if now_ms < self.next_send_ms:
            return False
        is_idle = sent_total == self._sent_seen
        self._sent_seen = sent_total
        self.next_send_ms = now_ms + self._period_ms // 2
        return is_idle

    def note_sent(self, sent_total: int) -> None:
        """The heartbeat that was just queued is not traffic to the next look."""
        self._sent_seen = sent_total

    def is_peer_silent(self, now_ms: int, received_total: int) -> bool:
        """Whether the peer has been silent for too long.

        One look per call, however late it comes: a driver that stalled blames no peer for it.
        """
        if now_ms < self.next_receive_ms:
            return False
        self.next_receive_ms = now_ms + self._period_ms
        if self.is_paused or received_total != self._received_seen:
            self._received_seen = received_total
            self._silent_checks = 0
            return False
        self._silent_checks += 1
        return self._silent_checks >= SILENT_CHECKS_MAX

    def pause(self) -> None:
        """The driver has stopped reading the socket (R-HB-2)."""
        self.is_paused = True

    def resume(self, now_ms: int) -> None:
        """Reading goes on: the peer gets whole periods from now."""
        if self.is_paused:
            self.is_paused = False
            self._silent_checks = 0
            self.next_receive_ms = now_ms + self._period_ms
