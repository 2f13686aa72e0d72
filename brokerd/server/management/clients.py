"""Endpoints about connections, channels and consumers, and what closes connections.

A client is known to the member that it is connected to; each makes the rows of its own, once a
second at most (figures.py), in the form in which they are shown.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brokerd.server.catalog import audit
from brokerd.server.listings import client_rows
from brokerd.server.loop.chunks import in_chunks
from brokerd.server.management import listing, queues
from brokerd.server.management.call import (
    Answer,
    Call,
    HttpError,
    Json,
    no_content,
    not_authorised,
    not_found,
)
from brokerd.server.management.figures import Rows
from brokerd.server.management.queue_figures import rate
from brokerd.server.management.routes import Right, Route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokerd.server.access.connections import GuestCall
    from brokerd.server.listings.ports import ListedConnection
    from brokerd.server.management.ports import ManagementServices

CONNECTIONS, CHANNELS, CONSUMERS = "connections", "channels", queues.CONSUMERS
#: How many a user has in a vhost, for sums: of 5,000 connections a few rows.
COUNTS = "client_counts"
#: Of a row: whether its user is known by a token.  One of the catalog may have the same name.
BY_TOKEN = "by_token"
_CLOSE = "management_close"
#: Of X-Reason; what goes to the client has 255 bytes in all.
REASON_BYTES_MAX = 200
DEFAULT_REASON = "Closed via management plugin"
_NO_ACCESS = "User not authorised to access object"
#: Fields about TLS that RabbitMQ shows as null without it; here they are not known.
_NO_TLS = dict.fromkeys(
    (
        *("peer_cert_subject", "peer_cert_issuer", "peer_cert_validity"),
        "peer_cert_serial_number",
        *("ssl_protocol", "ssl_key_exchange", "ssl_cipher", "ssl_hash"),
    )
)
#: Between two samples of the octets of a connection.
SAMPLE_S = 0.9


def register(services: ManagementServices) -> None:
    """Answer other members what only this one knows of its clients."""
    traffic = Traffic()

    async def connections() -> Rows:
        return await _connections(services, traffic)

    async def channels() -> Rows:
        return await _channels(services)

    async def consumers() -> Rows:
        return await _consumers(services)

    async def counts() -> Rows:
        return await _counts(services)

    async def close(question: Json) -> Json:
        return _close_here(services, question)

    services.figures.register(CONNECTIONS, connections)
    services.figures.register(CHANNELS, channels)
    services.figures.register(CONSUMERS, consumers)
    services.figures.register(COUNTS, counts)
    services.calls.serve(_CLOSE, close)


# ---- rows of this member ------------------------------------------------------------------------


@dataclass(slots=True)
class _Sample:
    taken_at: float
    octets: tuple[int, int]
    rates: tuple[float, float]


class Traffic:
    """Octets a second of this member's connections, between the last two looks at them.

    State: a sample of each connection that was there at the last look.
    """

    def __init__(self) -> None:
        self._samples: dict[str, _Sample] = {}

    def add(self, rows: Rows) -> None:
        """Put rates into rows of all connections."""
        now = asyncio.get_running_loop().time()
        samples = {}
        for row in rows:
            octets = (row["recv_oct"], row["send_oct"])
            last = self._samples.get(row["name"]) or _Sample(now, octets, (0.0, 0.0))
            passed = now - last.taken_at
            if passed >= SAMPLE_S:
                before = last.octets
                gained = ((octets[0] - before[0]) / passed, (octets[1] - before[1]) / passed)
                last = _Sample(now, octets, (round(gained[0], 1), round(gained[1], 1)))
            samples[row["name"]] = last
            row["recv_oct_details"], row["send_oct_details"] = map(rate, last.rates)
        self._samples = samples


async def _connections(services: ManagementServices, traffic: Traffic) -> Rows:
    """AMQP connections, and calls of Messages in their form."""
    rows: Rows = []
    listed = services.listed
    async for connections in in_chunks(listed.clients.all()):
        for connection in connections:
            row = _connection(client_rows.connection_fields(listed, connection))
            row["client_properties"] = plain_table(connection.machine.client_properties)
            row[BY_TOKEN] = _is_by_token(connection)
            rows.append(row)
    async for calls in in_chunks(listed.clients.calls()):
        for call in calls:
            row = _connection(client_rows.call_row(listed, call))
            row[BY_TOKEN] = _is_by_token(call)
            rows.append(row)
    rows = [row for row in rows if row["state"] != "closing"]
    traffic.add(rows)
    return rows


def _is_by_token(client: ListedConnection | GuestCall) -> bool:
    return client.identity.scopes is not None


async def _counts(services: ManagementServices) -> Rows:
    """How many connections and channels each user has in each vhost."""
    found: dict[tuple[str, str, bool], list[int]] = {}
    listed = services.listed.clients
    everyone: list[ListedConnection | GuestCall] = [*listed.all(), *listed.calls()]
    async for clients in in_chunks(everyone):
        for client in clients:
            if client.is_open:
                key = client.vhost, client.user, _is_by_token(client)
                counts = found.setdefault(key, [0, 0])
                counts[0] += 1
                counts[1] += len(getattr(client, "sessions", (None,)))
    return [
        {"vhost": vhost, "user": user, BY_TOKEN: by_token, "connections": one, "channels": two}
        for (vhost, user, by_token), (one, two) in found.items()
    ]


def _connection(row: Json) -> Json:
    """Return a connection as RabbitMQ shows one; row: of listings/client_rows.py."""
    is_amqp = row["protocol"] != "gRPC"
    return {
        "name": row["name"],
        "user_provided_name": row["user_provided_name"],
        "node": row["node"],
        "user": row["user"],
        "user_who_performed_action": row["user"],
        "vhost": row["vhost"],
        "host": row.get("host", ""),
        "port": row.get("port", 0),
        "peer_host": row["peer_host"],
        "peer_port": row["peer_port"],
        "protocol": "AMQP 0-9-1" if is_amqp else "gRPC",
        "type": "network",
        "auth_mechanism": row.get("auth_mechanism", ""),
        "ssl": row.get("ssl", False),
        "state": row["state"],
        "channels": row["channels"],
        "channel_max": row.get("channel_max", 0),
        "frame_max": row.get("frame_max", 0),
        "timeout": row.get("timeout", 0),
        "connected_at": row["connected_at"],
        "recv_oct": row.get("recv_oct", 0),
        "send_oct": row.get("send_oct", 0),
        "send_pend": 0,
        "client_properties": {},
        **_NO_TLS,
    }


def plain_table(table: Mapping[str, Any]) -> Json:
    """Return a field table as JSON without types."""
    return {key: _plain(value) for key, value in table.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return plain_table(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    # Of the other types of AMQP's tables some have no form in JSON.
    return client_rows.typed(value)["value"]


async def _channels(services: ManagementServices) -> Rows:
    rows: Rows = []
    connections = services.listed.clients.all()
    async for part in in_chunks(range(len(connections))):
        for i in part:
            connection = connections[i]
            details = {
                "name": connection.name,
                "peer_host": connection.peer[0],
                "peer_port": connection.peer[1],
            }
            for number, session in list(connection.sessions.items()):
                row = client_rows.channel_row(services.listed, connection, number, session)
                row["connection_details"] = details
                row["user_who_performed_action"] = row["user"]
                row[BY_TOKEN] = _is_by_token(connection)
                rows.append(row)
    return rows


async def _consumers(services: ManagementServices) -> Rows:
    channels = {row["pid"]: row for row in await services.figures.here(CHANNELS)}
    # A call's consumer has the call in the place of a channel.
    by_token = {
        client_rows.connection_pid(services.listed, call)
        for call in services.listed.clients.calls()
        if _is_by_token(call)
    }
    by_token |= {pid for pid, row in channels.items() if row[BY_TOKEN]}
    return [
        row
        | {"channel_details": _channel_details(row, channels.get(row["channel_pid"]))}
        | {BY_TOKEN: row["channel_pid"] in by_token}
        for row in client_rows.consumers(services.listed, "")
    ]


def _channel_details(consumer: Json, channel: Json | None) -> Json:
    """Return where a consumer is; a call of Messages has no channel."""
    found = {"node": consumer["node"], "user": consumer["user"]}
    if channel is None:
        return found | {"name": consumer["channel_pid"], "connection_name": ""}
    connection = channel["connection_details"]
    return found | {
        "name": channel["name"],
        "number": channel["number"],
        "connection_name": connection["name"],
        "peer_host": connection["peer_host"],
        "peer_port": connection["peer_port"],
    }


#: Fields of a channel's row that no client can use.
_INNER = ("pid", "connection", BY_TOKEN)


def _shown(row: Json) -> Json:
    return {key: value for key, value in row.items() if key not in _INNER}


# ---- reading ------------------------------------------------------------------------------------


def may_see(call: Call, row: Json) -> bool:
    """Tell whether a row is for the caller: to monitoring all are, to others their own."""
    return call.caller.is_monitor or _is_own(call, row)


def _is_own(call: Call, row: Json) -> bool:
    """A token's user and one of the catalog with the same name are two."""
    caller = call.caller
    return bool(row["user"] == caller.user and row[BY_TOKEN] == caller.is_by_token)


