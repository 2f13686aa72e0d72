"""Queues: declare, redeclare, delete, purge, exclusive, auto-delete, expiry (R-Q)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from brokerd.amqp import methods as M
from tests.compat.servers import Closed, Server, closed_by
from tests.integration.members import eventually
from tests.integration.raw_client import RawClient, publish

SENTINEL = M.BasicQos(99, 0, False)
ACCEPTED = Closed("connection", 540, "NOT_IMPLEMENTED - prefetch_size!=0 (99)", (60, 10))
QUORUM = {"x-queue-type": "quorum"}
TYPES = pytest.mark.parametrize("arguments", [{}, QUORUM], ids=["classic", "quorum"])


def is_there(raw: RawClient, channel: int, queue: str) -> bool:
    """Ask with a passive declare, on a channel that is opened again where it breaks."""
    raw.send(channel, M.QueueDeclare(0, queue, passive=True))
    found = raw.next_method()
    assert found is not None
    if isinstance(found[1], M.ChannelClose):
        assert found[1].reply_code == 404
        raw.send(channel, M.ChannelCloseOk())
        raw.open(channel)
        return False
    assert isinstance(found[1], M.QueueDeclareOk)
    return True


# ---- declare ------------------------------------------------------------------------------------


def test_server_named_queues(server: Server, vhost: str) -> None:
    """R-NAM-3, R-Q-2: a name each, and it can be used at once."""
    with server.raw(vhost) as raw:
        raw.open(1)
        names = {raw.declare(1, "", exclusive=True) for _ in range(20)}
        assert len(names) == 20
        assert all(re.fullmatch(r"amq\.gen-[\w-]{22}", name) for name in names)
        assert raw.count(1, names.pop()) == 0


def test_a_server_named_queue_is_declared_again_passively_only(server: Server, vhost: str) -> None:
    """R-Q-2: the prefix is reserved for whoever names it."""
    with server.raw(vhost) as raw:
        raw.open(1)
        name = raw.declare(1, "", durable=True)
        assert raw.count(1, name) == 0
        raw.send(1, M.QueueDeclare(0, name, durable=True))
        text = f"ACCESS_REFUSED - queue name '{name}' contains reserved prefix 'amq.*'"
        assert closed_by(raw) == Closed("channel", 403, text, (50, 10))


@TYPES
def test_declare_ok_counts_ready_messages_and_consumers(
    server: Server, vhost: str, arguments: dict[str, Any]
) -> None:
    """R-Q-3."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True, arguments=arguments)
        raw.send(1, M.ConfirmSelect(False), *(publish(1, "", "q", b"x") for _ in range(3)))
        raw.expect(M.ConfirmSelectOk)
        acked = 0
        while acked < 3:
            ack = raw.expect(M.BasicAck)
            acked = ack.delivery_tag if ack.multiple else acked + 1
        raw.send(1, M.BasicGet(0, "q", False))
        raw.content(M.BasicGetOk)
        raw.open(2)
        raw.send(2, M.QueueDeclare(0, "q", durable=True, arguments=arguments))
        answer = raw.expect(M.QueueDeclareOk)
        assert (answer.queue, answer.message_count) == ("q", 2)
        # A get of a quorum queue counts as a consumer until it is settled.
        getters = 1 if arguments else 0
        assert answer.consumer_count == getters
        raw.send(2, M.BasicQos(0, 1, False), M.BasicConsume(0, "q", "c"))
        raw.expect(M.BasicQosOk)
        raw.expect(M.BasicConsumeOk)
        raw.content(M.BasicDeliver)
        raw.send(1, M.QueueDeclare(0, "q", passive=True))
        answer = raw.expect(M.QueueDeclareOk)
        assert (answer.message_count, answer.consumer_count) == (1, 1 + getters)
        # So does a consumer that is cancelled and holds something.
        raw.send(2, M.BasicCancel("c"))
        raw.expect(M.BasicCancelOk)
        raw.send(1, M.QueueDeclare(0, "q", passive=True))
        answer = raw.expect(M.QueueDeclareOk)
        assert (answer.message_count, answer.consumer_count) == (1, 2 * getters)
        raw.send(1, M.BasicGet(0, "q", False))
        raw.content(M.BasicGetOk)
        raw.send(1, M.QueueDeclare(0, "q", passive=True))
        answer = raw.expect(M.QueueDeclareOk)
        assert (answer.message_count, answer.consumer_count) == (0, 3 * getters)


