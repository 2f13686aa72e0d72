"""Rights that are taken away at one member are gone for whoever is connected to another (R-PERM-5).

RabbitMQ notices late; here standing consumers end, and everything else is refused, as soon as the
member that serves the client has applied the change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pika
import pika.exceptions
import pytest

from brokerd.amqp import methods
from brokerd.amqp.properties import BasicProperties
from brokerd.rpc.v1 import admin_pb2
from tests.integration.grpc.test_admin_grpc import Admin, delete, put
from tests.integration.members import Member, cluster, eventually
from tests.integration.messages_client import (
    Client,
    batch,
    deliveries,
    metadata,
    numbers,
    publication,
)
from tests.integration.raw_client import RawClient, client, publish

pytestmark = pytest.mark.timeout(300)

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
#: What a client says that wants to hear of cancelled consumers.
NOTIFY = {"consumer_cancel_notify": True}
QUORUM = {"x-queue-type": "quorum"}
PSEUDO = "amq.rabbitmq.reply-to"


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    with cluster(tmp_path_factory.mktemp("rights"), 3) as members:
        yield members


@pytest.fixture
def admin(members: list[Member]) -> Iterator[Admin]:
    """The changes are made here; the clients are elsewhere."""
    made = Admin(members[0].grpc_port)
    yield made
    made.channel.close()


def make_user(admin: Admin, name: str, **spec: object) -> dict[str, str]:
    """Make a user who may do everything; return its credentials."""
    user = put("user", name, {"password": name, **spec}, vhost="")
    results = admin.apply(user, put("permission", name, ALL))
    assert [result.code for result in results] == [admin_pb2.OperationResult.OK] * 2
    return {"user": name, "password": name}


def connect(member: Member, name: str) -> pika.BlockingConnection:
    return member.connect(credentials=pika.PlainCredentials(name, name))


def change(admin: Admin, name: str, how: str) -> None:
    """Take the right to read away, in one way or another."""
    if how == "cleared":
        admin.apply(delete("permission", name))
    else:
        admin.apply(put("permission", name, {**ALL, "read": "^other$"}))


@pytest.mark.parametrize("arguments", [{}, QUORUM], ids=["classic", "quorum"])
@pytest.mark.parametrize("how", ["cleared", "narrowed"])
def test_a_standing_consumer_is_cancelled(
    members: list[Member], admin: Admin, how: str, arguments: dict[str, Any]
) -> None:
    """R-CS-6, R-PERM-4: it may settle what it holds; nothing more comes, at either member."""
    name = queue = f"reader-{how}-{len(arguments)}"
    make_user(admin, name)
    owner = members[0].connect()
    publisher = owner.channel()
    publisher.confirm_delivery()
    publisher.queue_declare(queue, durable=True, arguments=arguments)
    for member in members[1:]:
        _lose_the_right(member, admin, publisher, queue, how)
        admin.apply(put("permission", name, ALL))
    owner.close()


def _lose_the_right(member: Member, admin: Admin, publisher: Any, queue: str, how: str) -> None:
    """The user has the queue's name."""
    connection = connect(member, queue)
    channel = connection.channel()
    got: list[tuple[int, bytes]] = []
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda _c, m, _p, body: got.append((m.delivery_tag, body)))
    publisher.basic_publish("", queue, b"before")

    def is_there(found: list[Any]) -> bool:
        connection.process_data_events(0)
        return bool(found)

    eventually(lambda: is_there(got), "the first message")
    change(admin, queue, how)
    publisher.basic_publish("", queue, b"after")
    eventually(lambda: is_there(cancelled), "basic.cancel")
    assert cancelled == [tag]
    assert [body for _, body in got] == [b"before"]
    # Settling needs no right, and the connection is still there.
    channel.basic_ack(got[0][0])
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.basic_get(queue)
    assert refused.value.reply_code == 403
    connection.close()
    # It may have been on its way to the consumer.
    left = eventually(lambda: publisher.basic_get(queue, auto_ack=True)[2], "the other is back")
    assert left == b"after"
    assert publisher.basic_get(queue, auto_ack=True)[0] is None


