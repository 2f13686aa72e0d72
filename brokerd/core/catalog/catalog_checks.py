"""What a catalog command must fulfil before it changes anything, and how it is answered.

Pure; used by `catalog_machine.py` while a command is applied, in part by `declare.py` before one is
proposed.  Texts and codes of refusals are AMQP's (chapter 13), since a client may get them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd.core.catalog import (
    delayed_type,
    exchange_types,
    names,
    policy,
    policy_keys,
    refusals,
)
from brokerd.core.catalog.catalog_commands import PRECONDITION, REFUSED
from brokerd.core.catalog.catalog_objects import Record
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.catalog.refusals import Refused
from brokerd.core.profiles import Profile

Json = dict[str, Any]


#: Bindings of a vhost that has no limit of its own (SEC-44): ten times what routing is measured
#: with, about 1 GB of memory on each member.
BINDINGS_MAX = 1_000_000


def reply(code: str, text: str = "", amqp: int | None = None, record: Record | None = None) -> Json:
    """Return the fields of a reply; its revision is added when it is encoded."""
    reply: Json = {"code": code, "amqp": amqp, "text": text}
    if record is not None:
        reply["object"] = record.listing()
    return reply


def refused_reply(refused: Refused, code: str = REFUSED, record: Record | None = None) -> Json:
    """Return the reply that carries an AMQP refusal."""
    return reply(code, refused.text, refused.code, record)


def judge(operation: Json, profile: Profile, view: CatalogState) -> None:
    """Give an operation that is about to be proposed the proposing node's verdict where its profile
    decides: the machine is the same under every profile.

    Outside mrg a queue's alternate exchange is no known setting (O-19); in it an exchange that is
    one cannot be deleted (R-MQ-9).
    """
    for each in operation.get("operations", (operation,)):
        judged = _in_use if profile.queue_ae else _unknown_alternate
        verdict = judged(each, view) or _idle_retry(each)
        if verdict is not None:
            each.setdefault("verdict", verdict)


def _unknown_alternate(operation: Json, view: CatalogState) -> str | None:
    spec = operation.get("spec") if operation.get("do") == "put" else None
    if not isinstance(spec, dict):
        return None
    field = "settings" if operation.get("kind") == "queue" else "definition"
    values = spec.get(field)
    if not isinstance(values, dict) or policy_keys.QUEUE_ALTERNATE not in values:
        return None
    return policy_keys.not_recognised([policy_keys.QUEUE_ALTERNATE], field)


def _idle_retry(operation: Json) -> str | None:
    """Refuse a policy for delayed retries that could not hold, as RabbitMQ 4.3.6 (R-QQ-24)."""
    kind = operation.get("kind") if operation.get("do") == "put" else None
    spec = operation.get("spec") if kind in ("policy", "operator_policy") else None
    definition = spec.get("definition") if isinstance(spec, dict) else None
    if not isinstance(definition, dict):
        return None
    fault = policy_keys.fault_of_delayed_retry(definition)
    return None if fault is None else f"definition: {fault}"


def _in_use(operation: Json, view: CatalogState) -> str | None:
    if operation.get("do") != "delete" or operation.get("kind") != "exchange":
        return None
    vhost, name = operation["vhost"], operation["name"]
    users = policy.queues_with_alternate(view, vhost, name)
    return alternate_in_use(vhost, name, users[0]) if users else None


def alternate_in_use(vhost: str, exchange: str, queue: str) -> str:
    """Return why an exchange cannot be deleted (R-MQ-9)."""
    resource = names.resource("exchange", vhost, exchange)
    return f"{resource} in use as alternate exchange of queue '{queue}'"


def check_identity(kind: str, vhost: str, name: str) -> Json | None:
    """Return the reply to a put whose identity cannot be, None if it can."""
    if kind not in names.KIND_ORDER:
        return reply(REFUSED, f"unknown kind '{kind}'")
    if (vhost == "") != (kind in names.GLOBAL_KINDS):
        return reply(REFUSED, f"a {kind} {'has no' if vhost else 'needs a'} vhost")
    # These two are made of two names; a binding's follows from its spec.
    if kind not in ("binding", "parameter", "topic_permission") and names.is_too_long(name):
        return reply(REFUSED, f"name: longer than {names.NAME_BYTES_MAX} bytes")
    if not name and kind not in ("binding", "exchange"):
        return reply(REFUSED, f"a {kind} needs a name")
    return None


def check_precondition(operation: Json, present: Record | None) -> Json | None:
    """Return the reply to an operation whose precondition does not hold."""
    wanted = operation.get("precondition")
    if not wanted:
        return None
    if wanted.get("absent"):
        if present is not None:
            return reply(PRECONDITION, "exists already", None, present)
        return None
    if present is None:
        return reply(PRECONDITION, "does not exist")
    if wanted.get("hash") and present.hash() != wanted["hash"]:
        return reply(PRECONDITION, "was changed meanwhile", None, present)
    owner_uid = "" if present.owner is None else present.owner.uid
    if wanted.get("owner_uid") and owner_uid != wanted["owner_uid"]:
        return reply(PRECONDITION, "belongs to another owner", None, present)
    return None


def system_exchange(vhost: str, name: str) -> Refused:
    """Return the 403 for deleting what every vhost starts with (R-EX-6)."""
    if name == names.DEFAULT_EXCHANGE:
        return refusals.access_refused("operation not permitted on the default exchange")
    resource = names.resource("exchange", vhost, name)
    return refusals.access_refused(f"deletion of system {resource} not allowed")


def protected(record: Record) -> Refused:
    """Return the refusal for an AMQP client that touches a protected object."""
    resource = names.resource(record.kind, record.vhost, record.name)
    if record.kind == "queue":
        # R-Q-14
        return refusals.locked(f"Cannot delete protected {resource}.")
    return refusals.access_refused(f"Cannot delete or change protected {resource}.")


def _check_new_exchange(state: CatalogState, vhost: str, name: str, spec: Json) -> Refused | None:
    if names.is_reserved(name) or not name:
        return refusals.access_refused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
    refused = exchange_types.check_exchange(name, spec["type"], spec["arguments"])
    if refused is not None:
        return refused
    limit = state.limit(vhost, "max-exchanges")
    if limit is not None and len(state.vhosts[vhost].exchanges) >= limit:
        return refusals.precondition_failed(
            f"cannot declare {names.resource('exchange', vhost, name)}: "
            f"exchange limit of {limit} is reached"
        )
    return None


def check_new_queue(state: CatalogState, vhost: str, name: str, spec: Json) -> Refused | None:
    """Refuse a queue over its vhost's limit (R-NAM-5); those of exchanges do not count."""
    if names.is_delayed_queue(name):
        return None
    limit = state.limit(vhost, "max-queues")
    if limit is not None and _queues_of_clients(state, vhost) >= limit:
        return refusals.precondition_failed(
            f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached"
        )
    return None


