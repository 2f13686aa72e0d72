"""Direct reply-to (R-DRT): the pseudo queue amq.rabbitmq.reply-to and the names made of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from brokerd.amqp import methods as M
from brokerd.amqp.properties import BasicProperties
from tests.compat.servers import Closed, Server, closed_by, expect
from tests.integration.members import eventually
from tests.integration.raw_client import PLAIN, RawClient, publish

PSEUDO = "amq.rabbitmq.reply-to"
ACCEPTED = Closed("connection", 540, "NOT_IMPLEMENTED - prefetch_size!=0 (99)", (60, 10))
ASKS = BasicProperties(reply_to=PSEUDO, correlation_id="c1").encode()


@contextlib.contextmanager
def asking(server: Server, vhost: str) -> Iterator[RawClient]:
    """Channel 1 waits for replies, queue q takes the questions."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", exclusive=True)
        raw.send(1, M.BasicConsume(0, PSEUDO, "replies", no_ack=True))
        assert raw.expect(M.BasicConsumeOk).consumer_tag == "replies"
        yield raw


def ask(raw: RawClient, channel: int = 1) -> str:
    """Publish a question and take it from its queue; return whom to answer."""
    raw.send(channel, publish(channel, "", "q", b"question", ASKS))
    raw.send(channel, M.BasicGet(0, "q", True))
    _, properties, body = raw.content(M.BasicGetOk)
    assert body == b"question"
    found = BasicProperties.decode(properties)
    assert found.correlation_id == "c1"
    assert found.reply_to is not None
    return found.reply_to


def test_a_reply_comes_straight_to_the_channel(server: Server, vhost: str) -> None:
    """R-DRT-2, R-DRT-3."""
    with asking(server, vhost) as raw:
        name = ask(raw)
        assert name.startswith(f"{PSEUDO}.")
        properties = BasicProperties(correlation_id="c1").encode()
        raw.send(1, publish(1, "", name, b"answer", properties))
        deliver, back, body = raw.content(M.BasicDeliver)
        assert (deliver.consumer_tag, deliver.redelivered, deliver.exchange) == (
            "replies",
            False,
            "",
        )
        assert (deliver.routing_key, back, body) == (name, properties, b"answer")


def test_a_reply_comes_from_another_connection(server: Server, vhost: str) -> None:
    """R-DRT-3: 3.10 brings a mandatory reply back although it was delivered."""
    with asking(server, vhost) as raw, server.raw(vhost) as other:
        name = ask(raw)
        other.open(1)
        other.send(1, M.ConfirmSelect(False))
        other.expect(M.ConfirmSelectOk)
        other.send(1, publish(1, "", name, b"answer", mandatory=True))
        is_returned = expect(server, rabbitmq=True, brokerd=False, difference="D-20")
        if is_returned:
            assert other.content(M.BasicReturn)[0].reply_code == 312
        assert other.expect(M.BasicAck).delivery_tag == 1
        assert raw.content(M.BasicDeliver)[2] == b"answer"


@pytest.mark.parametrize("size", [0, 300_000])
def test_replies_of_any_size(server: Server, vhost: str, size: int) -> None:
    """R-DRT-3, R-FRM-9."""
    with asking(server, vhost) as raw:
        raw.send(1, publish(1, "", ask(raw), bytes(size)))
        assert raw.content(M.BasicDeliver)[2] == bytes(size)


def test_many_replies_come_in_order(server: Server, vhost: str) -> None:
    """R-DRT-3: to one name; nobody acknowledges them, so 3.10 gives them one tag."""
    with asking(server, vhost) as raw:
        name = ask(raw)
        assert ask(raw) == name
        raw.send(1, *(publish(1, "", name, bytes([i])) for i in range(50)))
        got = [raw.content(M.BasicDeliver) for _ in range(50)]
        assert [body for _, _, body in got] == [bytes([i]) for i in range(50)]
        first = got[0][0].delivery_tag
        rising = list(range(first, first + 50))
        tags = expect(server, rabbitmq=[first] * 50, brokerd=rising, difference="D-21")
        assert [method.delivery_tag for method, _, _ in got] == tags


