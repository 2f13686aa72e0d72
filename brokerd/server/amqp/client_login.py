"""The login of one AMQP connection: which mechanisms it is offered, and what its answer comes to.

server/access/authentication.py decides who may log in; amqp/handshake.py answers a client that is
refused.  Used by connection.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

from brokerd.amqp import errors as amqp_errors
from brokerd.amqp import sasl
from brokerd.amqp.config import ConnectionConfig
from brokerd.amqp.events import AuthenticationRequested
from brokerd.config import AuthConfig
from brokerd.core.catalog.identity import Identity
from brokerd.server.access import auth, certificate_login, login_records
from brokerd.server.access.authentication import Authenticator
from brokerd.server.access.password_checker import NotChecked


class ClientLogin:
    """State: the name in the client's certificate; None: it has none."""

    def __init__(self, authenticator: Authenticator, settings: AuthConfig, is_tls: bool) -> None:
        self._authenticator = authenticator
        self._settings = settings
        self._is_tls = is_tls
        self._certificate_user: str | None = None

    def offer(self, config: ConnectionConfig, transport: asyncio.Transport) -> ConnectionConfig:
        """Return the config with the mechanisms to offer; a client with a verified certificate may
        log in by it (SEC-6), and one without credentials where the configuration has a user for it.
        """
        mechanisms = config.mechanisms
        if self._is_tls:
            subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
            login_from = self._settings.certificate_login_from
            self._certificate_user = certificate_login.user_of(subject, login_from)
            if self._certificate_user is not None:
                mechanisms = f"EXTERNAL {mechanisms}"
        if self._settings.anonymous_login_user:
            # Last: a client that takes the first that it can is to use what credentials it has.
            mechanisms = f"{mechanisms} ANONYMOUS"
        if mechanisms == config.mechanisms:
            return config
        return dataclasses.replace(config, mechanisms=mechanisms)

    async def verdict(
        self, event: AuthenticationRequested, address: str, name: str
    ) -> tuple[Identity | None, bool]:
        """Return who it is, None for a refusal; and whether the client's answer could be read.

        address, name: the client's, and the connection's for the log.
        """
        authenticator = self._authenticator
        client = self._client(address, name)
        if event.mechanism == "EXTERNAL":
            return authenticator.authenticate_name(self._certificate_user, client), True
        if event.mechanism == "ANONYMOUS":
            # What it sends is a trace for people (RFC 4505): nothing to judge.
            return authenticator.authenticate_name(
                self._settings.anonymous_login_user, client
            ), True
        credentials = _credentials(event.mechanism, event.response)
        found: Identity | None = None
        if authenticator.may_send_password(self._is_tls, address):
            # To AMQP, a password that could not be checked is one that is refused.
            with contextlib.suppress(NotChecked):
                found = await authenticator.authenticate(credentials, client)
        else:
            user = "?" if credentials is None else credentials.user
            authenticator.records.refuse(client, user, login_records.NO_TLS)
        return found, credentials is not None

    async def renewed(
        self, identity: Identity, secret: bytes, address: str, name: str
    ) -> Identity | None:
        """Return who it is by connection.update-secret; None for a refusal (R-CON-13)."""
        return await self._authenticator.renew(identity, secret, self._client(address, name))

    def _client(self, address: str, name: str) -> login_records.Client:
        return login_records.Client("amqps" if self._is_tls else "amqp", address, name)


def _credentials(mechanism: str, response: bytes) -> auth.Credentials | None:
    try:
        parse = sasl.parse_plain if mechanism == "PLAIN" else sasl.parse_amqplain
        return auth.credentials(*parse(response))
    except amqp_errors.AmqpError:
        return None
