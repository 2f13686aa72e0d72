"""Consumers, delivery and prefetch (R-CS, R-QOS), frame by frame where the order counts."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from brokerd.amqp import methods as M
from tests.compat.servers import Closed, Server, closed_by, expect
from tests.integration.members import eventually
from tests.integration.raw_client import RawClient, publish

SENTINEL = M.BasicQos(99, 0, False)
ACCEPTED = Closed("connection", 540, "NOT_IMPLEMENTED - prefetch_size!=0 (99)", (60, 10))
QUORUM = {"x-queue-type": "quorum"}
SAC = {"x-single-active-consumer": True}
TYPES = pytest.mark.parametrize("arguments", [{}, QUORUM], ids=["classic", "quorum"])
CANCELS = {"consumer_cancel_notify": True}


@contextlib.contextmanager
def ready(
    server: Server, vhost: str, arguments: dict[str, Any] | None = None, **settings: Any
) -> Iterator[RawClient]:
    """Channels 1 and 2 are open, queue q is there."""
    with server.raw(vhost, **settings) as raw:
        raw.open(1)
        raw.open(2)
        raw.declare(1, "q", durable=True, arguments=arguments or {})
        yield raw


def fill(raw: RawClient, count: int, queue: str = "q") -> None:
    """Publish messages 0, 1, … and wait until they are ready."""
    before = raw.count(1, queue)
    raw.send(1, *(publish(1, "", queue, bytes([i])) for i in range(count)))
    eventually(lambda: raw.count(1, queue) == before + count, "the messages are ready")


def consume(raw: RawClient, tag: str, channel: int = 1, queue: str = "q", **more: Any) -> str:
    """Start a consumer; return its tag."""
    raw.send(channel, M.BasicConsume(0, queue, tag, **more))
    return raw.expect(M.BasicConsumeOk).consumer_tag


def qos(raw: RawClient, count: int, channel: int = 1, is_global: bool = False) -> None:
    """Set the prefetch."""
    raw.send(channel, M.BasicQos(0, count, is_global))
    raw.expect(M.BasicQosOk)


def deliveries(raw: RawClient, count: int) -> list[tuple[str, int, bytes]]:
    """Return consumer tag, delivery tag and body of the next deliveries."""
    got = [raw.content(M.BasicDeliver) for _ in range(count)]
    return [(method.consumer_tag, method.delivery_tag, body) for method, _, body in got]


def is_quiet(raw: RawClient, channel: int = 1) -> bool:
    """Tell whether nothing was delivered before the answer to a question."""
    raw.send(channel, M.QueueDeclare(0, "q", passive=True))
    found = raw.next_method()
    return found is not None and isinstance(found[1], M.QueueDeclareOk)


# ---- consume, cancel, get -----------------------------------------------------------------------


def test_consumers_without_a_tag_get_one(server: Server, vhost: str) -> None:
    """R-CS-1."""
    with ready(server, vhost) as raw:
        tags = {consume(raw, "") for _ in range(5)}
        assert len(tags) == 5
        assert all(re.fullmatch(r"amq\.ctag-[\w-]{22}", tag) for tag in tags)


def test_a_tag_may_be_used_on_another_channel_and_after_cancel(server: Server, vhost: str) -> None:
    """R-CS-1: it is the channel's."""
    with ready(server, vhost) as raw:
        assert consume(raw, "t") == consume(raw, "t", 2) == "t"
        raw.send(1, M.BasicCancel("t", False))
        assert raw.expect(M.BasicCancelOk).consumer_tag == "t"
        assert consume(raw, "t") == "t"


@TYPES
def test_consume_ok_comes_before_the_first_delivery(
    server: Server, vhost: str, arguments: dict[str, Any]
) -> None:
    """R-CS-1: tags rise from 1, in the order of the queue."""
    with ready(server, vhost, arguments) as raw:
        fill(raw, 5)
        consume(raw, "c")
        assert deliveries(raw, 5) == [("c", i + 1, bytes([i])) for i in range(5)]


def test_cancel_leaves_what_was_delivered(server: Server, vhost: str) -> None:
    """R-CS-3: not requeued, still to be settled."""
    with ready(server, vhost) as raw:
        fill(raw, 2)
        consume(raw, "c")
        deliveries(raw, 2)
        raw.send(1, M.BasicCancel("c", False))
        raw.expect(M.BasicCancelOk)
        assert raw.count(2, "q") == 0
        raw.send(1, M.BasicReject(1, True), M.BasicAck(2, False))
        eventually(lambda: raw.count(2, "q") == 1, "the rejected one is back")


