"""Publishing and publisher confirms, frame by frame where the order counts (R-PUB, R-PC)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from brokerd.amqp import methods as M
from brokerd.amqp.properties import BasicProperties
from tests.compat.servers import Server, closed_by
from tests.integration.members import eventually
from tests.integration.raw_client import PLAIN, RawClient, publish

QUORUM = {"x-queue-type": "quorum"}
PERSISTENT = BasicProperties(delivery_mode=2).encode()


@contextlib.contextmanager
def confirming(server: Server, vhost: str) -> Iterator[RawClient]:
    """Channel 1 confirms, channel 2 does not."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.open(2)
        raw.send(1, M.ConfirmSelect(False))
        raw.expect(M.ConfirmSelectOk)
        yield raw


class Refused(Exception):
    """The server closed the connection in the place of a confirm."""

    def __init__(self, method: M.ConnectionClose) -> None:
        super().__init__(f"{method.reply_code} {method.reply_text}")
        self.method = method


def confirmed(raw: RawClient, count: int) -> dict[int, str]:
    """Read confirms until this many publishes have one; return the verdict on each."""
    fates: dict[int, str] = {}
    while len(fates) < count:
        found = raw.next_method()
        assert found is not None
        method = found[1]
        if isinstance(method, M.ConnectionClose):
            raise Refused(method)
        assert isinstance(method, M.BasicAck | M.BasicNack), method
        fate = "ack" if isinstance(method, M.BasicAck) else "nack"
        first = 1 if method.multiple else method.delivery_tag
        for tag in range(first, method.delivery_tag + 1):
            if not method.multiple:
                assert tag not in fates, (tag, fates)
            fates.setdefault(tag, fate)
    return fates


# ---- publishing ---------------------------------------------------------------------------------


def test_a_foreign_exclusive_queue_takes_messages(server: Server, vhost: str) -> None:
    """R-PUB-6."""
    with server.raw(vhost) as owner, confirming(server, vhost) as raw:
        owner.open(1)
        owner.declare(1, "mine", exclusive=True)
        raw.send(1, publish(1, "", "mine", b"from another", mandatory=True))
        assert confirmed(raw, 1) == {1: "ack"}
        assert owner.count(1, "mine") == 1


@pytest.mark.parametrize("size", [0, 5, 300_000])
def test_an_unroutable_mandatory_message_comes_back_before_its_confirm(
    server: Server, vhost: str, size: int
) -> None:
    """R-PUB-7, R-PC-1, R-PC-4: with all of its properties and body."""
    properties = BasicProperties(
        headers={"a": 1}, message_id="m", priority=3, delivery_mode=2, expiration="60000"
    ).encode()
    body = bytes(size)
    with confirming(server, vhost) as raw:
        raw.send(1, publish(1, "amq.direct", "nobody", body, properties, mandatory=True))
        method, back, content = raw.content(M.BasicReturn)
        assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
        assert (method.exchange, method.routing_key) == ("amq.direct", "nobody")
        assert (back, content) == (properties, body)
        ack = raw.expect(M.BasicAck)
        assert (ack.delivery_tag, ack.multiple) == (1, False)


