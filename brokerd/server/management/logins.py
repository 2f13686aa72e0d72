"""Endpoints about logging in: what became of logins, and the form of RabbitMQ's own page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from brokerd.server.management import login
from brokerd.server.management.call import (
    Answer,
    Call,
    Json,
    bad_request,
    not_authorised,
    not_found,
)
from brokerd.server.management.figures import Rows
from brokerd.server.management.routes import Right, Route

if TYPE_CHECKING:
    from brokerd.server.management.ports import ManagementServices

ATTEMPTS = "login_attempts"
#: RabbitMQ's names of protocols; those over TLS count to them.
_PROTOCOLS = {"amqp": "amqp091", "amqps": "amqp091", "https": "http"}


def register(services: ManagementServices) -> None:
    """Answer other members what only this one knows of logins."""

    def attempts() -> Rows:
        records = services.authenticator.records
        found: dict[str, Json] = {}
        counts = [(name, count, 0) for name, count in records.accepted.items()]
        counts += [(name, 0, count) for (name, _), count in records.refused.items()]
        for listener, accepted, refused in counts:
            protocol = _PROTOCOLS.get(listener, listener)
            row = found.setdefault(protocol, _none(services.node, protocol))
            row["auth_attempts"] += accepted + refused
            row["auth_attempts_failed"] += refused
            row["auth_attempts_succeeded"] += accepted
        return list(found.values())

    services.figures.register(ATTEMPTS, attempts)


def _none(node: str, protocol: str) -> Json:
    names = ("auth_attempts", "auth_attempts_failed", "auth_attempts_succeeded")
    return {"node": node, "protocol": protocol, **dict.fromkeys(names, 0)}


async def _attempts(call: Call) -> Answer:
    services, node = call.services, call.parts["node"]
    if node not in services.catalog.view.members() and node != services.node:
        raise not_found()
    rows = (await services.figures.everywhere(ATTEMPTS)).all()
    shown: dict[str, Json] = {}
    for row in rows:
        if row["node"] != node:
            continue
        # gRPC is spoken over HTTP; clients refuse an answer with a protocol that they do not know.
        protocol = "http" if row["protocol"] == "grpc" else row["protocol"]
        found = shown.setdefault(protocol, {"protocol": protocol})
        for name, value in row.items():
            if name not in ("node", "protocol"):
                found[name] = found.get(name, 0) + value
    return Answer(value=list(shown.values()))


async def _sources(call: Call) -> Answer:
    """Not counted by address, as RabbitMQ by default does not."""
    await _attempts(call)
    return Answer(value=[])


async def _login(call: Call) -> Answer:
    """Check a user's password.  No cookie: the client sends the password each time anyway."""
    try:
        text = (await call.read()).decode()
        fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=20))
    except ValueError as error:
        raise bad_request("expected a form with username and password") from error
    if not {"username", "password"} <= fields.keys():
        raise bad_request("expected a form with username and password")
    header = login.basic(fields["username"], fields["password"])
    host = call.caller.address.rpartition(":")[0]
    is_from_afar = login.is_from_afar(call.headers)
    caller = await login.authenticate(
        call.services, header, host, call.caller.address, call.is_tls, is_from_afar
    )
    if not caller.is_management:
        raise not_authorised("Not management user")
    return Answer(value="ok")


async def _auth(_: Call) -> Answer:
    """What a login page asks first; the user is not yet known."""
    return Answer(value={"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})


_NODE = "/api/auth/attempts/{node}"

ROUTES = (
    Route("GET", _NODE, Right.MONITORING, _attempts, "Logins at a member, by protocol"),
    Route("GET", f"{_NODE}/source", Right.MONITORING, _sources, "By address: not counted"),
    Route(
        "POST", "/api/login", Right.ANYONE, _login, "Check a password: form `username`, `password`"
    ),
    Route("GET", "/api/auth", Right.ANYONE, _auth, "How to log in"),
)
