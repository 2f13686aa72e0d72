"""Rules of queues, consumers, vhosts and limits that lie between chapters, on both servers.

Publishing, confirms and rights are in test_rules.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from pika import exceptions

from brokerd.amqp import methods
from brokerd.amqp.values import Table
from tests.compat import steps
from tests.compat.servers import Server, expect
from tests.integration.raw_client import publish

M = methods


@pytest.fixture
def limited(server: Server, vhost: str) -> Iterator[str]:
    """A user who may read what begins with open, and write and declare everything."""
    name = f"reader-of-{vhost}"
    server.admin.add_user(name, name)
    server.admin.set_permissions(vhost, name, read="^open")
    yield name
    server.admin.delete_user(name)


# ---- queues and consumers ------------------------------------------------------------------------


def test_declare_ok_tells_name_ready_messages_and_consumers(server: Server, vhost: str) -> None:
    """R-Q-3, R-CH-10: unacked messages do not count; nowait is silent and is the last queue too."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        for body in (b"1", b"2", b"3"):
            raw.send(1, publish(1, "", "q", body))
        raw.send(1, M.BasicQos(0, 1, False))
        raw.expect(M.BasicQosOk)
        raw.send(1, M.BasicConsume(0, "q", "c"))
        raw.expect(M.BasicConsumeOk)
        raw.content(M.BasicDeliver)
        raw.send(1, M.QueueDeclare(0, "q", durable=True))
        assert raw.expect(M.QueueDeclareOk) == M.QueueDeclareOk("q", 2, 1)
        # Only the second is answered, and the empty name means the first.
        raw.send(1, M.QueueDeclare(0, "silent", durable=True, nowait=True))
        raw.send(1, M.QueuePurge(0, ""))
        raw.expect(M.QueuePurgeOk)
        assert raw.count(1, "silent") == 0


def test_consume_needs_the_right_to_read_and_names_its_consumer(
    server: Server, vhost: str, channel: Any, limited: str
) -> None:
    """R-CS-1, R-NAM-3: an empty tag is generated; 403 without the right."""
    steps.queue(channel, "closed")
    with server.connected(vhost, limited) as connection:
        level, code, text = steps.refused(
            connection.channel(), lambda own: own.basic_consume("closed", print)
        )
    assert (level, code) == ("channel", 403)
    assert f"access to queue 'closed' in vhost '{vhost}' refused for user" in text
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, M.BasicConsume(0, "closed", ""))
        tag = raw.expect(M.BasicConsumeOk).consumer_tag
        assert tag.startswith("amq.ctag-")
        assert len(tag) == len("amq.ctag-") + 22
        raw.send(1, M.BasicConsume(0, "closed", tag))
        closed = raw.expect(M.ConnectionClose)
        assert closed.reply_code == 530
        assert closed.reply_text == f"NOT_ALLOWED - attempt to reuse consumer tag '{tag}'"
        assert (closed.class_id, closed.method_id) == (60, 20)


