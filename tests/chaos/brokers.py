"""How each broker's cluster is started for a chaos run: brokerd, and Debian's RabbitMQ.

Both as they ship, apart from what a cluster in network namespaces needs.  RabbitMQ besides with
pause_minority, which its documentation recommends for three and more nodes, and with a net tick of
10 s instead of 60, or it would not notice most partitions of these runs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.rabbitmq import CONTROL, SERVER, version
from tests.chaos.cluster import Cluster, Node, control_command
from tests.chaos.network import Network
from tests.chaos.shim import Control
from tests.integration.members import REPOSITORY

QUEUES_CONTROL = CONTROL.with_name("rabbitmq-queues")
#: A small segment, so that a short run rotates, collects and recycles.
SEGMENT_BYTES = 8 << 20


class BrokerdCluster:
    """Members n0, n1, …"""

    def __init__(self, folder: Path, network: Network, count: int, library: Path | None) -> None:
        self.title = "brokerd"
        self.network = network
        peers = ",".join(f"n{i}={network.host(i)}:{network.ports(i)['PEER']}" for i in range(count))
        self.nodes = [self._node(folder, i, peers, library) for i in range(count)]

    def _node(self, folder: Path, i: int, peers: str, library: Path | None) -> Node:
        host, ports = self.network.host(i), self.network.ports(i)
        data = folder / f"n{i}"
        data.mkdir()
        words = [sys.executable, "-m", "brokerd", "serve", "--node-name", f"n{i}"]
        words += ["--data-dir", str(data), "--bind", host]
        environment = {f"BROKERD_LISTENERS_{key}": str(port) for key, port in ports.items()}
        environment |= {
            "BROKERD_LISTENERS_AMQPS": "0",
            "BROKERD_LISTENERS_MANAGEMENT_TLS": "0",
            "BROKERD_CLUSTER_NAME": "chaos",
            "BROKERD_CLUSTER_MEMBERS": peers,
            "BROKERD_CLUSTER_SECRET": "a secret of the chaos runs",
            # The clients stand outside of the namespaces.
            "BROKERD_AUTH_LOOPBACK_USERS": "",
            "BROKERD_STORAGE_SEGMENT_BYTES": str(SEGMENT_BYTES),
            "PYTHONPATH": str(REPOSITORY),
        }
        control = Control(library, folder / f"control{i}", data) if library else None
        return Node(
            index=i,
            name=f"n{i}",
            address=(host, ports["AMQP"]),
            command=self.network.command(i, *words),
            environment=environment,
            data=data,
            log=folder / f"n{i}.log",
            control=control,
        )

    def newest_log_files(self, node: Node) -> list[Path]:
        return sorted((node.data / "wal").glob("wal-*.log"), key=lambda path: path.stat().st_mtime)

    def leave_queue(self, node: Node, queue: str) -> None:
        self._control(node, "delete_member", queue, node.name)

    def join_queue(self, node: Node, queue: str) -> None:
        self._control(node, "add_member", queue, node.name)

    def forget(self, node: Node) -> None:
        self._control(node, "forget_cluster_node", node.name)

    def grow(self, node: Node) -> None:
        self._control(node, "grow", node.name, "all")

    def _control(self, node: Node, *words: str) -> None:
        # Asked at another member, as one would who takes this one away.
        other = (node.index + 1) % len(self.nodes)
        address = f"{self.network.host(other)}:{self.network.ports(other)['GRPC']}"
        brokerctl = "from brokerd.ctl.main import main; main()"
        command = [sys.executable, "-c", brokerctl, "--node", address, *words]
        control_command(command, {"PYTHONPATH": str(REPOSITORY)})

    def close(self) -> None:
        """Nothing but the members was started."""


class RabbitCluster:
    """Nodes rabbit@<address>, each with its own port mapper; needs namespaces."""

    def __init__(self, folder: Path, network: Network, count: int, library: Path | None) -> None:
        assert network.is_real, "RabbitMQ's nodes need namespaces: they share port numbers"
        self.title = f"RabbitMQ {version()}"
        self.network = network
        self._folder = folder
        cookie = folder / ".erlang.cookie"
        cookie.write_text("BROKERDCHAOS")
        cookie.chmod(0o400)
        self.nodes = [self._node(i, count, library) for i in range(count)]
        nowhere = subprocess.DEVNULL
        self._mappers = [
            subprocess.Popen(network.command(i, "epmd"), stdout=nowhere, stderr=nowhere)
            for i in range(count)
        ]

    def _name(self, i: int) -> str:
        return f"rabbit@{self.network.host(i)}"

    def _node(self, i: int, count: int, library: Path | None) -> Node:
        folder = self._folder / f"r{i}"
        folder.mkdir()
        data = folder / "data"
        data.mkdir()
        (folder / "enabled_plugins").write_text("[].\n")
        (folder / "env.conf").write_text("")
        lines = [
            "listeners.tcp.1 = 0.0.0.0:5672",
            "loopback_users = none",
            "log.console = false",
            "log.file.level = info",
            "cluster_partition_handling = pause_minority",
            "cluster_formation.peer_discovery_backend = classic_config",
        ]
        lines += [
            f"cluster_formation.classic_config.nodes.{n + 1} = {self._name(n)}"
            for n in range(count)
        ]
        (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (folder / "advanced.config").write_text("[{kernel, [{net_ticktime, 10}]}].\n")
        environment = {
            "HOME": str(self._folder),
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_NODENAME": self._name(i),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(data),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            # Idle schedulers sleep instead of spinning: two cores are shared by all nodes.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        }
        control = Control(library, self._folder / f"control{i}", data) if library else None
        return Node(
            index=i,
            name=self._name(i),
            address=(self.network.host(i), 5672),
            command=self.network.command(i, str(SERVER)),
            environment=environment,
            data=data,
            log=self._folder / f"r{i}.log",
            control=control,
        )

    def newest_log_files(self, node: Node) -> list[Path]:
        return sorted(node.data.glob("*/quorum/*/*.wal"), key=lambda path: path.stat().st_mtime)

    def leave_queue(self, node: Node, queue: str) -> None:
        self._control(node, "delete_member", queue, node.name)

    def join_queue(self, node: Node, queue: str) -> None:
        self._control(node, "add_member", queue, node.name)

    def forget(self, node: Node) -> None:
        # It must not run then; the replicas of its queues are taken away before.
        node.kill()
        self._control(node, "shrink", node.name)
        self._control(node, "forget_cluster_node", node.name, program=CONTROL)

    def grow(self, node: Node) -> None:
        self._control(node, "grow", node.name, "all")

    def _control(self, node: Node, *words: str, program: Path = QUEUES_CONTROL) -> None:
        other = self.nodes[(node.index + 1) % len(self.nodes)]
        command = [str(program), "-q", "-l", "-n", other.name, *words]
        control_command(self.network.command(other.index, *command), other.environment)

    def close(self) -> None:
        """End the port mappers."""
        for mapper in self._mappers:
            mapper.kill()
            mapper.wait()


MADE: dict[str, Callable[[Path, Network, int, Path | None], BrokerdCluster | RabbitCluster]] = {
    "brokerd": BrokerdCluster,
    "rabbitmq": RabbitCluster,
}


@contextlib.contextmanager
def cluster(
    broker: str, folder: Path, network: Network, count: int, library: Path | None = None
) -> Iterator[Cluster]:
    """Make a cluster whose members are not started yet; end all of it."""
    made = MADE[broker](folder, network, count, library)
    try:
        yield made
    finally:
        for node in made.nodes:
            node.kill()
        made.close()


def is_installed(broker: str) -> bool:
    """Tell whether this machine has the broker."""
    return broker == "brokerd" or (SERVER.exists() and os.access(SERVER, os.X_OK))
