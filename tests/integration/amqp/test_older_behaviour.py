"""What only older profiles have: a prefetch for the whole channel, `immediate`, and a consumer
timeout that costs the channel.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerd.amqp import methods
from brokerd.amqp.properties import BasicProperties
from brokerd.amqp.values import Table
from tests.integration.members import Member, cluster, eventually
from tests.integration.raw_client import PLAIN, RawClient, client, frame, publish

pytestmark = pytest.mark.timeout(240)

#: For all tests of this file: most hold messages for a moment.
TIMEOUT_MS = 8000
QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    old = {
        "BROKERD_COMPAT_PROFILE": "reference",
        "BROKERD_QUEUES_CONSUMER_TIMEOUT_MS": str(TIMEOUT_MS),
    }
    with cluster(tmp_path_factory.mktemp("old"), 1, **old) as [member]:
        yield member


@pytest.fixture
def raw(member: Member) -> Iterator[RawClient]:
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.open(2)
        yield raw


def fresh(raw: RawClient, name: str, **settings: object) -> str:
    raw.send(2, methods.QueueDelete(0, name))
    raw.expect(methods.QueueDeleteOk)
    return raw.declare(2, name, durable=True, **settings)


def fill(raw: RawClient, queue: str, count: int) -> None:
    raw.send(2, *[publish(2, "", queue, b"%d" % i) for i in range(count)])
    eventually(lambda: raw.count(2, queue) == count, "the messages are there")


def share(raw: RawClient, limit: int) -> None:
    raw.send(1, methods.BasicQos(0, limit, True))
    raw.expect(methods.BasicQosOk)


def consume(raw: RawClient, queue: str, tag: str, **settings: object) -> None:
    raw.send(1, methods.BasicConsume(0, queue, tag, **settings))  # type: ignore[arg-type]
    raw.expect(methods.BasicConsumeOk)


def delivered(raw: RawClient, count: int) -> list[tuple[str, int]]:
    """Return (consumer, tag) of so many deliveries; no more must have been sent."""
    found = []
    for _ in range(count):
        method, _, _ = raw.content(methods.BasicDeliver)
        found.append((method.consumer_tag, method.delivery_tag))
    # Whatever was sent before the answer would come first.
    raw.send(1, methods.ChannelFlow(True))
    raw.expect(methods.ChannelFlowOk)
    return found


def test_all_consumers_of_a_channel_share_a_prefetch(raw: RawClient) -> None:
    """R-QOS-3, R-QOS-4, R-QOS-5: acks, nacks and rejects make room, whoever's they are."""
    one, two = fresh(raw, "shared-1"), fresh(raw, "shared-2")
    fill(raw, one, 5)
    fill(raw, two, 5)
    share(raw, 3)
    consume(raw, one, "a")
    assert delivered(raw, 3) == [("a", 1), ("a", 2), ("a", 3)]
    consume(raw, two, "b")
    assert delivered(raw, 0) == []
    raw.send(1, methods.BasicAck(2, True))
    found = delivered(raw, 2)
    assert [tag for _, tag in found] == [4, 5]
    raw.send(1, methods.BasicReject(3, False))
    assert len(delivered(raw, 1)) == 1
    # Lifted: what waited comes.
    share(raw, 0)
    assert len(delivered(raw, 4)) == 4


def test_a_message_must_satisfy_both_limits_and_some_consumers_none(raw: RawClient) -> None:
    """R-QOS-3, R-QOS-4: each consumer's own limit holds too; without acks there is none."""
    one, two, three = (fresh(raw, f"both-{i}") for i in range(3))
    for queue in (one, two, three):
        fill(raw, queue, 4)
    share(raw, 3)
    raw.send(1, methods.BasicQos(0, 1, False))
    raw.expect(methods.BasicQosOk)
    consume(raw, one, "a")
    assert delivered(raw, 1) == [("a", 1)]
    consume(raw, two, "b")
    assert delivered(raw, 1) == [("b", 2)]
    consume(raw, three, "free", no_ack=True)
    assert [tag for tag, _ in delivered(raw, 4)] == ["free"] * 4
    raw.send(1, methods.BasicGet(0, one))
    assert raw.content(methods.BasicGetOk)[0].delivery_tag == 7


