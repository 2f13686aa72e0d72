"""Back-pressure of one connection: reading stops while a reason to wait holds.

hot-path.md rule 7.
"""

from __future__ import annotations

from collections.abc import Callable

#: How long a connection that was held back is shown as such (R-ALM-10).
FLOW_SHOWN_MS = 5000


class ReadGate:
    """Pauses and resumes a socket for several reasons at once; it is open when none is left."""

    def __init__(
        self,
        pause: Callable[[], None],
        resume: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._pause = pause
        self._resume = resume
        self._reasons: set[str] = set()
        self._closed = False
        self._now_ms = now_ms
        #: When what is on the way to queues last held reading.
        self._flow_ms: int | None = None
        self._flow_reasons = 0

    def hold(self, reason: str) -> None:
        """Stop reading for this reason."""
        if not self._reasons and not self._closed:
            self._pause()
        self._reasons.add(reason)

    def release(self, reason: str) -> bool:
        """This reason is gone; return whether it held."""
        if reason not in self._reasons:
            return False
        self._reasons.discard(reason)
        if not self._reasons and not self._closed:
            self._resume()
        return True

    def open(self) -> None:
        """Whatever reading waited for, it waits no more."""
        if self._reasons:
            self._reasons.clear()
            self._flow_reasons = 0
            if not self._closed:
                self._resume()

    def holds(self, reason: str) -> bool:
        """Tell whether reading waits for this reason."""
        return reason in self._reasons

    @property
    def is_held(self) -> bool:
        """Tell whether reading waits for anything."""
        return bool(self._reasons)

    def hold_flow(self, reason: str) -> None:
        """Stop reading since too much is on its way to queues."""
        if reason not in self._reasons:
            self._flow_reasons += 1
            self.hold(reason)

    def release_flow(self, reason: str) -> None:
        """That has arrived."""
        if self.release(reason):
            self._flow_reasons -= 1
            self._flow_ms = self._now_ms()

    @property
    def is_in_flow(self) -> bool:
        """Tell whether too much on its way holds reading, or has a moment ago."""
        if self._flow_reasons > 0:
            return True
        return self._flow_ms is not None and self._now_ms() - self._flow_ms < FLOW_SHOWN_MS

    def close(self) -> None:
        """The socket is gone: touch it no more, nor hold its connection, which holds this gate."""
        self._closed = True
        self._pause = self._resume = _nothing


def _nothing() -> None:
    """There is no socket any more."""


class ByteBudget:
    """Counts bytes that are on their way; closes the gate over the limit, opens it at half of it.

    Half, so that a connection at its limit does not pause and resume for every message.
    """

    def __init__(self, gate: ReadGate, reason: str, limit_bytes: int) -> None:
        self._gate = gate
        self._reason = reason
        self._limit = limit_bytes
        self.bytes = 0

    def take(self, size: int) -> None:
        """These bytes went off."""
        self.bytes += size
        if self.bytes > self._limit:
            self._gate.hold_flow(self._reason)

    def give(self, size: int) -> None:
        """These have arrived."""
        self.bytes -= size
        if self.bytes <= self._limit // 2:
            self._gate.release_flow(self._reason)
