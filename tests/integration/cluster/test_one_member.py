"""One real brokerd process, driven by pika and raw sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.members import REPOSITORY, Member, cluster, eventually
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("one"), 1) as members:
        yield members[0]


@pytest.fixture
def connection(member: Member) -> Iterator[pika.BlockingConnection]:
    connection = member.connect()
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> Any:
    return connection.channel()


QUORUM = {"x-queue-type": "quorum"}


def take(channel: Any, queue: str) -> tuple[Any, Any, bytes]:
    """Get one message, waiting for it."""
    return eventually(
        lambda: (lambda got: got if got[0] is not None else None)(channel.basic_get(queue)),
        f"a message in {queue}",
    )


@pytest.mark.parametrize("arguments", [{}, QUORUM], ids=["classic", "quorum"])
def test_published_messages_come_back_in_order_with_properties(
    channel: Any, arguments: dict[str, str]
) -> None:
    """R-ACK-1, R-PUB-11, R-QQ-11."""
    queue = f"order-{arguments.get('x-queue-type')}"
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.confirm_delivery()
    properties = pika.BasicProperties(
        content_type="text/plain", headers={"a": 1, "b": [True, "x"]}, message_id="m", timestamp=7
    )
    for i in range(20):
        channel.basic_publish("", queue, b"%d" % i, properties, mandatory=True)
    for i in range(20):
        method, got, body = take(channel, queue)
        assert body == b"%d" % i
        assert method.delivery_tag == i + 1
        assert not method.redelivered
        assert (got.content_type, got.headers, got.message_id, got.timestamp) == (
            "text/plain",
            {"a": 1, "b": [True, "x"]},
            "m",
            7,
        )
    channel.basic_ack(0, multiple=True)
    channel.queue_delete(queue)


@pytest.mark.parametrize(
    ("kind", "key", "binding", "arguments", "headers"),
    [
        ("direct", "k", "k", {}, {}),
        ("fanout", "whatever", "", {}, {}),
        ("topic", "a.b.c", "a.#", {}, {}),
        ("headers", "", "", {"x-match": "all", "kind": "pdf"}, {"kind": "pdf"}),
    ],
)
def test_each_exchange_type_routes(
    channel: Any,
    kind: str,
    key: str,
    binding: str,
    arguments: dict[str, str],
    headers: dict[str, str],
) -> None:
    """R-RT-D1, R-RT-F1, R-RT-T1, R-RT-H1."""
    channel.exchange_declare(f"x-{kind}", kind)
    queue = channel.queue_declare("", exclusive=True).method.queue
    assert queue.startswith("amq.gen-")
    channel.queue_bind(queue, f"x-{kind}", binding, arguments)
    channel.basic_publish(f"x-{kind}", key, b"hit", pika.BasicProperties(headers=headers))
    assert take(channel, queue)[2] == b"hit"
    channel.exchange_delete(f"x-{kind}")


def test_exchange_to_exchange_binding_routes(channel: Any) -> None:
    """R-RT-E2, R-RT-5: the delivered exchange is the one published to."""
    channel.exchange_declare("e2e.source", "topic")
    channel.exchange_declare("e2e.target", "fanout")
    channel.exchange_bind("e2e.target", "e2e.source", "a.*")
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "e2e.target")
    channel.basic_publish("e2e.source", "a.b", b"over")
    method, _, body = take(channel, queue)
    assert (method.exchange, method.routing_key, body) == ("e2e.source", "a.b", b"over")


def test_unroutable_mandatory_message_is_returned_then_confirmed(channel: Any) -> None:
    """R-PUB-7, R-PC-4."""
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as returned:
        channel.basic_publish("amq.direct", "nobody", b"lost", mandatory=True)
    [message] = returned.value.messages
    assert (message.method.reply_code, message.method.routing_key) == (312, "nobody")
    channel.basic_publish("amq.direct", "nobody", b"dropped")


def test_alternate_exchange_by_argument_catches_what_no_binding_matches(channel: Any) -> None:
    """R-AE-2, R-AE-5, R-AE-10."""
    channel.exchange_declare("ae.catch", "fanout")
    channel.exchange_declare("ae.main", "direct", arguments={"alternate-exchange": "ae.catch"})
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "ae.catch")
    channel.confirm_delivery()
    channel.basic_publish("ae.main", "unbound", b"caught", mandatory=True)
    method, properties, body = take(channel, queue)
    assert (method.exchange, method.routing_key, body) == ("ae.main", "unbound", b"caught")
    assert not properties.headers


def test_rejected_message_is_dead_lettered_with_its_history(channel: Any) -> None:
    """R-DLX-10, R-DLX-11, R-DLX-22, R-DLX-23."""
    channel.exchange_declare("dead", "fanout")
    dead = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(dead, "dead")
    source = channel.queue_declare(
        "", exclusive=True, arguments={"x-dead-letter-exchange": "dead"}
    ).method.queue
    channel.basic_publish("", source, b"bad", pika.BasicProperties(expiration="60000"))
    method, _, _ = take(channel, source)
    channel.basic_reject(method.delivery_tag, requeue=False)
    method, properties, body = take(channel, dead)
    assert (method.exchange, method.routing_key, body) == ("dead", source, b"bad")
    [death] = properties.headers["x-death"]
    assert (death["count"], death["reason"], death["queue"]) == (1, "rejected", source)
    assert (death["exchange"], death["routing-keys"]) == ("", [source])
    assert death["original-expiration"] == "60000"
    assert properties.expiration is None
    assert properties.headers["x-first-death-reason"] == "rejected"


@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
def test_delivery_limit_ends_a_poison_message(channel: Any, strategy: str) -> None:
    """R-QQ-17, R-DL-3 (limit 2: three deliveries), R-DL-4, R-ALO-1, R-ALO-5."""
    channel.exchange_declare(f"poison-{strategy}", "fanout", durable=True)
    dead, source = f"dead-{strategy}", f"source-{strategy}"
    channel.queue_declare(dead, durable=True, arguments=QUORUM)
    channel.queue_bind(dead, f"poison-{strategy}")
    channel.queue_declare(
        source,
        durable=True,
        arguments=QUORUM
        | {
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": f"poison-{strategy}",
            "x-dead-letter-strategy": strategy,
            "x-overflow": "reject-publish",
        },
    )
    channel.basic_publish("", source, b"poison")
    for delivery in range(3):
        method, properties, _ = take(channel, source)
        assert method.redelivered == (delivery > 0)
        if delivery:
            assert properties.headers["x-delivery-count"] == delivery
        channel.basic_nack(method.delivery_tag, requeue=True)
    _, properties, body = take(channel, dead)
    [death] = properties.headers["x-death"]
    assert (body, death["reason"], death["queue"]) == (b"poison", "delivery_limit", source)
    assert channel.basic_get(source)[0] is None


def test_reject_publish_nacks_over_the_limit(channel: Any) -> None:
    """R-LEN-3, R-PC-6; R-LEN-7: from one over the limit on."""
    channel.queue_declare(
        "full",
        durable=True,
        arguments=QUORUM | {"x-max-length": 2, "x-overflow": "reject-publish"},
    )
    channel.confirm_delivery()
    channel.basic_publish("", "full", b"1")
    channel.basic_publish("", "full", b"2")
    channel.basic_publish("", "full", b"over")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "full", b"3")
    channel.queue_delete("full")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_only_quorum_queues_count_deliveries(channel: Any, kind: str) -> None:
    """R-DL-4, R-DL-11."""
    queue = f"counts-{kind}"
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    channel.basic_publish("", queue, b"m")
    method, _, _ = take(channel, queue)
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, properties, _ = take(channel, queue)
    assert method.redelivered
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, consumed, _ = next(channel.consume(queue, inactivity_timeout=60))
    assert method.redelivered
    if kind == "classic":
        assert not properties.headers
        assert not consumed.headers
    else:
        assert properties.headers["x-acquired-count"] == 1
        assert consumed.headers["x-acquired-count"] == 2
    channel.cancel()
    channel.queue_delete(queue)


def test_unacknowledged_messages_return_when_the_channel_closes(
    connection: pika.BlockingConnection, channel: Any
) -> None:
    """R-ACK-12, R-ACK-8."""
    queue = channel.queue_declare("", exclusive=True).method.queue
    for i in range(3):
        channel.basic_publish("", queue, b"%d" % i)
    second = connection.channel()
    for _ in range(3):
        take(second, queue)
    second.close()
    for i in range(3):
        method, _, body = take(channel, queue)
        assert (body, method.redelivered) == (b"%d" % i, True)


def test_prefetch_limits_what_a_consumer_holds(channel: Any) -> None:
    """R-QOS-2, R-QOS-4."""
    queue = channel.queue_declare("", exclusive=True).method.queue
    for i in range(10):
        channel.basic_publish("", queue, b"%d" % i)
    channel.basic_qos(prefetch_count=3)
    got: list[Any] = []
    channel.basic_consume(queue, lambda _c, method, _p, body: got.append((method, body)))
    eventually(lambda: channel.connection.process_data_events(0.05) or len(got) >= 3, "three")
    channel.connection.process_data_events(0.2)
    assert [body for _, body in got] == [b"0", b"1", b"2"]
    channel.basic_ack(got[-1][0].delivery_tag, multiple=True)
    eventually(lambda: channel.connection.process_data_events(0.05) or len(got) >= 6, "six")


def test_automatic_acknowledgement_takes_everything(channel: Any) -> None:
    """R-QQ-12: no_ack settles by itself, however much there is."""
    queue = channel.queue_declare("", exclusive=True).method.queue
    for i in range(5000):
        channel.basic_publish("", queue, b"%d" % i)
    got: list[bytes] = []
    channel.basic_consume(queue, lambda *args: got.append(args[3]), auto_ack=True)
    eventually(lambda: channel.connection.process_data_events(0.05) or len(got) == 5000, "all")
    assert got == [b"%d" % i for i in range(5000)]
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


@pytest.mark.parametrize(
    ("code", "text", "do"),
    [
        (404, "no exchange 'nope' in vhost '/'", lambda c: c.basic_publish("nope", "", b"")),
        (404, "no queue 'nope' in vhost '/'", lambda c: c.basic_get("nope")),
        (404, "no queue 'nope' in vhost '/'", lambda c: c.queue_declare("nope", passive=True)),
        (403, "reserved prefix 'amq.*'", lambda c: c.exchange_declare("amq.foo")),
        (403, "default exchange", lambda c: c.exchange_delete("")),
        (406, "unknown exchange type 'zz'", lambda c: c.exchange_declare("z", "zz")),
        (406, "unknown delivery tag 9", lambda c: c.basic_ack(9)),
        (
            406,
            "invalid property 'non-durable' for queue 'nd' in vhost '/'",
            lambda c: c.queue_declare("nd", arguments=QUORUM),
        ),
        (
            406,
            "invalid expiration 'soon': no_integer",
            lambda c: c.basic_publish(
                "amq.direct", "", b"", pika.BasicProperties(expiration="soon")
            ),
        ),
        (
            406,
            "user_id property set to 'bob' but authenticated user was 'guest'",
            lambda c: c.basic_publish("amq.direct", "", b"", pika.BasicProperties(user_id="bob")),
        ),
    ],
)
def test_wrong_requests_close_the_channel_with_the_spec_answer(
    connection: pika.BlockingConnection, code: int, text: str, do: Any
) -> None:
    """R-ERR-1, -2, -3, -8, -9, -10, -14, -31, -33, -39, -46."""
    channel, bystander = connection.channel(), connection.channel()
    closed: list[Exception] = []
    channel._impl.add_on_close_callback(lambda _channel, reason: closed.append(reason))
    with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
        do(channel)
    eventually(lambda: connection.process_data_events(0.05) or closed, "the channel is closed")
    [reason] = closed
    assert isinstance(reason, pika.exceptions.ChannelClosedByBroker)
    assert reason.reply_code == code
    assert text in reason.reply_text
    assert bystander.is_open


@pytest.mark.parametrize(
    ("code", "do"),
    [
        (540, lambda c: c.basic_qos(prefetch_size=1)),
        (540, lambda c: c.basic_recover(requeue=False)),
        (530, lambda c: [c._impl.basic_consume("tagged", print, consumer_tag=t) for t in "tt"]),
        (540, lambda c: c.flow(active=False)),
    ],
)
def test_wrong_requests_close_the_connection_with_the_spec_answer(
    member: Member, code: int, do: Any
) -> None:
    """R-ERR-13, -16, -17, -42."""
    connection = member.connect()
    closed: list[Exception] = []
    connection._impl.add_on_close_callback(lambda _connection, reason: closed.append(reason))
    channel = connection.channel()
    channel.queue_declare("tagged", durable=True)
    # pika looks for used tags itself; the second one must reach the broker.
    channel._impl._consumers = _ForgetfulDict()
    with contextlib.suppress(pika.exceptions.ConnectionClosedByBroker):
        do(channel)
        eventually(lambda: connection.process_data_events(0.05) or closed, "it is closed")
    assert closed
    assert isinstance(closed[0], pika.exceptions.ConnectionClosedByBroker)
    assert closed[0].reply_code == code


class _ForgetfulDict(dict[str, Any]):
    def __contains__(self, key: object) -> bool:
        return False


def test_wrong_password_is_refused_with_403_for_clients_that_can_tell(member: Member) -> None:
    """R-CON-5, R-ERR-22."""
    with pytest.raises(pika.exceptions.ProbableAuthenticationError) as refused:
        member.connect(credentials=pika.PlainCredentials("guest", "wrong"))
    assert "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN" in str(
        refused.value
    )


def test_unknown_vhost_is_refused(member: Member) -> None:
    """R-CON-11, R-ERR-20."""
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as refused:
        member.connect(virtual_host="nosuch")
    assert "(530) 'NOT_ALLOWED - vhost nosuch not found'" in str(refused.value)


@pytest.mark.parametrize(
    "attack",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"AMQP\x00\x00\x09\x01" + b"\x01\x00\x00\xff\xff\xff\xff" + b"x" * 100,
        b"AMQP\x00\x00\x09\x01" + b"\x09" * 64,
        b"AMQP\x00\x00\x09\x01" + struct.pack(">BHI", 1, 0, 4) + b"\x00\x0a\x00\x28\xce",
    ],
)
def test_nonsense_before_login_hurts_only_its_sender(member: Member, attack: bytes) -> None:
    """R-CON-2, R-CON-4, SEC-31: others go on meanwhile."""
    bystander = member.connect()
    with socket.create_connection(("127.0.0.1", member.amqp_port), timeout=60) as attacker:
        attacker.sendall(attack)
        channel = bystander.channel()
        assert channel.queue_declare("", exclusive=True).method.queue
        while attacker.recv(4096):
            pass
    bystander.close()


def test_durable_state_survives_a_stop_and_a_kill(tmp_path: Path) -> None:
    """R-EX-9, R-PC-2, G1: confirmed means on disk."""
    with cluster(tmp_path, 1) as [member]:
        connection = member.connect()
        channel = connection.channel()
        channel.exchange_declare("kept", "topic", durable=True)
        for queue, arguments in (("classic", {}), ("quorum", QUORUM)):
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, "kept", "#")
        channel.queue_declare("transient", durable=False)
        channel.confirm_delivery()
        for i in range(50):
            channel.basic_publish("kept", "k", b"%d" % i, mandatory=True)
        for end in (member.kill, member.stop):
            end()
            member.start()
            member.wait_ready()
            channel = member.connect().channel()
            for queue in ("classic", "quorum"):
                assert channel.queue_declare(queue, passive=True).method.message_count == 50
            with pytest.raises(pika.exceptions.ChannelClosedByBroker):
                channel.queue_declare("transient", passive=True)
        channel = member.connect().channel()
        for queue in ("classic", "quorum"):
            for i in range(50):
                assert channel.basic_get(queue, auto_ack=True)[2] == b"%d" % i
        assert member.stop() == 0


@pytest.mark.parametrize("arguments", [{}, QUORUM], ids=["classic", "quorum"])
def test_an_ack_between_gets_is_not_lost(
    member: Member, channel: Any, arguments: dict[str, str]
) -> None:
    """R-ACK-1, ADR 23: the next get takes it along."""
    queue = f"acked-{arguments.get('x-queue-type')}"
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.confirm_delivery()
    for number in range(4):
        channel.basic_publish("", queue, b"%d" % number)
    with member.connect() as other:
        getting = other.channel()
        for number in range(3):
            method, _, body = getting.basic_get(queue)
            assert body == b"%d" % number
            if number < 2:
                getting.basic_ack(method.delivery_tag)
    # What was not acknowledged is back, and nothing else.
    left = [take(channel, queue) for _ in range(2)]
    assert [(body, got.redelivered) for got, _, body in left] == [(b"2", True), (b"3", False)]
    assert channel.basic_get(queue)[0] is None


def test_a_get_looks_at_what_has_changed_since_the_last_one(member: Member, channel: Any) -> None:
    """R-ERR-2, R-CS-8: the channel remembers where its gets go, and no longer than that holds."""
    channel.queue_declare("looked-at")
    channel.basic_publish("", "looked-at", b"first")
    assert take(channel, "looked-at")[2] == b"first"
    other = channel.connection.channel()
    other.queue_delete("looked-at")
    other.queue_declare("looked-at", durable=True, arguments=QUORUM)
    other.basic_publish("", "looked-at", b"second")
    assert take(channel, "looked-at")[2] == b"second"
    assert channel.basic_get("looked-at", auto_ack=True)[0] is None
    other.queue_delete("looked-at")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue 'looked-at'"):
        channel.basic_get("looked-at")


def test_a_second_member_on_the_same_data_is_told_what_it_needs(member: Member) -> None:
    command = [sys.executable, "-m", "brokerd", "serve", "--node-name", member.name]
    done = subprocess.run(
        [*command, "--data-dir", str(member.data_dir), "--bind", "127.0.0.1"],
        env=os.environ | member.env | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 78
    assert "is in use by another process" in done.stderr
    assert "--node-name and --port-offset" in done.stderr
    member.connect().close()


def test_a_bad_file_of_the_administrators_password_ends_the_start(tmp_path: Path) -> None:
    """The last line says which setting and what is wrong with the file; nothing was founded."""
    names = ("AMQP", "GRPC", "PEER", "HTTP", "MANAGEMENT")
    ports = zip(names, free_ports(len(names)), strict=True)
    command = [sys.executable, "-m", "brokerd", "serve", "--data-dir", str(tmp_path / "data")]
    environment = {
        "PYTHONPATH": str(REPOSITORY),
        "BROKERD_AUTH_ADMIN_USER": "ann",
        "BROKERD_AUTH_ADMIN_PASSWORD_FILE": "/dev/zero",
        **{f"BROKERD_LISTENERS_{name}": str(port) for name, port in ports},
    }
    done = subprocess.run(
        [*command, "--bind", "127.0.0.1"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 78
    assert done.stderr.splitlines()[-1] == (
        "brokerd: auth.admin_password_file: cannot use /dev/zero: it holds more than 4096 bytes"
    )
