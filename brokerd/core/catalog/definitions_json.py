"""RabbitMQ's definitions (its JSON of users, vhosts, rights, policies and topology) to the objects
of the Admin service (docs/reference/topology.md), and back.

Pure translation: nothing is read, written or asked.  For `brokerctl` and for the definitions that a
member loads at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from brokerd.core.catalog import names

Json = dict[str, Any]
#: Of the rabbitmqctl whose words brokerctl has.
SPOKEN = "3.10.8"
#: One object to be: kind, vhost, name, spec.
Wanted = tuple[str, str, str, Json]
DEFAULT_HASH = "rabbit_password_hashing_sha256"
_HASHES = {
    DEFAULT_HASH: "rabbitmq-sha256$",
    "rabbit_password_hashing_sha512": "rabbitmq-sha512$",
}
#: Ours, for files that come back to a brokerd.
SCRYPT = "brokerd_password_hashing_scrypt"


class BadDefinitions(ValueError):
    """Not definitions; the text says where and why."""


# ---- out ----------------------------------------------------------------------------------------


def exported(objects: Iterable[Wanted], version: str, *, with_transient: bool = False) -> Json:
    """Return RabbitMQ's JSON of these objects.

    version: of the RabbitMQ that the broker's profile follows, which a file names as its maker.
    with_transient: as RabbitMQ's HTTP API has it; rabbitmqctl leaves them out.
    """
    by_kind: dict[str, list[Wanted]] = {}
    for wanted in objects:
        by_kind.setdefault(wanted[0], []).append(wanted)
    kept = {
        (kind, vhost, name)
        for kind in ("queue", "exchange")
        for _, vhost, name, spec in by_kind.get(kind, ())
        if (spec["durable"] or with_transient) and not spec.get("exclusive")
    }
    found: Json = {
        "bindings": [
            _binding(vhost, spec)
            for _, vhost, _, spec in by_kind.get("binding", ())
            if ("exchange", vhost, spec["source"]) in kept
            and (spec["destination_kind"], vhost, spec["destination"]) in kept
        ],
        "exchanges": [
            _exchange(vhost, name, spec)
            for _, vhost, name, spec in by_kind.get("exchange", ())
            if name and not name.startswith("amq.") and ("exchange", vhost, name) in kept
        ],
        "global_parameters": [],
        "parameters": _parameters(by_kind),
        "permissions": [
            {"user": name, "vhost": vhost} | spec
            for _, vhost, name, spec in by_kind.get("permission", ())
        ],
        "policies": [
            {"vhost": vhost, "name": name} | spec
            for _, vhost, name, spec in by_kind.get("policy", ())
        ],
        "queues": [
            _queue(vhost, name, spec)
            for _, vhost, name, spec in by_kind.get("queue", ())
            if ("queue", vhost, name) in kept and not names.is_delayed_queue(name)
        ],
        "rabbit_version": version,
        "rabbitmq_version": version,
        "topic_permissions": [
            _topic_permission(vhost, name, spec)
            for _, vhost, name, spec in by_kind.get("topic_permission", ())
        ],
        "users": [user_row(name, spec) for _, _, name, spec in by_kind.get("user", ())],
        "vhosts": [_vhost(name, spec) for _, _, name, spec in by_kind.get("vhost", ())],
    }
    return found


def _binding(vhost: str, spec: Json) -> Json:
    return {
        "source": spec["source"],
        "vhost": vhost,
        "destination": spec["destination"],
        "destination_type": spec["destination_kind"],
        "routing_key": spec["routing_key"],
        "arguments": spec["arguments"],
    }


def _exchange(vhost: str, name: str, spec: Json) -> Json:
    return {
        "name": name,
        "vhost": vhost,
        "type": spec["type"],
        "durable": spec["durable"],
        "auto_delete": spec["auto_delete"],
        "internal": spec["internal"],
        "arguments": spec["arguments"],
    } | _inline(spec)


def _queue(vhost: str, name: str, spec: Json) -> Json:
    arguments = spec["arguments"]
    if spec["type"] != "classic":
        # RabbitMQ reads the type from the arguments.
        arguments = arguments | {"x-queue-type": spec["type"]}
    return {
        "name": name,
        "vhost": vhost,
        "type": spec["type"],
        "durable": spec["durable"],
        "auto_delete": spec["auto_delete"],
        "arguments": arguments,
    } | _inline(spec)


def _inline(spec: Json) -> Json:
    """Return what RabbitMQ does not know and passes over (docs/reference/topology.md)."""
    found = {}
    if spec.get("settings"):
        found["brokerd_settings"] = spec["settings"]
    if spec.get("replicas"):
        found["brokerd_replicas"] = spec["replicas"]
    return found


def _parameters(by_kind: dict[str, list[Wanted]]) -> list[Json]:
    found = []
    for _, vhost, name, spec in by_kind.get("parameter", ()):
        component, _, rest = name.partition("/")
        found.append({"component": component, "name": rest, "value": spec["value"], "vhost": vhost})
    for _, vhost, name, spec in by_kind.get("operator_policy", ()):
        found.append({"component": "operator_policy", "name": name, "value": spec, "vhost": vhost})
    for _, _, name, spec in by_kind.get("vhost", ()):
        if spec["limits"]:
            found.append(
                {
                    "component": "vhost-limits",
                    "name": "limits",
                    "value": spec["limits"],
                    "vhost": name,
                }
            )
    return found


def _topic_permission(vhost: str, name: str, spec: Json) -> Json:
    user, _, exchange = name.partition("|")
    return {"user": user, "vhost": vhost, "exchange": exchange} | spec


def user_row(name: str, spec: Json) -> Json:
    """Return a user in RabbitMQ's form, with the hash of the password."""
    stored = spec.get("password_hash", "")
    algorithm, text = DEFAULT_HASH, ""
    if stored:
        algorithm, text = SCRYPT, stored
    for known, prefix in _HASHES.items():
        if stored.startswith(prefix):
            algorithm, text = known, stored.removeprefix(prefix)
    return {
        "name": name,
        "password_hash": text,
        "hashing_algorithm": algorithm,
        "tags": spec["tags"],
        "limits": spec["limits"],
    }


