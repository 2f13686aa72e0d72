"""RabbitMQ 3.10.8, Debian's own, as the server whose answers are the expectation.

One node: own name, data, log, cookie and port mapper (epmd), free ports on loopback, ended by pid.
It is administered over the HTTP API of its management plugin, which answers in milliseconds where
rabbitmqctl takes a second and a half. For tests/compat only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.members import eventually, free_ports

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
VERSION = "3.10.8"
START_SECONDS = 90.0
REQUEST_SECONDS = 30.0
#: The Authorization header of guest.
GUEST = "Basic Z3Vlc3Q6Z3Vlc3Q="

CONFIG = """\
listeners.tcp.1 = 127.0.0.1:{amqp}
management.tcp.ip = 127.0.0.1
management.tcp.port = {http}
collect_statistics_interval = 500
log.console = false
log.file.level = info
"""


class RabbitNode:
    """State: the server's process, its port mapper, its folder."""

    def __init__(self, folder: Path) -> None:
        self.amqp_port, self.http_port, dist_port, epmd_port = free_ports(4)
        self._folder = folder
        folder.mkdir()
        cookie = folder / ".erlang.cookie"
        cookie.write_text("COMPATIBILITYTESTS")
        cookie.chmod(0o400)
        (folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
        (folder / "env.conf").write_text("")
        config = CONFIG.format(amqp=self.amqp_port, http=self.http_port)
        (folder / "rabbitmq.conf").write_text(config)
        self._env = os.environ | {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"compat{self.amqp_port}@localhost",
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

    @property
    def environment(self) -> dict[str, str]:
        """Return what rabbitmqctl needs to find this node."""
        return dict(self._env)

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(command, env=self._env, stdout=nowhere, stderr=nowhere)

    def wait_ready(self) -> None:
        """Wait until AMQP clients and the HTTP API are let in."""

        def ready() -> bool:
            assert self._server.poll() is None, "rabbitmq-server ended"
            with contextlib.suppress(OSError):
                for port in (self.amqp_port, self.http_port):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                return True
            return False

        eventually(ready, "RabbitMQ ready", START_SECONDS)

    def stop(self) -> None:
        """End the node, then its port mapper."""
        pid_file = self._folder / "pid"
        if pid_file.exists():
            with contextlib.suppress(ProcessLookupError, ValueError):
                # Nothing of it is needed afterwards, and an orderly end takes six seconds.
                os.kill(int(pid_file.read_text()), signal.SIGKILL)
        for process in (self._server, self._epmd):
            try:
                process.wait(20 if process is self._server else 0.1)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def rabbit_node(folder: Path) -> Iterator[RabbitNode]:
    """Run a node; skips with the reason where it is not installed."""
    if not SERVER.exists():
        pytest.skip("rabbitmq-server is not installed (apt-get install rabbitmq-server)")
    node = RabbitNode(folder)
    try:
        node.wait_ready()
        yield node
    finally:
        node.stop()


class RabbitAdmin:
    """The Admin of tests/compat/servers.py by the HTTP API, as guest."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)

    def close(self) -> None:
        """Drop the connection."""
        self._http.close()

    def _call(self, verb: str, *path: str, body: Any = None) -> Any:
        url = "/api/" + "/".join(quote(part, safe="") for part in path)
        headers = {"Authorization": GUEST, "Content-Type": "application/json"}
        text = None if body is None else json.dumps(body)
        try:
            self._http.request(verb, url, text, headers)
            answer = self._http.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError):
            # An idle connection was closed by the server; each request here can be repeated.
            self._http.close()
            self._http.request(verb, url, text, headers)
            answer = self._http.getresponse()
        data = answer.read()
        assert answer.status < 300, f"{verb} {url}: {answer.status} {data[:500]!r}"
        return json.loads(data) if data else None

    def add_vhost(self, name: str, default_queue_type: str = "") -> None:
        """Make a vhost in which guest may do everything."""
        body = {"default_queue_type": default_queue_type} if default_queue_type else {}
        self._call("PUT", "vhosts", name, body=body)
        self.set_permissions(name, "guest")

    def delete_vhost(self, name: str) -> None:
        """Remove a vhost with all that is in it."""
        self._call("DELETE", "vhosts", name)

    def add_user(self, name: str, password: str, *tags: str) -> None:
        """Make a user without any permission."""
        self._call("PUT", "users", name, body={"password": password, "tags": ",".join(tags)})

    def delete_user(self, name: str) -> None:
        """Remove a user."""
        self._call("DELETE", "users", name)

    def set_permissions(
        self, vhost: str, user: str, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        """Say what a user may do in a vhost."""
        body = {"configure": configure, "write": write, "read": read}
        self._call("PUT", "permissions", vhost, user, body=body)

    def clear_permissions(self, vhost: str, user: str) -> None:
        """Take a user's permissions in a vhost away."""
        self._call("DELETE", "permissions", vhost, user)

    def set_topic_permissions(
        self, vhost: str, user: str, exchange: str, write: str = ".*", read: str = ".*"
    ) -> None:
        """Limit the routing keys of a user with an exchange."""
        body = {"exchange": exchange, "write": write, "read": read}
        self._call("PUT", "topic-permissions", vhost, user, body=body)

    def set_policy(
        self,
        vhost: str,
        name: str,
        pattern: str,
        definition: dict[str, Any],
        apply_to: str = "all",
        priority: int = 0,
        operator: bool = False,
    ) -> None:
        """Define a policy or operator policy."""
        body = {
            "pattern": pattern,
            "definition": definition,
            "apply-to": apply_to,
            "priority": priority,
        }
        self._call("PUT", _policies(operator), vhost, name, body=body)

    def clear_policy(self, vhost: str, name: str, operator: bool = False) -> None:
        """Remove a policy or operator policy."""
        self._call("DELETE", _policies(operator), vhost, name)

    def set_vhost_limit(self, vhost: str, name: str, value: int) -> None:
        """Set max-connections or max-queues of a vhost."""
        self._call("PUT", "vhost-limits", vhost, name, body={"value": value})

    def set_user_limit(self, user: str, name: str, value: int) -> None:
        """Set max-connections or max-channels of a user."""
        self._call("PUT", "user-limits", user, name, body={"value": value})

    def queues(self, vhost: str) -> dict[str, dict[str, Any]]:
        """Return the queues of a vhost by name."""
        return {row["name"]: row for row in self._call("GET", "queues", vhost)}

    def exchanges(self, vhost: str) -> dict[str, dict[str, Any]]:
        """Return the exchanges of a vhost by name."""
        return {row["name"]: row for row in self._call("GET", "exchanges", vhost)}

    def bindings(self, vhost: str) -> list[dict[str, Any]]:
        """Return the bindings of a vhost, the default exchange's included."""
        rows: list[dict[str, Any]] = self._call("GET", "bindings", vhost)
        return rows


def _policies(operator: bool) -> str:
    return "operator-policies" if operator else "policies"
