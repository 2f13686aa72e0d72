"""Quorum queues grow, shrink and move while they work, and while members die (R-QQ-23)."""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pika.exceptions
import pytest

from brokerd.ctl import main as ctl_main
from tests.integration.members import REPOSITORY, Member, cluster, eventually

pytestmark = pytest.mark.timeout(600)

LOST = (pika.exceptions.AMQPError, OSError)
#: Two cores and a full test run beside it.
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    with cluster(tmp_path_factory.mktemp("life"), 3) as found:
        yield found


@pytest.fixture(autouse=True)
def ended(members: list[Member]) -> Iterator[None]:
    """A test that fails leaves no publisher behind; and none leaves a queue.

    One of two members has no majority left, nor anybody to be refilled by, if a later test takes
    the disk of the other; and leaders of queues that are still there count for new ones.
    """
    yield
    for publisher in Publisher.running:
        publisher.stopped.set()
    Publisher.running.clear()
    for member in members:
        if member.process is None or member.process.poll() is not None:
            member.start()
    for member in members:
        member.wait_ready()
    # Who has just come back may be ready before the others have heard it.
    eventually(
        lambda: all(len(running(member)) == len(members) for member in members),
        "all members know all others to be up",
        PATIENCE_S,
    )
    with contextlib.closing(members[0].connect()) as connection:
        channel = connection.channel()
        rows = done(members[0], "list_queues", "name", "-q", "--no-table-headers")
        for queue in rows.splitlines():
            channel.queue_delete(queue)


@dataclass
class Run:
    """How a command of brokerctl ended."""

    returncode: int
    stdout: str
    stderr: str


def ctl(member: Member, *arguments: str) -> Run:
    """Run brokerctl against one member, in this process: there are many calls."""
    stdout, stderr = io.StringIO(), io.StringIO()
    address = f"127.0.0.1:{member.grpc_port}"
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = ctl_main.run([*arguments, "--address", address, "-s"])
    return Run(code, stdout.getvalue(), stderr.getvalue())


def done(member: Member, *arguments: str) -> str:
    run = ctl(member, *arguments)
    assert run.returncode == 0, f"{arguments}: {run.stdout}{run.stderr}"
    return run.stdout


def running(member: Member) -> list[str]:
    """Return the members that this one knows to be up."""
    found: list[str] = json.loads(done(member, "cluster_status", "--formatter", "json"))[
        "running_nodes"
    ]
    return found


def status(member: Member, queue: str) -> dict[str, dict[str, Any]]:
    """Return quorum_status by member, once it can be told."""

    def rows() -> list[dict[str, Any]]:
        run = ctl(member, "quorum_status", queue, "--formatter", "json")
        return list(json.loads(run.stdout)) if run.returncode == 0 else []

    found = eventually(rows, f"the status of {queue}", PATIENCE_S)
    return {row["Node Name"]: row for row in found}


def voters(member: Member, queue: str) -> set[str]:
    """Return the members that vote and hold all that the leader has committed."""
    found = status(member, queue)
    commit = [row["Commit Index"] for row in found.values() if row["Raft State"] == "leader"]
    return {
        node
        for node, row in found.items()
        if row["Membership"] == "voter" and not row["Problem"] and [row["Last Applied"]] == commit
    }


def leader(member: Member, queue: str) -> str:
    """Return who leads the queue, once somebody does."""

    def leads() -> str:
        found = status(member, queue)
        return next((node for node, row in found.items() if row["Raft State"] == "leader"), "")

    return str(eventually(leads, f"a leader of {queue}", PATIENCE_S))


def declare(member: Member, queue: str, size: int, **arguments: Any) -> None:
    connection = member.connect()
    connection.channel().queue_declare(
        queue,
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-quorum-initial-group-size": size,
            **arguments,
        },
    )
    connection.close()


class Publisher(threading.Thread):
    """Publishes numbers with confirms; a number whose confirm was lost is not used again."""

    running: ClassVar[list[Publisher]] = []

    def __init__(self, members: list[Member], queue: str) -> None:
        super().__init__(daemon=True)
        self.running.append(self)
        self.members, self.queue = members, queue
        self.confirmed: list[int] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        number = turn = 0
        while not self.stopped.is_set():
            with contextlib.suppress(*LOST):
                channel = self.members[turn % len(self.members)].connect().channel()
                channel.confirm_delivery()
                # A steady trickle: the queues are to be read back, too.
                while not self.stopped.wait(0.003):
                    number += 1
                    channel.basic_publish("", self.queue, b"%d" % number, mandatory=True)
                    self.confirmed.append(number)
            turn += 1
            # Thousands of attempts a second would take the ports that other tests are to listen on.
            self.stopped.wait(0.1)

    def goes_on(self, count: int = 30) -> None:
        """Wait until it has published more."""
        target = len(self.confirmed) + count
        eventually(lambda: len(self.confirmed) >= target, "publishing goes on", PATIENCE_S)

    def end(self) -> None:
        self.stopped.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()


