"""Errors of the raft room.

Expected outcomes (not the leader, overloaded, a stale message) are values, never exceptions. What
is raised here means that the caller misused the room or that the log is broken: the replica must
stop.
"""

from __future__ import annotations


class RaftError(Exception):
    """Base of everything this room raises."""


class ConfigurationError(RaftError):
    """A bound in RaftConfig makes no sense."""


class CorruptEntryError(RaftError):
    """An entry's data does not decode; the entry must not take effect."""


class BrokenLogError(RaftError):
    """The storage contradicts what it had promised (a gap, a missing entry): the replica must
    stop.
    """

    def __init__(self, reason: str, index: int) -> None:
        super().__init__(f"{reason} (index {index})")
        self.index = index


class MisuseError(RaftError):
    """The driver broke the protocol of this room, for example by acknowledging an unknown write."""
