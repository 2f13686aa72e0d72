"""Members join, leave, rest and come back, with real processes (docs/operations.md)."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.members import (
    LISTENERS,
    REPOSITORY,
    Member,
    cluster,
    eventually,
    listener_settings,
    select_nothing,
)
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(400)

QUORUM = {"x-queue-type": "quorum"}
#: Two busy cores.
PATIENCE_S = 60.0


def ctl(
    member: Member, *arguments: str, timeout_s: float = 90.0
) -> subprocess.CompletedProcess[str]:
    """Run brokerctl against one member."""
    return subprocess.run(
        [
            *(sys.executable, "-c", "from brokerd.ctl.main import main; main()"),
            *arguments,
            *("--address", f"127.0.0.1:{member.grpc_port}", "-s", "--timeout", "60"),
        ],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def rows(member: Member, command: str, *columns: str) -> list[dict[str, Any]]:
    found = ctl(member, command, *columns, "--formatter", "json")
    return list(json.loads(found.stdout)) if found.returncode == 0 else []


def catalog_voters(member: Member) -> list[str]:
    """Return the voters of the catalog's group as this member sees them."""
    for row in rows(member, "list_groups", "name", "members", "damaged"):
        if row["name"] == "the catalog" and not row["damaged"]:
            return list(row["members"])
    return []


def sees_voters(member: Member, names: list[str]) -> bool:
    return catalog_voters(member) == names


def newcomer(folder: Path, name: str, others: list[Member]) -> Member:
    """Return a member that is none of the founders and knows them; not started."""
    ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
    known = ",".join(f"{other.name}=127.0.0.1:{other.ports['PEER']}" for other in others)
    env = {key: value for key, value in others[0].env.items() if "BROKERD_LISTENERS_" not in key}
    env |= listener_settings(ports)
    env |= {
        "BROKERD_LISTENERS_AMQPS": "0",
        "BROKERD_CLUSTER_MEMBERS": known,
        "BROKERD_CLUSTER_ADDRESS": f"127.0.0.1:{ports['PEER']}",
        "BROKERD_CLUSTER_SECRET": "a secret of the tests",
    }
    return Member(name, folder / name, ports, env)


@contextlib.contextmanager
def ended(*members: Member) -> Iterator[None]:
    """End these processes whatever happens."""
    try:
        yield
    finally:
        for member in members:
            if member.process is not None and member.process.poll() is None:
                member.kill()


def publish(member: Member, queue: str, bodies: range) -> None:
    connection = member.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    for number in bodies:
        channel.basic_publish("", queue, b"%d" % number)
    connection.close()


def drain_queue(member: Member, queue: str) -> list[int]:
    connection = member.connect()
    channel = connection.channel()
    got = []
    while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
        got.append(int(body))
    connection.close()
    return got


def test_a_cluster_of_one_grows_to_three_and_a_joiner_survives_its_kill(tmp_path: Path) -> None:
    env = {"BROKERD_CLUSTER_SECRET": "a secret of the tests"}
    with cluster(tmp_path, 1, **env) as members:
        first = members[0]
        first.stop()
        # Others shall reach it; its own data tell it the rest.
        first.env["BROKERD_CLUSTER_ADDRESS"] = f"127.0.0.1:{first.ports['PEER']}"
        first.start()
        first.wait_ready()
        connection = first.connect()
        connection.channel().queue_declare("kept", durable=True, arguments=QUORUM)
        connection.close()
        publish(first, "kept", range(20))
        second = newcomer(tmp_path, "second", [first])
        third = newcomer(tmp_path, "third", [first])
        with ended(second, third):
            second.start()
            # Killed somewhere on its way, twice, before it may be ready.
            for _ in range(2):
                eventually(lambda: "joining the cluster" in second.log(), "it joins", PATIENCE_S)
                second.kill()
                second.start()
            third.start()
            second.wait_ready()
            third.wait_ready()
            everybody = sorted((first.name, "second", "third"))
            for member in (first, second, third):
                sees_all = functools.partial(sees_voters, member, everybody)
                eventually(sees_all, f"{member.name} sees three voters", PATIENCE_S)
            # Any one may be missing now, the founder too.
            first.kill()
            connection = eventually(lambda: _connected(third), "third serves", PATIENCE_S)
            connection.channel().queue_declare("new", durable=True, arguments=QUORUM)
            connection.close()
            publish(second, "new", range(5))
            first.start()
            first.wait_ready()
            assert drain_queue(third, "kept") == list(range(20))
            assert drain_queue(first, "new") == list(range(5))