class Consumer(threading.Thread):
    """One consumer for all the time: it must go on by itself (R-QQ-10)."""

    def __init__(self, member: Member, queue: str) -> None:
        super().__init__(daemon=True)
        self.member, self.queue = member, queue
        self.got: Counter[int] = Counter()
        self.order: list[int] = []
        self.stopped = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            channel = self.member.connect().channel()
            channel.basic_qos(prefetch_count=20)
            for method, _, body in channel.consume(self.queue, inactivity_timeout=0.1):
                if method is not None:
                    self.got[int(body)] += 1
                    if not method.redelivered:
                        self.order.append(int(body))
                    channel.basic_ack(method.delivery_tag)
                if self.stopped.is_set():
                    return
        except LOST as error:
            self.failure = error

    def end(self) -> None:
        self.stopped.set()
        self.join(PATIENCE_S)
        assert self.failure is None


def test_queue_grows_moves_and_shrinks_under_load(members: list[Member]) -> None:
    """R-QQ-23, G1, G3: one member, three, two without the first leader; nothing is lost, and one
    consumer at a member that gets a replica and gives it up sees it all.
    """
    declare(members[0], "orders", 1)
    publisher = Publisher([members[1]], "orders")
    consumer = Consumer(members[2], "orders")
    publisher.start()
    consumer.start()
    publisher.goes_on()
    assert (
        done(members[1], "grow", "n1", "all", "--queue-pattern", "^orders$") == "/\torders\t2\tok\n"
    )
    done(members[0], "add_member", "orders", "n2")
    publisher.goes_on()
    assert set(status(members[1], "orders")) == {"n0", "n1", "n2"}
    done(members[1], "transfer_leader", "orders", "n2")
    eventually(lambda: leader(members[0], "orders") == "n2", "n2 leads", PATIENCE_S)
    publisher.goes_on()
    # The leader goes, and with it the replica of the consumer's member.
    assert (
        done(members[0], "shrink", "rabbit@n2", "--queue-pattern", "^orders$")
        == "/\torders\t2\tok\n"
    )
    left = {"n0", "n1"}
    eventually(lambda: set(status(members[2], "orders")) == left, "two are left", PATIENCE_S)
    eventually(lambda: leader(members[2], "orders") in left, "one of them leads", PATIENCE_S)
    publisher.goes_on()
    # It comes back, with a log of its own, and the founder goes.
    done(members[2], "add_member", "orders", "n2", "--membership", "promotable")
    done(members[2], "delete_member", "orders", "n0")
    publisher.goes_on()
    publisher.end()
    eventually(
        lambda: all(number in consumer.got for number in publisher.confirmed),
        "every confirmed message is consumed",
        PATIENCE_S,
    )
    consumer.end()
    assert consumer.order == sorted(consumer.order)
    eventually(lambda: voters(members[1], "orders") == {"n1", "n2"}, "two voters", PATIENCE_S)


def test_member_killed_while_it_joins_comes_in_when_it_returns(members: list[Member]) -> None:
    """R-QQ-23: what is wanted stands in the catalog; the leader may die meanwhile as well."""
    declare(members[0], "joined", 2)
    eventually(lambda: len(voters(members[0], "joined")) == 2, "two voters", PATIENCE_S)
    publisher = Publisher([members[0], members[1]], "joined")
    publisher.start()
    publisher.goes_on()
    before = set(status(members[0], "joined"))
    newcomer = next(member for member in members if member.name not in before)
    others = [member for member in members if member is not newcomer]
    publisher.members = others
    asking = subprocess.Popen(
        [
            *(sys.executable, "-c", "from brokerd.ctl.main import main; main()"),
            *("add_member", "joined", newcomer.name, "-q"),
            *("--address", f"127.0.0.1:{others[0].grpc_port}"),
        ],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    try:
        eventually(
            lambda: (
                f"'joined' in vhost '/': member {newcomer.name} comes"
                in others[0].log() + others[1].log()
            ),
            "the member is on its way",
            PATIENCE_S,
        )
        newcomer.kill()
        publisher.goes_on()
        # Two of two old members are a majority of two and of three.
        head = next(member for member in others if member.name == leader(others[0], "joined"))
        newcomer.start()
        head.kill()
        newcomer.wait_ready()
        head.start()
        head.wait_ready()
        publisher.goes_on()
    finally:
        asking.kill()
        asking.wait()
    names = {member.name for member in members}
    eventually(lambda: voters(others[0], "joined") == names, "three voters", PATIENCE_S)
    publisher.end()
    assert set(drained(newcomer, "joined")) >= set(publisher.confirmed)


def drained(member: Member, queue: str) -> list[int]:
    """Return all that is in a queue."""
    connection = member.connect()
    channel = connection.channel()
    count = channel.queue_declare(queue, passive=True).method.message_count
    got: list[int] = []
    for _, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE_S):
        got.append(int(body))
        if len(got) == count:
            break
    connection.close()
    return got


