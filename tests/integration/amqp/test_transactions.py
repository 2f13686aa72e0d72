"""Transactions of real members: what commit, rollback and their errors look like to a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.amqp import methods
from brokerd.amqp.values import Table
from tests.integration.members import Member, cluster, eventually
from tests.integration.raw_client import RawClient, client, publish

pytestmark = pytest.mark.timeout(240)

QUEUES = [{"durable": True}, {"durable": True, "arguments": {"x-queue-type": "quorum"}}]


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    small = {"BROKERD_LIMITS_TRANSACTION_BYTES": "65536"}
    with cluster(tmp_path_factory.mktemp("tx"), 1, **small) as [member]:
        yield member


@pytest.fixture
def raw(member: Member) -> Iterator[RawClient]:
    """A client with a transactional channel 1 and an ordinary channel 2."""
    with client(member.amqp_port, capabilities={"consumer_cancel_notify": True}) as raw:
        raw.open(1)
        raw.open(2)
        raw.send(1, methods.TxSelect())
        raw.expect(methods.TxSelectOk)
        yield raw


def commit(raw: RawClient) -> None:
    raw.send(1, methods.TxCommit())
    raw.expect(methods.TxCommitOk)


def roll_back(raw: RawClient) -> None:
    raw.send(1, methods.TxRollback())
    raw.expect(methods.TxRollbackOk)


def get(raw: RawClient, channel: int, queue: str) -> methods.BasicGetOk | None:
    raw.send(channel, methods.BasicGet(0, queue))
    found = raw.next_method()
    assert found is not None
    if isinstance(found[1], methods.BasicGetEmpty):
        return None
    assert isinstance(found[1], methods.BasicGetOk)
    raw.next_frame()
    raw.next_frame()
    return found[1]


def fresh(raw: RawClient, name: str, **settings: object) -> str:
    raw.send(2, methods.QueueDelete(0, name))
    raw.expect(methods.QueueDeleteOk)
    return raw.declare(2, name, **settings)


@pytest.mark.parametrize("settings", QUEUES, ids=["classic", "quorum"])
def test_messages_appear_at_commit_in_order_and_after_rollback_not_at_all(
    raw: RawClient, settings: dict[str, object]
) -> None:
    """R-TX-1, R-TX-2, R-TX-3, R-TX-4."""
    queue = fresh(raw, "tx-appear", **settings)
    raw.send(1, *[publish(1, "", queue, b"%d" % i) for i in range(3)])
    assert raw.count(2, queue) == 0
    roll_back(raw)
    raw.send(1, *[publish(1, "", queue, b"%d" % i) for i in range(3, 7)])
    assert raw.count(2, queue) == 0
    commit(raw)
    assert raw.count(2, queue) == 4
    bodies = []
    for _ in range(4):
        raw.send(2, methods.BasicGet(0, queue, no_ack=True))
        bodies.append(raw.content(methods.BasicGetOk)[2])
    assert bodies == [b"3", b"4", b"5", b"6"]
    # An empty commit, and one after a rollback, are fine.
    commit(raw)


def test_a_commit_spans_queues_and_exchanges(raw: RawClient) -> None:
    """R-TX-1: one commit for all queues of the channel; copies of a fanout too."""
    names = [fresh(raw, f"tx-span-{i}", durable=True) for i in range(3)]
    for name in names:
        raw.send(2, methods.QueueBind(0, name, "amq.fanout", ""))
        raw.expect(methods.QueueBindOk)
    raw.send(1, publish(1, "amq.fanout", "", b"all"), publish(1, "", names[1], b"one"))
    commit(raw)
    assert [raw.count(2, name) for name in names] == [1, 2, 1]
    for name in names:
        raw.send(2, methods.QueueDelete(0, name))
        raw.expect(methods.QueueDeleteOk)


def test_unroutable_mandatory_messages_come_back_at_commit_before_commit_ok(
    raw: RawClient,
) -> None:
    """R-TX-2, R-AE-14, R-PUB-7."""
    raw.send(1, publish(1, "", "nowhere", b"back", mandatory=True))
    raw.send(1, publish(1, "", "nowhere", b"dropped"))
    assert raw.count(2, fresh(raw, "tx-none", durable=True)) == 0
    raw.send(1, methods.TxCommit())
    returned, _, body = raw.content(methods.BasicReturn)
    assert (returned.reply_code, returned.routing_key, body) == (312, "nowhere", b"back")
    raw.expect(methods.TxCommitOk)


def test_routing_is_decided_when_the_message_comes(raw: RawClient) -> None:
    """R-AE-14, R-TX-2: a queue that is declared before the commit gets nothing."""
    raw.send(2, methods.QueueDelete(0, "tx-late"))
    raw.expect(methods.QueueDeleteOk)
    raw.send(1, publish(1, "", "tx-late", b"early"))
    raw.declare(1, "tx-late", durable=True)
    commit(raw)
    assert raw.count(2, "tx-late") == 0


def test_acks_count_at_commit_and_are_forgotten_by_rollback(raw: RawClient) -> None:
    """R-ACK-9, R-TX-1, R-TX-4, R-TX-5: the same tags are valid again, nothing is delivered anew."""
    queue = fresh(raw, "tx-acks", durable=True)
    raw.send(2, *[publish(2, "", queue, b"m") for _ in range(3)])
    eventually(lambda: raw.count(2, queue) == 3, "three messages are there")
    tags = []
    for _ in range(3):
        got = get(raw, 1, queue)
        assert got is not None
        tags.append(got.delivery_tag)
    raw.send(1, methods.BasicAck(tags[1], True))
    roll_back(raw)
    assert get(raw, 1, queue) is None
    raw.send(1, methods.BasicAck(tags[0], False), methods.BasicNack(tags[1], False, True))
    commit(raw)
    again = get(raw, 1, queue)
    assert again is not None
    assert again.redelivered
    # The third is still held by the channel, whose end returns it and the uncommitted second.
    raw.send(1, methods.BasicAck(tags[2], False), methods.BasicAck(again.delivery_tag, False))
    raw.send(1, methods.ChannelClose(200, "", 0, 0))
    raw.expect(methods.ChannelCloseOk)
    eventually(lambda: raw.count(2, queue) == 2, "R-TX-6: an end of the channel is a rollback")


def test_a_wrong_tag_is_an_error_at_once_and_rolls_back(raw: RawClient) -> None:
    """R-TX-5, R-TX-6: a tag acked in the transaction is not valid a second time."""
    queue = fresh(raw, "tx-tags", durable=True)
    raw.send(2, publish(2, "", queue, b"m"))
    eventually(lambda: raw.count(2, queue) == 1, "the message is there")
    got = get(raw, 1, queue)
    assert got is not None
    raw.send(1, publish(1, "", queue, b"never"))
    raw.send(
        1, methods.BasicAck(got.delivery_tag, False), methods.BasicAck(got.delivery_tag, False)
    )
    closed = raw.expect(methods.ChannelClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (406, 60, 80)
    assert closed.reply_text == f"PRECONDITION_FAILED - unknown delivery tag {got.delivery_tag}"
    eventually(lambda: raw.count(2, queue) == 1, "only the old message is there")


def test_messages_rejected_in_a_transaction_die_at_commit(raw: RawClient) -> None:
    """R-TX-7."""
    dead = fresh(raw, "tx-dead", durable=True)
    settings = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = fresh(raw, "tx-dying", durable=True, arguments=settings)
    raw.send(2, publish(2, "", queue, b"m"))
    eventually(lambda: raw.count(2, queue) == 1, "the message is there")
    got = get(raw, 1, queue)
    assert got is not None
    raw.send(1, methods.BasicReject(got.delivery_tag, False))
    assert raw.count(1, dead) == 0
    commit(raw)
    eventually(lambda: raw.count(2, dead) == 1, "the dead letter has come")


@pytest.mark.parametrize("settings", QUEUES, ids=["classic", "quorum"])
def test_a_queue_that_refuses_makes_commit_fail_and_the_others_keep_theirs(
    raw: RawClient, settings: dict[str, object]
) -> None:
    """R-TX-3: it is not atomic across queues."""
    arguments: dict[str, object] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    if "arguments" in settings:
        arguments["x-queue-type"] = "quorum"
    full = fresh(raw, "tx-full", durable=True, arguments=arguments)
    other = fresh(raw, "tx-other", durable=True)
    raw.send(1, *[publish(1, "", full, b"m") for _ in range(4)], publish(1, "", other, b"m"))
    raw.send(1, methods.TxCommit())
    closed = raw.expect(methods.ChannelClose)
    assert closed.reply_text == "PRECONDITION_FAILED - partial tx completion"
    assert (closed.reply_code, closed.class_id, closed.method_id) == (406, 90, 20)
    assert raw.count(2, other) == 1
    assert raw.count(2, full) >= 1


def test_an_error_of_a_publish_ends_the_transaction(raw: RawClient) -> None:
    """R-TX-2: checks are made when the message comes; R-TX-6: nothing of it stays."""
    queue = fresh(raw, "tx-error", durable=True)
    raw.send(1, publish(1, "", queue, b"m"), publish(1, "no-such-exchange", "k", b"m"))
    closed = raw.expect(methods.ChannelClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (404, 60, 40)
    assert raw.count(2, queue) == 0


def test_nobody_commits_without_select_or_mixes_it_with_confirms(raw: RawClient) -> None:
    """R-CH-8, R-ERR-18, R-ERR-19; selecting twice is fine."""
    raw.send(1, methods.TxSelect())
    raw.expect(methods.TxSelectOk)
    raw.send(1, methods.ConfirmSelect())
    closed = raw.expect(methods.ChannelClose)
    assert closed.reply_text == "PRECONDITION_FAILED - cannot switch from tx to confirm mode"
    for channel, method, text in (
        (3, methods.TxCommit(), "channel is not transactional"),
        (4, methods.TxRollback(), "channel is not transactional"),
    ):
        raw.open(channel)
        raw.send(channel, method)
        closed = raw.expect(methods.ChannelClose)
        assert (closed.reply_code, closed.reply_text) == (406, f"PRECONDITION_FAILED - {text}")
    raw.open(5)
    raw.send(5, methods.ConfirmSelect())
    raw.expect(methods.ConfirmSelectOk)
    raw.send(5, methods.TxSelect())
    closed = raw.expect(methods.ChannelClose)
    assert closed.reply_text == "PRECONDITION_FAILED - cannot switch from confirm to tx mode"


def test_nothing_may_come_while_a_commit_is_under_way(raw: RawClient) -> None:
    """R-CH-9."""
    queue = fresh(raw, "tx-hurry", durable=True)
    raw.send(
        1, publish(1, "", queue, b"m"), methods.TxCommit(), methods.QueueDeclare(0, queue, True)
    )
    closed = raw.expect(methods.ConnectionClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (504, 50, 10)
    assert closed.reply_text == ("CHANNEL_ERROR - unexpected command while processing 'tx.commit'")


def test_a_channel_may_be_closed_while_a_commit_is_under_way(raw: RawClient) -> None:
    """R-CH-9: the close is answered, the message is there."""
    queue = fresh(raw, "tx-close", durable=True)
    raw.send(
        1, publish(1, "", queue, b"m"), methods.TxCommit(), methods.ChannelClose(200, "", 0, 0)
    )
    raw.expect(methods.ChannelCloseOk)
    eventually(lambda: raw.count(2, queue) == 1, "what was committed is there")


def test_a_transaction_has_a_limit(raw: RawClient) -> None:
    """SEC-44: what waits for a commit is held by nobody else."""
    queue = fresh(raw, "tx-large", durable=True)
    raw.send(1, publish(1, "", queue, bytes(40_000)))
    commit(raw)
    raw.send(1, publish(1, "", queue, bytes(40_000)), publish(1, "", queue, bytes(40_000)))
    closed = raw.expect(methods.ChannelClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (406, 60, 40)
    assert "larger than 65536 bytes" in closed.reply_text
    assert raw.count(2, queue) == 1


def test_acks_in_a_transaction_make_no_room_for_more(raw: RawClient) -> None:
    """R-TX-1, R-QOS-4: the consumer has its next message after the commit, not before."""
    queue = fresh(raw, "tx-room", durable=True)
    raw.send(2, *[publish(2, "", queue, b"m") for _ in range(2)])
    eventually(lambda: raw.count(2, queue) == 2, "two messages are there")
    raw.send(1, methods.BasicQos(0, 1), methods.BasicConsume(0, queue, "c"))
    raw.expect(methods.BasicQosOk)
    raw.expect(methods.BasicConsumeOk)
    first, _, _ = raw.content(methods.BasicDeliver)
    raw.send(1, methods.BasicAck(first.delivery_tag, False))
    assert raw.count(2, queue) == 1
    raw.send(1, methods.TxCommit())
    raw.expect(methods.TxCommitOk)
    second, _, _ = raw.content(methods.BasicDeliver)
    assert second.delivery_tag == 2


def committed(raw: RawClient, count: int) -> list[bytes]:
    """Commit; return the bodies of so many deliveries that come meanwhile, in order."""
    raw.send(1, methods.TxCommit())
    bodies: list[bytes] = []
    is_answered = False
    while not is_answered or len(bodies) < count:
        found = raw.next_method()
        assert found is not None
        if isinstance(found[1], methods.TxCommitOk):
            is_answered = True
            continue
        assert isinstance(found[1], methods.BasicDeliver)
        assert not found[1].redelivered
        raw.next_frame()
        body = raw.next_frame()
        assert body is not None
        bodies.append(body[2])
    return bodies


def test_a_transaction_outlives_the_leader_of_its_queue(tmp_path: Path) -> None:
    """R-TX-3, R-QQ-10: what it has acked is not delivered again; what it commits comes once."""
    with cluster(tmp_path, 3) as [leader, other, third]:
        quorum: Table = {"x-queue-type": "quorum"}
        with client(leader.amqp_port) as raw:
            raw.open(1)
            raw.declare(1, "kept", durable=True, arguments=quorum)
            raw.send(1, methods.ConfirmSelect(nowait=True))
            raw.send(1, *[publish(1, "", "kept", b"%d" % i) for i in range(5)])
            while raw.expect(methods.BasicAck).delivery_tag < 5:
                pass
        with client(other.amqp_port) as raw:
            raw.open(1)
            raw.open(2)
            raw.send(1, methods.TxSelect(), methods.BasicQos(0, 3))
            raw.expect(methods.TxSelectOk)
            raw.expect(methods.BasicQosOk)
            raw.send(1, methods.BasicConsume(0, "kept", "c"))
            raw.expect(methods.BasicConsumeOk)
            tags = [raw.content(methods.BasicDeliver)[0].delivery_tag for _ in range(3)]
            raw.send(1, methods.BasicAck(tags[1], True), publish(1, "", "kept", b"new"))
            assert raw.count(2, "kept") == 2
            leader.kill()
            # Two places are free; the third message is still this consumer's.
            assert committed(raw, 2) == [b"3", b"4"]
            eventually(lambda: raw.count(2, "kept") == 1, "the committed message waits")
            raw.send(1, methods.BasicAck(0, True))
            assert committed(raw, 1) == [b"new"]
        assert third.process is not None
        assert third.process.poll() is None