def _is_closed(connection: pika.BlockingConnection) -> bool:
    try:
        connection.process_data_events(time_limit=0.1)
    except pika.exceptions.AMQPError:
        return True
    return False


def _exit_status(member: Member) -> int:
    """Wait until a member has ended by itself."""
    process = member.process
    assert process is not None
    eventually(lambda: process.poll() is not None, f"{member.name} ends", PATIENCE_S)
    return int(process.returncode)


def _connected(member: Member) -> pika.BlockingConnection | None:
    try:
        return member.connect()
    except pika.exceptions.AMQPError:
        return None


def test_a_lonely_newcomer_founds_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path, 1, BROKERD_CLUSTER_SECRET="a secret of the tests") as members:
        members[0].stop()
        late = newcomer(tmp_path, "late", members)
        with ended(late):
            late.start()
            eventually(lambda: "waiting for the cluster" in late.log(), "it waits", PATIENCE_S)
            assert "founding" not in late.log()
            # A wait can be ended like anything else.
            assert late.stop() == 0


def queue_members(member: Member, name: str) -> list[str]:
    for row in rows(member, "list_queues", "name", "members"):
        if row["name"] == name:
            return sorted(row["members"])
    return []


def _is_missed(member: Member, other: Member) -> bool:
    lines = ctl(member, "cluster_status", "--formatter", "json").stdout
    return bool(lines) and other.name not in json.loads(lines)["running_nodes"]


def test_a_forgotten_member_ends_says_why_and_comes_back_when_it_is_added(tmp_path: Path) -> None:
    with cluster(tmp_path, 3) as members:
        first, second, third = members
        connection = third.connect()
        connection.channel().queue_declare("there only", durable=True)
        connection.channel().queue_declare("everywhere", durable=True, arguments=QUORUM)
        connection.close()
        publish(third, "everywhere", range(50))
        refused = ctl(first, "forget_cluster_node", third.name)
        assert refused.returncode != 0
        assert "queue 'there only' in vhost '/' is only there" in refused.stderr
        assert "not in the cluster" in ctl(first, "forget_cluster_node", "n9").stderr

        forgotten = ctl(first, "forget_cluster_node", third.name, "--force")
        assert forgotten.returncode == 0, forgotten.stderr
        assert _exit_status(third) == 78
        assert "was removed from the cluster" in third.log()
        both = [first.name, second.name]
        eventually(lambda: queue_members(first, "everywhere") == both, "two replicas", PATIENCE_S)
        assert queue_members(first, "there only") == []
        # It does not come back by itself, and disturbs nobody.
        third.start()
        assert _exit_status(third) == 78
        assert "add_cluster_node" in third.log()
        eventually(lambda: catalog_voters(second) == both, "two voters", PATIENCE_S)
        # Two are left: neither can go while the other is down.
        second.kill()
        eventually(lambda: _is_missed(first, second), "the second one is missed")
        lone = ctl(first, "forget_cluster_node", second.name)
        assert "no majority now: 1 of 2" in lone.stderr
        second.start()
        second.wait_ready()

        address = f"127.0.0.1:{third.ports['PEER']}"
        added = ctl(first, "add_cluster_node", third.name, address)
        assert added.returncode == 0, added.stderr
        third.start()
        third.wait_ready()
        eventually(
            lambda: catalog_voters(third) == [first.name, second.name, third.name],
            "it votes again",
            PATIENCE_S,
        )
        assert sorted(drain_queue(third, "everywhere")) == list(range(50))


def said(member: Member, command: str) -> str:
    """Return what a command prints that must succeed."""
    found = ctl(member, command)
    assert found.returncode == 0, found.stderr
    return found.stdout


def leaders(member: Member) -> set[str]:
    """Return who leads the groups of this member, as it knows it."""
    return {row["leader"] for row in rows(member, "list_groups", "name", "leader")}


