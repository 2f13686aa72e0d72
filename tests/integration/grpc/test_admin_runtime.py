"""The calls of the Admin service that stand behind brokerctl's rabbitmqctl verbs: who may make
them, what they refuse, and what they leave on other members."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import pika
import pytest

from brokerd.rpc.v1 import admin_pb2
from tests.integration.grpc.test_admin_grpc import Admin, put
from tests.integration.members import Member, cluster, eventually
from tests.integration.raw_client import client, publish

pytestmark = pytest.mark.timeout(240)

CALLS = {
    "CloseConnections": admin_pb2.CloseConnectionsRequest(),
    "StopApp": admin_pb2.StopAppRequest(),
    "StartApp": admin_pb2.StartAppRequest(),
    "SetAlarm": admin_pb2.SetAlarmRequest(resource="memory", on=True),
    "SetTracing": admin_pb2.SetTracingRequest(vhost="/", on=True),
    "SetVariable": admin_pb2.SetVariableRequest(name="channel_max", value="1"),
    "ExportDefinitions": admin_pb2.ExportDefinitionsRequest(),
}
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    folder = tmp_path_factory.mktemp("runtime")
    with cluster(folder, 3, BROKERD_AUTH_SCRYPT_LOG2_N="10") as found:
        yield found


@pytest.fixture
def admins(members: list[Member]) -> Iterator[list[Admin]]:
    found = [Admin(member.grpc_port) for member in members]
    yield found
    for admin in found:
        admin.channel.close()


def rows(admin: Admin, kind: str) -> list[dict[str, Any]]:
    pages = admin.call("List", admin_pb2.ListRequest(kind=kind))
    return [json.loads(row) for page in pages for row in page.rows]


def everywhere(admins: list[Admin], holds: Callable[[Admin], bool]) -> None:
    """Wait until something holds on every member."""
    for number, admin in enumerate(admins):
        eventually(partial(holds, admin), f"it holds on member {number}")


def _finish(answer: Any) -> None:
    """Read a stream to its end; a single answer is there already."""
    if hasattr(answer, "__iter__"):
        list(answer)


@pytest.mark.parametrize("name", CALLS)
def test_only_administrators_may(name: str, members: list[Member], admins: list[Admin]) -> None:
    """R-PERM-9, SEC-20."""
    reader = put("user", "reader", {"password": "pw", "tags": ["monitoring"]}, "")
    admins[0].apply(reader)
    denied = Admin(members[0].grpc_port, "reader", "pw")
    with pytest.raises(grpc.RpcError) as refused:
        _finish(denied.call(name, CALLS[name]))
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    denied.channel.close()


@pytest.mark.parametrize(
    ("name", "request_", "code"),
    [
        ("SetAlarm", admin_pb2.SetAlarmRequest(resource="patience", on=True), INVALID),
        ("SetVariable", admin_pb2.SetVariableRequest(name="x", value="1"), INVALID),
        ("SetVariable", admin_pb2.SetVariableRequest(name="channel_max", value="{"), INVALID),
        ("SetVariable", admin_pb2.SetVariableRequest(name="x", value="1" * 70_000), INVALID),
        (
            "SetTracing",
            admin_pb2.SetTracingRequest(vhost="nowhere", on=True),
            grpc.StatusCode.NOT_FOUND,
        ),
    ],
)
def test_what_cannot_be_is_refused(
    admins: list[Admin], name: str, request_: Any, code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        admins[0].call(name, request_)
    assert refused.value.code() is code


def test_tracing_holds_on_all_members_and_ends_with_the_vhost(admins: list[Admin]) -> None:
    admins[0].apply(put("vhost", "traced", {}, ""))
    admins[0].call("SetTracing", admin_pb2.SetTracingRequest(vhost="traced", on=True))
    everywhere(admins, lambda admin: rows(admin, "tracing") == [{"vhost": "traced"}])
    gone = admin_pb2.Operation(action=admin_pb2.Operation.DELETE, kind="vhost", name="traced")
    admins[0].apply(gone)
    admins[0].apply(put("vhost", "traced", {}, ""))
    everywhere(admins, lambda admin: rows(admin, "tracing") == [])
    admins[0].apply(gone)


def test_an_alarm_by_hand_is_one_members_and_blocks_on_all(admins: list[Admin]) -> None:
    """R-ALM-1: set on one member, seen by the others, until it is cleared there."""

    def alarms(admin: Admin) -> list[list[str]]:
        answer = admin.call("MemberStatus", admin_pb2.MemberStatusRequest())
        return [list(member.alarms) for member in answer.members]

    admins[0].call("SetAlarm", admin_pb2.SetAlarmRequest(resource="disk", on=True))
    everywhere(admins, lambda admin: alarms(admin) == [["disk"], [], []])
    # Clearing it elsewhere does not.
    admins[1].call("SetAlarm", admin_pb2.SetAlarmRequest(resource="disk", on=False))
    assert alarms(admins[0])[0] == ["disk"]
    admins[0].call("SetAlarm", admin_pb2.SetAlarmRequest(resource="disk", on=False))
    everywhere(admins, lambda admin: alarms(admin) == [[], [], []])


def test_who_is_blocked_since_when_why_and_by_whom(
    members: list[Member], admins: list[Admin]
) -> None:
    """R-ALM-1, R-ALM-2: by another member's alarm; in listings, metrics and one line of the log."""
    member, admin = members[1], admins[1]

    def figures() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{member.http_port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        found = (line.rpartition(" ") for line in lines)
        return {name: float(value) for name, _, value in found if "connections_blocked{" in name}

    with client(member.amqp_port) as first, client(member.amqp_port) as second:
        for raw in (first, second):
            raw.open(1)
        first.declare(1, "who", exclusive=True)
        admins[0].call("SetAlarm", admin_pb2.SetAlarmRequest(resource="disk", on=True))
        eventually(lambda: "disk resource limit alarm set on node n0" in member.log(), "the alarm")
        assert [row["blocked_since"] for row in rows(admin, "connections")] == [None, None]
        for raw in (first, second):
            raw.send(1, publish(1, "", "who", b"x"))
        blocked = ("blocked", "low on disk", ["n0"])

        def told() -> list[tuple[str, str, list[str]]]:
            return [
                (row["state"], row["blocked_reason"], row["blocked_by"])
                for row in rows(admin, "connections")
            ]

        eventually(lambda: told() == [blocked, blocked], "both are listed as blocked")
        since_ms = {row["blocked_since"] for row in rows(admin, "connections")}
        assert all(0 <= time.time() * 1000 - each < 120_000 for each in since_ms)
        reason = 'brokerd_connections_blocked{reason="%s"}'
        expected = {"disk": 2.0, "memory": 0.0, "disk_memory": 0.0}
        assert figures() == {reason % name: count for name, count in expected.items()}
        admins[0].call("SetAlarm", admin_pb2.SetAlarmRequest(resource="disk", on=False))
        eventually(lambda: told() == [("running", "", [])] * 2, "nobody is blocked any more")
        assert set(figures().values()) == {0.0}
    log = member.log()
    assert log.count("blocking publishers: low on disk; first is ") == 1
    assert log.count("publishers are not blocked any more: connections=2 users=1 (guest)") == 1


def test_a_member_whose_doors_are_closed_still_holds_its_replicas(
    members: list[Member], admins: list[Admin]
) -> None:
    """The cluster keeps its majority of three while one member's AMQP is closed and another's
    process is gone."""
    connection = members[0].connect()
    channel = connection.channel()
    arguments = {"x-queue-type": "quorum"}
    channel.queue_declare("held", durable=True, arguments=arguments)
    connection.close()
    assert admins[1].call("StopApp", admin_pb2.StopAppRequest()).closed == 0
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        members[1].connect(connection_attempts=1)
    members[2].stop()
    connection = members[0].connect()
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "held", b"x")
    connection.close()
    admins[1].call("StartApp", admin_pb2.StartAppRequest())
    members[2].start()
    members[2].wait_ready()
    connection = members[1].connect()
    assert connection.channel().basic_get("held", auto_ack=True)[2] == b"x"
    connection.close()
