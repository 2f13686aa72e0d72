"""What a dead letter's past was, from the broker's record or from headers, and its origin.

The broker's own record is always believed.  What only headers say, a client may have written: it
is good enough to look at, and names an origin only where the user trusts headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from brokerd.core.filters.ports import MessageView
from brokerd.core.triage.framework_headers import KEPT_MAX, Headers, framework_of, read, text_of

#: Set on every copy that a redrive publishes.
REDRIVE_HEADER = "x-redrive-id"
#: A table of the broker about the consumer that had the message when it died; the key names the
#: client and its version, which are alike for all of its connections.
CONSUMER_HEADER = "x-last-death-consumer"
CONSUMER_CLIENT = "client"
CONSUMER_REASON = "reason"
#: Celery's name of a task, where neither a property nor another framework names the type.
_CELERY_TYPE = "task"


class Source(Enum):
    """Who says what became of a message."""

    BROKER = "broker"
    #: An x-death that came with the message: of another broker, or of a client's making.
    X_DEATH = "x-death"
    FRAMEWORK = "framework"
    NONE = "none"


@dataclass(slots=True, frozen=True)
class History:
    """Why a message is here; "" for what is not known.  At most `KEPT_MAX` characters each."""

    source: Source
    #: "" unless it is one that says so.
    framework: str = ""
    reason: str = ""
    first_queue: str = ""
    last_queue: str = ""
    #: As the client had published it.
    exchange: str = ""
    routing_key: str = ""
    type: str = ""
    exception: str = ""
    client: str = ""


class NoOrigin(Enum):
    """Why a message has no queue to go back to."""

    NO_HISTORY = "neither the broker nor a header says where it died"
    NOT_TRUSTED = "only headers say where it died: trust them, or name a target"
    NO_QUEUE = "its headers name no queue"


def history_of(message: MessageView) -> History:
    """Return what is known about a message's past."""
    headers: Headers = message.properties.headers or {}
    framework = framework_of(headers)
    exception = kind = ""
    if framework is not None:
        exception = read(headers, framework.exception, framework.read_exception)
        kind = read(headers, framework.type, framework.read_type)
    kind = (message.properties.type or kind or text_of(headers, _CELERY_TYPE))[:KEPT_MAX]
    name = framework.name if framework is not None else ""
    source, reason, first, last = Source.NONE, "", "", ""
    exchange, key = message.exchange, message.routing_key
    entries = _entries(headers)
    if message.first_death is not None and message.deaths:
        source = Source.BROKER
        oldest = message.deaths[-1]
        reason, last = message.deaths[0].reason, message.deaths[0].queue
        first, exchange = message.first_death[1:]
        for death in message.deaths:
            if (death.reason, death.queue) == message.first_death[:2]:
                oldest = death
        key = oldest.routing_keys[0] if oldest.routing_keys else ""
    elif framework is not None:
        source = Source.FRAMEWORK
        reason = read(headers, framework.reason, None)
        exchange = read(headers, framework.exchange, None)
        key = read(headers, framework.routing_key, None)
        last = read(headers, framework.queue, framework.read_queue)
        if not last and framework.exchange in headers and not exchange:
            # The default exchange: its routing key is the queue.
            last = key
        first = last
    elif entries:
        source = Source.X_DEATH
        reason, last = text_of(entries[0], "reason"), text_of(entries[0], "queue")
        first = text_of(headers, "x-first-death-queue") or text_of(entries[-1], "queue")
        exchange = text_of(entries[-1], "exchange")
        keys = entries[-1].get("routing-keys")
        key = keys[0] if isinstance(keys, list) and keys and isinstance(keys[0], str) else ""
    return History(
        source=source,
        framework=name,
        reason=reason[:KEPT_MAX],
        first_queue=first[:KEPT_MAX],
        last_queue=last[:KEPT_MAX],
        exchange=exchange[:KEPT_MAX],
        routing_key=key[:KEPT_MAX],
        type=kind,
        exception=exception,
        client=_client(headers),
    )


def origin_of(message: MessageView, trust_headers: bool) -> str | NoOrigin:
    """Return the queue in which a message died first, or why it has none.

    trust_headers: also what clients wrote counts.  Whether the queue lives is the caller's to ask.
    """
    history = history_of(message)
    if history.source is Source.NONE:
        return NoOrigin.NO_HISTORY
    if history.source is not Source.BROKER and not trust_headers:
        return NoOrigin.NOT_TRUSTED
    return history.first_queue or NoOrigin.NO_QUEUE


def was_sent_back(message: MessageView) -> bool:
    """Say whether a redrive sent this message: it died again."""
    return REDRIVE_HEADER in (message.properties.headers or {})


def client_reason_of(message: MessageView) -> str:
    """Return why the consumer that had a message rejected it, as far as it said so."""
    consumer = (message.properties.headers or {}).get(CONSUMER_HEADER)
    return text_of(consumer, CONSUMER_REASON)[:KEPT_MAX] if isinstance(consumer, dict) else ""


def _entries(headers: Headers) -> list[Mapping[str, object]]:
    found = headers.get("x-death")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _client(headers: Headers) -> str:
    consumer = headers.get(CONSUMER_HEADER)
    return text_of(consumer, CONSUMER_CLIENT)[:KEPT_MAX] if isinstance(consumer, dict) else ""
