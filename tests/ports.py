"""Free ports on loopback, for processes that tests start, stop and start again."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
#: Up to here at least, where outgoing connections begin lower.
_END_MIN = 20_000
#: Those of a process that is away for a moment are not free, though nobody listens there.
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return distinct ports that were free a moment ago.

    They lie below those that the system gives to outgoing connections, of which a test makes
    thousands: one of them could take the port of a member that is away for a moment.
    """
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    # Not the generator that pytest-randomly seeds: each test would begin with the same ports.
    chance = random.SystemRandom()
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            port = chance.randrange(_LOWEST, max(end, _END_MIN))
            if port in _given:
                continue
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    _given.update(found)
    return found
