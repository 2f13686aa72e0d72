"""`brokerctl export`: the topology of a broker, or a RabbitMQ definitions file, as resources.

Pure but for reading the file. What cannot be said in a resource becomes a note and is never
dropped in silence. For the command line only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import regex
import yaml

from brokerd_operator.local.errors import EmbeddedError
from brokerd_operator.reconcile import ordering
from brokerd_operator.reconcile.topology import ObservedObject
from brokerd_operator.specs import arguments, topic_permission
from brokerd_operator.specs.exchange import DELAYED_TYPE
from brokerd_operator.specs.model import JsonObject

API_VERSION = "brokerd.io/v1alpha1"
DEFINITIONS_BYTES_MAX = 256 * 1024 * 1024
NAME_MAX = 200

QUEUE_TYPES = ("classic", "quorum")
DELAYED_MESSAGE = "x-delayed-message"
EXCHANGE_TYPES = (
    "direct", "fanout", "topic", "headers", "x-consistent-hash", "x-modulus-hash", "x-random",
    "x-local-random", DELAYED_MESSAGE,
)  # fmt: skip
_MADE = "amq."
#: Exchanges and queues that links make at the upstream.
_FEDERATION_MADE = "federation: "
_TAGS = ("administrator", "monitoring", "management", "policymaker")
_VHOST_LIMITS = ("max-connections", "max-queues", "max-exchanges")
_USER_LIMITS = ("max-connections", "max-channels")
#: Of the federation keys, an exchange has fields for these.
_OF_EXCHANGES = ("federation-upstream", "federation-upstream-set")

_ILLEGAL = regex.compile(r"[^a-z0-9.-]+")

#: The broker's policy keys as fields of a resource; the rest goes into definition.extra.
_POLICY_FIELDS = {
    "alternate-exchange": "alternateExchange",
    "delivery-limit": "deliveryLimit",
    "max-length": "maxLength",
    "max-length-bytes": "maxLengthBytes",
    "overflow": "overflow",
    "queue-leader-locator": "queueLeaderLocator",
    "target-group-size": "targetGroupSize",
}
_DURATIONS = {
    "message-ttl": "messageTTL",
    "expires": "expires",
    "consumer-timeout": "consumerTimeout",
}
_DEAD_LETTER = {
    "dead-letter-exchange": "exchange",
    "dead-letter-routing-key": "routingKey",
    "dead-letter-strategy": "strategy",
}
_FEDERATION = {
    "federation-upstream": "upstream",
    "federation-upstream-set": "upstreamSet",
    "federation-upstream-pattern": "pattern",
}


@dataclass(slots=True)
class Export:
    """Resources, and what could not be said."""

    resources: list[JsonObject] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def yaml(self) -> str:
        return yaml.safe_dump_all(self.resources, sort_keys=False, allow_unicode=True)


def to_resources(
    objects: Iterable[ObservedObject], cluster: str, namespace: str | None, account: str = ""
) -> Export:
    """Objects as resources, in the order in which they can be applied.

    account: the user that asks. `plan`, `up` and the operator refuse a resource of the account that
    they log in as (ADR 21), so it is none here.
    """
    result = Export()
    names: set[tuple[str, str]] = set()
    known = [item for item in objects if not _is_of_account(item, account)]
    if account:
        result.notes.append(
            f"User {account} and its permissions are left out: brokerctl logged in as it, and the "
            "account that applies resources belongs to none of them"
        )
    left_out = {(item.kind, item.vhost, item.name) for item in known if _is_transient(item)}
    for item in known:
        if problem := _unsupported(item):
            left_out.add((item.kind, item.vhost, item.name))
            where = f" in vhost {item.vhost}" if item.vhost != "/" else ""
            result.notes.append(
                f"{item.kind} {item.name}{where} is left out, with its bindings: brokerd has no "
                f"{problem}"
            )
    for item in sorted(known, key=lambda o: (ordering.rank(o.kind), o.vhost, o.name)):
        builder = _BUILDERS.get(item.kind)
        if builder is None:
            result.notes.append(f"{item.kind} {item.name} has no resource kind")
            continue
        if (item.kind, item.vhost, item.name) in left_out:
            continue
        if item.kind == "binding" and _ends(item) & left_out:
            continue
        name = _resource_name(item, names)
        built = builder(item, result, name)
        if built is None:
            continue
        kind, spec = built
        full = {"brokerRef": {"name": cluster}, **spec}
        if kind not in ("Vhost", "User") and item.vhost != "/":
            full["vhost"] = item.vhost
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        if full.get("name") == name:
            del full["name"]
        result.resources.append(
            {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": full}
        )
    if result.resources:
        result.notes.append(
            f"The resources name the BrokerCluster {cluster} (--cluster), which is not among them"
        )
    return result


def _is_of_account(item: ObservedObject, account: str) -> bool:
    if item.kind == "topic_permission":
        return item.name.partition(topic_permission.SEPARATOR)[0] == account
    return item.kind in ("user", "permission") and item.name == account


def _is_transient(item: ObservedObject) -> bool:
    """What the broker or a connection makes for itself."""
    if item.kind == "queue":
        is_made = item.name.startswith((_MADE, _FEDERATION_MADE))
        return is_made or bool(item.spec.get("exclusive"))
    return item.kind == "exchange" and item.name.startswith(_FEDERATION_MADE)


def _unsupported(item: ObservedObject) -> str:
    """What a RabbitMQ with plugins has and brokerd has not, or ""."""
    type_ = str(item.spec.get("type", ""))
    if item.kind == "queue" and type_ not in QUEUE_TYPES:
        return f"queues of the type {type_}"
    if item.kind == "exchange" and type_ not in EXCHANGE_TYPES:
        return f"exchanges of the type {type_}"
    return ""


def _ends(binding: ObservedObject) -> set[tuple[str, str, str]]:
    spec = binding.spec
    return {
        ("exchange", binding.vhost, spec["source"]),
        (spec["destination_kind"], binding.vhost, spec["destination"]),
    }


def _resource_name(item: ObservedObject, used: set[tuple[str, str]]) -> str:
    """A name that Kubernetes takes; a digest makes it unique where that changed something."""
    text = item.name if item.kind != "parameter" else item.name.partition("/")[2]
    if item.vhost not in ("", "/"):
        text = f"{item.vhost}.{text}"
    kind = item.kind if item.kind != "parameter" else item.name.partition("/")[0]
    name = _ILLEGAL.sub("-", text.lower()).strip("-.")[:NAME_MAX]
    name = regex.sub(r"[-.]*\.[-.]*", ".", name)
    if not name or name != text or (kind, name) in used:
        unique = arguments.digest([item.kind, item.vhost, item.name], 8)
        name = f"{name or kind.replace('_', '-')}-{unique}"
    used.add((kind, name))
    return name


Built = tuple[str, JsonObject] | None


def _vhost(item: ObservedObject, result: Export, name: str) -> Built:
    spec = item.spec
    found: JsonObject = {"name": item.name}
    if spec.get("description"):
        found["description"] = spec["description"]
    if spec.get("tags"):
        found["tags"] = spec["tags"]
    queue_type = spec.get("default_queue_type")
    if queue_type in QUEUE_TYPES:
        found["defaultQueueType"] = queue_type
    elif queue_type:
        result.notes.append(
            f"Vhost {item.name}: no field for the default queue type {queue_type}: brokerd has no "
            "queues of that type"
        )
    found |= _limits(f"Vhost {item.name}", spec, _VHOST_LIMITS, result)
    if item.name == "/":
        if len(found) == 1:
            return None
        # Every broker has it from its beginning.
        found["adoptionPolicy"] = "Always"
    return "Vhost", found


def _limits(what: str, spec: JsonObject, known: tuple[str, ...], result: Export) -> JsonObject:
    limits = spec.get("limits") or {}
    for key in sorted(set(limits) - set(known)):
        result.notes.append(f"{what}: the limit {key} has no field")
    found = {_camel(key): limits[key] for key in known if key in limits}
    return {"limits": found} if found else {}


def _user(item: ObservedObject, result: Export, name: str) -> Built:
    secret = f"{name}-login"
    result.notes.append(f"User {item.name}: make the Secret {secret} with username and password")
    found: JsonObject = {"name": item.name, "credentialsSecretRef": {"name": secret}}
    tags = item.spec.get("tags") or []
    unknown = sorted(set(tags) - set(_TAGS))
    if unknown:
        result.notes.append(f"User {item.name}: no field for the tags {', '.join(unknown)}")
    if set(tags) & set(_TAGS):
        found["tags"] = [tag for tag in tags if tag in _TAGS]
    return "User", found | _limits(f"User {item.name}", item.spec, _USER_LIMITS, result)


def _permission(item: ObservedObject, result: Export, name: str) -> Built:
    spec = {key: item.spec.get(key, "") for key in ("configure", "write", "read")}
    return "Permission", {"user": item.name, **spec}


def _topic_permission(item: ObservedObject, result: Export, name: str) -> Built:
    user, _, exchange = item.name.partition(topic_permission.SEPARATOR)
    spec = {key: item.spec.get(key, "") for key in ("write", "read")}
    return "TopicPermission", {"user": user, "exchange": exchange, **spec}


def _exchange(item: ObservedObject, result: Export, name: str) -> Built:
    if item.name == "" or item.name.startswith("amq."):
        return None
    table = dict(item.spec.get("arguments") or {})
    spec = {**item.spec, "arguments": table}
    found: JsonObject = {"name": item.name, "type": spec["type"]}
    if spec["type"] == DELAYED_MESSAGE and table.get(DELAYED_TYPE) in EXCHANGE_TYPES:
        found["delayedType"] = table.pop(DELAYED_TYPE)
    found |= _flags(spec, (("durable", True), ("auto_delete", False), ("internal", False)))
    settings = dict(spec.get("settings") or {})
    if "alternate-exchange" in settings:
        found["alternateExchange"] = settings.pop("alternate-exchange")
    federation = {_FEDERATION[key]: settings.pop(key) for key in _OF_EXCHANGES if key in settings}
    if federation:
        found["federation"] = federation
    for key in sorted(settings):
        result.notes.append(f"Exchange {item.name}: the setting {key} has no field")
    return "Exchange", found | _arguments(spec)


def _queue(item: ObservedObject, result: Export, name: str) -> Built:
    # The field says it.
    table = {k: v for k, v in (item.spec.get("arguments") or {}).items() if k != "x-queue-type"}
    spec = {**item.spec, "arguments": table}
    found: JsonObject = {"name": item.name, "type": spec["type"]}
    found |= _flags(spec, (("durable", True), ("auto_delete", False)))
    settings = dict(spec.get("settings") or {})
    typed, rest = _settings(settings)
    if "queueLeaderLocator" in typed:
        typed["leaderLocator"] = typed.pop("queueLeaderLocator")
    if "targetGroupSize" in typed:
        rest["target-group-size"] = typed.pop("targetGroupSize")
    for key in rest:
        result.notes.append(f"Queue {item.name}: the setting {key} has no field")
    if spec.get("replicas"):
        typed["replicas"] = spec["replicas"]
    return "Queue", found | typed | _arguments(spec)


def _binding(item: ObservedObject, result: Export, name: str) -> Built:
    spec = item.spec
    if spec["source"] == "":
        return None
    found = {
        "source": spec["source"],
        "destination": {
            "kind": spec["destination_kind"].capitalize(),
            "name": spec["destination"],
        },
        "routingKeys": [spec["routing_key"]],
    }
    return "Binding", found | _arguments(spec)


def _policy(item: ObservedObject, result: Export, name: str) -> Built:
    spec = item.spec
    typed, rest = _settings(dict(spec["definition"]))
    federation = {_FEDERATION[key]: rest.pop(key) for key in list(rest) if key in _FEDERATION}
    if federation:
        typed["federation"] = federation
    kind = "Policy" if item.kind == "policy" else "OperatorPolicy"
    if rest and kind == "Policy":
        typed["extra"] = [_argument(key, value) for key, value in sorted(rest.items())]
    elif rest:
        keys = ", ".join(sorted(rest))
        result.notes.append(f"OperatorPolicy {item.name}: no field for {keys}, so it is left out")
        return None
    found: JsonObject = {
        "name": item.name,
        "pattern": spec["pattern"],
        "applyTo": spec.get("apply-to", "all" if kind == "Policy" else "queues"),
        "priority": spec.get("priority", 0),
        "definition": typed,
    }
    return kind, found


def _parameter(item: ObservedObject, result: Export, name: str) -> Built:
    component, _, own = item.name.partition("/")
    value = item.spec.get("value") or {}
    if component == "federation-upstream-set" and isinstance(value, list):
        for key in sorted({key for entry in value for key in entry} - set(_SET_FIELDS)):
            result.notes.append(f"FederationUpstreamSet {own}: {key} has no field")
        upstreams = [
            {new: entry[old] for old, new in _SET_FIELDS.items() if entry.get(old) is not None}
            for entry in value
        ]
        return "FederationUpstreamSet", {"name": own, "upstreams": upstreams}
    if component == "shovel" and isinstance(value, dict):
        return "Shovel", {"name": own} | _shovel(own, value, result, name)
    if component != "federation-upstream" or not isinstance(value, dict):
        result.notes.append(f"parameter {item.name} has no resource kind")
        return None
    secret = f"{name}-uri"
    result.notes.append(f"FederationUpstream {own}: make the Secret {secret} with the key uri")
    found: JsonObject = {"name": own, "uriSecretRef": {"name": secret}}
    if value.get("ca-certificates") is not None:
        authorities = f"{name}-ca"
        found["tls"] = {"caSecretRef": {"name": authorities}}
        result.notes.append(
            f"FederationUpstream {own}: make the Secret {authorities} with the key ca.crt"
        )
    return "FederationUpstream", found | _upstream(own, value, result)


_SET_FIELDS = {
    "upstream": "name",
    "exchange": "exchange",
    "queue": "queue",
    "max-hops": "maxHops",
}
_UPSTREAM_FIELDS = {
    "prefetch-count": "prefetchCount",
    "ack-mode": "ackMode",
    "max-hops": "maxHops",
    "trust-user-id": "trustUserId",
    "queue-type": "queueType",
    "exchange": "exchange",
    "queue": "queue",
    "consumer-tag": "consumerTag",
    "resource-cleanup-mode": "resourceCleanupMode",
    "channel-use-mode": "channelUseMode",
}
_UPSTREAM_DURATIONS = {"expires": "expires", "message-ttl": "messageTTL"}


def _upstream(name: str, value: JsonObject, result: Export) -> JsonObject:
    found = {new: value[old] for old, new in _UPSTREAM_FIELDS.items() if value.get(old) is not None}
    if value.get("reconnect-delay") is not None:
        found["reconnectDelay"] = f"{round(float(value['reconnect-delay']) * 1000)}ms"
    for old, new in _UPSTREAM_DURATIONS.items():
        if value.get(old) is not None:
            found[new] = f"{value[old]}ms"
    known = {"uri", "reconnect-delay", "ca-certificates", *_UPSTREAM_FIELDS, *_UPSTREAM_DURATIONS}
    for key in sorted(set(value) - known):
        result.notes.append(f"FederationUpstream {name}: {key} has no field")
    return found


#: Per end: key of the parameter behind its prefix to field.
_SHOVEL_END_FIELDS = {
    "queue": "queue",
    "exchange": "exchange",
    "exchange-key": "exchangeKey",
    "prefetch-count": "prefetchCount",
    "delete-after": "deleteAfter",
    "add-forward-headers": "addForwardHeaders",
    "add-timestamp-header": "addTimestampHeader",
    "unroutable": "unroutable",
}
#: Keys of an end that are in Secrets.
_SECRET = ("uri", "ca-certificates")
_SHOVEL_TABLES = {"queue-args": "queueArguments", "consumer-args": "consumerArguments"}


def _shovel(own: str, value: JsonObject, result: Export, name: str) -> JsonObject:
    """Listings show URIs without logins: an end at another broker gets a Secret."""
    found: JsonObject = {}
    known = {"ack-mode", "reconnect-delay", "src-protocol", "dest-protocol"}
    for prefix, place in (("src", "source"), ("dest", "destination")):
        secret = f"{name}-{prefix}-uri"
        end: JsonObject
        here = _vhost_here(value.get(f"{prefix}-uri"))
        if here is None:
            end = {"uriSecretRef": {"name": secret}}
            result.notes.append(f"Shovel {own}: make the Secret {secret} with the key uri")
        else:
            end = {"vhost": here}
            result.notes.append(
                f"Shovel {own}: the {place} is this broker; if its URI names a user, which is not "
                f"shown, replace vhost by uriSecretRef, a Secret with the key uri"
            )
        if value.get(f"{prefix}-ca-certificates") is not None:
            authorities = f"{name}-{prefix}-ca"
            end["tls"] = {"caSecretRef": {"name": authorities}}
            result.notes.append(f"Shovel {own}: make the Secret {authorities} with the key ca.crt")
        for old, new in _SHOVEL_END_FIELDS.items():
            if value.get(f"{prefix}-{old}") is not None:
                end[new] = value[f"{prefix}-{old}"]
        for old, new in _SHOVEL_TABLES.items():
            if table := value.get(f"{prefix}-{old}"):
                end[new] = [_argument(key, item) for key, item in sorted(table.items())]
        known |= {f"{prefix}-{old}" for old in (*_SHOVEL_END_FIELDS, *_SHOVEL_TABLES, *_SECRET)}
        found[place] = end
    properties = value.get("dest-publish-properties") or {}
    if properties:
        written = {_camel(key): item for key, item in properties.items()}
        found["destination"]["publishProperties"] = written
    if value.get("ack-mode") is not None:
        found["ackMode"] = value["ack-mode"]
    if value.get("reconnect-delay") is not None:
        found["reconnectDelay"] = f"{round(float(value['reconnect-delay']) * 1000)}ms"
    for key in sorted(set(value) - known - {"dest-publish-properties"}):
        result.notes.append(f"Shovel {own}: {key} has no field")
    return found


def _vhost_here(uri: object) -> str | None:
    """Return the vhost that a URI without a host names, None if there is a host or no saying."""
    parts = urlsplit(uri) if isinstance(uri, str) else None
    if parts is None or parts.scheme != "amqp" or parts.netloc or parts.query:
        return None
    return unquote(parts.path[1:]) or "/"


def _settings(keys: JsonObject) -> tuple[JsonObject, JsonObject]:
    """Policy keys as typed fields, and the rest."""
    typed: JsonObject = {}
    for old, new in _POLICY_FIELDS.items():
        if old in keys:
            typed[new] = keys.pop(old)
    for old, new in _DURATIONS.items():
        if old in keys:
            typed[new] = f"{keys.pop(old)}ms"
    dead = {new: keys.pop(old) for old, new in _DEAD_LETTER.items() if old in keys}
    if dead:
        typed["deadLetter"] = dead
    return typed, keys


def _flags(spec: JsonObject, defaults: tuple[tuple[str, bool], ...]) -> JsonObject:
    return {_camel(key): spec[key] for key, usual in defaults if spec.get(key, usual) != usual}


def _arguments(spec: JsonObject) -> JsonObject:
    table = spec.get("arguments") or {}
    if not table:
        return {}
    return {"arguments": [_argument(name, value) for name, value in sorted(table.items())]}


def _argument(name: str, value: Any) -> JsonObject:
    for type_, label in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, type_):
            return {"name": name, label: value}
    return {"name": name, "json": arguments.canonical_json(value)}


def _camel(key: str) -> str:
    head, *tail = regex.split("[-_]", key)
    return head + "".join(part.capitalize() for part in tail)


_BUILDERS: dict[str, Callable[[ObservedObject, Export, str], Built]] = {
    "vhost": _vhost,
    "user": _user,
    "permission": _permission,
    "topic_permission": _topic_permission,
    "exchange": _exchange,
    "queue": _queue,
    "binding": _binding,
    "policy": _policy,
    "operator_policy": _policy,
    "parameter": _parameter,
}


# ---- RabbitMQ definitions -------------------------------------------------------------------


def read_definitions(file: Path) -> list[ObservedObject]:
    """A definitions file of RabbitMQ (`rabbitmqctl export_definitions`) as objects."""
    try:
        if file.stat().st_size > DEFINITIONS_BYTES_MAX:
            raise EmbeddedError(f"{file} is larger than {DEFINITIONS_BYTES_MAX} bytes")
        parsed = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(parsed, dict):
            raise EmbeddedError(f"{file} is not a definitions file")
        return list(_definitions(parsed))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EmbeddedError(f"{file} is not a definitions file: {error!r}") from error


def _definitions(parsed: JsonObject) -> Iterable[ObservedObject]:
    limits = {
        row["vhost"]: dict(row["value"])
        for row in parsed.get("parameters", ())
        if row["component"] == "vhost-limits"
    }
    for row in parsed.get("vhosts", ()):
        spec = _vhost_definition(row)
        spec["limits"] |= limits.get(row["name"], {})
        yield ObservedObject("vhost", "", row["name"], spec)
    for row in parsed.get("users", ()):
        # No limits are an empty list in some releases.
        spec = {"tags": _tags(row.get("tags")), "limits": dict(row.get("limits") or {})}
        yield ObservedObject("user", "", row["name"], spec)
    for row in parsed.get("permissions", ()):
        spec = {key: row[key] for key in ("configure", "write", "read")}
        yield ObservedObject("permission", row["vhost"], row["user"], spec)
    for row in parsed.get("topic_permissions", ()):
        name = f"{row['user']}{topic_permission.SEPARATOR}{row['exchange']}"
        spec = {key: row[key] for key in ("write", "read")}
        yield ObservedObject("topic_permission", row["vhost"], name, spec)
    for row in parsed.get("exchanges", ()):
        yield ObservedObject("exchange", row["vhost"], row["name"], row)
    for row in parsed.get("queues", ()):
        table = dict(row.get("arguments") or {})
        type_ = table.pop("x-queue-type", row.get("type", "classic"))
        yield ObservedObject(
            "queue", row["vhost"], row["name"], {**row, "type": type_, "arguments": table}
        )
    for row in parsed.get("bindings", ()):
        kind = row.get("destination_type", "queue")
        table = row.get("arguments") or {}
        name = arguments.binding_name(
            row["source"], kind, row["destination"], row["routing_key"], table
        )
        spec = {**row, "destination_kind": kind, "arguments": table}
        yield ObservedObject("binding", row["vhost"], name, spec)
    for row in parsed.get("policies", ()):
        yield ObservedObject("policy", row["vhost"], row["name"], row)
    for row in parsed.get("parameters", ()):
        component, value = row["component"], row["value"]
        if component == "operator_policy":
            spec = {**value, "definition": dict(value["definition"])}
            if spec.get("apply-to") == "all":
                # RabbitMQ's default, which can only mean queues.
                spec["apply-to"] = "queues"
            yield ObservedObject("operator_policy", row["vhost"], row["name"], spec)
        elif component != "vhost-limits":
            name = f"{component}/{row['name']}"
            yield ObservedObject("parameter", row["vhost"], name, {"value": value})


def _vhost_definition(row: JsonObject) -> JsonObject:
    """What RabbitMQ 4.3 has in `metadata`, and earlier ones beside the name."""
    metadata = row.get("metadata") or {}
    queue_type = metadata.get("default_queue_type") or row.get("default_queue_type") or ""
    return {
        "description": metadata.get("description") or row.get("description") or "",
        "tags": _tags(metadata.get("tags") or row.get("tags")),
        "default_queue_type": "" if queue_type == "undefined" else queue_type,
        "limits": dict(row.get("limits") or {}),
    }


def _tags(given: Any) -> list[str]:
    """A list, or a text with commas as in older files."""
    if isinstance(given, str):
        given = given.split(",")
    return [tag.strip() for tag in given or () if tag.strip()]
