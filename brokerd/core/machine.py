"""Meta and Outcome as core's machines use them; the raft room's protocols fit both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


class Meta(Protocol):
    """A command's circumstances, equal on every replica."""

    @property
    def index(self) -> int:
        """Return the log index of the command."""
        ...

    @property
    def term(self) -> int:
        """Return the term of the entry."""
        ...

    @property
    def now_ms(self) -> int:
        """Return the proposing leader's clock."""
        ...


@dataclass(slots=True)
class Outcome:
    """An answer for the proposer of the command, and effects to be realised."""

    reply: bytes = b""
    #: Instances of the classes of `effects`.
    effects: list[Any] = field(default_factory=list)
