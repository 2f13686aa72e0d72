"""Get, declares and exclusive queues of the Messages service, with an AMQP client beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pika
import pytest

from brokerd.rpc.v1 import messages_pb2
from tests.integration.federation_rig import admin
from tests.integration.members import Member, cluster, eventually
from tests.integration.messages_client import (
    Client,
    ask,
    batch,
    credit,
    deliveries,
    metadata,
    numbers,
    publication,
)

pytestmark = pytest.mark.timeout(300)
Value = messages_pb2.Value
Declaration = messages_pb2.QueueDeclaration
Binding = messages_pb2.Binding
#: No UTF-8.
OCTETS = b"q\xff"


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("verbs"), 1) as members:
        yield members[0]


@pytest.fixture
def client(member: Member) -> Iterator[Client]:
    client = Client(member.grpc_port)
    yield client
    client.channel.close()


@pytest.fixture
def channel(member: Member) -> Iterator[Any]:
    connection = member.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


def exists(client: Client, name: str) -> bool:
    try:
        client.call("DeclareQueue", queue=Declaration(name=name, passive=True))
    except grpc.RpcError as error:
        failed: Any = error
        # One that is somebody's exclusively is there.
        return bool(failed.code() is grpc.StatusCode.FAILED_PRECONDITION)
    return True


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_get_takes_messages_for_good(client: Client, channel: Any, kind: str) -> None:
    """R-CS-8."""
    channel.queue_declare("got", durable=True, arguments={"x-queue-type": kind})
    try:
        empty = client.call("Get", queue="got")
        assert (list(empty.deliveries), empty.messages_left) == ([], 0)
        for n in range(5):
            channel.basic_publish("", "got", b"%d" % n, pika.BasicProperties(type="t"))
        one = client.call("Get", queue="got")
        assert ([each.body for each in one.deliveries], one.messages_left) == ([b"0"], 4)
        assert (one.deliveries[0].delivery_tag, one.deliveries[0].properties.type) == (0, "t")
        rest = client.call("Get", queue="got", count=1 << 31)
        assert [each.body for each in rest.deliveries] == [b"1", b"2", b"3", b"4"]
        assert rest.messages_left == 0
        assert channel.queue_declare("got", passive=True).method.message_count == 0
        for _ in range(3):
            channel.basic_publish("", "got", b"x" * 700_000)
        large = client.call("Get", queue="got", count=3)
        assert (len(large.deliveries), large.messages_left) == (2, 1)
        assert client.call("PurgeQueue", name="got").messages == 1
    finally:
        channel.queue_delete("got")


def test_get_is_refused_as_basic_get_is(client: Client, channel: Any) -> None:
    code, text = client.status("Get", queue="none")
    assert code is grpc.StatusCode.NOT_FOUND
    assert "no queue 'none' in vhost '/'" in text
    code, _ = client.status("Get", queue="n" * 256)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    own = channel.queue_declare("", exclusive=True).method.queue
    assert client.status("Get", queue=own)[0] is grpc.StatusCode.FAILED_PRECONDITION
    single = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    channel.queue_declare("single", durable=True, arguments=single)
    assert client.status("Get", queue="single")[0] is grpc.StatusCode.FAILED_PRECONDITION
    channel.queue_delete("single")


def test_a_topology_is_made_and_deleted(client: Client, channel: Any) -> None:
    queue = Declaration(name="made", durable=True, arguments={"x-queue-type": Value(text="quorum")})
    made = client.call("DeclareQueue", queue=queue)
    assert (made.name, made.messages, made.consumers) == ("made", 0, 0)
    again = client.call("DeclareQueue", queue=queue)
    assert again.name == "made"
    client.call("DeclareExchange", name="from", type="topic", durable=True)
    client.call("DeclareExchange", name="between", type="headers", durable=True)
    client.call("DeclareExchange", name="from", passive=True)
    through = Binding(source="from", destination="between", to_exchange=True, routing_key="a.*")
    matching = {"x-match": Value(text="all"), "n": Value(integer=1)}
    into = Binding(source="between", destination="made", arguments=matching)
    client.call("Bind", binding=through)
    client.call("Bind", binding=into)
    client.call("Bind", binding=into)
    sent = pika.BasicProperties(headers={"n": 1})
    channel.basic_publish("from", "a.b", b"in", sent, mandatory=True)
    client.call("Unbind", binding=through)
    client.call("Unbind", binding=through)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("from", "a.b", b"out", sent, mandatory=True)
    refused = grpc.StatusCode.INVALID_ARGUMENT
    code, text = client.status("DeleteQueue", name="made", if_empty=True)
    # A quorum queue judges it as well; profiles of RabbitMQ refuse with UNIMPLEMENTED.
    assert code is refused, text
    plain = Declaration(
        name="plain", durable=True, arguments={"x-queue-type": Value(text="classic")}
    )
    client.call("DeclareQueue", queue=plain)
    channel.basic_publish("", "plain", b"in")
    code, text = client.status("DeleteQueue", name="plain", if_empty=True)
    assert code is refused, text
    assert client.call("DeleteQueue", name="plain", if_unused=True).messages == 1
    code, text = client.status("DeleteExchange", name="between", if_unused=True)
    assert code is refused, text
    assert client.call("DeleteQueue", name="made").messages == 1
    assert client.call("DeleteQueue", name="made").messages == 0
    for name in ("from", "between", "between"):
        client.call("DeleteExchange", name=name)


@pytest.mark.parametrize(
    ("method", "fields", "code", "said"),
    [
        ("DeclareQueue", {"queue": Declaration(name="no", passive=True)}, "NOT_FOUND", "no queue"),
        ("DeclareQueue", {"queue": Declaration(exclusive=True)}, "INVALID_ARGUMENT", "Subscribe"),
        ("DeclareQueue", {"queue": Declaration(name="amq.x")}, "PERMISSION_DENIED", "reserved"),
        (
            "DeclareQueue",
            {
                "queue": Declaration(
                    name="k", durable=True, arguments={"x-max-length": Value(text="many")}
                )
            },
            "INVALID_ARGUMENT",
            "x-max-length",
        ),
        (
            "DeclareQueue",
            {"queue": Declaration(name="k", arguments={"x": Value(binary=b"x" * 200_000)})},
            "INVALID_ARGUMENT",
            "bytes of names and arguments",
        ),
        ("DeclareQueue", {"queue": Declaration(name="k" * 256)}, "INVALID_ARGUMENT", "longer"),
        ("DeclareExchange", {"name": "k", "type": "odd"}, "INVALID_ARGUMENT", "unknown exchange"),
        ("DeclareExchange", {"name": "", "type": "direct"}, "PERMISSION_DENIED", "default"),
        ("DeclareExchange", {"name": "amq.direct", "type": "fanout"}, "INVALID_ARGUMENT", "type"),
        ("DeleteExchange", {"name": "amq.direct"}, "PERMISSION_DENIED", ""),
        ("Bind", {"binding": Binding(source="no", destination="no")}, "NOT_FOUND", "no exchange"),
        ("PurgeQueue", {"name": "no"}, "NOT_FOUND", "no queue"),
    ],
)
def test_what_amqp_refuses_is_refused(
    client: Client, method: str, fields: dict[str, Any], code: str, said: str
) -> None:
    found, text = client.status(method, **fields)
    assert found.name == code, text
    assert said in text


def test_rights_are_those_of_amqp_and_changes_are_noted(client: Client, member: Member) -> None:
    """R-PERM-1."""
    who = metadata("reader", "secret")
    rights = {"configure": "^$", "write": "^$", "read": "^may$"}
    with admin(member) as settings:
        settings.put("user", "reader", {"password": "secret", "tags": []}, vhost="")
        settings.put("permission", "reader", rights)
        denied = grpc.StatusCode.PERMISSION_DENIED
        client.call("DeclareQueue", queue=Declaration(name="may", durable=True))
        assert client.status("DeclareQueue", *who, queue=Declaration(name="may"))[0] is denied
        assert client.status("DeleteQueue", *who, name="may")[0] is denied
        assert client.status("DeclareExchange", *who, name="e", type="fanout")[0] is denied
        bound = Binding(source="amq.fanout", destination="may")
        assert client.status("Bind", *who, binding=bound)[0] is denied
        own = client.consume(*who, declare=Declaration(exclusive=True))
        assert own.error()[0] is denied
        assert client.call("PurgeQueue", *who, name="may").messages == 0
        assert not client.call("Get", *who, queue="may").deliveries
        elsewhere = metadata(vhost="nowhere")
        assert client.status("Get", *elsewhere, queue="may")[0] is denied
        client.call("DeleteQueue", name="may")
        settings.delete("user", "reader", vhost="")
    noted = [
        ("guest", "put"),
        ("reader", "purge"),
        ("guest", "delete"),
    ]

    def found() -> bool:
        path = member.data_dir / "audit.log"
        lines = path.read_text().splitlines() if path.exists() else []
        records = [record for record in map(json.loads, lines) if record.get("name") == "may"]
        return [(each["user"], each["action"]) for each in records] == noted

    eventually(found, "the records of the audit log")


def test_names_of_any_octets_can_be_used(client: Client) -> None:
    declared = client.call("DeclareQueue", queue=Declaration(raw_name=OCTETS, durable=True))
    assert (declared.name, declared.raw_name) == ("q\ufffd", OCTETS)
    bound = Binding(source="amq.direct", raw_destination=OCTETS, raw_routing_key=b"\xfe")
    client.call("Bind", binding=bound)
    sent = publication(1, "", b"in", exchange="amq.direct", raw_routing_key=b"\xfe")
    assert numbers([client.publish_batch(batch(sent, publication(2, "")))], "confirmed") == [1, 2]
    consumer = client.consume(raw_queue=OCTETS, credit=1)
    assert deliveries(consumer, 1)[0].body == b"in"
    assert consumer.subscribed.raw_queue == OCTETS
    consumer.rest()
    assert client.call("Get", raw_queue=OCTETS).deliveries[0].redelivered
    assert client.call("DeleteQueue", raw_name=OCTETS).messages == 0


def answer(channel: Any, queue: str) -> None:
    """Answer the next question by AMQP."""

    def arrived() -> Any:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        return method and (properties, body)

    properties, body = eventually(arrived, "a question")
    channel.basic_publish(
        "",
        properties.reply_to,
        body.upper(),
        pika.BasicProperties(correlation_id=properties.correlation_id),
    )


def test_a_requester_over_grpc_is_answered_by_amqp(client: Client, channel: Any) -> None:
    channel.queue_declare("questions", durable=True)
    requester = client.consume(
        declare=Declaration(exclusive=True), auto_acknowledge=True, credit=10
    )
    requester.send(ask("drain"))
    assert requester.next().drained.credit == 10
    own = requester.subscribed.queue
    assert own.startswith("amq.gen-")
    requester.send(credit(1))
    properties = messages_pb2.Properties(reply_to=own, correlation_id="7")
    client.publish_batch(batch(publication(1, "questions", b"why", properties=properties)))
    answer(channel, "questions")
    (reply,) = deliveries(requester, 1)
    assert (reply.body, reply.properties.correlation_id) == (b"WHY", "7")
    # It is the call's, and nobody else's.
    assert client.status("Get", queue=own)[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert requester.rest() == []
    assert not exists(client, own)
    channel.queue_delete("questions")


def test_a_requester_over_amqp_is_answered_by_grpc(client: Client, channel: Any) -> None:
    """R-DRT-3."""
    client.call("DeclareQueue", queue=Declaration(name="asked", durable=True))
    found: list[bytes] = []
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *got: found.append(got[3]), auto_ack=True)
    channel.basic_publish(
        "", "asked", b"how", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
    )
    (question,) = client.call("Get", queue="asked").deliveries
    reply = publication(1, question.properties.reply_to, b"so", mandatory=True)
    assert not client.publish_batch(batch(reply)).returned

    def heard() -> bool:
        channel.connection.process_data_events(0.05)
        return found == [b"so"]

    eventually(heard, "the reply")
    client.call("DeleteQueue", name="asked")


def test_an_exclusive_queue_goes_with_a_client_that_is_gone(client: Client, channel: Any) -> None:
    consumer = client.consume(
        declare=Declaration(name="own", exclusive=True),
        bindings=[Binding(source="amq.topic", routing_key="a.#")],
        credit=1,
    )
    consumer.send(ask("drain"))
    assert consumer.next().drained.credit == 1
    consumer.send(credit(1))
    channel.basic_publish("amq.topic", "b", b"other")
    channel.basic_publish("amq.topic", "a.b", b"mine")
    assert deliveries(consumer, 1)[0].body == b"mine"
    assert exists(client, "own")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="RESOURCE_LOCKED"):
        channel.queue_declare("own", passive=True)
    consumer.cancel()
    eventually(lambda: not exists(client, "own"), "the end of the queue")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"queue": "q", "declare": Declaration()}, "INVALID_ARGUMENT"),
        ({"queue": "q", "bindings": [Binding(source="amq.topic")]}, "INVALID_ARGUMENT"),
        (
            {
                "declare": Declaration(name="own-2", exclusive=True),
                "bindings": [Binding(source="amq.topic", destination="q")],
            },
            "INVALID_ARGUMENT",
        ),
        (
            {
                "declare": Declaration(name="own-2", exclusive=True),
                "bindings": [Binding(source="no")],
            },
            "NOT_FOUND",
        ),
        ({"declare": Declaration(name="no", passive=True)}, "NOT_FOUND"),
    ],
)
def test_a_subscription_that_cannot_be_leaves_no_queue(
    client: Client, fields: dict[str, Any], code: str
) -> None:
    found, text = client.consume(**fields).error()
    assert found.name == code, text
    assert not exists(client, "own-2")