def test_a_declare_may_go_without_an_answer(server: Server, vhost: str) -> None:
    """R-Q-3: as bind, unbind, purge, delete, consume and cancel may."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(
            1,
            M.QueueDeclare(0, "q", durable=True, nowait=True),
            M.QueueBind(0, "q", "amq.direct", "k", nowait=True),
            publish(1, "amq.direct", "k", b"x"),
            M.QueuePurge(0, "q", nowait=True),
            M.BasicConsume(0, "q", "c", nowait=True),
            M.BasicCancel("c", nowait=True),
            M.QueueDelete(0, "q", nowait=True),
            M.ExchangeDeclare(0, "x", "direct", nowait=True),
            M.ExchangeBind(0, "x", "amq.direct", "k", nowait=True),
            M.ExchangeUnbind(0, "x", "amq.direct", "k", nowait=True),
            M.ExchangeDelete(0, "x", nowait=True),
            SENTINEL,
        )
        assert closed_by(raw) == ACCEPTED


#: What exists, what is declared again: all are taken.
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "arguments that nobody knows": ({"x-nobody": 1}, {"x-nobody": 2, "more": True}),
    "explicit classic": ({}, {"x-queue-type": "classic"}),
    "classic left out": ({"x-queue-type": "classic"}, {}),
    "quorum": (QUORUM | {"x-max-length": 5}, {"x-max-length": 5} | QUORUM),
    "queue-mode": ({"x-queue-mode": "lazy"}, {"x-queue-mode": "lazy"}),
    "priorities": ({"x-max-priority": 5}, {"x-max-priority": 5}),
    "single active consumer": (
        {"x-single-active-consumer": True},
        {"x-single-active-consumer": True},
    ),
    "dead letters": (
        {"x-dead-letter-exchange": "d", "x-dead-letter-routing-key": "k"},
        {"x-dead-letter-routing-key": "k", "x-dead-letter-exchange": "d"},
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_redeclaring_the_same(server: Server, vhost: str, name: str) -> None:
    """R-Q-4."""
    first, second = SAME[name]
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True, arguments=first)
        raw.send(1, M.QueueDeclare(0, "q", durable=True, arguments=second), SENTINEL)
        assert closed_by(raw) == ACCEPTED


@pytest.mark.parametrize("width", [b"b\5", b"B\5", b"s\0\5", b"u\0\5", b"I\0\0\0\5", b"i\0\0\0\5"])
def test_all_integer_widths_are_equal(server: Server, vhost: str, width: bytes) -> None:
    """R-Q-4: x-max-length as another type of integer."""
    table = b"\x0cx-max-length" + width
    body = b"\0\x32\0\x0a\0\0\1q\2" + len(table).to_bytes(4, "big") + table
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True, arguments={"x-max-length": 5})
        raw.send(1, b"\1\0\1" + len(body).to_bytes(4, "big") + body + b"\xce", SENTINEL)
        assert closed_by(raw) == ACCEPTED


#: Known arguments: what exists, what is declared, the argument that is told.
DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "x-expires": ({"x-expires": 90_000}, {"x-expires": 91_000}, "x-expires"),
    "x-max-length-bytes": ({"x-max-length-bytes": 1}, {}, "x-max-length-bytes"),
    "x-max-priority": ({}, {"x-max-priority": 5}, "x-max-priority"),
    "x-overflow": ({"x-overflow": "drop-head"}, {"x-overflow": "reject-publish"}, "x-overflow"),
    "x-single-active-consumer": (
        {},
        {"x-single-active-consumer": True},
        "x-single-active-consumer",
    ),
    "x-dead-letter-routing-key": (
        {"x-dead-letter-exchange": "d"},
        {"x-dead-letter-exchange": "d", "x-dead-letter-routing-key": "k"},
        "x-dead-letter-routing-key",
    ),
    "x-delivery-limit": (
        QUORUM | {"x-delivery-limit": 5},
        QUORUM | {"x-delivery-limit": 6},
        "x-delivery-limit",
    ),
    "x-dead-letter-strategy": (
        QUORUM,
        QUORUM | {"x-dead-letter-strategy": "at-most-once"},
        "x-dead-letter-strategy",
    ),
    "another type of value": ({"x-message-ttl": 1000}, {"x-message-ttl": "1000"}, "x-message-ttl"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_redeclaring_something_else(server: Server, vhost: str, name: str) -> None:
    """R-Q-4, R-ERR-5."""
    first, second, told = DIFFERENT[name]
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True, arguments=first)
        raw.send(1, M.QueueDeclare(0, "q", durable=True, arguments=second))
        closed = closed_by(raw)
        assert (closed.level, closed.code, closed.failed) == ("channel", 406, (50, 10))
        assert closed.starts(
            f"inequivalent arg '{told}' for queue 'q' in vhost '{vhost}': received"
        )


def test_passive_ignores_flags_and_arguments(server: Server, vhost: str) -> None:
    """R-Q-7."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        raw.send(
            1,
            M.QueueDeclare(
                0,
                "q",
                passive=True,
                auto_delete=True,
                arguments={"x-max-length": -1, "x-queue-type": "zz"},
            ),
        )
        assert raw.expect(M.QueueDeclareOk).queue == "q"


