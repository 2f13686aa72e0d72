"""Rules between chapters: order of checks, rights along detours, confirms and what follows.

Each test names its rules; both servers must answer alike. What needs one server only is in
tests/integration/test_rules_of_members.py.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika import exceptions

from brokerd.amqp import methods
from brokerd.amqp.properties import BasicProperties
from brokerd.amqp.values import Table
from tests.compat import steps
from tests.compat.servers import Server, expect
from tests.integration.raw_client import frame, publish

M = methods
REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture
def limited(server: Server, vhost: str) -> Iterator[str]:
    """A user who may write to open…, topic…, inside…, missing… and the default exchange."""
    name = f"user-of-{vhost}"
    server.admin.add_user(name, name)
    server.admin.set_permissions(vhost, name, write=r"^(open|topic|inside|missing|amq\.default)")
    server.admin.set_topic_permissions(vhost, name, "topic", write="^allowed")
    yield name
    server.admin.delete_user(name)


#: 3.10 does not say which right is missing.
PERMISSION = re.compile(r"^(403 )(configure|write|read) ")


def refusal(server: Server, vhost: str, user: str, exchange: str, key: str, **more: Any) -> str:
    """Publish as this user what must be refused; return the text."""
    with server.connected(vhost, user) as connection:
        level, code, text = steps.refused(
            connection.channel(),
            lambda channel: channel.basic_publish(
                exchange, key, b"m", pika.BasicProperties(**more)
            ),
        )
    assert level == "channel"
    return PERMISSION.sub(r"\1", f"{code} {text.partition(' - ')[2]}")


def test_checks_of_a_publish_come_in_one_order(
    server: Server, vhost: str, channel: Any, limited: str
) -> None:
    """R-PUB-1, R-PERM-7, R-EX-10, R-TP-2: of two faults the earlier check answers."""
    steps.exchange(channel, "inside", "direct", internal=True)
    steps.exchange(channel, "topic", "topic")

    def answer(exchange: str, key: str = "k", **more: Any) -> str:
        return refusal(server, vhost, limited, exchange, key, **more)

    text = f"403 access to exchange 'forbidden' in vhost '{vhost}' refused"
    assert answer("forbidden", expiration="soon").startswith(text)
    assert answer("missing", user_id="bob") == f"404 no exchange 'missing' in vhost '{vhost}'"
    text = f"403 cannot publish to internal exchange 'inside' in vhost '{vhost}'"
    assert answer("inside", user_id="bob") == text
    text = f"403 access to topic 'k' in exchange 'topic' in vhost '{vhost}' refused"
    assert answer("topic", user_id="bob").startswith(text)
    assert answer("open").startswith("404")
    text = "406 fast reply consumer does not exist"
    steps.exchange(channel, "open", "direct")
    assert answer("open", reply_to=REPLY_TO, expiration="soon") == text
    text = "406 user_id property set to 'bob' but authenticated user was"
    assert answer("topic", "allowed", user_id="bob").startswith(text)


#: Two faults in one publish and which of them is told, where 4.3's order is not 3.10's.
TWO_FAULTS = [
    ("topic", {"expiration": "soon"}, "403 access to topic", "406 invalid expiration"),
    ("topic", {"headers": {"CC": "k"}}, "403 access to topic", "406 invalid message"),
    ("open", {"user_id": "bob", "expiration": "soon"}, "406 user_id", "406 invalid expiration"),
    ("open", {"headers": {"CC": "k"}, "user_id": "bob"}, "406 user_id", "406 invalid message"),
]


@pytest.mark.parametrize(("exchange", "properties", "old", "new"), TWO_FAULTS, ids=str)
def test_checks_whose_order_has_changed_since(
    server: Server,
    vhost: str,
    channel: Any,
    limited: str,
    exchange: str,
    properties: dict[str, Any],
    old: str,
    new: str,
) -> None:
    """R-PUB-1: reply-to, expiration, CC, topic, user-id since 4.x."""
    steps.exchange(channel, exchange, "topic" if exchange == "topic" else "direct")
    text = expect(server, rabbitmq=old, brokerd=new, difference="D-61")
    assert refusal(server, vhost, limited, exchange, "k", **properties).startswith(text)


def test_immediate_is_refused_before_anything_else(server: Server, vhost: str) -> None:
    """R-PUB-9, R-ERR-15: 540 for the connection, though the exchange is missing as well."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, M.BasicPublish(0, "missing", "k", immediate=True))
        raw.send(1, frame(2, 1, struct.pack(">HHQ", 60, 0, 0) + b"\0\0"))
        closed = raw.expect(M.ConnectionClose)
        assert (closed.reply_code, closed.class_id, closed.method_id) == (540, 60, 40)
        assert closed.reply_text == "NOT_IMPLEMENTED - immediate=true"