def _vhost(name: str, spec: Json) -> Json:
    metadata: Json = {"description": spec["description"], "tags": spec["tags"]}
    if spec["default_queue_type"]:
        metadata["default_queue_type"] = spec["default_queue_type"]
    return {"name": name, "limits": [], "metadata": metadata}


# ---- in -----------------------------------------------------------------------------------------


def operations(definitions: Any, default_vhost: str = "/") -> list[Wanted]:
    """Return what is to be, in an order in which each finds what it needs.

    Raises BadDefinitions.  RabbitMQ's own exchanges and parameters of plug-ins that are not there
    are left out.
    """
    if not isinstance(definitions, dict):
        raise BadDefinitions("definitions are a JSON object")
    limits = _limits_of_vhosts(definitions, default_vhost)
    found: list[Wanted] = []
    for section, make in _SECTIONS:
        entries = definitions.get(section, [])
        if not isinstance(entries, list):
            raise BadDefinitions(f"{section}: expected a list")
        for number, entry in enumerate(entries):
            try:
                if not isinstance(entry, dict):
                    raise BadDefinitions("expected an object")
                wanted = make(entry, _named(entry.get("vhost", default_vhost)))
                if wanted is not None:
                    _named(wanted[2])
            except BadDefinitions as error:
                raise BadDefinitions(f"{section}[{number}]: {error}") from error
            except KeyError as missing:
                raise BadDefinitions(f"{section}[{number}]: {missing} is missing") from missing
            except (TypeError, ValueError, AttributeError) as misfit:
                raise BadDefinitions(f"{section}[{number}]: {misfit}") from misfit
            if wanted is not None:
                found.append(wanted)
    for kind, _, name, spec in found:
        if kind == "vhost" and name in limits:
            spec["limits"] = limits[name]
    return found


def _named(name: Any) -> str:
    """Return a name; BadDefinitions for anything but a text."""
    if not isinstance(name, str):
        raise BadDefinitions("a name is a text")
    return name


def _limits_of_vhosts(definitions: Json, default_vhost: str) -> dict[str, Json]:
    """Limits of vhosts are parameters in RabbitMQ's files, of the vhost itself here."""
    found = {}
    entries = definitions.get("parameters", [])
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("component") == "vhost-limits":
            try:
                found[_named(entry.get("vhost", default_vhost))] = _pairs(entry.get("value"))
            except (TypeError, ValueError) as error:
                raise BadDefinitions(f"limits of a vhost: {error}") from error
    return found


def _pairs(value: Any) -> Json:
    """Return an object that RabbitMQ may have written as a list of pairs, or as an empty list."""
    return dict(value or {})


def _in_vhost(entry: Json, _: str) -> Wanted:
    metadata = entry.get("metadata") or {}
    queue_type = metadata.get("default_queue_type") or entry.get("default_queue_type") or ""
    spec = {
        "description": metadata.get("description") or entry.get("description") or "",
        "tags": _tags(metadata.get("tags") or entry.get("tags") or []),
        "default_queue_type": "" if queue_type == "undefined" else queue_type,
    }
    if entry.get("limits"):
        spec["limits"] = _pairs(entry["limits"])
    return "vhost", "", entry["name"], spec