def test_each_channel_has_replies_of_its_own(server: Server, vhost: str) -> None:
    """R-DRT-1, R-DRT-2."""
    with asking(server, vhost) as raw:
        raw.open(2)
        raw.send(2, M.BasicConsume(0, PSEUDO, "", no_ack=True))
        assert raw.expect(M.BasicConsumeOk).consumer_tag.startswith("amq.ctag-")
        first, second = ask(raw, 1), ask(raw, 2)
        assert first != second
        raw.send(1, publish(1, "", second, b"for 2"))
        found = raw.next_method()
        assert found is not None
        assert (found[0], type(found[1])) == (2, M.BasicDeliver)


def test_replies_to_a_channel_that_is_gone_are_unroutable(server: Server, vhost: str) -> None:
    """R-DRT-3."""
    with server.raw(vhost) as other:
        other.open(1)
        with asking(server, vhost) as raw:
            name = ask(raw)
            raw.send(1, M.ChannelClose(200, "", 0, 0))
            raw.expect(M.ChannelCloseOk)
            other.send(1, publish(1, "", name, b"late", mandatory=True))
            returned = other.content(M.BasicReturn)[0]
            assert (returned.reply_code, returned.routing_key) == (312, name)


def test_replies_after_cancel_are_unroutable(server: Server, vhost: str) -> None:
    """R-DRT-3: and the channel may wait for replies again."""
    with asking(server, vhost) as raw:
        name = ask(raw)
        raw.send(1, M.BasicCancel("replies", False))
        raw.expect(M.BasicCancelOk)
        raw.send(1, publish(1, "", name, b"late", mandatory=True))
        assert raw.content(M.BasicReturn)[0].reply_code == 312
        raw.send(1, M.BasicConsume(0, PSEUDO, "again", no_ack=True))
        raw.expect(M.BasicConsumeOk)
        raw.send(1, publish(1, "", ask(raw), b"answer"))
        assert raw.content(M.BasicDeliver)[0].consumer_tag == "again"


@pytest.mark.parametrize("key", [f"{PSEUDO}.nonsense", PSEUDO, f"{PSEUDO}."])
def test_a_name_that_nobody_was_given_is_unroutable(server: Server, vhost: str, key: str) -> None:
    """R-DRT-3."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, publish(1, "", key, b"x", mandatory=True))
        assert raw.content(M.BasicReturn)[0].routing_key == key


def test_a_name_that_cannot_be_read(server: Server, vhost: str) -> None:
    """R-DRT-3: 3.10 stumbles over it."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, publish(1, "", f"{PSEUDO}.g1h2.x", b"x", mandatory=True))
        found = raw.next_method()
        assert found is not None
        wanted = expect(
            server, rabbitmq="ConnectionClose", brokerd="BasicReturn", difference="D-23"
        )
        assert type(found[1]).__name__ == wanted
        assert getattr(found[1], "reply_code", 0) in (312, 541)


def test_a_passive_declare_says_whether_the_asker_waits(server: Server, vhost: str) -> None:
    """R-DRT-3."""
    with server.raw(vhost) as other:
        other.open(1)
        with asking(server, vhost) as raw:
            name = ask(raw)
            other.send(1, M.QueueDeclare(0, name, passive=True))
            answer = other.expect(M.QueueDeclareOk)
            assert (answer.queue, answer.message_count, answer.consumer_count) == (name, 0, 1)
            raw.send(1, M.BasicCancel("replies", False))
            raw.expect(M.BasicCancelOk)
            other.send(1, M.QueueDeclare(0, name, passive=True))
            closed = closed_by(other)
            assert (closed.code, closed.failed) == (404, (50, 10))
            assert closed.starts("no queue 'amq.rabbitmq.reply-to.")


