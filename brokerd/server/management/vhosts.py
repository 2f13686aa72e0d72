"""Endpoints about vhosts, their limits and their protection from deletion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_objects import Record
from brokerd.server.catalog import topology_batch
from brokerd.server.management import changes, listing, objects
from brokerd.server.management.call import (
    Answer,
    Call,
    HttpError,
    Json,
    bad_request,
    no_content,
    not_found,
)
from brokerd.server.management.routes import Right, Route

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def row(call: Call, record: Record) -> Json:
    """Return a vhost as RabbitMQ shows it."""
    services, spec = call.services, record.spec()
    view = services.catalog.view
    metadata = {"description": spec["description"], "tags": spec["tags"]}
    # RabbitMQ 4.3 says the node's where the vhost has none.
    default = services.config.queues.default_type if call.as_4_3 else ""
    queue_type = spec["default_queue_type"] or default
    if queue_type:
        metadata["default_queue_type"] = queue_type
    return {
        "name": record.name,
        "description": spec["description"],
        "tags": spec["tags"],
        "default_queue_type": queue_type or "undefined",
        "metadata": metadata,
        "tracing": record.name in services.objects.tracer.vhosts,
        "cluster_state": dict.fromkeys(running(call), "running"),
        "protected_from_deletion": topology_batch.is_protected(view, record.name),
    }


def running(call: Call) -> list[str]:
    """Return the members that are up, in order."""
    alive = set(map(str, call.services.listed.groups.alive())) | {call.services.node}
    return sorted(alive)


async def _list(call: Call) -> Answer:
    view = call.services.catalog.view
    rows = [
        row(call, record)
        for record in view.records("vhost")
        if call.caller.is_monitor or call.may_enter(record.name)
    ]
    return Answer(value=await listing.answer(rows, call.query, ("name",)))


async def _get(call: Call) -> Answer:
    found = row(call, changes.existing(call, "vhost", "", call.vhost))
    return Answer(value=listing.chosen(found, listing.columns_of(call.query)))


async def _put(call: Call) -> Answer:
    """What the body leaves out is empty afterwards, as there; but for tracing and queue type."""
    body, name = await call.body(), call.vhost
    view = call.services.catalog.view
    present = view.spec("vhost", "", name)
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise bad_request("metadata: must be an object")
    given = metadata | body
    spec: Json = {
        "description": given.get("description", ""),
        "tags": changes.tags(given.get("tags", [])),
        "default_queue_type": _queue_type(call, given, present),
    }
    if present is not None:
        spec["limits"] = present["limits"]
    tracing = _optional(body, "tracing")
    protected = _optional(given, "protected_from_deletion")
    owner = []
    if present is None and call.caller.is_user_of(view):
        # Who makes a vhost may enter it, as there.
        owner.append(changes.upsert("permission", name, call.caller.user, ALL))
    answer = await changes.put(call, changes.upsert("vhost", "", name, spec), *owner)
    for setting, wanted in (
        (catalog_commands.tracing(name), tracing),
        (topology_batch.protection(name), protected),
    ):
        if wanted is not None:
            await _set(call, setting, wanted)
    return answer


def _optional(body: Json, name: str) -> bool | None:
    return None if body.get(name) is None else objects.boolean(body, name)


def _queue_type(call: Call, given: Json, present: Json | None) -> Any:
    wanted = given.get("default_queue_type")
    if wanted == "" and call.as_4_3:
        raise bad_request("default_queue_type must not be an empty string")
    if wanted is None:
        return "" if present is None else present["default_queue_type"]
    return "" if wanted == "undefined" else wanted


async def _set(call: Call, setting: str, wanted: bool) -> None:
    if bool(call.services.catalog.view.setting(setting)) != wanted:
        await call.objects.write(catalog_commands.set_setting(setting, wanted or None))


async def _delete(call: Call) -> Answer:
    view = call.services.catalog.view
    if topology_batch.is_protected(view, call.vhost):
        raise HttpError(
            412,
            "precondition_failed",
            f"Refusing to delete virtual host '{call.vhost}' because it is protected from deletion",
        )
    return await changes.delete(call, "vhost", "", call.vhost)


async def _protect(call: Call) -> Answer:
    changes.existing(call, "vhost", "", call.vhost)
    await _set(call, topology_batch.protection(call.vhost), call.method == "POST")
    return no_content()


async def _start(call: Call) -> Answer:
    """A vhost runs wherever its member does."""
    changes.existing(call, "vhost", "", call.vhost)
    if call.parts["node"] not in running(call):
        raise bad_request(f"Request to node {call.parts['node']} failed with nodedown")
    return no_content()


# ---- limits -------------------------------------------------------------------------------------


async def _limits(call: Call) -> Answer:
    view = call.services.catalog.view
    if "vhost" in call.parts and call.vhost not in view.vhosts:
        raise not_found()
    rows = [
        {"vhost": name, "value": spec["limits"]}
        for name in call.visible_vhosts()
        if (spec := view.spec("vhost", "", name)) is not None and spec["limits"]
    ]
    return Answer(value=await listing.whole(rows, call.query))


def changed(name: str, value: Any) -> Callable[[Json], Json]:
    """Return the change that sets a limit, None: takes it away."""

    def change(spec: Json) -> Json:
        limits = {key: limit for key, limit in spec["limits"].items() if key != name}
        return spec | {"limits": limits if value is None else limits | {name: value}}

    return change


def number(name: str, value: Any) -> int:
    """Return a limit; HttpError: 400."""
    if type(value) is not int:
        raise bad_request(f"{name} should be a number, actually was {value!r}")
    return value


async def _set_limit(call: Call) -> Answer:
    call.check_vhost()
    name = call.parts["name"]
    value = number(name, (await call.needed("value"))["value"])
    await changes.modify(call, "vhost", call.vhost, changed(name, value))
    return no_content()


async def _clear_limit(call: Call) -> Answer:
    await changes.modify(call, "vhost", call.vhost, changed(call.parts["name"], None))
    return no_content()


_VHOST = "/api/vhosts/{vhost}"
_PROTECTION = f"{_VHOST}/deletion/protection"
_LIMIT = "/api/vhost-limits/{vhost}/{name}"

ROUTES = (
    Route("GET", "/api/vhosts", Right.MANAGEMENT, _list, "Vhosts that the caller may see"),
    Route("GET", _VHOST, Right.ADMINISTRATOR, _get, "One vhost"),
    Route(
        "PUT",
        _VHOST,
        Right.ADMINISTRATOR,
        _put,
        "Make or change it: `description`, `tags`, `default_queue_type`, `tracing`, "
        "`protected_from_deletion`; its maker may do everything in it",
    ),
    Route("DELETE", _VHOST, Right.ADMINISTRATOR, _delete, "Delete it with all that is in it"),
    Route("POST", _PROTECTION, Right.ADMINISTRATOR, _protect, "Protect it from deletion (4.x)"),
    Route("DELETE", _PROTECTION, Right.ADMINISTRATOR, _protect, "Protect it no more (4.x)"),
    Route(
        "POST",
        f"{_VHOST}/start/{{node}}",
        Right.ADMINISTRATOR,
        _start,
        "Start it on a member; it runs there already",
    ),
    Route("GET", "/api/vhost-limits", Right.MANAGEMENT, _limits, "Limits of all vhosts"),
    Route("GET", "/api/vhost-limits/{vhost}", Right.VHOST_VISIBLE, _limits, "Limits of a vhost"),
    Route(
        "PUT",
        _LIMIT,
        Right.ADMINISTRATOR,
        _set_limit,
        "Set a limit: `value`; `max-connections`, `max-queues`, `max-exchanges`, `max-bindings`",
    ),
    Route("DELETE", _LIMIT, Right.ADMINISTRATOR, _clear_limit, "Take a limit away"),
)