def test_quorum_queues_know_no_shared_prefetch(raw: RawClient) -> None:
    """R-QOS-3."""
    queue = fresh(raw, "shared-quorum", arguments=QUORUM)
    share(raw, 3)
    raw.send(1, methods.BasicConsume(0, queue, "q"))
    closed = raw.expect(methods.ConnectionClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (540, 60, 20)
    assert closed.reply_text == (
        "NOT_IMPLEMENTED - queue 'shared-quorum' in vhost '/' does not support global qos"
    )


def immediate(channel: int, exchange: str, key: str, body: bytes) -> bytes:
    method = methods.BasicPublish(0, exchange, key, False, True)
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + PLAIN
    return method.encode(channel) + frame(2, channel, header) + frame(3, channel, body)


def test_an_immediate_message_needs_a_consumer_with_room(raw: RawClient) -> None:
    """R-AE-15: otherwise it comes back with 313, and nothing is queued; its confirm follows."""
    queue = fresh(raw, "now")
    raw.send(2, methods.ConfirmSelect())
    raw.expect(methods.ConfirmSelectOk)
    raw.send(2, immediate(2, "", queue, b"early"), publish(2, "", queue, b"later"))
    returned, _, body = raw.content(methods.BasicReturn)
    assert (returned.reply_code, returned.reply_text, body) == (313, "NO_CONSUMERS", b"early")
    first = raw.expect(methods.BasicAck)
    if first.delivery_tag == 1:
        assert raw.expect(methods.BasicAck).delivery_tag == 2
    else:
        assert (first.delivery_tag, first.multiple) == (2, True)
    assert raw.count(2, queue) == 1
    raw.send(1, methods.BasicQos(0, 2, False))
    raw.expect(methods.BasicQosOk)
    consume(raw, queue, "c")
    assert raw.content(methods.BasicDeliver)[2] == b"later"
    raw.open(3)
    raw.send(3, immediate(3, "", queue, b"taken"))
    assert raw.content(methods.BasicDeliver)[2] == b"taken"
    # Two are unsettled: there is no room.
    raw.send(3, immediate(3, "", queue, b"too many"))
    returned, _, body = raw.content(methods.BasicReturn)
    assert (returned.reply_code, body) == (313, b"too many")


def test_an_immediate_message_nobody_takes_goes_to_the_alternate_exchange(raw: RawClient) -> None:
    """R-AE-15, S1: the alternate's queues are asked as well."""
    queue, other = fresh(raw, "now-busy"), fresh(raw, "now-other")
    raw.send(2, methods.ExchangeDeclare(0, "now-ae", "fanout", durable=True))
    raw.expect(methods.ExchangeDeclareOk)
    table: Table = {"alternate-exchange": "now-ae"}
    raw.send(2, methods.ExchangeDeclare(0, "now-x", "direct", durable=True, arguments=table))
    raw.expect(methods.ExchangeDeclareOk)
    for bind in (
        methods.QueueBind(0, queue, "now-x", "k"),
        methods.QueueBind(0, other, "now-ae", ""),
    ):
        raw.send(2, bind)
        raw.expect(methods.QueueBindOk)
    raw.send(2, immediate(2, "now-x", "k", b"nobody"))
    returned, _, _ = raw.content(methods.BasicReturn)
    assert (returned.reply_code, returned.exchange) == (313, "now-x")
    consume(raw, other, "c")
    raw.send(2, immediate(2, "now-x", "k", b"somebody"))
    method, _, body = raw.content(methods.BasicDeliver)
    assert (method.consumer_tag, method.exchange, body) == ("c", "now-x", b"somebody")
    assert raw.count(2, queue) == 0
    # Unroutable without mandatory is dropped, as ever.
    raw.send(2, immediate(2, "", "no-such-queue", b"dropped"))
    assert raw.count(2, queue) == 0


def test_an_immediate_message_of_a_transaction_comes_back_at_commit(raw: RawClient) -> None:
    """R-AE-15, R-TX-2: asked for when it is published, told at commit."""
    queue = fresh(raw, "now-tx")
    raw.send(1, methods.TxSelect())
    raw.expect(methods.TxSelectOk)
    raw.send(1, immediate(1, "", queue, b"rolled back"), methods.TxRollback())
    raw.expect(methods.TxRollbackOk)
    raw.send(1, immediate(1, "", queue, b"refused"), methods.TxCommit())
    returned, _, body = raw.content(methods.BasicReturn)
    assert (returned.reply_code, body) == (313, b"refused")
    raw.expect(methods.TxCommitOk)
    assert raw.count(2, queue) == 0


def test_a_slow_consumer_loses_its_channel(raw: RawClient) -> None:
    """R-CS-9, R-QQ-22 (scope channel): every queue type; its messages return; others go on."""
    queue = fresh(raw, "slow")
    fill(raw, queue, 1)
    consume(raw, queue, "c")
    raw.content(methods.BasicDeliver)
    closed = raw.expect(methods.ChannelClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (406, 0, 0)
    assert closed.reply_text.startswith(
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. "
        f"Timeout value used: {TIMEOUT_MS} ms."
    )
    eventually(lambda: raw.count(2, queue) == 1, "its message is back")


def test_quorum_queues_count_deliveries_in_one_header_from_the_first_get_on(
    raw: RawClient,
) -> None:
    """R-DL-4 (3.10): x-delivery-count alone; on a first delivery to a consumer there is none."""
    queue = fresh(raw, "counted", arguments=QUORUM)
    fill(raw, queue, 1)
    for count in range(2):
        raw.send(1, methods.BasicGet(0, queue))
        got, header, _ = raw.content(methods.BasicGetOk)
        assert BasicProperties.decode(header).headers == {"x-delivery-count": count}
        raw.send(1, methods.BasicReject(got.delivery_tag, True))
    consume(raw, queue, "c")
    _, header, _ = raw.content(methods.BasicDeliver)
    assert BasicProperties.decode(header).headers == {"x-delivery-count": 2}
    raw.send(2, publish(2, "", queue, b"new"))
    assert raw.content(methods.BasicDeliver)[1] == PLAIN


@pytest.mark.parametrize("flag", [True, False])
def test_there_are_no_mirrors_to_fail_over_from(raw: RawClient, flag: bool) -> None:
    """R-CS-5: x-cancel-on-ha-failover and unknown arguments are taken and do nothing."""
    queue = fresh(raw, "no-mirrors")
    fill(raw, queue, 1)
    consume(raw, queue, "c", arguments={"x-cancel-on-ha-failover": flag, "x-unknown": "?"})
    assert raw.content(methods.BasicDeliver)[2] == b"0"


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("x-cancel-on-ha-failover", "{unacceptable_type,longstr}"),
        ("x-priority", '"expected integer, got longstr"'),
    ],
)
def test_arguments_of_consumers_have_a_type(raw: RawClient, argument: str, problem: str) -> None:
    """R-CS-4, R-CS-5."""
    queue = fresh(raw, "typed")
    raw.send(1, methods.BasicConsume(0, queue, "c", arguments={argument: "yes"}))
    closed = raw.expect(methods.ChannelClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (406, 60, 20)
    assert closed.reply_text == (
        f"PRECONDITION_FAILED - invalid arg '{argument}' for queue 'typed' in vhost '/': {problem}"
    )
