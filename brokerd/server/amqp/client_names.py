"""What an AMQP client says of itself, as certificates of death have it (ADR 88)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.core.queue import certificates
from brokerd.core.queue.certificates import Client

if TYPE_CHECKING:
    from brokerd.server.amqp.channel_connection import ChannelConnection
    from brokerd.server.amqp.ports import ChannelServices


def client_of(services: ChannelServices, connection: ChannelConnection) -> Client | None:
    """Return who is behind a connection; None: the profile says nothing about it."""
    if not services.profile.dlx_emit_last_death_consumer:
        return None
    given = connection.machine.client_properties
    name, product, version = [
        value if isinstance(value := given.get(field), str) else ""
        for field in ("connection_name", "product", "version")
    ]
    return certificates.client(name or connection.name, product, version)
