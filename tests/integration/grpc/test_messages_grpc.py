"""The Messages service against a real member, with an AMQP client beside it."""

from __future__ import annotations

import contextlib
import re
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pika
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc, messages_pb2
from tests.integration.federation_rig import admin
from tests.integration.members import Member, cluster, eventually
from tests.integration.messages_client import (
    DEADLINE_S,
    Client,
    ask,
    batch,
    credit,
    deliveries,
    metadata,
    numbers,
    publication,
    settle,
)

pytestmark = pytest.mark.timeout(300)
QUORUM = {"x-queue-type": "quorum"}
Value = messages_pb2.Value
#: R-FRM-8: the same at each door.
MESSAGE_BYTES_MAX = 16 * 1024 * 1024


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("messages"), 1) as members:
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


@contextlib.contextmanager
def queue_of(channel: Any, name: str, **arguments: Any) -> Iterator[str]:
    """Declare a quorum queue for the time of a test."""
    channel.queue_declare(name, durable=True, arguments=QUORUM | arguments)
    try:
        yield name
    finally:
        if channel.is_open:
            channel.queue_delete(name)


def ready(channel: Any, queue: str) -> int:
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def test_every_sequence_comes_back_in_exactly_one_range(client: Client, channel: Any) -> None:
    """R-PC-1, R-PC-2: confirmed when the queue has taken the message over."""
    with queue_of(channel, "ranges") as queue:
        call = client.publish()
        for first in range(1, 2001, 100):
            call.send(batch(*(publication(n, queue, b"x" * n) for n in range(first, first + 100))))
        # Gaps are the client's business.
        call.send(batch(publication(5000, queue), publication(7000, queue)))
        responses = call.rest()
        assert sorted(numbers(responses, "confirmed")) == [*range(1, 2001), 5000, 7000]
        assert numbers(responses, "rejected") == []
        assert ready(channel, queue) == 2002
        # One range stands for many messages.
        assert sum(len(response.confirmed) for response in responses) < 200
        for n in (1, 2, 3):
            assert channel.basic_get(queue, auto_ack=True)[2] == b"x" * n


def test_small_requests_that_come_together_are_one_batch(client: Client, channel: Any) -> None:
    """hot-path.md rule 1: what a request costs must not be what an entry of the log costs."""
    with queue_of(channel, "small") as queue:
        before = _last_index(client, queue)
        call = client.publish()
        for sequence in range(1, 1001):
            call.send(batch(publication(sequence, queue)))
        assert sorted(numbers(call.rest(), "confirmed")) == [*range(1, 1001)]
        assert _last_index(client, queue) - before < 500
        assert ready(channel, queue) == 1000


def test_refused_messages_are_rejected_and_the_others_confirmed(
    client: Client, channel: Any
) -> None:
    """R-PC-3, R-LEN-3."""
    limits = {"x-max-length": 5, "x-overflow": "reject-publish"}
    with queue_of(channel, "full", **limits) as queue:
        call = client.publish()
        call.send(batch(*(publication(n, queue) for n in range(1, 21))))
        responses = call.rest()
        confirmed, rejected = numbers(responses, "confirmed"), numbers(responses, "rejected")
        assert confirmed == list(range(1, len(confirmed) + 1))
        assert sorted(confirmed + rejected) == list(range(1, 21))
        assert ready(channel, queue) == len(confirmed) >= 5
        assert rejected


def test_mandatory_unroutable_message_is_returned_and_confirmed(client: Client) -> None:
    """R-PUB-7, R-PC-4."""
    call = client.publish()
    call.send(batch(publication(3, "nowhere", mandatory=True), publication(4, "nowhere")))
    responses = call.rest()
    returned = [item for response in responses for item in response.returned]
    assert [(item.sequence, item.reply_code, item.reply_text) for item in returned] == [
        (3, 312, "NO_ROUTE")
    ]
    assert numbers(responses, "confirmed") == [3, 4]


