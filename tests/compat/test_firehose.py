"""The firehose: what trace_on shows of publishes and deliveries, header by header."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.compat.brokerd_server import ENVIRONMENT
from tests.compat.test_ctl import BROKERCTL, RABBITMQCTL
from tests.integration.members import REPOSITORY, cluster, eventually
from tests.rabbitmq_node import rabbit_node

pytestmark = pytest.mark.timeout(400)

Copy = tuple[str, dict[str, Any], bytes]


@pytest.fixture(scope="module", params=["rabbitmq", "brokerd"])
def traced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """The AMQP port of a server whose vhost / is traced; and traced no more at the end."""
    folder = tmp_path_factory.mktemp("firehose")
    if request.param == "rabbitmq":
        with rabbit_node(folder / "node") as node:
            command = [RABBITMQCTL, "-n", node.environment["RABBITMQ_NODENAME"]]
            subprocess.run([*command, "await_startup"], env=node.environment, check=True)
            subprocess.run([*command, "-q", "trace_on"], env=node.environment, check=True)
            yield node.amqp_port
        return
    with cluster(folder, 1, **ENVIRONMENT) as [member]:
        command = [*BROKERCTL, "-n", f"127.0.0.1:{member.grpc_port}"]
        subprocess.run([*command, "-q", "trace_on"], cwd=REPOSITORY, env=os.environ, check=True)
        yield member.amqp_port


def _connect(port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))


class Firehose:
    """A queue bound to amq.rabbitmq.trace, read by a connection of its own."""

    def __init__(self, port: int, pattern: str) -> None:
        self._connection = _connect(port)
        self._channel = self._connection.channel()
        self._queue = self._channel.queue_declare("", exclusive=True).method.queue
        self._channel.queue_bind(self._queue, "amq.rabbitmq.trace", pattern)
        self.copies: list[Copy] = []

    def read(self, count: int) -> list[Copy]:
        """Return the first copies, once there are so many."""

        def are_there() -> bool:
            method, properties, body = self._channel.basic_get(self._queue, auto_ack=True)
            if method is not None:
                self.copies.append((method.routing_key, properties.headers, body))
            return len(self.copies) >= count

        eventually(are_there, f"{count} copies, there are {self.copies}")
        return self.copies

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def test_a_publish_and_its_delivery_are_copied_with_their_headers(traced: int) -> None:
    firehose = Firehose(traced, "#")
    connection = _connect(traced)
    channel = connection.channel()
    channel.queue_declare("seen")
    channel.queue_bind("seen", "amq.topic", "a.*")
    channel.queue_bind("seen", "amq.topic", "copy")
    properties = pika.BasicProperties(
        content_type="text/plain",
        headers={"n": 1, "CC": ["copy"], "BCC": ["blind"]},
        priority=3,
        timestamp=1_700_000_000,
        app_id="test",
    )
    channel.basic_publish("amq.topic", "a.b", b"body", properties)
    (method, _, _) = next(iter(channel.consume("seen", inactivity_timeout=60)))
    channel.cancel()
    published, delivered = firehose.read(2)
    assert (published[0], published[2]) == ("publish.amq.topic", b"body")
    assert (delivered[0], delivered[2]) == ("deliver.seen", b"body")
    shown = {
        "content_type": "text/plain",
        "headers": {"n": 1, "CC": ["copy"]},
        "priority": 3,
        "timestamp": 1_700_000_000,
        "app_id": "test",
    }
    both = {
        "exchange_name": "amq.topic",
        "routing_keys": ["a.b", "copy", "blind"],
        "properties": shown,
        "vhost": "/",
        "channel": 1,
        "user": "guest",
    }
    for _, headers, _ in (published, delivered):
        assert headers.pop("node")
        assert " -> 127.0.0.1:" in headers.pop("connection")
    assert published[1] == both | {"routed_queues": ["seen"]}
    # consume() has taken it with prefetch 0, and it was not settled before it was cancelled.
    assert delivered[1] == both | {"redelivered": 0}
    assert method is not None
    connection.close()
    firehose.close()


def test_a_message_of_basic_get_and_one_that_nobody_gets_are_copied(traced: int) -> None:
    firehose = Firehose(traced, "#")
    connection = _connect(traced)
    channel = connection.channel()
    channel.queue_declare("got")
    channel.confirm_delivery()
    channel.basic_publish("", "got", b"1")
    channel.basic_publish("amq.direct", "nobody", b"2")
    channel.basic_get("got")
    copies = firehose.read(3)
    # The default exchange has no name, so the key ends with the dot.
    keys = [(key, headers.get("routed_queues"), body) for key, headers, body in copies]
    assert keys == [
        ("publish.", ["got"], b"1"),
        ("publish.amq.direct", [], b"2"),
        ("deliver.got", None, b"1"),
    ]
    connection.close()
    firehose.close()


def test_copies_are_not_copied_again(traced: int) -> None:
    firehose = Firehose(traced, "#")
    connection = _connect(traced)
    channel = connection.channel()
    channel.basic_publish("amq.fanout", "x", b"once")
    firehose.read(1)
    # The copy was delivered (basic.get of the reader); a second publish is the next thing seen.
    channel.basic_publish("amq.fanout", "x", b"twice")
    assert [body for _, _, body in firehose.read(2)] == [b"once", b"twice"]
    connection.close()
    firehose.close()


def test_nothing_is_copied_after_trace_off(brokerd_member: Any) -> None:
    member, ctl = brokerd_member
    ctl("trace_on")
    firehose = Firehose(member.amqp_port, "#")
    connection = _connect(member.amqp_port)
    channel = connection.channel()
    channel.basic_publish("amq.fanout", "x", b"on")
    firehose.read(1)
    ctl("trace_off")
    channel.basic_publish("amq.fanout", "x", b"off")
    ctl("trace_on")
    channel.basic_publish("amq.fanout", "x", b"on again")
    assert [body for _, _, body in firehose.read(2)] == [b"on", b"on again"]
    connection.close()
    firehose.close()


@pytest.fixture
def brokerd_member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A member and what runs brokerctl against it."""
    with cluster(tmp_path_factory.mktemp("off"), 1, **ENVIRONMENT) as [member]:

        def ctl(*words: str) -> None:
            command = [*BROKERCTL, "-n", f"127.0.0.1:{member.grpc_port}", "-q", *words]
            subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)

        assert sys.executable in BROKERCTL
        yield member, ctl