def test_other_delivery_modes(connection: Any) -> None:
    """R-PUB-5: 2 is persistent, 1 and none are transient; the property comes as it was sent."""
    channel = steps.confirming(connection)
    queue = steps.queue(channel)
    for mode in (1, 2, None):
        steps.publish(channel, "", queue, delivery_mode=mode)
        assert steps.take(channel, queue)[1].delivery_mode == mode


def test_an_unknown_delivery_mode(server: Server, channel: Any) -> None:
    """R-PUB-5: refused by 3.10 when it is delivered, transient since 4.x."""
    queue = steps.queue(channel)
    mode = pika.BasicProperties()
    mode.delivery_mode = 3
    answer = expect(server, rabbitmq="refused", brokerd="taken", difference="D-62")
    if answer == "refused":
        found = steps.refused(channel, lambda own: own.basic_publish("", queue, b"m", mode))
        assert found[:2] == ("channel", 406)
        assert "{delivery_mode_unknown,3}" in found[2]
    else:
        channel.basic_publish("", queue, b"m", mode)
        assert steps.take(channel, queue)[2] == b"m"


def test_the_default_exchange_is_called_amq_default_where_rights_are_checked(
    server: Server, vhost: str, channel: Any
) -> None:
    """R-PUB-2, R-PERM-2."""
    name = f"only-of-{vhost}"
    server.admin.add_user(name, name)
    queue = steps.queue(channel, "mine")
    server.admin.set_permissions(vhost, name, write=r"^amq\.default$")
    with server.connected(vhost, name) as connection:
        assert steps.publish(steps.confirming(connection), "", queue) == "ack"
    server.admin.set_permissions(vhost, name, write="^mine$")
    text = refusal(server, vhost, name, "", queue)
    assert text.startswith(f"403 access to exchange 'amq.default' in vhost '{vhost}' refused")
    server.admin.delete_user(name)
    assert steps.drain(channel, queue) == [b"m"]


def test_unroutable_messages_are_dropped_and_confirmed(connection: Any) -> None:
    """R-PUB-8, R-PC-4: nothing comes back, nothing is kept."""
    channel = steps.confirming(connection)
    queue = steps.bound(channel, "amq.direct", "k")
    assert steps.publish(channel, "amq.direct", "other") == "ack"
    assert steps.publish(channel, "", "no-such-queue") == "ack"
    assert steps.is_empty(channel, queue)


@pytest.mark.parametrize("timestamp", [0, 1, 1_700_000_000, 1 << 33, (1 << 63) - 1])
def test_timestamps_pass_unchanged(connection: Any, timestamp: int) -> None:
    """R-PUB-12: seconds, 64 bits."""
    channel = steps.confirming(connection)
    queue = steps.queue(channel)
    steps.publish(channel, "", queue, timestamp=timestamp)
    assert steps.take(channel, queue)[1].timestamp == timestamp


def test_expiration_is_delivered_as_it_was_sent(connection: Any) -> None:
    """R-TTL-9, R-TTL-8: the TTL of the message, kept; the queue's own expiry does not touch it."""
    channel = steps.confirming(connection)
    queue = steps.queue(channel, x_expires=600_000, x_message_ttl=300_000)
    steps.publish(channel, "", queue, expiration="060000")
    assert steps.take(channel, queue)[1].expiration == "060000"
    steps.publish(channel, "", queue)
    assert steps.take(channel, queue)[1].expiration is None


def test_line_ends_in_declared_names_are_dropped(server: Server, vhost: str) -> None:
    """R-CH-11: declared under the short name, and found by it."""
    with server.raw(vhost) as raw:
        raw.open(1)
        assert raw.declare(1, "a\r\nb", durable=True) == "ab"
        raw.send(1, M.ExchangeDeclare(0, "x\ny\r", "fanout", durable=True))
        raw.expect(M.ExchangeDeclareOk)
        raw.send(1, M.QueueBind(0, "ab", "xy", "k"))
        raw.expect(M.QueueBindOk)
        assert raw.count(1, "a\nb") == 0


