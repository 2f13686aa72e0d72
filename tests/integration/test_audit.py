"""The audit log of a real member: who changed what, through which door."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from brokerd.rpc.v1 import admin_pb2
from tests.integration.members import Member, cluster, eventually
from tests.integration.test_admin_grpc import Admin, delete, put

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
