"""Specs of catalog objects: defaults filled in, types and ranges checked.

`normalise` is deterministic and runs when a command is applied, so whatever is in the catalog has
one shape.  What depends on the version of a library (regular expressions) is judged once, by the
proposing node (`catalog_commands.put`), and travels as a verdict.

Pure; used by the catalog only.  docs/reference/topology.md shows the same shapes to users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from brokerd.core.catalog import arguments, names, policy_keys
from brokerd.core.catalog.exchange_types import TYPES

Json = dict[str, Any]

#: SEC-49
SPEC_BYTES_MAX = 262_144
SPEC_DEPTH_MAX = 16
_LIMITS = {
    "vhost": ("max-connections", "max-queues", "max-exchanges", "max-bindings"),
    "user": ("max-connections", "max-channels"),
}


class SpecError(ValueError):
    """A spec that cannot be stored; the text is for the person who wrote it."""


def _wrong(field: str, expected: str, value: Any) -> SpecError:
    return SpecError(f"{field}: expected {expected}, got {arguments.type_name(value)}")


def _boolean(field: str, value: Any) -> bool:
    if type(value) is not bool:
        raise _wrong(field, "a boolean", value)
    return value


def _text(field: str, value: Any) -> str:
    if type(value) is not str:
        raise _wrong(field, "a string", value)
    return value


def _name(field: str, value: Any) -> str:
    if names.is_too_long(_text(field, value)):
        raise SpecError(f"{field}: longer than {names.NAME_BYTES_MAX} bytes")
    return str(value)


def _integer(field: str, value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise _wrong(field, "an integer of 64 bits", value)
    return value


def _table(field: str, value: Any) -> Json:
    if type(value) is not dict:
        raise _wrong(field, "an object", value)
    return value


def _tags(field: str, value: Any) -> list[str]:
    # In their order: tools such as Terraform compare them as a list.
    if type(value) is not list or not all(type(item) is str for item in value):
        raise _wrong(field, "a list of strings", value)
    return list(dict.fromkeys(value))


def _any(field: str, value: Any) -> Any:
    return value


def _one_of(allowed: tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(field: str, value: Any) -> str:
        if value not in allowed:
            raise SpecError(f"{field}: must be one of {', '.join(allowed)}")
        return str(value)

    return check


def _limits(kind: str) -> Callable[[str, Any], Json]:
    def check(field: str, value: Any) -> Json:
        for key, limit in _table(field, value).items():
            if key not in _LIMITS[kind]:
                raise SpecError(f"{field}: unknown limit '{key}'")
            _integer(f"{field}.{key}", limit)
        return dict(value)

    return check


def _settings(known: Mapping[str, policy_keys.Check]) -> Callable[[str, Any], Json]:
    def check(field: str, value: Any) -> Json:
        settings = {key: item for key, item in _table(field, value).items() if item is not None}
        error = policy_keys.check_keys(settings, known, field)
        if error is not None:
            raise SpecError(error)
        return settings

    return check


class _Required:
    """Stands for a default where there is none."""


_REQUIRED = _Required()
Field = tuple[Callable[[str, Any], Any], Any]

_REGEX: Field = (_text, _REQUIRED)
_FIELDS: dict[str, dict[str, Field]] = {
    "setting": {"value": (_any, _REQUIRED)},
    "member": {"peer_address": (_text, _REQUIRED)},
    "vhost": {
        "description": (_text, ""),
        "tags": (_tags, []),
        "default_queue_type": (_one_of(("", *arguments.QUEUE_TYPES)), ""),
        "limits": (_limits("vhost"), {}),
    },
    "user": {
        "tags": (_tags, []),
        "password_hash": (_text, ""),
        "limits": (_limits("user"), {}),
    },
    "permission": {"configure": _REGEX, "write": _REGEX, "read": _REGEX},
    "topic_permission": {"write": _REGEX, "read": _REGEX},
    "parameter": {"value": (_any, _REQUIRED)},
    "policy": {
        "pattern": _REGEX,
        "apply-to": (_one_of(policy_keys.APPLY_TO), "all"),
        "priority": (_integer, 0),
        "definition": (_table, _REQUIRED),
    },
    "operator_policy": {
        "pattern": _REGEX,
        "apply-to": (_one_of(policy_keys.APPLY_TO), "queues"),
        "priority": (_integer, 0),
        "definition": (_table, _REQUIRED),
    },
    "exchange": {
        "type": (_one_of(TYPES), _REQUIRED),
        "durable": (_boolean, True),
        "auto_delete": (_boolean, False),
        "internal": (_boolean, False),
        "arguments": (_table, {}),
        "settings": (_settings(policy_keys.EXCHANGE_SETTINGS), {}),
    },
    "queue": {
        "type": (_one_of(arguments.QUEUE_TYPES), _REQUIRED),
        "durable": (_boolean, True),
        "auto_delete": (_boolean, False),
        "arguments": (_table, {}),
        "settings": (_settings(policy_keys.QUEUE_SETTINGS), {}),
    },
    "binding": {
        "source": (_name, _REQUIRED),
        "destination": (_name, _REQUIRED),
        "destination_kind": (_one_of(("queue", "exchange")), "queue"),
        "routing_key": (_name, ""),
        "arguments": (_table, {}),
    },
}
#: May be missing or null in the stored spec.
_OPTIONAL: dict[str, dict[str, Callable[[str, Any], Any]]] = {
    "queue": {"replicas": _integer},
    "user": {"previous_password_hash": _text, "previous_until_ms": _integer},
}


def normalise(kind: str, vhost: str, name: str, spec: Json) -> Json:
    """Return the spec in its stored shape; raises SpecError."""
    _check_size(spec)
    fields = _FIELDS[kind]
    optional = _OPTIONAL.get(kind, {})
    for field in sorted(spec):
        # Listings say "exclusive": true; it is decided by the declaring connection, not by a spec.
        if field not in fields and field not in optional and field != "exclusive":
            raise SpecError(f"unknown field '{field}'")
    result: Json = {}
    for field, (check, default) in fields.items():
        value = spec.get(field, default)
        if isinstance(value, _Required):
            raise SpecError(f"{field}: missing")
        result[field] = check(field, value)
    for field, check in optional.items():
        if spec.get(field) is not None:
            result[field] = check(field, spec[field])
    extra = _EXTRA.get(kind)
    if extra is not None:
        extra(vhost, name, result)
    return result


def _check_size(spec: Json) -> None:
    depth = 0
    level: list[Any] = [spec]
    while level:
        depth += 1
        if depth > SPEC_DEPTH_MAX:
            raise SpecError(f"nested deeper than {SPEC_DEPTH_MAX} levels")
        inner: list[Any] = []
        for item in level:
            if type(item) is dict:
                inner.extend(item.values())
            elif type(item) is list:
                inner.extend(item)
        level = inner
    if len(names.canonical_json(spec)) > SPEC_BYTES_MAX:
        raise SpecError(f"larger than {SPEC_BYTES_MAX} bytes")


def _queue(vhost: str, name: str, spec: Json) -> None:
    if spec["type"] == "quorum":
        if not spec["durable"] or spec["auto_delete"]:
            wrong = "non-durable" if not spec["durable"] else "auto-delete"
            text = f"invalid property '{wrong}' for {names.resource('queue', vhost, name)}"
            raise SpecError(text)
    elif "replicas" in spec:
        raise SpecError("replicas: only quorum queues have replicas")
    if "replicas" in spec and not 1 <= spec["replicas"] <= 255:
        raise SpecError("replicas: must be between 1 and 255")
    declared = spec["arguments"].get("x-queue-type", spec["type"])
    if declared != spec["type"]:
        raise SpecError(f"type is {spec['type']} but x-queue-type is {arguments.shown(declared)}")
    refused = arguments.check_queue_arguments(
        spec["type"], spec["arguments"], vhost, name, takes_idle=True
    )
    if refused is not None:
        raise SpecError(refused.text)
    for key in sorted(spec["settings"]):
        if key in policy_keys.UNSUPPORTED[spec["type"]]:
            raise SpecError(f"settings: '{key}' is not supported by {spec['type']} queues")


def _exchange(vhost: str, name: str, spec: Json) -> None:
    alternate = spec["arguments"].get("alternate-exchange", "")
    if type(alternate) is not str:
        raise SpecError(
            f"invalid type '{arguments.type_name(alternate)}' for arg 'alternate-exchange' "
            f"in {names.resource('exchange', vhost, name)}"
        )


def _policy(vhost: str, name: str, spec: Json) -> None:
    if len(spec["pattern"].encode("utf-8", "surrogateescape")) > policy_keys.PATTERN_BYTES_MAX:
        raise SpecError(f"pattern: longer than {policy_keys.PATTERN_BYTES_MAX} bytes")
    error = policy_keys.check_definition(spec["definition"], False)
    if error is not None:
        raise SpecError(error)


def _operator_policy(vhost: str, name: str, spec: Json) -> None:
    _policy(vhost, name, spec)
    error = policy_keys.check_definition(spec["definition"], True)
    if error is not None:
        raise SpecError(error)
    if spec["apply-to"] in ("all", "exchanges"):
        raise SpecError("apply-to: an operator policy applies to queues only")


_EXTRA: dict[str, Callable[[str, str, Json], None]] = {
    "queue": _queue,
    "exchange": _exchange,
    "policy": _policy,
    "operator_policy": _operator_policy,
}

#: Identity: a put that changes one of these is IMMUTABLE.
IDENTITY = {
    "exchange": ("type", "durable", "auto_delete", "internal", "arguments"),
    "queue": ("type", "durable", "auto_delete", "arguments"),
}