def test_each_message_keeps_its_own_properties(client: Client, channel: Any) -> None:
    """What is equal to the message before is read once; what is not, anew."""
    kinds = {
        "none": None,
        "a": messages_pb2.Properties(message_id="a"),
        "b": messages_pb2.Properties(message_id="b"),
        "soon": messages_pb2.Properties(message_id="soon", expiration="600000"),
    }
    order = ["none", "a", "a", "b", "none", "soon", "soon", "none", "a"]
    with queue_of(channel, "own-properties") as queue:
        call = client.publish()
        for first in (0, len(order)):
            call.send(
                batch(
                    *(
                        publication(first + i + 1, queue, kind.encode(), properties=kinds[kind])
                        for i, kind in enumerate(order)
                    )
                )
            )
        assert len(numbers(call.rest(), "confirmed")) == 2 * len(order)
        for kind in 2 * order:
            _, properties, body = channel.basic_get(queue, auto_ack=True)
            expected = (kind, None if kind == "none" else kind)
            assert (body.decode(), properties.message_id) == expected
            assert properties.expiration == ("600000" if kind == "soon" else None)


def test_properties_go_from_grpc_to_amqp_and_back(client: Client, channel: Any) -> None:
    """R-PUB-11."""
    table = messages_pb2.Table(fields={"deep": Value(boolean=True), "void": Value()})
    array = messages_pb2.List(values=[Value(integer=-(2**40)), Value(number=0.5)])
    properties = messages_pb2.Properties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={
            "text": Value(text="ü"),
            "raw": Value(binary=b"\xff\x00"),
            "list": Value(list=array),
            "table": Value(table=table),
        },
        delivery_mode=2,
        priority=5,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    with queue_of(channel, "properties") as queue:
        call = client.publish()
        call.send(batch(publication(1, queue, b"body", properties=properties)))
        call.send(batch(publication(2, queue, b"body", properties=properties)))
        assert numbers(call.rest(), "confirmed") == [1, 2]
        _, seen, body = channel.basic_get(queue, auto_ack=True)
        assert body == b"body"
        # pika cuts doubles to integers.
        assert seen.headers == {
            "text": "ü",
            "raw": b"\xff\x00",
            "list": [-(2**40), 0],
            "table": {"deep": True, "void": None},
        }
        assert (seen.content_type, seen.priority, seen.expiration, seen.timestamp) == (
            "text/plain",
            5,
            "60000",
            1_700_000_000,
        )
        consumer = client.consume(queue=queue, credit=1)
        (delivered,) = deliveries(consumer, 1)
        assert delivered.properties == properties
        assert (delivered.exchange, delivered.routing_key, delivered.redelivered) == (
            "",
            queue,
            False,
        )
        consumer.send(settle("ACCEPT", delivered.delivery_tag))
        assert consumer.rest() == []


def test_octets_of_amqp_that_are_not_utf_8_go_to_grpc_and_back(
    client: Client, channel: Any
) -> None:
    """R-PUB-11: what is said with U+FFFD alone cannot be answered, nor sent on."""
    names = ("message_id", "correlation_id", "reply_to", "type", "cluster_id")
    sent = pika.BasicProperties(
        headers={b"\xfe": 1, "plain": 2},
        priority=0,
        **{name: b"\xff" + name.encode() for name in names},
    )
    channel.exchange_declare("octets", "topic")
    with queue_of(channel, "raw") as queue:
        channel.queue_bind(queue, "octets", b"\xfd.key")
        channel.basic_publish("octets", b"\xfd.key", b"body", sent)
        consumer = client.consume(queue=queue, credit=1)
        (delivered,) = deliveries(consumer, 1)
        consumer.send(settle("ACCEPT", delivered.delivery_tag))
        consumer.rest()
        assert (delivered.routing_key, delivered.raw_routing_key) == ("�.key", b"\xfd.key")
        properties = delivered.properties
        assert properties.message_id == "�message_id"
        assert dict(properties.raw) == {name: b"\xff" + name.encode() for name in names}
        assert [(item.name, item.value.integer) for item in properties.raw_headers] == [
            (b"\xfe", 1)
        ]
        assert properties.HasField("priority")
        call = client.publish()
        call.send(
            batch(
                messages_pb2.Publication(
                    sequence=1,
                    exchange="octets",
                    raw_routing_key=delivered.raw_routing_key,
                    properties=properties,
                    body=b"again",
                )
            )
        )
        assert numbers(call.rest(), "confirmed") == [1]
        _, seen, body = channel.basic_get(queue, auto_ack=True)
        assert body == b"again"
        assert seen.__dict__ == sent.__dict__
    channel.exchange_delete("octets")


