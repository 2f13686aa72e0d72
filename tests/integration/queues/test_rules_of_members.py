"""Rules that show only in a member of our own: restarts, and settings that no other broker has.

What any broker shows to a client is in tests/compat/test_rules.py and test_rules_of_queues.py.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from brokerd.amqp import methods
from tests.compat import steps
from tests.integration.federation_rig import admin
from tests.integration.members import Member, cluster, eventually
from tests.integration.raw_client import client, publish

pytestmark = pytest.mark.timeout(240)
M = methods


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    small = {"BROKERD_COMPAT_MAX_MESSAGE_SIZE": "100000"}
    with cluster(tmp_path_factory.mktemp("rules"), 1, **small) as members:
        yield members[0]


def test_dead_letters_that_cannot_go_stop_the_publishers_of_their_queue(member: Member) -> None:
    """R-ALO-12, R-ALO-3, R-LEN-8: nacks while they wait, acks when they have gone."""
    connection = member.connect()
    channel = steps.confirming(connection)
    steps.exchange(channel, "nowhere", "fanout", durable=True)
    source = steps.quorum(
        channel,
        "source",
        x_dead_letter_exchange="nowhere",
        x_dead_letter_strategy="at-least-once",
        x_overflow="reject-publish",
        x_max_length=4,
    )
    for number in range(4):
        assert steps.publish(channel, "", source, b"%d" % number) == "ack"
        method, _, _ = steps.unacked(channel, source)
        channel.basic_reject(method.delivery_tag, requeue=False)
    assert steps.ready(channel, source) == 0

    def stopped() -> bool:
        fate = steps.publish(channel, "", source, b"more")
        if fate == "ack":
            method, _, _ = steps.unacked(channel, source)
            channel.basic_ack(method.delivery_tag)
        return fate == "nack"

    eventually(stopped, "publishers are told to stop")
    target = steps.bound(channel, "nowhere", "")
    steps.wait_ready(channel, target, 4)
    assert steps.drain(channel, target) == [b"0", b"1", b"2", b"3"]
    eventually(lambda: steps.publish(channel, "", source, b"last") == "ack", "and to go on")
    connection.close()


def test_a_size_is_judged_before_rights_and_existence(member: Member) -> None:
    """R-PUB-1, R-FRM-8, R-ERR-34, SEC-43: 406 for the channel, the connection goes on."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.send(1, publish(1, "missing", "k", bytes(100_001)))
        closed = raw.expect(M.ChannelClose)
        assert closed.reply_code == 406
        text = "message size 100001 is larger than configured max size 100000"
        assert closed.reply_text == f"PRECONDITION_FAILED - {text}"
        raw.send(1, M.ChannelCloseOk())
        raw.open(1)
        raw.declare(1, "q", exclusive=True)
        raw.send(1, publish(1, "", "q", bytes(100_000)), M.BasicGet(0, "q", True))
        assert len(raw.content(M.BasicGetOk)[2]) == 100_000


def test_an_imported_password_is_hashed_anew_at_the_first_login(member: Member) -> None:
    """SEC-14: the login works before and after, also with RabbitMQ's own hash."""
    raw = b"salt" + hashlib.sha512(b"salt" + b"secret").digest()
    imported = {"password_hash": "rabbitmq-sha512$" + base64.b64encode(raw).decode()}
    with admin(member) as client_:
        client_.put("user", "till", imported | {"tags": []}, "")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        client_.put("permission", "till", everything)
        before = client_.hash_of("user", "till")
        known = pika.PlainCredentials("till", "secret")
        member.connect(credentials=known).close()
        eventually(lambda: client_.hash_of("user", "till") != before, "the hash is another")
        after = client_.hash_of("user", "till")
        member.connect(credentials=known).close()
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            member.connect(credentials=pika.PlainCredentials("till", "Secret"))
        assert client_.hash_of("user", "till") == after
        client_.delete("user", "till", "")


def test_what_is_durable_at_both_ends_survives_a_restart(tmp_path: Path) -> None:
    """R-EX-9, R-AE-5: transient exchanges go, with all bindings from and to them."""
    with cluster(tmp_path, 1) as [member]:
        channel = member.connect().channel()
        for name, durable in (("kept", True), ("gone", False)):
            steps.exchange(channel, name, "topic", durable=durable)
            channel.queue_declare(f"{name}.queue", durable=True)
        for source in ("kept", "gone"):
            channel.queue_bind("kept.queue", source, "#")
        channel.exchange_bind("kept", "gone", "#")
        steps.exchange(channel, "or.else", "direct", durable=True, alternate="amq.topic")
        channel.queue_declare("rest", durable=True)
        channel.queue_bind("rest", "amq.topic", "#")
        assert steps.publish(steps.confirming(channel.connection), "or.else", "k", b"kept") == "ack"
        channel.exchange_bind("amq.fanout", "kept", "to.fanout")
        channel.queue_bind("gone.queue", "amq.fanout")
        assert member.stop() == 0
        member.start()
        member.wait_ready()
        connection = member.connect()
        channel = steps.confirming(connection)
        assert not steps.is_there(connection, "exchange", "gone")
        assert steps.publish(channel, "kept", "k", b"1", mandatory=True) == "ack"
        assert steps.publish(channel, "kept", "to.fanout", b"2", mandatory=True) == "ack"
        assert steps.drain(channel, "kept.queue") == [b"1", b"2"]
        assert steps.drain(channel, "gone.queue") == [b"2"]
        # What came by way of an alternate is as safe as anything, and the way is still there.
        assert steps.publish(channel, "or.else", "k", b"more", mandatory=True) == "ack"
        assert steps.drain(channel, "rest") == [b"kept", b"more"]
        # A new exchange of that name has none of the old bindings.
        steps.exchange(channel, "gone", "topic", durable=True)
        assert steps.publish(channel, "gone", "k", mandatory=True) == "returned"
        connection.close()


