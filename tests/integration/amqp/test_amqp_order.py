"""Lifecycles of channels and connections against a real member: pipelines, races, ends."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from brokerd.amqp import methods
from brokerd.amqp.properties import BasicProperties
from tests.integration.members import PATIENCE_SECONDS, Member, cluster, eventually
from tests.integration.raw_client import RawClient, client, frame, publish

pytestmark = pytest.mark.timeout(240)

CAPABLE = {"consumer_cancel_notify": True, "connection.blocked": True}


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("order"), 1) as [member]:
        yield member


@pytest.fixture
def raw(member: Member) -> Iterator[RawClient]:
    with client(member.amqp_port, capabilities=CAPABLE) as made:
        made.open(1)
        yield made


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_a_method_finds_all_that_its_channel_published_before(raw: RawClient, kind: str) -> None:
    """R-CH-5: publishes that wait to go together are not overtaken."""
    queue = raw.declare(1, f"behind-{kind}", durable=True, arguments={"x-queue-type": kind})
    for number in range(200):
        raw.send(1, publish(1, "", queue, b"%d" % number))
        if number % 20 == 19:
            assert raw.count(1, queue) == number + 1


def test_a_pipeline_is_done_to_its_end_before_channel_and_connection_close(
    member: Member, raw: RawClient
) -> None:
    """What was sent before the closes counts, although the declare takes its time (R-CH-5)."""
    with client(member.amqp_port) as other:
        other.send(
            1,
            methods.ChannelOpen(),
            methods.QueueDeclare(0, "pipeline", durable=True, nowait=True),
            methods.QueueBind(0, "pipeline", "amq.direct", "key", nowait=True),
            *[publish(1, "amq.direct", "key", b"%d" % i) for i in range(100)],
            methods.ChannelClose(200, "bye"),
        )
        other.expect(methods.ChannelOpenOk)
        other.expect(methods.ChannelCloseOk)
        assert raw.count(1, "pipeline") == 100
        other.send(
            2,
            methods.ChannelOpen(),
            methods.QueueDeclare(0, "pipeline2", durable=True, nowait=True),
            publish(2, "", "pipeline2", b"x"),
            methods.ConnectionClose(200, "bye").encode(0),
        )
        assert raw.count(1, "pipeline") == 100
        other.expect(methods.ChannelOpenOk)
        other.expect(methods.ConnectionCloseOk)
    assert raw.count(1, "pipeline2") == 1


def test_empty_names_mean_the_queue_last_declared(raw: RawClient) -> None:
    """R-CH-10, all without waiting for an answer."""
    raw.send(
        1,
        methods.QueueDeclare(0, "", exclusive=True, nowait=True),
        methods.QueueBind(0, "", "amq.direct", "", nowait=True),
        methods.ConfirmSelect(True),
        methods.BasicConsume(0, "", "tag"),
    )
    raw.expect(methods.BasicConsumeOk)
    raw.send(1, methods.QueuePurge(0, ""))
    raw.expect(methods.QueuePurgeOk)
    raw.send(1, methods.QueueDelete(0, ""))
    # R-Q-12: the consumer is told.
    got = [raw.next_method(), raw.next_method()]
    assert {type(item[1]) for item in got if item} == {methods.BasicCancel, methods.QueueDeleteOk}


def test_the_empty_name_without_a_declare_is_not_found(raw: RawClient) -> None:
    """R-CH-10."""
    raw.send(1, methods.BasicGet(0, ""))
    closed = raw.expect(methods.ChannelClose)
    assert (closed.reply_code, closed.reply_text) == (
        404,
        "NOT_FOUND - no previously declared queue",
    )


def test_consume_ok_comes_before_the_first_delivery(raw: RawClient) -> None:
    queue = raw.declare(1, "", exclusive=True)
    raw.send(1, *[publish(1, "", queue, b"%d" % i) for i in range(50)])
    assert raw.count(1, queue) == 50
    for turn in range(5):
        raw.send(1, methods.BasicConsume(0, queue, f"t{turn}", exclusive=True))
        raw.expect(methods.BasicConsumeOk)
        for i in range(50):
            method, _, body = raw.content(methods.BasicDeliver)
            assert (body, method.redelivered) == (b"%d" % i, turn > 0)
        raw.send(1, methods.BasicCancel(f"t{turn}"))
        raw.expect(methods.BasicCancelOk)
        # R-CS-3: its deliveries stay with the channel until they are given back.
        assert raw.count(1, queue) == 0
        raw.send(1, methods.BasicRecover(True))
        raw.expect(methods.BasicRecoverOk)


def test_an_error_in_the_middle_of_a_batch_keeps_what_came_before(
    member: Member, raw: RawClient
) -> None:
    """R-PUB-10, R-ERR-46, R-ERR-47, R-CH-4."""
    raw.open(2)
    queue = raw.declare(2, "", exclusive=True)
    raw.send(1, methods.ConfirmSelect())
    raw.expect(methods.ConfirmSelectOk)
    raw.send(
        1,
        publish(1, "", queue, b"before"),
        publish(1, "missing", "key", b"wrong"),
        publish(1, "", queue, b"after"),
    )
    seen = []
    while not seen or not isinstance(seen[-1], methods.ChannelClose):
        found = raw.next_method()
        assert found is not None
        seen.append(found[1])
    closed = seen[-1]
    assert isinstance(closed, methods.ChannelClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (404, 60, 40)
    assert closed.reply_text == "NOT_FOUND - no exchange 'missing' in vhost '/'"
    raw.send(1, publish(1, "", queue, b"too late"), methods.ChannelCloseOk())
    raw.open(1)
    eventually(lambda: raw.count(2, queue) == 1, "only what came before the error")


def test_what_follows_a_connection_error_in_the_same_read_is_not_done(
    member: Member, raw: RawClient
) -> None:
    """R-CON-14, R-CON-15."""
    with client(member.amqp_port) as other:
        other.open(1)
        other.send(
            1,
            methods.BasicQos(prefetch_size=7),
            methods.ChannelOpen().encode(2),
            methods.QueueDeclare(0, "never", durable=True).encode(2),
            publish(2, "", "never", b"x"),
        )
        closed = other.expect(methods.ConnectionClose)
        assert (closed.reply_code, closed.class_id, closed.method_id) == (540, 60, 10)
        other.send(0, methods.ConnectionCloseOk())
        assert other.at_end()
    raw.send(1, methods.QueueDeclare(0, "never", passive=True))
    assert raw.expect(methods.ChannelClose).reply_code == 404


def test_a_number_is_not_free_before_close_ok(raw: RawClient) -> None:
    """R-CH-1, R-CH-4: the close waits for the declare, so does the number."""
    raw.send(
        1,
        methods.QueueDeclare(0, "slow", durable=True),
        methods.ChannelClose(200, ""),
        methods.ChannelOpen(),
    )
    closed = raw.expect(methods.ConnectionClose)
    assert closed.reply_text == "CHANNEL_ERROR - second 'channel.open' seen"


def test_a_failing_method_before_the_clients_close_gets_close_ok_only(raw: RawClient) -> None:
    queue = "x" * 10
    raw.send(
        1,
        methods.QueueDeclare(0, queue, durable=True, nowait=True),
        methods.BasicConsume(0, queue, "t", nowait=True, arguments={"x-priority": "high"}),
        methods.ChannelClose(200, ""),
    )
    raw.expect(methods.ChannelCloseOk)
    raw.open(1)


def test_exclusive_queue_of_a_client_that_is_gone_at_once_goes_too(
    member: Member, raw: RawClient
) -> None:
    """R-Q-9: the declare was still on its way when the socket closed."""
    names = [f"gone-{i}" for i in range(5)]
    for name in names:
        other = RawClient(member.amqp_port)
        other.send(1, methods.ChannelOpen(), methods.QueueDeclare(0, name, exclusive=True))
        other.close()
    for name in names:
        eventually(lambda name=name: _is_missing(raw, name), f"{name} is gone")


def _is_missing(raw: RawClient, name: str) -> bool:
    raw.send(7, methods.ChannelOpen(), methods.QueueDeclare(0, name, passive=True))
    raw.expect(methods.ChannelOpenOk)
    found = raw.next_method()
    assert found is not None
    if isinstance(found[1], methods.ChannelClose):
        raw.send(7, methods.ChannelCloseOk())
        return found[1].reply_code == 404
    raw.send(7, methods.ChannelClose(200, ""))
    raw.expect(methods.ChannelCloseOk)
    return False


def test_acks_after_the_queue_was_deleted_are_silent(raw: RawClient) -> None:
    """R-ACK-10, R-Q-12, R-CS-6."""
    raw.open(2)
    raw.declare(2, "doomed", durable=True)
    raw.send(1, *[publish(1, "", "doomed", b"x") for _ in range(3)])
    raw.send(1, methods.BasicConsume(0, "doomed", "tag"))
    raw.expect(methods.BasicConsumeOk)
    for _ in range(3):
        raw.content(methods.BasicDeliver)
    raw.send(2, methods.QueueDelete(0, "doomed"))
    kinds = {type(found[1]) for found in (raw.next_method(), raw.next_method()) if found}
    assert kinds == {methods.BasicCancel, methods.QueueDeleteOk}
    raw.send(1, methods.BasicAck(1, False), methods.BasicNack(3, True, True))
    assert raw.declare(1, "", exclusive=True)
    raw.send(1, methods.BasicAck(2, False))
    # It is settled: a second time is an error as ever (R-ACK-2).
    assert raw.expect(methods.ChannelClose).reply_text.endswith("unknown delivery tag 2")


def test_the_deleter_hears_delete_ok_before_its_consumers_are_cancelled(raw: RawClient) -> None:
    """R-CS-6: kombu deletes what it consumes, and takes a cancel before the answer for an error."""
    for turn in range(5):
        raw.declare(1, f"own-{turn}")
        raw.send(1, methods.BasicConsume(0, f"own-{turn}", f"c{turn}"))
        raw.expect(methods.BasicConsumeOk)
        raw.send(1, methods.QueueDelete(0, f"own-{turn}"))
        raw.expect(methods.QueueDeleteOk)
        assert raw.expect(methods.BasicCancel).consumer_tag == f"c{turn}"


def test_auto_delete_queue_goes_with_its_last_consumer(member: Member, raw: RawClient) -> None:
    """R-Q-10."""
    raw.declare(1, "auto", auto_delete=True)
    with client(member.amqp_port) as other:
        other.open(1)
        other.send(1, methods.BasicConsume(0, "auto", "t"))
        other.expect(methods.BasicConsumeOk)
        assert raw.count(1, "auto") == 0
    eventually(lambda: _is_missing(raw, "auto"), "the queue is gone")


def test_return_comes_before_its_confirm_and_tags_count_every_publish(raw: RawClient) -> None:
    """R-PUB-7, R-PC-1, R-PC-4."""
    queue = raw.declare(1, "", exclusive=True)
    raw.send(1, methods.ConfirmSelect())
    raw.expect(methods.ConfirmSelectOk)
    raw.send(1, publish(1, "", "nobody", b"back", mandatory=True), publish(1, "", queue, b"in"))
    method, _, body = raw.content(methods.BasicReturn)
    assert (method.reply_code, method.reply_text, body) == (312, "NO_ROUTE", b"back")
    highest = 0
    while highest < 2:
        highest = raw.expect(methods.BasicAck).delivery_tag


def test_one_refusing_queue_of_several_makes_a_nack_and_the_others_keep_theirs(
    raw: RawClient,
) -> None:
    """R-PC-3, R-PC-6, R-LEN-3."""
    raw.send(1, methods.ExchangeDeclare(0, "both", "fanout"))
    raw.expect(methods.ExchangeDeclareOk)
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    for name, table in (("roomy", {}), ("tight", limits)):
        raw.declare(1, name, durable=True, arguments=table)
        raw.send(1, methods.QueueBind(0, name, "both", ""))
        raw.expect(methods.QueueBindOk)
    raw.send(1, methods.ConfirmSelect())
    raw.expect(methods.ConfirmSelectOk)
    outcome: dict[int, bool] = {}
    for number in (1, 2, 3):
        raw.send(1, publish(1, "both", "", b"%d" % number))
        found = raw.next_method()
        assert found is not None
        method = found[1]
        assert isinstance(method, methods.BasicAck | methods.BasicNack)
        assert method.delivery_tag == number
        assert not method.multiple
        outcome[number] = isinstance(method, methods.BasicAck)
    assert outcome == {1: True, 2: False, 3: False}
    assert (raw.count(1, "roomy"), raw.count(1, "tight")) == (3, 1)


def test_publishes_before_confirm_select_confirm_nothing_behind_it(raw: RawClient) -> None:
    """R-PC-1: answers to earlier publishes come after the select, but number 1 is the next one."""
    raw.declare(1, "unnumbered", durable=True)
    raw.declare(
        1,
        "refusing-one",
        durable=True,
        arguments={"x-max-length": 0, "x-overflow": "reject-publish"},
    )
    for before in (1, 3):
        channel = 20 + before
        raw.open(channel)
        raw.send(
            channel,
            *[publish(channel, "", "unnumbered", b"x") for _ in range(before)],
            methods.ConfirmSelect(nowait=True),
            publish(channel, "", "refusing-one", b"y"),
        )
        nack = raw.expect(methods.BasicNack)
        assert (nack.delivery_tag, nack.multiple) == (1, False)
        raw.send(channel, publish(channel, "", "unnumbered", b"z"))
        ack = raw.expect(methods.BasicAck)
        assert (ack.delivery_tag, ack.multiple) == (2, False)


def test_deleting_a_queue_confirms_what_was_on_its_way(member: Member, raw: RawClient) -> None:
    """R-PC-7: every publish gets its ack, whether before or after the deletion."""
    raw.open(2)
    raw.declare(1, "deleted", durable=True)
    raw.send(1, methods.ConfirmSelect())
    raw.expect(methods.ConfirmSelectOk)
    batch = b"".join(publish(1, "", "deleted", b"x") for _ in range(500))
    raw.send(1, batch, methods.QueueDelete(0, "deleted").encode(2))
    highest, is_deleted = 0, False
    while highest < 500 or not is_deleted:
        found = raw.next_method()
        assert found is not None
        if isinstance(found[1], methods.BasicAck):
            highest = max(highest, found[1].delivery_tag)
        else:
            assert isinstance(found[1], methods.QueueDeleteOk)
            is_deleted = True


def test_copies_go_where_cc_and_bcc_say_and_bcc_is_not_shown(raw: RawClient) -> None:
    """R-RT-C1, R-RT-C2."""
    queues = [raw.declare(1, f"cc{i}", durable=True) for i in range(3)]
    properties = BasicProperties(headers={"CC": [queues[1]], "BCC": [queues[2]]}).encode()
    raw.send(1, publish(1, "", queues[0], b"copy", properties))
    for queue in queues:
        eventually(lambda queue=queue: raw.count(1, queue) == 1, "the copy")
        raw.send(1, methods.BasicGet(0, queue, True))
        _, got, _ = raw.content(methods.BasicGetOk)
        assert BasicProperties.decode(got).headers == {"CC": [queues[1]]}


def test_large_bodies_are_split_to_the_agreed_frame_size(member: Member) -> None:
    """R-FRM-10, SEC-43: 16 MiB pass, one byte more is refused, others go on."""
    with client(member.amqp_port, frame_max=8192) as small, client(member.amqp_port) as raw:
        small.open(1)
        raw.open(1)
        raw.open(2)
        raw.declare(1, "large", durable=True)
        body = bytes(range(256)) * 65_536
        raw.send(1, methods.ConfirmSelect())
        raw.expect(methods.ConfirmSelectOk)
        raw.send(1, publish(1, "", "large", body))
        raw.expect(methods.BasicAck)
        small.send(1, methods.BasicGet(0, "large", True))
        assert small.content(methods.BasicGetOk)[2] == body
        raw.send(
            2, methods.BasicPublish(0, "", "large").encode(2),
            frame(2, 2, struct.pack(">HHQH", 60, 0, len(body) + 1, 0)),
        )  # fmt: skip
        closed = raw.expect(methods.ChannelClose)
        assert closed.reply_text == (
            "PRECONDITION_FAILED - message size 16777217 is larger than configured max size "
            "16777216"
        )
        assert raw.count(1, "large") == 0


def test_a_new_secret_is_taken_and_proves_nothing(member: Member) -> None:
    """R-CON-13: RabbitMQ's internal database takes any, as amqplib's own suite expects."""
    with client(member.amqp_port) as raw:
        raw.send(0, methods.ConnectionUpdateSecret(b"guest", "rotation"))
        raw.expect(methods.ConnectionUpdateSecretOk)
        raw.send(0, methods.ConnectionUpdateSecret(b"no password", "rotation"))
        raw.expect(methods.ConnectionUpdateSecretOk)
        raw.open(1)
    refused = pika.ConnectionParameters(
        "127.0.0.1", member.amqp_port, credentials=pika.PlainCredentials("guest", "no password")
    )
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(refused)


def test_a_silent_client_is_dropped_and_the_server_beats(member: Member) -> None:
    """R-HB-1: between two and three intervals, without connection.close."""
    with client(member.amqp_port, heartbeat=1) as raw:
        raw.open(1)
        seen = b""
        while data := raw.socket.recv(4096):
            seen += data
        beat = b"\x08\x00\x00\x00\x00\x00\x00\xce"
        assert seen.count(beat) >= 2
        assert seen == beat * seen.count(beat)


def test_channels_are_limited_by_count(member: Member) -> None:
    """R-CH-2, R-ERR-24."""
    with client(member.amqp_port, channel_max=2) as raw:
        raw.open(500)
        raw.open(2)
        raw.send(3, methods.ChannelOpen())
        closed = raw.expect(methods.ConnectionClose)
        assert closed.reply_code == 530
        assert "number of channels opened (2) has reached the negotiated channel_max (2)" in (
            closed.reply_text
        )


def test_qos_applies_to_each_new_consumer(raw: RawClient) -> None:
    """R-QOS-2, R-QOS-3, R-QOS-5."""
    queue = raw.declare(1, "", exclusive=True)
    raw.send(1, *[publish(1, "", queue, b"%d" % i) for i in range(20)])
    raw.send(1, methods.BasicQos(0, 2, True), methods.BasicConsume(0, queue, "a"))
    raw.expect(methods.BasicQosOk)
    raw.expect(methods.BasicConsumeOk)
    for _ in range(2):
        raw.content(methods.BasicDeliver)
    raw.send(1, methods.BasicQos(0, 3, False), methods.BasicConsume(0, queue, "b"))
    raw.expect(methods.BasicQosOk)
    raw.expect(methods.BasicConsumeOk)
    tags = [raw.content(methods.BasicDeliver)[0] for _ in range(3)]
    assert {method.consumer_tag for method in tags} == {"b"}
    raw.send(1, methods.BasicNack(1, False, True))
    # The freed place is a's again.
    assert raw.content(methods.BasicDeliver)[0].consumer_tag == "a"


def test_everything_ends_with_exit_status_0(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as [member], client(member.amqp_port) as raw:
        raw.open(1)
        assert member.process is not None
        member.process.terminate()
        closed = raw.expect(methods.ConnectionClose)
        assert closed.reply_code == 320
        assert "shutdown" in closed.reply_text
        assert member.process.wait(PATIENCE_SECONDS) == 0


def test_clients_are_told_of_an_end_before_the_start_is_through(tmp_path: Path) -> None:
    """Between the opened port and the end of the start lie a tenth of a second and more."""
    with cluster(tmp_path, 1) as [member]:
        assert member.process is not None
        member.process.terminate()
        assert member.process.wait(PATIENCE_SECONDS) == 0
        member.program = "tests.integration.slow_start"
        member.start()
        member.wait_ready()
        with client(member.amqp_port) as raw:
            raw.open(1)
            queue = raw.declare(1, "kept", durable=True)
            raw.send(1, methods.ConfirmSelect(), publish(1, "", queue, b"kept"))
            raw.expect(methods.ConfirmSelectOk)
            raw.expect(methods.BasicAck)
            member.process.terminate()
            assert raw.expect(methods.ConnectionClose).reply_code == 320
            assert member.process.wait(PATIENCE_SECONDS) == 0
