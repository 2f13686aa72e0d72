"""AMQP's declare, bind and delete: checks in RabbitMQ's order, before anything is proposed.

Each function looks at the node-local view and answers with what is refused, what is there already,
or what to propose.  The machine checks again when it applies (`catalog_machine.py`), because
another node may have been first.

Pure; for the sessions of both front doors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from brokerd.core.catalog import (
    arguments,
    catalog_checks,
    equivalence,
    exchange_types,
    names,
    policy,
    refusals,
)
from brokerd.core.catalog.catalog_objects import ConnectionId, Exchange, Queue, Record
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.catalog.permissions import Access
from brokerd.core.catalog.refusals import Refused
from brokerd.core.profiles import Profile

Json = dict[str, Any]

#: The argument that names a queue's alternate exchange, in profile mrg (R-MQ-1).
ALTERNATE_ARGUMENT = "qpid.alternate-exchange"


@dataclass(slots=True)
class Exists:
    """Nothing to propose: it is as asked for.  record: None where it is as asked for by absence."""

    record: Record | None


@dataclass(slots=True)
class Create:
    """To be proposed with `catalog_commands.put(..., declare=True)`; a queue needs uid and members
    besides.
    """

    kind: str
    vhost: str
    name: str
    spec: Json
    exclusive_owner: ConnectionId | None = None
    #: For the log, rate-limited there.
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Delete:
    """To be proposed with `catalog_commands.delete`; a queue ends by its own machine first."""

    record: Record
    #: Of an exchange: not while it keeps messages, which its queue alone knows.
    if_unused: bool = False


def _stripped(name: str) -> str:
    """R-CH-11: RabbitMQ drops line ends in names of declares, deletes and bindings; publish,
    consume, get and purge take names as they are (3.10.8, tried).
    """
    return name.replace("\n", "").replace("\r", "")


def _default_exchange() -> Refused:
    return refusals.access_refused("operation not permitted on the default exchange")


def declare_exchange(
    view: CatalogState,
    profile: Profile,
    access: Access,
    name: str,
    exchange_type: str,
    *,
    passive: bool = False,
    durable: bool = False,
    auto_delete: bool = False,
    internal: bool = False,
    exchange_arguments: Json | None = None,
) -> Refused | Exists | Create:
    """Check an exchange.declare in access.vhost (R-EX-2 to R-EX-5, R-AE-6, R-AE-7).

    exchange_arguments: in the catalog's JSON form.
    """
    vhost = access.vhost
    name = _stripped(name)
    if passive:
        return _passive_exchange(view, profile, access, name)
    refused = exchange_types.check_exchange(name, exchange_type, exchange_arguments or {})
    if refused is not None:
        return refused
    if exchange_type not in exchange_types.TYPES:
        # R-EX-3
        code = profile.exchange_unknown_type_error
        is_hard = code == refusals.COMMAND_INVALID
        return Refused(code, f"unknown exchange type '{exchange_type}'", is_hard)
    if name == names.DEFAULT_EXCHANGE:
        return _default_exchange()
    refused = access.check("configure", "exchange", name)
    if refused is not None:
        return refused
    spec = {
        "type": exchange_type,
        "durable": durable,
        "auto_delete": auto_delete,
        "internal": internal,
        "arguments": exchange_arguments or {},
        "settings": {},
    }
    present = view.exchange(vhost, name)
    if present is not None:
        return equivalence.check_exchange(present, spec) or Exists(present)
    if names.is_reserved(name):
        return refusals.access_refused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
    refused = _check_target(
        access, "exchange", name, "alternate-exchange", exchange_arguments or {}
    )
    return refused or Create("exchange", vhost, name, spec)


def _passive_exchange(
    view: CatalogState, profile: Profile, access: Access, name: str
) -> Refused | Exists:
    if name == names.DEFAULT_EXCHANGE:
        return _default_exchange()
    refused = _check_passive(profile, access, "exchange", name)
    if refused is not None:
        return refused
    present = view.exchange(access.vhost, name)
    if present is None:
        return refusals.not_found(names.missing("exchange", access.vhost, name))
    return Exists(present)


def _check_passive(profile: Profile, access: Access, kind: str, name: str) -> Refused | None:
    if profile.permissions_passive_declare == "none":
        return None
    return access.check_any(kind, name)


def _check_target(
    access: Access, kind: str, name: str, argument: str, values: Json
) -> Refused | None:
    """Check an argument that names an exchange to publish to: its type, then read on the declared
    object and write on the exchange (R-AE-6, R-AE-7, R-DLX-5, R-Q-2).
    """
    if argument not in values:
        return None
    target = values[argument]
    if type(target) is not str:
        return refusals.precondition_failed(
            f"invalid type '{arguments.type_name(target)}' for arg '{argument}' "
            f"in {names.resource(kind, access.vhost, name)}"
        )
    return access.check("read", kind, name) or access.check("write", "exchange", target)


def queue_type_of(
    view: CatalogState, vhost: str, queue_arguments: Json, is_plain: bool, node_default: str
) -> Any:
    """Return the type that a declaration means (R-Q-1); not necessarily one that exists.

    is_plain: durable, not exclusive, not auto-delete; only such can follow a default of quorum.
    """
    if "x-queue-type" in queue_arguments:
        return queue_arguments["x-queue-type"]
    spec = view.spec("vhost", "", vhost)
    default = (spec["default_queue_type"] if spec is not None else "") or node_default
    return default if is_plain else "classic"


def without_empty_type(profile: Profile, values: Json) -> Json:
    """R-Q-1: RabbitMQ 4.3.6 takes an empty type for none."""
    if not profile.queues_idle_values or values.get("x-queue-type") != "":
        return values
    return {key: value for key, value in values.items() if key != "x-queue-type"}


def declare_queue(
    view: CatalogState,
    profile: Profile,
    access: Access,
    name: str,
    *,
    passive: bool = False,
    durable: bool = False,
    exclusive: bool = False,
    auto_delete: bool = False,
    queue_arguments: Json | None = None,
    connection: ConnectionId,
    generated_name: str,
    node_default_type: str = "classic",
) -> Refused | Exists | Create:
    """Check a queue.declare in access.vhost (R-Q-1 to R-Q-9, R-QQ-1).

    generated_name: what a queue without a name is to be called (R-NAM-3); random, so the caller's.
    """
    vhost = access.vhost
    name = _stripped(name)
    if passive:
        return _passive_queue(view, profile, access, name, connection)
    values = without_empty_type(profile, queue_arguments or {})
    is_plain = durable and not exclusive and not auto_delete
    queue_type = queue_type_of(view, vhost, values, is_plain, node_default_type)
    if name == "":
        if queue_type == "quorum":
            return refusals.precondition_failed(
                "Cannot declare a server-named queue for type rabbit_quorum_queue"
            )
        name = generated_name
    elif names.is_reserved(name):
        return refusals.access_refused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    refused = access.check("configure", "queue", name)
    if refused is not None:
        return refused
    spec = {
        "type": queue_type,
        # R-Q-4: stored as false where exclusive.
        "durable": durable and not exclusive,
        "auto_delete": auto_delete,
        "arguments": values,
        "settings": {},
    }
    owner = connection if exclusive else None
    present = view.usable_queue(vhost, name)
    if present is not None:
        return (
            equivalence.check_queue(
                present,
                spec,
                owner,
                says_types=profile.management_as_4_3,
                foreign=_foreign_arguments(profile, present.type),
            )
            or _unequal_alternate(profile, present, values)
            or Exists(present)
        )
    return (
        _check_target(access, "queue", name, "x-dead-letter-exchange", values)
        or _check_alternate(view, profile, access, name, values)
        or catalog_checks.check_new_queue(view, vhost, name, spec)
        or _check_new_queue(view, profile, vhost, name, spec, exclusive)
        or _new_queue(profile, vhost, name, spec, owner)
    )


def _check_alternate(
    view: CatalogState, profile: Profile, access: Access, name: str, values: Json
) -> Refused | None:
    """R-MQ-9, R-MQ-13: type and rights as of a dead letter exchange, and it must exist."""
    if not profile.queue_ae or ALTERNATE_ARGUMENT not in values:
        return None
    refused = _check_target(access, "queue", name, ALTERNATE_ARGUMENT, values)
    if refused is not None:
        return refused
    alternate = values[ALTERNATE_ARGUMENT]
    if view.exchange(access.vhost, alternate) is None:
        return refusals.not_found(names.missing("exchange", access.vhost, alternate))
    return None


def _unequal_alternate(profile: Profile, present: Queue, values: Json) -> Refused | None:
    """Compare the argument where it means something; elsewhere no type knows it (R-Q-4)."""
    if not profile.queue_ae:
        return None
    resource = names.resource("queue", present.vhost, present.name)
    return arguments.unequal_argument(resource, ALTERNATE_ARGUMENT, values, present.arguments)


def _passive_queue(
    view: CatalogState, profile: Profile, access: Access, name: str, connection: ConnectionId
) -> Refused | Exists:
    refused = _check_passive(profile, access, "queue", name)
    if refused is not None:
        return refused
    present = view.usable_queue(access.vhost, name)
    if present is None:
        return refusals.not_found(names.missing("queue", access.vhost, name))
    return equivalence.check_access(present, connection) or Exists(present)


def _foreign_arguments(profile: Profile, queue_type: str) -> tuple[str, ...]:
    """Return the arguments that queues of a type refuse in the profile as not theirs (R-Q-5)."""
    foreign = arguments.STREAM_ARGUMENTS.get(profile.queues_stream_arguments, ())
    if queue_type == "quorum" and profile.queues_master_locator != "warn":
        foreign = (*foreign, arguments.MASTER_LOCATOR)
    if queue_type == "classic" and not profile.queues_classic_consumer_timeout:
        foreign = (*foreign, arguments.CONSUMER_TIMEOUT)
    return foreign


def _check_new_queue(
    view: CatalogState, profile: Profile, vhost: str, name: str, spec: Json, exclusive: bool
) -> Refused | None:
    resource = names.resource("queue", vhost, name)
    queue_type = spec["type"]
    if queue_type not in arguments.QUEUE_TYPES:
        reason = f"\"unsupported queue type '{queue_type}'\""
        if type(queue_type) is not str:
            reason = f"{{unacceptable_type,{arguments.type_name(queue_type)}}}"
        return refusals.precondition_failed(f"invalid arg 'x-queue-type' for {resource}: {reason}")
    refused = arguments.check_queue_arguments(
        queue_type,
        spec["arguments"],
        vhost,
        name,
        _foreign_arguments(profile, queue_type),
        takes_idle=profile.queues_idle_values,
    )
    if refused is not None or queue_type != "quorum":
        return refused
    # R-QQ-1, R-ERR-39
    for is_wrong, what in (
        (spec["auto_delete"], "auto-delete"),
        (exclusive, "exclusive-owner"),
        (not spec["durable"], "non-durable"),
    ):
        if is_wrong:
            return refusals.precondition_failed(f"invalid property '{what}' for {resource}")
    return None


def _new_queue(
    profile: Profile, vhost: str, name: str, spec: Json, owner: ConnectionId | None
) -> Refused | Create:
    create = Create("queue", vhost, name, spec, owner)
    resource = names.resource("queue", vhost, name)
    if arguments.MASTER_LOCATOR in spec["arguments"] and profile.queues_master_locator == "deny":
        text = f"{resource}: {arguments.MASTER_LOCATOR} (queue_master_locator) is not permitted"
        return Refused(refusals.INTERNAL_ERROR, text, True)
    create.warnings += without_effect(profile, vhost, name, spec)
    if not spec["durable"] and owner is None:
        # R-Q-8, O-1
        text = f"{resource}: transient non-exclusive queues (transient_nonexcl_queues) are"
        if profile.queues_transient_nonexclusive == "deny":
            return Refused(refusals.INTERNAL_ERROR, f"{text} not permitted", True)
        if profile.queues_transient_nonexclusive == "warn":
            create.warnings.append(f"{text} deprecated")
    return create


def without_effect(profile: Profile, vhost: str, name: str, spec: Json) -> list[str]:
    """Return in a line which arguments of a new queue are taken and do nothing, each with its
    reason (R-Q-5, R-Q-6); nothing if there are none.
    """
    values = spec["arguments"]
    idle = [
        f"{argument} (its value is {arguments.shown(values[argument])!r:.100})"
        for argument in arguments.idle_values(spec["type"], values)
    ]
    if profile.queues_stream_arguments == "warn":
        of_streams = arguments.STREAM_ARGUMENTS["3.13"]
        idle += [f"{argument} (of streams)" for argument in of_streams if argument in values]
    if arguments.MASTER_LOCATOR in values and profile.queues_master_locator == "warn":
        idle.append(f"{arguments.MASTER_LOCATOR} (use x-queue-leader-locator)")
    if not idle:
        return []
    resource = names.resource("queue", vhost, name)
    return [f"{resource} has arguments without effect: {', '.join(idle)}"]


def bind(
    view: CatalogState,
    profile: Profile,
    access: Access,
    source: str,
    destination_kind: str,
    destination: str,
    routing_key: str,
    binding_arguments: Json,
    connection: ConnectionId,
) -> Refused | Exists | Create:
    """Check queue.bind or exchange.bind (R-BND-1 to R-BND-10).

    destination_kind: queue or exchange.
    """
    source, destination = _stripped(source), _stripped(destination)
    refused = _check_bind_access(view, access, source, destination_kind, destination, routing_key)
    if refused is not None:
        return refused
    vhost = access.vhost
    exchange = view.exchange(vhost, source)
    if exchange is None:
        return refusals.not_found(names.missing("exchange", vhost, source))
    target = _target(view, destination_kind, vhost, destination)
    if target is None:
        return refusals.not_found(names.missing(destination_kind, vhost, destination))
    if isinstance(target, Queue):
        refused = equivalence.check_access(target, connection)
        if refused is not None:
            return refused
    refused = exchange_types.check_binding(
        exchange.routing_type,
        routing_key,
        binding_arguments,
        profile.topic_max_hash_words,
        destination_kind,
    )
    if refused is not None:
        return refused
    name = names.binding_name(source, destination_kind, destination, routing_key, binding_arguments)
    present = view.get("binding", vhost, name)
    if present is not None:
        return Exists(present)
    spec = {
        "source": source,
        "destination": destination,
        "destination_kind": destination_kind,
        "routing_key": routing_key,
        "arguments": binding_arguments,
    }
    return Create("binding", vhost, name, spec)


def unbind(
    view: CatalogState,
    access: Access,
    source: str,
    destination_kind: str,
    destination: str,
    routing_key: str,
    binding_arguments: Json,
    connection: ConnectionId,
) -> Refused | Exists | Delete:
    """Check queue.unbind or exchange.unbind; what is missing is as asked for (R-BND-4)."""
    source, destination = _stripped(source), _stripped(destination)
    refused = _check_bind_access(view, access, source, destination_kind, destination, routing_key)
    if refused is not None:
        return refused
    vhost = access.vhost
    name = names.binding_name(source, destination_kind, destination, routing_key, binding_arguments)
    present = view.get("binding", vhost, name)
    if present is None:
        # Nothing to refuse, whichever connection asks and whichever owns the queue.
        return Exists(None)
    target = _target(view, destination_kind, vhost, destination)
    if isinstance(target, Queue):
        refused = equivalence.check_access(target, connection)
        if refused is not None:
            return refused
    return Delete(present)


def _target(view: CatalogState, kind: str, vhost: str, name: str) -> Record | None:
    return view.usable_queue(vhost, name) if kind == "queue" else view.get(kind, vhost, name)


def _check_bind_access(
    view: CatalogState,
    access: Access,
    source: str,
    destination_kind: str,
    destination: str,
    routing_key: str,
) -> Refused | None:
    if source == names.DEFAULT_EXCHANGE or (
        destination_kind == "exchange" and destination == names.DEFAULT_EXCHANGE
    ):
        return _default_exchange()
    is_reply_name = names.is_reply_to(destination) and destination != names.REPLY_TO
    if destination_kind == "queue" and is_reply_name:
        # R-BND-7: a channel's own name; the bare one is a queue that is not there.
        return refusals.access_refused(
            "cannot bind or unbind to a volatile (direct reply-to) queue"
        )
    # R-BND-6, R-TP-2
    return (
        access.check("write", destination_kind, destination)
        or access.check("read", "exchange", source)
        or access.check_topic("read", view.exchange(access.vhost, source), (routing_key,))
    )


def delete_exchange(
    view: CatalogState,
    access: Access,
    name: str,
    if_unused: bool,
    profile: Profile | None = None,
) -> Refused | Exists | Delete:
    """Check exchange.delete (R-EX-6, R-PERM-6; in profile mrg R-MQ-9)."""
    vhost = access.vhost
    name = _stripped(name)
    if name == names.DEFAULT_EXCHANGE:
        return _default_exchange()
    resource = names.resource("exchange", vhost, name)
    if names.is_reserved(name):
        return refusals.access_refused(f"deletion of system {resource} not allowed")
    refused = access.check("configure", "exchange", name)
    if refused is not None:
        return refused
    present = view.exchange(vhost, name)
    if present is None:
        return Exists(None)
    if if_unused and view.vhosts[vhost].bindings.has_source(name):
        return refusals.precondition_failed(f"{resource} in use")
    if profile is not None and profile.queue_ae:
        users = policy.queues_with_alternate(view, vhost, name)
        if users:
            text = catalog_checks.alternate_in_use(vhost, name, users[0])
            return Refused(refusals.NOT_ALLOWED, text, True)
    return Delete(present, if_unused)


def delete_queue(
    view: CatalogState,
    profile: Profile,
    access: Access,
    name: str,
    *,
    if_unused: bool,
    if_empty: bool,
    connection: ConnectionId,
) -> Refused | Exists | Delete:
    """Check queue.delete (R-Q-12, R-Q-14, R-PERM-6); the flags are judged by the queue itself."""
    vhost = access.vhost
    name = _stripped(name)
    refused = access.check("configure", "queue", name)
    if refused is not None:
        return refused
    present = view.usable_queue(vhost, name)
    if present is None:
        return Exists(None)
    refused = equivalence.check_access(present, connection)
    if refused is not None:
        return refused
    resource = names.resource("queue", vhost, name)
    if present.is_protected():
        return refusals.locked(f"Cannot delete protected {resource}.")
    is_conditional = if_unused or if_empty
    if present.type == "quorum" and is_conditional and not profile.quorum_conditional_delete:
        flag = "if-unused" if if_unused else "if-empty"
        return Refused(
            refusals.NOT_IMPLEMENTED,
            f"cannot delete {resource}. queue.delete operations with {flag} flag set are not "
            "supported by quorum queues",
            True,
        )
    return Delete(present)


def use_queue(
    view: CatalogState, access: Access, name: str, connection: ConnectionId
) -> Refused | Queue:
    """Check read access for consume, get and purge (R-ERR-2, R-Q-9)."""
    refused = access.check("read", "queue", name)
    if refused is not None:
        return refused
    queue = view.usable_queue(access.vhost, name)
    if queue is None:
        return refusals.not_found(names.missing("queue", access.vhost, name))
    return equivalence.check_access(queue, connection) or queue


def check_publish(
    access: Access, name: str, exchange: Exchange | None, routing_keys: tuple[str, ...] = ()
) -> Refused | None:
    """Refuse a client's publish (R-ERR-1, R-ERR-41, R-EX-10, R-TP-2).

    exchange: what `Router.route` says it is; routing_keys: the key and all CC and BCC, none where
    the rights on them are asked for later (R-PUB-1).
    """
    refused = access.check("write", "exchange", name)
    if refused is not None:
        return refused
    if exchange is None:
        return refusals.not_found(names.missing("exchange", access.vhost, name))
    if exchange.internal:
        resource = names.resource("exchange", access.vhost, name)
        return refusals.access_refused(f"cannot publish to internal {resource}")
    if exchange.routing_type == "topic":
        return access.check_topic("write", exchange, routing_keys)
    return None