def test_who_cannot_be_told_loses_the_channel(members: list[Member], admin: Admin) -> None:
    """R-CS-6, R-ERR-2: and only the channel that reads what it may not."""
    login = make_user(admin, "deaf")
    with client(members[1].amqp_port, **login) as raw:
        for channel, queue in ((1, "deaf-1"), (2, "other-deaf")):
            raw.open(channel)
            raw.declare(channel, queue, durable=True)
            raw.send(channel, methods.BasicConsume(0, queue, "c"))
            raw.expect(methods.BasicConsumeOk)
        raw.send(1, publish(1, "", "deaf-1", b"m"))
        raw.content(methods.BasicDeliver)
        admin.apply(put("permission", "deaf", {**ALL, "read": "^other"}))
        closed = raw.expect(methods.ChannelClose)
        assert (closed.reply_code, closed.reply_text) == (
            403,
            "ACCESS_REFUSED - read access to queue 'deaf-1' in vhost '/' refused for user 'deaf'",
        )
        raw.send(1, methods.ChannelCloseOk())
        eventually(lambda: raw.count(2, "deaf-1") == 1, "its message is back")
        raw.send(2, publish(2, "", "other-deaf", b"goes on"))
        assert raw.content(methods.BasicDeliver)[2] == b"goes on"


def test_messages_of_others_do_not_wait_behind_a_cancelled_consumer(
    members: list[Member], admin: Admin
) -> None:
    """R-CS-6: two consumers of one channel, of which one may stay; the tag is free again."""
    login = make_user(admin, "half")
    with client(members[1].amqp_port, capabilities=NOTIFY, **login) as raw:
        raw.open(1)
        for queue in ("half-1", "other-half"):
            raw.declare(1, queue, durable=True)
            raw.send(1, methods.BasicConsume(0, queue, queue, no_ack=True))
            raw.expect(methods.BasicConsumeOk)
        admin.apply(put("permission", "half", {**ALL, "read": "^other"}))
        cancelled = raw.expect(methods.BasicCancel)
        assert (cancelled.consumer_tag, cancelled.nowait) == ("half-1", True)
        raw.send(1, publish(1, "", "half-1", b"not for it"), publish(1, "", "other-half", b"yes"))
        assert raw.content(methods.BasicDeliver)[2] == b"yes"
        raw.send(1, methods.BasicConsume(0, "other-half", "half-1"))
        raw.expect(methods.BasicConsumeOk)
        assert raw.count(1, "half-1") == 1


def test_replies_end_with_the_right_to_the_vhost(members: list[Member], admin: Admin) -> None:
    """R-DRT-1, R-CON-11: their consumer needs no other right."""
    login = make_user(admin, "asker")
    with client(members[2].amqp_port, capabilities=NOTIFY, **login) as raw:
        raw.open(1)
        raw.send(1, methods.BasicConsume(0, PSEUDO, "replies", no_ack=True))
        raw.expect(methods.BasicConsumeOk)
        admin.apply(put("permission", "asker", {**ALL, "read": "", "configure": ""}))
        raw.send(1, methods.BasicQos(0, 1))
        raw.expect(methods.BasicQosOk)
        admin.apply(delete("permission", "asker"))
        assert raw.expect(methods.BasicCancel).consumer_tag == "replies"


def test_publishes_are_refused(members: list[Member], admin: Admin) -> None:
    """R-PUB-1, R-TP-2: what a channel remembers of a publish goes with the right."""
    login = make_user(admin, "writer")
    admin.apply(put("exchange", "rights-topic", {"type": "topic"}))
    topic = put("topic_permission", "writer|rights-topic", {"write": "^a", "read": ".*"})
    for take_away, exchange, text in (
        (topic, "rights-topic", "write access to topic 'b' in exchange 'rights-topic'"),
        (put("permission", "writer", {**ALL, "write": "^x"}), "rights-topic", "write access to"),
        (delete("permission", "writer"), "", "write access to exchange 'amq.default'"),
    ):
        with client(members[1].amqp_port, **login) as raw:
            raw.open(1)
            raw.send(1, methods.ConfirmSelect())
            raw.expect(methods.ConfirmSelectOk)
            raw.send(1, publish(1, exchange, "b", b"m"))
            raw.expect(methods.BasicAck)
            admin.apply(take_away)
            raw.send(1, publish(1, exchange, "b", b"m"))
            closed = raw.expect(methods.ChannelClose)
            assert closed.reply_code == 403
            assert text in closed.reply_text
            admin.apply(
                put("permission", "writer", ALL),
                delete("topic_permission", "writer|rights-topic"),
            )


