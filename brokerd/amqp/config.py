"""Settings of an `AmqpConnection`, fixed at its birth: its role, its limits, its identity."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from brokerd.amqp import spec
from brokerd.amqp.values import Table


class Role(Enum):
    """Which end of the connection we are."""

    SERVER = "server"
    CLIENT = "client"


@dataclass(slots=True)
class Credentials:
    """The client role's login, sent as PLAIN."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, password=***)"


@dataclass(slots=True)
class ConnectionConfig:
    """Limits and identity of one connection; the defaults are RabbitMQ's (R-CON-8)."""

    #: Proposed in tune; 0 is no limit.
    frame_max: int = 131_072
    #: A smaller frame_max of the peer is refused (R-CON-9, SEC-39).
    frame_min: int = spec.FRAME_MIN_SIZE
    #: Largest frame before tune-ok (R-CON-8, SEC-31).
    initial_frame_max: int = spec.FRAME_MIN_SIZE
    #: Count of channels open at once, not the highest number (R-CH-2); 0 is no limit.
    channel_max: int = 2047
    #: Proposed in tune; the client's answer is what counts (R-CON-10).
    heartbeat_s: int = 60
    #: From accept to open-ok (R-CON-4, SEC-32).
    handshake_timeout_ms: int = 10_000
    #: How long the socket stays open, deaf, after a broken handshake (R-CON-4, R-CON-5).
    silent_close_delay_ms: int = 3_000
    #: R-FRM-8, SEC-43.
    max_message_size: int = 16 * 1024 * 1024
    #: Server: product, version, cluster_name and so on; capabilities are added (R-CON-3).
    server_properties: Table = field(default_factory=dict)
    #: Server: what start offers, separated by spaces.
    mechanisms: str = "AMQPLAIN PLAIN"
    locales: str = "en_US"
    #: Client: who we are and where to.
    credentials: Credentials | None = None
    vhost: str = "/"
    #: Client: capabilities are added.
    client_properties: Table = field(default_factory=dict)
