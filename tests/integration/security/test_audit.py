"""The audit log of a real member: who changed what, through which door."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pika.exceptions
import pytest

from brokerd.rpc.v1 import admin_pb2
from tests.integration.grpc.test_admin_grpc import Admin, delete, put
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(300)


def records(member: Member) -> list[dict[str, Any]]:
    path = member.data_dir / "audit.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def what(record: dict[str, Any]) -> tuple[str, ...]:
    return tuple(record.get(key, "") for key in ("door", "user", "action", "kind", "name"))


def change_over_amqp(member: Member) -> None:
    with member.connect() as connection:
        channel = connection.channel()
        channel.exchange_declare("audited", "topic")
        # Once more is no change.
        channel.exchange_declare("audited", "topic")
        channel.queue_declare("audited", durable=True)
        channel.queue_bind("audited", "audited", "key.#")
        channel.basic_publish("audited", "key.1", b"x")
        channel.queue_purge("audited")
        channel.queue_delete("audited")
        channel.exchange_delete("audited")
        # What goes by itself has no author.
        channel.queue_declare("", exclusive=True)


def test_each_change_is_noted_with_its_author(tmp_path: Any) -> None:
    with cluster(tmp_path, 1) as [member]:
        change_over_amqp(member)
        admin = Admin(member.grpc_port)
        secret = "hush-51c9"
        admin.apply(
            put("user", "till", {"password": secret, "tags": ["monitoring"]}, vhost=""),
            put("queue", "mine", {}),
        )
        admin.call("PurgeQueue", admin_pb2.PurgeQueueRequest(vhost="/", name="mine"))
        setting = admin_pb2.SetSettingsRequest(settings={"disk_free_limit": "60MB"})
        admin.call("SetSettings", setting)
        admin.apply(delete("queue", "mine"), delete("user", "till", vhost=""))
        reader = Admin(member.grpc_port, "till", secret)
        with pytest.raises(grpc.RpcError):
            reader.apply(put("queue", "theirs", {}))
        for one in (admin, reader):
            one.channel.close()
        eventually(lambda: len(records(member)) >= 13, "the records are in the file")
        found = records(member)
        expected = [
            *(("put", "exchange", "audited"), ("put", "queue", "audited")),
            ("put", "binding", "audited|queue|audited|key.#|"),
            *(("purge", "queue", "audited"), ("delete", "queue", "audited")),
            ("delete", "exchange", "audited"),
        ]
        over_amqp = [record for record in found if record["door"] == "amqp"]
        assert [what(record)[2:] for record in over_amqp[:6]] == expected
        assert {record["user"] for record in over_amqp} == {"guest"}
        assert all(record["address"].startswith("127.0.0.1:") for record in found)
        assert over_amqp[3]["messages"] == 1
        assert over_amqp[0]["after"]["type"] == "topic"
        assert [what(record) for record in found[7:]] == [
            ("grpc", "guest", "put", "user", "till"),
            ("grpc", "guest", "put", "queue", "mine"),
            ("grpc", "guest", "purge", "queue", "mine"),
            ("grpc", "guest", "put", "setting", f"disk_free_limit@{member.name}"),
            ("grpc", "guest", "delete", "queue", "mine"),
            ("grpc", "guest", "delete", "user", "till"),
        ]
        assert {record["outcome"] for record in found} == {"ok"}
        assert secret not in (member.data_dir / "audit.log").read_text()
        # What waits is written at the end.
        with member.connect() as connection:
            connection.channel().queue_declare("last", durable=True)
        assert member.stop() == 0
        assert what(records(member)[-1])[2:] == ("put", "queue", "last")


@contextmanager
def http_of(member: Member) -> Iterator[Any]:
    """Return ask(method, path, body=None): the status and the caller's address, as guest."""
    connection = http.client.HTTPConnection("127.0.0.1", member.management_port, timeout=60)
    connection.connect()
    token = base64.b64encode(b"guest:guest").decode()

    def ask(method: str, path: str, body: Any = None) -> tuple[int, str]:
        sent = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Basic {token}", "X-Reason": "enough"}
        connection.request(method, f"/api/{path}", sent, headers)
        own = connection.sock.getsockname()
        answer = connection.getresponse()
        answer.read()
        return answer.status, f"{own[0]}:{own[1]}"

    try:
        yield ask
    finally:
        connection.close()


