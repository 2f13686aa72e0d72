"""Errors of the federation room.

`UpstreamError` means that a definition cannot be used, `ClientError` that an upstream could not be
reached or said no.  Texts never hold credentials: they end in listings and logs (SEC-22).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Characters of an unknown key that a text shows.
KEY_CHARACTERS_MAX = 64


class FederationError(Exception):
    """Base class of the room's errors."""


class UpstreamError(FederationError):
    """An upstream's definition or URI that cannot be used; the text says what is wrong in it."""


class ClientError(FederationError):
    """The AMQP client could not do what was asked."""


class ConnectionLost(ClientError):
    """No connection (any more).  `code` is the reply code of the peer's connection.close, or 0."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class ChannelClosed(ClientError):
    """The peer closed the channel with this reply code."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


def unknown_key(key: str, known: Iterable[str]) -> UpstreamError:
    """Return the error for a key that means nothing; it names the one that may be meant."""
    key, known = key[:KEY_CHARACTERS_MAX], sorted(known)
    meant = difflib.get_close_matches(key, known, 1)
    hint = f"is '{meant[0]}' meant?" if meant else f"known are {', '.join(known)}"
    return UpstreamError(f"unknown key '{key}': {hint}")
