"""Quorum queues on three real members: partitions, deletion without a majority, who gets what.

A member that is cut off is one that is stopped (SIGSTOP): it hears nothing, answers nothing, and
believes what it believed when it goes on. Kills under load are in test_three_members.py.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brokerd.amqp import methods
from tests.integration.federation_rig import Admin
from tests.integration.members import Member, cluster, eventually
from tests.integration.raw_client import ANSWER_SECONDS, RawClient, client, publish

pytestmark = pytest.mark.timeout(400)
M = methods
QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    quick = {"BROKERD_LIMITS_OPERATION_TIMEOUT_MS": "4000"}
    with cluster(tmp_path_factory.mktemp("quorum"), 3, **quick) as members:
        yield members


@contextlib.contextmanager
def cut_off(*members: Member) -> Iterator[None]:
    """Stop these for the time of the block."""
    for member in members:
        assert member.process is not None
        member.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for member in members:
            assert member.process is not None
            member.process.send_signal(signal.SIGCONT)


def leader_of(members: list[Member], queue: str) -> str:
    """Return the name of the member that leads a queue, asked of the first one that knows."""
    for member in members:
        admin = Admin(member)
        rows = [row for row in admin.rows("queues") if row["name"] == queue]
        admin.close()
        if rows and rows[0]["leader"]:
            return str(rows[0]["leader"])
    return ""


def confirming(member: Member) -> RawClient:
    """Connect with a channel in confirm mode."""
    raw = RawClient(member.amqp_port)
    raw.open(1)
    raw.send(1, M.ConfirmSelect())
    raw.expect(M.ConfirmSelectOk)
    return raw


def confirmed(raw: RawClient, last: int) -> None:
    """Read acks until the publish with this number is confirmed."""
    done = 0
    while done < last:
        done = raw.expect(M.BasicAck).delivery_tag


def silent(raw: RawClient, seconds: float = 2.0) -> bool:
    """Tell whether nothing comes for a while."""
    raw.socket.settimeout(seconds)
    with contextlib.suppress(TimeoutError):
        return raw.next_frame() is None
    raw.socket.settimeout(ANSWER_SECONDS)
    return True


def drained(raw: RawClient, queue: str, count: int) -> list[tuple[bytes, bool]]:
    """Take so many messages; return (body, redelivered)."""
    found = []
    for _ in range(count):
        raw.send(1, M.BasicGet(0, queue, True))
        method, _, body = raw.content(M.BasicGetOk)
        found.append((body, method.redelivered))
    raw.send(1, M.BasicGet(0, queue, True))
    raw.expect(M.BasicGetEmpty)
    return found


def test_a_minority_takes_nothing_and_gives_nothing_until_the_others_are_back(
    members: list[Member],
) -> None:
    """R-TEST-5, R-QQ-6, R-QQ-7, R-QQ-9, R-QQ-28, R-PC-6: neither ack nor nack, then acks."""
    alone, *others = members
    raw = confirming(alone)
    raw.declare(1, "minority", durable=True, arguments=QUORUM)
    raw.send(1, publish(1, "", "minority", b"before"))
    confirmed(raw, 1)
    with cut_off(*others):
        # Transient messages wait for a majority like persistent ones.
        raw.send(1, publish(1, "", "minority", b"alone 1"), publish(1, "", "minority", b"alone 2"))
        assert silent(raw)
    confirmed(raw, 3)
    with client(others[0].amqp_port) as other:
        other.open(1)
        expected = [(b"before", False), (b"alone 1", False), (b"alone 2", False)]
        assert drained(other, "minority", 3) == expected
    raw.close()


def test_a_leader_that_was_cut_off_comes_back_as_a_follower(members: list[Member]) -> None:
    """R-QQ-28, R-QQ-10, R-QQ-8, R-TEST-5: one history, nothing in it lost or doubled."""
    queue = "split"
    with client(members[0].amqp_port) as setup:
        setup.open(1)
        setup.declare(1, queue, durable=True, arguments=QUORUM)
    name = eventually(lambda: leader_of(members, queue), "a leader")
    (old,) = [member for member in members if member.name == name]
    rest = [member for member in members if member is not old]
    on_old, on_new = confirming(old), confirming(rest[0])
    on_old.send(1, publish(1, "", queue, b"first"))
    confirmed(on_old, 1)
    with cut_off(old):
        eventually(lambda: leader_of(rest, queue) not in ("", name), "another leader")
        on_new.send(1, publish(1, "", queue, b"second"))
        confirmed(on_new, 1)
    on_old.send(1, publish(1, "", queue, b"third"))
    confirmed(on_old, 2)
    eventually(lambda: leader_of([old], queue) != "", "a leader that it knows too")
    expected = [(b"first", False), (b"second", False), (b"third", False)]
    assert drained(on_old, queue, 3) == expected
    on_old.close()
    on_new.close()


def is_missing(member: Member, queue: str) -> bool:
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.send(1, M.QueueDeclare(0, queue, passive=True))
        found = raw.next_method()
        assert found is not None
        return isinstance(found[1], M.ChannelClose) and found[1].reply_code == 404


def test_a_queue_is_not_deleted_without_a_majority(members: list[Member]) -> None:
    """R-QQ-18, R-QQ-6: the client hears of it; with the members back the delete works."""
    alone, *others = members
    raw = RawClient(alone.amqp_port)
    raw.open(1)
    raw.declare(1, "kept", durable=True, arguments=QUORUM)
    with cut_off(*others):
        raw.send(1, M.QueueDelete(0, "kept"))
        closed = raw.expect(M.ConnectionClose)
        assert closed.reply_code == 541
    raw.close()

    def deleted() -> bool:
        with contextlib.suppress(AssertionError, OSError), client(others[1].amqp_port) as back:
            back.open(1)
            back.send(1, M.QueueDelete(0, "kept"))
            back.expect(M.QueueDeleteOk)
            back.send(1, M.QueueDeclare(0, "kept", passive=True))
            return back.expect(M.ChannelClose).reply_code == 404
        return False

    eventually(deleted, "deleted with a majority", 60)
    for member in members:
        # Who was cut off is told of the deletion a moment later.
        eventually(lambda member=member: is_missing(member, "kept"), f"{member.name} knows it")


def test_consumers_of_all_members_are_served_by_priority_and_then_in_turn(
    members: list[Member],
) -> None:
    """R-QQ-21, R-CS-4: the highest first while it has room, equal ones share evenly."""
    queue = "ranked"
    consumers = [RawClient(member.amqp_port) for member in members]
    for raw, priority in zip(consumers, (5, 1, 1), strict=True):
        raw.open(1)
        raw.declare(1, queue, durable=True, arguments=QUORUM)
        raw.send(1, M.BasicQos(0, 4))
        raw.expect(M.BasicQosOk)
        raw.send(1, M.BasicConsume(0, queue, "c", arguments={"x-priority": priority}))
        raw.expect(M.BasicConsumeOk)
    publisher = confirming(members[1])
    publisher.send(1, *[publish(1, "", queue, b"%d" % number) for number in range(10)])
    confirmed(publisher, 10)
    got = [
        [raw.content(M.BasicDeliver)[2] for _ in range(count)]
        for raw, count in zip(consumers, (4, 3, 3), strict=True)
    ]
    assert got[0] == [b"0", b"1", b"2", b"3"]
    assert sorted(got[1] + got[2]) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    # A place that becomes free is filled by the next message, at the highest again.
    consumers[0].send(1, M.BasicAck(1, False))
    # The answer comes behind the ack, which the publish at another member might overtake.
    assert consumers[0].count(1, queue) == 0
    publisher.send(1, publish(1, "", queue, b"10"))
    assert consumers[0].content(M.BasicDeliver)[2] == b"10"
    for raw in (*consumers, publisher):
        raw.close()


def test_when_all_members_die_what_their_consumers_held_comes_back(tmp_path: Path) -> None:
    """R-ACK-8, R-QQ-10, R-DL-2: one message held at each member; none stays with the dead."""
    with cluster(tmp_path, 3) as members:
        raw = confirming(members[0])
        raw.declare(1, "held", durable=True, arguments=QUORUM)
        raw.send(1, *[publish(1, "", "held", b"%d" % number) for number in range(4)])
        confirmed(raw, 4)
        holders = [RawClient(member.amqp_port) for member in members]
        for holder in holders:
            holder.open(1)
            holder.send(1, M.BasicQos(0, 1), M.BasicConsume(0, "held", "c"))
            holder.expect(M.BasicQosOk)
            holder.expect(M.BasicConsumeOk)
            holder.content(M.BasicDeliver)
        assert raw.count(1, "held") == 1
        for member in members:
            member.kill()
        for member in members:
            member.start()
        for member in members:
            member.wait_ready()

        def ready() -> int:
            with contextlib.suppress(AssertionError, OSError), client(members[1].amqp_port) as one:
                one.open(1)
                return one.count(1, "held")
            return 0

        eventually(lambda: ready() == 4, "all four are ready", 60)
        with client(members[2].amqp_port) as last:
            last.open(1)
            found = drained(last, "held", 4)
            assert sorted(found) == [(b"0", True), (b"1", True), (b"2", True), (b"3", False)]


def test_dead_letters_survive_the_leader_of_their_queue(tmp_path: Path) -> None:
    """R-ALO-10, R-ALO-5, R-TEST-5: killed while they are under way; each arrives once at least."""
    with cluster(tmp_path, 3) as members:
        raw = confirming(members[0])
        raw.declare(1, "morgue", durable=True, arguments=QUORUM)
        once = {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "morgue",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
        with client(members[1].amqp_port) as far:
            far.open(1)
            far.declare(1, "source", durable=True, arguments=QUORUM | once)
        raw.send(1, *[publish(1, "", "source", b"%d" % number) for number in range(50)])
        confirmed(raw, 50)
        name = eventually(lambda: leader_of(members, "source"), "a leader")
        (victim,) = [member for member in members if member.name == name]
        via = next(member for member in members if member is not victim)
        rejecting = RawClient(via.amqp_port)
        rejecting.open(1)
        rejecting.send(1, M.BasicConsume(0, "source", "c"))
        rejecting.expect(M.BasicConsumeOk)
        for _ in range(50):
            tag = rejecting.content(M.BasicDeliver)[0].delivery_tag
        rejecting.send(1, M.BasicNack(tag, True, False))
        # At least one has come: the others are on their way, settled or not.
        watching = RawClient(via.amqp_port)
        watching.open(1)
        eventually(lambda: watching.count(1, "morgue") > 0, "the first has come")
        victim.kill()
        found: set[bytes] = set()

        def arrived() -> bool:
            watching.send(1, M.BasicGet(0, "morgue", True))
            answer = watching.next_method()
            assert answer is not None
            if isinstance(answer[1], M.BasicGetOk):
                watching.next_frame()
                body = watching.next_frame()
                assert body is not None
                found.add(body[2])
            return len(found) == 50

        eventually(arrived, "all fifty", 90)
        assert found == {b"%d" % number for number in range(50)}


def test_bodies_stay_on_disk_on_every_member(tmp_path: Path) -> None:
    """R-QQ-25: 96 MiB wait in a queue; each member keeps its recent bodies and no more."""
    cache = {"BROKERD_STORAGE_CACHE_BYTES": str(4 << 20)}
    with cluster(tmp_path, 3, is_warm=False, **cache) as members:
        raw = confirming(members[0])
        raw.declare(1, "deep", durable=True, arguments=QUORUM)
        before = [_rss(member) for member in members]
        body = bytes(64 << 10)
        for turn in range(1, 1537, 32):
            raw.send(1, *[publish(1, "", "deep", body) for _ in range(32)])
            confirmed(raw, turn + 31)
        grown = [_rss(m) - b for m, b in zip(members, before, strict=True)]
        assert max(grown) < 64 << 20, grown
        assert raw.count(1, "deep") == 1536
        raw.close()


def _rss(member: Member) -> int:
    assert member.process is not None
    return int(psutil.Process(member.process.pid).memory_info().rss)
