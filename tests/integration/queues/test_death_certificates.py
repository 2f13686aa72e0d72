"""Which consumer had a dead letter: AMQP and gRPC, and members that are killed (ADR 88)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from brokerd.rpc.v1 import messages_pb2
from tests.integration.management.test_brokerctl import Ctl
from tests.integration.members import Member, cluster, eventually
from tests.integration.messages_client import Client

pytestmark = pytest.mark.timeout(300)

HEADER = "x-last-death-consumer"
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "t"}
AT_LEAST_ONCE = DEAD | {
    "x-queue-type": "quorum",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("certificates"), 1) as members:
        yield members[0]


@pytest.fixture
def channel(member: Member) -> Iterator[Any]:
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare("t", durable=True)
    yield channel
    for name in ("w", "t"):
        channel.queue_delete(name)
    connection.close()


def take(channel: Any, queue: str) -> tuple[Any, dict[str, Any]]:
    """Get one message, waiting for it; return its delivery tag and headers."""

    def got() -> Any:
        method, properties, _ = channel.basic_get(queue)
        return method and (method.delivery_tag, properties.headers or {})

    found: tuple[Any, dict[str, Any]] = eventually(got, f"a message in {queue}", 60)
    return found


def named(member: Member, name: str) -> pika.BlockingConnection:
    return member.connect(client_properties={"connection_name": name})


@pytest.mark.parametrize("arguments", [DEAD, AT_LEAST_ONCE], ids=["classic", "at-least-once"])
def test_a_client_that_rejects_is_named(
    channel: Any, member: Member, arguments: dict[str, str]
) -> None:
    """ADR 88: by its own name, with product and version; consumers and gets."""
    channel.queue_declare("w", durable=True, arguments=arguments)
    channel.basic_publish("", "w", b"bad")
    connection = named(member, "billing\x1b[31m-7")
    worker = connection.channel()
    worker.basic_qos(prefetch_count=1)
    for method, _, _ in worker.consume("w"):
        worker.basic_reject(method.delivery_tag, requeue=False)
        break
    worker.cancel()
    _, headers = take(channel, "t")
    found = headers[HEADER]
    assert found["connection"] == "billing\ufffd[31m-7"
    assert found["client"] == f"Pika Python Client Library {pika.__version__}"
    assert (found["outcome"], found["attempts"]) == ("rejected", 1)
    assert found["consumer-tag"].startswith("ctag")
    assert 0 <= found["held-for"] < 60_000
    assert headers["x-death"][0].keys().isdisjoint(("connection", "client"))
    channel.basic_publish("", "w", b"bad")
    tag, _ = take(worker, "w")
    worker.basic_reject(tag, requeue=False)
    found = take(channel, "t")[1][HEADER]
    assert (found["connection"], found["consumer-tag"]) == ("billing\ufffd[31m-7", "")
    connection.close()


def test_a_message_that_ends_its_consumers_says_so(channel: Any, member: Member) -> None:
    """ADR 88, R-DL-2: the last connection that was lost with it."""
    channel.queue_declare(
        "w", durable=True, arguments={**DEAD, "x-queue-type": "quorum", "x-delivery-limit": 1}
    )
    channel.basic_publish("", "w", b"poison")
    for name in ("first", "second"):
        connection = named(member, name)
        take(connection.channel(), "w")
        connection.close()
    headers = take(channel, "t")[1]
    found = headers[HEADER]
    assert headers["x-last-death-reason"] == "delivery_limit"
    assert (found["connection"], found["outcome"], found["attempts"]) == ("second", "closed", 2)


def test_a_grpc_client_says_why_and_triage_shows_it(channel: Any, member: Member) -> None:
    """ADR 88: what is longer than 255 bytes is cut."""
    channel.queue_declare("w", durable=True, arguments=AT_LEAST_ONCE)
    channel.basic_publish("", "w", b"bad")
    call = Client(member.grpc_port).consume(queue="w", credit=1)
    (delivery,) = call.next().deliveries
    call.send(
        messages_pb2.ConsumeRequest(
            settle=messages_pb2.Settlement(
                outcome=messages_pb2.Settlement.REJECT,
                delivery_tags=[delivery.delivery_tag],
                reason="no such customer\n" + "x" * 1_000,
            )
        )
    )
    tag, headers = take(channel, "t")
    found = headers[HEADER]
    assert found["reason"].startswith("no such customer\ufffdxxx")
    assert len(found["reason"].encode()) <= 255
    assert found["client"].startswith("grpc-python ")
    channel.basic_nack(tag)
    [group] = Ctl(f"127.0.0.1:{member.grpc_port}").rows("triage", "t")
    assert (group["client"], group["client_reason"]) == (found["client"], found["reason"])
    call.cancel()


def test_it_outlives_the_leader_of_its_queue(tmp_path: Path) -> None:
    """ADR 88, R-ALO-10: the letter and the consumer are replicated with their queue."""
    with cluster(tmp_path, 3) as members:
        connection = named(members[0], "billing-7")
        channel = connection.channel()
        channel.queue_declare("w", durable=True, arguments={**AT_LEAST_ONCE, **TO_NOWHERE})
        channel.confirm_delivery()
        channel.basic_publish("", "w", b"bad")
        tag, _ = take(channel, "w")
        channel.basic_reject(tag, requeue=False)
        # The answer to a declare comes after the rejection.
        assert channel.queue_declare("w", passive=True).method.message_count == 0
        members[0].kill()

        def declared() -> Any:
            try:
                channel = members[1].connect().channel()
                channel.queue_declare("later", durable=True)
            except pika.exceptions.AMQPError:
                return None
            return channel

        channel = eventually(declared, "a queue for the letter", 60)
        found = take(channel, "later")[1][HEADER]
        assert (found["connection"], found["outcome"]) == ("billing-7", "rejected")
        channel.connection.close()


#: Made when the leader of the letter is dead.
TO_NOWHERE = {"x-dead-letter-routing-key": "later"}
