"""Where the members of a chaos run live: network namespaces of their own on a bridge, or loopback.

Namespaces need root, iproute2 and iptables.  Clients stay outside and reach every member; only
what the members say to each other can be cut.  Names carry the process id, so that runs beside
each other do not meet, and everything goes with the run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import Protocol

from tests.chaos.partitions import Cuts
from tests.ports import free_ports

#: The ports of a member in a namespace of its own; on loopback each has free ones instead.
PORTS = {"AMQP": 5672, "GRPC": 5680, "PEER": 5690, "HTTP": 15692, "MANAGEMENT": 15672}


class NoNamespaces(Exception):
    """They cannot be made here; the message says why."""


class Network(Protocol):
    """How members are reached and separated."""

    #: Whether `cut` works.
    is_real: bool

    def host(self, member: int) -> str:
        """Return the address of a member."""

    def ports(self, member: int) -> dict[str, int]:
        """Return a member's ports by listener."""

    def command(self, member: int, *words: str) -> list[str]:
        """Return the command that runs `words` where the member lives."""

    def cut(self, cuts: Cuts) -> None:
        """Lose these packets from now on."""

    def heal(self) -> None:
        """Lose nothing any more."""


class Loopback:
    """All members on 127.0.0.1; nothing can be cut."""

    is_real = False

    def __init__(self, count: int) -> None:
        found = free_ports(count * len(PORTS))
        self._ports = [
            dict(zip(PORTS, found[i * len(PORTS) :], strict=False)) for i in range(count)
        ]

    def host(self, member: int) -> str:
        return "127.0.0.1"

    def ports(self, member: int) -> dict[str, int]:
        return self._ports[member]

    def command(self, member: int, *words: str) -> list[str]:
        return list(words)

    def cut(self, cuts: Cuts) -> None:
        raise NoNamespaces("loopback cannot be cut")

    def heal(self) -> None:
        """Nothing was cut."""


class Namespaces:
    """One namespace per member, joined by a bridge.  State: their names."""

    is_real = True

    def __init__(self, count: int) -> None:
        if os.geteuid():
            raise NoNamespaces("network namespaces need root")
        for program in ("ip", "iptables"):
            if shutil.which(program) is None:
                raise NoNamespaces(f"{program} is not installed (apt-get install {program})")
        pid = os.getpid()
        self._names = [f"chaos-{pid}-{i}" for i in range(count)]
        self._hub = f"chaos-{pid}-hub"
        #: How clients get in.
        self._door = f"chaos{pid}"
        # 10.213/16: nothing else of ours uses it; runs beside each other differ in the third byte.
        self._prefix = f"10.213.{pid % 250}"
        try:
            self._build()
        except (subprocess.CalledProcessError, OSError) as error:
            self.close()
            said = getattr(error, "stderr", b"") or str(error).encode()
            raise NoNamespaces(f"cannot be made: {said.decode().strip()}") from error

    def _build(self) -> None:
        # The bridge has a namespace too: the machine's own rules for forwarding, a container
        # network's for instance, do not concern it there.
        hub = ("ip", "-n", self._hub)
        _run("ip", "netns", "add", self._hub)
        _run(*hub, "link", "add", "bridge0", "type", "bridge")
        _run(*hub, "link", "set", "bridge0", "up")
        pair = ("type", "veth", "peer", "name", "outside", "netns", self._hub)
        _run("ip", "link", "add", self._door, *pair)
        _run(*hub, "link", "set", "outside", "master", "bridge0", "up")
        _run("ip", "addr", "add", f"{self._prefix}.1/24", "dev", self._door)
        _run("ip", "link", "set", self._door, "up")
        for i, name in enumerate(self._names):
            _run("ip", "netns", "add", name)
            _run(
                *hub, "link", "add", f"to{i}", "type", "veth", "peer", "name", "eth0", "netns", name
            )
            _run(*hub, "link", "set", f"to{i}", "master", "bridge0", "up")
            inside = ("ip", "-n", name)
            _run(*inside, "addr", "add", f"{self.host(i)}/24", "dev", "eth0")
            _run(*inside, "link", "set", "eth0", "up")
            _run(*inside, "link", "set", "lo", "up")
            self._iptables(i, "-L", "INPUT")

    def host(self, member: int) -> str:
        return f"{self._prefix}.{member + 10}"

    def ports(self, member: int) -> dict[str, int]:
        return PORTS

    def command(self, member: int, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self._names[member], *words]

    def _iptables(self, member: int, *words: str) -> None:
        _run(*self.command(member, "iptables", "-w", *words))

    def cut(self, cuts: Cuts) -> None:
        for speaker, listener in sorted(cuts):
            self._iptables(listener, "-A", "INPUT", "-s", self.host(speaker), "-j", "DROP")

    def heal(self) -> None:
        for member in range(len(self._names)):
            self._iptables(member, "-F", "INPUT")

    def close(self) -> None:
        """Take everything away that was made."""
        # Interfaces go with their namespaces.
        names = [*self._names, self._hub]
        commands: list[Sequence[str]] = [("ip", "netns", "del", name) for name in names]
        commands += [("ip", "link", "del", self._door)]
        for command in commands:
            with contextlib.suppress(subprocess.CalledProcessError, OSError):
                _run(*command)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=60)


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[Namespaces]:
    """Make them, and take them away at the end; raises NoNamespaces with the reason."""
    made = Namespaces(count)
    try:
        yield made
    finally:
        made.close()
