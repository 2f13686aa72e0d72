"""One bad disk and three members: what two of them confirmed is there when all are back (G1, G8).

A leads, C is down, A and B confirm; both are killed, B's disk is spoilt, B and C start, A comes
last.  B and C are a majority, and must not lead without what B had acknowledged.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from brokerd.storage import inspect, records
from tests.integration.members import Member, cluster, eventually, select_nothing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

BEFORE, AFTER = 50, 100
#: An election of two members that may vote takes 1.5 to 3 s.
NO_ELECTION_S = 6.0


def tail_of(member: Member) -> tuple[Path, int]:
    """Return the segment that was written last, and where it ends."""
    log = member.data_dir / "wal"
    segment = [view for view in inspect.verify(log).segments if view.batches][-1]
    return log / segment.name, segment.used_bytes


def zero(path: Path, start: int, end: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))


def last_records(member: Member) -> None:
    """The last fifty messages' records, to the byte, read as zeros."""
    path, end = tail_of(member)
    views = [view for view in inspect.iterate(path.parent) if view.length > 1_000]
    assert records.segment_name(views[-50].segment) == path.name
    zero(path, views[-50].offset - records.HEADER_BYTES, end)


def last_20_kb(member: Member) -> None:
    path, end = tail_of(member)
    zero(path, end - 20_000, end)


def nothing(member: Member) -> None:
    """The directory itself is another one."""


def publish(member: Member, first: int, count: int) -> None:
    connection = member.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(first, first + count):
        body = b"%d." % number + bytes(1_100)
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
    connection.close()


def leader_of(members: list[Member]) -> Member:
    """Return who leads the queue."""
    connection = members[0].connect()
    channel = connection.channel()
    arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3}
    channel.queue_declare("q", durable=True, arguments=arguments)
    channel.confirm_delivery()
    connection.close()
    # The first member is the one at which it was declared (R-QQ-5).
    return members[0]


def consume(member: Member) -> set[int]:
    connection = member.connect()
    channel = connection.channel()
    found: set[int] = set()

    def take() -> bool:
        method, _, body = channel.basic_get("q", auto_ack=True)
        if method is not None:
            found.add(int(body.split(b".")[0]))
        return method is None

    eventually(take, "the queue is empty")
    connection.close()
    return found


def never_ready(members: list[Member]) -> None:
    """They start and know each other to be up, and lead nothing all the same."""
    logged = [len(member.log()) for member in members]
    for member in members:
        member.start()
    for member, start, other in zip(members, logged, reversed(members), strict=True):
        stands = f"stream to peer stands node={other.name}"
        eventually(lambda m=member, s=start, text=stands: text in m.log()[s:], stands)
    waited = 0.0
    while waited < NO_ELECTION_S:
        assert not any(member._is_ready() for member in members)
        select_nothing(0.2)
        waited += 0.2


@pytest.mark.parametrize("spoil", [last_records, last_20_kb, nothing], ids=lambda f: f.__name__)
def test_a_majority_with_one_bad_disk_waits_for_who_knows(
    tmp_path: Path, spoil: Callable[[Member], None]
) -> None:
    with cluster(tmp_path, 3) as members:
        a = leader_of(members)
        b, c = [member for member in members if member is not a]
        c.kill()
        publish(a, 0, BEFORE)
        copy = tmp_path / "copy"
        shutil.copytree(b.data_dir, copy)
        publish(a, BEFORE, AFTER)
        a.kill()
        b.kill()
        if spoil is nothing:
            shutil.rmtree(b.data_dir)
            shutil.copytree(copy, b.data_dir)
        spoil(b)
        never_ready([b, c])
        assert "no vote" in b.log() or "gives up its vote" in b.log()
        a.start()
        for member in members:
            member.wait_ready()
        assert consume(c) == set(range(BEFORE + AFTER))


@pytest.mark.parametrize("size", [1, 3])
def test_a_cluster_that_was_moved_to_other_disks_goes_on(tmp_path: Path, size: int) -> None:
    """All directories are copies, and nobody remembers more than they hold."""
    with cluster(tmp_path, size) as members:
        leader_of(members)
        publish(members[0], 0, 20)
        for member in members:
            member.kill()
            shutil.move(member.data_dir, tmp_path / "before")
            shutil.copytree(tmp_path / "before", member.data_dir)
            shutil.rmtree(tmp_path / "before")
        for member in members:
            member.start()
        for member in members:
            member.wait_ready()
        assert consume(members[-1]) == set(range(20))


def test_two_bad_disks_of_three_wait_for_an_operator(tmp_path: Path) -> None:
    """173 were lost, and the log said that they had never been acknowledged."""
    with cluster(tmp_path, 3) as members:
        leader_of(members)
        publish(members[0], 0, 100)
        # A majority has what is confirmed; these two shall have it.
        eventually(lambda: all(tail_of(each)[1] > 100_000 for each in members[:2]), "both hold it")
        for member in members:
            member.kill()
        for member in members[:2]:
            path, end = tail_of(member)
            zero(path, end - 60_000, end)
        never_ready(members[:2])
        for member in members[:2]:
            assert "what was synced here is gone" in member.log()
            assert "never acknowledged" not in member.log()
