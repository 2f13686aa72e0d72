"""Transactions (R-TX): what is seen before and after commit and rollback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from brokerd.amqp import methods as M
from tests.compat.servers import Closed, Server, closed_by
from tests.integration.members import eventually
from tests.integration.raw_client import RawClient, publish

QUORUM = {"x-queue-type": "quorum"}
COMMIT, ROLLBACK = M.TxCommit(), M.TxRollback()


@contextlib.contextmanager
def selected(server: Server, vhost: str, **arguments: Any) -> Iterator[RawClient]:
    """Channel 1 is transactional, channel 2 is not; queue q exists."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.open(2)
        raw.declare(2, "q", durable=True, arguments=arguments)
        raw.send(1, M.TxSelect())
        raw.expect(M.TxSelectOk)
        yield raw


def commit(raw: RawClient) -> None:
    raw.send(1, COMMIT)
    raw.expect(M.TxCommitOk)


def rollback(raw: RawClient) -> None:
    raw.send(1, ROLLBACK)
    raw.expect(M.TxRollbackOk)


def get(raw: RawClient, channel: int = 1, queue: str = "q") -> tuple[int, bool, bytes]:
    """Get a message unacknowledged: tag, redelivered, body."""
    raw.send(channel, M.BasicGet(0, queue, False))
    method, _, body = raw.content(M.BasicGetOk)
    return method.delivery_tag, method.redelivered, body


def settled(raw: RawClient) -> None:
    """Wait until the server has taken what was sent on channel 1."""
    raw.send(1, M.BasicQos(0, 0, False))
    raw.expect(M.BasicQosOk)


@pytest.mark.parametrize("arguments", [{}, QUORUM], ids=["classic", "quorum"])
def test_publishes_are_seen_at_commit(
    server: Server, vhost: str, arguments: dict[str, Any]
) -> None:
    """R-TX-1, R-TX-2."""
    with selected(server, vhost, **arguments) as raw:
        raw.send(1, publish(1, "", "q", b"1"), publish(1, "", "q", b"2"))
        settled(raw)
        assert raw.count(2, "q") == 0
        commit(raw)
        assert raw.count(2, "q") == 2
        assert [get(raw)[2], get(raw)[2]] == [b"1", b"2"]


def test_publishes_are_dropped_at_rollback(server: Server, vhost: str) -> None:
    """R-TX-4."""
    with selected(server, vhost) as raw:
        raw.send(1, publish(1, "", "q", b"no"))
        rollback(raw)
        raw.send(1, publish(1, "", "q", b"yes"))
        commit(raw)
        assert get(raw)[2] == b"yes"
        assert raw.count(2, "q") == 0


def test_empty_commits_and_rollbacks_are_answered(server: Server, vhost: str) -> None:
    """R-TX-1."""
    with selected(server, vhost) as raw:
        for _ in range(3):
            commit(raw)
            rollback(raw)


def test_unroutable_messages_come_back_at_commit(server: Server, vhost: str) -> None:
    """R-TX-2, R-PUB-7: before commit-ok, in order."""
    with selected(server, vhost) as raw:
        raw.send(1, publish(1, "", "no1", b"1", mandatory=True))
        raw.send(1, publish(1, "", "q", b"2", mandatory=True))
        raw.send(1, publish(1, "amq.direct", "no3", b"3", mandatory=True), M.BasicQos(0, 0, False))
        raw.expect(M.BasicQosOk)
        raw.send(1, COMMIT)
        first, second = raw.content(M.BasicReturn), raw.content(M.BasicReturn)
        raw.expect(M.TxCommitOk)
        assert [(m.exchange, m.routing_key, body) for m, _, body in (first, second)] == [
            ("", "no1", b"1"),
            ("amq.direct", "no3", b"3"),
        ]


def test_unroutable_messages_do_not_come_back_at_rollback(server: Server, vhost: str) -> None:
    """R-TX-4."""
    with selected(server, vhost) as raw:
        raw.send(1, publish(1, "", "nobody", b"x", mandatory=True))
        rollback(raw)
        commit(raw)