PUBLICATION = {
    "properties": {},
    "routing_key": "web",
    "payload": "secret payload 7c41",
    "payload_encoding": "string",
}
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
DEFINITIONS = {
    "vhosts": [{"name": "by-file"}],
    "queues": [
        {"name": "q", "vhost": "by-file", "durable": True, "auto_delete": False, "arguments": {}}
    ],
}
#: Call over HTTP, its status, and what is noted of it: action, kind, name.
CALLS: tuple[tuple[str, str, Any, int, tuple[tuple[str, str, str], ...]], ...] = (
    ("PUT", "queues/%2F/web", {}, 201, (("put", "queue", "web"),)),
    ("PUT", "queues/%2F/web", {}, 204, ()),
    ("PUT", "exchanges/%2F/web", {"type": "fanout"}, 201, (("put", "exchange", "web"),)),
    (
        *("POST", "bindings/%2F/e/web/q/web", {"routing_key": "k"}, 201),
        (("put", "binding", "web|queue|web|k|"),),
    ),
    ("POST", "exchanges/%2F/amq.default/publish", PUBLICATION, 200, ()),
    ("POST", "queues/%2F/web/get", GET, 200, ()),
    ("POST", "queues/%2F/web/actions", {"action": "sync"}, 400, ()),
    ("DELETE", "queues/%2F/web/contents", None, 204, (("purge", "queue", "web"),)),
    (
        *("DELETE", "bindings/%2F/e/web/q/web/k", None, 204),
        (("delete", "binding", "web|queue|web|k|"),),
    ),
    ("DELETE", "queues/%2F/web", None, 204, (("delete", "queue", "web"),)),
    ("DELETE", "exchanges/%2F/web", None, 204, (("delete", "exchange", "web"),)),
    (
        *("PUT", "policies/%2F/p", {"pattern": "x", "definition": {"max-length": 1}}, 201),
        (("put", "policy", "p"),),
    ),
    ("DELETE", "policies/%2F/p", None, 204, (("delete", "policy", "p"),)),
    ("PUT", "users/web", {"password": "hush-51c9", "tags": ""}, 201, (("put", "user", "web"),)),
    ("PUT", "permissions/%2F/nobody", {"configure": "", "write": "", "read": ""}, 400, ()),
    ("DELETE", "users/web", None, 204, (("delete", "user", "web"),)),
    (
        *("POST", "definitions", DEFINITIONS, 204),
        (("put", "vhost", "by-file"), ("put", "queue", "q"), ("put", "permission", "guest")),
    ),
    ("DELETE", "vhosts/by-file", None, 204, (("delete", "vhost", "by-file"),)),
    ("GET", "aliveness-test/%2F", None, 200, (("put", "queue", "aliveness-test"),)),
)


def test_changes_over_http_are_noted_and_what_is_only_asked_leaves_no_line(tmp_path: Any) -> None:
    with cluster(tmp_path, 1) as [member], http_of(member) as ask:
        expected, address = [], ""
        before = member.log().count("AMQP connection")
        for method, path, body, status, noted in CALLS:
            answered, address = ask(method, path, body)
            assert answered == status, (method, path)
            expected += noted
        # A message that is published or got is nothing that an operator of the system cares about.
        assert member.log().count("AMQP connection") == before
        with member.connect() as connection:
            channel = connection.channel()
            assert ask("DELETE", "connections/username/guest")[0] == 204
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="enough"):
                channel.queue_declare("", exclusive=True)
        expected.append(("close", "connection", ""))
        assert member.stop() == 0
        found = records(member)
        assert [what(record)[2:] for record in found] == expected
        assert {what(record)[:2] for record in found} == {("http", "guest")}
        assert {record["address"] for record in found} == {address}
        assert next(each for each in found if each["action"] == "purge")["messages"] == 1
        assert (found[-1]["connections_of"], found[-1]["connections"]) == ("guest", 1)
        text = (member.data_dir / "audit.log").read_text()
        assert "hush-51c9" not in text
        assert "secret payload" not in text
