"""Dead letters in one line each: make one die, take it, say what its headers are to be.

For the cases of dead lettering, quorum queues and policies.
"""

from __future__ import annotations

from typing import Any

from tests.compat import steps

DLX = "x_dead_letter_exchange"
KEY = "x_dead_letter_routing_key"


def dead_queue(channel: Any) -> str:
    """Return a queue behind fanout exchange `dlx`."""
    return steps.bound(channel, steps.exchange(channel, "dlx", "fanout"), "", name="dead")


def put(channel: Any, name: str, body: str = "m", **properties: Any) -> None:
    """Publish to a queue."""
    assert steps.publish(channel, "", name, body, **properties) == "ack"


def reject(channel: Any, name: str) -> None:
    """Get a message and reject it."""
    channel.basic_reject(steps.unacked(channel, name)[0].delivery_tag, requeue=False)


def letter(channel: Any, name: str = "dead") -> tuple[str, str, dict[str, Any]]:
    """Take one dead letter: exchange, key and headers, x-death without times."""
    method, properties, _ = steps.take(channel, name)
    headers = steps.spoken(properties)
    if "x-death" in headers:
        headers["x-death"] = steps.deaths(properties)
    return method.exchange, method.routing_key, headers


def death(queue: str, reason: str, exchange: str, keys: list[str], **more: Any) -> dict[str, Any]:
    """Return an entry of x-death; `original_expiration` and another count can be named."""
    entry = {"count": 1, "queue": queue, "reason": reason, "exchange": exchange}
    named = {key.replace("_", "-"): value for key, value in more.items()}
    return entry | {"routing-keys": keys} | named


def first(reason: str, queue: str, exchange: str) -> dict[str, str]:
    """Return the three headers of the first death."""
    return {
        "x-first-death-reason": reason,
        "x-first-death-queue": queue,
        "x-first-death-exchange": exchange,
    }
