"""A real RabbitMQ node, Debian's own, for tests that have RabbitMQ beside or opposite brokerd.

Own name, data, log, cookie and port mapper (epmd), free ports on loopback; ended by pid.  The bench
starts its cluster of three itself (bench/rabbitmq.py), and tests in namespaces of their own theirs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.members import eventually
from tests.ports import free_ports

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")
START_SECONDS = 180.0
#: The plugins that tests use: its HTTP API answers in milliseconds, rabbitmqctl in 1.5 s.
MANAGEMENT = "rabbitmq_management"
FEDERATION = "rabbitmq_federation"
LINKS = "rabbitmq_federation,rabbitmq_shovel"
PROMETHEUS = "rabbitmq_prometheus"
OAUTH2 = "rabbitmq_auth_backend_oauth2"


class RabbitNode:
    """A node with plugins.  State: the server's process, its port mapper, its folder."""

    def __init__(self, folder: Path, plugin: str, settings: Sequence[str]) -> None:
        self.amqp_port, self.http_port, dist_port, epmd_port = free_ports(4)
        self.name = f"test{self.amqp_port}@localhost"
        self._has_http = MANAGEMENT in plugin or PROMETHEUS in plugin
        self._folder = folder
        folder.mkdir()
        cookie = folder / ".erlang.cookie"
        cookie.write_text("BROKERDTESTS")
        cookie.chmod(0o400)
        (folder / "enabled_plugins").write_text(f"[{plugin}].\n")
        (folder / "env.conf").write_text("")
        lines = [f"listeners.tcp.1 = 127.0.0.1:{self.amqp_port}"]
        if PROMETHEUS in plugin:
            lines += [
                "prometheus.tcp.ip = 127.0.0.1",
                f"prometheus.tcp.port = {self.http_port}",
                "collect_statistics_interval = 500",
            ]
        if MANAGEMENT in plugin:
            lines += [
                "management.tcp.ip = 127.0.0.1",
                f"management.tcp.port = {self.http_port}",
                "collect_statistics_interval = 500",
            ]
        lines += ["log.console = false", "log.file.level = info", *settings, ""]
        (folder / "rabbitmq.conf").write_text("\n".join(lines))
        #: What rabbitmqctl needs to find this node, too.
        self.environment = os.environ | {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.amqp_port),
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            # Idle schedulers sleep instead of spinning: two cores are shared with brokerd.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        }
        self._epmd = self._spawn("epmd", "-port", str(epmd_port), "-address", "127.0.0.1")
        self._server = self._spawn(str(SERVER))

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(command, env=self.environment, stdout=nowhere, stderr=nowhere)

    def wait_ready(self) -> None:
        """Wait until clients are let in, and the HTTP API if there is one."""
        ports = [self.amqp_port, self.http_port] if self._has_http else [self.amqp_port]

        def ready() -> bool:
            assert self._server.poll() is None, "rabbitmq-server ended"
            with contextlib.suppress(OSError):
                for port in ports:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                return True
            return False

        eventually(ready, "RabbitMQ ready", START_SECONDS)

    def control(self, *words: str) -> str:
        """Run rabbitmqctl; return what it prints."""
        done = subprocess.run(
            [str(CONTROL), "-q", "-n", self.name, *words],
            env=self.environment,
            text=True,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def kill(self) -> None:
        """SIGKILL; `start` goes on with its data."""
        self._kill()
        self._server.wait()

    def start(self) -> None:
        """Start the node again; `wait_ready` follows."""
        self._server = self._spawn(str(SERVER))

    def _kill(self) -> None:
        pid_file = self._folder / "pid"
        if pid_file.exists():
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(pid_file.read_text()), signal.SIGKILL)
            pid_file.unlink()

    def stop(self) -> None:
        """End the node, then its port mapper."""
        # Nothing of it is needed afterwards, and an orderly end takes six seconds.
        self._kill()
        for process in (self._server, self._epmd):
            try:
                process.wait(20 if process is self._server else 0.1)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def rabbit_node(
    folder: Path, plugin: str = MANAGEMENT, settings: Sequence[str] = ()
) -> Iterator[RabbitNode]:
    """Run a node; skips with the reason where it is not installed.  settings: of rabbitmq.conf."""
    if not SERVER.exists():
        pytest.skip("rabbitmq-server is not installed (apt-get install rabbitmq-server)")
    node = RabbitNode(folder, plugin, settings)
    try:
        node.wait_ready()
        yield node
    finally:
        node.stop()
