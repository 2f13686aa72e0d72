"""Errors of a broker's administration, in words of the operator.

One of the project's two translation tables: a gRPC status becomes one of these, an operation's
result code becomes an `Outcome`. For the broker room and the engine; no other room sees gRPC.
"""

from __future__ import annotations

import grpc


class BrokerError(Exception):
    """A call failed. `is_unreachable`: nothing was done, and the broker as a whole is in doubt."""

    is_unreachable = False


class BrokerUnreachable(BrokerError):
    """No answer, or no majority: try again later."""

    is_unreachable = True


class BrokerDenied(BrokerError):
    """The credentials are wrong or lack rights."""


class BrokerCallFailed(BrokerError):
    """The broker answered with an error of another sort."""


_ERRORS: dict[grpc.StatusCode, type[BrokerError]] = {
    grpc.StatusCode.UNAVAILABLE: BrokerUnreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: BrokerUnreachable,
    grpc.StatusCode.CANCELLED: BrokerUnreachable,
    grpc.StatusCode.UNAUTHENTICATED: BrokerDenied,
    grpc.StatusCode.PERMISSION_DENIED: BrokerDenied,
}

#: Messages of gRPC hold addresses and stack traces; a condition holds a sentence.
_DETAIL_MAX = 300


#: What gRPC's own library says of a connection, by the words that it begins with, and in ours.
_CONNECTIONS = (
    ("failed to connect to all addresses", "cannot be reached"),
    ("DNS resolution failed", "cannot be found (DNS)"),
    ("errors resolving", "cannot be found (DNS)"),
    ("Socket closed", "closed the connection"),
    ("Connection reset by peer", "closed the connection"),
    ("recvmsg:", "closed the connection"),
    ("sendmsg:", "closed the connection"),
    ("GOAWAY received", "closed the connection"),
    ("Cancelling all calls", "closed the connection"),
    ("Ping timeout", "does not answer"),
    ("keepalive watchdog timeout", "does not answer"),
    ("Deadline Exceeded", "did not answer in time"),
)
#: Why TLS failed stands in the middle of a long text.
_HANDSHAKE = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "handshake", "Ssl handshake")


def _in_words(details: str) -> str:
    """A sentence for what gRPC's library says of a connection; other details as they are."""
    if any(word in details for word in _HANDSHAKE):
        return "no TLS connection: is this its gRPC port, and does the authority fit?"
    for start, words in _CONNECTIONS:
        if details.startswith(start):
            return words
    return details


def translate(error: grpc.aio.AioRpcError, address: str) -> BrokerError:
    """A gRPC error as one of ours."""
    code = error.code()
    details = _in_words((error.details() or "").strip())[:_DETAIL_MAX]
    kind = _ERRORS.get(code, BrokerCallFailed)
    return kind(f"{address}: {details or code.name.lower().replace('_', ' ')}")
