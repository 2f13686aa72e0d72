"""Where dead letters wait, as any member of a cluster tells the operator of all queues at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.federation_rig import admin
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(300)


def _rows(member: Member) -> dict[str, Any]:
    with admin(member) as client:
        return {row["name"]: row for row in client.rows("dead_letters")}


def _is(counts: Callable[[Member], object], member: Member, wanted: object) -> bool:
    return counts(member) == wanted


def test_each_member_counts_what_lies_in_classic_queues_of_others(tmp_path: Path) -> None:
    """Classic queues are on one member, which only it knows the messages of; at-least-once letters
    without a route are held by their own queue (R-ALO-6).
    """
    with cluster(tmp_path, 3) as members:
        homes = [member.connect() for member in members]
        for number, connection in enumerate(homes):
            channel = connection.channel()
            channel.queue_declare(
                f"dead{number}", durable=True, arguments={"x-queue-locator": "client-local"}
            )
            dlx = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"dead{number}"}
            channel.queue_declare(f"work{number}", durable=True, arguments=dlx)
            channel.confirm_delivery()
            for _ in range(number + 1):
                channel.basic_publish("", f"work{number}", b"m")
                method, _, _ = channel.basic_get(f"work{number}")
                channel.basic_reject(method.delivery_tag, requeue=False)
        channel = homes[0].channel()
        channel.queue_declare(
            "strict",
            durable=True,
            arguments={
                "x-queue-type": "quorum",
                "x-overflow": "reject-publish",
                "x-dead-letter-exchange": "gone",
                "x-dead-letter-strategy": "at-least-once",
            },
        )
        channel.confirm_delivery()
        channel.basic_publish("", "strict", b"m")
        method, _, _ = channel.basic_get("strict")
        channel.basic_reject(method.delivery_tag, requeue=False)

        def counts(member: Member) -> dict[str, tuple[int, int]]:
            return {name: (row["waiting"], row["held"]) for name, row in _rows(member).items()}

        wanted = {f"work{number}": (number + 1, 0) for number in range(3)} | {"strict": (1, 1)}
        for member in members:
            eventually(partial(_is, counts, member, wanted), f"{member} counts {wanted}")
        for connection in homes:
            connection.close()
