"""Back-pressure of one connection: reading stops while a reason to wait holds.

hot-path.md rule 7.
"""

from __future__ import annotations

from collections.abc import Callable


class ReadGate:
    """Pauses and resumes a socket for several reasons at once; it is open when none is left."""

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause = pause
        self._resume = resume
        self._reasons: set[str] = set()
        self._closed = False

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
            if not self._closed:
                self._resume()

    def holds(self, reason: str) -> bool:
        """Tell whether reading waits for this reason."""
        return reason in self._reasons

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
            self._gate.hold(self._reason)

    def give(self, size: int) -> None:
        """These have arrived."""
        self.bytes -= size
        if self.bytes <= self._limit // 2:
            self._gate.release(self._reason)