def test_line_ends_in_names_of_bindings_and_deletes(server: Server, vhost: str) -> None:
    """R-CH-11: there they are dropped; publish, get, consume and purge take names as they are."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        raw.send(1, M.QueueBind(0, "q\n", "amq.\rfanout", "k"))
        raw.expect(M.QueueBindOk)
        raw.send(1, M.ExchangeBind(0, "amq.\ndirect", "amq.fanout\r", "k"))
        raw.expect(M.ExchangeBindOk)
        raw.send(1, publish(1, "amq.fanout", "k", b"m"), M.BasicGet(0, "q", True))
        assert raw.content(M.BasicGetOk)[2] == b"m"
        raw.send(1, publish(1, "", "q\n", b"lost", mandatory=True))
        assert raw.content(M.BasicReturn)[0].routing_key == "q\n"
        raw.send(1, M.QueueUnbind(0, "q\n", "amq.\rfanout", "k"))
        raw.expect(M.QueueUnbindOk)
        raw.send(1, M.QueueDelete(0, "q\n"))
        raw.expect(M.QueueDeleteOk)
        raw.send(1, M.QueueDeclare(0, "q", passive=True))
        assert raw.expect(M.ChannelClose).reply_code == 404


@pytest.mark.parametrize(
    "method", [M.BasicGet(0, "q\n"), M.BasicConsume(0, "q\n"), M.QueuePurge(0, "q\n")], ids=repr
)
def test_line_ends_are_part_of_names_elsewhere(server: Server, vhost: str, method: Any) -> None:
    """R-CH-11: 404 with the name as it was sent."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        raw.send(1, method)
        text = f"NOT_FOUND - no queue 'q\n' in vhost '{vhost}'"
        assert raw.expect(M.ChannelClose).reply_text == text


def test_the_answer_to_exchange_unbind_has_method_id_51(server: Server, vhost: str) -> None:
    """R-BND-5, R-FRM-1: frame by frame, type, channel, size, payload, end."""
    with server.raw(vhost) as raw:
        raw.open(7)
        raw.send(7, M.ExchangeBind(0, "amq.fanout", "amq.direct", "k"))
        raw.expect(M.ExchangeBindOk)
        raw.send(7, M.ExchangeUnbind(0, "amq.fanout", "amq.direct", "k"))
        data = b""
        while len(data) < 12:
            data += raw.socket.recv(4096)
        assert data == frame(1, 7, struct.pack(">HH", 40, 51)) == (
            b"\x01\x00\x07\x00\x00\x00\x04\x00\x28\x00\x33\xce"
        )  # fmt: skip


# ---- confirms ------------------------------------------------------------------------------------


def test_confirms_wait_for_the_queues_behind_alternates(connection: Any) -> None:
    """R-AE-11, R-PC-3: a queue of the alternate that refuses gives a nack; no queue, an ack."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "behind", "fanout")
    steps.exchange(channel, "front", "direct", alternate="behind")
    assert steps.publish(channel, "front", "k") == "ack"
    queue = steps.queue(channel, x_max_length=1, x_overflow="reject-publish")
    channel.queue_bind(queue, "behind")
    assert [steps.publish(channel, "front", "k") for _ in range(2)] == ["ack", "nack"]
    assert steps.ready(channel, queue) == 1


def test_confirms_wait_for_the_queues_behind_other_exchanges(connection: Any) -> None:
    """R-PC-11: two hops, and an alternate at the end of them, are one publish."""
    channel = steps.confirming(connection)
    for name in ("one", "two"):
        steps.exchange(channel, name, "fanout")
    steps.exchange(channel, "three", "direct", alternate="amq.fanout")
    channel.exchange_bind("two", "one")
    channel.exchange_bind("three", "two")
    near = steps.bound(channel, "two", "")
    full = steps.queue(channel, x_max_length=1, x_overflow="reject-publish")
    channel.queue_bind(full, "amq.fanout")
    assert [steps.publish(channel, "one", "k") for _ in range(2)] == ["ack", "nack"]
    assert (steps.ready(channel, near), steps.ready(channel, full)) == (2, 1)


def test_select_without_an_answer_and_confirms_that_are_lost(server: Server, vhost: str) -> None:
    """R-PC-9, R-PC-1, R-PUB-10: nowait has no select-ok; an error takes open confirms along."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        raw.send(1, M.ConfirmSelect(nowait=True), publish(1, "", "q", b"m"))
        assert raw.expect(M.BasicAck).delivery_tag == 1
        # Refused: number 3; what was before it is taken, nothing behind it is.
        raw.send(1, publish(1, "missing", "q", b"lost"), publish(1, "", "q", b"swallowed"))
        closed = raw.expect(M.ChannelClose)
        assert (closed.reply_code, closed.class_id, closed.method_id) == (404, 60, 40)
        raw.send(1, M.ChannelCloseOk(), M.ChannelOpen())
        raw.expect(M.ChannelOpenOk)
        assert raw.count(1, "q") == 1
        # The new channel counts from 1 again.
        raw.send(1, M.ConfirmSelect())
        raw.expect(M.ConfirmSelectOk)
        raw.send(1, publish(1, "", "q", b"n"))
        assert raw.expect(M.BasicAck) == M.BasicAck(1, False)