def test_a_cancelled_consumer_gets_nothing_more(server: Server, vhost: str) -> None:
    """R-CS-3."""
    with ready(server, vhost) as raw:
        consume(raw, "c")
        raw.send(1, M.BasicCancel("c", False))
        raw.expect(M.BasicCancelOk)
        fill(raw, 3)
        assert is_quiet(raw)


@TYPES
def test_get_counts_what_is_left(server: Server, vhost: str, arguments: dict[str, Any]) -> None:
    """R-CS-8: prefetch does not matter; it is unacknowledged until settled."""
    with ready(server, vhost, arguments) as raw:
        fill(raw, 3)
        qos(raw, 1)
        left = []
        for tag in (1, 2, 3):
            raw.send(1, M.BasicGet(0, "q", False))
            method, _, body = raw.content(M.BasicGetOk)
            assert (method.delivery_tag, method.redelivered, body) == (tag, False, bytes([tag - 1]))
            assert (method.exchange, method.routing_key) == ("", "q")
            left.append(method.message_count)
        assert left == [2, 1, 0]
        raw.send(1, M.BasicGet(0, "q", False))
        raw.expect(M.BasicGetEmpty)
        raw.send(1, M.BasicNack(3, True, True))
        eventually(lambda: raw.count(2, "q") == 3, "all are back")
        raw.send(1, M.BasicGet(0, "q", True))
        method, _, body = raw.content(M.BasicGetOk)
        assert (method.redelivered, body) == (True, b"\0")


def test_get_and_consume_share_the_tags_of_a_channel(server: Server, vhost: str) -> None:
    """R-CS-8."""
    with ready(server, vhost) as raw:
        fill(raw, 3)
        raw.send(1, M.BasicGet(0, "q", True))
        assert raw.content(M.BasicGetOk)[0].delivery_tag == 1
        qos(raw, 1)
        consume(raw, "c")
        assert deliveries(raw, 1) == [("c", 2, b"\1")]
        raw.send(1, M.BasicGet(0, "q", False))
        assert raw.content(M.BasicGetOk)[0].delivery_tag == 3


# ---- exclusive, cancelled by the server ---------------------------------------------------------


def test_an_exclusive_consumer_is_alone(server: Server, vhost: str) -> None:
    """R-CS-2, R-ERR-12: gets are allowed, and when it is gone others may come."""
    with ready(server, vhost) as raw:
        consume(raw, "x", exclusive=True)
        raw.send(2, M.BasicConsume(0, "q", "y"))
        text = f"ACCESS_REFUSED - queue 'q' in vhost '{vhost}' in exclusive use"
        assert closed_by(raw) == Closed("channel", 403, text, (60, 20))
        raw.send(2, M.ChannelCloseOk())
        raw.open(2)
        raw.send(2, M.BasicGet(0, "q", True))
        raw.expect(M.BasicGetEmpty)
        raw.send(1, M.BasicCancel("x", False))
        raw.expect(M.BasicCancelOk)
        assert consume(raw, "y", 2) == "y"


def test_quorum_queues_take_no_notice_of_exclusive(server: Server, vhost: str) -> None:
    """R-CS-2, O-13."""
    with ready(server, vhost, QUORUM) as raw:
        consume(raw, "x", exclusive=True)
        assert consume(raw, "y", 2) == "y"


def test_single_active_consumer_and_exclusive_exclude_each_other(
    server: Server, vhost: str
) -> None:
    """R-CS-7."""
    with ready(server, vhost, SAC) as raw:
        raw.send(1, M.BasicConsume(0, "q", "x", exclusive=True))
        closed = closed_by(raw)
        assert (closed.level, closed.code, closed.failed) == ("channel", 403, (60, 20))


@TYPES
def test_consumers_hear_that_their_queue_is_deleted(
    server: Server, vhost: str, arguments: dict[str, Any]
) -> None:
    """R-CS-6, R-Q-12."""
    with ready(server, vhost, arguments, capabilities=CANCELS) as raw:
        consume(raw, "c")
        with server.raw(vhost) as other:
            other.open(1)
            other.send(1, M.QueueDelete(0, "q"))
            other.expect(M.QueueDeleteOk)
        cancel = raw.expect(M.BasicCancel)
        assert cancel.consumer_tag == "c"
        raw.send(1, M.BasicCancel("c", False))
        raw.expect(M.BasicCancelOk)


