"""Endpoints that publish and get messages, over AMQP of this member itself, as the caller.

A connection within the process and the member's own client, so that nothing about AMQP is done
twice; RabbitMQ's plugin does the same.  What is got is settled when all of it is here, so that a
caller who goes away early loses nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from brokerd.amqp import errors, methods
from brokerd.amqp.properties import BasicProperties
from brokerd.amqp.spec import REPLY_NAMES
from brokerd.core.catalog.refusals import ACCESS_REFUSED, NOT_FOUND
from brokerd.federation.client import Channel, Connection
from brokerd.federation.errors import ChannelClosed, ClientError
from brokerd.federation.upstream import Address
from brokerd.server.listings import message_rows
from brokerd.server.management.call import (
    Answer,
    Call,
    HttpError,
    Json,
    bad_request,
    not_authorised,
    unavailable,
)
from brokerd.server.management.objects import NULL, exchange_name, text
from brokerd.server.management.routes import Right, Route

#: Messages of one answer; RabbitMQ has no bound.
COUNT_MAX = 10_000
#: Bytes of the bodies in one answer, behind which no further message is got.
ANSWER_BYTES_MAX = 32 * 1024 * 1024
#: RabbitMQ waits as long for a confirm.
CONFIRM_S = 5.0

ACK_MODES = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
ENCODINGS = ("auto", "base64")
_NUMBERS = {"delivery_mode": 255, "priority": 255, "timestamp": 2**64 - 1}


@contextlib.asynccontextmanager
async def open_channel(call: Call) -> AsyncIterator[Channel]:
    """Open a channel of the caller in the path's vhost; HttpError if that is refused."""
    user = call.caller.user
    address = Address("", 0, False, call.vhost, user, "", (("heartbeat", "0"),))
    sock = await call.services.connect_here(call.caller.identity, call.caller.author)
    try:
        connection = await Connection.open(address, call.vhost, "HTTP API", None, sock)
    except ClientError as error:
        raise bad_request(str(error)) from error
    try:
        yield await connection.open_channel()
    finally:
        connection.leave()


# ---- publish ------------------------------------------------------------------------------------


async def _publish(call: Call) -> Answer:
    body = await call.needed("properties", "routing_key", "payload", "payload_encoding")
    properties, payload = _properties(body["properties"]), _payload(body)
    key, exchange = text(body, "routing_key"), exchange_name(call.parts["name"])
    call.check_vhost()
    try:
        header = properties.encode()
    except errors.EncodeError as error:
        raise bad_request(str(error)) from error
    outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    returned: list[methods.BasicReturn] = []

    def decided(_: int, __: bool, is_confirmed: bool) -> None:
        if not outcome.done():
            outcome.set_result(is_confirmed)

    def ended(error: ClientError) -> None:
        if not outcome.done():
            outcome.set_exception(error)

    try:
        async with open_channel(call) as channel:
            channel.on_confirm = decided
            channel.on_return = lambda method, _header, _body: returned.append(method)
            await channel.call(methods.ConfirmSelect())
            channel.on_ended = ended
            channel.publish(exchange, key, header, payload, mandatory=True)
            async with asyncio.timeout(CONFIRM_S):
                is_confirmed = await outcome
    except ChannelClosed as error:
        if error.code == NOT_FOUND and call.as_4_3:
            raise HttpError(404, "not_found", "exchange_not_found") from error
        raise bad_request(f"{error.code} {error}") from error
    except ClientError as error:
        raise bad_request(str(error)) from error
    except TimeoutError as error:
        reason = call.services.blocking_reason() or "a queue has not confirmed it in time"
        raise unavailable(reason) from error
    except errors.EncodeError as error:
        raise bad_request(str(error)) from error
    # A queue that refused it (R-LEN-3) has not got it.
    return Answer(value={"routed": is_confirmed and not returned})


def _payload(body: Json) -> bytes:
    payload, encoding = body["payload"], body["payload_encoding"]
    if not isinstance(payload, str):
        raise bad_request("payload_not_string")
    if encoding == "string":
        return payload.encode()
    if encoding != "base64":
        raise bad_request(["unsupported_encoding", encoding])
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad_request("payload is not base64") from error


