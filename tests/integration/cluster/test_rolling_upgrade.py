"""Members of this release and of the next one in one cluster, as during a rolling upgrade."""

from __future__ import annotations

import contextlib
from pathlib import Path

import grpc
import pika
import pytest

from tests.integration.federation_rig import Admin
from tests.integration.members import Member, cluster, eventually
from tests.integration.next_release import FLAG

pytestmark = pytest.mark.timeout(400)
NEXT_RELEASE = "tests.integration.next_release"
PER_STEP = 60


def publish(member: Member, step: int) -> None:
    """Publish confirmed messages with a TTL and a priority of their own."""
    with member.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(PER_STEP):
            channel.basic_publish(
                "",
                "orders",
                b"%d.%d" % (step, number),
                pika.BasicProperties(delivery_mode=2, expiration="3600000", priority=number % 5),
            )


def flags(member: Member) -> dict[str, tuple[bool, list[str]]]:
    with contextlib.closing(Admin(member)) as admin:
        return admin.feature_flags()


def enable_all(member: Member) -> None:
    with contextlib.closing(Admin(member)) as admin:
        admin.enable_features()


def restart(member: Member, program: str) -> None:
    assert member.stop() == 0
    member.program = program
    member.start()
    member.wait_ready()


def test_a_cluster_is_upgraded_member_by_member_and_then_uses_what_is_new(tmp_path: Path) -> None:
    """A flag waits for the last member; both forms stand in one log; the way back is closed."""
    with cluster(tmp_path, 3) as members:
        with members[0].connect() as connection:
            arguments = {"x-queue-type": "quorum"}
            connection.channel().queue_declare("orders", durable=True, arguments=arguments)
        publish(members[0], 0)
        for step, member in enumerate(members, 1):
            restart(member, NEXT_RELEASE)
            publish(member, step)
            others = [other.name for other in members[step:]]
            expected = {FLAG.name: (False, others)}
            eventually(
                lambda member=member, expected=expected: flags(member) == expected,
                f"{member.name} knows who is old",
            )
            if others:
                with pytest.raises(grpc.RpcError) as refused:
                    enable_all(member)
                assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
                assert others[0] in str(refused.value.details())
        # It has heard by now of the last member, too.
        eventually(lambda: flags(members[1]) == expected, "nobody is old")
        enable_all(members[1])
        for member in members:
            eventually(
                lambda member=member: all(enabled for enabled, _ in flags(member).values()),
                f"{member.name} knows the flags",
            )
        publish(members[2], 4)
        # All of both forms is there, whoever leads and reads it.
        restart(members[0], NEXT_RELEASE)
        wanted = {b"%d.%d" % (step, number) for step in range(5) for number in range(PER_STEP)}
        got = set()
        with members[0].connect() as connection:
            channel = connection.channel()
            for method, properties, body in channel.consume("orders", inactivity_timeout=60):
                assert method is not None, f"missing: {sorted(wanted - got)[:5]}"
                assert properties.priority == int(body.split(b".")[1]) % 5
                got.add(body)
                channel.basic_ack(method.delivery_tag)
                if got == wanted:
                    break
        # This release would not understand the log any more: it says so and ends.
        assert members[2].stop() == 0
        members[2].program = "brokerd"
        members[2].start()
        assert members[2].process is not None
        assert members[2].process.wait(60) == 78
        assert "too old for this cluster" in members[2].log()
