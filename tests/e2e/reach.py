"""How a test outside of the cluster reaches a broker in it: AMQP by pika, administration by gRPC.

On the nodes of tools/cluster pods' addresses and ClusterIPs are reachable; on any other cluster
`kubectl port-forward` stands in between, one process per target, ended by `close`.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pika
import pika.exceptions

from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from tests.cluster_fixtures import BIN
from tests.e2e.namespace import Namespace, until

AMQP, AMQPS, GRPC, HTTP = 5672, 5671, 5680, 15692
#: pika's ways to say that a connection is gone.
LOST = (pika.exceptions.AMQPError, OSError)
CALL_TIMEOUT_S = 30.0
#: What is on its way to a member behind a cut is given up after so long.  Without it Linux sends it
#: again after ever longer pauses, and waits for up to as long as the cut was when it is over.
USER_TIMEOUT_MS = 5000
#: A Service's address reaches a member that is ready only once the nodes have heard of it.
CONNECT_TIMEOUT_S = 120.0


class Reach:
    """The endpoints of one BrokerCluster."""

    def __init__(self, space: Namespace, name: str, login: str = "") -> None:
        """login: the Secret with user and password, the administrator's if empty."""
        self.space = space
        self.name = name
        self.login = login or f"{name}-admin"
        self.user = self.password = ""
        self.read_login()
        self.authority = space.secret(f"{name}-tls")["ca.crt"]
        self._lock = threading.Lock()
        self._forwards: dict[tuple[str, int], tuple[subprocess.Popen[str], int]] = {}

    def read_login(self) -> None:
        """Take what the Secret says; while there is none, what it said before goes on."""
        found = self.space.find("secret", self.login)
        if found is None and self.user:
            return
        secret = (found or {})["data"]
        self.user = base64.b64decode(secret["username"]).decode()
        self.password = base64.b64decode(secret["password"]).decode()

    def member_host(self, ordinal: int) -> str:
        return f"{self.name}-{ordinal}.{self.name}-nodes.{self.space.name}.svc"

    # ---- addresses ------------------------------------------------------------------------------

    def address(self, port: int, ordinal: int | None = None) -> tuple[str, int]:
        """Where to connect to for a port of a member, or of the Service of all."""
        target = f"service/{self.name}" if ordinal is None else f"pod/{self.name}-{ordinal}"
        if not self.space.kube.is_ours:
            with self._lock:
                return "127.0.0.1", self._forward(target, port)
        path = "{.spec.clusterIP}" if ordinal is None else "{.status.podIP}"
        # A pod that was just deleted is not there, and a new one has no address yet.
        said = self.space.kubectl("get", target, "-o", f"jsonpath={path}", check=False)
        try:
            return str(ipaddress.ip_address(said)), port
        except ValueError as error:
            raise ConnectionError(f"{target} has no address: {said}") from error

    def _forward(self, target: str, port: int) -> int:
        known = self._forwards.get((target, port))
        if known is not None:
            if known[0].poll() is None:
                return known[1]
            # It ended with its pod.
            self._end(self._forwards.pop((target, port))[0])
        command = [str(BIN / "kubectl"), "--kubeconfig", str(self.space.kube.kubeconfig)]
        command += ["-n", self.space.name, "port-forward", target, f":{port}"]
        process = subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        if found is None:
            self._end(process)
            raise ConnectionError(f"no way to {target} port {port}")
        self._forwards[target, port] = process, int(found[1])
        return int(found[1])

    def close(self) -> None:
        """End what stands in between."""
        for process, _ in self._forwards.values():
            self._end(process)
        self._forwards.clear()

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()

    # ---- AMQP -----------------------------------------------------------------------------------

    def connect(self, ordinal: int | None = None, is_tls: bool = False) -> pika.BlockingConnection:
        """Connect once a member lets us in; for tests, which rest between two words."""

        def connected() -> pika.BlockingConnection | None:
            with contextlib.suppress(*LOST):
                return self.connect_once(ordinal, is_tls, heartbeat_s=300)
            return None

        return until(connected, f"a connection to {self.name}", CONNECT_TIMEOUT_S)

    def connect_once(
        self, ordinal: int | None = None, is_tls: bool = False, heartbeat_s: int = 10
    ) -> pika.BlockingConnection:
        """Connect, or raise one of LOST; a member that is gone is noticed by its heartbeats."""
        host, port = self.address(AMQPS if is_tls else AMQP, ordinal)
        options = None
        if is_tls:
            context = ssl.create_default_context(cadata=self.authority.decode())
            name = self.name if ordinal is None else self.member_host(ordinal)
            options = pika.SSLOptions(context, name)
        parameters = pika.ConnectionParameters(
            host,
            port,
            credentials=pika.PlainCredentials(self.user, self.password),
            ssl_options=options,
            heartbeat=heartbeat_s,
            socket_timeout=5,
            stack_timeout=20,
            blocked_connection_timeout=30,
            tcp_options={"TCP_USER_TIMEOUT": USER_TIMEOUT_MS},
        )
        return pika.BlockingConnection(parameters)

    def has_queue(self, name: str) -> bool:
        """Ask as a client would."""
        connection = self.connect()
        try:
            connection.channel().queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            if error.reply_code != 404:
                raise
            return False
        else:
            return True
        finally:
            connection.close()

    # ---- administration -------------------------------------------------------------------------

    def topology(self, kind: str) -> dict[str, dict[str, Any]]:
        """The specs of all objects of a kind, by name (docs/reference/topology.md)."""
        with self._admin() as (stub, options):
            pages = stub.ListTopology(admin_pb2.ListTopologyRequest(kinds=[kind]), **options)
            return {item.name: json.loads(item.spec) for page in pages for item in page.objects}

    def leader(self, queue: str) -> str:
        """Which member leads a queue of the virtual host "/"."""
        return str(self._quorum(queue).leader)

    def voters(self, queue: str) -> set[str]:
        """Members that vote for such a queue and are well, as its leader sees them."""
        return {
            item.member
            for item in self._quorum(queue).members
            if item.membership == "voter" and not item.problem
        }

    def _quorum(self, queue: str) -> Any:
        with self._admin() as (stub, options):
            request = admin_pb2.QuorumStatusRequest(vhost="/", name=queue)
            return stub.QuorumStatus(request, **options)

    @contextlib.contextmanager
    def _admin(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """A stub, and what every call of it is made with."""
        host, port = self.address(GRPC)
        credentials = grpc.ssl_channel_credentials(self.authority)
        options = [("grpc.ssl_target_name_override", f"{self.name}.{self.space.name}.svc")]
        token = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        with grpc.secure_channel(f"{host}:{port}", credentials, options) as channel:
            stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
            call = {"metadata": (("authorization", f"Basic {token}"),), "timeout": CALL_TIMEOUT_S}
            yield stub, call
