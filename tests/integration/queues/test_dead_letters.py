"""Dead letters on a real member: headers, cycles, and the at-least-once worker's targets."""

from __future__ import annotations

import itertools
import re
import statistics
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import pika
import pika.exceptions
import pytest

from brokerd.amqp import methods
from tests.integration.federation_rig import admin, amqp
from tests.integration.management.test_brokerctl import Ctl
from tests.integration.members import Member, cluster, eventually
from tests.integration.raw_client import client, publish

pytestmark = pytest.mark.timeout(240)

AT_LEAST_ONCE = {
    "x-queue-type": "quorum",
    "x-dead-letter-exchange": "dx",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("letters"), 1) as members:
        yield members[0]


@pytest.fixture
def channel(member: Member) -> Iterator[Any]:
    """A channel with an empty broker behind it but for the exchange `dx`."""
    connection = member.connect()
    channel = connection.channel()
    channel.exchange_declare("dx", "direct")
    channel.confirm_delivery()
    yield channel
    channel = connection.channel()
    channel.exchange_delete("dx")
    for name in ("w", "t", "u", "v"):
        channel.queue_delete(name)
    connection.close()


def take(channel: Any, queue: str, auto_ack: bool = True) -> tuple[Any, Any, bytes]:
    """Get one message, waiting for it."""

    def got() -> tuple[Any, Any, bytes] | None:
        method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
        return None if method is None else (method, properties, body)

    found: tuple[Any, Any, bytes] = eventually(got, f"a message in {queue}")
    return found


def ready(channel: Any, queue: str) -> int:
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def is_empty(channel: Any, queue: str) -> bool:
    return ready(channel, queue) == 0


def put_policy(member: Member, definition: dict[str, Any]) -> None:
    with admin(member) as service:
        spec = {"pattern": "^w$", "apply-to": "queues", "definition": definition}
        service.put("policy", "letters", spec)


def reject(channel: Any, queue: str) -> None:
    method, _, _ = take(channel, queue, auto_ack=False)
    channel.basic_reject(method.delivery_tag, requeue=False)


def test_cc_is_kept_and_bcc_routes_without_ever_showing(channel: Any) -> None:
    """R-DLX-10, R-DLX-12, R-DLX-13: with a dead-letter key only that one routes, CC still shows."""
    channel.queue_declare("t")
    channel.queue_declare("u")
    channel.queue_bind("t", "dx", "b1")
    channel.queue_bind("u", "dx", "retry")
    properties = pika.BasicProperties(headers={"CC": ["cc1"], "BCC": ["b1"]})
    for key, reached, keys in (({}, "t", "w"), ({"x-dead-letter-routing-key": "retry"}, "u", None)):
        channel.queue_declare("w", arguments={"x-dead-letter-exchange": "dx"} | key)
        channel.basic_publish("", "w", b"x", properties)
        reject(channel, "w")
        method, found, _ = take(channel, reached)
        assert method.routing_key == (keys or "retry")
        assert found.headers["CC"] == ["cc1"]
        assert "BCC" not in found.headers
        assert found.headers["x-death"][0]["routing-keys"] == ["w", "cc1"]
        channel.queue_delete("w")
    assert (ready(channel, "t"), ready(channel, "u")) == (0, 0)


def test_the_brokers_headers_replace_a_clients_and_all_are_sorted(channel: Any) -> None:
    """R-DLX-24, R-DLX-25: today's profile starts a new history, whatever the client claims."""
    channel.queue_declare("w", arguments={"x-dead-letter-exchange": "dx"})
    channel.queue_declare("t")
    channel.queue_bind("t", "dx", "w")
    claimed = [{"queue": "w", "reason": "rejected", "count": 7}]
    headers = {"zebra": 1, "x-death": claimed, "x-first-death-queue": "me", "apple": 2}
    channel.basic_publish("", "w", b"x", pika.BasicProperties(headers=headers))
    reject(channel, "w")
    _, found, _ = take(channel, "t")
    assert found.headers["x-death"][0]["count"] == 1
    assert found.headers["x-first-death-queue"] == "w"
    assert list(found.headers) == sorted(found.headers)
    assert {"zebra", "apple", "x-last-death-reason"} <= found.headers.keys()