def test_consumers_that_do_not_ask_hear_nothing(server: Server, vhost: str) -> None:
    """R-CS-6."""
    with ready(server, vhost) as raw:
        consume(raw, "c")
        with server.raw(vhost) as other:
            other.open(1)
            other.send(1, M.QueueDelete(0, "q"))
            other.expect(M.QueueDeleteOk)
        raw.declare(2, "q", durable=True)
        assert is_quiet(raw)


# ---- distribution -------------------------------------------------------------------------------


@TYPES
def test_equal_consumers_take_turns(server: Server, vhost: str, arguments: dict[str, Any]) -> None:
    """R-CS-4: one message at a time."""
    with ready(server, vhost, arguments) as raw:
        for tag in ("a", "b", "c"):
            consume(raw, tag)
        tags = []
        for number in range(6):
            raw.send(2, publish(2, "", "q", bytes([number])))
            tags += [tag for tag, _, _ in deliveries(raw, 1)]
        assert sorted(tags) == ["a", "a", "b", "b", "c", "c"]
        assert tags[:3] == tags[3:]


@TYPES
def test_the_highest_priority_comes_first(
    server: Server, vhost: str, arguments: dict[str, Any]
) -> None:
    """R-CS-4: lower ones get what the higher have no room for."""
    with ready(server, vhost, arguments) as raw:
        qos(raw, 2)
        for tag, priority in (("low", -5), ("none", None), ("high", 10)):
            table = {} if priority is None else {"x-priority": priority}
            consume(raw, tag, arguments=table)
        tags = []
        for number in range(6):
            raw.send(2, publish(2, "", "q", bytes([number])))
            tags += [tag for tag, _, _ in deliveries(raw, 1)]
        assert tags == ["high", "high", "none", "none", "low", "low"]


@TYPES
def test_a_consumer_with_room_again_comes_first_again(
    server: Server, vhost: str, arguments: dict[str, Any]
) -> None:
    """R-CS-4, R-QOS-5."""
    with ready(server, vhost, arguments) as raw:
        qos(raw, 1)
        consume(raw, "low")
        consume(raw, "high", arguments={"x-priority": 1})
        raw.send(2, publish(2, "", "q", b"0"))
        assert [tag for tag, _, _ in deliveries(raw, 1)] == ["high"]
        raw.send(2, publish(2, "", "q", b"1"))
        assert [tag for tag, _, _ in deliveries(raw, 1)] == ["low"]
        raw.send(1, M.BasicAck(1, False), M.BasicAck(2, False))
        settled = M.BasicQos(0, 1, False)
        raw.send(1, settled)
        raw.expect(M.BasicQosOk)
        raw.send(2, publish(2, "", "q", b"2"))
        assert [tag for tag, _, _ in deliveries(raw, 1)] == ["high"]


@TYPES
def test_one_of_several_is_active(server: Server, vhost: str, arguments: dict[str, Any]) -> None:
    """R-CS-7: in order of subscription."""
    with ready(server, vhost, arguments | SAC) as raw:
        for tag in ("a", "b", "c"):
            consume(raw, tag)
        for number in range(3):
            raw.send(2, publish(2, "", "q", bytes([number])))
        assert {tag for tag, _, _ in deliveries(raw, 3)} == {"a"}
        raw.send(1, M.BasicAck(3, True), M.BasicCancel("a", False))
        raw.expect(M.BasicCancelOk)
        raw.send(2, publish(2, "", "q", b"x"))
        assert deliveries(raw, 1) == [("b", 4, b"x")]


def test_the_successor_on_a_classic_queue_has_the_highest_priority(
    server: Server, vhost: str
) -> None:
    """R-CS-7: a newcomer never displaces the active one."""
    with ready(server, vhost, SAC) as raw:
        for tag, priority in (("a", 0), ("b", 1), ("c", 5), ("d", 5)):
            consume(raw, tag, arguments={"x-priority": priority})
        raw.send(2, publish(2, "", "q", b"1"))
        assert deliveries(raw, 1) == [("a", 1, b"1")]
        raw.send(1, M.BasicCancel("a", False))
        raw.expect(M.BasicCancelOk)
        raw.send(2, publish(2, "", "q", b"2"))
        assert deliveries(raw, 1) == [("c", 2, b"2")]


# ---- prefetch -----------------------------------------------------------------------------------