def test_get_looks_at_no_prefetch_and_leaves_the_message_unacknowledged(
    server: Server, vhost: str
) -> None:
    """R-CS-8, R-QOS-1, R-QOS-4: two at a prefetch of one; what remains is told; 540 for sizes."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        raw.send(1, M.BasicQos(0, 1), *[publish(1, "", "q", b"%d" % n) for n in range(3)])
        raw.expect(M.BasicQosOk)
        steps.eventually(lambda: raw.count(1, "q") == 3, "all are there", steps.SECONDS)
        for remaining in (2, 1):
            raw.send(1, M.BasicGet(0, "q"))
            method, _, body = raw.content(M.BasicGetOk)
            assert (method.message_count, body) == (remaining, b"%d" % (2 - remaining))
        assert raw.count(1, "q") == 1
        # Tag 0 with multiple is all of them (R-ACK-4).
        raw.send(1, M.BasicNack(0, True, True))
        steps.eventually(lambda: raw.count(1, "q") == 3, "all are back", steps.SECONDS)
        raw.send(1, M.BasicQos(1, 0))
        closed = raw.expect(M.ConnectionClose)
        assert (closed.reply_code, closed.reply_text) == (
            540,
            "NOT_IMPLEMENTED - prefetch_size!=0 (1)",
        )


def test_get_needs_the_right_to_read(
    server: Server, vhost: str, channel: Any, limited: str
) -> None:
    """R-CS-8, R-PERM-4: and purge too."""
    steps.queue(channel, "closed")
    for action in (lambda own: own.basic_get("closed"), lambda own: own.queue_purge("closed")):
        with server.connected(vhost, limited) as connection:
            found = steps.refused(connection.channel(), action)
        assert found[:2] == ("channel", 403)


@pytest.mark.parametrize("capable", [True, False])
def test_only_clients_that_know_it_are_told_that_their_queue_is_gone(
    server: Server, vhost: str, capable: bool
) -> None:
    """R-CS-6, R-Q-12: basic.cancel, or nothing at all."""
    capabilities: Table = {"consumer_cancel_notify": capable}
    with server.raw(vhost, capabilities=capabilities) as raw, server.raw(vhost) as other:
        raw.open(1)
        other.open(1)
        raw.declare(1, "q", durable=True)
        raw.send(1, M.BasicConsume(0, "q", "c"))
        raw.expect(M.BasicConsumeOk)
        other.send(1, M.QueueDelete(0, "q"))
        other.expect(M.QueueDeleteOk)
        if capable:
            assert raw.expect(M.BasicCancel).consumer_tag == "c"
        # Nothing more is said, and the tag may be used anew once it is known to be free.
        raw.send(1, M.BasicCancel("c"))
        assert raw.expect(M.BasicCancelOk).consumer_tag == "c"
        assert raw.declare(1, "q", durable=True) == "q"


def test_a_consumer_may_ask_for_what_nobody_offers(server: Server, vhost: str) -> None:
    """R-CS-5: no_local and unknown arguments are taken and mean nothing."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        arguments = {"x-cancel-on-ha-failover": True, "x-unheard-of": 1, "plain": "text"}
        raw.send(1, M.BasicConsume(0, "q", "c", no_local=True, no_ack=True, arguments=arguments))
        raw.expect(M.BasicConsumeOk)
        raw.send(1, publish(1, "", "q", b"my own"))
        assert raw.content(M.BasicDeliver)[2] == b"my own"