@pytest.mark.parametrize("how", ["cleared", "narrowed"])
def test_gets_are_refused(members: list[Member], admin: Admin, how: str) -> None:
    """R-CS-8: what a channel remembers of a get goes with the right to read."""
    name = f"getter-{how}"
    login = make_user(admin, name)
    with client(members[1].amqp_port, **login) as raw:
        raw.open(1)
        raw.send(1, methods.QueueDeclare(queue=name))
        raw.expect(methods.QueueDeclareOk)
        for _ in range(2):
            raw.send(1, methods.BasicGet(queue=name))
            raw.expect(methods.BasicGetEmpty)
        change(admin, name, how)
        raw.send(1, methods.BasicGet(queue=name))
        closed = raw.expect(methods.ChannelClose)
        assert closed.reply_code == 403
        assert f"read access to queue '{name}'" in closed.reply_text


def test_a_transaction_is_refused_whole(members: list[Member], admin: Admin) -> None:
    """R-TX-2: the right to write is needed when it is committed, too."""
    login = make_user(admin, "committer")
    with client(members[1].amqp_port, **login) as raw, client(members[1].amqp_port) as other:
        other.open(1)
        other.declare(1, "committed", durable=True)
        for exchange in ("", "amq.direct"):
            raw.open(1)
            raw.send(1, methods.TxSelect())
            raw.expect(methods.TxSelectOk)
            raw.send(1, publish(1, "", "committed", b"1"), publish(1, exchange, "committed", b"2"))
            raw.send(1, methods.BasicQos(0, 1))
            raw.expect(methods.BasicQosOk)
            right = "^amq.direct$" if not exchange else "^amq.default$"
            admin.apply(put("permission", "committer", {**ALL, "write": right}))
            raw.send(1, methods.TxCommit())
            assert raw.expect(methods.ChannelClose).reply_code == 403
            raw.send(1, methods.ChannelCloseOk())
            assert other.count(1, "committed") == 0
            admin.apply(put("permission", "committer", ALL))


def test_declares_and_limits_of_a_vhost_hold_at_once(members: list[Member], admin: Admin) -> None:
    """R-VH-3, R-PERM-4: for the next object and the next channel of whoever is connected."""
    admin.apply(
        put("vhost", "shrinking", {}, vhost=""), put("permission", "guest", ALL, "shrinking")
    )
    with client(members[2].amqp_port, vhost="shrinking") as raw:
        raw.open(1)
        raw.declare(1, "first", durable=True)
        admin.apply(put("vhost", "shrinking", {"limits": {"max-queues": 1}}, vhost=""))
        raw.declare(1, "first", durable=True)
        raw.send(1, methods.QueueDeclare(0, "second", durable=True))
        assert "queue limit in vhost 'shrinking' (1)" in raw.expect(methods.ChannelClose).reply_text
        raw.send(1, methods.ChannelCloseOk())
        raw.open(1)
        admin.apply(delete("permission", "guest", vhost="shrinking"))
        raw.send(1, methods.QueueDeclare(0, "first", durable=True))
        assert raw.expect(methods.ChannelClose).reply_code == 403
    login = make_user(admin, "few-channels")
    with client(members[2].amqp_port, **login) as raw:
        raw.open(1)
        limits = {"password": "few-channels", "limits": {"max-channels": 1}}
        admin.apply(put("user", "few-channels", limits, vhost=""))
        raw.send(2, methods.ChannelOpen())
        assert raw.expect(methods.ConnectionClose).reply_code == 530


def test_a_tag_that_is_taken_away_is_gone(members: list[Member], admin: Admin) -> None:
    """R-PUB-3, R-PERM-9: who was an impersonator is none any more, nor an administrator."""
    login = make_user(admin, "actor", tags=["impersonator", "administrator"])
    header = BasicProperties(user_id="somebody").encode()
    standing = Admin(members[1].grpc_port, "actor", "actor")
    revision = standing.call("GetInfo", admin_pb2.GetInfoRequest()).revision
    request = admin_pb2.WatchTopologyRequest(since_revision=revision)
    watch = standing.call("WatchTopology", request)
    with client(members[1].amqp_port, **login) as raw:
        raw.open(1)
        raw.send(1, methods.ConfirmSelect())
        raw.expect(methods.ConfirmSelectOk)
        raw.send(1, publish(1, "", "nowhere", b"m", header))
        raw.expect(methods.BasicAck)
        admin.apply(put("user", "actor", {"password": "actor", "tags": []}, vhost=""))
        raw.send(1, publish(1, "", "nowhere", b"m", header))
        assert "user_id property set to 'somebody'" in raw.expect(methods.ChannelClose).reply_text
    with pytest.raises(grpc.RpcError) as refused:
        list(watch)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    standing.channel.close()


