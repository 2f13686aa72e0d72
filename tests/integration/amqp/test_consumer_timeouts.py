"""Consumers that hold messages for too long (R-QQ-22, scope queue)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerd.amqp import methods
from brokerd.amqp.values import Table
from tests.integration.members import Member, cluster, eventually
from tests.integration.raw_client import RawClient, client, publish

pytestmark = pytest.mark.timeout(240)

QUORUM: Table = {"x-queue-type": "quorum"}
TIMEOUT_MS = 1500
ARGUMENTS: Table = {"x-consumer-timeout": TIMEOUT_MS}


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("timeouts"), 1) as [member]:
        yield member


def hold_one(raw: RawClient, queue: str, arguments: Table = QUORUM) -> int:
    """Consume a queue with one message and take it; return its tag."""
    raw.open(1)
    raw.open(2)
    raw.declare(2, queue, durable=True, arguments=arguments)
    raw.send(2, publish(2, "", queue, b"m"))
    raw.send(1, methods.BasicConsume(0, queue, "slow", arguments=ARGUMENTS))
    raw.expect(methods.BasicConsumeOk)
    delivered, _, _ = raw.content(methods.BasicDeliver)
    return delivered.delivery_tag


def test_a_classic_queue_ends_a_consumer_that_asked_for_it(member: Member) -> None:
    """R-QQ-22: the message is ready again, the consumer is told."""
    with client(member.amqp_port, capabilities={"consumer_cancel_notify": True}) as raw:
        hold_one(raw, "classic", {})
        assert raw.expect(methods.BasicCancel).consumer_tag == "slow"
        eventually(lambda: raw.count(2, "classic") == 1, "the message is back")


def test_a_classic_queues_argument_holds_for_what_was_got(member: Member) -> None:
    """R-QQ-22"""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.open(2)
        raw.declare(2, "classic-timed", durable=True, arguments=ARGUMENTS)
        raw.send(2, publish(2, "", "classic-timed", b"m"))
        eventually(lambda: raw.count(2, "classic-timed") == 1, "the message is there")
        raw.send(1, methods.BasicGet(0, "classic-timed"))
        raw.content(methods.BasicGetOk)
        closed = raw.expect(methods.ChannelClose)
        assert f"Timeout value used: {TIMEOUT_MS} ms" in closed.reply_text
        raw.send(1, methods.ChannelCloseOk())
        eventually(lambda: raw.count(2, "classic-timed") == 1, "the message is back")


def test_a_client_that_can_be_told_loses_the_consumer_only(member: Member) -> None:
    """R-QQ-22, R-CS-6: the message is ready again, a later ack is ignored, the channel goes on."""
    with client(member.amqp_port, capabilities={"consumer_cancel_notify": True}) as raw:
        tag = hold_one(raw, "told")
        assert raw.expect(methods.BasicCancel).consumer_tag == "slow"
        eventually(lambda: raw.count(2, "told") == 1, "the message is back")
        raw.send(1, methods.BasicAck(tag, False), methods.BasicGet(0, "told"))
        got, _, _ = raw.content(methods.BasicGetOk)
        assert got.redelivered
        raw.send(1, methods.BasicAck(got.delivery_tag, False))
        raw.send(1, methods.BasicConsume(0, "told", "slow", arguments=ARGUMENTS))
        raw.expect(methods.BasicConsumeOk)


def test_a_channel_that_holds_what_it_got_for_too_long_is_closed(member: Member) -> None:
    """R-QQ-22: as RabbitMQ 4.3.6, a basic.get too; the message goes to the next."""
    with client(member.amqp_port, capabilities={"consumer_cancel_notify": True}) as raw:
        raw.open(1)
        raw.open(2)
        raw.declare(2, "got", durable=True, arguments=QUORUM | ARGUMENTS)
        raw.send(2, publish(2, "", "got", b"m"))
        eventually(lambda: raw.count(2, "got") == 1, "the message is there")
        raw.send(1, methods.BasicGet(0, "got"))
        raw.content(methods.BasicGetOk)
        closed = raw.expect(methods.ChannelClose)
        assert (closed.reply_code, closed.class_id, closed.method_id) == (406, 0, 0)
        assert f"Timeout value used: {TIMEOUT_MS} ms" in closed.reply_text
        raw.send(1, methods.ChannelCloseOk())
        eventually(lambda: raw.count(2, "got") == 1, "the message is back")


def test_a_client_that_cannot_be_told_loses_the_channel(member: Member) -> None:
    """R-QQ-22, R-CS-9."""
    with client(member.amqp_port) as raw:
        hold_one(raw, "untold")
        closed = raw.expect(methods.ChannelClose)
        assert (closed.reply_code, closed.class_id, closed.method_id) == (406, 0, 0)
        assert closed.reply_text.startswith(
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. "
            f"Timeout value used: {TIMEOUT_MS} ms."
        )
        eventually(lambda: raw.count(2, "untold") == 1, "the message is back")


@pytest.mark.parametrize(
    ("queue_type", "value", "text"),
    [
        ("classic", -1, ": {value_negative,-1}"),
        ("quorum", "soon", ': "expected integer, got longstr"'),
        ("quorum", -1, ": {value_negative,-1}"),
    ],
)
def test_wrong_timeouts_are_refused(
    member: Member, queue_type: str, value: object, text: str
) -> None:
    """R-CS-5, R-QQ-22."""
    queue = f"wrong-{queue_type}"
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.declare(1, queue, durable=True, arguments={"x-queue-type": queue_type})
        wrong: Table = {"x-consumer-timeout": value}  # type: ignore[dict-item]
        raw.send(1, methods.BasicConsume(0, queue, "c", arguments=wrong))
        closed = raw.expect(methods.ChannelClose)
        assert (closed.reply_code, closed.class_id, closed.method_id) == (406, 60, 20)
        assert closed.reply_text == (
            f"PRECONDITION_FAILED - invalid arg 'x-consumer-timeout' for queue '{queue}' "
            f"in vhost '/'{text}"
        )