def test_drain_sends_clients_and_leaders_away_until_revive(tmp_path: Path) -> None:
    with cluster(tmp_path, 3) as members:
        first, second, _ = members
        connection = first.connect()
        connection.channel().queue_declare("led", durable=True, arguments=QUORUM)
        publish(first, "led", range(10))
        drained = ctl(first, "drain")
        assert drained.returncode == 0, drained.stderr
        eventually(lambda: _is_closed(connection), "the client is sent away")
        assert _connected(first) is None
        rests = f"Node: {first.name}, status: marked for maintenance"
        eventually(lambda: rests in said(second, "cluster_status"), "it rests", PATIENCE_S)
        eventually(
            lambda: leaders(second) and first.name not in leaders(second),
            "others lead",
            PATIENCE_S,
        )
        publish(second, "led", range(10, 20))
        assert ctl(first, "revive").returncode == 0
        assert drain_queue(first, "led") == list(range(20))
        eventually(lambda: rests not in said(second, "cluster_status"), "it works", PATIENCE_S)
        # A restart ends it, too.
        assert ctl(first, "drain").returncode == 0
        first.stop()
        first.start()
        first.wait_ready()
        eventually(lambda: rests not in said(second, "cluster_status"), "it works", PATIENCE_S)


class Load(threading.Thread):
    """A publisher with confirms and a consumer, each moving on when its member goes."""

    def __init__(self, members: list[Member], queue: str, work: Callable[[Load], None]) -> None:
        super().__init__(daemon=True)
        self.members, self.queue, self.work = members, queue, work
        self.must_end = threading.Event()
        self.numbers: list[int] = []
        self.channel: Any = None
        self.problems = 0

    def goes_on(self) -> None:
        """Wait for twenty more."""
        wanted = len(self.numbers) + 20
        eventually(lambda: len(self.numbers) >= wanted, "the load goes on", PATIENCE_S)

    def run(self) -> None:
        turn = 0
        while not self.must_end.is_set():
            member = self.members[turn % len(self.members)]
            turn += 1
            try:
                connection = member.connect(socket_timeout=5, blocked_connection_timeout=60)
            except (pika.exceptions.AMQPError, OSError):
                select_nothing(0.05)
                continue
            try:
                self.channel = connection.channel()
                while not self.must_end.is_set():
                    self.work(self)
                connection.close()
            except pika.exceptions.AMQPError:
                self.problems += 1


def publish_one(load: Load) -> None:
    load.channel.confirm_delivery()
    number = len(load.numbers)
    load.channel.basic_publish("", load.queue, b"%d" % number)
    load.numbers.append(number)


def take_some(load: Load) -> None:
    for method, _, body in load.channel.consume(load.queue, inactivity_timeout=0.2):
        if method is None:
            break
        load.numbers.append(int(body))
        load.channel.basic_ack(method.delivery_tag)
    load.channel.cancel()


def is_safe(members: list[Member], stopping: Member) -> bool:
    return all(ctl(member, "safe_to_stop", stopping.name).returncode == 0 for member in members)


def test_a_rolling_restart_under_load_loses_nothing(tmp_path: Path) -> None:
    """G1 and G3 over three planned stops: SIGTERM hands over, clients go on elsewhere."""
    with cluster(tmp_path, 3) as members:
        connection = members[0].connect()
        connection.channel().queue_declare("rolled", durable=True, arguments=QUORUM)
        connection.close()
        publisher = Load(members, "rolled", publish_one)
        consumer = Load(members[1:], "rolled", take_some)
        publisher.start()
        consumer.start()
        try:
            for member in members:
                publisher.goes_on()
                eventually(functools.partial(is_safe, members, member), "safe", PATIENCE_S)
                assert member.stop() == 0
                member.start()
                member.wait_ready()
            publisher.goes_on()
        finally:
            publisher.must_end.set()
            publisher.join(PATIENCE_S)
        confirmed = set(publisher.numbers)
        eventually(lambda: confirmed <= set(consumer.numbers), "all is consumed", PATIENCE_S)
        consumer.must_end.set()
        consumer.join(PATIENCE_S)
        # Each of the three stops sent the publisher away at most once.
        assert publisher.problems <= 3
