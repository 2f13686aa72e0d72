"""What definitions of RabbitMQ describe that is not here: streams, exchange types of plug-ins.

Pure: objects in, those that can be made out, with a line for each that is left.  For all that
import definitions: `brokerctl`, the HTTP API, a member at its start.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from brokerd.core.catalog import delayed_type, exchange_types, policy_keys
from brokerd.core.catalog.definitions_json import Wanted

_QUEUE_TYPES = ("classic", "quorum")
_PROTOCOLS = ("src-protocol", "dest-protocol")


def taken(wanted: Iterable[Wanted], *, skips: bool) -> tuple[list[Wanted], list[str]]:
    """Return what can be made, and a line for each object or key that is left.

    skips: what is not here is left; without it the catalog refuses such objects.
    """
    if not skips:
        return list(wanted), []
    found: list[Wanted] = []
    left: list[str] = []
    gone: set[tuple[str, str, str]] = set()
    for kind, vhost, name, spec in wanted:
        if kind in ("policy", "operator_policy"):
            spec, keys = _without_keys(spec)
            if keys:
                rest = "the rest is taken" if spec["definition"] else "it has no others"
                text = f"keys that are not here: {', '.join(keys)}; {rest}"
                left.append(_line(kind, vhost, name, text))
                if not spec["definition"]:
                    continue
        why = _fault(kind, vhost, spec, gone)
        if why is None:
            found.append((kind, vhost, name, spec))
        else:
            gone.add((kind, vhost, name))
            left.append(_line(kind, vhost, name, why))
    return found, left


def _without_keys(spec: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    definition = spec["definition"]
    keys = [key for key in definition if key not in policy_keys.POLICY_KEYS]
    kept = {key: value for key, value in definition.items() if key not in keys}
    return spec | {"definition": kept}, keys


def _fault(
    kind: str, vhost: str, spec: dict[str, Any], gone: set[tuple[str, str, str]]
) -> str | None:
    """Return why an object is left; gone: those left before it, which its bindings need."""
    if kind == "queue" and spec["type"] not in _QUEUE_TYPES:
        return f"queue type {spec['type']} is not here"
    if kind == "exchange":
        type_ = delayed_type.routing_type(spec["type"], spec.get("arguments") or {})
        if type_ not in exchange_types.TYPES:
            return f"exchange type {type_} is not here"
    if kind == "binding":
        ends = (
            ("exchange", vhost, spec["source"]),
            (spec["destination_kind"], vhost, spec["destination"]),
        )
        if not gone.isdisjoint(ends):
            return "one of its ends is left out"
    if kind == "parameter" and isinstance(value := spec["value"], dict):
        protocols = [value[key] for key in _PROTOCOLS if isinstance(value.get(key), str)]
        if others := [protocol for protocol in protocols if protocol != "amqp091"]:
            return f"shovel protocol {others[0]} is not here"
    return None


def _line(kind: str, vhost: str, name: str, why: str) -> str:
    return f"{kind} '{name}' in vhost '{vhost}': {why}"
