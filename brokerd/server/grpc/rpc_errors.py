"""The one table between the broker's outcomes and gRPC's status codes."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from brokerd.amqp import errors
from brokerd.server.catalog.catalog_writer import QueueStuck, Unavailable

#: SEC-53: a status text is for people; what a client sent may be quoted in it, but not at length.
TEXT_CHARACTERS_MAX = 1024

_CODES: dict[type[BaseException], grpc.StatusCode] = {
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    QueueStuck: grpc.StatusCode.UNAVAILABLE,
    ValueError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.EncodeError: grpc.StatusCode.INVALID_ARGUMENT,
}
#: AMQP reply codes, so that both ports refuse for the same reasons.
_AMQP_CODES: dict[int, grpc.StatusCode] = {
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.FAILED_PRECONDITION,
    406: grpc.StatusCode.INVALID_ARGUMENT,
    502: grpc.StatusCode.INVALID_ARGUMENT,
    503: grpc.StatusCode.INVALID_ARGUMENT,
    530: grpc.StatusCode.PERMISSION_DENIED,
    540: grpc.StatusCode.UNIMPLEMENTED,
}


class CallRefused(Exception):
    """A call ends with this status; the text says what was wrong."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """Return the status and the text of a call that failed with this error."""
    text = str(error)[:TEXT_CHARACTERS_MAX]
    if isinstance(error, CallRefused):
        return error.code, text
    if isinstance(error, errors.ProtocolError):
        code = _AMQP_CODES.get(error.code, grpc.StatusCode.INTERNAL)
        return code, error.text[:TEXT_CHARACTERS_MAX]
    return _CODES.get(type(error), grpc.StatusCode.INTERNAL), text


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
    """End the call with the status that fits the error."""
    await context.abort(*status_of(error))
    raise AssertionError("abort does not return")
