"""What tests of federated queues do with brokers, besides `federation_rig`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pika

from tests.integration.federation_rig import Admin
from tests.integration.members import eventually

#: How long a test looks at something that must not happen; links notice demand in 20 ms.
STILL_SECONDS = 1.0


def federate_queue(
    client: Admin, name: str, uri: str, pattern: str, vhost: str = "/", /, **definition: Any
) -> None:
    """Define an upstream and a policy that federates queues; underscores stand for hyphens."""
    value = {"uri": uri, "reconnect-delay": 1}
    value |= {key.replace("_", "-"): item for key, item in definition.items()}
    client.put("parameter", f"federation-upstream/{name}", {"value": value}, vhost)
    policy = {
        "pattern": pattern,
        "apply-to": "queues",
        "definition": {"federation-upstream": name},
    }
    client.put("policy", f"queues-{name}", policy, vhost)


def wait_queue_link(client: Admin, queue: str, state: str = "running") -> dict[str, Any]:
    """Wait for a link of a queue to reach a state; return its row."""

    def found() -> dict[str, Any] | None:
        rows = [row for row in client.rows("links") if row["queue"] == queue]
        return next((row for row in rows if row["status"] == state), None)

    row: dict[str, Any] = eventually(found, f"link of queue {queue} {state}")
    return row


def consumer_rows(client: Admin, queue: str) -> list[dict[str, Any]]:
    """Who consumes from a queue."""
    return [row for row in client.rows("consumers") if row["queue_name"] == queue]


class Worker:
    """A consumer on a connection of its own, which keeps what it got and acknowledges it."""

    def __init__(self, port: int, queue: str, prefetch: int, vhost: str, **options: Any) -> None:
        parameters = pika.ConnectionParameters("127.0.0.1", port, vhost)
        self._connection = pika.BlockingConnection(parameters)
        self.channel = self._connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.got: list[tuple[Any, Any, bytes]] = []
        self.acknowledges = True
        self.tag = self.channel.basic_consume(queue, self._take, **options)

    def _take(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.got.append((method, properties, body))
        if self.acknowledges:
            channel.basic_ack(method.delivery_tag)

    @property
    def bodies(self) -> list[bytes]:
        """Return what it got."""
        return [body for _, _, body in self.got]

    def wait(self, count: int) -> None:
        """Wait until it has got so many, as long as more come."""
        while (had := len(self.got)) < count:
            eventually(
                lambda had=had: self._turn() or len(self.got) > had,
                f"{count} messages, {had} so far",
            )

    def idle(self, seconds: float) -> None:
        """Take what comes within this time."""
        self._connection.process_data_events(seconds)

    def _turn(self) -> bool:
        self._connection.process_data_events(0.05)
        return False

    def close(self) -> None:
        """End it; what it has not acknowledged returns to the queue."""
        if self._connection.is_open:
            self._connection.close()


@contextlib.contextmanager
def worker(
    port: int, queue: str, prefetch: int = 100, vhost: str = "/", **options: Any
) -> Iterator[Worker]:
    """Give a consumer and close it."""
    made = Worker(port, queue, prefetch, vhost, **options)
    try:
        yield made
    finally:
        made.close()


def count_of(channel: Any, queue: str) -> int:
    """Return how many messages are ready in a queue."""
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count
