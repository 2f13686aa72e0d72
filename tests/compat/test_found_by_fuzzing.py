"""What the differential fuzzer has found and was put right: the same test against both servers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from brokerd.amqp import methods
from brokerd.amqp.properties import BasicProperties
from tests.compat.servers import Closed, Server, closed_by, expect
from tests.integration import raw_client
from tests.integration.members import eventually
from tests.integration.raw_client import RawClient

#: Expires when nobody takes it.
AT_ONCE = BasicProperties(expiration="0")
#: Redeclared with everything at once, the first difference is told, in this order.
CLASSIC_ORDER = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
)
QUORUM_ORDER = (
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-overflow",
    "x-single-active-consumer",
    "x-queue-type",
    "x-quorum-initial-group-size",
    "x-delivery-limit",
    "x-message-ttl",
)
VALUES: dict[str, Any] = {
    "x-expires": 1_000_000,
    "x-message-ttl": 600_000,
    "x-dead-letter-exchange": "a",
    "x-dead-letter-routing-key": "b",
    "x-dead-letter-strategy": "at-most-once",
    "x-max-length": 3,
    "x-max-length-bytes": 7,
    "x-max-in-memory-length": 1,
    "x-max-in-memory-bytes": 2,
    "x-max-priority": 3,
    "x-overflow": "drop-head",
    "x-queue-mode": "lazy",
    "x-queue-version": 2,
    "x-single-active-consumer": True,
    "x-quorum-initial-group-size": 1,
    "x-delivery-limit": 3,
}


def _reopened(raw: RawClient) -> str:
    """Take the error of the channel and open it again; return the error's text."""
    closed = closed_by(raw)
    assert closed.level == "channel"
    raw.send(1, methods.ChannelCloseOk())
    raw.open(1)
    return closed.text


@pytest.mark.parametrize(
    ("kind", "other", "order"),
    [("classic", "quorum", CLASSIC_ORDER), ("quorum", "classic", QUORUM_ORDER)],
)
def test_a_redeclaration_is_compared_by_what_the_queues_own_type_knows(
    server: Server, vhost: str, kind: str, other: str, order: tuple[str, ...]
) -> None:
    """R-Q-4, R-Q-5: in the order of the type that is there; what only another knows is ignored."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True, arguments={"x-queue-type": kind})
        arguments = {**VALUES, "x-queue-type": other, "x-unknown": 1}
        told = []
        for _ in order:
            raw.send(1, methods.QueueDeclare(queue="q", durable=True, arguments=arguments))
            name = _reopened(raw).partition("inequivalent arg '")[2].partition("'")[0]
            told.append(name)
            del arguments[name]
            if name == "x-queue-type":
                arguments[name] = kind
        assert tuple(told) == order
        raw.declare(1, "q", durable=True, arguments=arguments)


@pytest.mark.parametrize(
    ("first", "again", "text"),
    [
        ({"x-queue-type": "quorum"}, {}, "received none but current is the value 'quorum'"),
        ({}, {"x-queue-type": "quorum"}, "received the value 'quorum' of type 'longstr'"),
        (
            {"x-queue-type": "classic"},
            {"x-queue-type": "quorum"},
            "received 'quorum' but current is 'classic'",
        ),
    ],
)
def test_another_queue_type_is_told_as_an_argument(
    server: Server, vhost: str, first: dict[str, Any], again: dict[str, Any], text: str
) -> None:
    """R-ERR-6, R-Q-4"""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True, arguments=first)
        raw.send(1, methods.QueueDeclare(queue="q", durable=True, arguments=again))
        assert text in _reopened(raw)


def test_a_wrong_value_is_told_before_an_argument_of_another_type(
    server: Server, vhost: str
) -> None:
    """R-Q-5, R-Q-6"""
    with server.raw(vhost) as raw:
        raw.open(1)
        arguments: dict[str, Any] = {"x-delivery-limit": 3, "x-max-length": -1}
        raw.send(1, methods.QueueDeclare(queue="q", arguments=arguments))
        assert "x-max-length" in _reopened(raw)
        arguments["x-max-length"] = 1
        raw.send(1, methods.QueueDeclare(queue="q", arguments=arguments))
        assert "of queue type rabbit_classic_queue" in _reopened(raw)


@pytest.mark.parametrize("after_a_declare", [False, True])
def test_a_passive_declare_has_no_short_name(
    server: Server, vhost: str, after_a_declare: bool
) -> None:
    """R-CH-10, R-Q-7: the empty name means the queue declared last everywhere else."""
    with server.raw(vhost) as raw:
        raw.open(1)
        if after_a_declare:
            raw.declare(1, "q")
        raw.send(1, methods.QueueDeclare(queue="", passive=True))
        text = f"NOT_FOUND - no queue '' in vhost '{vhost}'"
        assert closed_by(raw) == Closed("channel", 404, text, (50, 10))


def test_what_returns_to_a_full_classic_queue_counts_at_once(server: Server, vhost: str) -> None:
    """R-LEN-11: the oldest goes before the others are handed out again."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", arguments={"x-max-length": 1})
        raw.send(1, methods.BasicConsume(queue="q", consumer_tag="c"))
        raw.expect(methods.BasicConsumeOk)
        raw.send(1, raw_client.publish(1, "", "q", b"one") + raw_client.publish(1, "", "q", b"two"))
        tags = [raw.content(methods.BasicDeliver)[0].delivery_tag for _ in range(2)]
        raw.send(1, methods.BasicNack(tags[-1], multiple=True, requeue=True))
        method, _, body = raw.content(methods.BasicDeliver)
        assert (method.redelivered, body) == (True, b"two")
        raw.send(1, methods.BasicAck(method.delivery_tag))
        assert raw.count(1, "q") == 0