async def _mine(call: Call, kind: str) -> Rows:
    """Return the rows that the caller may see."""
    if "vhost" in call.parts and call.vhost not in call.services.catalog.view.vhosts:
        raise not_found()
    rows = (await call.services.figures.everywhere(kind)).all()
    if "vhost" in call.parts:
        rows = [row for row in rows if row["vhost"] == call.vhost]
    return rows if call.caller.is_monitor else [row for row in rows if _is_own(call, row)]


async def _list_connections(call: Call) -> Answer:
    rows = await _mine(call, CONNECTIONS)
    return Answer(value=await listing.answer(rows, call.query, ("name",), _shown))


async def _list_of_user(call: Call) -> Answer:
    _check_user(call, call.parts["user"])
    rows = [
        {key: row[key] for key in ("name", "vhost", "user", "node")}
        for row in await _mine(call, CONNECTIONS)
        if row["user"] == call.parts["user"]
    ]
    return Answer(value=await listing.answer(rows, call.query, ("name",)))


def _check_user(call: Call, user: str) -> None:
    """Raise the 401 of who looks at another's."""
    if not call.caller.is_monitor and user != call.caller.user:
        raise not_authorised(_NO_ACCESS)


async def _one(call: Call, kind: str) -> Json:
    rows = (await call.services.figures.everywhere(kind)).all()
    for row in rows:
        if row["name"] == call.parts["name"]:
            if not may_see(call, row):
                raise not_authorised(_NO_ACCESS)
            return row
    raise not_found()


