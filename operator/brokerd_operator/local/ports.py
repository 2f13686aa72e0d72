"""Ports of local members: one offset per member, free now and kept free of other environments.

A member needs its ports at one offset. Whether they are free is tried by binding; a lock file
per offset keeps two environments that start at the same time from choosing the same one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from brokerd_operator.local.errors import PortsExhausted
from brokerd_operator.manifests import naming

LOOPBACK = "127.0.0.1"
#: Offsets are multiples, so that no two members' ports of different kinds meet.
STEP = 100
#: 15692 and the offset must stay below the ephemeral ports of Linux (32768).
OFFSET_MAX = 16_000


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one member."""

    offset: int

    @property
    def amqp(self) -> int:
        return naming.PORT_AMQP + self.offset

    @property
    def grpc(self) -> int:
        return naming.PORT_GRPC + self.offset

    @property
    def peer(self) -> int:
        return naming.PORT_PEER + self.offset

    @property
    def http(self) -> int:
        return naming.PORT_HTTP + self.offset

    @property
    def management(self) -> int:
        return naming.PORT_MANAGEMENT + self.offset

    def all(self) -> tuple[int, ...]:
        return (self.amqp, self.grpc, self.peer, self.http, self.management)


def is_free(port: int) -> bool:
    """Whether a listener could be opened on loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            # A listener on all addresses is only seen when we listen as well.
            probe.listen(1)
        except OSError:
            return False
    return True


class PortReservations:
    """Owns the offsets of one environment; they are given back when it closes."""

    def __init__(self, directory: Path | None = None) -> None:
        default = Path(tempfile.gettempdir()) / f"brokerd-ports-{os.getuid()}"
        self._directory = directory or default
        self._locks: dict[int, int] = {}

    def __enter__(self) -> PortReservations:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give all offsets back."""
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._locks.clear()

    def release(self, offset: int) -> None:
        """Give one offset back."""
        descriptor = self._locks.pop(offset, None)
        if descriptor is not None:
            os.close(descriptor)

    def reserve(self, wanted: int | None = None, first: int = 0) -> Ports:
        """The wanted offset if it is free, else the first free one from `first` on."""
        candidates: Iterable[int] = range(first, OFFSET_MAX + 1, STEP)
        if wanted is not None:
            candidates = (wanted, *candidates)
        for offset in candidates:
            if offset in self._locks or not self._lock(offset):
                continue
            ports = Ports(offset)
            if all(is_free(port) for port in ports.all()):
                return ports
            self.release(offset)
        raise PortsExhausted(
            f"no free ports for a member from offset {first} on "
            f"(AMQP would be {naming.PORT_AMQP + first} and up, on {LOOPBACK})"
        )

    def _lock(self, offset: int) -> bool:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._directory / f"{offset}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            return False
        self._locks[offset] = descriptor
        return True
