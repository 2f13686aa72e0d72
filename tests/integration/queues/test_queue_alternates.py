"""The alternate exchange of a queue, on a real member with profile mrg over the default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.federation_rig import admin
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(240)

PROFILE = {"BROKERD_COMPAT_PROFILE": "brokerd+mrg"}


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("mrg"), 1, **PROFILE) as members:
        yield members[0]


@pytest.fixture
def channel(member: Member) -> Iterator[Any]:
    """A channel beside `alt`, a fanout exchange with the queue `rest` behind it."""
    connection = member.connect()
    channel = connection.channel()
    channel.exchange_declare("alt", "fanout", durable=True)
    channel.queue_declare("rest", durable=True)
    channel.queue_bind("rest", "alt")
    channel.confirm_delivery()
    yield channel
    channel = connection.channel()
    for name in ("work", "rest", "again"):
        channel.queue_delete(name)
    for name in ("alt", "last"):
        channel.exchange_delete(name)
    connection.close()


def work(channel: Any, queue: str = "work", alternate: str = "alt", **arguments: Any) -> None:
    table = {"qpid.alternate-exchange": alternate} | arguments
    channel.queue_declare(queue, durable=True, arguments=table)


def take(channel: Any, queue: str, auto_ack: bool = True) -> tuple[Any, Any, bytes]:
    """Get one message, waiting for it."""

    def got() -> tuple[Any, Any, bytes] | None:
        method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
        return None if method is None else (method, properties, body)

    found: tuple[Any, Any, bytes] = eventually(got, f"a message in {queue}")
    return found


def reject(channel: Any, queue: str) -> None:
    method, _, _ = take(channel, queue, auto_ack=False)
    channel.basic_reject(method.delivery_tag, requeue=False)


def is_empty(channel: Any, queue: str) -> bool:
    # The answer to a passive declare comes after everything the channel did before.
    found: int = channel.queue_declare(queue, passive=True).method.message_count
    return found == 0


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_rejected_message_arrives_as_it_was_published(channel: Any, kind: str) -> None:
    """R-MQ-2, R-MQ-10: same key and headers, not redelivered, no x-death, no count."""
    work(channel, **{"x-queue-type": kind})
    headers = {"a": 1, "CC": ["other"]}
    properties = pika.BasicProperties(headers=headers, message_id="m", expiration="60000")
    channel.basic_publish("", "work", b"x", properties)
    reject(channel, "work")
    method, found, body = take(channel, "rest")
    assert (method.exchange, method.routing_key, method.redelivered) == ("alt", "work", False)
    assert (body, found.message_id, found.expiration) == (b"x", "m", "60000")
    assert found.headers == headers


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_deleted_queue_leaves_its_messages_to_the_alternate(
    member: Member, channel: Any, kind: str
) -> None:
    """R-MQ-2, R-MQ-3: three ready and two unacknowledged ones."""
    work(channel, **{"x-queue-type": kind})
    for number in range(5):
        channel.basic_publish("", "work", b"%d" % number)
    holder = member.connect()
    for _ in range(2):
        take(holder.channel(), "work", auto_ack=False)
    channel.queue_delete("work")
    assert [take(channel, "rest")[2] for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    holder.close()


def test_what_was_rerouted_is_discarded_when_it_is_rejected_again(channel: Any) -> None:
    """R-MQ-5, R-MQ-8: two queues whose alternates lead to each other make no loop."""
    channel.exchange_declare("last", "fanout", durable=True)
    work(channel)
    work(channel, "again", "last")
    channel.queue_unbind("rest", "alt")
    channel.queue_bind("again", "alt")
    channel.queue_bind("work", "last")
    channel.basic_publish("", "work", b"x")
    reject(channel, "work")
    reject(channel, "again")
    assert is_empty(channel, "work")
    assert is_empty(channel, "again")


def test_an_alternate_without_a_binding_hands_on_to_its_own(channel: Any) -> None:
    """R-MQ-4, R-MQ-6: fail-over to a dead letter queue"""
    channel.exchange_declare("last", "topic", arguments={"alternate-exchange": "alt"})
    work(channel, alternate="last")
    channel.basic_publish("", "work", b"x")
    reject(channel, "work")
    method, _, body = take(channel, "rest")
    assert (method.exchange, body) == ("last", b"x")


def test_the_way_over_an_exchanges_alternate_counts_as_well(channel: Any) -> None:
    """R-MQ-7, O-7: a message is not re-routed after that either; R-MQ-12: but dead-lettered."""
    channel.exchange_declare("last", "direct", arguments={"alternate-exchange": "alt"})
    work(channel, "again", "alt")
    channel.queue_bind("again", "alt")
    channel.queue_unbind("rest", "alt")
    channel.basic_publish("last", "no binding", b"x")
    reject(channel, "again")
    channel.queue_bind("rest", "alt")
    assert is_empty(channel, "again")
    assert is_empty(channel, "rest")
    channel.queue_delete("again")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "rest"}
    work(channel, "again", "alt", **arguments)
    channel.queue_bind("again", "alt")
    channel.queue_unbind("rest", "alt")
    channel.basic_publish("last", "no binding", b"y")
    reject(channel, "again")
    assert take(channel, "rest")[2] == b"y"


def test_an_exchange_in_use_cannot_be_deleted(member: Member, channel: Any) -> None:
    """R-MQ-9"""
    work(channel)
    other = member.connect()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        other.channel().exchange_delete("alt")
    assert closed.value.reply_code == 530
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        work(channel.connection.channel(), "again", "nowhere")
    assert refused.value.reply_code == 404


def test_a_policy_names_the_alternate_too(member: Member, channel: Any) -> None:
    """R-MQ-1, O-19"""
    with admin(member) as service:
        definition = {"queue-alternate-exchange": "alt"}
        spec = {"pattern": "^work$", "apply-to": "queues", "definition": definition}
        service.put("policy", "mrg", spec)
        channel.queue_declare("work", durable=True)
        channel.basic_publish("", "work", b"x")
        reject(channel, "work")
        assert take(channel, "rest")[2] == b"x"
        service.delete("policy", "mrg")


def test_the_switches_in_effect_are_shown(member: Member) -> None:
    """R-VER-2: what `brokerctl environment` shows."""
    with admin(member) as service:
        shown = {row["name"]: row["value"] for row in service.rows("configuration")}
    assert shown["compat.profile"] == "brokerd+mrg"
    assert shown["compat.switches.queue_ae"] is True
    assert shown["compat.switches.dlx.trust_client_x_death"] is False


def test_a_client_is_trusted_with_x_death_and_the_literal_expiration_where_switches_say_so(
    tmp_path: Path,
) -> None:
    """R-DLX-24, R-DLX-14: count goes on; original-expiration only for `expired` (S3)."""
    switches = {
        "BROKERD_COMPAT_DLX_TRUST_CLIENT_X_DEATH": "true",
        "BROKERD_COMPAT_DLX_ORIGINAL_EXPIRATION_ONLY_ON_EXPIRED": "true",
    }
    with cluster(tmp_path, 1, **switches) as (single,):
        connection = single.connect()
        channel = connection.channel()
        channel.queue_declare("rest")
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "rest"}
        channel.queue_declare("work", arguments=arguments)
        death = {"queue": "work", "reason": "rejected", "count": 3, "exchange": "e"}
        older = {"queue": "elsewhere", "reason": "expired", "count": 1, "routing-keys": ["k", 5]}
        headers = {"x-death": [older, death, "junk", {"queue": 5}], "x-first-death-queue": "e"}
        properties = pika.BasicProperties(headers=headers, expiration="60000")
        channel.basic_publish("", "work", b"x", properties)
        reject(channel, "work")
        _, found, _ = take(channel, "rest")
        newest, oldest = found.headers["x-death"]
        assert (newest["queue"], newest["count"], newest["exchange"]) == ("work", 4, "e")
        assert "original-expiration" not in newest
        assert (oldest["queue"], oldest["routing-keys"]) == ("elsewhere", ["k"])
        assert found.headers["x-first-death-queue"] == "e"
        assert "x-first-death-reason" not in found.headers
        channel.basic_publish("", "work", b"x", pika.BasicProperties(headers={"x-death": "no"}))
        reject(channel, "work")
        _, found, _ = take(channel, "rest")
        assert [entry["count"] for entry in found.headers["x-death"]] == [1]
        connection.close()