@TYPES
def test_prefetch_limits_what_is_unacknowledged(
    server: Server, vhost: str, arguments: dict[str, Any]
) -> None:
    """R-QOS-2, R-QOS-5: acks, nacks and rejects make room."""
    with ready(server, vhost, arguments) as raw:
        fill(raw, 6)
        qos(raw, 2)
        consume(raw, "c")
        assert [body for _, _, body in deliveries(raw, 2)] == [b"\0", b"\1"]
        assert raw.count(2, "q") == 4
        raw.send(1, M.BasicAck(1, False))
        assert deliveries(raw, 1) == [("c", 3, b"\2")]
        raw.send(1, M.BasicReject(2, False))
        assert deliveries(raw, 1) == [("c", 4, b"\3")]
        raw.send(1, M.BasicNack(4, True, False))
        assert deliveries(raw, 2) == [("c", 5, b"\4"), ("c", 6, b"\5")]


def test_prefetch_holds_for_each_consumer_that_comes_later(server: Server, vhost: str) -> None:
    """R-QOS-2: separately; those that are there keep theirs."""
    with ready(server, vhost) as raw:
        qos(raw, 1)
        consume(raw, "one")
        qos(raw, 2)
        consume(raw, "two")
        raw.send(2, *(publish(2, "", "q", bytes([i])) for i in range(6)))
        tags = [tag for tag, _, _ in deliveries(raw, 3)]
        assert sorted(tags) == ["one", "two", "two"]
        eventually(lambda: raw.count(2, "q") == 3, "the rest waits")


def test_a_shared_prefetch_holds_for_a_consumer(server: Server, vhost: str) -> None:
    """R-QOS-3: what has no room stays in the queue."""
    with ready(server, vhost) as raw:
        qos(raw, 3, is_global=True)
        consume(raw, "a")
        raw.send(2, *(publish(2, "", "q", bytes([i])) for i in range(6)))
        assert [body for _, _, body in deliveries(raw, 3)] == [b"\0", b"\1", b"\2"]
        eventually(lambda: raw.count(2, "q") == 3, "the rest waits")
        raw.send(1, M.BasicAck(2, True))
        assert [body for _, _, body in deliveries(raw, 2)] == [b"\3", b"\4"]
        assert raw.count(2, "q") == 1


def test_a_shared_prefetch_holds_for_all_consumers_of_the_channel(
    server: Server, vhost: str
) -> None:
    """R-QOS-3: brokerd takes up to the limit for each of them out of the queue."""
    with ready(server, vhost) as raw:
        qos(raw, 3, is_global=True)
        consume(raw, "a")
        consume(raw, "b")
        raw.send(2, *(publish(2, "", "q", bytes([i])) for i in range(6)))
        deliveries(raw, 3)
        left = expect(server, rabbitmq=3, brokerd=0, difference="D-26")
        eventually(lambda: raw.count(2, "q") == left, "the rest waits")
        assert is_quiet(raw, 2)
        raw.send(1, M.BasicAck(1, False))
        deliveries(raw, 1)
        assert is_quiet(raw, 2)


def test_both_limits_hold(server: Server, vhost: str) -> None:
    """R-QOS-3."""
    with ready(server, vhost) as raw:
        qos(raw, 1)
        qos(raw, 3, is_global=True)
        consume(raw, "a")
        consume(raw, "b")
        raw.send(2, *(publish(2, "", "q", bytes([i])) for i in range(6)))
        assert sorted(tag for tag, _, _ in deliveries(raw, 2)) == ["a", "b"]
        eventually(lambda: raw.count(2, "q") == 4, "the rest waits")


def test_quorum_queues_refuse_a_shared_prefetch(server: Server, vhost: str) -> None:
    """R-QOS-3."""
    with ready(server, vhost, QUORUM) as raw:
        qos(raw, 3, is_global=True)
        raw.send(1, M.BasicConsume(0, "q", "c"))
        text = f"NOT_IMPLEMENTED - queue 'q' in vhost '{vhost}' does not support global qos"
        assert closed_by(raw) == Closed("connection", 540, text, (60, 20))


def test_auto_ack_knows_no_prefetch(server: Server, vhost: str) -> None:
    """R-QOS-4."""
    with ready(server, vhost) as raw:
        fill(raw, 20)
        qos(raw, 1)
        consume(raw, "c", no_ack=True)
        assert [body for _, _, body in deliveries(raw, 20)] == [bytes([i]) for i in range(20)]
        assert raw.count(2, "q") == 0


@TYPES
def test_prefetch_0_does_not_limit(server: Server, vhost: str, arguments: dict[str, Any]) -> None:
    """R-QOS-1."""
    with ready(server, vhost, arguments) as raw:
        fill(raw, 50)
        qos(raw, 1)
        qos(raw, 0)
        consume(raw, "c")
        assert len(deliveries(raw, 50)) == 50


