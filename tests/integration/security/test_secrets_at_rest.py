"""Passwords of federation upstreams: in no file of a member, in no export, and known to links.

ADR 19 says what that protects, and what it does not.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pika
import pytest

from brokerd.rpc.v1 import admin_pb2
from tests.integration import federation_rig
from tests.integration.grpc.test_admin_grpc import Admin, put
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(300)

PASSWORD = "correct-horse-battery-staple"
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
NAME = "federation-upstream/up"


def files_with(folder: Path, text: str) -> list[str]:
    """Return the files below a folder that hold a text, whoever wrote them."""
    return [
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and text.encode() in file.read_bytes()
    ]


def exported(admin: Admin, *, with_passwords: bool) -> Any:
    request = admin_pb2.ExportDefinitionsRequest(with_passwords=with_passwords)
    pages = admin.call("ExportDefinitions", request)
    found = {item.name: json.loads(item.spec) for page in pages for item in page.objects}
    return found[NAME]["value"]


def test_no_file_of_any_member_holds_a_password(tmp_path: Path) -> None:
    """SEC-20, SEC-22: members that share a secret need nothing else to read it."""
    with cluster(tmp_path, 2) as members:
        first, second = (Admin(member.grpc_port) for member in members)
        value = {"uri": f"amqp://fed:{PASSWORD}@127.0.0.1:1", "max-hops": 2}
        (result,) = first.apply(put("parameter", NAME, {"value": value}))
        assert result.code == admin_pb2.OperationResult.OK
        assert PASSWORD not in result.current.spec
        (again,) = second.apply(put("parameter", NAME, {"value": value}))
        assert again.code == admin_pb2.OperationResult.UNCHANGED
        definition = {"federation-upstream": "up"}
        policy = {"pattern": "^f$", "apply-to": "exchanges", "definition": definition}
        second.apply(put("exchange", "f", {"type": "topic"}), put("policy", "p", policy))
        # The link knows it: it says that nobody listens, and not that it cannot read the URI.
        with federation_rig.admin(members[0]) as one, federation_rig.admin(members[1]) as two:
            eventually(lambda: one.rows("links") + two.rows("links"), "the link")
            (row,) = one.rows("links") + two.rows("links")
        assert "encrypted" not in row["error"]
        assert row["uri"] == "amqp://127.0.0.1:1"
        for admin in (first, second):
            assert exported(admin, with_passwords=True) == value
            assert exported(admin, with_passwords=False) == {"max-hops": 2}
            assert PASSWORD not in str(admin.objects("parameter"))
        second.apply(put("parameter", NAME, {"value": {"max-hops": 3}}))
        assert exported(first, with_passwords=True) == {**value, "max-hops": 3}
        for member in members:
            member.stop()
        assert files_with(tmp_path, PASSWORD) == []
        assert files_with(tmp_path, "sealed:1:"), "it is looked for in the right place"
        for admin in (first, second):
            admin.channel.close()


def restart(member: Member, key_file: Path, *keys: bytes) -> None:
    member.stop()
    key_file.write_bytes(b"\n".join(base64.b64encode(key) for key in keys))
    member.start()
    member.wait_ready()


def test_a_key_that_is_lost_costs_the_link_and_nothing_else(tmp_path: Path) -> None:
    """The member starts and serves; with the key back, and another before it, the link runs."""
    old, new = os.urandom(32), os.urandom(32)
    keys = tmp_path / "keys"
    keys.write_bytes(base64.b64encode(old))
    with cluster(tmp_path, 1, BROKERD_SECRETS_KEY_FILE=str(keys)) as [member]:
        with federation_rig.admin(member) as admin:
            admin.put("vhost", "up", {}, "")
            admin.put("user", "fed", {"password": PASSWORD}, "")
            for user in ("fed", "guest"):
                admin.put("permission", user, ALL, "up")
            admin.put("exchange", "f", {"type": "topic"})
            uri = f"amqp://fed:{PASSWORD}@127.0.0.1:{member.amqp_port}/up"
            admin.federate("up", uri, "^f$", exchange="source")
            with federation_rig.amqp(member.amqp_port, "up") as up:
                up.exchange_declare("source", "topic", durable=True)
            admin.wait_link("f")
        assert not (member.data_dir / "secrets.key").exists()
        restart(member, keys, new)
        with federation_rig.admin(member) as admin:
            row = admin.wait_link("f", "error")
            assert "uri is encrypted with key" in row["error"]
            admin.put("parameter", "federation-upstream/other", {"value": {"uri": "amqp://h"}})
        with federation_rig.amqp(member.amqp_port) as channel:
            channel.basic_publish("", "nowhere", b"goes on", pika.BasicProperties())
        restart(member, keys, new, old)
        with federation_rig.admin(member) as admin:
            admin.wait_link("f")
            # Its next write is under the new key.
            admin.put("parameter", NAME, {"value": {"exchange": "source", "reconnect-delay": 1}})
        restart(member, keys, new)
        with federation_rig.admin(member) as admin:
            admin.wait_link("f")


def test_a_key_file_that_cannot_be_read_refuses_new_passwords_only(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    with cluster(tmp_path, 1, BROKERD_SECRETS_KEY_FILE=missing) as [member]:
        admin = Admin(member.grpc_port)
        value = {"uri": f"amqp://fed:{PASSWORD}@127.0.0.1:1"}
        (result,) = admin.apply(put("parameter", NAME, {"value": value}))
        assert result.code == admin_pb2.OperationResult.REFUSED
        assert f"secrets.key_file {missing} cannot be used" in result.message
        (result,) = admin.apply(put("parameter", NAME, {"value": {"uri": "amqp://127.0.0.1:1"}}))
        assert result.code == admin_pb2.OperationResult.OK
        admin.channel.close()
        assert "cannot be used" in member.log()
        member.stop()
        assert files_with(tmp_path, PASSWORD) == []
