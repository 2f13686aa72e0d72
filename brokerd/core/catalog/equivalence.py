"""Whether a redeclaration means what exists (R-EX-4, R-Q-4, R-Q-9).

Pure; asked before a declare is proposed (`declare.py`) and again when it is applied
(`catalog_machine.py`), because another node's declare may have come first.  Inline settings never
count.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from brokerd.core.catalog import arguments, names
from brokerd.core.catalog.catalog_objects import ConnectionId, Exchange, Queue
from brokerd.core.catalog.refusals import Refused, locked

Json = dict[str, Any]


def check_exchange(exchange: Exchange, spec: Json) -> Refused | None:
    """Return the 406 of the first difference (R-EX-4, R-ERR-7)."""
    resource = names.resource("exchange", exchange.vhost, exchange.name)
    return (
        arguments.unequal_field(resource, "type", spec["type"], exchange.type)
        or arguments.unequal_field(resource, "durable", spec["durable"], exchange.durable)
        or arguments.unequal_field(
            resource, "auto_delete", spec["auto_delete"], exchange.auto_delete
        )
        or arguments.unequal_field(resource, "internal", spec["internal"], exchange.internal)
        or arguments.unequal_argument(
            resource, "alternate-exchange", spec["arguments"], exchange.arguments
        )
    )


def check_queue(
    queue: Queue,
    spec: Json,
    owner: ConnectionId | None,
    *,
    says_types: bool = False,
    foreign: Collection[str] = (),
) -> Refused | None:
    """Return the refusal of a redeclaration (R-Q-4, R-ERR-4 to -6); owner: of an exclusive one.

    says_types: another type is reported as by RabbitMQ 4.3, where each queue has the argument.
    foreign: arguments that the profile's queues of this type do not know.
    """
    resource = names.resource("queue", queue.vhost, queue.name)
    if queue.exclusive_owner != owner:
        return exclusive_refusal(queue.vhost, queue.name)
    return (
        arguments.unequal_field(resource, "durable", spec["durable"], queue.durable)
        or arguments.unequal_field(resource, "auto_delete", spec["auto_delete"], queue.auto_delete)
        or arguments.unequal_queue_arguments(
            resource,
            spec["arguments"],
            queue.arguments,
            spec["type"],
            queue.type,
            says_types=says_types,
            foreign=foreign,
        )
    )


def check_access(queue: Queue, connection: ConnectionId | None) -> Refused | None:
    """Refuse another connection's exclusive queue (R-Q-9, R-ERR-11)."""
    if queue.exclusive_owner is None or queue.exclusive_owner == connection:
        return None
    return exclusive_refusal(queue.vhost, queue.name)


def exclusive_refusal(vhost: str, name: str) -> Refused:
    """Return the 405 of R-Q-9."""
    return locked(
        f"cannot obtain exclusive access to locked {names.resource('queue', vhost, name)}. "
        "It could be originally declared on another connection or the exclusive property value "
        "does not match that of the original declaration."
    )
