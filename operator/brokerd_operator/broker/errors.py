"""Errors of a broker's administration, in words of the operator.

One of the project's two translation tables: a gRPC status becomes one of these, an operation's
result code becomes an `Outcome`. For the broker room and the engine; nobody else sees gRPC.
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


def translate(error: grpc.aio.AioRpcError, address: str) -> BrokerError:
    """A gRPC error as one of ours."""
    code = error.code()
    details = (error.details() or "").strip()[:_DETAIL_MAX]
    kind = _ERRORS.get(code, BrokerCallFailed)
    return kind(f"{address}: {details or code.name}")
