"""Three brokerd members on loopback for the comparison: new data each time, ended by pid."""

from __future__ import annotations

import http.client
import os
import socket
import sys
import urllib.request
from pathlib import Path

from bench import processes
from brokerd import __version__, compiled

PORTS = {"amqp": 5672, "rpc": 5680, "peer": 5690, "http": 15692, "management": 15672}
ALL_PORTS = (5671, *PORTS.values())
#: Members differ by this in every port; no two of the ports above lie this far apart.
OFFSET_STEP = 100
#: With these offsets all ports lie below 32768, from where the system takes ports of clients.
FIRST_OFFSET, LAST_OFFSET = 10000, 17000


def free_offset(count: int) -> int:
    """The first offset at which no port of `count` members is taken."""
    candidates = range(FIRST_OFFSET, LAST_OFFSET - count * OFFSET_STEP, count * OFFSET_STEP)
    # Benches that start at the same moment begin to look at different places.
    first = os.getpid() % len(candidates)
    for offset in (*candidates[first:], *candidates[:first]):
        wanted = [port + offset + OFFSET_STEP * n for n in range(count) for port in ALL_PORTS]
        if all(_is_free(port) for port in wanted):
            return offset
    raise processes.BenchError(f"no free range of ports for {count} members of brokerd")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class BrokerdCluster(processes.Nodes):
    """Members that found a cluster with each other."""

    def __init__(
        self,
        size: int = 3,
        program: tuple[str, ...] = ("brokerd",),
        environment: dict[str, str] | None = None,
    ) -> None:
        """environment: settings of all members."""
        super().__init__("brokerd")
        # The members run the form that this process runs: their environment is ours.
        self.title = f"brokerd {__version__}, {compiled.form()}"
        self._size = size
        #: The module that is run, and its first arguments.
        self._program = program
        self._settings = environment or {}
        self.amqp_ports: list[int] = []
        #: Of the gRPC services for clients.
        self.rpc_ports: list[int] = []
        self._offsets: list[int] = []
        self._env: dict[str, str] = {}

    def start(self) -> None:
        first = free_offset(self._size)
        self._offsets = offsets = [first + OFFSET_STEP * n for n in range(self._size)]
        self.amqp_ports = [PORTS["amqp"] + offset for offset in offsets]
        self.rpc_ports = [PORTS["rpc"] + offset for offset in offsets]
        self._env = (
            os.environ
            | {
                "BROKERD_CLUSTER_NAME": "bench",
                "BROKERD_CLUSTER_SECRET": "bench-on-loopback-only",
                "BROKERD_CLUSTER_MEMBERS": ",".join(
                    f"n{n}=127.0.0.1:{PORTS['peer'] + offset}" for n, offset in enumerate(offsets)
                ),
            }
            | self._settings
        )
        with self.starting():
            for number in range(self._size):
                self.start_again(number)
            for number in range(self._size):
                self.wait_for_node(number, self.is_ready)

    def start_again(self, number: int) -> None:
        command = [sys.executable, "-m", *self._program, "serve", "--node-name", f"n{number}"]
        command += ["--data-dir", str(self.data_of(number)), "--bind", "127.0.0.1"]
        command += ["--port-offset", str(self._offsets[number])]
        self.run_node(number, command, self._env)

    def is_ready(self, number: int) -> bool:
        return _is_ready(f"http://127.0.0.1:{PORTS['http'] + self._offsets[number]}/health/ready")

    def data_of(self, number: int) -> Path:
        """A member's data directory."""
        return self.folder / f"n{number}"

    def metrics_url(self, number: int) -> str:
        return f"http://127.0.0.1:{PORTS['http'] + self._offsets[number]}/metrics"

    def rebalance(self) -> None:
        self.control("rebalance", "quorum", "-t", "300")

    def control(self, *arguments: str) -> None:
        address = f"127.0.0.1:{PORTS['rpc'] + self._offsets[0]}"
        control = Path(sys.executable).with_name("brokerctl")
        processes.run_tool([str(control), "--address", address, *arguments])


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            response.read()
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):
        # The latter: without a listener, a client on this very port may connect to itself.
        return False
