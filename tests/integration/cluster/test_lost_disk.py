"""A member that lost its disk comes back with an empty one and is refilled (docs/operations.md)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from tests.integration.cluster.test_cluster_security import Authority
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


def test_member_killed_within_its_refill_over_mutual_tls_is_refilled_again(tmp_path: Path) -> None:
    """G1, G8: it asks what it was over certificates too (SEC-3); half of it is not all."""
    authority = Authority(tmp_path / "authority")
    names = ["n0", "n1", "n2"]
    for name in names:
        authority.issue(name)
    folder = authority.directory
    settings = {
        "BROKERD_CLUSTER_SECRET": "",
        "BROKERD_PEER_TLS_CERT_FILE": f"{folder}/{{name}}.pem",
        "BROKERD_PEER_TLS_KEY_FILE": f"{folder}/{{name}}.key",
        "BROKERD_PEER_TLS_CA_FILE": f"{folder}/ca.pem",
        "BROKERD_STORAGE_SEGMENT_BYTES": "1048576",
    }
    count, body = 300, bytes(100_000)
    with cluster(tmp_path, 3, **settings) as members:
        assert [member.name for member in members] == names
        lost = members[1]
        connection = members[0].connect()
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        for number in range(count):
            channel.basic_publish("", QUEUE, b"%d " % number + body)
        lost.kill()
        eventually(lambda: ended_within_a_refill(lost, count * len(body)), "killed in the middle")

        lost.start()
        lost.wait_ready()
        eventually(lambda: "this member votes" in lost.log(), "n1 is refilled")
        connection.close()
        members[0].kill()
        channel = lost.connect().channel()
        got = [eventually(lambda: channel.basic_get(QUEUE, auto_ack=True)[2], "a message")]
        while message := channel.basic_get(QUEUE, auto_ack=True)[2]:
            got.append(message)
        assert [int(message.split(b" ", 1)[0]) for message in got] == list(range(count))


def ended_within_a_refill(member: Member, whole: int) -> bool:
    """Begin with an empty disk and end by SIGKILL; False if the refill was faster."""
    shutil.rmtree(member.data_dir)
    # That of an earlier attempt may say that it was refilled.
    member.log_path.unlink()
    member.start()
    eventually(lambda: size(member.data_dir) > whole / 8, "some of the refill is there")
    member.kill()
    return size(member.data_dir) < whole and "this member votes" not in member.log()


def test_a_classic_queue_whose_disk_is_lost_refuses_what_a_channel_elsewhere_sends_next(
    tmp_path: Path,
) -> None:
    """docs/reliability.md: what came before is gone and the channel hears it; then it goes on."""
    with cluster(tmp_path, 3) as members:
        keeper = members[1]
        keeper.connect().channel().queue_declare(QUEUE, durable=True)
        channel = members[0].connect().channel()
        channel.confirm_delivery()
        for number in range(20):
            channel.basic_publish("", QUEUE, b"%d" % number)
        keeper.kill()
        shutil.rmtree(keeper.data_dir)
        keeper.start()
        keeper.wait_ready()
        is_refused = [is_nacked(channel, b"%d" % number) for number in range(20, 30)]
        assert is_refused[0], "it is confirmed, though the messages before it are gone"
        assert not is_refused[-1], "it does not go on"
        consumer = keeper.connect().channel()
        got = []
        while body := consumer.basic_get(QUEUE, auto_ack=True)[2]:
            got.append(int(body))
        assert got == [20 + place for place, refused in enumerate(is_refused) if not refused]


def is_nacked(channel: BlockingChannel, body: bytes) -> bool:
    """Publish and wait for the verdict."""
    try:
        channel.basic_publish("", QUEUE, body)
    except NackError:
        return True
    return False


def size(folder: Path) -> int:
    """Return the bytes that lie in a member's log."""
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            # Segments are made at full length: what is written counts, not what is reserved.
            found += path.stat().st_blocks * 512 if path.is_file() else 0
    return found
