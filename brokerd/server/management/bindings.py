"""Endpoints about bindings, in all their paths.

A binding's last part of a path is its `properties_key`: the routing key, and a hash of its
arguments if it has any.  RabbitMQ's hash is Erlang's own of terms; ours is of the same shape.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from typing import Literal
from urllib.parse import quote, quote_plus

from brokerd.core.catalog import catalog_commands, declare, names
from brokerd.core.catalog.catalog_objects import Binding
from brokerd.core.catalog.refusals import Refused
from brokerd.server.loop.chunks import in_chunks
from brokerd.server.management import listing, objects
from brokerd.server.management.call import (
    Answer,
    Call,
    Json,
    bad_request,
    created,
    not_found,
    refused,
)
from brokerd.server.management.routes import Right, Route

Kind = Literal["queue", "exchange"]

#: Of the hash: RabbitMQ's has 32 bits as well.
_HASH_BYTES = 4
_KINDS: dict[str, Kind] = {"q": "queue", "e": "exchange"}


def properties_key(routing_key: str, arguments: Json) -> str:
    """Return what a path calls a binding between two ends (rabbit_mgmt_format)."""
    if not arguments:
        return _quoted(routing_key) or "~"
    digest = hashlib.sha256(names.canonical_json(arguments).encode()).digest()[:_HASH_BYTES]
    return f"{_quoted(routing_key)}~{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def _quoted(text: str) -> str:
    return quote_plus(text, safe="", errors="surrogateescape").replace("~", "%7E")


def row(binding: Binding) -> Json:
    """Return a binding as RabbitMQ shows it."""
    return {
        "source": binding.source,
        "vhost": binding.vhost,
        "destination": binding.destination,
        "destination_type": binding.destination_kind,
        "routing_key": binding.routing_key,
        "arguments": binding.arguments,
        "properties_key": properties_key(binding.routing_key, binding.arguments),
    }


def implicit(vhost: str, queue: str) -> Json:
    """Return the binding that every queue has to the default exchange."""
    return {
        "source": "",
        "vhost": vhost,
        "destination": queue,
        "destination_type": "queue",
        "routing_key": queue,
        "arguments": {},
        "properties_key": properties_key(queue, {}),
    }


async def _rows(call: Call, vhosts: Iterable[str]) -> list[Json]:
    found: list[Json] = []
    view = call.services.catalog.view
    for vhost in vhosts:
        queues = view.records("queue", vhost)
        async for part in in_chunks(range(len(queues))):
            found += [implicit(queues[i].vhost, queues[i].name) for i in part]
        records = view.records("binding", vhost)
        async for part in in_chunks(range(len(records))):
            found += [row(each) for i in part if isinstance(each := records[i], Binding)]
    return found


async def _list(call: Call) -> Answer:
    if "vhost" in call.parts and call.vhost not in call.services.catalog.view.vhosts:
        raise not_found()
    rows = await _rows(call, call.visible_vhosts())
    default = ("vhost", "source", "destination_type", "destination", "routing_key")
    return Answer(value=await listing.answer(rows, call.query, default))


def _explicit(call: Call) -> Iterator[Binding]:
    for record in call.services.catalog.view.records("binding", call.vhost):
        assert isinstance(record, Binding)
        yield record


def _named(call: Call) -> tuple[str, str]:
    """Return vhost and name of the path; what is not there has no bindings.  HttpError: 404."""
    if call.vhost not in call.services.catalog.view.vhosts:
        raise not_found()
    return call.vhost, call.parts["name"]


async def _of_queue(call: Call) -> Answer:
    """As RabbitMQ, a queue that is not there has its implicit binding, too."""
    vhost, name = _named(call)
    rows = [implicit(vhost, name)]
    rows += [
        row(binding)
        for binding in _explicit(call)
        if binding.destination_kind == "queue" and binding.destination == name
    ]
    return Answer(value=await listing.answer(rows, call.query))


async def _of_source(call: Call) -> Answer:
    name = objects.exchange_name(_named(call)[1])
    if name == names.DEFAULT_EXCHANGE:
        queues = call.services.catalog.view.records("queue", call.vhost)
        rows = [implicit(each.vhost, each.name) for each in queues]
    else:
        rows = [row(binding) for binding in _explicit(call) if binding.source == name]
    return Answer(value=await listing.answer(rows, call.query))


async def _of_destination(call: Call) -> Answer:
    name = objects.exchange_name(_named(call)[1])
    rows = [
        row(binding)
        for binding in _explicit(call)
        if binding.destination_kind == "exchange" and binding.destination == name
    ]
    return Answer(value=await listing.answer(rows, call.query))


# ---- between two ends ---------------------------------------------------------------------------


def _ends(call: Call) -> tuple[str, Kind, str]:
    """Return source, kind of the destination, destination."""
    kind = _KINDS.get(call.parts["kind"])
    if kind is None:
        raise not_found()
    destination = call.parts["destination"]
    if kind == "exchange":
        destination = objects.exchange_name(destination)
    return objects.exchange_name(call.parts["source"]), kind, destination


def _between(call: Call) -> list[Json]:
    source, kind, destination = _ends(call)
    view = call.services.catalog.view
    if call.vhost not in view.vhosts:
        raise not_found()
    if source == names.DEFAULT_EXCHANGE:
        queue = view.queue(call.vhost, destination) if kind == "queue" else None
        return [] if queue is None else [implicit(queue.vhost, queue.name)]
    return [
        row(binding)
        for binding in _explicit(call)
        if (binding.source, binding.destination_kind, binding.destination)
        == (source, kind, destination)
    ]


async def _list_between(call: Call) -> Answer:
    return Answer(value=await listing.answer(_between(call), call.query))


def _one(call: Call) -> Json:
    wanted = call.parts["key"]
    for each in _between(call):
        # A client may quote what it was given, or hand it back as it is.
        if wanted == each["properties_key"]:
            return each
    raise not_found()


async def _get(call: Call) -> Answer:
    return Answer(value=listing.chosen(_one(call), listing.columns_of(call.query)))


async def _bind(call: Call) -> Answer:
    call.check_vhost()
    source, kind, destination = _ends(call)
    body = await call.body()
    key, table = objects.text(body, "routing_key"), objects.arguments(body)
    if names.is_too_long(key):
        raise bad_request(f"routing_key: longer than {names.NAME_BYTES_MAX} bytes")
    services = call.services
    plan = declare.bind(
        view=services.catalog.view,
        profile=services.profile,
        access=call.access,
        source=source,
        destination_kind=kind,
        destination=destination,
        routing_key=key,
        binding_arguments=table,
        connection=services.identity.connection_id(0),
    )
    if isinstance(plan, Refused):
        raise refused(plan)
    if isinstance(plan, declare.Create):
        operation = catalog_commands.put(
            plan.kind, plan.vhost, plan.name, plan.spec, cause=objects.cause(call), declare=True
        )
        objects.check_reply(await call.objects.write(operation))
    # As there: from the path that was asked; clients cut it at the slash.
    ends = (destination, properties_key(key, table))
    return created("/".join(quote(part, safe="", errors="surrogateescape") for part in ends))


async def _unbind(call: Call) -> Answer:
    found = _one(call)
    services = call.services
    plan = declare.unbind(
        view=services.catalog.view,
        access=call.access,
        source=found["source"],
        destination_kind=found["destination_type"],
        destination=found["destination"],
        routing_key=found["routing_key"],
        binding_arguments=found["arguments"],
        connection=services.identity.connection_id(0),
    )
    return await objects.delete(call, plan)


_BETWEEN = "/api/bindings/{vhost}/e/{source}/{kind}/{destination}"

ROUTES = (
    Route("GET", "/api/bindings", Right.MANAGEMENT, _list, "All bindings"),
    Route("GET", "/api/bindings/{vhost}", Right.VHOST_VISIBLE, _list, "Bindings of a vhost"),
    Route(
        "GET",
        _BETWEEN,
        Right.VHOST_VISIBLE,
        _list_between,
        "Bindings between an exchange and a queue (kind `q`) or an exchange (kind `e`)",
    ),
    Route(
        "POST",
        _BETWEEN,
        Right.VHOST,
        _bind,
        "Bind: `routing_key`, `arguments`; Location names the new binding",
    ),
    Route("GET", f"{_BETWEEN}/{{key}}", Right.VHOST_VISIBLE, _get, "One by its `properties_key`"),
    Route("DELETE", f"{_BETWEEN}/{{key}}", Right.VHOST, _unbind, "Unbind it"),
    Route(
        "GET",
        "/api/queues/{vhost}/{name}/bindings",
        Right.VHOST_VISIBLE,
        _of_queue,
        "Bindings of a queue",
    ),
    Route(
        "GET",
        "/api/exchanges/{vhost}/{name}/bindings/source",
        Right.VHOST_VISIBLE,
        _of_source,
        "Bindings from an exchange",
    ),
    Route(
        "GET",
        "/api/exchanges/{vhost}/{name}/bindings/destination",
        Right.VHOST_VISIBLE,
        _of_destination,
        "Bindings to an exchange",
    ),
)
