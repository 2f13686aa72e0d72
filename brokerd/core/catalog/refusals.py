"""What AMQP semantics answer instead of doing as asked: values, not exceptions.

Pure; made by `declare.py`, `permissions.py` and the catalog, turned into channel.close or
connection.close by the server, which knows class and method ids.
"""

from __future__ import annotations

from dataclasses import dataclass

ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
COMMAND_INVALID = 503
NOT_ALLOWED = 530
NOT_IMPLEMENTED = 540
INTERNAL_ERROR = 541


@dataclass(slots=True)
class Refused:
    """An AMQP reply code with its text (chapter 13)."""

    code: int
    text: str
    #: True: closes the connection, not just the channel (13.1).
    connection_level: bool = False


def access_refused(text: str) -> Refused:
    """Return a 403."""
    return Refused(ACCESS_REFUSED, text)


def not_found(text: str) -> Refused:
    """Return a 404."""
    return Refused(NOT_FOUND, text)


def locked(text: str) -> Refused:
    """Return a 405."""
    return Refused(RESOURCE_LOCKED, text)


def precondition_failed(text: str) -> Refused:
    """Return a 406."""
    return Refused(PRECONDITION_FAILED, text)