def _properties(given: Any) -> BasicProperties:
    """Return properties from JSON; names that AMQP does not know are left out, as there."""
    if given == []:
        given = {}
    if not isinstance(given, dict):
        raise bad_request("properties: must be an object")
    found: Json = {}
    for name, value in given.items():
        if name in _NUMBERS:
            if type(value) is not int or not 0 <= value <= _NUMBERS[name]:
                raise bad_request(["not_int", name])
            found[name] = value
        elif name in message_rows.TEXTS:
            if not isinstance(value, str):
                raise bad_request(["not_string", name])
            found[name] = value
        elif name == "headers" and value != []:
            if not isinstance(value, dict):
                raise bad_request("headers: must be an object")
            if any(item is None for item in value.values()):
                raise bad_request(NULL)
            found[name] = value
    return BasicProperties(**found)


# ---- get ----------------------------------------------------------------------------------------


async def _get(call: Call) -> Answer:
    queue_name = call.parts["name"]
    body = await call.needed("ackmode", "count", "encoding")
    call.check_vhost()
    mode, encoding = body["ackmode"], body["encoding"]
    if mode not in ACK_MODES:
        raise bad_request(f"ackmode: must be one of {', '.join(ACK_MODES)}")
    if encoding not in ENCODINGS:
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    count, truncate = _integer(body, "count"), None
    if "truncate" in body:
        truncate = max(_integer(body, "truncate"), 0)
    # A negative count stands for all, as there.
    wanted = COUNT_MAX if count < 0 else min(count, COUNT_MAX)
    rows: list[Json] = []
    try:
        async with open_channel(call) as channel:
            await _fill(channel, queue_name, wanted, truncate, encoding, rows)
            if rows:
                await _settle(channel, mode)
    except ChannelClosed as error:
        raise _of_channel(call, error) from error
    except ClientError as error:
        raise bad_request(str(error)) from error
    return Answer(value=rows)


def _of_channel(call: Call, error: ChannelClosed) -> HttpError:
    if error.code == ACCESS_REFUSED:
        return not_authorised(str(error))
    if error.code == NOT_FOUND:
        view = call.services.catalog.view
        if view.usable_queue(call.vhost, call.parts["name"]) is not None:
            # It exists and takes nothing: its home member is down.  Other requests get the same.
            return unavailable(str(error).removeprefix(f"{REPLY_NAMES[NOT_FOUND]} - "))
        return HttpError(404, "not_found", "queue_not_found" if call.as_4_3 else str(error))
    return bad_request(str(error))


async def _fill(
    channel: Channel,
    queue: str,
    wanted: int,
    truncate: int | None,
    encoding: str,
    rows: list[Json],
) -> None:
    """Get messages without settling them, until there are enough, none or too many bytes."""
    size = 0
    while len(rows) < wanted and size < ANSWER_BYTES_MAX:
        answer = await channel.call(methods.BasicGet(queue=queue))
        if not isinstance(answer, methods.BasicGetOk):
            break
        header, payload = channel.got
        shown = payload if truncate is None else payload[:truncate]
        size += len(shown)
        rows.append(_row(answer, header, shown, len(payload), encoding))


async def _settle(channel: Channel, mode: str) -> None:
    if mode == "ack_requeue_false":
        channel.cast(methods.BasicAck(delivery_tag=0, multiple=True))
    else:
        is_requeued = mode != "reject_requeue_false"
        channel.cast(methods.BasicNack(delivery_tag=0, multiple=True, requeue=is_requeued))
    # The answer to what comes behind says that it was read.
    await channel.call(methods.BasicQos())


def _row(method: methods.BasicGetOk, header: bytes, shown: bytes, size: int, encoding: str) -> Json:
    payload, used = message_rows.payload(shown, is_base64=encoding == "base64")
    return {
        "payload_bytes": size,
        "redelivered": method.redelivered,
        "exchange": method.exchange,
        "routing_key": method.routing_key,
        "message_count": method.message_count,
        "properties": message_rows.properties(header),
        "payload": payload,
        "payload_encoding": used,
    }


def _integer(body: Json, name: str) -> int:
    """Return a number, also one that is written as text; HttpError: 400."""
    value = body[name]
    if type(value) is int:
        return value
    if isinstance(value, str) and len(value) <= 20:
        with contextlib.suppress(ValueError):
            return int(value)
    raise bad_request(["not_int", name])


ROUTES = (
    Route(
        "POST",
        "/api/exchanges/{vhost}/{name}/publish",
        Right.VHOST,
        _publish,
        "Publish: `properties`, `routing_key`, `payload`, `payload_encoding` "
        "(`string`, `base64`); answers whether it was routed",
    ),
    Route(
        "POST",
        "/api/queues/{vhost}/{name}/get",
        Right.VHOST,
        _get,
        "Get messages: `count`, `ackmode`, `encoding` (`auto`, `base64`), `truncate`",
    ),
)