def test_who_is_deleted_at_another_member_is_sent_away(members: list[Member], admin: Admin) -> None:
    """R-CON-5: connections that are open, with or without channels."""
    login = make_user(admin, "short-lived")
    with (
        client(members[1].amqp_port, **login) as first,
        client(members[2].amqp_port, **login) as second,
    ):
        second.open(1)
        admin.apply(delete("user", "short-lived", vhost=""))
        for raw in (first, second):
            closed = raw.expect(methods.ConnectionClose)
            assert closed.reply_text == "CONNECTION_FORCED - user 'short-lived' is deleted"


@pytest.mark.parametrize("how", ["cleared", "narrowed"])
def test_a_consume_call_ends(members: list[Member], admin: Admin, how: str) -> None:
    """SEC-53, R-PERM-4: with the reason, and what it held is back."""
    name = queue = f"grpc-{how}"
    make_user(admin, name)
    with client(members[0].amqp_port) as raw:
        raw.open(1)
        raw.declare(1, queue, durable=True)
        raw.send(1, publish(1, "", queue, b"m"))
        calls = Client(members[2].grpc_port)
        call = calls.consume(*metadata(name, name), queue=queue, credit=5)
        assert deliveries(call, 1)[0].body == b"m"
        change(admin, name, how)
        assert call.error() == (
            grpc.StatusCode.PERMISSION_DENIED,
            f"read access to queue '{queue}' in vhost '/' refused for user '{name}'",
        )
        eventually(lambda: raw.count(1, queue) == 1, "its message is back")
        calls.channel.close()


def test_a_publish_call_is_refused_behind_what_it_sent(members: list[Member], admin: Admin) -> None:
    """R-PUB-1: what was taken before is confirmed."""
    make_user(admin, "caller")
    calls = Client(members[2].grpc_port)
    call = calls.publish(*metadata("caller", "caller"))
    call.send(batch(publication(1, "nowhere")))
    assert numbers([call.next()], "confirmed") == [1]
    admin.apply(delete("permission", "caller"))
    call.send(batch(publication(2, "nowhere")))
    status, details = call.error()
    assert status is grpc.StatusCode.PERMISSION_DENIED
    assert "write access to exchange 'amq.default'" in details
    calls.channel.close()


def test_consuming_and_losing_the_right_at_the_same_time(
    members: list[Member], admin: Admin
) -> None:
    """R-CS-6: however the two meet, no consumer stands without its right."""
    login = make_user(admin, "racer")
    with client(members[0].amqp_port) as owner:
        owner.open(1)
        owner.declare(1, "raced", durable=True)
        for _ in range(10):
            _race(members[1], admin, login)
        eventually(lambda: _consumer_count(owner, "raced") == 0, "nobody reads it")


def _consumer_count(raw: RawClient, queue: str) -> int:
    raw.send(1, methods.QueueDeclare(0, queue, passive=True))
    return raw.expect(methods.QueueDeclareOk).consumer_count


def _race(member: Member, admin: Admin, login: dict[str, str]) -> None:
    admin.apply(put("permission", "racer", ALL))
    with client(member.amqp_port, capabilities=NOTIFY, **login) as raw:
        raw.open(1)
        answers = admin.call(
            "ApplyTopology",
            iter([admin_pb2.ApplyRequest(operations=[delete("permission", "racer")])]),
        )
        raw.send(1, methods.BasicConsume(0, "raced", "c"))
        list(answers)
        found = _next(raw)
        if isinstance(found, methods.BasicConsumeOk):
            found = _next(raw)
        assert isinstance(found, methods.BasicCancel | methods.ChannelClose), found
        if isinstance(found, methods.ChannelClose):
            raw.send(1, methods.ChannelCloseOk())


def _next(raw: RawClient) -> methods.Method:
    found = raw.next_method()
    assert found is not None
    return found[1]
