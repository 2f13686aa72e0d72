"""Heartbeats of one connection as two deadlines (R-HB-1, R-HB-2).

The sender sends one every half period from tune-ok on, whatever else is sent: some clients give a
connection up after one period without a byte.  The receiver looks every period whether anything
came and gives up at the second silent look in a row.
"""

from __future__ import annotations

#: Silent looks in a row that end the connection (R-HB-1: between 2T and 3T after the last byte).
SILENT_CHECKS_MAX = 2
#: Milliseconds until the last of them is repeated.  A process that did not run for a while may look
#: at the clock before it reads what has come; until then it has read it.
LAST_LOOK_MS = 50


class Heartbeats:
    """Owns the two deadlines and the byte counter seen at the last look."""

    __slots__ = (
        "_half_ms",
        "_period_ms",
        "_received_seen",
        "_silent_checks",
        "is_paused",
        "next_receive_ms",
        "next_send_ms",
    )

    def __init__(self, period_s: int, now_ms: int) -> None:
        self._period_ms = period_s * 1000
        self._half_ms = self._period_ms // 2
        self._received_seen = 0
        self._silent_checks = 0
        self.is_paused = False
        self.next_send_ms = now_ms + self._half_ms
        self.next_receive_ms = now_ms + self._period_ms

    @property
    def next_deadline_ms(self) -> int:
        """When to look again."""
        return min(self.next_send_ms, self.next_receive_ms)

    def is_send_due(self, now_ms: int) -> bool:
        """Whether a heartbeat has to go out now.

        A late one does not delay those that follow: they keep to the rhythm.
        """
        late_ms = now_ms - self.next_send_ms
        if late_ms < 0:
            return False
        self.next_send_ms = now_ms + self._half_ms - late_ms % self._half_ms
        return True

    def is_peer_silent(self, now_ms: int, received_total: int) -> bool:
        """Whether the peer has been silent for too long.

        One look per call, however late it comes: a driver that stalled blames no peer for it.
        """
        if now_ms < self.next_receive_ms:
            return False
        if self.is_paused or received_total != self._received_seen:
            self._received_seen = received_total
            self._silent_checks = 0
        else:
            self._silent_checks += 1
        is_last = self._silent_checks == SILENT_CHECKS_MAX
        self.next_receive_ms = now_ms + (LAST_LOOK_MS if is_last else self._period_ms)
        return self._silent_checks > SILENT_CHECKS_MAX

    def pause(self) -> None:
        """The driver has stopped reading the socket (R-HB-2)."""
        self.is_paused = True

    def resume(self, now_ms: int) -> None:
        """Reading goes on: the peer gets whole periods from now."""
        if self.is_paused:
            self.is_paused = False
            self._silent_checks = 0
            self.next_receive_ms = now_ms + self._period_ms