def test_without_a_limit_only_what_was_asked_for_goes_to_the_back(
    server: Server, vhost: str
) -> None:
    """R-DL-7, R-QQ-14: the messages of a channel that ends are served first."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.open(2)
        raw.declare(1, "q", durable=True, arguments={"x-queue-type": "quorum"})
        for body in (b"one", b"two"):
            raw.send(1, raw_client.publish(1, "", "q", body))
        both = partial(eventually, lambda: raw.count(1, "q") == 2, "both are counted")
        both()
        raw.send(2, methods.BasicGet(queue="q"))
        method, _, body = raw.content(methods.BasicGetOk)
        assert body == b"one"
        raw.send(2, methods.BasicReject(method.delivery_tag, requeue=True))
        both()
        raw.send(2, methods.BasicGet(queue="q"))
        assert raw.content(methods.BasicGetOk)[2] == b"two"
        raw.send(2, methods.ChannelClose(200, "bye", 0, 0))
        raw.expect(methods.ChannelCloseOk)
        both()
        raw.send(1, methods.BasicGet(queue="q"))
        method, _, body = raw.content(methods.BasicGetOk)
        assert (method.redelivered, body) == (True, b"two")


def test_a_get_counts_what_is_alive(server: Server, vhost: str) -> None:
    """R-CS-8, R-TTL-2: what had expired behind the message goes when that is taken."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        raw.send(1, raw_client.publish(1, "", "q", b"one"))
        raw.send(1, raw_client.publish(1, "", "q", b"two", AT_ONCE.encode()))
        # RabbitMQ lets the question for the count overtake the publishes.
        eventually(lambda: raw.count(1, "q") == 2, "both are counted")
        raw.send(1, methods.BasicGet(queue="q", no_ack=True))
        method, _, body = raw.content(methods.BasicGetOk)
        assert (method.message_count, body) == (0, b"one")


