"""Three RabbitMQ nodes on loopback, Debian's own, for the comparison.

Each start is a new cluster: own data, log, cookie and port-mapper (epmd), nothing of /etc or
/var/lib/rabbitmq is read or written, and no service is started. Everything is ended by pid.
Not for tests of behaviour: tests/compat has those.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from bench import processes
from bench.processes import BenchError

#: Where the programs are; another folder for those of another version.
BIN = Path(os.environ.get("RABBITMQ_BIN") or "/usr/lib/rabbitmq/bin")
SERVER = BIN / "rabbitmq-server"
CONTROL = BIN / "rabbitmqctl"
INSTALL = "apt-get update && apt-get install -y --no-install-recommends rabbitmq-server"


def install() -> None:
    """Install the Debian package as root; without root, the error says how."""
    if SERVER.exists():
        return
    if os.geteuid() or not shutil.which("apt-get"):
        raise BenchError(f"rabbitmq-server is missing; run as root: {INSTALL}")
    print("bench: installing rabbitmq-server from Debian", flush=True)
    # The package would start a broker on 5672; ours are started and ended by the bench.
    policy = Path("/usr/sbin/policy-rc.d")
    is_ours = not policy.exists()
    if is_ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(["sh", "-c", INSTALL], env=env, text=True, capture_output=True)
    finally:
        if is_ours:
            policy.unlink()
    if done.returncode:
        raise BenchError(f"rabbitmq-server cannot be installed: {done.stderr[-500:]}")


def version() -> str:
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"], text=True, capture_output=True
    )
    return shown.stdout.partition("-")[0] or "unknown"


class RabbitCluster(processes.Nodes):
    """Three nodes and one epmd."""

    def __init__(self, size: int = 3, plugins: str = "", settings: str = "") -> None:
        """plugins: names with commas; settings: more lines of rabbitmq.conf."""
        super().__init__("rabbitmq")
        install()
        self._plugins = plugins
        self._settings = settings
        self.title = f"RabbitMQ {version()}"
        self._size = size
        self.amqp_ports: list[int] = []
        self._epmd: subprocess.Popen[bytes] | None = None
        self._node_envs: dict[int, dict[str, str]] = {}

    def start(self) -> None:
        epmd_port, *ports = processes.free_ports(1 + 2 * self._size)
        self.amqp_ports, dist_ports = ports[: self._size], ports[self._size :]
        self._env = os.environ | {
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        with self.starting():
            self._env["HOME"] = str(self.folder)
            cookie = self.folder / ".erlang.cookie"
            cookie.write_text("BENCHMARKCOOKIE")
            cookie.chmod(0o400)
            self._epmd = subprocess.Popen(
                ["epmd", "-port", str(epmd_port), "-address", "127.0.0.1"],
                env=self._env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for number in range(self._size):
                self._prepare_node(number, dist_ports[number])
                self.start_again(number)
                self.wait_for_node(number, self.is_ready)
            self._wait_for_members()

    def start_again(self, number: int) -> None:
        self.run_node(number, [str(SERVER)], self._node_envs[number])

    def is_ready(self, number: int) -> bool:
        return processes.listens(self.amqp_ports[number])

    def rebalance(self) -> None:
        tool = str(CONTROL.with_name("rabbitmq-queues"))
        processes.run_tool([tool, "-n", "rb0@localhost", "rebalance", "quorum"], self._env)

    def control(self, *arguments: str) -> None:
        processes.run_tool([str(CONTROL), "-n", "rb0@localhost", *arguments], self._env)

    def _prepare_node(self, number: int, dist_port: int) -> None:
        folder = self.folder / f"rb{number}"
        folder.mkdir()
        (folder / "rabbitmq.conf").write_text(self._config(number))
        (folder / "enabled_plugins").write_text(f"[{self._plugins}].\n")
        (folder / "rabbitmq-env.conf").write_text("")
        self._node_envs[number] = self._env | {
            "RABBITMQ_NODENAME": f"rb{number}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.amqp_ports[number]),
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }

    def _config(self, number: int) -> str:
        members = "".join(
            f"cluster_formation.classic_config.nodes.{n + 1} = rb{n}@localhost\n"
            for n in range(self._size)
        )
        return (
            f"listeners.tcp.1 = 127.0.0.1:{self.amqp_ports[number]}\n"
            "log.console = false\nlog.file.level = warning\n"
            "cluster_formation.peer_discovery_backend = classic_config\n" + members + self._settings
        )

    def _wait_for_members(self) -> None:
        shown = subprocess.run(
            [str(CONTROL), "-n", "rb0@localhost", "eval", "length(rabbit_nodes:all_running())."],
            env=self._env,
            text=True,
            capture_output=True,
            timeout=processes.START_TIMEOUT_S,
        )
        if shown.stdout.strip() != str(self._size):
            said = shown.stdout.strip() or shown.stderr.strip()
            raise BenchError(f"the RabbitMQ nodes did not form one cluster: {said}")

    def stop(self) -> None:
        super().stop()
        if self._epmd is not None:
            processes.end_session(self._epmd)
            self._epmd = None
