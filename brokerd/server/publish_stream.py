"""One Publish call of the Messages service: batches in, confirmed and rejected ranges out.

The same checks, router, publisher and confirms as an AMQP channel in confirm mode (session.py); the
client numbers its messages itself, and those numbers are the ones that `Confirms` tracks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

import grpc

from brokerd.amqp import errors, methods
from brokerd.core import annotations as message_annotations
from brokerd.core import queue_commands
from brokerd.core.confirms import Confirms
from brokerd.core.message import Content, Range
from brokerd.core.permissions import Access
from brokerd.core.ranges import RangeSet
from brokerd.core.router import RouteResult
from brokerd.rpc.v1 import messages_pb2
from brokerd.server import message_checks, rpc_errors, rpc_properties
from brokerd.server.publishing import BATCH_BYTES_MAX, Publisher

if TYPE_CHECKING:
    from brokerd.server.broker import Broker
    from brokerd.server.connection import ClientConnection

#: Publications of one request, and those that may be unconfirmed before reading stops.
REQUEST_PUBLICATIONS_MAX = 4096
UNCONFIRMED_MAX = 65_536
#: Different (exchange, routing key, mandatory) a call remembers.
TARGETS_MAX = 1024
NAME_BYTES_MAX = 255
#: How often a call that an alarm has stopped looks whether it is over.
ALARM_POLL_S = 0.1


class Caller:
    """What the checks of a publish ask of a connection."""

    __slots__ = ("access", "tags", "user", "vhost")

    def __init__(self, broker: Broker, vhost: str, user: str, tags: frozenset[str]) -> None:
        self.vhost = vhost
        self.user = user
        self.tags = tuple(sorted(tags))
        self.access = Access(broker.view, vhost, user)

    @property
    def as_connection(self) -> ClientConnection:
        """Return itself as the checks' parameter: they read only what this class has."""
        return cast("ClientConnection", self)


class SequenceConfirms(Confirms):
    """Confirms whose numbers the client chooses (rising, gaps allowed), answered in ranges."""

    __slots__ = ()

    def number(self, sequence: int) -> None:
        """Take the client's number for the next message."""
        if sequence < self.next_sequence:
            raise rpc_errors.CallRefused(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"sequence {sequence}: sequences must rise, {self.next_sequence} or more was "
                "expected (the first one is at least 1)",
            )
        self.next_sequence = sequence
        self.published()

    def take_ranges(self) -> tuple[list[Range], list[Range]]:
        """Return the numbers that are confirmed and rejected since the last call, as [low, high).

        A number is in exactly one range, once.
        """
        found = self._acks.ranges(), self._nacks.ranges()
        self._acks, self._nacks = RangeSet(), RangeSet()
        return found


class _Run:
    """Consecutive publications with one target, consecutive sequences and nothing special."""

    __slots__ = ("contents", "first", "key", "size")

    def __init__(self, key: tuple[str, str, bool], first: int) -> None:
        self.key = key
        self.first = first
        self.contents: list[Content] = []
        self.size = 0

    def continues(self, key: tuple[str, str, bool], sequence: int) -> bool:
        """Tell whether a publication belongs to this run."""
        if key != self.key or sequence != self.first + len(self.contents):
            return False
        return self.size < BATCH_BYTES_MAX


class PublishStream:
    """State of one call.  Invariant: every sequence taken is awaited, due, or has been answered."""

    def __init__(
        self, broker: Broker, caller: Caller, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        self._broker = broker
        self._caller = caller
        self._context = context
        self._uid = broker.next_uid()
        self._confirms = SequenceConfirms()
        self._returned: list[messages_pb2.Returned] = []
        self._bytes = 0
        #: Set whenever something may have changed: an answer came, something is to be written.
        self._changed = asyncio.Event()
        self._reading_done = False
        #: Per (exchange, routing key, mandatory): the method, the shared route and where it leads.
        self._targets: dict[
            tuple[str, str, bool], tuple[methods.BasicPublish, tuple[str, str], RouteResult | None]
        ] = {}
        self._revision = broker.topology_revision
        self._publisher = Publisher(
            broker.groups,
            broker.node,
            broker.incarnation,
            self._uid,
            self._answered,
            self._in_flight,
        )

    async def run(self, requests: AsyncIterator[messages_pb2.PublishRequest]) -> None:
        """Serve the call: until the client closes its side and everything is answered."""
        writing = asyncio.create_task(self._write())
        problem: BaseException | None = None
        try:
            problem = await self._read(requests)
            self._reading_done = True
            self._changed.set()
            # What was taken before a mistake is still answered, then the call ends with the error.
            timeout_s = self._broker.config.limits.operation_timeout_ms / 1000
            await asyncio.wait_for(writing, timeout_s if problem is not None else None)
        except TimeoutError:
            # Only after a mistake; the mistake is what the client is told.
            pass
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            self._end()
        if problem is not None:
            await rpc_errors.abort(self._context, problem)

    def _end(self) -> None:
        self._publisher.close()
        command = queue_commands.encode_channel_down(
            self._broker.node, self._broker.incarnation, self._uid
        )
        for uid in self._publisher.queue_uids:
            self._broker.send_to_queue(uid, command)

    # ---- in ---------------------------------------------------------------------------------

    async def _read(
        self, requests: AsyncIterator[messages_pb2.PublishRequest]
    ) -> BaseException | None:
        """Take requests until the client closes its side (None) or makes a mistake."""
        async for request in requests:
            await self._wait_for_room()
            try:
                self._publish(request.publications)
            except (errors.AmqpError, rpc_errors.CallRefused) as error:
                return error
            finally:
                self._publisher.flush()
                self._changed.set()
        return None

    async def _wait_for_room(self) -> None:
        """Hold the client back: alarms (R-ALM-2), and what is on its way (hot-path rule 7)."""
        while self._broker.blocking_reason():
            await asyncio.sleep(ALARM_POLL_S)
        limit = self._broker.config.limits.unconfirmed_bytes
        while (
            self._bytes > limit
            or self._confirms.outstanding > UNCONFIRMED_MAX
            or len(self._returned) > REQUEST_PUBLICATIONS_MAX
        ):
            self._changed.clear()
            self._room = asyncio.get_running_loop().create_future()
            await self._changed.wait()

    def _publish(self, publications: Any) -> None:
        if len(publications) > REQUEST_PUBLICATIONS_MAX:
            raise rpc_errors.CallRefused(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{len(publications)} publications in one request, at most "
                f"{REQUEST_PUBLICATIONS_MAX} are possible",
            )
        run: _Run | None = None
        for item in publications:
            key = (item.exchange, item.routing_key, item.mandatory)
            header = rpc_properties.encode(item.properties)
            method, route, result = self._target(key)
            if result is None or not message_checks.all_plain([(b"", header, b"")]):
                self._finish(run)
                run = None
                self._special(item, key, method, route, header)
                continue
            if run is None or not run.continues(key, item.sequence):
                self._finish(run)
                run = _Run(key, item.sequence)
            self._confirms.number(item.sequence)
            run.contents.append((route, header, item.body, b""))
            run.size += len(header) + len(item.body)
        self._finish(run)
