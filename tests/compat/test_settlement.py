"""Acknowledgements, rejections and what comes back (spec chapter 6.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.amqp import methods
from tests.compat import steps
from tests.compat.servers import Server

Action = Callable[[Any], Any]


def filled(channel: Any, count: int, name: str = "q", **arguments: Any) -> str:
    """Declare a queue with messages m1, m2, …"""
    steps.queue(channel, name, **arguments)
    for i in range(1, count + 1):
        assert steps.publish(channel, "", name, f"m{i}") == "ack"
    return name


def bodies(taken: list[steps.Taken]) -> list[str]:
    return [body.decode() for _, _, body in taken]


def seen(channel: Any, name: str = "q") -> list[tuple[str, bool]]:
    """Take what is ready: body and redelivered flag, in order."""
    return [(body.decode(), bool(m.redelivered)) for m, _, body in steps.drained(channel, name)]


def test_tags_count_from_one_on_each_channel(connection: Any) -> None:
    """R-ACK-1: one sequence for deliver and get, auto-acknowledged ones included."""
    one, two = steps.confirming(connection), connection.channel()
    name = filled(one, 5)
    tags = [steps.take(one, name, ack=ack)[0].delivery_tag for ack in (True, False)]
    tags += [method.delivery_tag for method, _, _ in steps.consumed(one, name, 3)]
    assert tags == [1, 2, 3, 4, 5]
    steps.publish(one, "", name)
    one.basic_cancel(one.consumer_tags[0])
    steps.publish(one, "", name)
    assert steps.take(two, name)[0].delivery_tag == 1


#: What is done on a channel on which tags 1 to 3 are unacknowledged, and the tag that is refused.
BAD_TAGS: dict[str, tuple[Action, int]] = {
    "ack a later tag": (lambda c: c.basic_ack(4), 4),
    "ack twice": (lambda c: (c.basic_ack(2), c.basic_ack(2)), 2),
    "ack 0 alone": (lambda c: c.basic_ack(0), 0),
    "ack a later tag, multiple": (lambda c: c.basic_ack(4, multiple=True), 4),
    "ack a settled tag, multiple": (
        lambda c: (c.basic_ack(2), c.basic_ack(2, multiple=True)), 2
    ),
    "ack below what multiple settled": (
        lambda c: (c.basic_ack(3, multiple=True), c.basic_ack(1)), 1
    ),
    "ack the same multiple twice": (
        lambda c: (c.basic_ack(2, multiple=True), c.basic_ack(2, multiple=True)), 2
    ),
    "nack a later tag": (lambda c: c.basic_nack(9), 9),
    "nack a later tag, multiple": (lambda c: c.basic_nack(9, multiple=True), 9),
    "nack 0 alone": (lambda c: c.basic_nack(0), 0),
    "nack after ack": (lambda c: (c.basic_ack(1), c.basic_nack(1)), 1),
    "reject a later tag": (lambda c: c.basic_reject(4), 4),
    "reject twice": (lambda c: (c.basic_reject(1, False), c.basic_reject(1)), 1),
    "reject 0": (lambda c: c.basic_reject(0), 0),
    "a tag of 64 bits": (lambda c: c.basic_ack(2**63), 2**63),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TAGS)
def test_tags_that_are_refused(connection: Any, case: str) -> None:
    """R-ACK-2, R-ACK-3, R-ACK-11, R-ERR-14, R-TEST-2: 406, and what was unsettled comes back."""
    action, tag = BAD_TAGS[case]
    other = steps.confirming(connection)
    name = filled(other, 3)
    channel = connection.channel()
    for _ in range(3):
        steps.unacked(channel, name)
    answer = steps.refused(channel, action)
    assert answer == ("channel", 406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
    gone = {
        "ack twice": {"m2"},
        "ack a settled tag, multiple": {"m2"},
        "ack below what multiple settled": {"m1", "m2", "m3"},
        "ack the same multiple twice": {"m1", "m2"},
        "nack after ack": {"m1"},
        "reject twice": {"m1"},
    }.get(case, set())
    left = [(body, True) for body in ("m1", "m2", "m3") if body not in gone]
    steps.wait_ready(other, name, len(left))
    assert seen(other) == left


GOOD_TAGS: dict[str, tuple[Action, list[str]]] = {
    "ack each": (lambda c: [c.basic_ack(i) for i in (3, 1, 2)], []),
    "ack one": (lambda c: c.basic_ack(2), ["m1", "m3"]),
    "ack 2 multiple": (lambda c: c.basic_ack(2, multiple=True), ["m3"]),
    "ack 0 multiple": (lambda c: c.basic_ack(0, multiple=True), []),
    "ack 0 multiple twice": (
        lambda c: (c.basic_ack(0, multiple=True), c.basic_ack(0, multiple=True)), []
    ),
    "ack over a gap": (lambda c: (c.basic_ack(2), c.basic_ack(3, multiple=True)), []),
    "nack 0 multiple, drop": (lambda c: c.basic_nack(0, multiple=True, requeue=False), []),
    "nack 2 multiple, requeue": (
        lambda c: (c.basic_nack(2, multiple=True), c.basic_ack(3)), ["m1", "m2"]
    ),
    "nack one, drop": (lambda c: c.basic_nack(1, requeue=False), ["m2", "m3"]),
    "reject one, requeue": (
        lambda c: (c.basic_reject(2), c.basic_ack(0, multiple=True)), ["m2"]
    ),
    "reject one, drop": (lambda c: c.basic_reject(3, requeue=False), ["m1", "m2"]),
    "nothing": (lambda c: None, ["m1", "m2", "m3"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("case", GOOD_TAGS)
def test_what_settlement_leaves(connection: Any, case: str, kind: str) -> None:
    """R-ACK-3, 4, 5, 6, 8, 12: then the channel closes; all that comes back is redelivered."""
    action, left = GOOD_TAGS[case]
    other = steps.confirming(connection)
    name = filled(other, 3, x_queue_type=kind)
    channel = connection.channel()
    for _ in range(3):
        steps.unacked(channel, name)
    action(channel)
    channel.close()
    steps.wait_ready(other, name, len(left))
    came = seen(other)
    if kind == "quorum":
        # R-QQ-14: in order of return, which is another subject.
        came.sort()
    assert came == [(body, True) for body in left]


def test_tag_0_multiple_needs_nothing_unacknowledged(channel: Any) -> None:
    """R-ACK-3."""
    channel.basic_ack(0, multiple=True)
    channel.basic_nack(0, multiple=True)
    steps.queue(channel)


@pytest.mark.parametrize("how", ["auto-acknowledged", "of another channel"])
def test_tags_of_others_are_unknown(connection: Any, how: str) -> None:
    """R-ACK-1, R-ACK-2."""
    publisher, channel = steps.confirming(connection), connection.channel()
    name = filled(publisher, 1)
    steps.take(channel if how == "auto-acknowledged" else publisher, name, ack=True)
    assert steps.refused(channel, lambda c: c.basic_ack(1))[1:] == (
        406,
        "PRECONDITION_FAILED - unknown delivery tag 1",
    )


def test_tags_outlive_their_consumer_and_their_queue(connection: Any) -> None:
    """R-CS-3, R-ACK-10."""
    channel = steps.confirming(connection)
    name = filled(channel, 3)
    steps.consumed(channel, name, 3, consumer_tag="c")
    channel.basic_cancel("c")
    channel.basic_ack(1)
    channel.queue_delete(name)
    channel.basic_ack(2)
    channel.basic_nack(3)
    steps.queue(channel)


def test_classic_queues_put_back_where_it_was(connection: Any) -> None:
    """R-ACK-5: the second of four, while the first is still out."""
    channel = steps.confirming(connection)
    name = filled(channel, 4)
    tags = [steps.unacked(channel, name)[0].delivery_tag for _ in range(3)]
    channel.basic_nack(tags[1])
    channel.basic_reject(tags[2])
    channel.basic_nack(tags[0])
    assert seen(channel) == [("m1", True), ("m2", True), ("m3", True), ("m4", False)]


def test_a_requeued_message_goes_to_the_consumer_at_once(connection: Any) -> None:
    """R-ACK-5, R-ACK-8: the same one may get it again, before what waits behind."""
    channel = steps.confirming(connection)
    name = filled(channel, 3)
    channel.basic_qos(prefetch_count=1)
    received = steps.consumed(channel, name, 1)
    channel.basic_nack(1)
    steps.wait_received(channel, received, 2)
    channel.basic_ack(2)
    steps.wait_received(channel, received, 3)
    assert bodies(received) == ["m1", "m1", "m2"]
    assert [method.redelivered for method, _, _ in received] == [False, True, False]


def test_another_consumer_gets_it_flagged(connection: Any) -> None:
    """R-ACK-8: redelivered is the message's, not the consumer's."""
    one, two = steps.confirming(connection), connection.channel()
    name = filled(one, 1)
    steps.unacked(one, name)
    received: list[Any] = []
    two.basic_consume(name, lambda _, method, properties, body: received.append(method))
    one.basic_nack(1)
    steps.wait_received(two, received, 1)
    assert received[0].redelivered


@pytest.mark.parametrize("is_async", [False, True], ids=["recover", "recover-async"])
def test_recover_brings_all_back(server: Server, vhost: str, is_async: bool) -> None:
    """R-ACK-7: to the queue, in order; the asynchronous one is not answered."""
    with server.connected(vhost) as connection:
        filled(steps.confirming(connection), 3)
    with server.raw(vhost) as raw:
        raw.open(1)
        for _ in range(2):
            raw.send(1, methods.BasicGet(0, "q", False))
            raw.content(methods.BasicGetOk)
        raw.send(1, (methods.BasicRecoverAsync if is_async else methods.BasicRecover)(True))
        if not is_async:
            raw.expect(methods.BasicRecoverOk)
        came = []
        for _ in range(3):
            raw.send(1, methods.BasicGet(0, "q", True))
            method, _, body = raw.content(methods.BasicGetOk)
            came.append((body, method.delivery_tag, method.redelivered))
        assert came == [(b"m1", 3, True), (b"m2", 4, True), (b"m3", 5, False)]


def test_recover_without_requeue_is_not_implemented(channel: Any) -> None:
    """R-ACK-7, R-ERR-17."""
    scope, code, text = steps.refused(channel, lambda c: c.basic_recover(requeue=False))
    assert (scope, code, text) == ("connection", 540, "NOT_IMPLEMENTED - requeue=false")


def test_a_channel_that_closes_gives_back_in_order(server: Server, vhost: str) -> None:
    """R-ACK-12, R-ACK-8: consumed, fetched and never read alike; so does a connection."""
    with server.connected(vhost) as connection:
        channel = steps.confirming(connection)
        name = filled(channel, 4)
        with server.connected(vhost) as other:
            taker = other.channel()
            steps.unacked(taker, name)
            steps.consumed(other.channel(), name, 3)
            steps.wait_ready(channel, name, 0)
        steps.wait_ready(channel, name, 4)
        assert seen(channel) == [(f"m{i}", True) for i in (1, 2, 3, 4)]


def test_unacknowledged_messages_are_not_ready(connection: Any) -> None:
    """R-Q-3, R-Q-13: nor are they purged."""
    channel = steps.confirming(connection)
    name = filled(channel, 3)
    method = steps.unacked(channel, name)[0]
    assert method.message_count == 2
    assert steps.ready(channel, name) == 2
    assert channel.queue_purge(name).method.message_count == 2
    channel.basic_nack(method.delivery_tag)
    assert seen(channel) == [("m1", True)]


@pytest.mark.parametrize("settle", ["ack", "nack", "reject", "reject-drop"])
def test_every_settlement_frees_capacity(connection: Any, settle: str) -> None:
    """R-QOS-5."""
    channel = steps.confirming(connection)
    name = filled(channel, 3)
    channel.basic_qos(prefetch_count=2)
    received = steps.consumed(channel, name, 2)
    {
        "ack": lambda: channel.basic_ack(1),
        "nack": lambda: channel.basic_nack(1, requeue=False),
        "reject": lambda: channel.basic_reject(1),
        "reject-drop": lambda: channel.basic_reject(1, requeue=False),
    }[settle]()
    steps.wait_received(channel, received, 3)
    assert bodies(received)[2] == ("m1" if settle == "reject" else "m3")


@pytest.mark.parametrize("second", ["classic", "quorum"])
def test_multiple_reaches_over_queues(connection: Any, second: str) -> None:
    """R-ACK-3, R-ACK-4: tags are the channel's, not a queue's."""
    channel = steps.confirming(connection)
    for name, kind in (("a", "classic"), ("b", second)):
        steps.queue(channel, name, x_queue_type=kind)
        for i in range(3):
            assert steps.publish(channel, "", name, f"{name}{i}") == "ack"
    for _ in range(3):
        steps.unacked(channel, "a")
        steps.unacked(channel, "b")
    channel.basic_ack(3, multiple=True)
    channel.basic_nack(5, multiple=True)
    channel.basic_nack(6, requeue=False)
    for name, left in (("a", "a2"), ("b", "b1")):
        steps.wait_ready(channel, name, 1)
        assert seen(channel, name) == [(left, True)]


def test_returned_one_by_one_each_finds_its_place(connection: Any) -> None:
    """R-ACK-5: while others are taken again."""
    channel = steps.confirming(connection)
    name = filled(channel, 5)
    tags = [steps.unacked(channel, name)[0].delivery_tag for _ in range(5)]
    channel.basic_nack(tags[4])
    channel.basic_nack(tags[1])
    assert steps.take(channel, name)[2] == b"m2"
    channel.basic_nack(tags[0])
    channel.basic_nack(tags[3])
    assert seen(channel) == [("m1", True), ("m4", True), ("m5", True)]
