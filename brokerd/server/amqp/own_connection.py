"""A connection of the member to itself: what a shovel's URI without a host means.

The same machine and sessions as any client's, over a pair of sockets that no client can reach, so
that nothing about AMQP is done twice; only the login differs.  The listener makes them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging

from brokerd.amqp import config as amqp_config
from brokerd.amqp import events
from brokerd.core.catalog.identity import Identity
from brokerd.server.access.admission import OwnAdmission
from brokerd.server.amqp.connection import ClientConnection
from brokerd.server.amqp.ports import ConnectionServices
from brokerd.server.catalog.audit import Author

#: What listings show as the address of both ends.
HERE = "in-process"
IMPERSONATOR = "impersonator"


class OwnConnection(ClientConnection):
    """State: on whose behalf it is.  No client can dial it, so no password is needed."""

    def __init__(
        self,
        services: ConnectionServices[ClientConnection],
        config: amqp_config.ConnectionConfig,
        identity: Identity,
        author: Author | None,
    ) -> None:
        """identity: whose rights it has; the user "": all.

        author: who asked for it by another front door, for one request: the audit log names that
        door, and the log need not say that the connection came and went, nor what was refused: the
        answer to the request says it.
        """
        if not identity.user:
            services = dataclasses.replace(services, admission=OwnAdmission.of(services.admission))
        super().__init__(services, config, tls=False)
        self._for = identity
        self._author = author
        if author is not None:
            self.log_level = self.fault_level = logging.DEBUG

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ClientConnection."""
        super().connection_made(transport)
        self.peer, self.sock = (HERE, self.uid), (HERE, 0)

    @property
    def author(self) -> Author:
        """See ClientConnection."""
        return self._author or super().author

    async def _authenticate(self, event: events.AuthenticationRequested) -> None:
        user = self._for.user
        if user and self._for.is_gone(self._view):
            self.machine.authentication_failed(
                f"ACCESS_REFUSED - there is no user '{user}'", is_readable=True
            )
            return
        self.user, self.identity = user, self._for
        self._connections.logged_in(self)
        self._handle(self.machine.authentication_succeeded())

    def rights_changed(self) -> None:
        """See ClientConnection: those of the member itself do not change."""
        if self._for.user:
            super().rights_changed()

    def _look_up_tags(self) -> None:
        super()._look_up_tags()
        if not self._for.user:
            # R-PUB-3: messages keep the user-id that they were published with.
            self.tags = (IMPERSONATOR,)
