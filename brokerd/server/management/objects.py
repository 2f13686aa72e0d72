"""Endpoints that declare, bind and delete: the same checks and proposals as AMQP's, as the caller.

201 where something was made, 204 where it was there; what AMQP would close a channel for is a 4xx.
"""

from __future__ import annotations

from typing import Any

from brokerd.core.catalog import catalog_commands, declare, names
from brokerd.core.catalog.catalog_objects import Exchange, Queue
from brokerd.core.catalog.refusals import INTERNAL_ERROR, PRECONDITION_FAILED, Refused
from brokerd.server.catalog import audit, topology
from brokerd.server.management.call import (
    Answer,
    Call,
    Json,
    bad_request,
    created,
    no_content,
    not_authorised,
    not_found,
    refused,
)
from brokerd.server.management.routes import Right, Route

#: What RabbitMQ calls the default exchange where a path needs a name.
DEFAULT_ALIAS = "amq.default"
NULL = "null_not_allowed"


def cause(call: Call) -> str:
    """Return who changed it, for the books."""
    return f"http:{call.caller.user}"


def exchange_name(name: str) -> str:
    """Return an exchange's name from a path."""
    return "" if name == DEFAULT_ALIAS else name


# ---- what stands in bodies ----------------------------------------------------------------------


def boolean(body: Json, name: str, default: bool = False) -> bool:
    """Return a field that is true or false, also as text; HttpError: 400."""
    value = body.get(name, default)
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise bad_request(["not_boolean", value])


def text(body: Json, name: str, default: str = "") -> str:
    """Return a field that is a text; HttpError: 400."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise bad_request(["not_string", name])
    return value


def arguments(body: Json, name: str = "arguments") -> Json:
    """Return a table, in the catalog's JSON form; an empty list stands for one, as PHP has it."""
    value = body.get(name, {})
    if value == []:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"{name}: must be an object")
    if _has_null(value):
        raise bad_request(NULL)
    return value


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_null, value.values()))
    return value is None or (isinstance(value, list) and any(map(_has_null, value)))


def check_reply(reply: Json) -> None:
    """Raise what the catalog refuses."""
    if reply["code"] in (catalog_commands.OK, catalog_commands.UNCHANGED):
        return
    raise refused(Refused(reply["amqp"] or PRECONDITION_FAILED, reply["text"]))


# ---- queues and exchanges -----------------------------------------------------------------------


async def _put_queue(call: Call) -> Answer:
    call.check_vhost()
    body = await call.body()
    services = call.services
    name = call.parts["name"]
    plan = declare.declare_queue(
        services.catalog.view,
        services.profile,
        call.access,
        name,
        durable=boolean(body, "durable"),
        auto_delete=boolean(body, "auto_delete"),
        queue_arguments=arguments(body),
        connection=services.identity.connection_id(0),
        generated_name="",
        node_default_type=services.config.queues.default_type,
    )
    if isinstance(plan, Refused):
        raise _of_declare(plan)
    if isinstance(plan, declare.Exists):
        record = plan.record
        if isinstance(record, Queue) and record.uid in services.catalog.view.down_homes.refusing:
            # Refused with the reason, as AMQP's declare is; if the home is back, it answers.
            await topology.counts(call.objects, record)
        return no_content()
    if not plan.name:
        raise bad_request("a queue needs a name")
    for warning in plan.warnings:
        services.routing.warn(warning)
    reply = await topology.create_queue(
        call.objects, plan.vhost, plan.name, plan.spec, cause=cause(call), declare=True
    )
    check_reply(reply)
    return created() if reply["code"] == catalog_commands.OK else no_content()


def _of_declare(plan: Refused) -> Exception:
    if plan.code == INTERNAL_ERROR:
        return bad_request(plan.text)
    return refused(plan)


def existing_queue(call: Call) -> Queue:
    """Return the queue of the path; HttpError: 404."""
    queue = call.services.catalog.view.queue(call.vhost, call.parts["name"])
    if queue is None:
        raise not_found()
    return queue


def existing_exchange(call: Call) -> Exchange:
    """Return the exchange of the path; HttpError: 404."""
    name = exchange_name(call.parts["name"])
    exchange = call.services.catalog.view.exchange(call.vhost, name)
    if exchange is None:
        raise not_found()
    return exchange


async def _delete_queue(call: Call) -> Answer:
    services, queue = call.services, existing_queue(call)
    if_empty, if_unused = call.is_on("if-empty"), call.is_on("if-unused")
    plan = declare.delete_queue(
        services.catalog.view,
        services.profile,
        call.access,
        queue.name,
        if_unused=if_unused,
        if_empty=if_empty,
        connection=services.identity.connection_id(0),
    )
    if isinstance(plan, Refused):
        raise refused(plan)
    outcome = await topology.delete_queue(
        call.objects, queue, if_empty=if_empty, if_unused=if_unused, cause=cause(call)
    )
    if not outcome.done:
        is_used = if_unused and outcome.consumers
        state = "in use" if is_used else "not empty"
        raise bad_request(f"queue '{queue.name}' in vhost '{queue.vhost}' {state}")
    return no_content()


