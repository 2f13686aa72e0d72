"""The replicated machine as the raft room sees it (owned here, implemented in core)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(slots=True)
class Meta:
    """What the machine may know about a command's circumstances; equal on every replica."""

    index: int
    term: int
    #: The proposing leader's clock, stamped into the entry: the machine itself reads no clock.
    now_ms: int


class Outcome(Protocol):
    """What applying a command brought: an answer for the caller, and effects to be realised.

    A protocol, so that core needs nothing of this room (it has a dataclass of its own).
    """

    @property
    def reply(self) -> bytes:
        """Return the answer."""
        ...

    @property
    def effects(self) -> list[Any]:
        """Return data that is realised by the leader only, unless the machine says otherwise."""
        ...


class Machine(Protocol):
    """A deterministic state machine: same commands, same state, same outcomes."""

    #: True: every replica realises the effects (the catalog); False: only the leader.
    realise_everywhere: bool

    @property
    def may_lose_last(self) -> bool:
        """Whether a member that is alone in its group may answer lazy commands before its disk
        holds them: the last of them are lost with its process.
        """
        ...

    def apply(self, meta: Meta, command: bytes) -> Outcome:
        """Apply one committed command.  Total: expected failures are replies, never exceptions."""
        ...

    def look(self, command: bytes, now_ms: int) -> bytes | None:
        """Return the answer to a command that would change nothing at this time, None if it would,
        or may.
        """
        ...

    def became_leader(self, meta: Meta) -> list[Any]:
        """Return the effects that a new leader must realise (again)."""
        ...

    def snapshot(self) -> bytes:
        """Return the state without message bodies."""
        ...

    def restore(self, data: bytes) -> None:
        """Replace the state by a snapshot's."""
        ...

    def live_indexes(self) -> Sequence[tuple[int, int]]:
        """Return ascending, disjoint [low, high) ranges of log indexes whose entries the state
        refers to.
        """
        ...

    def factory(self) -> tuple[Callable[[], Machine], bytes] | None:
        """Return what makes another one that `restore` is to fill, best the same for all of a kind,
        and an summary, which is what walks over all groups read; None: while so much is in it this
        one is to stay.
        """
        ...

    def next_deadline_ms(self) -> int | None:
        """Return when the leader should propose a tick command, or None."""
        ...

    def tick_command(self) -> bytes:
        """Return the command to propose at that deadline."""
        ...

    def overview(self) -> dict[str, Any]:
        """Return counts and settings for listings and telemetry."""
        ...

    def check_invariants(self) -> None:
        """Assert everything that must hold; called by tests and by the simulator."""
        ...
