"""Arguments of exchanges, queues and bindings: their JSON form, types, validity, equivalence.

Values in the catalog are JSON: bool, int, float, str, None, list and dict stand for themselves,
bytes are {"$bytes": base64}, timestamps {"$timestamp": seconds}, decimals {"$decimal": [scale,
value]}; a table that looks like one of these is wrapped, {"$table": {…}}.  Integer widths are not
kept; texts name an integer `signedint` when it fits into 32 bits, else `long`.

Pure; used by `declare.py`, `policy.py`, `catalog_specs.py`; the server converts its AMQP tables
with `to_json` and `from_json`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from brokerd.core.catalog import names
from brokerd.core.catalog.refusals import Refused, precondition_failed

#: RabbitMQ's MAX_EXPIRY_TIMER: ten years in milliseconds.
EXPIRY_MS_MAX = 315_360_000_000
OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
DEAD_LETTER_STRATEGIES = ("at-most-once", "at-least-once")
LEADER_LOCATORS = ("client-local", "balanced", "random", "least-leaders", "min-masters")
QUEUE_TYPES = ("classic", "quorum")

Json = dict[str, Any]


def to_json(value: Any) -> Any:
    """Return the JSON form of a decoded AMQP value."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is dict:
        table = {str(key): to_json(item) for key, item in value.items()}
        return {"$table": table} if len(table) == 1 and next(iter(table)) in _SPECIAL else table
    if kind is list or kind is tuple:
        return [to_json(item) for item in value]
    if kind in (bytes, bytearray, memoryview):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, int):
        # The amqp room's Timestamp, which this room may not import.
        return {"$timestamp": int(value)}
    return {"$decimal": [int(value.scale), int(value.value)]}


def from_json(
    value: Any,
    timestamp: Callable[[int], Any] = int,
    decimal: Callable[[int, int], Any] = lambda scale, value: value / 10**scale,
) -> Any:
    """Return what `to_json` was given; the caller brings its classes for timestamp and decimal."""
    if type(value) is list:
        return [from_json(item, timestamp, decimal) for item in value]
    if type(value) is not dict:
        return value
    special = _special(value)
    if special == "$bytes":
        return base64.b64decode(value["$bytes"])
    if special == "$timestamp":
        return timestamp(value["$timestamp"])
    if special == "$decimal":
        scale, number = value["$decimal"]
        return decimal(scale, number)
    table = value["$table"] if special == "$table" else value
    return {key: from_json(item, timestamp, decimal) for key, item in table.items()}


def _special(value: Json) -> str:
    """Return which of the special forms a JSON object is, "" for a plain table."""
    if len(value) != 1:
        return ""
    key, inner = next(iter(value.items()))
    check = _SPECIAL.get(key)
    return key if check is not None and check(inner) else ""


def _is_base64(value: Any) -> bool:
    if type(value) is not str:
        return False
    try:
        base64.b64decode(value, validate=True)
    except ValueError:
        return False
    return True


def _is_decimal(value: Any) -> bool:
    return (
        type(value) is list
        and len(value) == 2
        and all(type(number) is int for number in value)
        and 0 <= value[0] <= 255
    )


_SPECIAL: dict[str, Callable[[Any], bool]] = {
    "$bytes": _is_base64,
    "$timestamp": lambda value: type(value) is int,
    "$decimal": _is_decimal,
    "$table": lambda value: type(value) is dict,
}
_SPECIAL_TYPE_NAMES = {
    "$bytes": "binary",
    "$timestamp": "timestamp",
    "$decimal": "decimal",
    "$table": "table",
    "": "table",
}
_TYPE_NAMES = {bool: "bool", float: "double", str: "longstr", list: "array", type(None): "void"}


def type_name(value: Any) -> str:
    """Return AMQP's name of a JSON value's type, as error texts give it."""
    kind = type(value)
    if kind is int:
        return "signedint" if -(2**31) <= value < 2**31 else "long"
    if kind is dict:
        return _SPECIAL_TYPE_NAMES[_special(value)]
    return _TYPE_NAMES[kind]


def are_equal(left: Any, right: Any) -> bool:
    """Compare two JSON values by type class and value: 1, 1.0 and True all differ."""
    if type(left) is not type(right):
        return False
    if type(left) is list:
        return len(left) == len(right) and all(map(are_equal, left, right))
    if type(left) is dict:
        return left.keys() == right.keys() and all(are_equal(left[key], right[key]) for key in left)
    return bool(left == right)


def shown(value: Any) -> str:
    """Return a value as texts show it between quotes."""
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    return names.canonical_json(value)


def inequivalent(resource: str, name: str, received: str, current: str) -> Refused:
    """Return the 406 of a redeclaration that differs (R-EX-4, R-Q-4, R-ERR-4)."""
    return precondition_failed(
        f"inequivalent arg '{name}' for {resource}: received {received} but current is {current}"
    )