@pytest.mark.parametrize("is_bound_first", [True, False])
def test_when_a_message_of_a_transaction_is_routed(
    server: Server, vhost: str, is_bound_first: bool
) -> None:
    """R-TX-2, R-AE-14."""
    with selected(server, vhost) as raw:
        if is_bound_first:
            raw.send(2, M.QueueBind(0, "q", "amq.direct", "k"))
            raw.expect(M.QueueBindOk)
        raw.send(1, publish(1, "amq.direct", "k", b"x"))
        settled(raw)
        if is_bound_first:
            raw.send(2, M.QueueUnbind(0, "q", "amq.direct", "k"))
            raw.expect(M.QueueUnbindOk)
        else:
            raw.send(2, M.QueueBind(0, "q", "amq.direct", "k"))
            raw.expect(M.QueueBindOk)
        commit(raw)
        assert raw.count(2, "q") == is_bound_first


def test_a_wrong_publish_is_told_at_once(server: Server, vhost: str) -> None:
    """R-TX-2, R-TX-6: and ends the transaction."""
    with selected(server, vhost) as raw:
        raw.send(1, publish(1, "", "q", b"x"), publish(1, "nope", "k", b"y"))
        text = f"NOT_FOUND - no exchange 'nope' in vhost '{vhost}'"
        assert closed_by(raw) == Closed("channel", 404, text, (60, 40))
        assert raw.count(2, "q") == 0


def test_a_queue_that_refuses_fails_the_commit(server: Server, vhost: str) -> None:
    """R-TX-3: the other queues keep their copies."""
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    with selected(server, vhost) as raw:
        raw.declare(2, "full", durable=True, arguments=full)
        raw.send(1, publish(1, "", "full", b"x"), publish(1, "", "q", b"y"), COMMIT)
        text = "PRECONDITION_FAILED - partial tx completion"
        assert closed_by(raw) == Closed("channel", 406, text, (90, 20))
        assert (raw.count(2, "full"), raw.count(2, "q")) == (0, 1)


@pytest.mark.parametrize("how", ["ack", "nack", "reject", "ack all"])
def test_settlements_count_from_commit(server: Server, vhost: str, how: str) -> None:
    """R-TX-1: until then the message is unacknowledged."""
    methods = {
        "ack": M.BasicAck(1, False),
        "nack": M.BasicNack(1, False, False),
        "reject": M.BasicReject(1, False),
        "ack all": M.BasicAck(0, True),
    }
    with selected(server, vhost) as raw:
        raw.send(2, publish(2, "", "q", b"x"))
        eventually(lambda: raw.count(2, "q") == 1, "the message")
        assert get(raw) == (1, False, b"x")
        raw.send(1, methods[how])
        settled(raw)
        raw.send(1, M.ChannelClose(200, "", 0, 0))
        raw.expect(M.ChannelCloseOk)
        eventually(lambda: raw.count(2, "q") == 1, "it is back: R-TX-6")
        raw.open(1)
        raw.send(1, M.TxSelect())
        raw.expect(M.TxSelectOk)
        assert get(raw) == (1, True, b"x")
        raw.send(1, methods[how])
        commit(raw)
        raw.send(1, M.ChannelClose(200, "", 0, 0))
        raw.expect(M.ChannelCloseOk)
        assert raw.count(2, "q") == 0


def test_rollback_makes_the_same_tags_unacknowledged_again(server: Server, vhost: str) -> None:
    """R-TX-4: nothing is redelivered."""
    with selected(server, vhost) as raw:
        raw.send(2, publish(2, "", "q", b"1"), publish(2, "", "q", b"2"))
        eventually(lambda: raw.count(2, "q") == 2, "both messages")
        assert (get(raw), get(raw)) == ((1, False, b"1"), (2, False, b"2"))
        raw.send(1, M.BasicAck(1, False), M.BasicNack(2, False, True))
        rollback(raw)
        assert raw.count(2, "q") == 0
        raw.send(1, M.BasicAck(2, True))
        commit(raw)
        raw.send(1, M.BasicAck(1, False))
        text = "PRECONDITION_FAILED - unknown delivery tag 1"
        assert closed_by(raw) == Closed("channel", 406, text, (60, 80))


