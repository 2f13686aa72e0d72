"""The one table between the broker's outcomes and gRPC's status codes."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from brokerd.server.broker import Unavailable

_CODES: dict[type[BaseException], grpc.StatusCode] = {
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    ValueError: grpc.StatusCode.INVALID_ARGUMENT,
    KeyError: grpc.StatusCode.NOT_FOUND,
}


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
    """End the call with the status that fits the error."""
    code = _CODES.get(type(error), grpc.StatusCode.INTERNAL)
    await context.abort(code, str(error))
    raise AssertionError("abort does not return")