# ---- exclusive and auto-delete ------------------------------------------------------------------


def test_an_exclusive_queue_serves_all_channels_of_its_connection(
    server: Server, vhost: str
) -> None:
    """R-Q-9: durable or not is one."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.open(2)
        raw.declare(1, "q", exclusive=True, durable=True)
        raw.declare(2, "q", exclusive=True, durable=False)
        row = server.admin.queues(vhost)["q"]
        assert (row["durable"], row["exclusive"]) == (False, True)
        raw.send(2, publish(2, "", "q", b"x"), M.BasicGet(0, "q", True))
        assert raw.content(M.BasicGetOk)[2] == b"x"


def test_an_exclusive_queue_ends_with_its_connection(server: Server, vhost: str) -> None:
    """R-Q-9: before the close is answered."""
    with server.raw(vhost) as other:
        other.open(1)
        with server.raw(vhost) as raw:
            raw.open(1)
            raw.declare(1, "q", exclusive=True)
            raw.send(0, M.ConnectionClose(200, "", 0, 0))
            raw.expect(M.ConnectionCloseOk)
            assert not is_there(other, 1, "q")


def test_an_exclusive_queue_outlives_its_channel(server: Server, vhost: str) -> None:
    """R-Q-9."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.open(2)
        raw.declare(1, "q", exclusive=True)
        raw.send(1, M.ChannelClose(200, "", 0, 0))
        raw.expect(M.ChannelCloseOk)
        assert raw.count(2, "q") == 0


def test_an_exclusive_queue_ends_when_the_socket_breaks(server: Server, vhost: str) -> None:
    """R-Q-9."""
    with server.raw(vhost) as other:
        other.open(1)
        with server.raw(vhost) as raw:
            raw.open(1)
            raw.declare(1, "q", exclusive=True)
        eventually(lambda: not is_there_for_another(other), "the queue is gone")


def is_there_for_another(raw: RawClient) -> bool:
    """While its connection lives, the queue is locked."""
    raw.send(1, M.QueueDeclare(0, "q", passive=True))
    code = closed_by(raw).code
    raw.send(1, M.ChannelCloseOk())
    raw.open(1)
    return code == 405


@pytest.mark.parametrize("how", ["cancel", "channel", "connection"])
def test_an_auto_delete_queue_ends_with_its_last_consumer(
    server: Server, vhost: str, how: str
) -> None:
    """R-Q-10."""
    with server.raw(vhost) as other:
        other.open(1)
        with server.raw(vhost) as raw:
            raw.open(1)
            raw.declare(1, "q", durable=True, auto_delete=True)
            for tag in ("a", "b"):
                raw.send(1, M.BasicConsume(0, "q", tag))
                raw.expect(M.BasicConsumeOk)
            raw.send(1, M.BasicCancel("a", False))
            raw.expect(M.BasicCancelOk)
            assert is_there(other, 1, "q")
            if how == "cancel":
                raw.send(1, M.BasicCancel("b", False))
                raw.expect(M.BasicCancelOk)
            elif how == "channel":
                raw.send(1, M.ChannelClose(200, "", 0, 0))
                raw.expect(M.ChannelCloseOk)
            else:
                raw.send(0, M.ConnectionClose(200, "", 0, 0))
                raw.expect(M.ConnectionCloseOk)
            eventually(lambda: not is_there(other, 1, "q"), "the queue is gone")


def test_an_auto_delete_queue_stays_while_it_was_never_consumed(server: Server, vhost: str) -> None:
    """R-Q-10: basic.get does not count."""
    with server.raw(vhost) as other:
        other.open(1)
        with server.raw(vhost) as raw:
            raw.open(1)
            raw.declare(1, "q", durable=True, auto_delete=True)
            raw.send(1, M.BasicGet(0, "q", True))
            raw.expect(M.BasicGetEmpty)
            raw.send(0, M.ConnectionClose(200, "", 0, 0))
            raw.expect(M.ConnectionCloseOk)
        assert is_there(other, 1, "q")


# ---- delete and purge ---------------------------------------------------------------------------