def test_a_mandatory_message_comes_back_without_confirms_too(server: Server, vhost: str) -> None:
    """R-PUB-7: to the default exchange as well."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, publish(1, "", "nobody", b"x", mandatory=True))
        method, back, content = raw.content(M.BasicReturn)
        assert (method.exchange, method.routing_key) == ("", "nobody")
        assert (back, content) == (PLAIN, b"x")


def test_what_is_not_mandatory_is_dropped_and_confirmed(server: Server, vhost: str) -> None:
    """R-PUB-8, R-PC-4."""
    with confirming(server, vhost) as raw:
        raw.send(1, publish(1, "", "nobody", b"x"), publish(1, "amq.fanout", "", b"y"))
        assert confirmed(raw, 2) == {1: "ack", 2: "ack"}


def test_a_mandatory_message_that_is_routed_does_not_come_back(server: Server, vhost: str) -> None:
    """R-PUB-7."""
    with confirming(server, vhost) as raw:
        raw.declare(1, "q", durable=True)
        raw.send(1, publish(1, "", "q", b"x", mandatory=True))
        assert confirmed(raw, 1) == {1: "ack"}
        assert raw.count(1, "q") == 1


def test_returns_come_in_the_order_of_publishing(server: Server, vhost: str) -> None:
    """R-PUB-7."""
    with confirming(server, vhost) as raw:
        raw.send(1, *(publish(1, "", f"no{i}", b"", mandatory=True) for i in range(20)))
        returned, acked = [], 0
        while acked < 20:
            found = raw.next_frame()
            assert found is not None
            if found[0] == 1 and found[2][:4] == b"\0\x3c\0\x32":
                returned.append(M.BasicReturn.decode(found[2]).routing_key)
            elif found[0] == 1:
                ack = M.BasicAck.decode(found[2])
                acked = ack.delivery_tag if ack.multiple else acked + 1
                assert len(returned) >= acked
    assert returned == [f"no{i}" for i in range(20)]


@pytest.mark.parametrize("mode", [None, 1, 2])
def test_the_delivery_mode_is_delivered_as_it_was_sent(
    server: Server, vhost: str, mode: int | None
) -> None:
    """R-PUB-5."""
    sent = BasicProperties(delivery_mode=mode).encode()
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        raw.send(1, publish(1, "", "q", b"x", sent), M.BasicGet(0, "q", True))
        assert raw.content(M.BasicGetOk)[1] == sent


def test_an_error_loses_the_confirms_that_are_due(server: Server, vhost: str) -> None:
    """R-PUB-10, R-PC-9: what was published before it is in its queue all the same."""
    with confirming(server, vhost) as raw:
        raw.declare(2, "q", durable=True)
        raw.send(1, publish(1, "", "q", b"x"), publish(1, "nope", "k", b"y"))
        assert closed_by(raw).code == 404
        raw.send(1, M.ChannelCloseOk())
        raw.open(1)
        eventually(lambda: raw.count(1, "q") == 1, "the first message")
        raw.send(1, M.ConfirmSelect(False))
        raw.expect(M.ConfirmSelectOk)
        raw.send(1, publish(1, "", "q", b"z"))
        assert confirmed(raw, 1) == {1: "ack"}


# ---- confirms -----------------------------------------------------------------------------------


def test_numbers_begin_with_the_select(server: Server, vhost: str) -> None:
    """R-PC-1: what was published before has none."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        raw.send(1, publish(1, "", "q", b"0"), M.ConfirmSelect(False), publish(1, "", "q", b"1"))
        raw.expect(M.ConfirmSelectOk)
        ack = raw.expect(M.BasicAck)
        assert (ack.delivery_tag, ack.multiple) == (1, False)
        assert raw.count(1, "q") == 2


