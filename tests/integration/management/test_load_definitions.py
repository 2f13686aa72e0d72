"""Definitions that members load at their start (RabbitMQ's load_definitions)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.grpc.test_admin_grpc import Admin, Operation, Result
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(300)

USER, PASSWORD = "shop", "a word of the shop"


def definitions(**more: list[Any]) -> dict[str, Any]:
    """Return a user with all rights, a quorum queue and its binding."""
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    queue = {"name": "orders", "vhost": "/", "durable": True, "auto_delete": False}
    binding = {"source": "amq.topic", "destination": "orders", "destination_type": "queue"}
    return {
        "users": [{"name": USER, "password": PASSWORD, "tags": "administrator"}],
        "permissions": [{"user": USER, "vhost": "/"} | rights],
        "queues": [queue | {"arguments": {"x-queue-type": "quorum"}}],
        "bindings": [binding | {"vhost": "/", "routing_key": "order.#"}],
    } | more


def write(folder: Path, **more: list[Any]) -> Path:
    """Write them; return the file."""
    file = folder / "definitions.json"
    file.write_text(json.dumps(definitions(**more)))
    return file


def log_in(member: Member, user: str, password: str) -> pika.BlockingConnection:
    """Connect over AMQP."""
    return member.connect(credentials=pika.PlainCredentials(user, password))


def restart(member: Member) -> None:
    """Stop and start a member."""
    assert member.stop() == 0
    member.start()
    member.wait_ready()


def policies(member: Member) -> dict[tuple[str, str], Any]:
    """Return the policies."""
    admin = Admin(member.grpc_port, USER, PASSWORD)
    try:
        return admin.objects("policy")
    finally:
        admin.channel.close()


def test_a_new_cluster_has_all_that_its_members_load(tmp_path: Path) -> None:
    """Each member loads the file, the objects are made once; guest is not made, as in RabbitMQ."""
    file = write(tmp_path)
    with cluster(tmp_path, 3, BROKERD_DEFINITIONS_PATH=str(file)) as members:
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            members[0].connect()
        connection = log_in(members[1], USER, PASSWORD)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "order.new", b"one", mandatory=True)
        connection.close()
        admin = Admin(members[2].grpc_port, USER, PASSWORD)
        page = next(iter(admin.call("List", _rows("queues"))))
        (row,) = (json.loads(row) for row in page.rows)
        assert sorted(row["members"]) == ["n0", "n1", "n2"]
        admin.channel.close()
        # Again, with what is there by now: nothing is in the way, and the message stays.
        for member in members:
            restart(member)
        connection = log_in(members[0], USER, PASSWORD)
        got = eventually(
            lambda: connection.channel().basic_get("orders", auto_ack=True)[2], "the message"
        )
        assert got == b"one"
        connection.close()


def _rows(kind: str) -> Any:
    from brokerd.rpc.v1 import admin_pb2

    return admin_pb2.ListRequest(kind=kind)


def test_what_changed_in_the_broker_is_set_back_unless_the_file_is_skipped(tmp_path: Path) -> None:
    """A policy is changed over gRPC: the next start loads the file's again; with
    skip_if_unchanged only a changed file does.
    """
    policy = {"vhost": "/", "name": "limit", "pattern": ".*", "apply-to": "queues"}
    file = write(tmp_path, policies=[policy | {"definition": {"max-length": 5}}])
    with cluster(tmp_path, 1, BROKERD_DEFINITIONS_PATH=str(file)) as (member,):

        def length() -> int:
            spec = json.loads(policies(member)["policy", "limit"].spec)
            return int(spec["definition"]["max-length"])

        def change(value: int) -> None:
            admin = Admin(member.grpc_port, USER, PASSWORD)
            spec = {"pattern": ".*", "apply-to": "queues", "definition": {"max-length": value}}
            operation = Operation(kind="policy", vhost="/", name="limit", spec=json.dumps(spec))
            assert admin.code(operation) == Result.OK
            admin.channel.close()

        change(7)
        restart(member)
        assert length() == 5
        change(7)
        member.env["BROKERD_DEFINITIONS_SKIP_IF_UNCHANGED"] = "true"
        restart(member)
        assert length() == 7
        write(tmp_path, policies=[policy | {"definition": {"max-length": 9}}])
        restart(member)
        assert length() == 9


def test_what_differs_and_cannot_change_stays_and_is_said(tmp_path: Path) -> None:
    """A queue of the file that is of another type by now does not stop a restart."""
    file = write(tmp_path)
    with cluster(tmp_path, 1, BROKERD_DEFINITIONS_PATH=str(file)) as (member,):
        queue = {"name": "orders", "vhost": "/", "durable": True, "auto_delete": False}
        write(tmp_path, queues=[queue | {"arguments": {"x-queue-type": "classic"}}])
        restart(member)
        assert "kept as it is: queue 'orders' in vhost '/'" in member.log()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "definitions.json is not JSON"),
        (
            json.dumps(definitions(vhosts=[{"name": "other", "default_queue_type": "silly"}])),
            "objects of .*definitions.json are refused:\n  vhost 'other': ",
        ),
    ],
    ids=["broken", "refused"],
)
def test_a_file_that_cannot_be_loaded_ends_the_start(
    tmp_path: Path, content: str, expected: str
) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(content)
    with pytest.raises(AssertionError, match=f"n0 ended:(.|\n)*{expected}"):  # noqa: SIM117
        with cluster(tmp_path, 1, BROKERD_DEFINITIONS_PATH=str(file)):
            pass
