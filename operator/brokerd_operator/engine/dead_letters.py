"""Where a queue's dead letters wait, and how many: `status.deadLetters` of Queues.

The engine asks each broker now and then, one call for all its queues.  Queues whose status says
something else are woken, so many at a time that ten thousand changing counts are no burden to the
API server.  Until a broker has answered a status stays as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.engine.cache import Entry
from brokerd_operator.engine.keys import Key
from brokerd_operator.specs.model import JsonObject, Reference
from brokerd_operator.specs.queue import QueueSpec

#: The kind of Admin.List.
LISTING = "dead_letters"
FIELD = "deadLetters"
#: Queues of one broker that are woken after one answer; the others follow after the next ones.
WOKEN_MAX = 200
#: Queues that one status names, as the CRD allows.
NAMED_MAX = 8

_Name = tuple[str, str]


class DeadLetters:
    """Owns what brokers said last, by broker, virtual host and queue."""

    def __init__(self) -> None:
        self._said: dict[Reference, dict[_Name, JsonObject]] = {}
        #: Who was woken last, so that none of many is left out.
        self._woken: dict[Reference, Key] = {}

    def replace(self, broker: Reference, rows: Iterable[Any]) -> None:
        """Take an answer."""
        self._said[broker] = {
            (str(row.get("vhost")), str(row.get("name"))): row
            for row in rows
            if isinstance(row, dict)
        }

    def is_known(self, broker: Reference) -> bool:
        """Whether a broker ever answered."""
        return broker in self._said

    def forget(self, broker: Reference) -> None:
        self._said.pop(broker, None)
        self._woken.pop(broker, None)

    def of_queue(self, broker: Reference, vhost: str, name: str) -> JsonObject | None:
        """The field of a queue's status; None for one that does not dead-letter, or of which the
        broker says what makes no sense.
        """
        row = self._said[broker].get((vhost, name))
        return _field(row) if row is not None and _is_sound(row) else None

    def next_of(self, broker: Reference, differing: Iterable[Key]) -> list[Key]:
        """Of the Queues whose status says something else those that are woken now, WOKEN_MAX at
        most; after the next answer it goes on behind them.
        """
        found = sorted(differing)
        last = self._woken.pop(broker, None)
        if last is not None:
            found = [key for key in found if key > last] + [key for key in found if key <= last]
        if len(found) > WOKEN_MAX:
            del found[WOKEN_MAX:]
            self._woken[broker] = found[-1]
        return found

    def differs(self, broker: Reference, entry: Entry) -> bool:
        """Whether the status of a Queue says something else."""
        spec, ready = entry.spec, conditions.find(entry.body, conditions.READY)
        is_own = ready is not None and ready.reason in conditions.OWN_OBJECT
        if not isinstance(spec, QueueSpec) or not is_own:
            return False
        told = (entry.body.get("status") or {}).get(FIELD)
        return bool(told != self.of_queue(broker, spec.vhost, spec.resolved_name(entry.meta)))


def _is_sound(row: Mapping[str, Any]) -> bool:
    wanted: dict[str, type] = {"vhost": str, "name": str, "exchange": str}
    wanted |= {"queues": list, "queues_more": int, "held": int, "waiting": int}
    return all(isinstance(row.get(name), type_) for name, type_ in wanted.items())


def _field(row: Mapping[str, Any]) -> JsonObject:
    """What the status says of a row."""
    field: JsonObject = {"exchange": row["exchange"]}
    if row.get("routing_key") is not None:
        field["routingKey"] = str(row["routing_key"])
    named = [queue for queue in row["queues"][:NAMED_MAX] if isinstance(queue, dict)]
    field["queues"] = [_queue(queue) for queue in named]
    if row["queues_more"] > 0:
        field["moreQueues"] = row["queues_more"]
    field |= {"held": row["held"], "waiting": row["waiting"]}
    full = next((queue for queue in named if queue.get("messages")), None)
    if full is not None:
        field["hint"] = _hint(row["vhost"], str(full.get("name")))
    return field


def _queue(queue: Mapping[str, Any]) -> JsonObject:
    """A queue without `messages` is one whose members do not answer."""
    messages = queue.get("messages")
    name = {"name": str(queue.get("name"))}
    return name | {"messages": messages} if isinstance(messages, int) else name


def _hint(vhost: str, queue: str) -> str:
    where = "" if vhost == "/" else f" --vhost {shlex.quote(vhost)}"
    return f"brokerctl triage{where} {shlex.quote(queue)}"
