"""Endpoints about federation links and shovels as they run.

Each runs on one member; the others are asked (members/federation_calls.py).  Definitions are
parameters (parameters.py).  RabbitMQ allows every user who may list them to delete and restart
them, too; here that takes a policymaker, as the definition does.
"""

from __future__ import annotations

import time

from brokerd.federation import shovel
from brokerd.server.management import changes, listing
from brokerd.server.management.call import Answer, Call, Json, no_content, not_found
from brokerd.server.management.routes import Right, Route
from brokerd.server.members import federation_calls

#: Of a shovel as RabbitMQ shows it: which field of a row says it.
_SHOVEL = {
    "src_queue": "source_queue",
    "src_exchange": "source_exchange",
    "src_exchange_key": "source_exchange_key",
    "dest_queue": "destination_queue",
    "dest_exchange": "destination_exchange",
    "dest_exchange_key": "destination_exchange_key",
}
#: What RabbitMQ calls states of links.
#: RabbitMQ knows starting, running and terminated; clients refuse a list with any other.
_STATES = {
    "shutdown": "terminated",
    "error": "terminated",
    "unroutable": "running",
    "blocked": "running",
}
#: With which a link of RabbitMQ consumes; the row of a link to a queue has its own.
_CONSUMER_TAG = "federation-link-{}"


def _moment(since_ms: int) -> str:
    """Return a time in UTC as RabbitMQ writes that of a link."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(since_ms / 1000))


def link_row(row: Json) -> Json:
    """Return a federation link as RabbitMQ shows it."""
    kind = row["type"]
    found: Json = {
        "node": row["node"],
        "type": kind,
        "vhost": row["vhost"],
        "upstream": row["upstream"],
        "id": row["id"],
        "status": row["status"],
        "local_connection": row["local_connection"],
        "uri": row["uri"],
        "timestamp": _moment(row["since_ms"]),
        kind: row.get(kind, ""),
        f"upstream_{kind}": row.get(f"upstream_{kind}", ""),
        "consumer_tag": row.get("consumer_tag") or _CONSUMER_TAG.format(row["upstream"]),
    }
    return found | ({"error": row["error"]} if row["error"] else {})


def shovel_row(row: Json) -> Json:
    """Return a shovel as RabbitMQ shows it."""
    found: Json = {
        "node": row["node"],
        "timestamp": _moment(row["since_ms"]),
        "name": row["upstream"],
        "vhost": row["vhost"],
        "type": "dynamic",
        "state": _STATES.get(row["status"], row["status"]),
        "src_protocol": "amqp091",
        "src_uri": row["uri"],
        "dest_protocol": "amqp091",
        "dest_uri": row.get("destination", ""),
    }
    found |= {theirs: row[ours] for theirs, ours in _SHOVEL.items() if row.get(ours)}
    return found | ({"reason": row["error"]} if row["error"] else {})


async def _running(call: Call, *, are_shovels: bool) -> list[Json]:
    """Return the links of the vhosts that the caller may see; a member that does not answer has
    none here.
    """
    services = call.services
    if "vhost" in call.parts and call.vhost not in services.catalog.view.vhosts:
        raise not_found()
    visible = set(call.visible_vhosts())
    alive = set(map(str, services.listed.groups.alive())) | {services.node}
    rows = await federation_calls.all_links(services.members.calls, alive)
    return [
        row
        for row in rows
        if row["id"] and row["vhost"] in visible and (row["type"] == "shovel") == are_shovels
    ]


async def _links(call: Call) -> Answer:
    rows = [link_row(row) for row in await _running(call, are_shovels=False)]
    return Answer(value=await listing.whole(rows, call.query, ("vhost", "id")))


async def _shovels(call: Call) -> Answer:
    rows = [shovel_row(row) for row in await _running(call, are_shovels=True)]
    if "name" in call.parts:
        rows = [row for row in rows if row["name"] == call.parts["name"]]
        if not rows:
            raise not_found()
    return Answer(value=await listing.whole(rows, call.query, ("vhost", "name")))


async def _restart_link(call: Call) -> Answer:
    await _restart(call, await _running(call, are_shovels=False), "id", call.parts["id"])
    return no_content()


async def _restart_shovel(call: Call) -> Answer:
    await _restart(call, await _running(call, are_shovels=True), "upstream", call.parts["name"])
    return no_content()


async def _restart(call: Call, rows: list[Json], field: str, wanted: str) -> None:
    services = call.services
    ids = [row["id"] for row in rows if row[field] == wanted]
    alive = set(map(str, services.listed.groups.alive())) | {services.node}
    for link in ids:
        await federation_calls.restart(services.members.calls, alive, link)
    if not ids:
        raise not_found()


async def _delete_shovel(call: Call) -> Answer:
    name = f"{shovel.COMPONENT}/{call.parts['name']}"
    return await changes.delete(call, "parameter", call.vhost, name)


_LINKS, _SHOVELS = "/api/federation-links", "/api/shovels"
_ONE = f"{_SHOVELS}/vhost/{{vhost}}/{{name}}"
_READ, _WRITE = Right.MONITORING, Right.POLICYMAKER

ROUTES = (
    Route("GET", _LINKS, _READ, _links, "Federation links of all members"),
    Route("GET", f"{_LINKS}/{{vhost}}", _READ, _links, "Those of a vhost"),
    Route(
        "DELETE",
        f"{_LINKS}/vhost/{{vhost}}/{{id}}/{{node}}/restart",
        _WRITE,
        _restart_link,
        "Have a link connect anew",
    ),
    Route("GET", _SHOVELS, _READ, _shovels, "Shovels of all members"),
    Route("GET", f"{_SHOVELS}/{{vhost}}", _READ, _shovels, "Those of a vhost"),
    Route("GET", _ONE, _READ, _shovels, "One shovel"),
    Route("DELETE", _ONE, _WRITE, _delete_shovel, "Delete its definition"),
    Route("DELETE", f"{_ONE}/restart", _WRITE, _restart_shovel, "Have it connect anew"),
)