def test_prefetch_65535(server: Server, vhost: str) -> None:
    """R-TEST-8."""
    with ready(server, vhost) as raw:
        fill(raw, 30)
        qos(raw, 65_535)
        consume(raw, "c")
        assert len(deliveries(raw, 30)) == 30


def test_what_is_requeued_is_delivered_to_whom_has_room(server: Server, vhost: str) -> None:
    """R-QOS-5, R-ACK-5."""
    with ready(server, vhost) as raw:
        qos(raw, 1)
        qos(raw, 1, 2)
        consume(raw, "a")
        raw.send(2, publish(2, "", "q", b"x"))
        assert deliveries(raw, 1) == [("a", 1, b"x")]
        consume(raw, "b", 2)
        raw.send(1, M.BasicCancel("a", False))
        raw.expect(M.BasicCancelOk)
        raw.send(1, M.BasicReject(1, True))
        method, _, body = raw.content(M.BasicDeliver)
        assert (method.consumer_tag, method.redelivered, body) == ("b", True, b"x")


def test_consumers_of_a_broken_connection_give_back(server: Server, vhost: str) -> None:
    """R-CH-5, R-ACK-12: in the order they had."""
    with ready(server, vhost) as raw:
        fill(raw, 3)
        with server.raw(vhost) as other:
            other.open(1)
            consume(other, "c")
            deliveries(other, 3)
        eventually(lambda: raw.count(1, "q") == 3, "all are back")
        consume(raw, "d", no_ack=True)
        assert [body for _, _, body in deliveries(raw, 3)] == [b"\0", b"\1", b"\2"]


#: Argument of a consumer, and what follows `invalid arg 'NAME' for queue 'q' in vhost 'V'`; nothing
#: where it is taken.
CONSUMER_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "highest priority": ({"x-priority": 2**31 - 1}, ""),
    "lowest priority": ({"x-priority": -(2**31)}, ""),
    "boolean priority": ({"x-priority": True}, ': "expected integer, got bool"'),
    "fractional priority": ({"x-priority": 1.5}, ': "expected integer, got double"'),
    "unknown": ({"x-nobody": "knows"}, ""),
    "time-out": ({"x-consumer-timeout": 60_000}, ""),
    "filter of a stream": ({"x-stream-filter": "a"}, ""),
    "offset in a stream": ({"x-stream-offset": "first"}, " of queue type rabbit_{}_queue"),
}


@pytest.mark.parametrize("name", CONSUMER_ARGUMENTS)
@TYPES
def test_arguments_of_a_consumer(
    server: Server, vhost: str, arguments: dict[str, Any], name: str
) -> None:
    """R-CS-4, R-CS-5."""
    table, refusal = CONSUMER_ARGUMENTS[name]
    with ready(server, vhost, arguments) as raw:
        raw.send(1, M.BasicConsume(0, "q", "c", arguments=table), SENTINEL)
        [argument] = table
        reason = refusal.format("quorum" if arguments else "classic")
        text = f"PRECONDITION_FAILED - invalid arg '{argument}' for queue 'q' in vhost '{vhost}'"
        refused = Closed("channel", 406, text + reason, (60, 20))
        assert closed_by(raw) == (refused if refusal else ACCEPTED)


@pytest.mark.parametrize(("value", "is_taken"), [(True, True), (False, True), ("yes", False)])
@TYPES
def test_cancel_on_ha_failover(
    server: Server, vhost: str, arguments: dict[str, Any], value: Any, is_taken: bool
) -> None:
    """R-CS-5: nothing fails over; 3.10's quorum queues do not know it."""
    table = {"x-cancel-on-ha-failover": value}
    name = "x-cancel-on-ha-failover"
    start = f"PRECONDITION_FAILED - invalid arg '{name}' for queue 'q' in vhost '{vhost}'"
    wrong = Closed("channel", 406, start + ": {unacceptable_type,longstr}", (60, 20))
    unknown = Closed("channel", 406, start + " of queue type rabbit_quorum_queue", (60, 20))
    with ready(server, vhost, arguments) as raw:
        raw.send(1, M.BasicConsume(0, "q", "c", arguments=table), SENTINEL)
        wanted = ACCEPTED if is_taken else wrong
        if arguments:
            wanted = expect(server, rabbitmq=unknown, brokerd=wanted, difference="D-25")
        assert closed_by(raw) == wanted