async def _get_connection(call: Call) -> Answer:
    row = _shown(await _one(call, CONNECTIONS))
    return Answer(value=listing.chosen(row, listing.columns_of(call.query)))


async def _channels_of(call: Call) -> Answer:
    connection = await _one(call, CONNECTIONS)
    rows = [
        _shown(row)
        for row in (await call.services.figures.everywhere(CHANNELS)).all()
        if row["connection_details"]["name"] == connection["name"]
    ]
    return Answer(value=await listing.answer(rows, call.query, ("name",)))


async def _list_channels(call: Call) -> Answer:
    rows = await _mine(call, CHANNELS)
    return Answer(value=await listing.answer(rows, call.query, ("name",), _shown))


async def _get_channel(call: Call) -> Answer:
    row = await _one(call, CHANNELS)
    consumers = (await call.services.figures.everywhere(CONSUMERS)).all()
    row = _shown(row) | {
        "consumer_details": [
            queues.consumer_row(call.services, each)
            for each in consumers
            if each["channel_pid"] == row["pid"]
        ],
        "publishes": [],
        "deliveries": [],
    }
    return Answer(value=listing.chosen(row, listing.columns_of(call.query)))


async def _list_consumers(call: Call) -> Answer:
    rows = [queues.consumer_row(call.services, row) for row in await _mine(call, CONSUMERS)]
    return Answer(value=await listing.whole(rows, call.query))


