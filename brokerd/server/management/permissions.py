"""Endpoints about permissions in vhosts, and about permissions for topics."""

from __future__ import annotations

from brokerd.core.catalog.catalog_objects import Record
from brokerd.server.management import changes, listing
from brokerd.server.management.call import Answer, Call, Json, bad_request, not_found
from brokerd.server.management.routes import Right, Route

_PATTERNS = ("configure", "write", "read")
_TOPIC_PATTERNS = ("write", "read")


def row(record: Record) -> Json:
    """Return a permission as RabbitMQ shows it."""
    return {"user": record.name, "vhost": record.vhost} | record.spec()


def topic_row(record: Record) -> Json:
    """Return a topic permission as RabbitMQ shows it."""
    user, _, exchange = record.name.partition("|")
    return {"user": user, "vhost": record.vhost, "exchange": exchange} | record.spec()


def _check_both(call: Call) -> None:
    view = call.services.catalog.view
    if call.vhost not in view.vhosts or view.user(call.parts["user"]) is None:
        raise bad_request("vhost_or_user_not_found")


def _texts(body: Json, names: tuple[str, ...]) -> Json:
    for name in names:
        if not isinstance(body[name], str):
            raise bad_request(f"{name}: expected a regular expression")
    return {name: body[name] for name in names}


async def _list(call: Call) -> Answer:
    """All, or those of a vhost or a user that is there."""
    return await _answer(call, [row(record) for record in _records(call, "permission")])


async def _topic_list(call: Call) -> Answer:
    rows = [topic_row(record) for record in _records(call, "topic_permission")]
    return await _answer(call, rows)


async def _answer(call: Call, rows: list[Json]) -> Answer:
    user = call.parts.get("user")
    found = [row for row in rows if user in (None, row["user"])]
    return Answer(value=await listing.whole(found, call.query, ("vhost", "user")))


def _records(call: Call, kind: str) -> list[Record]:
    view = call.services.catalog.view
    vhost, user = call.parts.get("vhost"), call.parts.get("user")
    if vhost is not None and vhost not in view.vhosts:
        raise not_found()
    if user is not None and view.user(user) is None:
        raise not_found()
    return view.records(kind, vhost)


async def _get(call: Call) -> Answer:
    found = row(changes.existing(call, "permission", call.vhost, call.parts["user"]))
    return Answer(value=listing.chosen(found, listing.columns_of(call.query)))


async def _put(call: Call) -> Answer:
    body = await call.needed(*_PATTERNS)
    _check_both(call)
    spec = _texts(body, _PATTERNS)
    return await changes.put(
        call, changes.upsert("permission", call.vhost, call.parts["user"], spec)
    )


async def _delete(call: Call) -> Answer:
    return await changes.delete(call, "permission", call.vhost, call.parts["user"])


# ---- topics -------------------------------------------------------------------------------------


def _topic_rows(call: Call) -> list[Json]:
    records = call.services.catalog.view.records("topic_permission", call.vhost)
    rows = [topic_row(record) for record in records]
    found = [
        row
        for row in rows
        if row["user"] == call.parts["user"]
        and call.parts.get("exchange", row["exchange"]) == row["exchange"]
    ]
    if not found:
        raise not_found()
    return found


async def _topic_get(call: Call) -> Answer:
    return Answer(value=await listing.whole(_topic_rows(call), call.query, ("vhost", "user")))


async def _topic_put(call: Call) -> Answer:
    """201 for the first of a user in a vhost, as there."""
    body = await call.needed("exchange", *_TOPIC_PATTERNS)
    _check_both(call)
    if not isinstance(body["exchange"], str):
        raise bad_request("exchange: expected a name")
    exchange = body["exchange"]
    view = call.services.catalog.view
    if exchange and call.as_4_3 and view.exchange(call.vhost, exchange) is None:
        raise bad_request(["no_such_exchange", exchange])
    name = f"{call.parts['user']}|{exchange}"
    spec = _texts(body, _TOPIC_PATTERNS)
    user = f"{call.parts['user']}|"
    others = view.records("topic_permission", call.vhost)
    is_first = not any(record.name.startswith(user) for record in others)
    await changes.done(call, changes.upsert("topic_permission", call.vhost, name, spec))
    return Answer(201 if is_first else 204)


async def _topic_delete(call: Call) -> Answer:
    gone = [f"{row['user']}|{row['exchange']}" for row in _topic_rows(call)]
    await changes.done(
        call, *(changes.deletion("topic_permission", call.vhost, name) for name in gone)
    )
    return Answer(204)


_ONE = "/api/permissions/{vhost}/{user}"
_TOPIC = "/api/topic-permissions/{vhost}/{user}"
_RIGHT = Right.ADMINISTRATOR

ROUTES = (
    Route("GET", "/api/permissions", _RIGHT, _list, "All permissions"),
    Route("GET", "/api/vhosts/{vhost}/permissions", _RIGHT, _list, "Permissions in a vhost"),
    Route("GET", "/api/users/{user}/permissions", _RIGHT, _list, "Permissions of a user"),
    Route("GET", _ONE, _RIGHT, _get, "A user's permissions in a vhost"),
    Route("PUT", _ONE, _RIGHT, _put, "Set them: `configure`, `write`, `read`"),
    Route("DELETE", _ONE, _RIGHT, _delete, "Take them away"),
    Route("GET", "/api/topic-permissions", _RIGHT, _topic_list, "All topic permissions"),
    Route(
        "GET",
        "/api/vhosts/{vhost}/topic-permissions",
        _RIGHT,
        _topic_list,
        "Topic permissions in a vhost",
    ),
    Route(
        "GET",
        "/api/users/{user}/topic-permissions",
        _RIGHT,
        _topic_list,
        "Topic permissions of a user",
    ),
    Route("GET", _TOPIC, _RIGHT, _topic_get, "A user's topic permissions in a vhost"),
    Route("PUT", _TOPIC, _RIGHT, _topic_put, "Set one: `exchange`, `write`, `read`"),
    Route("DELETE", _TOPIC, _RIGHT, _topic_delete, "Take all of them away"),
    Route("DELETE", f"{_TOPIC}/{{exchange}}", _RIGHT, _topic_delete, "Take one away"),
)