@pytest.mark.parametrize("end", ["expired", "rejected", "dropped"])
def test_what_happens_to_a_message_later_does_not_touch_its_confirm(
    server: Server, vhost: str, end: str
) -> None:
    """R-PC-10, R-PC-5: one ack per message, whatever becomes of it."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, M.ConfirmSelect())
        raw.expect(M.ConfirmSelectOk)
        raw.declare(1, "dead", durable=True)
        arguments: dict[str, Any] = {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        }
        if end == "dropped":
            arguments["x-max-length"] = 0
        raw.declare(1, "q", durable=True, arguments=arguments)
        properties = BasicProperties(expiration="1") if end == "expired" else BasicProperties()
        raw.send(1, publish(1, "", "q", b"m", properties.encode()))
        assert raw.expect(M.BasicAck).delivery_tag == 1
        if end == "rejected":
            raw.send(1, M.BasicGet(0, "q"))
            tag = raw.content(M.BasicGetOk)[0].delivery_tag
            raw.send(1, M.BasicReject(tag, False))
        steps.eventually(lambda: raw.count(1, "dead") == 1, "it is dead", steps.SECONDS)
        # The next thing that is said is about the next message.
        raw.send(1, publish(1, "", "dead", b"n"))
        assert raw.expect(M.BasicAck) == M.BasicAck(2, False)


# ---- rights along detours ------------------------------------------------------------------------


def test_topic_rights_concern_the_published_exchange_only(
    server: Server, vhost: str, channel: Any, limited: str
) -> None:
    """R-AE-16, R-TP-4, R-TP-1: not the alternate, not a bound exchange, not a dead letter's."""
    steps.exchange(channel, "topic", "topic")
    queue = steps.bound(channel, "topic", "#", name="end")
    steps.exchange(channel, "open", "direct", alternate="topic")
    steps.exchange(channel, "open.bound", "fanout")
    channel.exchange_bind("topic", "open.bound", "k")
    dying = steps.queue(
        channel, "dying", x_message_ttl=0, x_dead_letter_exchange="topic"
    )  # "dying" is no key that the user may use with it.
    with server.connected(vhost, limited) as connection:
        own = steps.confirming(connection)
        for exchange, key in (("open", "k"), ("open.bound", "k"), ("", dying)):
            assert steps.publish(own, exchange, key, exchange + key) == "ack"
    steps.wait_ready(channel, queue, 3)
    assert sorted(steps.drain(channel, queue)) == [b"dying", b"open.boundk", b"openk"]
    text = f"403 access to topic 'k' in exchange 'topic' in vhost '{vhost}' refused"
    assert refusal(server, vhost, limited, "topic", "k").startswith(text)


def test_alternates_and_dead_letter_exchanges_of_policies_need_no_right_of_the_publisher(
    server: Server, vhost: str, channel: Any, limited: str
) -> None:
    """R-PERM-8, R-AE-6, R-DLX-16: whoever may set policies decides."""
    steps.exchange(channel, "closed", "fanout")
    queue = steps.bound(channel, "closed", "")
    steps.exchange(channel, "open", "direct")
    dying = steps.queue(channel, "dying", x_message_ttl=0)
    server.admin.set_policy(vhost, "ae", "^open$", {"alternate-exchange": "closed"}, "exchanges")
    server.admin.set_policy(vhost, "dl", "^dying$", {"dead-letter-exchange": "closed"}, "queues")
    with server.connected(vhost, limited) as connection:
        own = steps.confirming(connection)
        assert steps.publish(own, "open", "k", "one", mandatory=True) == "ack"
        assert steps.publish(own, "", dying, "two") == "ack"
    steps.wait_ready(channel, queue, 2)
    text = f"403 access to exchange 'closed' in vhost '{vhost}' refused"
    assert refusal(server, vhost, limited, "closed", "k").startswith(text)


def test_alternates_serve_messages_that_the_broker_publishes(connection: Any) -> None:
    """R-AE-17, R-DLX-7: a dead letter that its exchange cannot route; a hop between exchanges."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "catch", "fanout", internal=True)
    queue = steps.bound(channel, "catch", "")
    steps.exchange(channel, "dead", "direct", alternate="catch", internal=True)
    source = steps.queue(channel, x_message_ttl=0, x_dead_letter_exchange="dead")
    steps.publish(channel, "", source, "died")
    method, _, body = steps.take(channel, queue)
    assert (method.exchange, method.routing_key, body) == ("dead", source, b"died")
    steps.exchange(channel, "first", "fanout")
    channel.exchange_bind("dead", "first")
    steps.publish(channel, "first", "k", "hopped")
    method, _, body = steps.take(channel, queue)
    assert (method.exchange, method.routing_key, body) == ("first", "k", b"hopped")


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
    server.admin.set_permissions(vhost, limited, read="^open")
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
    server.admin.set_permissions(vhost, limited, read="^open")
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
