"""What RabbitMQ 4.3.6 answered where 3.10.8, which tests/compat has beside it, does otherwise.

In the default profile and in rabbitmq-4.3: the expected values were taken from a live 4.3.6.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.integration.members import Member, cluster, eventually

PROFILES = ("brokerd", "rabbitmq-4.3")
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=PROFILES)
def member(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    with cluster(folder, 1, BROKERD_COMPAT_PROFILE=request.param) as [one]:
        yield one


@pytest.fixture
def channel(member: Member) -> Iterator[Any]:
    with member.connect() as connection:
        yield connection.channel()


def declared(channel: Any, name: str, /, **arguments: Any) -> str:
    """Declare a durable queue of a name of its own."""
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    unique = f"{name}-{next(_numbers)}"
    return str(channel.queue_declare(unique, durable=True, arguments=table).method.queue)


def taken(channel: Any, name: str) -> Any:
    """Get a message, which may be on its way."""

    def got() -> Any:
        answer = channel.basic_get(name)
        return None if answer[0] is None else answer

    return eventually(got, f"a message in {name}")


def counts(headers: dict[str, Any] | None) -> tuple[int, int]:
    known = headers or {}
    return known.get("x-acquired-count", 0), known.get("x-delivery-count", 0)


#: What happens to a message, and how often it has failed when it is a dead letter.
FATES = {"R": 1, "N": 0, "rR": 2, "rN": 1, "nR": 1, "nN": 0, "cR": 2, "cN": 1}


@pytest.mark.parametrize("target", ["classic", "quorum"])
@pytest.mark.parametrize("source", ["classic", "quorum"])
@pytest.mark.parametrize("fate", FATES)
def test_a_dead_letter_that_failed_is_redelivered(
    channel: Any, fate: str, source: str, target: str
) -> None:
    """R-DLX-35: r and R are basic.reject, n and N basic.nack, c the end of the channel."""
    dead = declared(channel, "dead", x_queue_type=target)
    letters = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": dead}
    name = declared(channel, "q", x_queue_type=source, **letters)
    channel.basic_publish("", name, b"")
    for step in fate:
        consumer = channel.connection.channel()
        tag = taken(consumer, name)[0].delivery_tag
        if step == "c":
            consumer.close()
        elif step in "rR":
            consumer.basic_reject(tag, requeue=step == "r")
        else:
            consumer.basic_nack(tag, requeue=step == "n")
    method, properties, _ = taken(channel, dead)
    failures = FATES[fate]
    assert method.redelivered == (failures > 0)
    expected = (failures, failures) if target == "quorum" else (0, 0)
    assert counts(properties.headers) == expected
    channel.basic_nack(method.delivery_tag)
    method, properties, _ = taken(channel, dead)
    assert method.redelivered
    assert counts(properties.headers) == ((1, failures) if target == "quorum" else (0, 0))


def test_the_failures_of_a_dead_letter_count_against_the_limit_of_its_queue(channel: Any) -> None:
    """R-DLX-35, R-DL-9: rejected once before, limit 3 is three deliveries."""
    dead = declared(channel, "dead", x_queue_type="quorum", x_delivery_limit=3)
    letters = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": dead}
    name = declared(channel, "q", **letters)
    channel.basic_publish("", name, b"")
    channel.basic_reject(taken(channel, name)[0].delivery_tag, requeue=False)
    for _ in range(3):
        channel.basic_reject(taken(channel, dead)[0].delivery_tag, requeue=True)
    assert channel.basic_get(dead)[0] is None


def test_a_limit_of_minus_one_serves_first_what_comes_back(channel: Any) -> None:
    """R-DL-7, R-QQ-14."""
    name = declared(channel, "q", x_queue_type="quorum", x_delivery_limit=-1)
    for body in (b"0", b"1", b"2", b"3"):
        channel.basic_publish("", name, body)
    last = [taken(channel, name)[0].delivery_tag for _ in range(2)][-1]
    channel.basic_nack(last, multiple=True)
    assert [taken(channel, name)[2] for _ in range(4)] == [b"0", b"1", b"2", b"3"]


def test_a_new_routing_key_of_a_dead_letter_is_its_only_one(channel: Any) -> None:
    """R-DLX-12, R-DLX-22: CC stands in the headers only."""
    third = declared(channel, "third")
    second = declared(channel, "second", x_dead_letter_exchange="", x_dead_letter_routing_key=third)
    first = declared(channel, "first", x_dead_letter_exchange="", x_dead_letter_routing_key=second)
    properties = pika.BasicProperties(headers={"CC": ["cc"]})
    channel.basic_publish("", first, b"", properties)
    for name in (first, second):
        channel.basic_reject(taken(channel, name)[0].delivery_tag, requeue=False)
    headers = taken(channel, third)[1].headers
    assert headers["CC"] == ["cc"]
    assert [death["routing-keys"] for death in headers["x-death"]] == [[second], [first, "cc"]]
