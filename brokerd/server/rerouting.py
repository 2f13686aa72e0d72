"""Publishing what a queue sends to its alternate exchange (profile mrg, R-MQ).

The queue machine decides which messages go; here those that have been through an alternate exchange
before are discarded (R-MQ-5), the others marked, routed and published, at most once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.core import annotations as message_annotations
from brokerd.core import effects
from brokerd.core.message import Content
from brokerd.server import burial
from brokerd.server.publishing import Publisher

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

#: Messages read and sent at a time: a queue that ends may leave any number.
BATCH_MESSAGES = 1024


def reroute(broker: Broker, publisher: Publisher, uid: int, effect: effects.Reroute) -> None:
    """Publish messages that were rejected or orphaned (R-MQ-2, R-MQ-3)."""
    queue = broker.queue_of(uid)
    if queue is None:
        return
    for run in effect.runs:
        for offset in range(0, run.length, BATCH_MESSAGES):
            part = run._replace(
                first=run.first + offset,
                length=min(BATCH_MESSAGES, run.length - offset),
                position=run.position + offset,
            )
            for content in broker.contents(uid, part):
                _publish(broker, publisher, queue.vhost, effect.exchange, content)
            publisher.flush()


def _publish(
    broker: Broker, publisher: Publisher, vhost: str, exchange: str, content: Content
) -> None:
    (_, routing_key), header, body, raw = content
    kept = message_annotations.decode(raw)
    if kept.rerouted:
        # R-MQ-5: never a second time.
        return
    kept.rerouted = True
    # R-MQ-10: as new, under the alternate's name.
    kept.delivery_count = 0
    table = burial.headers_of(header)
    extra = (*burial.copies_of(table), *kept.bcc)
    # R-MQ-6: an alternate without a binding that matches has an alternate of its own.
    result = broker.router.route(vhost, exchange, routing_key, table, extra)
    broker.counters.internal_published(vhost, exchange, result, 1, len(body))
    if result.queues:
        letter = ((exchange, routing_key), header, body, message_annotations.encode(kept))
        publisher.add(result.queues, [letter], 1)


def noted(broker: Broker, contents: list[Content]) -> list[Content]:
    """Return messages that go over an exchange's alternate, marked where that counts (O-7)."""
    if not burial.marks_alternates(broker):
        return contents
    return [_marked(content) for content in contents]


def _marked(content: Content) -> Content:
    route, header, body, raw = content
    kept = message_annotations.decode(raw)
    kept.rerouted = True
    return route, header, body, message_annotations.encode(kept)
