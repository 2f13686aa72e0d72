"""Messages that an exchange of type x-delayed-message keeps: on their way in, and when due.

The exchange's queue keeps them (core/queue), core/catalog/delayed_type.py reads the header; the way
out is that of at-least-once dead letters (dead_letter_publisher.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.amqp import properties
from brokerd.core import annotations as message_annotations
from brokerd.core.catalog import delayed_type
from brokerd.core.catalog.router import RouteResult
from brokerd.core.message import Content
from brokerd.server.messages import dead_letter_headers, ports


def annotated(contents: Sequence[Content]) -> list[Content]:
    """Return messages with how long the exchange's queue is to keep them."""
    return [_annotated(content) for content in contents]


def _annotated(content: Content) -> Content:
    route, header, body, raw = content
    kept = message_annotations.decode(raw)
    table = dead_letter_headers.headers_of(header)
    kept.delay_key = delayed_type.key_of(table)
    kept.delay_ms = None if delayed_type.cancels(table) else delayed_type.delay_ms(table)
    return route, header, body, message_annotations.encode(kept)


def due(
    routing: ports.Routing, vhost: str, exchange: str, content: Content
) -> tuple[Content, RouteResult]:
    """Return a message as its exchange hands it on, and where it goes.

    The delay is negated, as the plug-in does it: no exchange keeps it again, and a consumer sees
    how long it was.  Its own expiration counts from now on.
    """
    route, header, body, raw = content
    kept = message_annotations.decode(raw)
    kept.delay_ms = kept.delay_key = kept.redriven = None
    table = dict(dead_letter_headers.headers_of(header))
    said = delayed_type.said_ms(table)
    if said is not None and said > 0:
        table[delayed_type.DELAY] = -said
    header = properties.with_headers(header, table)
    keys = (*dead_letter_headers.copies_of(table), *kept.bcc)
    # Negated, a delay of 1 ms would cancel what has the same key.
    asked = {name: value for name, value in table.items() if name != delayed_type.DELAY_KEY}
    result = routing.router.route(vhost, exchange, route[1], asked, keys, header)
    return (route, header, body, message_annotations.encode(kept)), result
