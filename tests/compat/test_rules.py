"""Rules between chapters: order of checks, rights along detours, confirms and what follows.

Each test names its rules; both servers must answer alike. What needs one server only is in
tests/integration/queues/test_rules_of_members.py.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from brokerd.amqp import methods
from brokerd.amqp.properties import BasicProperties
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


def test_messages_by_way_of_an_alternate_appear_at_commit(connection: Any) -> None:
    """R-AE-14, R-TX-2, R-TX-4, R-TEST-2: and not after a rollback; what nobody takes returns."""
    channel, onlooker = connection.channel(), connection.channel()
    steps.exchange(channel, "behind", "topic")
    steps.exchange(channel, "front", "direct", alternate="behind")
    queue = steps.bound(channel, "behind", "k.#")
    returned: list[str] = []
    channel.add_on_return_callback(lambda _c, method, _p, _b: returned.append(method.routing_key))
    channel.tx_select()
    channel.basic_publish("front", "k.1", b"committed", mandatory=True)
    channel.basic_publish("front", "other", b"nowhere", mandatory=True)
    assert steps.is_empty(onlooker, queue)
    assert returned == []
    channel.tx_commit()
    connection.process_data_events(0)
    assert returned == ["other"]
    channel.basic_publish("front", "k.2", b"rolled back", mandatory=True)
    channel.tx_rollback()
    channel.tx_commit()
    assert steps.drain(onlooker, queue) == [b"committed"]


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