@TYPES
def test_delete_counts_ready_messages(
    server: Server, vhost: str, arguments: dict[str, Any]
) -> None:
    """R-Q-12: not the unacknowledged ones; what was delivered can still be settled."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True, arguments=arguments)
        raw.send(1, *(publish(1, "", "q", b"x") for _ in range(3)))
        eventually(lambda: raw.count(1, "q") == 3, "three messages")
        raw.send(1, M.BasicGet(0, "q", False))
        tag = raw.content(M.BasicGetOk)[0].delivery_tag
        raw.send(1, M.QueueDelete(0, "q"))
        assert raw.expect(M.QueueDeleteOk).message_count == 2
        raw.send(1, M.BasicAck(tag, False), SENTINEL)
        assert closed_by(raw) == ACCEPTED


def test_what_is_deleted_is_not_dead_lettered(server: Server, vhost: str) -> None:
    """R-Q-12, R-Q-13."""
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "dead", durable=True)
        for method in (M.QueuePurge(0, "q"), M.QueueDelete(0, "q")):
            raw.declare(1, "q", durable=True, arguments=dead)
            raw.send(1, publish(1, "", "q", b"x"))
            eventually(lambda: raw.count(1, "q") == 1, "the message")
            raw.send(1, method)
            answer: Any = raw.next_method()
            assert answer[1].message_count == 1
        raw.send(1, publish(1, "", "dead", b"marker"))
        eventually(lambda: raw.count(1, "dead") == 1, "the marker and nothing else")


@TYPES
def test_purge_takes_ready_messages_only(
    server: Server, vhost: str, arguments: dict[str, Any]
) -> None:
    """R-Q-13."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.open(2)
        raw.declare(1, "q", durable=True, arguments=arguments)
        raw.send(1, *(publish(1, "", "q", bytes([i])) for i in range(5)))
        eventually(lambda: raw.count(1, "q") == 5, "five messages")
        raw.send(1, M.BasicGet(0, "q", False))
        raw.content(M.BasicGetOk)
        raw.send(2, M.QueuePurge(0, "q"))
        assert raw.expect(M.QueuePurgeOk).message_count == 4
        raw.send(1, M.BasicReject(1, True))
        eventually(lambda: raw.count(2, "q") == 1, "the unacknowledged one comes back")
        raw.send(2, M.QueuePurge(0, "q"))
        assert raw.expect(M.QueuePurgeOk).message_count == 1


def test_delete_if_unused_and_if_empty(server: Server, vhost: str) -> None:
    """R-Q-12, R-ERR-35: allowed where it is so; unacknowledged messages do not count."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        raw.send(1, publish(1, "", "q", b"x"))
        eventually(lambda: raw.count(1, "q") == 1, "the message")
        raw.send(1, M.BasicGet(0, "q", False))
        raw.content(M.BasicGetOk)
        raw.send(1, M.QueueDelete(0, "q", if_unused=True, if_empty=True))
        assert raw.expect(M.QueueDeleteOk).message_count == 0


def test_deleting_a_queue_removes_its_bindings(server: Server, vhost: str) -> None:
    """R-BND-5, R-Q-12: a new one of its name starts without."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        raw.send(1, M.QueueBind(0, "q", "amq.direct", "k"))
        raw.expect(M.QueueBindOk)
        raw.send(1, M.QueueDelete(0, "q"))
        raw.expect(M.QueueDeleteOk)
        raw.declare(1, "q", durable=True)
        raw.send(1, publish(1, "amq.direct", "k", b"x", mandatory=True))
        assert raw.content(M.BasicReturn)[0].reply_code == 312


# ---- expiry -------------------------------------------------------------------------------------


def test_an_unused_queue_expires(server: Server, vhost: str) -> None:
    """R-Q-11: not dead-lettered, by argument and by policy."""
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    server.admin.set_policy(vhost, "expiring", "^by-policy$", {"expires": 300}, "queues")
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.declare(1, "dead", durable=True)
        raw.declare(1, "by-argument", durable=True, arguments=dead | {"x-expires": 300})
        raw.declare(1, "by-policy", durable=True)
        raw.declare(1, "stays", durable=True)
        raw.send(1, publish(1, "", "by-argument", b"x"))
        left = {"dead", "stays"}
        eventually(lambda: set(server.admin.queues(vhost)) == left, "both are gone")
        assert raw.count(1, "dead") == 0


def test_a_queue_with_a_consumer_does_not_expire(server: Server, vhost: str) -> None:
    """R-Q-11: the time starts when the last one goes."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.open(2)
        raw.declare(1, "used", durable=True, arguments={"x-expires": 300})
        raw.send(1, M.BasicConsume(0, "used", "c"))
        raw.expect(M.BasicConsumeOk)
        raw.declare(1, "unused", durable=True, arguments={"x-expires": 600})
        eventually(lambda: "unused" not in server.admin.queues(vhost), "the other is gone")
        assert "used" in server.admin.queues(vhost)
        raw.send(1, M.BasicCancel("c", False))
        raw.expect(M.BasicCancelOk)
        eventually(lambda: "used" not in server.admin.queues(vhost), "gone after its consumer")
