"""Members of the last release and of this one in one cluster, as during a rolling upgrade."""

from __future__ import annotations

import contextlib
from pathlib import Path

import grpc
import pika
import pytest

from brokerd.core.catalog import features
from tests.integration.federation_rig import Admin
from tests.integration.members import Member, cluster, eventually
from tests.integration.test_metrics import scrape

pytestmark = pytest.mark.timeout(400)
LAST_RELEASE = "tests.integration.last_release"
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


def get_and_acknowledge(member: Member) -> None:
    """Each ack but the last has a get behind it, which takes it along once all understand that."""
    with member.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(3):
            channel.basic_publish("", "got", b"%d" % number)
        for number in range(3):
            method, _, body = channel.basic_get("got")
            assert body == b"%d" % number
            channel.basic_ack(method.delivery_tag)
        assert channel.basic_get("got")[0] is None


def flags(member: Member) -> dict[str, tuple[bool, list[str]]]:
    with contextlib.closing(Admin(member)) as admin:
        return admin.feature_flags()


def enable_all(member: Member) -> None:
    with contextlib.closing(Admin(member)) as admin:
        admin.enable_features()


def drop_by_crashes(member: Member, queue: str) -> None:
    """End a message of a queue without a dead letter exchange: 21 channels go away with it."""
    with member.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"poison")
        for _ in range(21):
            channel = connection.channel()
            eventually(
                lambda channel=channel: channel.basic_get(queue)[0] is not None, "it is back"
            )
            channel.close()


def dropped(members: list[Member]) -> float:
    name = "brokerd_queue_messages_dropped_default_delivery_limit_total"
    return sum(scrape(member)[name, ()] for member in members)


def restart(member: Member, program: str) -> None:
    assert member.stop() == 0
    member.program = program
    member.start()
    member.wait_ready()


def test_a_cluster_is_upgraded_member_by_member_and_then_uses_what_is_new(tmp_path: Path) -> None:
    """A flag waits for the last member; both forms stand in one log; the way back is closed."""
    with cluster(tmp_path, 3, program=LAST_RELEASE) as members:
        with members[0].connect() as connection:
            arguments = {"x-queue-type": "quorum"}
            for queue in ("orders", "crashed", "got"):
                connection.channel().queue_declare(queue, durable=True, arguments=arguments)
        publish(members[0], 0)
        for step, member in enumerate(members, 1):
            restart(member, "brokerd")
            publish(member, step)
            get_and_acknowledge(member)
            others = [other.name for other in members[step:]]
            expected = dict.fromkeys(features.names(), (False, others))
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
        # Queues that were there before know by now that nobody set their delivery limit.
        drop_by_crashes(members[0], "crashed")
        eventually(lambda: dropped(members) == 1, "what the default limit drops is counted")
        publish(members[2], 4)
        get_and_acknowledge(members[2])
        # All of both forms is there, whoever leads and reads it.
        restart(members[0], "brokerd")
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
        # The last release would not understand the log any more: it says so and ends.
        assert members[2].stop() == 0
        members[2].program = LAST_RELEASE
        members[2].start()
        assert members[2].process is not None
        assert members[2].process.wait(60) == 78
        assert "too old for this cluster" in members[2].log()
