"""What federation tests do with brokers: two of them, an Admin client, connections, addresses."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pika
import pytest

from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from tests.integration.members import Member, cluster, eventually
from tests.rabbitmq_node import FEDERATION, RabbitNode, rabbit_node

#: No answer within this time fails a test.
CALL_SECONDS = 60.0
#: What the RabbitMQ of `ends` is called.
RABBIT_CLUSTER = "warehouse-on-rabbit"


class Admin:
    """The Admin service of one member, as guest."""

    def __init__(self, member: Member) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{member.grpc_port}")
        self._stub = admin_pb2_grpc.AdminStub(self._channel)  # type: ignore[no-untyped-call]
        token = base64.b64encode(b"guest:guest").decode()
        self._metadata = (("authorization", f"Basic {token}"),)

    def close(self) -> None:
        """End the client's channel."""
        self._channel.close()

    def feature_flags(self) -> dict[str, tuple[bool, list[str]]]:
        """Return, by name, whether a flag is enabled and who lacks it."""
        answer = self._stub.GetInfo(admin_pb2.GetInfoRequest(), metadata=self._metadata)
        return {flag.name: (flag.enabled, list(flag.lacking)) for flag in answer.feature_flags}

    def enable_features(self) -> None:
        """Enable all that the member knows; grpc.RpcError if another one does not."""
        self._stub.EnableFeatures(admin_pb2.EnableFeaturesRequest(), metadata=self._metadata)

    def put(self, kind: str, name: str, spec: Any, vhost: str = "/") -> None:
        """Make an object."""
        self._apply(
            admin_pb2.Operation(
                action=admin_pb2.Operation.UPSERT,
                kind=kind,
                vhost=vhost,
                name=name,
                spec=json.dumps(spec),
            )
        )

    def delete(self, kind: str, name: str, vhost: str = "/") -> None:
        """Remove an object."""
        self._apply(
            admin_pb2.Operation(
                action=admin_pb2.Operation.DELETE, kind=kind, vhost=vhost, name=name
            )
        )

    def set(self, name: str, value: str) -> None:
        """Change a cluster-wide setting."""
        request = admin_pb2.SetSettingsRequest(settings={name: value})
        self._stub.SetSettings(request, metadata=self._metadata, timeout=CALL_SECONDS)

    def _apply(self, operation: admin_pb2.Operation) -> None:
        request = admin_pb2.ApplyRequest(operations=[operation])
        replies = list(
            self._stub.ApplyTopology(iter([request]), metadata=self._metadata, timeout=CALL_SECONDS)
        )
        for reply in replies:
            for result in reply.results:
                assert result.code in (0, 1), result.message

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """List live rows of this member."""
        pages = self._stub.List(
            admin_pb2.ListRequest(kind=kind), metadata=self._metadata, timeout=CALL_SECONDS
        )
        return [json.loads(row) for page in pages for row in page.rows]

    def objects(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the catalog's objects of a kind, name to spec."""
        request = admin_pb2.ListTopologyRequest(kinds=[kind])
        pages = self._stub.ListTopology(request, metadata=self._metadata, timeout=CALL_SECONDS)
        return {item.name: json.loads(item.spec) for page in pages for item in page.objects}

    def hash_of(self, kind: str, name: str) -> str:
        """Return the hash of an object, which changes with its secrets too."""
        request = admin_pb2.ListTopologyRequest(kinds=[kind])
        pages = self._stub.ListTopology(request, metadata=self._metadata, timeout=CALL_SECONDS)
        return next(item.hash for page in pages for item in page.objects if item.name == name)

    def bindings(self, vhost: str) -> list[dict[str, Any]]:
        """Return the bindings of a vhost."""
        request = admin_pb2.ListTopologyRequest(kinds=["binding"], vhost=vhost)
        pages = self._stub.ListTopology(request, metadata=self._metadata, timeout=CALL_SECONDS)
        return [json.loads(item.spec) for page in pages for item in page.objects]

    def federate(
        self, name: str, uri: str, pattern: str, vhost: str = "/", /, **definition: Any
    ) -> None:
        """Define an upstream and a policy that uses it; underscores stand for hyphens."""
        value = {"uri": uri, "reconnect-delay": 1}
        value |= {key.replace("_", "-"): item for key, item in definition.items()}
        self.put("parameter", f"federation-upstream/{name}", {"value": value}, vhost)
        self.put(
            "policy",
            f"federate-{name}",
            {
                "pattern": pattern,
                "apply-to": "exchanges",
                "definition": {"federation-upstream": name},
            },
            vhost,
        )

    def wait_link(self, exchange: str, state: str = "running") -> dict[str, Any]:
        """Wait for a link of an exchange to reach a state; return its row."""

        def found() -> dict[str, Any] | None:
            rows = [row for row in self.rows("links") if row["exchange"] == exchange]
            return next((row for row in rows if row["status"] == state), None)

        row: dict[str, Any] = eventually(found, f"link of {exchange} {state}")
        return row


@contextlib.contextmanager
def admin(member: Member) -> Iterator[Admin]:
    """Give an Admin client and close it."""
    client = Admin(member)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def amqp(port: int, vhost: str = "/") -> Iterator[Any]:
    """Give a pika channel in confirm mode."""
    parameters = pika.ConnectionParameters("127.0.0.1", port, vhost)
    connection = pika.BlockingConnection(parameters)
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        if connection.is_open:
            connection.close()


def uri(port: int, vhost: str | None = None, query: str = "") -> str:
    """Return the URI of a broker on loopback, as guest."""
    path = "" if vhost is None else f"/{vhost.replace('/', '%2f')}"
    return f"amqp://guest:guest@127.0.0.1:{port}{path}{query}"


def take(channel: Any, queue: str) -> tuple[Any, Any, bytes]:
    """Get one message with auto-ack, waiting for it."""

    def got() -> tuple[Any, Any, bytes] | None:
        answer: tuple[Any, Any, bytes] = channel.basic_get(queue, auto_ack=True)
        return answer if answer[0] is not None else None

    answer: tuple[Any, Any, bytes] = eventually(got, f"a message in {queue}")
    return answer


@dataclass
class Pair:
    """Two clusters and an Admin client of each."""

    warehouse: Member
    orders: Member
    upstream: Admin
    downstream: Admin


@contextlib.contextmanager
def brokerd_pair(folders: pytest.TempPathFactory, **settings: str) -> Iterator[Pair]:
    """Run two clusters of one member each; settings: of the downstream."""
    up = cluster(folders.mktemp("up"), 1, BROKERD_CLUSTER_NAME="warehouse")
    down = cluster(folders.mktemp("down"), 1, BROKERD_CLUSTER_NAME="orders", **settings)
    with (
        up as (warehouse,),
        down as (orders,),
        admin(warehouse) as upstream,
        admin(orders) as downstream,
    ):
        yield Pair(warehouse, orders, upstream, downstream)


@dataclass
class Ends:
    """A RabbitMQ and a brokerd."""

    rabbit: RabbitNode
    member: Member
    admin: Admin


@contextlib.contextmanager
def rabbit_and_brokerd(folders: pytest.TempPathFactory) -> Iterator[Ends]:
    """Run a RabbitMQ with the vhost `up`, and a brokerd."""
    with (
        rabbit_node(folders.mktemp("rabbit") / "node", FEDERATION) as node,
        cluster(folders.mktemp("down"), 1, BROKERD_CLUSTER_NAME="orders") as (member,),
        admin(member) as client,
    ):
        node.control("set_cluster_name", RABBIT_CLUSTER)
        node.control("add_vhost", "up")
        node.control("set_permissions", "-p", "up", "guest", ".*", ".*", ".*")
        yield Ends(node, member, client)
