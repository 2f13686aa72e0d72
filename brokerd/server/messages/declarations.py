"""Declares, deletes, binds and purges of a client: checked, done, and noted in the audit log.

The same by each front door: AMQP's methods (amqp/session_methods.py) and the calls of Messages
(grpc/topology_calls.py).  What is checked, and in which order, is core/catalog/declare.py's.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from brokerd.amqp import errors, values
from brokerd.core.catalog import arguments, catalog_commands, declare, names, refusals
from brokerd.core.catalog.catalog_objects import ConnectionId, Queue
from brokerd.core.catalog.permissions import Access
from brokerd.core.catalog.refusals import Refused
from brokerd.core.queue.client_shapes import Counts
from brokerd.server.catalog import audit, topology
from brokerd.server.catalog import ports as catalog_ports
from brokerd.server.catalog.catalog_writer import QueueStuck
from brokerd.server.messages import message_checks, ports, reply_to

Plan: TypeAlias = declare.Exists | declare.Create | declare.Delete


@dataclass(slots=True, frozen=True)
class Declaring:
    """A client, and what it makes and deletes objects by."""

    #: On the client's behalf.
    objects: catalog_ports.Audited
    #: The member's own, for what is no change of the client.
    own_objects: catalog_ports.Objects
    routing: ports.Routing
    replies: reply_to.Replies
    access: Access
    #: Whose exclusive queues it may use.
    connection: ConnectionId
    #: As the catalog and the log have it: the door and the user.
    cause: str


@dataclass(slots=True, frozen=True)
class QueueDeclaration:
    """What a queue.declare says."""

    name: str
    passive: bool
    durable: bool
    exclusive: bool
    auto_delete: bool
    table: values.Table


@dataclass(slots=True, frozen=True)
class BindingNamed:
    """What a bind or unbind says; destination_kind: queue or exchange."""

    source: str
    destination_kind: str
    destination: str
    routing_key: str
    table: values.Table


def random_name(prefix: str) -> str:
    """R-NAM-3: 22 characters of base64url."""
    return prefix + base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")


def _json(table: values.Table) -> dict[str, Any]:
    converted: dict[str, Any] = arguments.to_json(table)
    return converted


# ---- exchanges and bindings ---------------------------------------------------------------------


def plan_exchange(
    client: Declaring,
    name: str,
    kind: str,
    *,
    passive: bool,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    table: values.Table,
) -> Plan:
    """Check an exchange.declare; ProtocolError."""
    return _planned(
        declare.declare_exchange(
            client.objects.view,
            client.routing.profile,
            client.access,
            name,
            kind,
            passive=passive,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            exchange_arguments=_json(table),
        )
    )


def plan_exchange_deletion(client: Declaring, name: str, *, if_unused: bool) -> Plan:
    """Check an exchange.delete; ProtocolError."""
    plan = _planned(
        declare.delete_exchange(
            client.objects.view, client.access, name, if_unused, client.routing.profile
        )
    )
    if isinstance(plan, declare.Delete) and plan.record.is_protected():
        raise errors.AccessRefused(
            f"exchange '{name}' in vhost '{client.access.vhost}' is managed by "
            "an operator and may not be deleted"
        )
    return plan


def plan_binding(client: Declaring, named: BindingNamed) -> Plan:
    """Check a bind; ProtocolError."""
    return _planned(
        declare.bind(
            view=client.objects.view,
            profile=client.routing.profile,
            access=client.access,
            source=named.source,
            destination_kind=named.destination_kind,
            destination=named.destination,
            routing_key=named.routing_key,
            binding_arguments=_json(named.table),
            connection=client.connection,
        )
    )


def plan_unbinding(client: Declaring, named: BindingNamed) -> Plan:
    """Check an unbind; ProtocolError."""
    return _planned(
        declare.unbind(
            view=client.objects.view,
            access=client.access,
            source=named.source,
            destination_kind=named.destination_kind,
            destination=named.destination,
            routing_key=named.routing_key,
            binding_arguments=_json(named.table),
            connection=client.connection,
        )
    )


def _planned(plan: Refused | Plan) -> Plan:
    if isinstance(plan, Refused):
        raise message_checks.refuse(plan)
    return plan


async def carry_out(client: Declaring, plan: Plan) -> None:
    """Do what was planned for an exchange or a binding; ProtocolError."""
    objects = client.objects
    if isinstance(plan, declare.Exists):
        return
    if isinstance(plan, declare.Create):
        if plan.kind == "exchange":
            await topology.make_delayed_queue(
                objects, plan.vhost, plan.name, plan.spec, cause=client.cause
            )
        operation = catalog_commands.put(
            plan.kind, plan.vhost, plan.name, plan.spec, cause=client.cause, declare=True
        )
        _check_reply(await client.objects.write(operation))
        return
    record = plan.record
    if plan.if_unused and await topology.keeps_messages(objects, record):
        resource = names.resource(record.kind, record.vhost, record.name)
        raise errors.PreconditionFailed(f"{resource} in use: messages wait in it")
    reply = await client.objects.write(
        catalog_commands.delete(record.kind, record.vhost, record.name, cause=client.cause)
    )
    # Somebody else was first: it is gone, as asked for.
    if reply["code"] != catalog_commands.NOT_FOUND:
        _check_reply(reply)


def _check_reply(reply: dict[str, Any]) -> None:
    """Refuse what the catalog refuses, as AMQP says."""
    if reply["code"] in (catalog_commands.OK, catalog_commands.UNCHANGED):
        return
    code = reply["amqp"] or 406
    raise message_checks.refuse(Refused(code, reply["text"], code >= 500))


# ---- queues -------------------------------------------------------------------------------------


async def declare_queue(
    client: Declaring, asked: QueueDeclaration, owns: Callable[[], None]
) -> tuple[str, Counts]:
    """Make a queue unless it is there; return its name and what is in it.

    owns(): called before one is made that is exclusive, and ends with the client's connection.
    """
    if asked.name.startswith(reply_to.PSEUDO_QUEUE):
        return await _reply_queue_declared(client, asked.name)
    plan = declare.declare_queue(
        client.objects.view,
        client.routing.profile,
        client.access,
        asked.name,
        passive=asked.passive,
        durable=asked.durable,
        exclusive=asked.exclusive,
        auto_delete=asked.auto_delete,
        queue_arguments=_json(asked.table),
        connection=client.connection,
        generated_name=random_name("amq.gen-"),
        node_default_type=client.objects.config.queues.default_type,
    )
    if isinstance(plan, Refused):
        if plan.code == refusals.RESOURCE_LOCKED and not asked.passive:
            await _wait_for_lock(client, asked.name, plan)
            return await declare_queue(client, asked, owns)
        raise message_checks.refuse(plan)
    name = await _made(client, plan, owns)
    vhost, view = client.access.vhost, client.objects.view
    queue = view.queue(vhost, name)
    found: Counts | None = None
    try:
        if queue is not None:
            found = await topology.counts(client.own_objects, queue)
    except QueueStuck:
        # Else it went down with its home member meanwhile.
        if view.usable_queue(vhost, name) is not None:
            raise
    now = view.usable_queue(vhost, name)
    if found is None and isinstance(plan, declare.Exists) and now is not plan.record:
        # It ended between the check and here: as if it had not been there.
        return await declare_queue(client, asked, owns)
    found = found or Counts(0, 0)
    holders = found.holders if client.routing.profile.quorum_holders_are_consumers else 0
    return name, Counts(found.ready, found.consumers + holders)


async def _made(
    client: Declaring, plan: declare.Exists | declare.Create, owns: Callable[[], None]
) -> str:
    if isinstance(plan, declare.Exists):
        assert isinstance(plan.record, Queue)
        return plan.record.name
    for warning in plan.warnings:
        client.routing.warn(warning)
    if plan.exclusive_owner is not None:
        owns()
    reply = await topology.create_queue(
        client.objects,
        plan.vhost,
        plan.name,
        plan.spec,
        cause=client.cause,
        declare=True,
        exclusive_owner=plan.exclusive_owner,
    )
    _check_reply(reply)
    return plan.name


async def _wait_for_lock(client: Declaring, name: str, refused: Refused) -> None:
    """Return when a locked queue is gone; ProtocolError while it is locked.

    Where its owner is a connection of another member, that is perhaps the same client, which lost
    it with the member.  The queue is locked if that member answers, and made anew if it is down.
    """
    view, vhost = client.objects.view, client.access.vhost
    queue = view.queue(vhost, name)
    owner = None if queue is None else queue.exclusive_owner
    if queue is None or owner is None or owner.node == client.connection.node:
        raise message_checks.refuse(refused)
    try:
        if await topology.counts(client.own_objects, queue) is not None:
            raise message_checks.refuse(refused)
    except QueueStuck:
        if view.usable_queue(vhost, name) is queue:
            raise


async def _reply_queue_declared(client: Declaring, name: str) -> tuple[str, Counts]:
    """R-DRT-3: it says whether someone is there, passive or not."""
    vhost = client.access.vhost
    if name != reply_to.PSEUDO_QUEUE and not await client.replies.exists(vhost, name):
        raise errors.NotFound(f"no queue '{name}' in vhost '{vhost}'")
    return name, Counts(0, 1)


async def delete_queue(client: Declaring, name: str, *, if_unused: bool, if_empty: bool) -> int:
    """Delete a queue; return how many messages were ready in it."""
    plan = declare.delete_queue(
        client.objects.view,
        client.routing.profile,
        client.access,
        name,
        if_unused=if_unused,
        if_empty=if_empty,
        connection=client.connection,
    )
    if isinstance(plan, Refused):
        raise message_checks.refuse(plan)
    if isinstance(plan, declare.Exists):
        return 0
    queue = plan.record
    assert isinstance(queue, Queue)
    outcome = await topology.delete_queue(
        client.objects, queue, if_empty=if_empty, if_unused=if_unused, cause=client.cause
    )
    if not outcome.done:
        is_used = if_unused and outcome.consumers
        raise errors.PreconditionFailed(
            f"queue '{queue.name}' in vhost '{queue.vhost}' {'in use' if is_used else 'not empty'}"
        )
    return outcome.messages


async def purge_queue(client: Declaring, queue: Queue) -> int:
    """Remove a queue's ready messages; return how many."""
    count = await client.objects.queues.purge(queue.uid)
    client.objects.note(audit.purge(queue, count))
    return count
