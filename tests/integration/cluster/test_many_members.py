"""A cluster of more members than vote in its catalog (ADR 44): the others serve like any member."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from brokerd.server.members.joining import VOTERS_MAX
from tests.integration.cluster.test_kept_aside import ctl
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(600)

MEMBERS = 15


def catalog_of(member: Member) -> dict[str, Any]:
    """Return what this member knows of the catalog's group; {} while it does not answer."""
    run = ctl(member, "list_groups", "name", "members", "leader", "--formatter", "json", "-s")
    rows = [] if run.returncode else json.loads(run.stdout)
    return next((row for row in rows if row["name"] == "the catalog"), {})


def voters_of(member: Member) -> list[str]:
    return sorted(catalog_of(member).get("members", []))


def works(member: Member, queue: str) -> None:
    """Declare a queue of three, publish to it with confirms, and get it all again."""
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number)
    found = []
    while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
        found.append(int(body))
    assert found == list(range(20))
    # One that stays would keep the member below from going: two of its three may be down.
    channel.queue_delete(queue)
    connection.close()


def by_name(members: Sequence[Member]) -> dict[str, Member]:
    return {member.name: member for member in members}


def test_fifteen_members_of_which_seven_vote(tmp_path: Path) -> None:
    with cluster(tmp_path, MEMBERS) as members:
        running = by_name(members)
        voters = eventually(lambda: voters_of(members[0]), "the catalog is known")
        assert len(voters) == VOTERS_MAX
        learners = sorted(set(running) - set(voters))
        # Those that only learn declare, publish and consume, and see what the others did.
        for name in (learners[0], learners[-1], voters[0]):
            works(running[name], f"at-{name}")
        first, second = (running[name].connect().channel() for name in learners[:2])
        first.queue_declare("seen", durable=True)
        second.queue_declare("seen", passive=True)

        # Any three voters may be lost.
        leader = catalog_of(running[learners[0]])["leader"]
        lost = [leader, *(name for name in voters if name != leader)][:3]
        for name in lost:
            running[name].kill()
        asked = running[learners[2]]
        eventually(lambda: catalog_of(asked).get("leader") not in {"", leader}, "another leads")
        works(asked, "with-four-voters")

        # One that is taken out for good gives its place to one that learns.
        run = ctl(asked, "forget_cluster_node", lost[1])
        assert run.returncode == 0, run.stderr
        eventually(
            lambda: lost[1] not in voters_of(asked) and len(voters_of(asked)) == VOTERS_MAX,
            "a learner votes in its place",
        )
        assert set(voters_of(asked)) - set(voters) <= set(learners)
        for name in (lost[0], lost[2]):
            running[name].start()
            running[name].wait_ready()
        works(running[lost[0]], "after-its-return")
