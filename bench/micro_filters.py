"""Messages that a filter looks through in a second of CPU, from stored bytes (ADR 80).

Decoding is included.  The target is 50,000 with a condition on a header.
Run: python -m bench.micro_filters
"""

from __future__ import annotations

import statistics
import time

from brokerd.amqp.properties import BasicProperties
from brokerd.core.filters.message_filter import compile_filter
from brokerd.core.message import Content
from brokerd.server.messages.message_view import StoredMessage

MESSAGES = 50_000
ROUNDS = 5
FILTERS = (
    'routing_key == "orders.7"',
    'headers["tenant"] == "t7"',
    'headers["tenant"] == "t7" && headers.n >= 3 && !(size > 100) && has(message_id)',
    'type in ["order.created", "order.paid"] && age > duration("5m")',
    'type.matches("^order\\\\.(created|paid)$")',
    'body.contains("total")',
)


def contents() -> list[Content]:
    """Return stored messages with four properties and three headers."""
    return [
        (
            ("events", f"orders.{n % 100}"),
            BasicProperties(
                content_type="application/json",
                headers={"tenant": f"t{n % 100}", "n": n % 10, "trace": "0af7651916cd43dd8448"},
                delivery_mode=2,
                message_id=f"m-{n}",
                type="order.created",
            ).encode(),
            b'{"order": 1, "total": 12.5}',
            b"",
        )
        for n in range(MESSAGES)
    ]


def rate(text: str, stored: list[Content]) -> float:
    """Return messages in a second of CPU of one pass."""
    found = compile_filter(text)
    started = time.process_time()
    for number, content in enumerate(stored):
        found.matches(StoredMessage(content, number, age_ms=1000))
    return len(stored) / (time.process_time() - started)


def main() -> None:
    stored = contents()
    for text in FILTERS:
        rates = [rate(text, stored) for _ in range(ROUNDS)]
        print(
            f"{statistics.median(rates):>10,.0f} msg/s ({min(rates):,.0f}-{max(rates):,.0f}) {text}"
        )


if __name__ == "__main__":
    main()