def unequal_field(resource: str, name: str, received: Any, current: Any) -> Refused | None:
    """Compare a property of the declaration."""
    if received == current:
        return None
    return inequivalent(resource, name, f"'{shown(received)}'", f"'{shown(current)}'")


def unequal_argument(resource: str, name: str, received: Json, current: Json) -> Refused | None:
    """Compare one argument that either side may lack."""
    if name in received and name in current:
        if are_equal(received[name], current[name]):
            return None
        return inequivalent(
            resource, name, f"'{shown(received[name])}'", f"'{shown(current[name])}'"
        )
    if name not in received and name not in current:
        return None
    return inequivalent(resource, name, _or_none(name, received), _or_none(name, current))


def _or_none(name: str, arguments: Json) -> str:
    if name not in arguments:
        return "none"
    value = arguments[name]
    return f"the value '{shown(value)}' of type '{type_name(value)}'"


def _integer(value: Any) -> str | None:
    if type(value) is not int:
        return f'"expected integer, got {type_name(value)}"'
    return None


def _non_negative(value: Any) -> str | None:
    error = _integer(value)
    if error is None and value < 0:
        error = f"{{value_negative,{value}}}"
    return error


def _positive(value: Any) -> str | None:
    error = _non_negative(value)
    if error is None and value == 0:
        error = "{value_zero,0}"
    return error


def _ttl(value: Any) -> str | None:
    error = _non_negative(value)
    if error is None and value > EXPIRY_MS_MAX:
        error = f"{{value_too_large,{value}}}"
    return error


def _expires(value: Any) -> str | None:
    return _positive(value) or _ttl(value)


def _max_priority(value: Any) -> str | None:
    error = _non_negative(value)
    if error is None and value > 255:
        error = f"{{max_value_exceeded,{value}}}"
    return error


def _text(value: Any) -> str | None:
    return None if type(value) is str else f"{{unacceptable_type,{type_name(value)}}}"


def _boolean(value: Any) -> str | None:
    return None if type(value) is bool else f"{{unacceptable_type,{type_name(value)}}}"


