"""Names of broker objects: reserved ones, limits, and how error texts speak of them.

Pure; for every room that builds a text with a name in it or asks whether a name is reserved.
Not for the look-up of objects (`catalog_state.py`).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

#: AMQP shortstr (R-NAM-1).
NAME_BYTES_MAX = 255
DEFAULT_EXCHANGE = ""
DEFAULT_VHOST = "/"
RESERVED_PREFIX = "amq."
GENERATED_QUEUE_PREFIX = "amq.gen-"
REPLY_TO = "amq.rabbitmq.reply-to"
#: Of the queues in which exchanges of type x-delayed-message keep what is not due.
DELAYED_PREFIX = "amq.delayed."

#: (name, type, internal) of what every vhost starts with, all durable (R-EX-1).
DEFAULT_EXCHANGES = (
    ("", "direct", False),
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
    ("amq.topic", "topic", False),
)

#: Kinds of catalog objects, in the order in which they can be put one after the other.
KINDS = (
    "setting",
    "member",
    "vhost",
    "user",
    "permission",
    "topic_permission",
    "parameter",
    "operator_policy",
    "policy",
    "exchange",
    "queue",
    "binding",
)
KIND_ORDER = {kind: order for order, kind in enumerate(KINDS)}
#: Kinds that live outside any vhost.
GLOBAL_KINDS = frozenset(("setting", "member", "vhost", "user"))


def is_too_long(name: str) -> bool:
    """Say whether a name does not fit into a shortstr."""
    return len(name) > NAME_BYTES_MAX or (
        len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX
    )


def is_reserved(name: str) -> bool:
    """Say whether clients may not make an object of this name (R-NAM-2)."""
    return name.startswith(RESERVED_PREFIX)


def is_reply_to(name: str) -> bool:
    """Say whether this is a direct reply-to pseudo queue (R-NAM-4)."""
    return name == REPLY_TO or name.startswith(REPLY_TO + ".")


def delayed_queue(exchange: str) -> str:
    """Return the name of the queue in which an exchange keeps what is not due."""
    return DELAYED_PREFIX + exchange


def is_delayed_queue(name: str) -> bool:
    """Say whether a queue is one in which an exchange keeps what is not due."""
    return name.startswith(DELAYED_PREFIX)


def exchange_of(delayed_queue_name: str) -> str:
    """Return the exchange that keeps its messages in this queue."""
    return delayed_queue_name.removeprefix(DELAYED_PREFIX)


def resource(kind: str, vhost: str, name: str) -> str:
    """Return `exchange 'x' in vhost '/'`, as all error texts have it."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def missing(kind: str, vhost: str, name: str) -> str:
    """Return the text of a 404 (R-ERR-1, R-ERR-2)."""
    return f"no {resource(kind, vhost, name)}"


#: Made once: `json.dumps` makes one for each call.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: keys sorted, no spaces, ASCII only.

    ASCII, so that names that are not UTF-8 (surrogate escapes) have a form too.
    """
    return _CANONICAL.encode(value)


def digest(value: Any, characters: int = 16) -> str:
    """Return the first hex characters of the sha256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:characters]


def binding_name(
    source: str,
    destination_kind: str,
    destination: str,
    routing_key: str,
    arguments: dict[str, Any],
) -> str:
    """Return a binding's name within its vhost: identity as one text (R-BND-1).

    The last part is the hash of the arguments (8 hex characters, nothing for none).  Where a part
    contains the separator itself, the last part is 16 characters of a hash of the whole identity,
    so that two bindings never share a name.
    """
    if "|" in source or "|" in destination or "|" in routing_key:
        last = digest([source, destination_kind, destination, routing_key, arguments])
    else:
        last = digest(arguments, 8) if arguments else ""
    return f"{source}|{destination_kind}|{destination}|{routing_key}|{last}"
