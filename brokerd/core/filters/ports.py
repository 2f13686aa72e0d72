"""What a filter reads of a message: the owner of the messages provides it.

Each part is asked for only where the filter names it, so that a view decodes nothing in advance:
`properties`, `deaths`, `first_death` and `body` are meant to be computed when they are read, and
kept.  `Filter.needs_head` and `Filter.needs_body` say beforehand what will be asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from brokerd.core.annotations import Death


class Properties(Protocol):
    """The properties of AMQP; None where the message has none.  `amqp.BasicProperties` is one."""

    @property
    def content_type(self) -> str | None: ...
    @property
    def content_encoding(self) -> str | None: ...
    @property
    def headers(self) -> Mapping[str, object] | None: ...
    @property
    def delivery_mode(self) -> int | None: ...
    @property
    def priority(self) -> int | None: ...
    @property
    def correlation_id(self) -> str | None: ...
    @property
    def reply_to(self) -> str | None: ...
    @property
    def expiration(self) -> str | None: ...
    @property
    def message_id(self) -> str | None: ...
    @property
    def timestamp(self) -> int | None: ...
    @property
    def type(self) -> str | None: ...
    @property
    def user_id(self) -> str | None: ...
    @property
    def app_id(self) -> str | None: ...
    @property
    def cluster_id(self) -> str | None: ...


class MessageView(Protocol):
    """One message of a queue."""

    # What the queue knows without the message (`needs_head` is about all that follows these).

    @property
    def number(self) -> int:
        """Its number in the queue."""

    @property
    def state(self) -> str:
        """`ready`, `unacked` or `delayed`."""

    @property
    def delivery_count(self) -> int:
        """How many deliveries of it have failed."""

    @property
    def redelivered(self) -> bool:
        """Whether its next delivery has the flag `redelivered`."""

    @property
    def age_ms(self) -> int | None:
        """Milliseconds since the queue took it; None where that is not known."""

    # What stands in the message.

    @property
    def exchange(self) -> str:
        """As it was published to this queue."""

    @property
    def routing_key(self) -> str:
        """As it was published to this queue."""

    @property
    def size(self) -> int:
        """Bytes of its body."""

    @property
    def properties(self) -> Properties:
        """Its properties; without any, where they cannot be read."""

    @property
    def deaths(self) -> Sequence[Death]:
        """What the broker recorded (`Annotations.deaths`), newest first."""

    @property
    def first_death(self) -> tuple[str, str, str] | None:
        """Reason, queue and exchange of the first (`Annotations.first_death`)."""

    @property
    def body(self) -> str | None:
        """Its body as text; None where that is longer than `BODY_BYTES_MAX` or is not UTF-8."""
