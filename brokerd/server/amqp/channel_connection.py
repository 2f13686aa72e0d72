"""One AMQP connection as its channels see it: who the client is, its machine, and when is written.

The base of connection.py's `ClientConnection`, so that sessions, throttle and token stand below the
connection that makes them.  A class and no protocol: each delivery looks at it, and compiled code
finds its way in a class without asking (ADR 47).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from brokerd.amqp import errors as amqp_errors
from brokerd.amqp.connection import AmqpConnection
from brokerd.core.catalog.identity import Identity
from brokerd.core.catalog.permissions import Access
from brokerd.server.amqp.flow import ByteBudget, ReadGate
from brokerd.server.catalog.audit import Author


class ChannelConnection(ABC):
    """State: the machine, what is known of the client, and what keeps it from reading or writing.

    Invariant: `write_paused_ms` says since when the socket takes nothing, None while it does.

    In one piece: a channel asks its connection for each of these, some of them for each delivery.
    """

    def __init__(
        self,
        machine: AmqpConnection,
        access: Access,
        uid: int,
        gate: ReadGate,
        unconfirmed_bytes: int,
        call_after_flush: Callable[[Callable[[], None]], None],
    ) -> None:
        self.machine = machine
        self.user = self.vhost = ""
        self.tags: tuple[str, ...] = ()
        self.identity = Identity("")
        self.access = access
        self.peer = self.sock = ("?", 0)
        self.uid = uid
        self.is_open = False
        #: An exclusive queue was asked for: the catalog is notified when this connection ends.
        self.has_exclusive = False
        self.gate = gate
        #: Published bytes of all channels whose queues have not answered.
        self.unconfirmed = ByteBudget(gate, "unconfirmed", unconfirmed_bytes)
        self.call_after_flush = call_after_flush
        self.write_paused_ms: int | None = None
        #: Level of the lines that say that a channel was closed for a mistake of the client.
        self.fault_level = logging.ERROR
        #: How often the socket has been handed what was to be sent.
        self.flush_count = 0

    @property
    def name(self) -> str:
        """Return RabbitMQ's form of a connection name."""
        return f"{self.peer[0]}:{self.peer[1]} -> {self.sock[0]}:{self.sock[1]}"

    @property
    @abstractmethod
    def author(self) -> Author:
        """Return on whose behalf changes are made."""

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Tell whether nothing can be sent any more."""

    @property
    @abstractmethod
    def untaken_bytes(self) -> int:
        """Return what was written and the socket has not taken."""

    # ---- output and time --------------------------------------------------------------------

    @abstractmethod
    def flush_soon(self) -> None:
        """Write when all groups have said what they have: many deliveries, one write."""

    @abstractmethod
    def flush_now(self) -> None:
        """Write what the machine wants to send."""

    @abstractmethod
    def watch(self) -> None:
        """See to it that deadlines are looked at."""

    @abstractmethod
    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a slow operation beside the connection; it ends with the connection."""

    # ---- channels ---------------------------------------------------------------------------

    @abstractmethod
    def open_channel(self, channel: int) -> None:
        """Begin a channel that the client has opened."""

    @abstractmethod
    def channel_closed(self, channel: int) -> None:
        """A session has done all that came before channel.close."""

    @abstractmethod
    def channel_failed(self, channel: int) -> None:
        """A session has closed its channel for an error."""

    @abstractmethod
    def channel_ended(self, channel: int) -> None:
        """A channel is gone, for whatever reason."""

    @abstractmethod
    def session_idle(self) -> None:
        """A session has done what it had."""

    # ---- the client's rights, and the end ---------------------------------------------------

    @abstractmethod
    def become(self, identity: Identity) -> None:
        """Go on as this user, with these rights."""

    @abstractmethod
    def rights_changed(self) -> None:
        """Rights of the user are others now."""

    @abstractmethod
    def publishes_resumed(self) -> None:
        """The alarm that held the client's publishes is over."""

    @abstractmethod
    def close(self, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        """Close from our side, with the reason for the client and the log."""

    @abstractmethod
    def fail(self, error: amqp_errors.HardError) -> None:
        """Close for a connection error that a session found."""

    @abstractmethod
    def broken(self, error: BaseException) -> None:
        """A defect of ours: this connection ends, and the log says why."""
