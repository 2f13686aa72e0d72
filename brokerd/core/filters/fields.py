"""The fields of a message that filters name: kind, where each stands, how it is read.

docs/reference/filters.md has the same table for users; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from brokerd.core.annotations import Death
from brokerd.core.filters.kinds import Evaluate, Kind
from brokerd.core.filters.ports import MessageView


class Part(IntEnum):
    """What has to be there for a field: each needs more than the one before."""

    QUEUE = 0
    HEAD = 1
    BODY = 2


@dataclass(slots=True)
class Field:
    """One field."""

    kind: Kind
    part: Part
    read: Evaluate


#: A body longer than this, in bytes, is absent for filters.
BODY_BYTES_MAX = 1 << 16


def _timestamp_ms(message: MessageView) -> object:
    seconds = message.properties.timestamp
    return None if seconds is None else seconds * 1000


def _has_died(message: MessageView) -> object:
    return True if message.deaths else None


def _last(message: MessageView) -> Death | None:
    deaths = message.deaths
    return deaths[0] if deaths else None


def _last_reason(message: MessageView) -> object:
    death = _last(message)
    return None if death is None else death.reason


def _last_queue(message: MessageView) -> object:
    death = _last(message)
    return None if death is None else death.queue


def _last_exchange(message: MessageView) -> object:
    death = _last(message)
    return None if death is None else death.exchange


def _last_routing_key(message: MessageView) -> object:
    return _key_of(_last(message))


def _last_count(message: MessageView) -> object:
    death = _last(message)
    return None if death is None else death.count


def _last_time(message: MessageView) -> object:
    death = _last(message)
    return None if death is None else death.time_s * 1000


def _key_of(death: Death | None) -> object:
    return death.routing_keys[0] if death is not None and death.routing_keys else None


def _first(message: MessageView) -> Death | None:
    """The record of the first death: the one of its queue and reason."""
    first = message.first_death
    if first is not None:
        for death in message.deaths:
            if (death.reason, death.queue) == first[:2]:
                return death
    return None


def _has_first(message: MessageView) -> object:
    return None if message.first_death is None else True


def _first_reason(message: MessageView) -> object:
    return None if message.first_death is None else message.first_death[0]


def _first_queue(message: MessageView) -> object:
    return None if message.first_death is None else message.first_death[1]


def _first_exchange(message: MessageView) -> object:
    return None if message.first_death is None else message.first_death[2]


def _first_routing_key(message: MessageView) -> object:
    return _key_of(_first(message))


def _first_count(message: MessageView) -> object:
    death = _first(message)
    return None if death is None else death.count


def _first_time(message: MessageView) -> object:
    death = _first(message)
    return None if death is None else death.time_s * 1000


#: By their names; parts of a field behind a dot.
FIELDS: dict[str, Field] = {
    "number": Field(Kind.NUMBER, Part.QUEUE, lambda message: message.number),
    "state": Field(Kind.TEXT, Part.QUEUE, lambda message: message.state),
    "delivery_count": Field(Kind.NUMBER, Part.QUEUE, lambda message: message.delivery_count),
    "redelivered": Field(Kind.BOOL, Part.QUEUE, lambda message: message.redelivered),
    "age": Field(Kind.DURATION, Part.QUEUE, lambda message: message.age_ms),
    "exchange": Field(Kind.TEXT, Part.HEAD, lambda message: message.exchange),
    "routing_key": Field(Kind.TEXT, Part.HEAD, lambda message: message.routing_key),
    "size": Field(Kind.NUMBER, Part.HEAD, lambda message: message.size),
    "headers": Field(Kind.TABLE, Part.HEAD, lambda message: message.properties.headers),
    "content_type": Field(Kind.TEXT, Part.HEAD, lambda message: message.properties.content_type),
    "content_encoding": Field(
        Kind.TEXT, Part.HEAD, lambda message: message.properties.content_encoding
    ),
    "delivery_mode": Field(
        Kind.NUMBER, Part.HEAD, lambda message: message.properties.delivery_mode
    ),
    "priority": Field(Kind.NUMBER, Part.HEAD, lambda message: message.properties.priority),
    "correlation_id": Field(
        Kind.TEXT, Part.HEAD, lambda message: message.properties.correlation_id
    ),
    "reply_to": Field(Kind.TEXT, Part.HEAD, lambda message: message.properties.reply_to),
    "expiration": Field(Kind.TEXT, Part.HEAD, lambda message: message.properties.expiration),
    "message_id": Field(Kind.TEXT, Part.HEAD, lambda message: message.properties.message_id),
    "timestamp": Field(Kind.TIME, Part.HEAD, _timestamp_ms),
    "type": Field(Kind.TEXT, Part.HEAD, lambda message: message.properties.type),
    "user_id": Field(Kind.TEXT, Part.HEAD, lambda message: message.properties.user_id),
    "app_id": Field(Kind.TEXT, Part.HEAD, lambda message: message.properties.app_id),
    "cluster_id": Field(Kind.TEXT, Part.HEAD, lambda message: message.properties.cluster_id),
    "death": Field(Kind.DEATH, Part.HEAD, _has_died),
    "death.reason": Field(Kind.TEXT, Part.HEAD, _last_reason),
    "death.queue": Field(Kind.TEXT, Part.HEAD, _last_queue),
    "death.exchange": Field(Kind.TEXT, Part.HEAD, _last_exchange),
    "death.routing_key": Field(Kind.TEXT, Part.HEAD, _last_routing_key),
    "death.count": Field(Kind.NUMBER, Part.HEAD, _last_count),
    "death.time": Field(Kind.TIME, Part.HEAD, _last_time),
    "first_death": Field(Kind.DEATH, Part.HEAD, _has_first),
    "first_death.reason": Field(Kind.TEXT, Part.HEAD, _first_reason),
    "first_death.queue": Field(Kind.TEXT, Part.HEAD, _first_queue),
    "first_death.exchange": Field(Kind.TEXT, Part.HEAD, _first_exchange),
    "first_death.routing_key": Field(Kind.TEXT, Part.HEAD, _first_routing_key),
    "first_death.count": Field(Kind.NUMBER, Part.HEAD, _first_count),
    "first_death.time": Field(Kind.TIME, Part.HEAD, _first_time),
    "body": Field(Kind.TEXT, Part.BODY, lambda message: message.body),
}
