"""Shovels of a cluster whose members are killed: another one goes on, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.federation_rig import admin, amqp
from tests.integration.members import Member, cluster, eventually, wait_acquainted

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

QUORUM = {"x-queue-type": "quorum"}
MESSAGES = 600


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[list[Member]]:
    # What a killed member's consumers hold comes back that soon (R-QQ-16).
    with cluster(tmp_path, 3, BROKERD_QUEUES_DISCONNECTED_TIMEOUT_MS="500") as members:
        yield members


def shovels(members: list[Member], name: str) -> list[dict[str, Any]]:
    """Return the rows of a shovel at all these members."""
    rows = []
    for member in members:
        with admin(member) as client:
            rows += [row for row in client.rows("shovels") if row["upstream"] == name]
    return rows


def runs_at(members: list[Member], name: str) -> Member:
    """Wait until exactly one of these members runs a shovel; return which."""

    def found() -> Member | None:
        rows = shovels(members, name)
        if [row["status"] for row in rows] != ["running"]:
            return None
        return next(member for member in members if member.name == rows[0]["node"])

    member: Member = eventually(found, f"one member runs {name}")
    return member


def count(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def take_until(member: Member, queue: str, wanted: set[int]) -> None:
    """Take messages until all these have come; there may be some of them twice."""
    seen: set[int] = set()
    with amqp(member.amqp_port) as channel:

        def are_here() -> bool:
            while (answer := channel.basic_get(queue, auto_ack=True))[0] is not None:
                seen.add(int(answer[2]))
            return seen >= wanted

        eventually(are_here, f"all messages in {queue}")
    assert seen == wanted


def test_a_shovel_moves_to_another_member_and_loses_nothing(orders: list[Member]) -> None:
    """R-FED-5, R-FED-7: its member is killed while messages are on their way, twice."""
    with admin(orders[0]) as client, amqp(orders[0].amqp_port) as channel:
        for queue in ("from", "to"):
            channel.queue_declare(queue, durable=True, arguments=QUORUM)
        # By a URI without a host, so that every member connects to itself.
        definition = {"src-uri": "amqp://", "dest-uri": "amqp://", "reconnect-delay": 0.1}
        definition |= {"src-queue": "from", "dest-queue": "to", "src-prefetch-count": 20}
        client.put("parameter", "shovel/moves", {"value": definition})
    for first in (0, MESSAGES):
        owner = runs_at(orders, "moves")
        others = [member for member in orders if member is not owner]
        with amqp(others[0].amqp_port) as channel:
            for i in range(first, first + MESSAGES):
                channel.basic_publish("", "from", b"%d" % i)
                if i == first + MESSAGES // 2:
                    owner.kill()
        assert runs_at(others, "moves") is not owner
        take_until(others[0], "to", set(range(first, first + MESSAGES)))
        owner.start()
        owner.wait_ready()
        wait_acquainted(orders)


def test_a_shovel_that_has_done_its_work_is_gone_at_all_members(orders: list[Member]) -> None:
    """Its member is killed on the way; the next one counts what it finds and deletes it."""
    with admin(orders[0]) as client, amqp(orders[0].amqp_port) as channel:
        for queue in ("from", "to"):
            channel.queue_declare(queue, durable=True, arguments=QUORUM)
        for i in range(MESSAGES):
            channel.basic_publish("", "from", b"%d" % i)
        definition = {"src-uri": "amqp://", "dest-uri": "amqp://", "reconnect-delay": 0.1}
        definition |= {"src-queue": "from", "dest-queue": "to", "src-prefetch-count": 1}
        definition |= {"src-delete-after": "queue-length"}
        client.put("parameter", "shovel/ends", {"value": definition})
        eventually(lambda: (shovels(orders, "ends") or [{"moved": 0}])[0]["moved"] > 0, "it moves")
    owner = runs_at(orders, "ends")
    owner.kill()
    others = [member for member in orders if member is not owner]

    def is_gone() -> bool:
        with admin(others[0]) as client:
            return "shovel/ends" not in client.objects("parameter")

    eventually(is_gone, "it has deleted itself")
    eventually(lambda: not shovels(others, "ends"), "nobody lists it")
    # What its member held when it was killed is not in the length that the next one found.
    with amqp(others[0].amqp_port) as channel:
        eventually(
            lambda: count(channel, "from") + count(channel, "to") >= MESSAGES, "nothing is lost"
        )
        assert count(channel, "from") <= 1
