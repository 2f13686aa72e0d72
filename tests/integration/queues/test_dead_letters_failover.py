"""At-least-once dead letters while the member that leads their queue is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika.exceptions
import pytest

from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(300)

ARGUMENTS = {
    "x-queue-type": "quorum",
    "x-dead-letter-exchange": "dx",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
BODIES = {b"%d" % number for number in range(40)}


def reject_all(member: Member) -> None:
    """Declare the queue at this member, which leads it then, and let all messages die."""
    connection = member.connect()
    channel = connection.channel()
    channel.exchange_declare("dx", "fanout", durable=True)
    channel.queue_declare("w", durable=True, arguments=ARGUMENTS)
    channel.confirm_delivery()
    for body in sorted(BODIES):
        channel.basic_publish("", "w", body)

    def rejected() -> bool:
        method, _, _ = channel.basic_get("w")
        if method is None:
            return False
        channel.basic_nack(method.delivery_tag, requeue=False)
        return True

    for _ in BODIES:
        eventually(rejected, "a message to reject")
    # The answer to a declare comes after the rejections.
    assert channel.queue_declare("w", passive=True).method.message_count == 0
    connection.close()


def target_of(member: Member) -> Any:
    """Declare a queue that takes the letters; retried while the queue has no leader yet."""

    def declared() -> Any:
        try:
            channel = member.connect().channel()
            channel.queue_declare("t", durable=True)
            channel.queue_bind("t", "dx")
        except pika.exceptions.AMQPError:
            return None
        return channel

    return eventually(declared, "a target for the letters", 60)


def test_letters_outlive_the_leader_of_their_queue(tmp_path: Path) -> None:
    """R-ALO-4, R-ALO-10: what nobody had taken yet is published by the next leader's worker."""
    with cluster(tmp_path, 3) as members:
        reject_all(members[0])
        members[0].kill()
        channel = target_of(members[1])
        found: set[bytes] = set()

        def all_there() -> bool:
            _, _, body = channel.basic_get("t", auto_ack=True)
            if body is not None:
                found.add(body)
            return found == BODIES

        eventually(all_there, "all letters at their target", 60)
        channel.connection.close()