def test_expired_messages_of_a_higher_priority_wait_for_a_reader(
    server: Server, vhost: str
) -> None:
    """R-PRI-5, R-TTL-2: 3.10 looks at the head only when the queue was empty, and even delivers."""
    waiting = expect(server, rabbitmq=3, brokerd=1, difference="D-203")
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", arguments={"x-max-priority": 5})
        raw.send(1, raw_client.publish(1, "", "q", b"low"))
        eventually(lambda: raw.count(1, "q") == 1, "the first is counted")
        urgent = BasicProperties(expiration="0", priority=5).encode()
        raw.send(1, raw_client.publish(1, "", "q", b"urgent", urgent) * 2)
        eventually(lambda: raw.count(1, "q") == waiting, f"{waiting} are counted")
        raw.send(1, methods.BasicGet(queue="q", no_ack=True))
        body = expect(server, rabbitmq=b"urgent", brokerd=b"low", difference="D-203")
        assert raw.content(methods.BasicGetOk)[2] == body


def test_a_declare_is_answered_though_the_queue_goes_meanwhile(server: Server, vhost: str) -> None:
    """R-Q-3, R-Q-7, R-Q-10: it is there, or it is not; one of the two is said."""
    with server.raw(vhost) as raw, server.raw(vhost) as other:
        other.open(1)
        for _ in range(40):
            raw.open(1)
            raw.declare(1, "q", auto_delete=True)
            raw.send(1, methods.BasicConsume(queue="q", consumer_tag="c", no_ack=True))
            raw.expect(methods.BasicConsumeOk)
            raw.send(1, methods.ChannelClose(200, "bye", 0, 0))
            other.send(1, methods.QueueDeclare(queue="q", passive=True))
            answer = other.next_method()
            assert answer is not None
            if isinstance(answer[1], methods.ChannelClose):
                assert answer[1].reply_code == 404
                other.send(1, methods.ChannelCloseOk())
                other.open(1)
            else:
                assert isinstance(answer[1], methods.QueueDeclareOk)
            raw.expect(methods.ChannelCloseOk)


@pytest.mark.parametrize("name", ["", "q"])
def test_a_queue_type_that_is_none_breaks_nothing(server: Server, vhost: str, name: str) -> None:
    """R-Q-1: of a queue without a name 3.10 makes a connection error of its own failure."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, methods.QueueDeclare(queue=name, arguments={"x-queue-type": "zz"}))
        closed = closed_by(raw)
        answer: tuple[str, int] = ("channel", 406)
        if not name:
            answer = expect(
                server, rabbitmq=("connection", 541), brokerd=answer, difference="D-201"
            )
        assert (closed.level, closed.code) == answer


def test_headers_that_held_only_bcc_stay_as_an_empty_table(server: Server, vhost: str) -> None:
    """R-RT-C2"""
    with server.raw(vhost) as raw:
        raw.open(1)
        header = BasicProperties(headers={"BCC": ["b"]}).encode()
        raw.send(1, raw_client.publish(1, "amq.direct", "a", b"x", header, mandatory=True))
        _, header, _ = raw.content(methods.BasicReturn)
        assert header == BasicProperties(headers={}).encode()


def test_the_order_of_what_had_returned_before(server: Server, vhost: str) -> None:
    """R-ACK-12, R-QQ-14: when the channel of a consumer of a quorum queue ends."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.open(2)
        raw.declare(1, "q", durable=True, arguments={"x-queue-type": "quorum"})
        raw.send(2, methods.BasicConsume(queue="q", consumer_tag="c"))
        raw.expect(methods.BasicConsumeOk)
        for body in (b"one", b"two", b"three"):
            raw.send(1, raw_client.publish(1, "", "q", body))
        tags = [raw.content(methods.BasicDeliver)[0].delivery_tag for _ in range(3)]
        raw.send(2, methods.BasicNack(tags[0], requeue=True))
        assert raw.content(methods.BasicDeliver)[2] == b"one"
        raw.send(2, methods.ChannelClose(200, "bye", 0, 0))
        raw.expect(methods.ChannelCloseOk)
        eventually(lambda: raw.count(1, "q") == 3, "all are back")
        raw.send(1, methods.BasicConsume(queue="q", consumer_tag="d", no_ack=True))
        raw.expect(methods.BasicConsumeOk)
        order = expect(
            server,
            rabbitmq=[b"two", b"three", b"one"],
            brokerd=[b"one", b"two", b"three"],
            difference="D-207",
        )
        assert [raw.content(methods.BasicDeliver)[2] for _ in range(3)] == order
