"""A stored message as filters and triage see it: decoded where a question is asked, once.

Implements `core/filters/ports.py`.  For whatever walks over the messages of a queue.
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.amqp import errors as amqp_errors
from brokerd.amqp.properties import BasicProperties
from brokerd.core import annotations as message_annotations
from brokerd.core.annotations import Annotations, Death
from brokerd.core.filters.fields import BODY_BYTES_MAX
from brokerd.core.message import Content


class StoredMessage:
    """One message of a queue.  What cannot be decoded is as if it were not there."""

    __slots__ = (
        "_annotations",
        "_content",
        "_properties",
        "age_ms",
        "delivery_count",
        "number",
        "redelivered",
        "state",
    )

    def __init__(
        self,
        content: Content,
        number: int,
        *,
        state: str = "ready",
        delivery_count: int = 0,
        redelivered: bool = False,
        age_ms: int | None = None,
    ) -> None:
        self._content = content
        self._annotations: Annotations | None = None
        self._properties: BasicProperties | None = None
        self.number = number
        self.state = state
        self.delivery_count = delivery_count
        self.redelivered = redelivered
        self.age_ms = age_ms

    @property
    def exchange(self) -> str:
        return self._content[0][0]

    @property
    def routing_key(self) -> str:
        return self._content[0][1]

    @property
    def size(self) -> int:
        return len(self._content[2])

    @property
    def content(self) -> Content:
        """Return the message as it is stored."""
        return self._content

    @property
    def properties(self) -> BasicProperties:
        found = self._properties
        if found is None:
            try:
                found = BasicProperties.decode(self._content[1])
            except amqp_errors.AmqpError:
                found = BasicProperties()
            self._properties = found
        return found

    @property
    def deaths(self) -> Sequence[Death]:
        return self._remembered().deaths

    @property
    def first_death(self) -> tuple[str, str, str] | None:
        first = self._remembered().first_death
        # A history that was believed (R-DLX-24) has an empty one.
        return first if first is not None and any(first) else None

    @property
    def body(self) -> str | None:
        raw = self._content[2]
        if len(raw) > BODY_BYTES_MAX:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return None

    def _remembered(self) -> Annotations:
        found = self._annotations
        if found is None:
            try:
                found = message_annotations.decode(self._content[3])
            except (ValueError, TypeError):
                found = Annotations()
            self._annotations = found
        return found