def test_a_priority_queue_leaves_the_history_alone(channel: Any) -> None:
    """R-DLX-26"""
    channel.queue_declare("w", arguments={"x-max-priority": 5, "x-dead-letter-exchange": "dx"})
    channel.queue_declare("t", arguments={"x-max-priority": 5})
    channel.queue_bind("t", "dx", "w")
    channel.basic_publish("", "w", b"x", pika.BasicProperties(priority=3))
    reject(channel, "w")
    method, first, _ = take(channel, "t", auto_ack=False)
    channel.basic_nack(method.delivery_tag)
    _, again, _ = take(channel, "t")
    assert again.headers == first.headers
    assert again.priority == 3


def test_a_cycle_is_logged_once_for_each_list_of_queues(member: Member, channel: Any) -> None:
    """R-DLX-31, R-DLX-32"""
    for queue in ("w", "v"):
        channel.queue_declare(
            queue,
            arguments={
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": queue,
                "x-message-ttl": 0,
            },
        )
    for queue in ("w", "v", "w", "v", "w"):
        channel.basic_publish("", queue, b"x")
        eventually(partial(is_empty, channel, queue), "the message to be dropped")
    text = "contains a dead letter cycle without reason 'rejected'. This list will not be logged"
    eventually(lambda: member.log().count(text) >= 2, "both cycles in the log")
    assert member.log().count("again: ['w', 'w']") == 1
    assert member.log().count(text) == 2


def test_an_at_least_once_queue_keeps_what_would_go_in_a_circle(channel: Any) -> None:
    """R-DLX-33, R-ALO-8: ready 0, not dropped; another target lets it go."""
    channel.queue_declare("w", durable=True, arguments=AT_LEAST_ONCE | {"x-message-ttl": 0})
    channel.queue_bind("w", "dx", "w")
    channel.basic_publish("", "w", b"round")
    eventually(lambda: ready(channel, "w") == 0, "the message to expire")
    channel.queue_declare("t", durable=True)
    channel.queue_unbind("w", "dx", "w")
    channel.queue_bind("t", "dx", "w")
    _, found, body = take(channel, "t")
    assert (body, found.headers["x-death"][0]["reason"]) == (b"round", "expired")