def test_the_pseudo_queue_can_be_declared_while_waiting(server: Server, vhost: str) -> None:
    """R-DRT-3."""
    with asking(server, vhost) as raw:
        raw.send(1, M.QueueDeclare(0, PSEUDO, passive=True))
        answer = raw.expect(M.QueueDeclareOk)
        assert (answer.queue, answer.message_count, answer.consumer_count) == (PSEUDO, 0, 1)


def missing(name: str, vhost: str, method: M.Method) -> Closed:
    """Return the 404 of a method."""
    failed = (method.CLASS_ID, method.METHOD_ID)
    return Closed("channel", 404, f"NOT_FOUND - no queue '{name}' in vhost '{vhost}'", failed)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (M.QueuePurge(0, PSEUDO), PSEUDO),
        (M.BasicGet(0, PSEUDO, True), PSEUDO),
        (M.BasicGet(0, f"{PSEUDO}.x", True), f"{PSEUDO}.x"),
        (M.BasicConsume(0, f"{PSEUDO}.x", no_ack=True), f"{PSEUDO}.x"),
    ],
    ids=["purge", "get", "get by name", "consume by name"],
)
def test_the_pseudo_queue_is_no_queue(
    server: Server, vhost: str, method: M.Method, name: str
) -> None:
    """R-DRT-3."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, method)
        assert closed_by(raw) == missing(name, vhost, method)


def test_the_pseudo_queue_can_be_deleted_as_any_that_is_not_there(
    server: Server, vhost: str
) -> None:
    """R-Q-12."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, M.QueueDelete(0, PSEUDO))
        assert raw.expect(M.QueueDeleteOk).message_count == 0


@pytest.mark.parametrize("method", [M.QueueBind, M.QueueUnbind])
def test_the_pseudo_queue_cannot_be_bound(
    server: Server, vhost: str, method: type[M.QueueBind] | type[M.QueueUnbind]
) -> None:
    """R-BND-7: it is a queue that is not there."""
    sent = method(0, PSEUDO, "amq.direct", "k")
    plain = missing(PSEUDO, vhost, sent) if method is M.QueueBind else ACCEPTED
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, sent, M.BasicQos(99, 0, False))
        assert closed_by(raw) == plain


def test_another_reply_to_passes_unchanged(server: Server, vhost: str) -> None:
    """R-DRT-2."""
    properties = BasicProperties(reply_to="mine").encode()
    with asking(server, vhost) as raw:
        raw.send(1, publish(1, "", "q", b"x", properties), M.BasicGet(0, "q", True))
        assert raw.content(M.BasicGetOk)[1] == properties


def test_questions_wait_in_queues_as_any_message(server: Server, vhost: str) -> None:
    """R-DRT-2: the name is made at publish and kept over a requeue."""
    with asking(server, vhost) as raw:
        raw.send(1, publish(1, "", "q", b"question", ASKS))
        eventually(lambda: raw.count(1, "q") == 1, "the question")
        names = set()
        for tag in (1, 2):
            raw.send(1, M.BasicGet(0, "q", False))
            names.add(BasicProperties.decode(raw.content(M.BasicGetOk)[1]).reply_to)
            raw.send(1, M.BasicReject(tag, True))
        assert len(names) == 1


def test_replies_obey_no_prefetch(server: Server, vhost: str) -> None:
    """R-QOS-4: they are not acknowledged."""
    with asking(server, vhost) as raw:
        raw.send(1, M.BasicQos(0, 1, False))
        raw.expect(M.BasicQosOk)
        name = ask(raw)
        raw.send(1, publish(1, "", name, b"1", PLAIN), publish(1, "", name, b"2", PLAIN))
        assert [raw.content(M.BasicDeliver)[2] for _ in range(2)] == [b"1", b"2"]
