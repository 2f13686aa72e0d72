"""The phases of a connection's life, both roles; handshake.py has the way from one to the next.

For the modules of this room that a connection is made of.
"""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """Where a connection is in its life."""

    # Server, in order.
    AWAIT_HEADER = "await_header"
    AWAIT_START_OK = "await_start_ok"
    AWAIT_SECURE_OK = "await_secure_ok"
    #: The server decides about the login; nothing is read.
    AUTHENTICATING = "authenticating"
    AWAIT_TUNE_OK = "await_tune_ok"
    AWAIT_OPEN = "await_open"
    #: The server decides about the vhost; nothing is read.
    OPENING = "opening"
    # Client, in order.
    AWAIT_START = "await_start"
    AWAIT_TUNE = "await_tune"
    AWAIT_OPEN_OK = "await_open_ok"
    # Both.
    OPEN = "open"
    #: connection.close went out (R-CON-14).
    CLOSING = "closing"
    #: connection.close came in; close-ok is to be sent.
    PEER_CLOSING = "peer_closing"
    #: Deaf and mute until the delay is over (R-CON-4, R-CON-5, R-CON-6).
    SILENT = "silent"
    CLOSED = "closed"

    # Enum's own is a function in Python, and the sets below are asked for each read and each frame.
    __hash__ = object.__hash__


#: The peer is not known yet: it gets no explanations (R-CON-4).
UNAUTHENTICATED = frozenset(
    {Phase.AWAIT_HEADER, Phase.AWAIT_START_OK, Phase.AWAIT_SECURE_OK, Phase.AUTHENTICATING}
)
#: Nothing the peer sends matters any more.
DEAF = frozenset({Phase.PEER_CLOSING, Phase.SILENT, Phase.CLOSED})
#: The machine waits for its driver's decision and keeps what arrives.
UNDECIDED = frozenset({Phase.AUTHENTICATING, Phase.OPENING})