@pytest.mark.parametrize("target", ["classic", "quorum"])
@pytest.mark.parametrize("source", ["classic", "quorum"])
def test_a_get_finds_what_its_channel_has_just_rejected(
    member: Member, source: str, target: str
) -> None:
    """Two hundred times, nack and get in one write: no later look is needed (RabbitMQ: seldom)."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.declare(1, "dead", durable=True, arguments={"x-queue-type": target})
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        raw.declare(1, "own", durable=True, arguments={"x-queue-type": source, **arguments})
        raw.send(1, *(publish(1, "", "own", b"%d" % number) for number in range(200)))
        for number in range(200):
            raw.send(1, methods.BasicGet(0, "own", False))
            got, _, _ = raw.content(methods.BasicGetOk)
            nack = methods.BasicNack(got.delivery_tag, False, False)
            raw.send(1, nack, methods.BasicGet(0, "dead", True))
            assert raw.content(methods.BasicGetOk)[2] == b"%d" % number
        for name in ("own", "dead"):
            raw.send(1, methods.QueueDelete(0, name))
            raw.expect(methods.QueueDeleteOk)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_letter_comes_in_time_over_several_queues(member: Member, kind: str) -> None:
    """R-TTL-1: each of three queues holds it for its time to live and hardly longer.  Behind the
    tick of the groups it was 50 ms more at each, 158 in the median of all three.
    """
    hops, ttl_ms = 3, 100
    names = [f"hop{number}" for number in range(hops + 1)]
    late_ms = []
    with client(member.amqp_port) as raw:
        raw.open(1)
        for name, following in itertools.pairwise([*names, ""]):
            arguments: dict[str, Any] = {"x-queue-type": kind}
            if following:
                arguments |= {"x-message-ttl": ttl_ms, "x-dead-letter-exchange": ""}
                arguments["x-dead-letter-routing-key"] = following
            raw.declare(1, name, durable=True, arguments=arguments)
        raw.send(1, methods.BasicConsume(0, names[-1], "c", False, True, False, False, {}))
        raw.expect(methods.BasicConsumeOk)
        for _ in range(11):
            start = time.monotonic()
            raw.send(1, publish(1, "", names[0], b"x"))
            raw.content(methods.BasicDeliver)
            late_ms.append((time.monotonic() - start) * 1000 - hops * ttl_ms)
        for name in names:
            raw.send(1, methods.QueueDelete(0, name))
            raw.expect(methods.QueueDeleteOk)
    assert min(late_ms) > -5
    assert statistics.median(late_ms) < 100, late_ms


def waiting_letters(member: Member, queue: str) -> int:
    """Return how many letters of a queue are not settled."""
    with admin(member) as service:
        rows = [row for row in service.rows("queues") if row["name"] == queue]
    count: int = rows[0]["messages_dlx"]
    return count


def test_a_target_that_confirmed_gets_one_copy_while_another_refuses(
    member: Member, channel: Any
) -> None:
    """R-ALO-5, R-ALO-6, R-ALO-7: and who is deleted is no longer waited for."""
    channel.queue_declare("w", durable=True, arguments=AT_LEAST_ONCE)
    channel.queue_declare("t", durable=True)
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    channel.queue_declare("u", durable=True, arguments=full)
    for queue in ("t", "u"):
        channel.queue_bind(queue, "dx", "w")
    channel.basic_publish("", "w", b"x")
    reject(channel, "w")
    eventually(lambda: ready(channel, "t") == 1, "the first target to have it")
    # Each change of the topology makes the worker try again.
    for _ in range(3):
        channel.queue_declare("v", durable=True)
        channel.queue_delete("v")
    assert ready(channel, "t") == 1
    assert waiting_letters(member, "w") == 1
    channel.queue_delete("u")
    eventually(lambda: waiting_letters(member, "w") == 0, "the letter to be settled")
    channel.queue_declare("v", durable=True)
    channel.queue_bind("v", "dx", "w")
    # Settled, so that a target that comes later gets nothing.
    channel.basic_publish("", "w", b"second")
    reject(channel, "w")
    assert take(channel, "v")[2] == b"second"
    assert ready(channel, "t") == 2


@pytest.mark.parametrize(
    "change",
    [
        None,
        {"overflow": "drop-head"},
        {"dead-letter-strategy": "at-most-once"},
    ],
    ids=["policy deleted", "drop-head", "at-most-once"],
)
def test_letters_that_wait_outlive_a_change_of_the_policy(
    member: Member, channel: Any, change: dict[str, str] | None
) -> None:
    """R-ALO-9, G6: ten of ten, and metric and listing say that they wait under older settings."""
    definition = {
        "dead-letter-exchange": "dx",
        "dead-letter-routing-key": "w",
        "dead-letter-strategy": "at-least-once",
        "overflow": "reject-publish",
    }
    policy: dict[str, Any] = {"pattern": "^w$", "apply-to": "queues", "priority": 0}
    channel.queue_declare("w", durable=True, arguments={"x-queue-type": "quorum"})
    with admin(member) as service:
        service.put("policy", "alo", policy | {"definition": definition})
        for i in range(10):
            channel.basic_publish("", "w", b"%d" % i)
        for _ in range(10):
            reject(channel, "w")
        eventually(lambda: waiting_letters(member, "w") == 10, "ten letters to wait")
        if change is None:
            service.delete("policy", "alo")
        else:
            service.put("policy", "alo", policy | {"definition": definition | change})

        def old() -> int:
            (row,) = [row for row in service.rows("queues") if row["name"] == "w"]
            return int(row["messages_dlx_old_terms"])

        eventually(lambda: old() == 10, "they wait under older settings")
        url = f"http://127.0.0.1:{member.http_port}/metrics"
        with urllib.request.urlopen(url) as answer:
            assert b"brokerd_queue_dead_letters_old_terms 10.0" in answer.read()
        channel.queue_declare("t", durable=True)
        channel.queue_bind("t", "dx", "w")
        assert [take(channel, "t")[2] for _ in range(10)] == [b"%d" % i for i in range(10)]
        eventually(lambda: waiting_letters(member, "w") == 0, "all are settled")
        if change is not None:
            service.delete("policy", "alo")


def dropped(member: Member) -> dict[str, float]:
    """What the member has counted as dropped, by cause."""
    url = f"http://127.0.0.1:{member.http_port}/metrics"
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    found = re.findall(r'^brokerd_messages_dropped_total{cause="(.*)"} (.*)$', text, re.MULTILINE)
    return {cause: float(count) for cause, count in found}


def test_letters_that_wait_are_given_up_by_name_and_the_log_says_how_many(
    member: Member, channel: Any
) -> None:
    """As a purge, the end of a queue and a shorter limit do."""

    def brokerctl(*words: str) -> None:
        done = Ctl(f"127.0.0.1:{member.grpc_port}").run("-q", *words)
        assert done.returncode == 0, done.stdout + done.stderr

    before = dropped(member)
    channel.queue_declare("w", durable=True, arguments=AT_LEAST_ONCE)
    for _ in range(3):
        channel.basic_publish("", "w", b"x")
    for _ in range(2):
        reject(channel, "w")
    eventually(lambda: waiting_letters(member, "w") == 2, "letters to wait")
    brokerctl("purge_queue", "w", "--dead-letters")
    assert (waiting_letters(member, "w"), ready(channel, "w")) == (0, 1)
    name = "queue 'w' in vhost '/' dropped"
    told = f"{name} 0 messages and 2 dead letters that waited, for purge"
    eventually(lambda: told in member.log(), "the log to tell of the letters")
    channel.queue_declare("v", durable=True)
    for _ in range(5):
        channel.basic_publish("", "v", b"x")
    name = "queue 'v' in vhost '/' dropped"
    brokerctl("set_policy", "short", "^v$", '{"max-length": 3}')
    eventually(lambda: f"{name} 2 messages" in member.log(), "the log to tell of the limit")
    assert "for policy" in member.log()
    brokerctl("clear_policy", "short")
    brokerctl("purge_queue", "v")
    eventually(lambda: f"{name} 3 messages" in member.log(), "the log to tell of the purge")
    channel.basic_publish("", "v", b"x")
    channel.queue_delete("v")
    eventually(lambda: f"{name} 1 messages" in member.log(), "the log to tell of the end")
    brokerctl("add_vhost", "gone")
    brokerctl("set_permissions", "-p", "gone", "guest", ".*", ".*", ".*")
    with amqp(member.amqp_port, "gone") as there:
        there.queue_declare("g", durable=True)
        there.basic_publish("", "g", b"x")
    brokerctl("delete_vhost", "gone")
    told = "queue 'g' in vhost 'gone' dropped 1 messages"
    eventually(lambda: told in member.log(), "the log to tell of the vhost")
    channel.queue_declare("brief", arguments={"x-expires": 100})
    channel.basic_publish("", "brief", b"x")
    told = "queue 'brief' in vhost '/' dropped 1 messages and 0 dead letters that waited, for expir"
    eventually(lambda: told in member.log(), "the log to tell of the expiry")
    channel.queue_declare("v", arguments={"x-dead-letter-exchange": "dx", "x-message-ttl": 0})
    channel.basic_publish("", "v", b"x")
    told = "dead letters of queue 'v' in vhost '/' are dropped: exchange 'dx' has no route for them"
    eventually(lambda: told in member.log(), "the log to tell of the letter")
    grown = {cause: count - before[cause] for cause, count in dropped(member).items()}
    assert grown == {
        "purge": 5,
        "policy": 2,
        "queue_deleted": 2,
        "queue_expired": 1,
        "home_down": 0,
        "dead_letter_unroutable": 1,
        "reroute_unroutable": 0,
        "delayed_unroutable": 0,
        "shovel_unroutable": 0,
    }


def test_a_letter_whose_only_target_is_deleted_is_kept(channel: Any) -> None:
    """R-ALO-6, R-ALO-7: nobody ever confirmed it."""
    channel.queue_declare("w", durable=True, arguments=AT_LEAST_ONCE)
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    channel.queue_declare("u", durable=True, arguments=full)
    channel.queue_bind("u", "dx", "w")
    channel.basic_publish("", "w", b"x")
    reject(channel, "w")
    channel.queue_delete("u")
    channel.queue_declare("t", durable=True)
    channel.queue_bind("t", "dx", "w")
    assert take(channel, "t")[2] == b"x"


def test_waiting_letters_follow_a_change_of_the_key(member: Member, channel: Any) -> None:
    """R-ALO-9: the worker asks for exchange and key each time."""
    arguments = {key: value for key, value in AT_LEAST_ONCE.items() if "dead" not in key}
    definition = {
        "dead-letter-exchange": "dx",
        "dead-letter-strategy": "at-least-once",
        "dead-letter-routing-key": "first",
    }
    channel.queue_declare("w", durable=True, arguments=arguments)
    channel.queue_declare("t", durable=True)
    channel.queue_bind("t", "dx", "second")
    put_policy(member, definition)
    channel.basic_publish("", "w", b"x")
    reject(channel, "w")
    channel.basic_publish("", "w", b"y")
    reject(channel, "w")
    put_policy(member, definition | {"dead-letter-routing-key": "second"})
    got = {take(channel, "t")[2] for _ in range(2)}
    assert got == {b"x", b"y"}
    with admin(member) as service:
        service.delete("policy", "letters")
