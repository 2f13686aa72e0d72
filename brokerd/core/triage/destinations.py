"""Where an order sends a message, before routing: an exchange with keys, or why it stays.

For dry runs, and for the job itself: both must say the same.  Which queues the exchange leads to,
and whether they live, is the caller's to ask.  Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from brokerd.core.filters.ports import MessageView
from brokerd.core.triage.framework_headers import framework_of
from brokerd.core.triage.histories import History, NoOrigin, Source, history_of, origin_of
from brokerd.core.triage.jobs import JobOrder, To

#: Reasons why a message stays that the message itself does not tell.
NO_QUEUE = "no queue is there to take it"
ITSELF = "the way leads back into this queue"
NO_EXCHANGE = "its headers name no exchange"


class Destination(NamedTuple):
    """What a message is published to; "": the default exchange."""

    exchange: str
    #: The routing key, then those of CC.
    routing_keys: tuple[str, ...]


def destination_of(message: MessageView, order: JobOrder) -> Destination | str:
    """Return where an order sends a message, or why it stays."""
    if order.to is To.QUEUE:
        return Destination("", (order.target,))
    if order.to is To.EXCHANGE:
        key = message.routing_key if order.routing_key is None else order.routing_key
        return Destination(order.target, (key,))
    if order.to is To.ORIGIN:
        origin = origin_of(message, order.trusts_headers)
        if isinstance(origin, NoOrigin):
            return origin.value
        return ITSELF if origin == order.queue else Destination("", (origin,))
    return _first_published(message, order.trusts_headers)


def _first_published(message: MessageView, trust_headers: bool) -> Destination | str:
    """Return the exchange and the keys of the first publish."""
    history = history_of(message)
    if history.source is Source.NONE:
        return NoOrigin.NO_HISTORY.value
    if history.source is Source.BROKER:
        return Destination(history.exchange, _keys(message, history))
    if not trust_headers:
        return NoOrigin.NOT_TRUSTED.value
    if history.source is Source.FRAMEWORK:
        framework = framework_of(message.properties.headers or {})
        # A header that is there and empty names the default exchange.
        is_named = framework is not None and framework.exchange in (
            message.properties.headers or {}
        )
        if not is_named:
            return NO_EXCHANGE
    return Destination(history.exchange, (history.routing_key,))


def _keys(message: MessageView, history: History) -> tuple[str, ...]:
    """Return all keys of the first death, as the broker recorded them."""
    oldest = message.deaths[-1]
    for death in message.deaths:
        if (
            message.first_death is not None
            and (death.reason, death.queue) == message.first_death[:2]
        ):
            oldest = death
    return tuple(oldest.routing_keys) or (history.routing_key,)
