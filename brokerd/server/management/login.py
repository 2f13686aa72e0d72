"""Who calls the management API: the one place that reads the Authorization header.

Passwords and tokens go through the same Authenticator as AMQP's and gRPC's, with its limits and
records.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from brokerd.core import unauthenticated
from brokerd.server.access import auth, login_records
from brokerd.server.access.password_checker import NotChecked
from brokerd.server.management.call import Caller, HttpError

if TYPE_CHECKING:
    from brokerd.server.management.ports import ManagementServices

#: Headers by which a proxy says for whom it asks (RFC 7239, and what was there before).
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
REALM = {"WWW-Authenticate": 'Basic realm="RabbitMQ Management"'}


async def authenticate(
    services: ManagementServices,
    header: str,
    address: str,
    peer: str,
    is_tls: bool,
    is_from_afar: bool,
) -> Caller:
    """Return who calls with this Authorization header; HttpError: 401, or 503 while starting.

    address: of the client; peer: names its socket, for the log and for fairness.
    is_from_afar: see login_records.Client.
    """
    if not services.catalog.view.cluster_id:
        # No users are known yet: a login could only be refused, and for the wrong reason.
        raise HttpError(503, "unavailable", "this member waits for a majority of the members")
    if not header:
        raise HttpError(401, "", None, REALM)
    listener = "https" if is_tls else "http"
    client = login_records.Client(listener, address, peer, is_from_afar)
    authenticator = services.authenticator
    credentials = auth.header_credentials(header)
    if credentials is not None and not authenticator.may_send_password(is_tls, address):
        authenticator.records.refuse(client, credentials.user, login_records.NO_TLS)
        raise _failed(services)
    try:
        verdict = await authenticator.authenticate(credentials, client)
    except NotChecked as error:
        raise HttpError(429, "too_many_requests", str(error), {"Retry-After": "1"}) from error
    if verdict is None:
        raise _failed(services)
    return Caller(verdict, peer, is_tls)


def is_from_afar(headers: Mapping[str, str]) -> bool:
    """Tell whether a request on a loopback address may still be a stranger's.

    headers: looked up by names in lower case.

    A page of another site whose name is made to resolve to 127.0.0.1 (DNS rebinding) is asked for
    by that name, and its visitor's browser takes it for the page's own.  A proxy on this machine
    says for whom it asks.
    """
    if any(name in headers for name in FORWARDED):
        return True
    host = headers.get("host")
    if not host:
        # HTTP/1.0; browsers always name a host.
        return False
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return True
    return name != "localhost" and unauthenticated.parsed_address(name) is None


def _failed(services: ManagementServices) -> HttpError:
    words = "Not_Authorized" if services.profile.management_as_4_3 else "Login failed"
    # RabbitMQ 4.3 does not say how to log in here; browsers ask once more for it.
    return HttpError(401, "not_authorized", words, REALM)


def basic(user: str, password: str) -> str:
    """Return the Authorization header of these credentials."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