async def _purge(call: Call) -> Answer:
    queue = existing_queue(call)
    found = declare.use_queue(
        call.services.catalog.view,
        call.access,
        queue.name,
        call.services.identity.connection_id(0),
    )
    if isinstance(found, Refused):
        raise refused(found)
    objects = call.objects
    objects.note(audit.purge(queue, await objects.queues.purge(queue.uid)))
    return no_content()


async def _put_exchange(call: Call) -> Answer:
    call.check_vhost()
    body = await call.body()
    services = call.services
    plan = declare.declare_exchange(
        services.catalog.view,
        services.profile,
        call.access,
        exchange_name(call.parts["name"]),
        text(body, "type", "direct"),
        durable=boolean(body, "durable"),
        auto_delete=boolean(body, "auto_delete"),
        internal=boolean(body, "internal"),
        exchange_arguments=arguments(body),
    )
    if isinstance(plan, Refused):
        raise refused(plan)
    return await _created(call, plan)


async def _created(call: Call, plan: declare.Exists | declare.Create | declare.Delete) -> Answer:
    if not isinstance(plan, declare.Create):
        return no_content()
    if plan.kind == "exchange":
        await topology.make_delayed_queue(
            call.objects, plan.vhost, plan.name, plan.spec, cause=cause(call)
        )
    operation = catalog_commands.put(
        plan.kind, plan.vhost, plan.name, plan.spec, cause=cause(call), declare=True
    )
    reply = await call.objects.write(operation)
    check_reply(reply)
    return created() if reply["code"] == catalog_commands.OK else no_content()


async def _delete_exchange(call: Call) -> Answer:
    exchange = existing_exchange(call)
    plan = declare.delete_exchange(
        call.services.catalog.view,
        call.access,
        exchange.name,
        call.is_on("if-unused"),
        call.services.profile,
    )
    return await delete(call, plan)


async def delete(
    call: Call, plan: Refused | declare.Exists | declare.Create | declare.Delete
) -> Answer:
    """Do what was planned about an exchange or a binding; 204."""
    if isinstance(plan, Refused):
        raise refused(plan)
    if isinstance(plan, declare.Delete):
        record = plan.record
        if record.is_protected():
            raise not_authorised(
                f"{record.kind} '{record.name}' in vhost '{record.vhost}' is managed by an "
                "operator and may not be deleted"
            )
        if plan.if_unused and await topology.keeps_messages(call.objects, record):
            resource = names.resource(record.kind, record.vhost, record.name)
            raise bad_request(f"{resource} in use: messages wait in it")
        reply = await call.objects.write(
            catalog_commands.delete(record.kind, record.vhost, record.name, cause=cause(call))
        )
        if reply["code"] != catalog_commands.NOT_FOUND:
            check_reply(reply)
    return no_content()


async def _act(call: Call) -> Answer:
    """RabbitMQ's actions are about mirrors of classic queues, which there are none of, and which
    4.3 does not know.
    """
    existing_queue(call)
    action = (await call.needed("action"))["action"]
    if call.as_4_3 or action not in ("sync", "cancel_sync"):
        raise bad_request(["unknown", action])
    return no_content()


_QUEUE = "/api/queues/{vhost}/{name}"
_EXCHANGE = "/api/exchanges/{vhost}/{name}"

ROUTES = (
    Route(
        "PUT",
        _QUEUE,
        Right.VHOST,
        _put_queue,
        "Declare a queue: `durable`, `auto_delete`, `arguments`",
    ),
    Route("DELETE", _QUEUE, Right.VHOST, _delete_queue, "Delete it: `if-empty`, `if-unused`"),
    Route("DELETE", f"{_QUEUE}/contents", Right.VHOST, _purge, "Purge its ready messages"),
    Route(
        "POST",
        f"{_QUEUE}/actions",
        Right.VHOST,
        _act,
        "`sync` and `cancel_sync`, in profiles of 3.x: they do nothing, as there are no mirrors",
    ),
    Route(
        "PUT",
        _EXCHANGE,
        Right.VHOST,
        _put_exchange,
        "Declare an exchange: `type`, `durable`, `auto_delete`, `internal`, `arguments`",
    ),
    Route("DELETE", _EXCHANGE, Right.VHOST, _delete_exchange, "Delete it: `if-unused`"),
)