def redelivered(channel: Any, queue: str) -> list[tuple[bytes, bool]]:
    """Take what is ready; return (body, redelivered)."""
    return [(body, method.redelivered) for method, _, body in steps.drained(channel, queue)]


@pytest.mark.parametrize(
    ("kind", "end", "flagged"),
    [
        ("quorum", signal.SIGKILL, [True, False, False, False]),
        ("quorum", signal.SIGTERM, [True, False, False, False]),
        ("classic", signal.SIGTERM, [True, False, False, False]),
        # What it did last may be lost with it, so that any of them may have been delivered; after
        # such an end RabbitMQ flags all of them as well (ADR 23).
        ("classic", signal.SIGKILL, [True, True, True, True]),
    ],
)
def test_what_was_delivered_before_a_restart_is_flagged_after_it(
    tmp_path: Path, kind: str, end: signal.Signals, flagged: list[bool]
) -> None:
    """R-ACK-8: unacknowledged messages come back first and are redelivered, others are not."""
    with cluster(tmp_path, 1) as [member]:
        channel = steps.confirming(member.connect())
        queue = steps.queue(channel, "q", x_queue_type=kind)
        for body in (b"1", b"2", b"3"):
            steps.publish(channel, "", queue, body, delivery_mode=2)
        steps.unacked(channel, queue)
        # Takes what was got from a classic queue before it to the disk (ADR 23).
        steps.publish(channel, "", queue, b"4", delivery_mode=2)
        assert member.process is not None
        member.process.send_signal(end)
        member.process.wait(60)
        member.start()
        member.wait_ready()
        connection = member.connect()
        channel = connection.channel()
        steps.wait_ready(channel, queue, 4)
        expected = list(zip((b"1", b"2", b"3", b"4"), flagged, strict=True))
        assert redelivered(channel, queue) == expected
        connection.close()


def test_consumers_of_before_a_restart_are_in_nobodys_way(tmp_path: Path) -> None:
    """R-CS-2, R-CS-7, R-ACK-12: an exclusive and an active one died with their connection."""
    with cluster(tmp_path, 1) as [member]:
        channel = steps.confirming(member.connect())
        steps.queue(channel, "alone")
        steps.queue(channel, "active", x_single_active_consumer=True)
        steps.quorum(channel, "quorum", x_single_active_consumer=True)
        for queue in ("alone", "active", "quorum"):
            steps.publish(channel, "", queue, queue)
            steps.consumed(channel, queue, 1, exclusive=queue == "alone")
        member.kill()
        member.start()
        member.wait_ready()
        connection = member.connect()
        for queue in ("alone", "active", "quorum"):
            # Retried: the old consumer goes when the queue has a leader again.
            received = eventually(lambda q=queue: _consume(connection, q), f"{queue} is free")
            assert received[0][2] == queue.encode()
            assert received[0][0].redelivered
        connection.close()


def _consume(connection: Any, queue: str) -> list[Any] | None:
    """Consume one message on a channel of its own; None: somebody else has the queue."""
    channel = connection.channel()
    with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
        return steps.consumed(channel, queue, 1, exclusive=queue == "alone")
    return None


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_time_goes_on_while_a_member_is_away(tmp_path: Path, kind: str) -> None:
    """R-TTL-1, R-DLX-19: what is over is dead after the restart, what is not is delivered."""
    with cluster(tmp_path, 1) as [member]:
        channel = steps.confirming(member.connect())
        dead = steps.queue(channel, "dead")
        queue = steps.queue(
            channel,
            "q",
            x_queue_type=kind,
            x_dead_letter_exchange="",
            x_dead_letter_routing_key=dead,
        )
        steps.publish(channel, "", queue, b"short", expiration="1500", delivery_mode=2)
        steps.publish(channel, "", queue, b"long", expiration="600000", delivery_mode=2)
        member.kill()
        steps.pause_ms(1600)
        member.start()
        member.wait_ready()
        connection = member.connect()
        channel = connection.channel()
        _, properties, body = steps.take(channel, dead)
        assert (body, steps.deaths(properties)[0]["reason"]) == (b"short", "expired")
        assert redelivered(channel, queue) == [(b"long", False)]
        connection.close()


def test_properties_of_a_message_survive_a_restart(tmp_path: Path) -> None:
    """R-PUB-11, R-RT-C2: headers unchanged, CC kept, BCC never seen."""
    with cluster(tmp_path, 1) as [member]:
        channel = steps.confirming(member.connect())
        queue, copy = steps.queue(channel, "q"), steps.queue(channel, "copy")
        headers = {"z": 1, "a": [True, {"deep": b"bytes"}], "CC": [copy], "BCC": ["nobody"]}
        sent = pika.BasicProperties(
            headers=headers, message_id="m", timestamp=7, delivery_mode=2, priority=3
        )
        channel.basic_publish("", queue, b"body", sent)
        member.kill()
        member.start()
        member.wait_ready()
        connection = member.connect()
        channel = connection.channel()
        del headers["BCC"]
        for name in (queue, copy):
            method, got, body = steps.take(channel, name)
            assert (method.routing_key, body, got.headers) == (queue, b"body", headers)
            assert (got.message_id, got.timestamp, got.priority) == ("m", 7, 3)
        connection.close()
