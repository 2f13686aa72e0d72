"""Endpoints about users and their limits.

Hashes are shown to administrators, as RabbitMQ does, with the name of what made them: a client that
writes back what it has read changes nothing.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from brokerd.core.catalog import definitions_json
from brokerd.core.catalog.catalog_objects import Record
from brokerd.server.management import changes, listing
from brokerd.server.management.call import Answer, Call, Json, bad_request, no_content, not_found
from brokerd.server.management.routes import Right, Route
from brokerd.server.management.vhosts import changed, number


def row(record: Record) -> Json:
    """Return a user as RabbitMQ shows it."""
    return definitions_json.user_row(record.name, record.spec())


async def _list(call: Call) -> Answer:
    rows = [row(record) for record in call.services.catalog.view.records("user")]
    has_pages = call.services.profile.management_as_4_3
    made = listing.answer if has_pages else listing.whole
    return Answer(value=await made(rows, call.query, ("name",)))


async def _without_permissions(call: Call) -> Answer:
    view = call.services.catalog.view
    may = {record.name for record in view.records("permission")}
    rows = [row(record) for record in view.records("user") if record.name not in may]
    return Answer(value=await listing.whole(rows, call.query, ("name",)))


async def _get(call: Call) -> Answer:
    found = row(changes.existing(call, "user", "", call.parts["name"]))
    return Answer(value=listing.chosen(found, listing.columns_of(call.query)))


async def _put(call: Call) -> Answer:
    """Without a password the user has none afterwards, as there."""
    name, body = call.parts["name"], await call.body()
    if not name:
        raise bad_request("a user needs a name")
    if "tags" not in body:
        raise bad_request("tags_not_present")
    present = call.services.catalog.view.user(name)
    spec: Json = {
        "tags": changes.tags(body["tags"]),
        "limits": {} if present is None else present.spec()["limits"],
        **_password(body),
    }
    return await changes.put(call, changes.upsert("user", "", name, spec))


def _password(body: Json) -> Json:
    if "password" in body and "password_hash" in body:
        raise bad_request("both_password_and_password_hash_are_provided")
    if "password" in body:
        if not isinstance(body["password"], str):
            raise bad_request("password: expected a text")
        return {"password": body["password"]}
    stored = body.get("password_hash", "")
    algorithm = body.get("hashing_algorithm") or definitions_json.DEFAULT_HASH
    if not isinstance(stored, str) or not isinstance(algorithm, str):
        raise bad_request(["not_base64", stored])
    if algorithm != definitions_json.SCRYPT:
        _check_base64(stored)
    try:
        return {"password_hash": definitions_json.stored_hash(stored, algorithm)}
    except definitions_json.BadDefinitions as error:
        raise bad_request(str(error)) from error


def _check_base64(stored: str) -> None:
    try:
        base64.b64decode(stored.encode(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad_request(["not_base64", stored]) from error


async def _delete(call: Call) -> Answer:
    return await changes.delete(call, "user", "", call.parts["name"])


async def _bulk_delete(call: Call) -> Answer:
    """All of them; one that is not there is none in RabbitMQ 4.3, and else refuses all."""
    names = (await call.needed("users"))["users"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("users: expected an array of names")
    if call.as_4_3:
        view = call.services.catalog.view
        names = [name for name in names if view.user(name) is not None]
    for name in names:
        _check_known(call, name)
    await changes.done(call, *(changes.deletion("user", "", name) for name in dict.fromkeys(names)))
    return no_content()


def _check_known(call: Call, name: str) -> None:
    if call.services.catalog.view.user(name) is None:
        raise bad_request(["no_such_user", name])


# ---- limits -------------------------------------------------------------------------------------


async def _limits(call: Call) -> Answer:
    view = call.services.catalog.view
    name = call.parts.get("name")
    if name is not None and view.user(name) is None:
        raise not_found()
    rows = [
        {"user": record.name, "value": record.spec()["limits"]}
        for record in view.records("user")
        if record.spec()["limits"] and name in (None, record.name)
    ]
    return Answer(value=await listing.whole(rows, call.query))


async def _set_limit(call: Call) -> Answer:
    name, limit = call.parts["name"], call.parts["limit"]
    value: Any = (await call.needed("value"))["value"]
    _check_known(call, name)
    await changes.modify(call, "user", name, changed(limit, number(limit, value)))
    return no_content()


async def _clear_limit(call: Call) -> Answer:
    await changes.modify(call, "user", call.parts["name"], changed(call.parts["limit"], None))
    return no_content()


_USER = "/api/users/{name}"
_LIMIT = "/api/user-limits/{name}/{limit}"

ROUTES = (
    Route("GET", "/api/users", Right.ADMINISTRATOR, _list, "All users"),
    Route(
        "GET",
        "/api/users/without-permissions",
        Right.ADMINISTRATOR,
        _without_permissions,
        "Users who may enter no vhost",
    ),
    Route(
        "POST",
        "/api/users/bulk-delete",
        Right.ADMINISTRATOR,
        _bulk_delete,
        "Delete several: `users`, an array of names",
    ),
    Route("GET", _USER, Right.ADMINISTRATOR, _get, "One user"),
    Route(
        "PUT",
        _USER,
        Right.ADMINISTRATOR,
        _put,
        "Make or change one: `tags` (array, or text with commas), and one of `password`, or "
        "`password_hash` with `hashing_algorithm`; without both, no password is right",
    ),
    Route("DELETE", _USER, Right.ADMINISTRATOR, _delete, "Delete one"),
    Route("GET", "/api/user-limits", Right.MANAGEMENT, _limits, "Limits of all users"),
    Route("GET", "/api/user-limits/{name}", Right.MANAGEMENT, _limits, "Limits of a user"),
    Route(
        "PUT",
        _LIMIT,
        Right.ADMINISTRATOR,
        _set_limit,
        "Set a limit: `value`; `max-connections`, `max-channels`",
    ),
    Route("DELETE", _LIMIT, Right.ADMINISTRATOR, _clear_limit, "Take a limit away"),
)
