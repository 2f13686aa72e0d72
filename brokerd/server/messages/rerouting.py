"""Publishing what a queue sends to its alternate exchange (profile mrg, R-MQ).

The queue machine decides which messages go; here those that have been through an alternate exchange
before are discarded (R-MQ-5), the others marked, routed and published, at most once.
"""

from __future__ import annotations

from brokerd.core import annotations as message_annotations
from brokerd.core.message import Content
from brokerd.core.queue import effects
from brokerd.server.messages import dead_letter_headers, pipeline, ports
from brokerd.server.queues import ports as queue_ports
from brokerd.server.queues.stream import ChannelStream

#: Messages read and sent at a time: a queue that ends may leave any number.
BATCH_MESSAGES = 1024


def reroute(
    queues: queue_ports.Queues,
    routing: ports.Routing,
    stream: ChannelStream,
    uid: int,
    effect: effects.Reroute,
) -> None:
    """Publish messages that were rejected or orphaned (R-MQ-2, R-MQ-3)."""
    queue = queues.queue_of(uid)
    if queue is None:
        return
    for run in effect.runs:
        for offset in range(0, run.length, BATCH_MESSAGES):
            part = run._replace(
                first=run.first + offset,
                length=min(BATCH_MESSAGES, run.length - offset),
                position=run.position + offset,
            )
            for content in queues.contents(uid, part):
                _publish(routing, stream, queue.vhost, effect.exchange, content)
            stream.flush()


def _publish(
    routing: ports.Routing, stream: ChannelStream, vhost: str, exchange: str, content: Content
) -> None:
    (_, routing_key), header, body, raw = content
    kept = message_annotations.decode(raw)
    if kept.rerouted:
        # R-MQ-5: never a second time.
        return
    kept.rerouted = True
    # R-MQ-10: as new, under the alternate's name.
    kept.delivery_count = 0
    kept.redriven = None
    table = dead_letter_headers.headers_of(header)
    extra = (*dead_letter_headers.copies_of(table), *kept.bcc)
    # R-MQ-6: an alternate without a binding that matches has an alternate of its own.
    result = routing.router.route(vhost, exchange, routing_key, table, extra, header)
    letter = ((exchange, routing_key), header, body, message_annotations.encode(kept))
    if not pipeline.send_own(routing, stream, vhost, result, [letter], 1):
        routing.dropped.unrouted("reroute_unroutable")
        routing.warn(
            f"messages of a queue for the alternate exchange '{exchange}' in vhost '{vhost}' "
            "are dropped: it has no route for them"
        )