@pytest.mark.parametrize(
    ("bad", "code", "text"),
    [
        (publication(2, "k", exchange="missing"), grpc.StatusCode.NOT_FOUND, "no exchange"),
        (publication(1, "k"), grpc.StatusCode.INVALID_ARGUMENT, "sequences must rise"),
        (publication(2, "k" * 256), grpc.StatusCode.INVALID_ARGUMENT, "longer than 255"),
        (
            publication(2, "k", properties=messages_pb2.Properties(expiration="soon")),
            grpc.StatusCode.INVALID_ARGUMENT,
            "expiration",
        ),
        (
            publication(2, "k", properties=messages_pb2.Properties(priority=256)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "priority",
        ),
        (
            publication(2, "k", b"x" * (MESSAGE_BYTES_MAX + 1)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "message size 16777217 is larger than configured max size 16777216",
        ),
        (
            publication(2, "k", properties=messages_pb2.Properties(user_id="somebody")),
            grpc.StatusCode.INVALID_ARGUMENT,
            "user_id",
        ),
    ],
)
def test_a_wrong_publication_ends_the_call_and_what_came_before_is_confirmed(
    client: Client, channel: Any, bad: Any, code: grpc.StatusCode, text: str
) -> None:
    """R-ERR-1, R-ERR-31, R-PUB-3."""
    with queue_of(channel, "before") as queue:
        call = client.publish()
        call.send(batch(publication(1, queue, b"good"), bad))
        assert numbers([call.next()], "confirmed") == [1]
        status, details = call.error()
        assert status is code
        assert text in details
        assert ready(channel, queue) == 1


def test_too_many_publications_in_one_request_are_refused(client: Client) -> None:
    call = client.publish()
    call.send(batch(*(publication(n, "nowhere") for n in range(1, 4098))))
    status, details = call.error()
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert details == "more than 4096 publications in one request"


def test_a_batch_is_answered_with_the_outcome_of_each(client: Client, channel: Any) -> None:
    limit = {"x-queue-type": "classic", "x-max-length": 2, "x-overflow": "reject-publish"}
    with queue_of(channel, "small", **limit) as queue, queue_of(channel, "quorum") as quorum:
        answer = client.publish_batch(
            batch(
                *(publication(n, queue, b"%d" % n) for n in (1, 2, 3)),
                publication(7, "nowhere", mandatory=True),
                publication(9, quorum, b"9"),
            )
        )
        assert numbers([answer], "confirmed") == [1, 2, 7, 9]
        assert numbers([answer], "rejected") == [3]
        assert [(each.sequence, each.reply_code) for each in answer.returned] == [(7, 312)]
        assert (ready(channel, queue), ready(channel, quorum)) == (2, 1)
        # Each call numbers for itself.
        again = client.publish_batch(batch(publication(1, quorum)))
        assert numbers([again], "confirmed") == [1]
        # One of them is wrong: none was published.
        with pytest.raises(grpc.RpcError) as caught:
            client.publish_batch(batch(publication(1, quorum), publication(2, "q", exchange="no")))
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert ready(channel, quorum) == 2


def test_no_more_is_sent_than_there_is_credit_for(client: Client, channel: Any) -> None:
    with queue_of(channel, "credit") as queue:
        for n in range(10):
            channel.basic_publish("", queue, b"%d" % n)
        call = client.consume(queue=queue, credit=3)
        first = deliveries(call, 3)
        assert [item.body for item in first] == [b"0", b"1", b"2"]
        call.send(credit(4))
        second = deliveries(call, 4)
        assert [item.delivery_tag for item in first + second] == [1, 2, 3, 4, 5, 6, 7]
        call.send(settle("ACCEPT", 7, multiple=True))
        # Settling gives no credit; more comes only for credit.
        call.send(credit(1))
        (last,) = deliveries(call, 1)
        assert last.body == b"7"
        call.send(settle("ACCEPT", 8))
        assert call.rest() == []
        eventually(lambda: ready(channel, queue) == 2, "the rest is ready again")


def test_credit_without_settlement_goes_beyond_the_first_window(
    client: Client, channel: Any
) -> None:
    with queue_of(channel, "window") as queue:
        for n in range(30):
            channel.basic_publish("", queue, b"%d" % n)
        call = client.consume(queue=queue, credit=1)
        found = deliveries(call, 1)
        for _ in range(29):
            call.send(credit(1))
            found += deliveries(call, 1)
        assert [item.body for item in found] == [b"%d" % n for n in range(30)]
        call.cancel()
        eventually(lambda: ready(channel, queue) == 30, "all messages are back")


def test_a_subscription_says_that_it_is_active_and_ends_when_it_is_asked_to(
    client: Client, channel: Any
) -> None:
    with queue_of(channel, "verbs") as queue:
        consumer = client.consume(queue=queue, consumer_tag="tag", credit=10)
        consumer.send(ask("drain"))
        # Nothing was there: all of the credit is left, and none of it is good any more.
        assert consumer.next().drained.credit == 10
        assert (consumer.subscribed.queue, consumer.subscribed.consumer_tag) == ("verbs", "tag")
        for n in range(7):
            channel.basic_publish("", queue, b"%d" % n)
        assert ready(channel, queue) == 7
        consumer.send(credit(5))
        consumer.send(ask("drain"))
        found = deliveries(consumer, 5)
        assert consumer.next().HasField("drained")
        consumer.send(credit(1))
        found += deliveries(consumer, 1)
        consumer.send(credit(3))
        found += deliveries(consumer, 1)
        consumer.send(ask("withdraw"))
        assert consumer.next().withdrawn.credit == 2
        channel.basic_publish("", queue, b"7")
        assert ready(channel, queue) == 1
        consumer.send(ask("cancel"))
        assert consumer.next().HasField("cancel_ok")
        assert channel.queue_declare(queue, passive=True).method.consumer_count == 0
        assert [each.body for each in found] == [b"%d" % n for n in range(7)]
        # What it was sent is still its own.
        consumer.send(settle("ACCEPT", found[4].delivery_tag, multiple=True))
        consumer.send(settle("REQUEUE", found[5].delivery_tag))
        eventually(lambda: ready(channel, queue) == 2, "the requeued one")
        assert consumer.rest() == []
        eventually(lambda: ready(channel, queue) == 3, "the rest")


def test_requeued_and_rejected_messages_go_where_amqp_sends_them(
    client: Client, channel: Any
) -> None:
    """R-ACK-4, R-ACK-8, R-DLX-1, R-DL-4."""
    with queue_of(channel, "letters") as letters:
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters}
        with queue_of(channel, "settled", **dead) as queue:
            channel.basic_publish("", queue, b"one")
            channel.basic_publish("", queue, b"two")
            call = client.consume(queue=queue, credit=2)
            assert [item.body for item in deliveries(call, 2)] == [b"one", b"two"]
            call.send(settle("REQUEUE", 1))
            call.send(credit(1))
            (again,) = deliveries(call, 1)
            assert (again.body, again.redelivered) == (b"one", True)
            assert again.properties.headers["x-acquired-count"].integer == 1
            call.send(settle("REJECT", 2, again.delivery_tag))
            assert call.rest() == []
        eventually(lambda: ready(channel, letters) == 2, "two dead letters")
        consumer = client.consume(queue=letters, credit=5, auto_acknowledge=True)
        found = deliveries(consumer, 2)
        deaths = [item.properties.headers["x-death"].list.values[0].table for item in found]
        assert {death.fields["reason"].text for death in deaths} == {"rejected"}
        assert consumer.rest() == []


def test_auto_acknowledged_messages_are_gone_once_sent(client: Client, channel: Any) -> None:
    with queue_of(channel, "auto") as queue:
        for _ in range(50):
            channel.basic_publish("", queue, b"x")
        call = client.consume(queue=queue, credit=20, auto_acknowledge=True)
        found: list[Any] = []
        while len(found) < 20:
            found += call.next().deliveries
        call.rest()
        eventually(lambda: ready(channel, queue) == 30, "what was not sent is still there")


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (settle("ACCEPT", 9), grpc.StatusCode.FAILED_PRECONDITION, "unknown delivery tag 9"),
        (
            messages_pb2.ConsumeRequest(subscribe=messages_pb2.Subscribe(queue="mistakes")),
            grpc.StatusCode.INVALID_ARGUMENT,
            "first request",
        ),
        (messages_pb2.ConsumeRequest(), grpc.StatusCode.INVALID_ARGUMENT, "empty"),
        (settle("ACCEPT", multiple=True), grpc.StatusCode.INVALID_ARGUMENT, "0 means all"),
    ],
)
def test_mistakes_of_a_consumer_end_the_call_and_return_its_messages(
    client: Client, channel: Any, request_: Any, code: grpc.StatusCode, text: str
) -> None:
    """R-ACK-2, R-ACK-12."""
    with queue_of(channel, "mistakes") as queue:
        channel.basic_publish("", queue, b"x")
        call = client.consume(queue=queue, credit=1)
        deliveries(call, 1)
        call.send(request_)
        status, details = call.error()
        assert status is code
        assert text in details
        eventually(lambda: ready(channel, queue) == 1, "the message is back")