def _one_of(allowed: tuple[str, ...], error: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        return _text(value) or (None if value in allowed else error)

    return check


def _queue_mode(value: Any) -> str | None:
    error = _text(value)
    if error is None and value not in ("default", "lazy"):
        error = f"\"unsupported queue mode '{value}'\""
    return error


def _queue_version(value: Any) -> str | None:
    error = _integer(value)
    if error is None and value != 2:
        error = f"\"unsupported queue version '{value}'\""
    return error


Check = Callable[[Any], str | None]

#: R-QQ-22; on classic queues where the profile says so.
CONSUMER_TIMEOUT = "x-consumer-timeout"

#: Per type: what it knows and how values are checked (R-Q-5, R-QQ-3), in the order in which a
#: redeclaration is compared and the first difference told (R-Q-4, as RabbitMQ's types list them).
KNOWN: dict[str, dict[str, Check]] = {
    "classic": {
        "x-expires": _expires,
        "x-message-ttl": _ttl,
        "x-dead-letter-exchange": _text,
        "x-dead-letter-routing-key": _text,
        "x-max-length": _non_negative,
        "x-max-length-bytes": _non_negative,
        "x-max-priority": _max_priority,
        "x-overflow": _one_of(OVERFLOWS, "invalid_overflow"),
        "x-queue-mode": _queue_mode,
        "x-queue-version": _queue_version,
        "x-single-active-consumer": _boolean,
        "x-queue-type": _text,
        "x-queue-leader-locator": _one_of(LEADER_LOCATORS, "invalid_queue_locator_arg"),
        CONSUMER_TIMEOUT: _positive,
    },
    "quorum": {
        "x-dead-letter-exchange": _text,
        "x-dead-letter-routing-key": _text,
        "x-dead-letter-strategy": _one_of(DEAD_LETTER_STRATEGIES, "invalid_dlx_strategy"),
        "x-expires": _expires,
        "x-max-length": _non_negative,
        "x-max-length-bytes": _non_negative,
        "x-max-in-memory-length": _non_negative,
        "x-max-in-memory-bytes": _non_negative,
        "x-overflow": _one_of(OVERFLOWS, "invalid_overflow"),
        "x-single-active-consumer": _boolean,
        "x-queue-type": _text,
        "x-quorum-initial-group-size": _positive,
        "x-delivery-limit": _integer,
        "x-message-ttl": _ttl,
        "x-queue-leader-locator": _one_of(LEADER_LOCATORS, "invalid_queue_locator_arg"),
        CONSUMER_TIMEOUT: _positive,
        "x-consumer-disconnected-timeout": _non_negative,
        "x-delayed-retry-type": _one_of(
            ("disabled", "all", "failed", "returned"), "invalid_delayed_retry_type"
        ),
        "x-delayed-retry-min": _non_negative,
        "x-delayed-retry-max": _non_negative,
    },
}


def _anything(value: Any) -> str | None:
    return None


#: Instead of these checks where the feature flag `idle_values` is enabled: what RabbitMQ 4.3.6
#: takes (tried).  A value that only this takes is as none: it is stored and does nothing (R-Q-6).
IDLE: dict[str, dict[str, Check]] = {
    "classic": {"x-queue-mode": _anything, CONSUMER_TIMEOUT: _non_negative},
    "quorum": {
        "x-delivery-limit": _anything,
        CONSUMER_TIMEOUT: _non_negative,
        "x-delayed-retry-type": _anything,
        "x-delayed-retry-min": _anything,
        "x-delayed-retry-max": _anything,
    },
}
#: What some type knows, in the order in which the values of a new queue are checked: classic
#: queues' own order, then what only quorum queues know.
_CLASSIC_ORDER = (argument for argument in KNOWN["classic"] if argument != CONSUMER_TIMEOUT)
_CHECKED = tuple(dict.fromkeys((*_CLASSIC_ORDER, *KNOWN["quorum"])))


#: Of streams, which are not here, by the first RabbitMQ that refuses them on queues of other types
#: (tried with 3.10.8 and 4.3.6; R-Q-5).
STREAM_ARGUMENTS = {
    "3.10": ("x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size"),
    "3.13": (
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-initial-cluster-size",
        "x-stream-filter-size-bytes",
    ),
}
MASTER_LOCATOR = "x-queue-master-locator"


def check_queue_arguments(
    queue_type: str,
    arguments: Mapping[str, Any],
    vhost: str,
    name: str,
    foreign: Iterable[str] = (),
    *,
    takes_idle: bool = False,
) -> Refused | None:
    """Return the refusal of the first argument that is wrong for the type (R-Q-5, R-Q-6).

    Wrong values are reported before arguments that only another type knows.  foreign: of those,
    what no type here knows, or this one does not in the profile.  takes_idle: values without effect
    (`IDLE`) are taken.
    """
    resource = names.resource("queue", vhost, name)
    known = KNOWN[queue_type].keys() - set(foreign)
    for argument in _CHECKED:
        if argument not in arguments or argument not in known:
            continue
        check = KNOWN[queue_type][argument]
        if takes_idle:
            check = IDLE[queue_type].get(argument, check)
        error = check(arguments[argument])
        if argument == "x-dead-letter-routing-key" and "x-dead-letter-exchange" not in arguments:
            # R-ERR-37
            error = error or "routing_key_but_no_dlx_defined"
        if error is not None:
            return precondition_failed(f"invalid arg '{argument}' for {resource}: {error}")
    for argument in (*_CHECKED, *foreign):
        if argument in arguments and argument not in known:
            return precondition_failed(
                f"invalid arg '{argument}' for {resource} of queue type rabbit_{queue_type}_queue"
            )
    return None


def idle_values(queue_type: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the arguments whose values have no effect (`IDLE`)."""
    known = KNOWN[queue_type]
    return [
        argument
        for argument in IDLE[queue_type]
        if argument in arguments and known[argument](arguments[argument]) is not None
    ]


def with_type(arguments: Json, queue_type: str) -> Json:
    """Return a queue's arguments with its type among them, as RabbitMQ 4.3 has them always."""
    if "x-queue-type" in arguments:
        return arguments
    return arguments | {"x-queue-type": queue_type}


def unequal_queue_arguments(
    resource: str,
    received: Json,
    current: Json,
    received_type: str,
    current_type: str,
    *,
    says_types: bool = False,
    foreign: Collection[str] = (),
) -> Refused | None:
    """Compare the type and all arguments that the queue's own type knows (R-Q-4).

    says_types: types are reported as if each queue had the argument.  foreign: arguments that the
    profile's queues of this type do not know.
    RabbitMQ 3.10.8 asks the type of the queue that is there, not all types: an argument that only
    another type knows is not compared.
    """
    for argument in KNOWN[current_type]:
        if argument in foreign:
            continue
        if argument == "x-queue-type":
            # R-ERR-6: reported as an argument; a classic queue without it has none.
            if says_types:
                sides = {argument: received_type}, {argument: current_type}
            else:
                sides = _typed(received_type, received), _typed(current_type, current)
            is_same = received_type == current_type
            refused = None if is_same else unequal_argument(resource, argument, *sides)
        else:
            refused = unequal_argument(resource, argument, received, current)
        if refused is not None:
            return refused
    return None


def _typed(queue_type: str, values: Json) -> Json:
    if queue_type == "classic" and "x-queue-type" not in values:
        return {}
    # A default of the vhost stands for the argument.
    return {"x-queue-type": queue_type}
