"""The door of the management API: HTTP in, a handler's answer out.

In order: path and method, login, right, then the handler, which asks for the body itself; of a
caller who is not let in no body is read.  http_server.py listens, bounds what strangers hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from aiohttp import hdrs, web

from brokerd.config import LimitConfig
from brokerd.core.catalog.identity import Identity
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.http_server import CONNECTION, HttpLimits
from brokerd.server.management import encoding, login
from brokerd.server.management.call import (
    Answer,
    Call,
    Caller,
    HttpError,
    not_authorised,
    not_found,
)
from brokerd.server.management.routes import Found, Right, Route, Table

if TYPE_CHECKING:
    from brokerd.server.management.ports import ManagementServices

log = logging.getLogger(__name__)

#: Of the query's parameters.
PARAMETERS_MAX = 100
#: A browser shows nothing of ours in a frame and runs no script that is not ours.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "Vary": "Authorization, Origin",
}
#: Answers up to this size are written at once.
WRITE_BYTES = 256 * 1024
#: Two years (RFC 6797); only over TLS, where it means something.
HSTS = {"Strict-Transport-Security": "max-age=63072000"}


def listener_limits(limits: LimitConfig) -> HttpLimits:
    """Return what strangers may make the listener hold."""
    return HttpLimits(
        connections_max=limits.management_connections,
        connections_per_address_max=limits.management_connections_per_address,
        has_bodies=True,
    )


def make_app(services: ManagementServices, table: Table) -> web.Application:
    """Return the application: one handler for all, since routes.py knows the paths."""
    app = web.Application()
    door = Door(services, table)
    app.router.add_route("*", "/{path:.*}", door.handle, expect_handler=_no_hurry)
    return app


async def _no_hurry(_: web.Request) -> None:
    """`Expect: 100-continue` is answered when somebody wants the body."""


class Door:
    """State: none of its own."""

    def __init__(self, services: ManagementServices, table: Table) -> None:
        self._services = services
        self._table = table

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        raw_path, _, query = request.raw_path.partition("?")
        found = self._table.find(raw_path)
        try:
            if found is None:
                raise not_found()
            answer = await self._answer(request, found, query)
        except HttpError as error:
            answer = _of_error(error)
        except Unavailable as error:
            answer = _of_error(HttpError(503, "unavailable", str(error)))
        # RabbitMQ 4.3 has it with every answer.
        if found is not None and self._services.profile.management_as_4_3:
            answer.headers["Allow"] = found.allow
        return await _response(request, answer)

    async def _answer(self, request: web.Request, found: Found, query: str) -> Answer:
        if request.method == hdrs.METH_OPTIONS:
            return Answer(200, text="", headers={"Allow": found.allow})
        method = hdrs.METH_GET if request.method == hdrs.METH_HEAD else request.method
        route = found.methods.get(method)
        if route is None:
            return Answer(405, text="", headers={"Allow": found.allow})
        if method != hdrs.METH_GET:
            check_origin(request.headers)
        caller = await self._caller(request, route)
        call = Call(
            services=self._services,
            caller=caller,
            method=method,
            parts=found.parts,
            query=_parameters(query),
            headers={name.lower(): value for name, value in request.headers.items()},
            read=lambda: self._read(request),
            is_tls=request.secure,
            is_gone=lambda: request.transport is None or request.transport.is_closing(),
        )
        check_right(call, route.right)
        return await route.handler(call)

    async def _caller(self, request: web.Request, route: Route) -> Caller:
        connection = request.get(CONNECTION)
        peer = None if connection is None else connection.peer
        host, port = peer or ("0.0.0.0", 0)
        name = f"{host}:{port}"
        if route.right is Right.ANYONE:
            return Caller(Identity(""), name, request.secure)
        header = request.headers.get(hdrs.AUTHORIZATION, "")
        return await login.authenticate(
            self._services, header, host, name, request.secure, login.is_from_afar(request.headers)
        )

    async def _read(self, request: web.Request) -> bytes:
        """Return the body of a caller who may send one, as far as it is not too large."""
        limit = self._services.config.limits.management_body_bytes
        if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            raise HttpError(415, "unsupported_media_type", "send the body as it is, not packed")
        if (request.content_length or 0) > limit:
            raise _too_large(limit)
        connection = request.get(CONNECTION)
        if connection is not None:
            # Chunks of a body bring their own lengths.
            connection.allow(2 * limit)
        if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
            assert request.transport is not None
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        parts, size = [], 0
        async for part in request.content.iter_any():
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
        return b"".join(parts)


def check_origin(headers: Mapping[str, str]) -> None:
    """Raise a 403 if a page of another site has its visitor's browser send this change.

    Browsers remember Basic credentials and send them along, with a form of any page.  They say from
    where a request comes (Fetch Metadata; Origin, RFC 6454), and other clients send neither.
    """
    site = headers.get("Sec-Fetch-Site")
    origin = headers.get(hdrs.ORIGIN)
    if site is not None:
        is_ours = site in ("same-origin", "none")
    else:
        is_ours = origin is None or _place(origin) == headers.get(hdrs.HOST)
    if not is_ours:
        raise HttpError(403, "forbidden", "changes that another site's page asks for are not made")


def _place(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def check_right(call: Call, right: Right) -> None:
    """Raise the 401 of RabbitMQ, in its words, unless the caller has the right."""
    caller = call.caller
    if right is Right.ANYONE:
        return
    if not caller.is_management:
        raise not_authorised("Not management user")
    if right is Right.MONITORING and not caller.is_monitor:
        raise not_authorised("Not monitor user")
    if right is Right.ADMINISTRATOR and not caller.is_administrator:
        raise not_authorised("Not administrator user")
    if right is Right.POLICYMAKER and not caller.is_policymaker:
        raise not_authorised("User not authorised to access object")
    # What is not there is the handler's 404.
    if "vhost" not in call.parts or call.vhost not in call.services.catalog.view.vhosts:
        return
    if right is Right.VHOST_VISIBLE:
        may = call.may_see(call.vhost)
    elif right in (Right.VHOST, Right.POLICYMAKER):
        may = call.may_enter(call.vhost)
    else:
        may = True
    if not may and call.services.profile.management_as_4_3:
        raise HttpError(404, "not_found", "Not Found")
    if not may:
        what = "object" if right is Right.POLICYMAKER else "virtual host"
        raise not_authorised(f"User not authorised to access {what}")


def _parameters(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
    except ValueError as error:
        raise HttpError(400, "bad_request", str(error)) from error
    return dict(pairs)


def _too_large(limit: int) -> HttpError:
    reason = f"the body is larger than {limit} bytes (limits.management_body_bytes)"
    return HttpError(413, "payload_too_large", reason)


def _of_error(error: HttpError) -> Answer:
    if error.reason is None:
        return Answer(error.status, text="", headers=error.headers)
    value = {"error": error.error, "reason": error.reason}
    return Answer(error.status, value, error.headers)


async def _response(request: web.Request, answer: Answer) -> web.StreamResponse:
    headers = SECURITY_HEADERS | (HSTS if request.secure else {}) | answer.headers
    if answer.status == 204 or not answer.has_body:
        return web.Response(status=answer.status, headers=headers)
    if answer.text is not None:
        if answer.text:
            headers["Content-Type"] = answer.content_type
        return web.Response(status=answer.status, body=answer.text.encode(), headers=headers)
    headers["Content-Type"] = "application/json"
    parts = await encoding.parts(answer.value) if answer.raw is None else answer.raw
    size = sum(map(len, parts))
    if size <= WRITE_BYTES or request.method == hdrs.METH_HEAD:
        return web.Response(status=answer.status, body=b"".join(parts), headers=headers)
    return await _written(request, web.StreamResponse(status=answer.status, headers=headers), parts)


async def _written(
    request: web.Request, response: web.StreamResponse, parts: list[bytes]
) -> web.StreamResponse:
    """Write a long answer as the client takes it: 13 MB at once hold the loop for 30 ms."""
    response.content_length = sum(map(len, parts))
    # A client that leaves in the middle of it needs no more.
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            # A client that takes all at once is no reason to keep the others waiting.
            await asyncio.sleep(0)
        await response.write_eof()
    return response