def test_tags_are_looked_at_when_they_are_settled(server: Server, vhost: str) -> None:
    """R-TX-5."""
    with selected(server, vhost) as raw:
        raw.send(1, M.BasicAck(7, False))
        assert closed_by(raw).code == 406


def test_a_tag_is_settled_once_in_a_transaction(server: Server, vhost: str) -> None:
    """R-TX-5."""
    with selected(server, vhost) as raw:
        raw.send(2, publish(2, "", "q", b"1"))
        eventually(lambda: raw.count(2, "q") == 1, "the message")
        get(raw)
        raw.send(1, M.BasicAck(1, False), M.BasicAck(1, False))
        text = "PRECONDITION_FAILED - unknown delivery tag 1"
        assert closed_by(raw) == Closed("channel", 406, text, (60, 80))


def test_requeueing_happens_at_commit(server: Server, vhost: str) -> None:
    """R-TX-1."""
    with selected(server, vhost) as raw:
        raw.send(2, publish(2, "", "q", b"1"))
        eventually(lambda: raw.count(2, "q") == 1, "the message")
        get(raw)
        raw.send(1, M.BasicNack(1, False, True))
        settled(raw)
        assert raw.count(2, "q") == 0
        commit(raw)
        eventually(lambda: raw.count(2, "q") == 1, "the message again")
        assert get(raw) == (2, True, b"1")


def test_dead_lettering_happens_at_commit(server: Server, vhost: str) -> None:
    """R-TX-7."""
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    with selected(server, vhost, **dead) as raw:
        raw.declare(2, "dead", durable=True)
        raw.send(2, publish(2, "", "q", b"1"))
        eventually(lambda: raw.count(2, "q") == 1, "the message")
        get(raw)
        raw.send(1, M.BasicNack(1, False, False))
        settled(raw)
        assert raw.count(2, "dead") == 0
        commit(raw)
        eventually(lambda: raw.count(2, "dead") == 1, "the dead letter")


def test_other_methods_are_not_part_of_it(server: Server, vhost: str) -> None:
    """R-TX-1: gets, declares, purges and consumes act at once."""
    with selected(server, vhost) as raw:
        raw.send(2, publish(2, "", "q", b"1"), publish(2, "", "q", b"2"))
        eventually(lambda: raw.count(2, "q") == 2, "both messages")
        raw.declare(1, "new", durable=True)
        raw.send(1, M.BasicGet(0, "q", True))
        assert raw.content(M.BasicGetOk)[2] == b"1"
        raw.send(1, M.BasicConsume(0, "q", "c", no_ack=True))
        raw.expect(M.BasicConsumeOk)
        assert raw.content(M.BasicDeliver)[2] == b"2"
        rollback(raw)
        assert (raw.count(2, "q"), raw.count(2, "new")) == (0, 0)


def test_publish_and_ack_together(server: Server, vhost: str) -> None:
    """R-TX-1: take from one queue, put into another."""
    with selected(server, vhost) as raw:
        raw.declare(2, "next", durable=True)
        raw.send(2, publish(2, "", "q", b"work"))
        eventually(lambda: raw.count(2, "q") == 1, "the message")
        tag, _, body = get(raw)
        raw.send(1, publish(1, "", "next", body + b" done"), M.BasicAck(tag, False))
        settled(raw)
        assert raw.count(2, "next") == 0
        commit(raw)
        assert get(raw, 2, "next")[2] == b"work done"
        assert raw.count(2, "q") == 0


def test_a_queue_deleted_before_commit_takes_nothing(server: Server, vhost: str) -> None:
    """R-TX-3, R-PC-7: its deletion counts as taken over."""
    with selected(server, vhost) as raw:
        raw.send(1, publish(1, "", "q", b"x"))
        settled(raw)
        raw.send(2, M.QueueDelete(0, "q"))
        raw.expect(M.QueueDeleteOk)
        commit(raw)
