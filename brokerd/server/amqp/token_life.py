"""The life of a token behind an AMQP connection: its end, and connection.update-secret.

As in RabbitMQ 4 the connection is closed with its token (320, credential expired; 3.x refuses each
request instead, and goes on delivering), unless a new one of the same user has come before.  Used
by connection.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from brokerd.amqp import events, methods
from brokerd.server.amqp.channel_connection import ChannelConnection
from brokerd.server.amqp.channel_publishes import ChannelPublishes

if TYPE_CHECKING:
    from brokerd.server.amqp.client_login import ClientLogin

log = logging.getLogger(__name__)

REFUSED = "New secret was refused by one of the backends"


class TokenLife:
    """State: whether an update-secret is being looked at; the token's is the connection's."""

    def __init__(
        self,
        connection: ChannelConnection,
        login: ClientLogin,
        sessions: Mapping[int, ChannelPublishes],
    ) -> None:
        """sessions: the connection's, by channel."""
        self._connection = connection
        self._sessions = sessions
        self._login = login
        self._is_renewing = False

    def left_ms(self, clock_ms: int) -> int | None:
        """Return for how long the token is good, by the wall clock; None: nothing to watch."""
        connection = self._connection
        expires_ms = connection.identity.expires_ms
        if expires_ms is None or connection.machine.is_closing:
            return None
        return max(0, expires_ms - clock_ms)

    def end_if_over(self, clock_ms: int) -> None:
        """Close the connection if its token has expired."""
        if self.left_ms(clock_ms) == 0:
            self._connection.close(320, "credential expired")

    def secret_updated(self, event: events.SecretUpdated) -> None:
        """Take connection.update-secret (R-CON-13)."""
        connection = self._connection
        if not connection.identity.is_by_token:
            # Users of our own database have no secret that expires, so RabbitMQ's internal backend
            # takes any (amqplib's suite sends one that is no password); it proves nothing.
            if connection.identity.is_gone(connection.access.view):
                connection.close(530, REFUSED)
                return
            # Running consumers have been looked at when the rights changed (revocation.py).
            connection.machine.send(0, methods.ConnectionUpdateSecretOk())
        elif self._is_renewing:
            # Who does not wait for the answer must not pile up work.
            connection.close(530, "connection.update-secret before the answer to the last one")
        else:
            self._is_renewing = True
            connection.spawn(self._renew(event.new_secret))

    async def _renew(self, secret: bytes) -> None:
        """Go on with the rights and the end of a new token."""
        connection = self._connection
        found = await self._login.renewed(
            connection.identity, secret, connection.peer[0], connection.name
        )
        self._is_renewing = False
        if not connection.is_open:
            return
        if found is None:
            connection.close(530, REFUSED)
            return
        connection.become(found)
        for session in self._sessions.values():
            # What was allowed by the old one is asked for again.
            for target in session.targets.values():
                # A transaction may hold it, too.
                target.revision = 0
            session.targets.clear()
        log.info("renewed token of AMQP connection %s user=%s", connection.name, connection.user)
        connection.machine.send(0, methods.ConnectionUpdateSecretOk())
        connection.rights_changed()
        connection.watch()