def test_each_channel_counts_for_itself(server: Server, vhost: str) -> None:
    """R-PC-1."""
    with server.raw(vhost) as raw:
        for number in (1, 2):
            raw.open(number)
            raw.send(number, M.ConfirmSelect(False))
            raw.expect(M.ConfirmSelectOk)
        raw.declare(1, "q", durable=True)
        for number in (1, 2, 1, 2):
            raw.send(number, publish(number, "", "q", b"x"))
        seen: list[tuple[int, int]] = []
        while len(seen) < 4:
            found = raw.next_method()
            assert found is not None
            assert isinstance(found[1], M.BasicAck)
            last = found[1].delivery_tag
            numbers = range(1, last + 1) if found[1].multiple else [last]
            seen += [(found[0], tag) for tag in numbers if (found[0], tag) not in seen]
        assert sorted(seen) == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_a_select_may_go_without_an_answer(server: Server, vhost: str) -> None:
    """R-PC-9."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, M.ConfirmSelect(True), publish(1, "", "nobody", b"x"))
        assert raw.expect(M.BasicAck).delivery_tag == 1


@pytest.mark.parametrize(
    ("arguments", "durable"), [({}, True), ({}, False), (QUORUM, True)], ids=str
)
@pytest.mark.parametrize("properties", [PLAIN, PERSISTENT], ids=["transient", "persistent"])
def test_every_queue_confirms(
    server: Server, vhost: str, arguments: dict[str, Any], durable: bool, properties: bytes
) -> None:
    """R-PC-2."""
    with confirming(server, vhost) as raw:
        raw.declare(1, "q", durable=durable, arguments=arguments)
        raw.send(1, *(publish(1, "", "q", b"x", properties) for _ in range(10)))
        assert confirmed(raw, 10) == dict.fromkeys(range(1, 11), "ack")


def test_a_thousand_publishes_get_a_confirm_each(server: Server, vhost: str) -> None:
    """R-PC-8, R-OPEN-2: in any mix of single and multiple."""
    with confirming(server, vhost) as raw:
        raw.declare(1, "q", durable=True)
        raw.send(1, *(publish(1, "", "q", b"x", PERSISTENT) for _ in range(1000)))
        assert confirmed(raw, 1000) == dict.fromkeys(range(1, 1001), "ack")
        assert raw.count(1, "q") == 1000


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_nacks(server: Server, vhost: str, overflow: str) -> None:
    """R-PC-3, R-PC-6: a nack each; the next after room is made is taken."""
    arguments = {"x-max-length": 2, "x-overflow": overflow}
    with confirming(server, vhost) as raw:
        raw.declare(1, "q", durable=True, arguments=arguments)
        for tag, fate in ((1, "ack"), (2, "ack"), (3, "nack"), (4, "nack")):
            raw.send(1, publish(1, "", "q", b"x"))
            found = raw.next_method()
            assert found is not None
            method: Any = found[1]
            assert type(method) is (M.BasicAck if fate == "ack" else M.BasicNack)
            assert method.delivery_tag == tag
        raw.send(1, M.QueuePurge(0, "q"))
        assert raw.expect(M.QueuePurgeOk).message_count == 2
        raw.send(1, publish(1, "", "q", b"x"))
        assert raw.expect(M.BasicAck).delivery_tag == 5


def test_one_full_queue_of_several_nacks_and_the_others_keep_their_copies(
    server: Server, vhost: str
) -> None:
    """R-PC-3."""
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    with confirming(server, vhost) as raw:
        raw.declare(1, "full", durable=True, arguments=full)
        raw.declare(1, "open", durable=True)
        for name in ("full", "open"):
            raw.send(1, M.QueueBind(0, name, "amq.fanout", ""))
            raw.expect(M.QueueBindOk)
        raw.send(1, publish(1, "amq.fanout", "", b"x"))
        assert confirmed(raw, 1) == {1: "nack"}
        assert (raw.count(1, "full"), raw.count(1, "open")) == (0, 1)


@pytest.mark.parametrize("arguments", [{}, QUORUM], ids=["classic", "quorum"])
def test_a_queue_that_drops_its_head_confirms(
    server: Server, vhost: str, arguments: dict[str, Any]
) -> None:
    """R-PC-5: the new message may even be the one dropped."""
    with confirming(server, vhost) as raw:
        raw.declare(1, "q", durable=True, arguments=arguments | {"x-max-length": 0})
        raw.send(1, *(publish(1, "", "q", b"x") for _ in range(3)))
        assert confirmed(raw, 3) == {1: "ack", 2: "ack", 3: "ack"}
        eventually(lambda: raw.count(1, "q") == 0, "the queue is empty")


@pytest.mark.parametrize("arguments", [{}, QUORUM], ids=["classic", "quorum"])
def test_deleting_a_queue_confirms_what_it_had_not(
    server: Server, vhost: str, arguments: dict[str, Any]
) -> None:
    """R-PC-7: deletion counts as taken over."""
    with confirming(server, vhost) as raw:
        raw.declare(2, "q", durable=True, arguments=arguments)
        raw.send(1, *(publish(1, "", "q", b"x", PERSISTENT) for _ in range(200)))
        raw.send(2, M.QueueDelete(0, "q", nowait=True))
        try:
            fates = confirmed(raw, 200)
        except Refused as refused:
            # D-201: now and then RabbitMQ's own channel fails over a quorum queue that goes.
            if (server.name, refused.method.reply_code) != ("rabbitmq", 541):
                raise
        else:
            assert fates == dict.fromkeys(range(1, 201), "ack")


def test_a_message_for_many_queues_gets_one_confirm(server: Server, vhost: str) -> None:
    """R-PC-2, R-PC-11: when all have it."""
    with confirming(server, vhost) as raw:
        for number in range(5):
            raw.declare(1, f"q{number}", durable=True, arguments=QUORUM if number == 4 else {})
            raw.send(1, M.QueueBind(0, f"q{number}", "amq.fanout", ""))
            raw.expect(M.QueueBindOk)
        raw.send(1, publish(1, "amq.fanout", "", b"x"))
        ack = raw.expect(M.BasicAck)
        assert (ack.delivery_tag, ack.multiple) == (1, False)
        assert [raw.count(1, f"q{number}") for number in range(5)] == [1] * 5


def test_an_auto_acked_message_is_confirmed(server: Server, vhost: str) -> None:
    """R-PC-2: delivered at once to a consumer without acknowledgements."""
    with confirming(server, vhost) as raw:
        raw.declare(2, "q", durable=True)
        raw.send(2, M.BasicConsume(0, "q", "c", no_ack=True))
        raw.expect(M.BasicConsumeOk)
        raw.send(1, publish(1, "", "q", b"x", PERSISTENT))
        kinds: set[bytes] = set()
        while len(kinds) < 2:
            found = raw.next_frame()
            assert found is not None
            if found[0] == 1:
                kinds.add(found[2][:4])
        assert kinds == {b"\0\x3c\0\x3c", b"\0\x3c\0\x50"}