@pytest.mark.parametrize("arguments", [{"x-max-length": 0}, {"x-message-ttl": 0}], ids=str)
def test_a_waiting_consumer_comes_before_limit_and_ttl(
    server: Server, vhost: str, arguments: dict[str, Any]
) -> None:
    """R-CS-10, R-LEN-5, R-TTL-6: handed over before it counts or expires."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True, arguments=arguments)
        raw.send(1, M.BasicConsume(0, "q", "c", no_ack=True))
        raw.expect(M.BasicConsumeOk)
        raw.send(1, publish(1, "", "q", b"caught"))
        assert raw.content(M.BasicDeliver)[2] == b"caught"
        raw.send(1, M.BasicCancel("c"))
        raw.expect(M.BasicCancelOk)
        raw.send(1, publish(1, "", "q", b"gone"))
        steps.eventually(lambda: raw.count(1, "q") == 0, "nobody waits", steps.SECONDS)
        raw.send(1, M.BasicGet(0, "q", True))
        raw.expect(M.BasicGetEmpty)


def test_equal_consumers_share_evenly(server: Server, vhost: str) -> None:
    """R-CS-4: one by one in RabbitMQ; a batch that arrives together in runs here."""
    with server.raw(vhost) as raw:
        for number in (1, 2):
            raw.open(number)
            raw.declare(number, "q", durable=True)
            raw.send(number, M.BasicConsume(0, "q", "c", no_ack=True))
            raw.expect(M.BasicConsumeOk)
        raw.send(1, *[publish(1, "", "q", b"%d" % number) for number in range(10)])
        got: dict[int, list[int]] = {1: [], 2: []}
        for _ in range(10):
            found = raw.next_frame()
            assert found is not None
            channel = found[1]
            raw.next_frame()
            body = raw.next_frame()
            assert body is not None
            got[channel].append(int(body[2]))
        first = expect(server, rabbitmq=[0, 2, 4, 6, 8], brokerd=[0, 1, 2, 3, 4], difference="D-63")
        assert sorted(got.values()) == [first, [n for n in range(10) if n not in first]]


def test_the_comparison_runs_with_the_profile_of_that_version(server: Server) -> None:
    """R-VER-4, R-TEST-1, R-CON-3: both announce 3.10.8; what brokerd is stands beside it."""
    with server.connected() as connection:
        properties = connection._impl.server_properties
    assert properties["version"] == "3.10.8"
    assert ("brokerd_version" in properties) == (server.name == "brokerd")


@pytest.mark.parametrize("overflow", [None, "drop-head", "reject-publish-dlx"], ids=str)
def test_quorum_queues_drop_the_oldest_unless_they_refuse(
    connection: Any, overflow: str | None
) -> None:
    """R-QQ-15, R-LEN-2, R-LEN-4: also with reject-publish-dlx, which only classic queues know."""
    channel = steps.confirming(connection)
    dead = steps.queue(channel, "dead")
    arguments: dict[str, Any] = {} if overflow is None else {"x_overflow": overflow}
    queue = steps.quorum(
        channel,
        "q",
        x_max_length=1,
        x_message_ttl=600_000,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
        **arguments,
    )
    assert [steps.publish(channel, "", queue, body) for body in (b"1", b"2")] == ["ack", "ack"]
    method, properties, body = steps.take(channel, dead)
    assert (method.routing_key, body) == ("dead", b"1")
    assert steps.deaths(properties)[0]["reason"] == "maxlen"
    assert steps.drain(channel, queue) == [b"2"]


def test_copies_along_one_path_keep_their_order(connection: Any) -> None:
    """R-RT-6: one channel, one path, whatever goes elsewhere in between."""
    channel = connection.channel()
    steps.exchange(channel, "first", "fanout")
    channel.exchange_bind("amq.fanout", "first")
    queue = steps.bound(channel, "amq.fanout", "")
    other = steps.bound(channel, "amq.direct", "k")
    for number in range(200):
        channel.basic_publish("first", "", b"%d" % number)
        channel.basic_publish("amq.direct", "k", b"%d" % number)
    for name in (queue, other):
        steps.wait_ready(channel, name, 200)
        assert steps.drain(channel, name) == [b"%d" % number for number in range(200)]


# ---- vhosts and limits ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a/b", "a b", "%2F", "ü", "A/b"])
def test_the_name_of_a_vhost_is_taken_literally(server: Server, vhost: str, name: str) -> None:
    """R-VH-4, R-CON-11: no slash, percent sign or letter case means anything."""
    own = f"{vhost}{name}"
    server.admin.add_vhost(own)
    with server.raw(own) as raw:
        raw.open(1)
        assert raw.declare(1, "here", durable=True) == "here"
    with pytest.raises(exceptions.ProbableAccessDeniedError, match="not found"):
        server.connect(own.swapcase() + "x")
    server.admin.delete_vhost(own)


def refused_connect(server: Server, vhost: str, user: str = "guest") -> str:
    """Connect where it must be refused; return the text."""
    with (
        pytest.raises(exceptions.AMQPConnectionError) as refused,
        contextlib.closing(server.connect(vhost, user)),
    ):
        pass
    return str(refused.value)


def test_connections_of_a_vhost_are_limited(server: Server, vhost: str) -> None:
    """R-CON-12, R-NAM-5, R-VH-3: the next is refused, and comes in when one has gone."""
    server.admin.set_vhost_limit(vhost, "max-connections", 1)
    with server.connected(vhost):
        text = refused_connect(server, vhost)
        assert "(530)" in text
        assert (
            f"access to vhost '{vhost}' refused for user 'guest': connection limit (1) is" in text
        )
    steps.eventually(lambda: _may_connect(server, vhost), "one has gone", steps.SECONDS)
    server.admin.set_vhost_limit(vhost, "max-connections", 0)
    assert "connection limit (0) is reached" in refused_connect(server, vhost)


def _may_connect(server: Server, vhost: str) -> bool:
    try:
        server.connect(vhost).close()
    except exceptions.AMQPConnectionError:
        return False
    return True