def test_a_consumer_is_told_when_its_queue_is_deleted(client: Client, channel: Any) -> None:
    """R-CS-6: and not by whom."""
    with queue_of(channel, "gone") as queue:
        call = client.consume(queue=queue, credit=1)
        eventually(
            lambda: channel.queue_declare(queue, passive=True).method.consumer_count == 1,
            "the consumer is there",
        )
    response = call.next()
    assert response.cancelled == "queue deleted"
    assert call.rest() == []


def test_consuming_what_is_not_there_or_not_ours_is_refused(client: Client, channel: Any) -> None:
    """R-ERR-2, R-Q-9."""
    exclusive = channel.queue_declare("", exclusive=True).method.queue
    for queue, code in (
        ("no such queue", grpc.StatusCode.NOT_FOUND),
        (exclusive, grpc.StatusCode.FAILED_PRECONDITION),
        ("q" * 256, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        assert client.consume(queue=queue, credit=1).error()[0] is code


def test_logins_vhosts_and_permissions_are_checked(
    client: Client, channel: Any, member: Member
) -> None:
    """R-CON-5, R-CON-11, R-PERM-1."""
    denied, unknown = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
    wrong = client.consume(*metadata(password="wrong"), queue="q", credit=1)
    assert wrong.error()[0] is unknown
    anonymous = client.publish(("vhost", "/"))
    assert anonymous.error()[0] is unknown
    elsewhere = client.publish(*metadata(vhost="nowhere"))
    status, details = elsewhere.error()
    assert status is denied
    assert "vhost nowhere not found" in details
    with admin(member) as settings:
        settings.put("vhost", "größe", {}, vhost="")
        settings.put(
            "permission", "guest", {"configure": "", "write": ".*", "read": ""}, vhost="größe"
        )
        there = client.publish(*metadata(), ("vhost-bin", "größe".encode()))
        there.send(batch(publication(1, "nowhere", mandatory=True)))
        (response,) = there.rest()
        assert numbers([response], "confirmed") == [1]
        settings.delete("vhost", "größe", vhost="")
    umlaut = client.publish(*metadata(), ("vhost-bin", "größe".encode()))
    status, details = umlaut.error()
    assert status is denied
    assert "vhost größe not found" in details
    unreadable: tuple[str, str | bytes] = ("vhost-bin", b"\xff")
    for sent in (metadata(), metadata(vhost="/")):
        status, details = client.publish(*sent, unreadable).error()
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert "vhost-bin" in details


def test_probes_see_a_member_without_a_login(client: Client) -> None:
    stub: Any = health_pb2_grpc.HealthStub(client.channel)
    for service in ("", "brokerd.v1.Messages"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_an_alarm_holds_publishers_back_and_lets_consumers_go_on(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """R-ALM-2: in listings, metrics and the log, too."""
    folder = tmp_path_factory.mktemp("alarm")
    with cluster(folder, 1, BROKERD_MEMORY_INTERVAL_MS="50") as (one,):
        connection = one.connect()
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments=QUORUM)
        client = Client(one.grpc_port)
        publisher = client.publish()
        publisher.send(batch(publication(1, "q")))
        assert numbers([publisher.next()], "confirmed") == [1]
        _set_watermark(client, "1kB")
        publisher.send(batch(publication(2, "q")))
        consumer = client.consume(queue="q", credit=5)
        eventually(lambda: _calls(one) == ["blocked", "blocking"], "the publisher is blocked")
        assert _blocked_count(one) == 1
        (delivered,) = deliveries(consumer, 1)
        consumer.send(settle("ACCEPT", delivered.delivery_tag))
        eventually(lambda: ready(channel, "q") == 0, "the first message is gone")
        _set_watermark(client, "0.9")
        assert numbers([publisher.next()], "confirmed") == [2]
        assert deliveries(consumer, 1)
        assert (_calls(one), _blocked_count(one)) == (["running", "running"], 0)
        publisher.rest()
        eventually(lambda: _calls(one) == ["running"], "the publisher has gone")
        (row,) = _call_rows(one)
        assert (row["user"], row["vhost"], row["peer_host"]) == ("guest", "/", "127.0.0.1")
        closing = admin_pb2.CloseConnectionRequest(id=row["pid"])
        assert _admin(client).CloseConnection(closing, metadata=metadata()).found
        assert consumer.error()[0] is grpc.StatusCode.ABORTED
        log = one.log()
        assert re.search(r"blocking publishers: .*; first is gRPC 127\.0\.0\.1:\d+ user=guest", log)
        client.channel.close()
        connection.close()


def _call_rows(member: Member) -> list[dict[str, Any]]:
    with admin(member) as settings:
        return [row for row in settings.rows("connections") if row["protocol"] == "gRPC"]


def _calls(member: Member) -> list[str]:
    """Return the states of the calls in listings, those of publishers that wait with the reason."""
    rows = _call_rows(member)
    for row in rows:
        is_blocked = row["state"] == "blocked"
        assert row["blocked_reason"] == ("low on memory" if is_blocked else "")
        assert row["blocked_by"] == (["n0"] if is_blocked else [])
        assert (row["blocked_since"] is not None) == is_blocked
    return [row["state"] for row in rows]


def _blocked_count(member: Member) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{member.http_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = 'brokerd_connections_blocked{reason="memory"} '
    return int(next(float(line.removeprefix(name)) for line in lines if line.startswith(name)))


def _admin(client: Client) -> Any:
    return admin_pb2_grpc.AdminStub(client.channel)  # type: ignore[no-untyped-call]


def _last_index(client: Client, queue: str) -> int:
    request = admin_pb2.QuorumStatusRequest(vhost="/", name=queue)
    return int(_admin(client).QuorumStatus(request, metadata=metadata()).members[0].last_index)


def _set_watermark(client: Client, value: str) -> None:
    _admin(client).SetSettings(
        admin_pb2.SetSettingsRequest(settings={"vm_memory_high_watermark": value}),
        metadata=metadata(),
    )


def test_consumers_and_publishers_survive_the_loss_of_the_queues_leader(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """R-QQ-10: nothing is lost, and nothing comes twice to a consumer that stays."""
    with cluster(tmp_path_factory.mktemp("three"), 3) as members:
        connection = members[0].connect()
        channel = connection.channel()
        # The client's member leads the queues it makes, so that this one is led by the first.
        channel.queue_declare("q", durable=True, arguments=QUORUM)
        connection.close()
        client = Client(members[1].grpc_port)
        publisher, consumer = client.publish(), client.consume(queue="q", credit=2000)
        publisher.send(batch(*(publication(n, "q", b"%d" % n) for n in range(1, 201))))
        seen = deliveries(consumer, 200)
        members[0].kill()
        publisher.send(batch(*(publication(n, "q", b"%d" % n) for n in range(201, 401))))
        while len(seen) < 400:
            seen += consumer.next().deliveries
        assert [int(item.body) for item in seen] == list(range(1, 401))
        consumer.send(settle("ACCEPT", 0, multiple=True))
        assert consumer.rest() == []
        assert sorted(numbers(publisher.rest(), "confirmed")) == list(range(1, 401))
        client.channel.close()
        connection = members[2].connect()
        count = connection.channel().queue_declare("q", passive=True).method.message_count
        assert count == 0
        connection.close()


def test_what_a_member_that_stops_has_taken_is_confirmed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """What is published again after a restart, since it has no answer, doubles nothing."""
    in_flight, size = 1000, 100
    with cluster(tmp_path_factory.mktemp("stops"), 1) as (one,):
        connection = one.connect()
        connection.channel().queue_declare("q", durable=True, arguments=QUORUM)
        connection.close()
        client = Client(one.grpc_port)
        call = client.publish()
        count, confirmed, is_stopping = 0, set[int](), False
        status: Any = None
        while status is None:
            while count - len(confirmed) < in_flight:
                first, count = count + 1, count + size
                call.send(batch(*(publication(n, "q") for n in range(first, count + 1))))
            try:
                confirmed.update(numbers([call.next()], "confirmed"))
            except grpc.RpcError as error:
                status = error
            if count >= 2 * in_flight and not is_stopping:
                is_stopping = True
                assert one.process is not None
                one.process.send_signal(signal.SIGTERM)
        assert status.code() is grpc.StatusCode.UNAVAILABLE
        assert "this member stops" in status.details()
        call.half_close()
        client.channel.close()
        assert one.stop() == 0
        # Some were on the way: else this shows nothing.
        assert len(confirmed) < count
        one.start()
        one.wait_ready()
        connection = one.connect()
        channel = connection.channel()
        assert ready(channel, "q") == len(confirmed)
        client = Client(one.grpc_port)
        call = client.publish()
        again = sorted(set(range(1, count + 1)) - confirmed)
        for first in range(0, len(again), size):
            call.send(batch(*(publication(n, "q") for n in again[first : first + size])))
        assert sorted(numbers(call.rest(), "confirmed")) == again
        assert ready(channel, "q") == count
        client.channel.close()
        connection.close()


def test_what_is_settled_when_a_member_stops_does_not_come_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """And what is not comes at once: not after the time that a dead member's consumers have."""
    with cluster(tmp_path_factory.mktemp("settled"), 1) as (one,):
        connection = one.connect()
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments=QUORUM)
        for n in range(100):
            channel.basic_publish("", "q", b"%d" % n)
        connection.close()
        client = Client(one.grpc_port)
        call = client.consume(queue="q", credit=100)
        eventually(lambda: _unsettled(one) == 100, "all are at the consumer")
        call.send(settle("ACCEPT", 60, multiple=True))
        eventually(lambda: _unsettled(one) == 40, "the queue knows")
        assert one.process is not None
        one.process.send_signal(signal.SIGTERM)
        assert call.error()[0] is grpc.StatusCode.UNAVAILABLE
        client.channel.close()
        assert one.stop() == 0
        one.start()
        one.wait_ready()
        client = Client(one.grpc_port)
        consumer = client.consume(queue="q", credit=100)
        eventually(lambda: _unsettled(one) == 40, "the rest is at the next consumer", 30)
        found = deliveries(consumer, 40)
        assert [(int(item.body), item.redelivered) for item in found] == [
            (n, True) for n in range(60, 100)
        ]
        consumer.rest()
        client.channel.close()


def _unsettled(member: Member) -> int:
    with admin(member) as settings:
        (row,) = settings.rows("queues")
    return int(row["messages_unacknowledged"])


def test_pika_reads_what_grpc_published_to_an_exchange(client: Client, channel: Any) -> None:
    """R-RT-T1: the same exchanges, bindings and headers."""
    channel.exchange_declare("rpc.topic", "topic")
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "rpc.topic", "a.*")
    call = client.publish()
    call.send(batch(publication(1, "a.b", b"hit", exchange="rpc.topic")))
    call.send(batch(publication(2, "b.a", b"miss", exchange="rpc.topic")))
    # What no queue takes may be confirmed before what one has to store.
    assert sorted(numbers(call.rest(), "confirmed")) == [1, 2]
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert (method.routing_key, properties, body) == ("a.b", pika.BasicProperties(), b"hit")
    assert channel.basic_get(queue) == (None, None, None)
    channel.exchange_delete("rpc.topic")
