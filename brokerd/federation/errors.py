"""Errors of the federation room.

`UpstreamError` means that a definition cannot be used, `ClientError` that an upstream could not be
reached or said no.  Texts never hold credentials: they end in listings and logs (SEC-22).
"""

from __future__ import annotations


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
