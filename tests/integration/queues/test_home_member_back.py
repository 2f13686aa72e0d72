"""A home member comes back, after a death, a pause or a partition.

What the others did meanwhile holds: deleted is deleted, made anew elsewhere is there; the rest it
still has.  What is asked while it is away is in test_home_member_down.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.chaos import brokers, network
from tests.chaos.cluster import Node, start_all
from tests.chaos.partitions import between
from tests.integration import home_down_rig as rig
from tests.integration.home_down_rig import (
    AFTER_SECONDS,
    AT_ONCE_SECONDS,
    GONE,
    KINDS,
    Watcher,
    refusal,
)
from tests.integration.members import Member, cluster, eventually, select_nothing, wait_acquainted
from tests.integration.queues.test_quorum_suite import cut_off

pytestmark = pytest.mark.timeout(400)

DELETE_MS = 3_000
#: From the loss of the home to the end of what nobody declares.
EXPIRY_SECONDS = AFTER_SECONDS + DELETE_MS / 1000
SHORT = {rig.AFTER: str(rig.AFTER_MS), rig.DELETE: str(DELETE_MS)}
LONG = {rig.AFTER: str(rig.AFTER_MS), rig.DELETE: str(rig.NEVER_MS)}


def _wait_not_listed(member: Member, queues: set[str]) -> None:
    eventually(
        lambda: not queues & rig.listed(member),
        f"{queues} are gone at {member.name}",
        EXPIRY_SECONDS + AT_ONCE_SECONDS,
    )


def _fill(member: Member, queue: str, *texts: bytes) -> None:
    for text in texts:
        assert rig.published(member, "", queue, mandatory=True, body=text) == ["ack"]


def _wait_dropped(member: Member, cause: str, count: int) -> None:
    name = f'brokerd_messages_dropped_total{{cause="{cause}"}}'
    eventually(lambda: rig.metric(member, name) == count, f"{count} in {name}", 10)


def _is_told(member: Member, queue: str, count: int, cause: str) -> bool:
    """Tell whether a line of the log says with its reason how many messages went with a queue."""
    start = f"queue '{queue}' in vhost '/' dropped {count} messages"
    away = "while this member was away"
    reason = "which did not hear this one" if cause == "home_down" else away
    return any(
        start in line and reason in line and line.endswith(f"cause={cause}")
        for line in member.log().splitlines()
    )


def _deleted_and_remade(first: Member, second: Member) -> None:
    """Delete three ways at the others, and make two anew, while the home is away."""
    assert refusal(first, lambda channel: channel.queue_delete("durable.amqp")) is None
    assert rig.http_call(second, "DELETE", rig.queue_path("durable.http"))[0] == 204
    assert rig.brokerctl(first, "delete_queue", "durable.ctl").returncode == 0
    for member, queue, is_durable in (
        (first, "durable.remade", True),
        (second, "transient.remade", False),
    ):
        if is_durable:
            assert refusal(member, lambda channel: channel.queue_delete("durable.remade")) is None
        with member.connect(heartbeat=0) as connection:
            connection.channel().queue_declare(queue, durable=is_durable)
        _fill(first, queue, b"new")


def test_a_home_that_comes_back_forgets_what_is_deleted_and_has_what_was_kept(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, 3, **SHORT) as members:
        home, first, second = members
        with contextlib.suppress(pika.exceptions.AMQPError), home.connect(heartbeat=0) as owner:
            channel = owner.channel()
            # First: the others hear of a consumer after 100 ms at most.
            expired = {rig.declare(channel, kind, "expired") for kind in GONE}
            channel.queue_bind("transient.expired", "amq.fanout")
            _fill(home, "durable-auto-delete.expired", b"1", b"2")
            for purpose in ("kept", "amqp", "http", "ctl", "remade"):
                queue = rig.declare(channel, "durable", purpose)
                _fill(home, queue, b"1", b"2", b"3")
            rig.declare(channel, "durable-auto-delete-unused", "kept")
            _fill(home, rig.declare(channel, "transient", "remade"), b"old")
            home.kill()
        rig.wait_down(first, "durable.kept")
        rig.wait_down(second, "durable.kept")
        _deleted_and_remade(first, second)
        for member in (first, second):
            _wait_not_listed(member, expired)
        _, bindings = rig.http_call(first, "GET", "exchanges/%2F/amq.fanout/bindings/source")
        assert bindings == []
        home.start()
        home.wait_ready()
        wait_acquainted(members)
        # What the others deleted by themselves, and what they were asked to delete.
        _wait_dropped(home, "home_down", 2)
        assert _is_told(home, "durable-auto-delete.expired", 2, "home_down")
        _wait_dropped(home, "queue_deleted", 4 * 3)
        for purpose in ("amqp", "http", "ctl", "remade"):
            assert _is_told(home, f"durable.{purpose}", 3, "queue_deleted")
        deleted = {"durable.amqp", "durable.http", "durable.ctl"} | expired
        for member in members:
            assert not deleted & rig.listed(member)
            for queue in sorted(deleted):
                assert rig.messages(member, queue) is None, queue
            for queue in ("durable.remade", "transient.remade"):
                assert rig.messages(member, queue) == 1, (member.name, queue)
            assert rig.messages(member, "durable-auto-delete-unused.kept") == 0
        assert rig.bodies(second, "durable.kept") == [b"1", b"2", b"3"]
        assert rig.bodies(home, "durable.remade") == [b"new"]
        assert rig.bodies(home, "transient.remade") == [b"new"]
        # Declared at the old home, a deleted one is a new one.
        assert refusal(home, lambda ch: ch.queue_declare("durable.amqp", durable=True)) is None
        assert rig.bodies(home, "durable.amqp") == []
        _, row = rig.http_call(home, "GET", rig.queue_path("durable.remade"))
        assert row["node"] == first.name


def test_a_pause_shorter_than_the_setting_takes_nothing_away(tmp_path: Path) -> None:
    with cluster(tmp_path, 3, **LONG) as members:
        home, other, _ = members
        owner = Watcher(home)
        try:
            for kind in GONE:
                rig.declare(owner.channel, kind, "paused")
            for queue in ("transient.paused", rig.declare(owner.channel, "durable", "paused")):
                _fill(home, queue, b"before")
            owner.consume("exclusive.paused")
            with cut_off(home):
                rig.wait_down(other, "durable.paused")
                told = refusal(other, lambda ch: ch.basic_get("transient.paused"))
                assert told is not None
                assert told[0] == 404
            eventually(
                lambda: rig.messages(other, "transient.paused") == 1, "it is there again", 30
            )
            assert rig.published(other, "", "exclusive.paused", mandatory=True) == ["ack"]
            owner.hears(lambda: owner.got == [b"x"], "its message", 10)
            assert rig.bodies(other, "transient.paused") == [b"before"]
            assert rig.bodies(other, "durable.paused") == [b"before"]
            assert {f"{kind}.paused" for kind in GONE} <= rig.listed(other)
            assert owner.cancelled == set()
        finally:
            owner.close()


def test_clients_of_a_member_that_was_cut_off_hear_of_their_queues(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, 3, **SHORT) as members:
        _cut_off_and_told(*members)


def _cut_off_and_told(home: Member, first: Member, second: Member) -> None:
    owner = Watcher(home)
    at_first = first.connect(heartbeat=0)
    try:
        rig.declare(owner.channel, "durable", "kept")
        queues = set()
        for kind in GONE:
            for purpose in ("expired", "remade"):
                queues.add(rig.declare(owner.channel, kind, purpose))
        _fill(home, rig.declare(owner.channel, "transient", "unread"), b"1", b"2")
        for queue in sorted(queues):
            owner.consume(queue)
        with cut_off(home):
            rig.wait_down(first, "durable.kept")
            channel = at_first.channel()
            for kind in GONE:
                channel.queue_declare(f"{kind}.remade", **KINDS[kind])
            gone = {f"{kind}.expired" for kind in GONE} | {"transient.unread"}
            _wait_not_listed(second, gone)
        owner.hears(
            lambda: owner.cancelled >= queues,
            f"basic.cancel of {sorted(queues)}; so far {sorted(owner.cancelled)}",
            2 * AT_ONCE_SECONDS,
        )
        _wait_dropped(home, "home_down", 2)
        assert _is_told(home, "transient.unread", 2, "home_down")
        assert owner.channel.is_open
        for kind in GONE:
            _fill(home, f"{kind}.remade", b"after")
            assert channel.basic_get(f"{kind}.remade", auto_ack=True)[2] == b"after"
            assert rig.messages(home, f"{kind}.expired") is None
        assert rig.published(second, "", "durable.kept", mandatory=True) == ["ack"]
        assert owner.got == []
    finally:
        owner.close()
        at_first.close()


@dataclass
class _Inside:
    """A member in a network namespace."""

    node: Node
    name: str

    def connect(self, **settings: Any) -> pika.BlockingConnection:
        host, port = self.node.address
        return pika.BlockingConnection(pika.ConnectionParameters(host, port, **settings))


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[tuple[list[_Inside], network.Namespaces]]:
    """Give three members whose network can be cut."""
    try:
        with (
            network.namespaces(3) as net,
            brokers.cluster("brokerd", tmp_path, net, 3) as cluster,
        ):
            for node in cluster.nodes:
                node.environment |= SHORT
            start_all(cluster.nodes)
            yield [_Inside(node, node.name) for node in cluster.nodes], net
    except network.NoNamespaces as error:
        pytest.skip(str(error))


def test_a_member_beyond_a_partition_serves_its_own_clients_and_tells_them_when_it_is_over(
    partition: tuple[list[_Inside], network.Namespaces],
) -> None:
    (home, first, second), net = partition
    owner = Watcher(home)
    at_first = first.connect(heartbeat=0)
    try:
        rig.declare(owner.channel, "durable", "kept")
        wanted = {rig.declare(owner.channel, kind, "expired") for kind in GONE}
        wanted |= {rig.declare(owner.channel, kind, "remade") for kind in GONE}
        for queue in sorted(wanted):
            owner.consume(queue)
        net.cut(between([0], [1, 2]))
        rig.wait_down(first, "durable.kept")
        there = at_first.channel()
        for kind in GONE:
            there.queue_declare(f"{kind}.remade", **KINDS[kind])
        owner.channel.basic_publish("", "transient.remade", b"alone")
        owner.hears(lambda: owner.got == [b"alone"], "its own message", AT_ONCE_SECONDS)
        # Time is what is tested here: nobody can see from outside when they are deleted.
        select_nothing(EXPIRY_SECONDS)
        assert not owner.cancelled
        net.heal()
        owner.hears(
            lambda: owner.cancelled >= wanted,
            f"basic.cancel of {sorted(wanted)}; so far {sorted(owner.cancelled)}",
            30,
        )
        assert owner.channel.is_open
        for kind in GONE:
            owner.channel.basic_publish("", f"{kind}.remade", b"after")
            eventually(lambda q=f"{kind}.remade": there.basic_get(q, auto_ack=True)[0], "it", 10)
            assert rig.messages(second, f"{kind}.expired") is None
            assert rig.messages(home, f"{kind}.expired") is None
        assert rig.messages(second, "durable.kept") == 0
    finally:
        owner.close()
        at_first.close()