def test_added_member_that_lost_its_disk_is_refilled(members: list[Member]) -> None:
    """G1, G8: it began with nothing before, and must not begin a group of its own."""
    declare(members[0], "refilled", 1)
    publisher = Publisher([members[0]], "refilled")
    publisher.start()
    for name in ("n1", "n2"):
        done(members[0], "add_member", "refilled", name)
    publisher.goes_on()
    members[2].kill()
    shutil.rmtree(members[2].data_dir)
    publisher.goes_on()
    members[2].start()
    members[2].wait_ready()
    publisher.goes_on()
    publisher.end()
    everybody = {"n0", "n1", "n2"}
    eventually(lambda: voters(members[0], "refilled") == everybody, "it is refilled", PATIENCE_S)
    members[0].kill()
    eventually(lambda: leader(members[1], "refilled"), "the other two have a leader", PATIENCE_S)
    assert set(drained(members[2], "refilled")) >= set(publisher.confirmed)
    members[0].start()
    members[0].wait_ready()


def test_member_that_cannot_read_a_parked_message_gets_it_again(members: list[Member]) -> None:
    """G8: the message lies below the snapshot, so no command of the leader brings it back.

    Its replica is made anew, even if the member is killed on the way.
    """
    declare(members[0], "parked", 3)
    bodies = [b"%07d" % number * 150_000 for number in range(70)]
    with contextlib.closing(members[0].connect()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", "parked", body)
    everybody = {"n0", "n1", "n2"}
    eventually(lambda: voters(members[0], "parked") == everybody, "all have it", PATIENCE_S)
    eventually(
        lambda: all(row["Snapshot Index"] > 10 for row in status(members[0], "parked").values()),
        "a snapshot of each",
        PATIENCE_S,
    )
    members[2].kill()
    assert any(flipped(path, bodies[3]) for path in members[2].data_dir.rglob("wal-*.log"))
    members[2].start()
    members[2].wait_ready()
    eventually(
        lambda: "on this disk, its replica is made anew" in members[2].log(),
        "the wish is in the catalog",
        PATIENCE_S,
    )
    members[2].kill()
    members[2].start()
    members[2].wait_ready()
    back = "queue 'parked' in vhost '/': member n2 has caught up and votes"
    eventually(
        lambda: any(back in member.log() for member in members[:2]), "it is back", PATIENCE_S
    )
    eventually(lambda: voters(members[0], "parked") == everybody, "all know it", PATIENCE_S)
    done(members[0], "transfer_leader", "parked", "n2")
    with contextlib.closing(members[2].connect()) as connection:
        got = connection.channel().consume("parked", auto_ack=True, inactivity_timeout=PATIENCE_S)
        assert [next(got)[2] for _ in bodies] == bodies


def flipped(path: Path, body: bytes) -> bool:
    """Flip a bit in the middle of a message, if it is in this file."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as found:
        start = found.find(body)
        if start < 0:
            return False
        found[start + len(body) // 2] ^= 1
        return True


def test_target_size_grows_a_queue_and_spares_what_was_taken_out_by_hand(
    members: list[Member],
) -> None:
    """R-QQ-23: policy target-group-size, argument x-quorum-target-group-size."""
    everybody = {"n0", "n1", "n2"}
    declare(members[0], "by-argument", 1, **{"x-quorum-target-group-size": 2})
    eventually(lambda: len(voters(members[0], "by-argument")) == 2, "two voters", PATIENCE_S)
    declare(members[0], "by-policy", 1)
    definition = '{"target-group-size":3}'
    done(members[1], "set_policy", "grow", "^by-policy$", definition, "--apply-to", "queues")
    eventually(lambda: voters(members[0], "by-policy") == everybody, "three voters", PATIENCE_S)
    done(members[0], "delete_member", "by-policy", "n2")
    done(members[1], "set_policy", "grow", "^by-", definition, "--apply-to", "queues")
    eventually(lambda: voters(members[0], "by-argument") == everybody, "three voters", PATIENCE_S)
    assert set(status(members[0], "by-policy")) == {"n0", "n1"}
    done(members[1], "clear_policy", "grow")


def test_leaders_are_rebalanced(members: list[Member]) -> None:
    """R-QQ-23, R-QQ-5."""
    queues = [f"spread-{number}" for number in range(6)]
    for queue in queues:
        declare(members[0], queue, 3)

    def heads() -> Counter[str]:
        """Who leads how many, as the member knows it that will place the next queue."""
        rows = done(members[0], "list_queues", "name", "leader", "-q", "--no-table-headers")
        led = dict(row.split("\t") for row in rows.splitlines())
        return Counter(led[queue] for queue in queues)

    rows = done(members[1], "rebalance", "quorum", "--queue-pattern", "^spread-")
    assert len(rows.splitlines()) == 3
    evenly = {"n0": 2, "n1": 2, "n2": 2}
    eventually(lambda: heads() == evenly, "two leaders on each member", PATIENCE_S)
    # A new queue goes by who leads now, and not by who did when the others were declared.
    for number in range(3):
        queues.append(f"placed-{number}")
        declare(members[0], queues[-1], 3, **{"x-queue-leader-locator": "balanced"})
        eventually(
            lambda: heads().total() == len(queues) and not heads()[""], "a leader", PATIENCE_S
        )
    assert heads() == dict.fromkeys(evenly, 3)
    assert done(members[1], "rebalance", "classic") == ""


def test_what_cannot_be_is_refused_with_what_to_do(members: list[Member]) -> None:
    declare(members[0], "refused", 2)
    connection = members[0].connect()
    connection.channel().queue_declare("classic", durable=True)
    connection.close()
    for arguments, text, code in (
        (("add_member", "refused", "n9"), "'n9' is no member of the cluster", 70),
        (("add_member", "nothing", "n2"), "no queue 'nothing' in vhost '/'", 65),
        (("add_member", "classic", "n2"), "is a classic queue: it has one member", 65),
        (("grow", "n2", "all", "--queue-pattern", "("), "invalid regular expression", 65),
        (("grow", "n2", "odd"), "'odd' is not one of", 64),
        (("transfer_leader", "refused", "n9"), "'n9' holds no replica of the queue", 70),
        (("quorum_status", "nothing"), "no queue 'nothing' in vhost '/'", 65),
        (("check_if_node_is_quorum_critical", "n9"), "'n9' is no member of the cluster", 65),
    ):
        run = ctl(members[0], *arguments)
        assert (run.returncode, text in run.stderr) == (code, True), (arguments, run)
    held = sorted(set(status(members[0], "refused")))
    done(members[0], "delete_member", "refused", held[1])
    run = ctl(members[0], "delete_member", "refused", held[0])
    assert run.returncode == 70
    assert "it is the last member of the group: delete the queue, or grow it" in run.stderr


def test_critical_members_and_unfinished_ones_are_named(members: list[Member]) -> None:
    """R-QQ-6"""
    declare(members[0], "critical", 3)
    check = "check_if_node_is_quorum_critical"
    pattern = "queue 'critical' in vhost '/'"
    assert pattern not in ctl(members[0], check, "n1").stderr
    members[2].kill()
    eventually(lambda: pattern in ctl(members[0], check, "n1").stderr, "critical", PATIENCE_S)
    assert ctl(members[0], "check_if_member_is_quorum_critical", "n1").returncode == 69
    assert ctl(members[0], "grow", "n2", "all").stderr.endswith(
        "member 'n2' is down: start it first\n"
    )
    run = ctl(members[0], "delete_member", "critical", "n1")
    assert "the other members would have no majority: 1 of 2 are up" in run.stderr
    done(members[0], "shrink", "n2", "--queue-pattern", "^critical$")
    left = {"n0", "n1"}
    eventually(lambda: set(status(members[0], "critical")) == left, "two are left", PATIENCE_S)
    members[2].start()
    members[2].wait_ready()
    check = "check_if_new_quorum_queue_replicas_have_finished_initial_sync"
    eventually(lambda: ctl(members[0], check).returncode == 0, "nothing is left", PATIENCE_S)
    # It was away when it was taken out: its replica has gone all the same.
    eventually(
        lambda: "critical" not in done(members[2], "list_groups", "name"),
        "its replica has gone",
        PATIENCE_S,
    )