def _tags(given: Any) -> list[str]:
    """Return tags of a list, or of the comma-separated text that older files have."""
    if isinstance(given, str):
        given = given.split(",")
    return list(dict.fromkeys(str(tag).strip() for tag in given if str(tag).strip()))


def _in_user(entry: Json, _: str) -> Wanted:
    spec: Json = {"tags": _tags(entry.get("tags", [])), "limits": _pairs(entry.get("limits"))}
    if "password_hash" in entry:
        spec["password_hash"] = _hash(entry)
    elif "password" in entry:
        spec["password"] = entry["password"]
    return "user", "", entry["name"], spec


def _hash(entry: Json) -> str:
    stored, algorithm = entry["password_hash"], entry.get("hashing_algorithm", DEFAULT_HASH)
    try:
        return stored_hash(stored, algorithm)
    except BadDefinitions as error:
        raise BadDefinitions(f"user '{entry['name']}': {error}") from error


def stored_hash(text: str, algorithm: str) -> str:
    """Return a hash as the catalog keeps it; "" stands for no password.  Raises BadDefinitions."""
    if not text:
        return ""
    if algorithm == SCRYPT:
        return str(text)
    if algorithm not in _HASHES:
        raise BadDefinitions(f"{algorithm} is not accepted")
    return f"{_HASHES[algorithm]}{text}"


def _in_parameter(entry: Json, vhost: str) -> Wanted | None:
    component, value = entry["component"], entry["value"]
    if component == "operator_policy":
        return "operator_policy", vhost, entry["name"], _policy_spec(value, "queues")
    if component == "vhost-limits":
        return None
    if component == "policy":
        return "policy", vhost, entry["name"], _policy_spec(value, "all")
    return "parameter", vhost, f"{component}/{entry['name']}", {"value": value}


def _policy_spec(value: Json, default: str) -> Json:
    apply_to = value.get("apply-to", default)
    if default == "queues" and apply_to == "all":
        # RabbitMQ's default for operator policies, which can only mean queues.
        apply_to = "queues"
    return {
        "pattern": value["pattern"],
        "apply-to": apply_to,
        "priority": value.get("priority", 0),
        "definition": _pairs(value["definition"]),
    }


def _in_policy(entry: Json, vhost: str) -> Wanted:
    return "policy", vhost, entry["name"], _policy_spec(entry, "all")


def _in_permission(entry: Json, vhost: str) -> Wanted:
    spec = {key: entry[key] for key in ("configure", "write", "read")}
    return "permission", vhost, entry["user"], spec


def _in_topic_permission(entry: Json, vhost: str) -> Wanted:
    spec = {key: entry[key] for key in ("write", "read")}
    return "topic_permission", vhost, f"{entry['user']}|{entry['exchange']}", spec


def _in_queue(entry: Json, vhost: str) -> Wanted:
    arguments = entry.get("arguments") or {}
    spec = {
        "type": arguments.get("x-queue-type") or entry.get("type") or "classic",
        "durable": entry["durable"],
        "auto_delete": entry["auto_delete"],
        "arguments": arguments,
    }
    return "queue", vhost, entry["name"], spec | _own(entry)


def _own(entry: Json) -> Json:
    names = {"brokerd_settings": "settings", "brokerd_replicas": "replicas"}
    return {ours: entry[name] for name, ours in names.items() if name in entry}


def _in_exchange(entry: Json, vhost: str) -> Wanted | None:
    if not entry["name"] or entry["name"].startswith("amq."):
        return None
    spec = {
        "type": entry["type"],
        "durable": entry["durable"],
        "auto_delete": entry["auto_delete"],
        "internal": entry.get("internal", False),
        "arguments": entry.get("arguments") or {},
    }
    return "exchange", vhost, entry["name"], spec | _own(entry)


def _in_binding(entry: Json, vhost: str) -> Wanted | None:
    if not entry["source"]:
        return None
    spec = {
        "source": entry["source"],
        "destination": entry["destination"],
        "destination_kind": entry["destination_type"],
        "routing_key": entry.get("routing_key", ""),
        "arguments": entry.get("arguments") or {},
    }
    return "binding", vhost, _binding_name(spec), spec


def _binding_name(spec: Json) -> str:
    return names.binding_name(
        spec["source"],
        spec["destination_kind"],
        spec["destination"],
        spec["routing_key"],
        spec["arguments"],
    )


_SECTIONS: tuple[tuple[str, Callable[[Json, str], Wanted | None]], ...] = (
    ("vhosts", _in_vhost),
    ("users", _in_user),
    ("parameters", _in_parameter),
    ("policies", _in_policy),
    ("permissions", _in_permission),
    ("topic_permissions", _in_topic_permission),
    ("exchanges", _in_exchange),
    ("queues", _in_queue),
    ("bindings", _in_binding),
)
