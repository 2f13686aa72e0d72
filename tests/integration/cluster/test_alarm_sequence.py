"""The sequence of alarms as it was observed on RabbitMQ, step by step, on one member."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.amqp import methods
from tests.integration.federation_rig import Admin, admin
from tests.integration.members import Member, cluster, eventually
from tests.integration.raw_client import RawClient, client, publish

pytestmark = pytest.mark.timeout(240)
M = methods
CAPABLE = {"connection.blocked": True}


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    with cluster(tmp_path, 1) as [member]:
        yield member


def states(client_: Admin, member: Member) -> dict[int, str]:
    """Return the state of each connection by the client's port."""
    return {int(row["peer_port"]): str(row["state"]) for row in client_.rows("connections")}


def port_of(raw: RawClient) -> int:
    """Return the client's end of its socket."""
    return int(raw.socket.getsockname()[1])


def nothing_said(raw: RawClient) -> None:
    """Fail if anything but the answer to a question of ours comes."""
    raw.send(1, M.BasicQos())
    raw.expect(M.BasicQosOk)


def test_alarms_from_the_first_to_the_last_message(member: Member) -> None:
    """R-TEST-4, R-TEST-2, R-ALM-2, R-ALM-3, R-ALM-4, R-ALM-5, R-ALM-6, R-ALM-7, R-ALM-11."""
    with admin(member) as settings:
        _sequence(member, settings)


def _sequence(member: Member, settings: Admin) -> None:
    publisher = RawClient(member.amqp_port, capabilities=CAPABLE)
    late = RawClient(member.amqp_port, capabilities=CAPABLE)
    idle = RawClient(member.amqp_port, capabilities=CAPABLE)
    consumer = RawClient(member.amqp_port, capabilities=CAPABLE)
    for raw in (publisher, late, idle, consumer):
        raw.open(1)
    consumer.declare(1, "pending", durable=True)
    settings.set("vm_memory_high_watermark", "0")
    line = "*** Publishers will be blocked until this alarm clears ***"
    eventually(lambda: line in member.log(), "the alarm is set")
    # Nobody hears of it who does not publish.
    for raw in (publisher, late, idle, consumer):
        nothing_said(raw)
    publisher.send(1, publish(1, "", "pending", b"first"))
    assert publisher.expect(M.ConnectionBlocked).reason == "low on memory"
    assert consumer.count(1, "pending") == 0
    expected = {port_of(raw): "blocking" for raw in (late, idle, consumer)}
    expected[port_of(publisher)] = "blocked"
    eventually(lambda: states(settings, member) == expected, "the states of all four")
    with client(member.amqp_port) as newcomer:
        newcomer.open(1)
        assert newcomer.declare(1, "", exclusive=True)
    # Administration goes on (R-ALM-11), and may add a second resource.
    settings.set("disk_free_limit", "900TB")
    eventually(lambda: "disk resource limit alarm set" in member.log(), "the second alarm")
    late.send(1, publish(1, "", "pending", b"second"))
    assert late.expect(M.ConnectionBlocked).reason == "low on disk & memory"
    settings.set("vm_memory_high_watermark", "0.99")
    line = "memory resource limit alarm cleared across the cluster"
    eventually(lambda: line in member.log(), "memory is over")
    assert consumer.count(1, "pending") == 0
    settings.set("disk_free_limit", "1MB")
    # The first thing that both hear since: one unblocked, no second blocked before it.
    for raw in (publisher, late):
        raw.expect(M.ConnectionUnblocked)
        nothing_said(raw)
    for raw in (idle, consumer):
        nothing_said(raw)
    eventually(lambda: consumer.count(1, "pending") == 2, "what was held is accepted")
    running = dict.fromkeys(map(port_of, (publisher, late, idle, consumer)), "running")
    eventually(lambda: states(settings, member) == running, "all run again")
    for raw in (publisher, late, idle, consumer):
        raw.close()


def test_what_was_under_way_before_the_alarm_is_confirmed_during_it(member: Member) -> None:
    """R-ALM-12: outstanding confirms of a channel that is not blocked yet arrive."""
    with admin(member) as settings, client(member.amqp_port, capabilities=CAPABLE) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        raw.send(1, M.ConfirmSelect())
        raw.expect(M.ConfirmSelectOk)
        raw.send(1, *[publish(1, "", "q", b"%d" % number) for number in range(200)])
        settings.set("vm_memory_high_watermark", "0")
        eventually(lambda: "memory resource limit alarm set" in member.log(), "the alarm")
        done = 0
        while done < 200:
            ack = raw.expect(M.BasicAck)
            assert ack.multiple or ack.delivery_tag == done + 1
            done = ack.delivery_tag
        raw.send(1, M.BasicGet(0, "q"))
        tag = raw.content(M.BasicGetOk)[0].delivery_tag
        raw.send(1, M.BasicAck(tag, False))
        eventually(lambda: raw.count(1, "q") == 199, "acks are taken")


def test_a_changed_watermark_is_listed(member: Member) -> None:
    """R-MEM-13, R-MEM-9: it acts at once, and the member says what it is."""
    with admin(member) as settings:
        settings.set("vm_memory_high_watermark", "123MiB")
        wanted = 123 * 1024 * 1024
        eventually(
            lambda: [row["memory_limit"] for row in settings.rows("members")] == [wanted],
            "the new limit is listed",
        )
        line = f"Memory high watermark set to 123 MiB ({wanted} bytes)"
        eventually(lambda: line in member.log(), "and logged")
