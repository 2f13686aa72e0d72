"""What publishing calls share: rights and routes that were looked up, and what holds a client back.

A Publish call is one such channel (publish_stream.py), and so are all PublishBatch calls of a user
on a connection together (batch_publisher.py).  The same checks, router, publisher and confirms as
an AMQP channel in confirm mode (amqp/session.py).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import grpc

from brokerd.amqp import methods
from brokerd.core.alarms import resources_in
from brokerd.core.catalog.router import RouteResult
from brokerd.core.confirms import SequenceConfirms
from brokerd.core.message import Content
from brokerd.rpc.v1 import messages_pb2
from brokerd.server.grpc import rpc_errors, rpc_properties
from brokerd.server.grpc.publication_reader import PUBLICATIONS_MAX, Key
from brokerd.server.messages.pipeline import Pipeline, Target
from brokerd.telemetry import client_totals

if TYPE_CHECKING:
    from brokerd.core.catalog.identity import Identity
    from brokerd.core.catalog.permissions import Access
    from brokerd.server.grpc.ports import StreamServices

#: Publications that may be unconfirmed before reading stops.
UNCONFIRMED_MAX = 65_536
#: Different (exchange, routing key, mandatory) a channel remembers.
TARGETS_MAX = 1024
#: How often a call that an alarm has stopped looks whether it is over.
ALARM_POLL_S = 0.1


class Caller:
    """What the checks of a publish ask of a connection, and what listings show of one."""

    __slots__ = ("access", "identity", "name", "reads", "tags", "user", "vhost")

    def __init__(self, identity: Identity, access: Access, name: str) -> None:
        """access: its rights in the vhost; name: as logs and listings have it."""
        self.identity = identity
        self.vhost = access.vhost
        self.user = identity.user
        self.name = name
        self.tags = tuple(sorted(identity.tags))
        self.access = access
        #: The queue that a Consume call reads, once it does.
        self.reads: str | None = None


async def first_of(*parts: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Wait until a part of a call has ended, and fail as it has: a client that does not learn
    of a defect waits for its deadline.
    """
    done, _ = await asyncio.wait(parts, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for part in done:
        part.result()


def does_not_rise(sequence: int, expected: int) -> rpc_errors.CallRefused:
    """Return what refuses a client's sequence."""
    return rpc_errors.CallRefused(
        grpc.StatusCode.INVALID_ARGUMENT,
        f"sequence {sequence}: sequences must rise, {expected} or more was expected "
        "(the first one is at least 1)",
    )


class PublishChannel(ABC):
    """State: what is published and has no outcome; targets that were looked up, good for
    `_revision` of the topology; what keeps the client from publishing more.

    Invariant: every number that was taken is awaited, due, or has been answered.

    In one piece: each publication touches nearly all of it.
    """

    def __init__(self, services: StreamServices, caller: Caller) -> None:
        self._services = services
        self._topology = services.topology
        self._messages = services.messages
        self._counters = services.messages.counters
        self._caller = caller
        self._confirms = SequenceConfirms()
        self._totals = self._counters.totals[client_totals.GRPC]
        self._clock = self._counters.confirm_clock(caller.vhost, caller.user, self._totals)
        self._returned: list[messages_pb2.Returned] = []
        #: Bytes on their way to queues.
        self._bytes = 0
        #: Queues with too much on its way.
        self._held: set[str] = set()
        #: The client may be looked at again: there may be room.
        self._room = asyncio.Event()
        self._revision = 0
        self._targets: dict[Key, Target] = {}
        self._uid = services.identity.next_uid()
        self._stream = services.queue_client.open(
            self._uid, self.answered, source=self, in_flight=self._in_flight
        )
        self._pipeline = Pipeline(
            services.messages, services.replies, caller, self._stream, self, self._totals
        )

    # ---- what holds the client back ---------------------------------------------------------

    async def _wait_for_room(self) -> None:
        """Hold the client back: alarms (R-ALM-2), and what is on its way (hot-path.md rule 7)."""
        if reason := self._services.blocking_reason():
            await self._wait_for_alarms(reason)
        limit = self._services.limits.unconfirmed_bytes
        while not self._has_room(limit):
            self._room.clear()
            await self._room.wait()

    def _has_room(self, limit: int) -> bool:
        return (
            self._bytes <= limit
            and not self._held
            and self._confirms.outstanding <= UNCONFIRMED_MAX
            and len(self._returned) <= PUBLICATIONS_MAX
        )

    async def _wait_for_alarms(self, reason: str) -> None:
        """Count as blocked until no alarm is on anywhere, or the call ends (R-ALM-2)."""
        services, caller = self._services, self._caller
        services.blocked.add(caller, services.clock_ms(), reason)
        since_us, resources = self._counters.clock_us(), set(resources_in(reason))
        try:
            # An alarm wakes connections, and there are few calls.
            while reason := services.blocking_reason():
                resources.update(resources_in(reason))
                await asyncio.sleep(ALARM_POLL_S)
        finally:
            services.blocked.discard(caller)
            blocked_ms = (self._counters.clock_us() - since_us) // 1000
            cause = " & ".join(sorted(resources))
            self._counters.throttle(
                caller.vhost, caller.user, caller.name, "call_held", blocked_ms, cause
            )

    def _in_flight(self, size: int) -> None:
        self._bytes += size
        if size < 0:
            self._room.set()

    def hold_flow(self, reason: str) -> None:
        """Read no more since too much is on its way to a queue."""
        self._held.add(reason)

    def release_flow(self, reason: str) -> None:
        """That has arrived."""
        self._held.discard(reason)
        self._room.set()

    # ---- publishing ------------------------------------------------------------------------

    def _target(self, key: Key) -> Target:
        """Return what is known of an exchange and key, good for one revision of the topology."""
        if self._revision != self._topology.topology_revision:
            self._revision = self._topology.topology_revision
            self._targets.clear()
        target = self._targets.get(key)
        if target is None:
            exchange, routing_key, mandatory = key
            rpc_properties.name_of("exchange", exchange, b"")
            rpc_properties.name_of("routing_key", routing_key, b"")
            method = methods.BasicPublish(0, exchange, routing_key, mandatory)
            target = self._pipeline.resolve(method, self._revision)
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
            self._targets[key] = target
        return target

    def _send(
        self,
        target: Target,
        result: RouteResult,
        contents: list[Content],
        first: int,
        replies: tuple[str, ...],
    ) -> None:
        self._pipeline.send(
            target.method, result, contents, first, replies, self._confirms, self._clock
        )

    @abstractmethod
    def returned(
        self,
        method: methods.BasicPublish,
        contents: Sequence[Content],
        first: int,
        why: tuple[int, str],
    ) -> None:
        """Report messages that no queue or channel took (pipeline.Channel)."""

    @abstractmethod
    def answered(self, outcomes: list[tuple[int, int, int]]) -> None:
        """A queue has answered (pipeline.Channel)."""
