"""Get: messages taken for good, for a client that waits for them (basic.get with no-ack).

Each is one question to the queue, after the answer to the one before, so that no more is taken than
the response has room for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from brokerd.amqp import errors
from brokerd.cluster.groups.asked import ReplyStatus
from brokerd.core.catalog import names
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.refusals import Refused
from brokerd.core.queue.effects import ConsumerId, times_acquired
from brokerd.rpc.v1 import messages_pb2
from brokerd.server.catalog.catalog_writer import QueueStuck, Unavailable
from brokerd.server.grpc import rpc_properties
from brokerd.server.grpc.publish_channel import Caller
from brokerd.server.grpc.queue_names import readable_queue
from brokerd.server.messages import message_checks
from brokerd.server.queues.gets import Got, message_of
from brokerd.server.queues.stream import ChannelStream
from brokerd.telemetry import client_totals

if TYPE_CHECKING:
    from brokerd.server.grpc.ports import StreamServices

#: Messages and bytes of one response; the last message may go beyond.
MESSAGES_MAX = 1024
BYTES_MAX = 1024 * 1024
#: Time after which no more is asked for, and how long an answer is awaited while messages are in
#: hand, which are lost with the call.  An election ends within it; a majority may take longer.
TAKING_S = 0.5
IN_HAND_S = 5.0


async def get(
    services: StreamServices, caller: Caller, request: messages_pb2.GetRequest
) -> messages_pb2.GetResponse:
    """Take messages; an error is reported only where none has been taken."""
    name = rpc_properties.name_of("queue", request.queue, request.raw_queue)
    uid = services.identity.next_uid()
    queue = readable_queue(services, caller, name, uid)
    stream = services.queue_client.open(uid)
    response = messages_pb2.GetResponse()
    size, count = 0, min(max(request.count, 1), MESSAGES_MAX)
    timeout_s = services.limits.operation_timeout_ms / 1000
    loop = asyncio.get_running_loop()
    until_s = loop.time() + TAKING_S
    while len(response.deliveries) < count and size < BYTES_MAX:
        if response.deliveries:
            timeout_s = IN_HAND_S
            if loop.time() > until_s:
                break
        try:
            got = await _one(services, stream, queue, uid, timeout_s)
        except (errors.ProtocolError, QueueStuck, Unavailable):
            if not response.deliveries:
                raise
            break
        _count(services, caller, queue, got)
        response.messages_left = 0
        if got is None:
            break
        response.messages_left = got.ready_count
        has_counts = queue.type == "quorum"
        made = rpc_properties.head_of(got.run, got.content, has_counts=has_counts)
        response.deliveries.add(body=got.content[2]).MergeFrom(made)
        size += len(got.content[1]) + len(got.content[2])
    return response


async def _one(
    services: StreamServices, stream: ChannelStream, queue: Queue, uid: int, timeout_s: float
) -> Got | None:
    identity = services.identity
    holder = (queue.uid, ConsumerId(identity.node, identity.incarnation, uid, ""))
    answer: asyncio.Future[tuple[ReplyStatus, bytes]] = asyncio.get_running_loop().create_future()

    def answered(status: ReplyStatus, reply: bytes) -> None:
        if not answer.done():
            answer.set_result((status, reply))

    asked = stream.get(holder, True, [], timeout_s, answered)
    try:
        status, reply = await answer
    finally:
        if not answer.done() or answer.cancelled():
            # The caller no longer waits for it.
            asked.withdraw()
    if status is ReplyStatus.REFUSED:
        raise QueueStuck(reply.decode())
    if status is ReplyStatus.LATE:
        resource = names.resource("queue", queue.vhost, queue.name)
        raise Unavailable(f"no leader of {resource} answered within {timeout_s:g} s")
    if status is not ReplyStatus.OK:
        raise errors.NotFound(names.missing("queue", queue.vhost, queue.name))
    got = message_of(services.queues.contents_if_here, queue.uid, reply)
    if isinstance(got, Refused):
        resource = names.resource("queue", queue.vhost, queue.name)
        raise message_checks.machine_refusal(got, resource)
    return got


def _count(services: StreamServices, caller: Caller, queue: Queue, got: Got | None) -> None:
    counters = services.messages.counters
    totals = counters.totals[client_totals.GRPC].of(queue.type)
    if got is None:
        totals.get_empty += 1
        return
    redelivered = times_acquired(got.run) > 0
    totals.got(redelivered, True)
    size = len(got.content[2])
    counters.delivered(caller.vhost, caller.user, 1, size, int(redelivered))
