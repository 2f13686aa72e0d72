"""The ends of a federated queue's link: the upstream queue, and the queue here that wants messages.

Nothing is made at the upstream but a queue that is missing, and nothing is taken away (R-FQ-1).
Demand is the destination's: the topology watches the queue (R-FQ-2).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from brokerd.federation import upstream_side
from brokerd.federation.client import Channel
from brokerd.federation.ends import Intake, Listener, Peer, Session
from brokerd.federation.errors import ClientError
from brokerd.federation.link_events import Answer
from brokerd.federation.ports import FederatedQueue, Publisher, Topology
from brokerd.federation.upstream import Upstream

#: Below those who consume at the upstream itself (R-FQ-2).
PRIORITY = -1
_CAPABILITY = "consumer_priorities"


class QueueSource:
    """ends.Source."""

    def __init__(self, federated: FederatedQueue, upstream: Upstream) -> None:
        self._federated = federated
        self._upstream = upstream
        self._backlog = upstream_side.Backlog()
        self._channel: Channel | None = None

    async def prepare(self, session: Session) -> Intake:
        """See Source; an upstream without consumer priorities is an error (R-FQ-7)."""
        connection = session.peer.connection
        if not connection.machine.server_has(_CAPABILITY):
            raise ClientError(f"the upstream lacks the capability {_CAPABILITY}")
        queue = self._upstream.queue_name(self._federated.queue)
        await upstream_side.ensure_queue(connection, queue, self._federated)
        self._channel = session.channel
        return Intake(queue, self._upstream.tag(), {"x-priority": PRIORITY})

    async def follow(self) -> float | None:
        """See Source: only the figure of what waits.  A queue that was deleted costs the channel,
        and the next session declares it.
        """
        assert self._channel is not None
        return self._backlog.look(self._channel, self._upstream.queue_name(self._federated.queue))

    def changed(self) -> None:
        """See Source."""

    async def clean_up(self, connect: Callable[[], Awaitable[Peer]]) -> None:
        """See Source: the upstream queue is not the link's."""

    def figures(self) -> dict[str, Any]:
        """See Source."""
        return self._backlog.figures()


class LocalQueue:
    """ends.Destination: a queue of this broker, led by this member."""

    def __init__(self, topology: Topology, queue: FederatedQueue) -> None:
        self._topology = topology
        self._queue = queue

    async def open(self, listener: Listener) -> Publisher:
        """See Destination."""
        return _QueuePublisher(self._topology, self._queue, listener)


class _QueuePublisher:
    """ports.Publisher; looks at the demand whenever the queue has answered."""

    def __init__(self, topology: Topology, queue: FederatedQueue, listener: Listener) -> None:
        self._listener = listener
        self._publisher = topology.open_publisher(queue.vhost, "", self._answered)
        self._watch = topology.watch_demand(queue, listener.demanded)

    def publish(
        self,
        number: int,
        routing_key: str,
        header: bytes,
        bodies: list[bytes],
        exchange: str | None = None,
    ) -> None:
        """See Publisher; routing_key is the queue's name."""
        self._publisher.publish(number, routing_key, header, bodies)

    def flush(self) -> None:
        """See Publisher."""
        self._publisher.flush()

    def close(self) -> None:
        """See Publisher."""
        self._watch.close()
        self._publisher.close()

    def _answered(self, answers: list[Answer]) -> None:
        self._listener.answered(answers)
        self._watch.check()
