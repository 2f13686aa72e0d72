"""A member that lost its disk comes back with an empty one and is refilled (docs/operations.md)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.members import REPOSITORY, Member, cluster, eventually

pytestmark = pytest.mark.timeout(300)

QUEUE = "refilled"


def applied(member: Member) -> str:
    """Return how far this member's replica of the queue is."""
    command = [sys.executable, "-c", "from brokerd.ctl.main import main; main()"]
    command += ["list_groups", "name", "applied", "--formatter", "tsv", "-s"]
    run = subprocess.run(
        [*command, "--address", f"127.0.0.1:{member.grpc_port}"],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    return next((line for line in run.stdout.splitlines() if QUEUE in line), "")


def test_member_with_an_empty_disk_is_refilled_and_can_lead(tmp_path: Path) -> None:
    """G1: the refilled member and one other are a majority that knows every confirmed message."""
    with cluster(tmp_path, 3) as members:
        connection = members[0].connect()
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        for number in range(200):
            channel.basic_publish("", QUEUE, b"%d" % number)
        members[1].kill()
        shutil.rmtree(members[1].data_dir)
        for number in range(200, 300):
            channel.basic_publish("", QUEUE, b"%d" % number)
        members[1].start()
        members[1].wait_ready()
        eventually(lambda: applied(members[1]) == applied(members[0]) != "", "n1 is refilled")
        connection.close()

        # Only the refilled member and one that was not the publisher's remain.
        members[0].kill()
        channel = members[1].connect().channel()
        got = [eventually(lambda: channel.basic_get(QUEUE, auto_ack=True)[2], "a message")]
        while body := channel.basic_get(QUEUE, auto_ack=True)[2]:
            got.append(body)
        assert got == [b"%d" % number for number in range(300)]
