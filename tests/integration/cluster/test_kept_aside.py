"""What was confirmed is overwritten by nobody, even where a majority's disks have forgotten it.

Two of three members come back with older copies of their own directories, and lead; the third knows
better: it keeps that aside until somebody has spoken (docs/operations.md).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.members import REPOSITORY, Member, cluster, eventually

pytestmark = pytest.mark.timeout(300)

QUEUE = "kept"
QUORUM = {"x-queue-type": "quorum"}
SMALL = {"BROKERD_STORAGE_SEGMENT_BYTES": "1048576"}


def ctl(member: Member, *words: str) -> subprocess.CompletedProcess[str]:
    """Run brokerctl against one member."""
    command = [sys.executable, "-c", "from brokerd.ctl.main import main; main()", *words]
    return subprocess.run(
        [*command, "--address", f"127.0.0.1:{member.grpc_port}"],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=90,
    )


def kept(member: Member) -> list[dict[str, Any]]:
    """Return what is kept aside, as this member says of all; waits until all have answered."""
    found: list[dict[str, Any]] = []

    def has_all() -> bool:
        run = ctl(member, "list_kept_aside", "--formatter", "json")
        if run.returncode or "did not answer" in run.stderr:
            return False
        found[:] = json.loads(run.stdout)
        return True

    eventually(has_all, "every member says what it keeps aside")
    return found


def nobody_forgets_who_is_down(asked: Member, id_: str) -> None:
    """While n0 is down: what it keeps is neither listed nor taken for settled."""
    eventually(
        lambda: "n0 did not answer" in ctl(asked, "list_kept_aside").stderr, "the list names n0"
    )
    early = ctl(asked, "republish_kept_aside", id_)
    assert early.returncode == 75
    assert "n0 did not answer" in early.stderr


def metric(member: Member, name: str) -> float:
    url = f"http://127.0.0.1:{member.http_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def publish(member: Member, first: int, last: int) -> None:
    """Publish numbers with confirms, one by one."""
    connection = member.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(first, last):
        channel.basic_publish("", QUEUE, b"%d" % number)
    connection.close()


def copied(members: list[Member], folder: Path) -> None:
    """Copy the directories of running members; each stands still meanwhile."""
    for member in members:
        assert member.process is not None
        member.process.send_signal(signal.SIGSTOP)
        shutil.copytree(member.data_dir, folder / member.name)
        member.process.send_signal(signal.SIGCONT)


def put_back(copy: Path, directory: Path) -> None:
    """Give a directory its earlier content in the same files, as a volume's snapshot does: a copy
    made of other files is recognised, and waits for who may know better.
    """
    for path in sorted(directory.rglob("*"), reverse=True):
        if path.is_file() and not (copy / path.relative_to(directory)).exists():
            path.unlink()
    for path in copy.rglob("*"):
        target = directory / path.relative_to(copy)
        if path.is_dir():
            target.mkdir(exist_ok=True)
            continue
        with target.open("r+b" if target.exists() else "wb") as file:
            file.write(path.read_bytes())
            file.truncate()


def rolled_back(members: list[Member], folder: Path, between: Callable[[], None]) -> None:
    """Kill all; the last two come back with their copies, and the first one after them."""
    for member in members:
        member.kill()
    for member in members[1:]:
        put_back(folder / member.name, member.data_dir)
        member.start()
    for member in members[1:]:
        member.wait_ready()
    between()
    members[0].start()


def bodies(channel: BlockingChannel, queue: str = QUEUE) -> list[int]:
    """Take all messages out of the queue."""
    found = []
    while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
        found.append(int(body))
    return found


def all_applied(members: list[Member], queue: str = QUEUE) -> bool:
    """Whether every replica of the queue has applied the same."""
    found = set()
    for member in members:
        run = ctl(member, "list_groups", "name", "applied", "commit", "--formatter", "json", "-s")
        rows = [] if run.returncode else json.loads(run.stdout)
        found |= {
            (row["applied"], row["commit"]) if f"'{queue}'" in row["name"] else None for row in rows
        }
    return len(found - {None}) == 1


def test_messages_that_only_one_member_remembers_are_kept_and_republished(tmp_path: Path) -> None:
    """G1 beyond its letter: 100 confirmed messages that the new majority never saw."""
    with cluster(tmp_path, 3, **SMALL) as members:
        connection = members[0].connect()
        connection.channel().queue_declare(QUEUE, durable=True, arguments=QUORUM)
        connection.close()
        publish(members[0], 0, 50)
        eventually(lambda: all_applied(members), "all replicas hold the first messages")
        copied(members[1:], tmp_path / "copies")
        publish(members[0], 50, 150)
        eventually(lambda: all_applied(members), "the one that remembers holds them all")
        rolled_back(members, tmp_path / "copies", lambda: publish(members[1], 1000, 1005))

        (row,) = eventually(
            lambda: [row for row in kept(members[1]) if row["state"] == "kept"], "it is kept aside"
        )
        assert (row["member"], row["name"], row["messages"]) == ("n0", QUEUE, 100)
        assert "list_kept_aside" in members[0].log()
        members[0].wait_ready()
        assert metric(members[0], "brokerd_kept_aside") == 1
        assert metric(members[0], "brokerd_kept_aside_messages") == 100
        assert "keeps 100 messages aside" in ctl(members[2], "cluster_status").stdout
        assert "list_kept_aside" in ctl(members[2], "quorum_status", QUEUE).stdout
        health = ctl(members[2], "node_health_check")
        assert health.returncode
        assert "keeps 100 messages aside" in health.stderr
        shown = json.loads(
            ctl(members[1], "show_kept_aside", row["id"], "--formatter", "json").stdout
        )
        assert sum("messages, " in line["what"] for line in shown) == 100

        # It survives a restart: neither vote nor silence.
        members[0].kill()
        nobody_forgets_who_is_down(members[1], row["id"])
        members[0].start()
        members[0].wait_ready()
        assert [each["id"] for each in kept(members[1])] == [row["id"]]

        done = ctl(members[1], "republish_kept_aside", row["id"])
        assert done.returncode == 0, done.stderr
        eventually(lambda: kept(members[1]) == [], "the replica begins anew and is settled")
        eventually(
            lambda: "list_kept_aside" not in ctl(members[2], "quorum_status", QUEUE).stdout,
            "no problem is left",
        )
        assert metric(members[0], "brokerd_kept_aside") == 0

        # It votes again: with the one that led gone, these two are the majority.
        eventually(lambda: all_applied(members), "all replicas are equal")
        members[1].kill()
        channel = members[0].connect().channel()
        eventually(
            lambda: channel.queue_declare(QUEUE, passive=True).method.message_count == 155,
            "all messages are there",
        )
        assert bodies(channel) == [*range(50), *range(1000, 1005), *range(50, 150)]


def test_a_catalog_that_only_one_member_remembers_is_declared_again(tmp_path: Path) -> None:
    """A queue, with its messages, and a user that the new majority of the catalog never saw."""
    with cluster(tmp_path, 3, **SMALL) as members:
        copied(members[1:], tmp_path / "copies")
        connection = members[0].connect()
        connection.channel().queue_declare(QUEUE, durable=True, arguments=QUORUM)
        connection.close()
        publish(members[0], 0, 30)
        assert ctl(members[0], "add_user", "late", "secret").returncode == 0

        def meanwhile() -> None:
            channel = members[1].connect().channel()
            channel.queue_declare("other", durable=True, arguments=QUORUM)

        rolled_back(members, tmp_path / "copies", meanwhile)
        (row,) = eventually(
            lambda: [row for row in kept(members[1]) if row["state"] == "kept"], "it is kept aside"
        )
        assert (row["member"], row["kind"]) == ("n0", "catalog")
        eventually(lambda: "not ready: the catalog" in members[0].log(), "it says so")
        assert "the catalog: member n0 keeps" in ctl(members[1], "cluster_status").stdout
        shown = ctl(members[1], "show_kept_aside", row["id"], "--formatter", "json").stdout
        words = [line["what"] for line in json.loads(shown)]
        assert f"declare queue '{QUEUE}' in vhost '/'" in words
        assert "declare user 'late'" in words
        assert "secret" not in shown

        said = ctl(members[1], "republish_kept_aside", row["id"])
        assert said.returncode == 0, said.stderr
        assert members[0].process is not None
        assert members[0].process.wait(60) == 75
        members[0].start()
        members[0].wait_ready()
        eventually(lambda: kept(members[1]) == [], "all is declared again and republished")
        names = ctl(members[2], "list_queues", "name", "-s").stdout.split()
        assert sorted(name for name in names if name != "name") == [QUEUE, "other"]
        assert "late" in ctl(members[2], "list_users").stdout
        members[1].kill()
        channel = members[0].connect().channel()
        eventually(
            lambda: channel.queue_declare(QUEUE, passive=True).method.message_count == 30,
            "all messages are there",
        )
        assert bodies(channel) == [*range(30)]


def test_what_nobody_wants_is_dropped_by_word(tmp_path: Path) -> None:
    with cluster(tmp_path, 3, **SMALL) as members:
        connection = members[0].connect()
        connection.channel().queue_declare(QUEUE, durable=True, arguments=QUORUM)
        connection.close()
        eventually(lambda: all_applied(members), "all replicas are there")
        copied(members[1:], tmp_path / "copies")
        publish(members[0], 0, 10)
        # Once the two lead it: before that the third would, which remembers more.
        rolled_back(members, tmp_path / "copies", lambda: publish(members[1], 1000, 1001))
        (row,) = eventually(
            lambda: [row for row in kept(members[1]) if row["state"] == "kept"], "it is kept aside"
        )
        refused = ctl(members[1], "drop_kept_aside", "nothing", "--yes")
        assert refused.returncode == 65
        assert ctl(members[1], "drop_kept_aside", row["id"], "--yes").returncode == 0
        members[0].wait_ready()
        eventually(lambda: kept(members[1]) == [], "the replica begins anew")
        eventually(lambda: all_applied(members), "all replicas are equal")
        assert list((members[0].data_dir / "aside").iterdir()) == []
