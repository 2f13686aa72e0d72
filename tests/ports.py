"""Free ports on loopback, for processes that tests start, stop and start again."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
#: Up to here at least, where outgoing connections begin lower.
_END_MIN = 20_000
#: Ports are taken in blocks of so many, each of which is one process's until it ends.
_BLOCK = 100
#: What holds this process's blocks: a name in the kernel's abstract namespace, which goes with it.
_holds: list[socket.socket] = []
#: Those of a process that is away for a moment are not free, though nobody listens there.
_left: list[int] = []


def _take_block() -> None:
    """Make a block of ports this process's, that no other test run beside it has."""
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    blocks = list(range(_LOWEST, max(end, _END_MIN) - _BLOCK + 1, _BLOCK))
    # Not the generator that pytest-randomly seeds: each test would begin with the same ports.
    chance = random.SystemRandom()
    chance.shuffle(blocks)
    for first in blocks:
        hold = socket.socket(socket.AF_UNIX)
        try:
            hold.bind(f"\0brokerd-tests-ports-{first}")
        except OSError as error:
            hold.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise
        _holds.append(hold)
        _left.extend(range(first, first + _BLOCK))
        chance.shuffle(_left)
        return
    raise RuntimeError("the test runs on this machine have taken all ports")


def free_ports(count: int) -> list[int]:
    """Return distinct ports that were free a moment ago, and that no other test run is given.

    They lie below those that the system gives to outgoing connections, of which a test makes
    thousands: one of them could take the port of a member that is away for a moment.  So could a
    test run beside this one, of which there are several, each with members of its own (the lanes of
    `make test`).
    """
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            if not _left:
                _take_block()
            port = _left.pop()
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found