def _queues_of_clients(state: CatalogState, vhost: str) -> int:
    """Return how many queues of a vhost are not an exchange's own."""
    topology = state.vhosts[vhost]
    types = (exchange.type for exchange in topology.exchanges.values())
    return len(topology.queues) - sum(each == delayed_type.TYPE for each in types)


def _check_new_binding(state: CatalogState, vhost: str, name: str, spec: Json) -> Refused | None:
    source, destination = spec["source"], spec["destination"]
    kind = spec["destination_kind"]
    if source == names.DEFAULT_EXCHANGE or (kind == "exchange" and not destination):
        # R-BND-2
        return refusals.access_refused("operation not permitted on the default exchange")
    exchange = state.exchange(vhost, source)
    if exchange is None:
        # R-BND-3: the source is reported first.
        return refusals.not_found(names.missing("exchange", vhost, source))
    is_internal = kind == "queue" and names.is_delayed_queue(destination)
    if is_internal or state.get(kind, vhost, destination) is None:
        return refusals.not_found(names.missing(kind, vhost, destination))
    limit = state.limit(vhost, "max-bindings")
    limit = BINDINGS_MAX if limit is None else limit
    if len(state.vhosts[vhost].bindings.by_name) >= limit:
        return refusals.precondition_failed(
            f"cannot bind to {names.resource('exchange', vhost, source)}: "
            f"binding limit of {limit} is reached"
        )
    return exchange_types.check_binding(
        exchange.routing_type, spec["routing_key"], spec["arguments"], 0, kind
    )


def _check_new_permission(state: CatalogState, vhost: str, name: str, spec: Json) -> Refused | None:
    if state.user(name) is None:
        return refusals.not_found(f"user '{name}' not found")
    return None


def _check_new_topic_permission(
    state: CatalogState, vhost: str, name: str, spec: Json
) -> Refused | None:
    user, separator, _ = name.partition("|")
    if not separator:
        return refusals.precondition_failed("name must be user|exchange")
    return _check_new_permission(state, vhost, user, spec)


def _check_new_parameter(state: CatalogState, vhost: str, name: str, spec: Json) -> Refused | None:
    component, separator, parameter = name.partition("/")
    if not component or not separator or not parameter:
        return refusals.precondition_failed("name must be component/name")
    return None


DEPENDENCIES: dict[str, Callable[[CatalogState, str, str, Json], Refused | None]] = {
    "exchange": _check_new_exchange,
    "queue": check_new_queue,
    "binding": _check_new_binding,
    "permission": _check_new_permission,
    "topic_permission": _check_new_topic_permission,
    "parameter": _check_new_parameter,
}