# ---- closing ------------------------------------------------------------------------------------


async def _close(call: Call) -> Answer:
    found = await _ask_to_close(call, {"name": call.parts["name"]})
    if not any(answer["found"] for answer in found):
        raise not_found()
    if not any(answer["closed"] for answer in found):
        raise not_authorised(_NO_ACCESS)
    call.objects.note(audit.closing({"name": call.parts["name"]}, 1))
    return no_content()


async def _close_of_user(call: Call) -> Answer:
    user = call.parts["user"]
    if not call.caller.is_administrator and user != call.caller.user:
        raise not_authorised(_NO_ACCESS)
    found = await _ask_to_close(call, {"user": user})
    if count := sum(answer["closed"] for answer in found):
        call.objects.note(audit.closing({"connections_of": user}, count))
    return no_content()


async def _ask_to_close(call: Call, which: Json) -> list[Json]:
    """Have all members close what is meant; HttpError: 503 if one with it may not have answered."""
    services = call.services
    reason = call.headers.get("x-reason", "") or DEFAULT_REASON
    question = which | {
        "reason": reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore"),
        "of": "" if call.caller.is_administrator else call.caller.user,
        BY_TOKEN: call.caller.is_by_token,
    }
    members = sorted(set(map(str, services.listed.groups.alive())) | {services.node})
    answers = await asyncio.gather(
        *(services.calls.ask(member, _CLOSE, question) for member in members)
    )
    found = [answer for answer in answers if answer is not None]
    if len(found) < len(members) and not any(answer["found"] for answer in found):
        raise HttpError(503, "unavailable", "a member does not answer")
    return found


def _close_here(services: ManagementServices, question: Json) -> Json:
    """Close a connection by its name, or all of a user; of: only if it is this user's."""
    clients = services.listed.clients
    found = closed = 0
    everyone: list[ListedConnection | GuestCall] = [*clients.all(), *clients.calls()]
    for client in everyone:
        is_meant = client.name == question.get("name") or client.user == question.get("user")
        if not client.is_open or not is_meant:
            continue
        found += 1
        is_own = client.user == question["of"]
        is_own = is_own and _is_by_token(client) == question[BY_TOKEN]
        if not question["of"] or is_own:
            client.close(320, question["reason"])
            closed += 1
    return {"found": found, "closed": closed}


_CONNECTION = "/api/connections/{name}"
_OF_USER = "/api/connections/username/{user}"
_ANY, _VHOST = Right.MANAGEMENT, Right.VHOST_VISIBLE

ROUTES = (
    Route(
        "GET",
        "/api/connections",
        _ANY,
        _list_connections,
        "Connections; own ones only but to monitoring",
    ),
    Route("GET", "/api/vhosts/{vhost}/connections", _VHOST, _list_connections, "Those of a vhost"),
    Route("GET", _OF_USER, _ANY, _list_of_user, "Connections of a user"),
    Route("DELETE", _OF_USER, _ANY, _close_of_user, "Close them: header `X-Reason`"),
    Route("GET", _CONNECTION, _ANY, _get_connection, "One connection"),
    Route("DELETE", _CONNECTION, _ANY, _close, "Close it: header `X-Reason`"),
    Route("GET", f"{_CONNECTION}/channels", _ANY, _channels_of, "Channels of a connection"),
    Route(
        "GET", "/api/channels", _ANY, _list_channels, "Channels; own ones only but to monitoring"
    ),
    Route("GET", "/api/vhosts/{vhost}/channels", _VHOST, _list_channels, "Those of a vhost"),
    Route("GET", "/api/channels/{name}", _ANY, _get_channel, "One channel, with its consumers"),
    Route(
        "GET", "/api/consumers", _ANY, _list_consumers, "Consumers; own ones only but to monitoring"
    ),
    Route("GET", "/api/consumers/{vhost}", _ANY, _list_consumers, "Those of a vhost"),
)
