"""The two ends of a shovel, and what its messages become: a link between any two brokers.

What the definition says is in `shovel.py`, the mechanism in `link.py` (design/links.md).  An
address without a host is this cluster itself, to which the member gives a connection (ports.Local).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

from brokerd.amqp import methods, properties, spec
from brokerd.amqp.values import Table
from brokerd.federation.client import Channel, Connection
from brokerd.federation.ends import (
    Destination,
    Dial,
    Ends,
    Intake,
    Listener,
    Peer,
    Session,
)
from brokerd.federation.errors import ChannelClosed, ClientError
from brokerd.federation.link_counts import Drop
from brokerd.federation.link_events import Answer, Delivered
from brokerd.federation.ports import Publisher, Topology
from brokerd.federation.remote_publisher import RemotePublisher
from brokerd.federation.shovel import End, Shovel

CONSUMER_TAG = "shovel"


def ends_of(shovel: Shovel, topology: Topology, dial: Dial, finished: Callable[[], None]) -> Ends:
    """Return what makes a link this shovel.

    finished() is called when all that was to be moved has been moved.
    """
    drops = shovel.drops_unroutable
    passage = ShovelPassage(shovel, topology.cluster_name)
    destination: Destination
    if shovel.publishes_here:
        destination = ShovelDestinationHere(shovel, passage, dial, topology)
    else:
        destination = ShovelDestination(shovel, passage, dial)
    return Ends(
        shovel.vhost,
        ShovelSource(shovel),
        passage,
        destination,
        title="Shovel",
        dial=dial,
        ends_after=shovel.delete_after,
        finished=finished,
        drops_unroutable=topology.drops_unroutable if drops is None else drops,
    )


class ShovelPassage:
    """link_state.Passage.  Pure; knows where the message that went last is to be published."""

    def __init__(self, shovel: Shovel, cluster: str) -> None:
        self._shovel = shovel
        self._cluster = cluster
        self._source_uri = ""
        self._destination_uri = shovel.destination.addresses[0].shown
        self._destination_user: str | None = None
        self._exchange = ""

    def introduce(self, uri: str, cluster: str, vhost: str) -> None:
        """See Passage."""
        self._source_uri = uri

    def introduce_destination(self, uri: str, user: str | None) -> None:
        """Take note of who is there: uri has no credentials, user is whom the shovel is to it;
        None: it may say any.
        """
        self._destination_uri = uri
        self._destination_user = user

    def exchange(self) -> str:
        """Return where the message that was forwarded last goes: its own exchange, or the one of
        the definition.
        """
        return self._exchange

    def forward(self, message: Delivered, table: Table) -> tuple[str, bytes] | Drop:
        """See Passage: nothing changes that the definition does not ask for.

        A user-id that the destination would refuse is left out, or the message would come back
        for ever.
        """
        header = message.header
        user = self._destination_user
        if user is not None and properties.user_id(header) != user:
            header = properties.without_user_id(header)
        header = self._shovel.forwarded(
            self._cluster,
            self._source_uri,
            self._destination_uri,
            header,
            message.now_ms // 1000,
        )
        destination = self._shovel.destination
        if destination.queue is not None:
            self._exchange = ""
            return destination.queue, header
        self._exchange = message.exchange if destination.exchange is None else destination.exchange
        key = destination.exchange_key
        return (message.routing_key if key is None else key), header

    def row(self) -> dict[str, str]:
        """See Passage."""
        source, destination = self._shovel.source, self._shovel.destination
        return {
            "type": "shovel",
            "vhost": self._shovel.vhost,
            "source_queue": source.queue or "",
            "source_exchange": source.exchange or "",
            "source_exchange_key": source.exchange_key or "",
            "destination": self._destination_uri,
            "destination_queue": destination.queue or "",
            "destination_exchange": destination.exchange or "",
            "destination_exchange_key": destination.exchange_key or "",
        }


class ShovelSource:
    """ends.Source: a queue, or a queue of the session's own that an exchange fills."""

    def __init__(self, shovel: Shovel) -> None:
        self._shovel = shovel

    async def prepare(self, session: Session) -> Intake:
        """See Source: a queue that is missing is made, an exchange is not."""
        source = self._shovel.source
        if source.queue is not None:
            declared = await declare_queue(session.peer.connection, source)
        else:
            declared = await self._bound_queue(session.channel)
        arguments: Table = dict(self._shovel.consumer_arguments)
        return Intake(declared.queue, CONSUMER_TAG, arguments, declared.message_count)

    async def _bound_queue(self, channel: Channel) -> methods.QueueDeclareOk:
        source = self._shovel.source
        answer = await channel.call(
            methods.QueueDeclare(exclusive=True, arguments=dict(source.queue_arguments))
        )
        assert isinstance(answer, methods.QueueDeclareOk)
        await channel.call(
            methods.QueueBind(
                queue=answer.queue,
                exchange=source.exchange or "",
                routing_key=source.exchange_key or "",
            )
        )
        return answer

    async def follow(self) -> float | None:
        """See Source: nothing changes at a source."""
        return None

    def changed(self) -> None:
        """See Source."""

    async def clean_up(self, connect: Callable[[], Awaitable[Peer]]) -> None:
        """See Source: queues stay, as what is in them is people's."""

    def figures(self) -> dict[str, Any]:
        """See Source."""
        return {}


class ShovelDestination:
    """ends.Destination: a queue or an exchange of a broker, on a connection of its own."""

    def __init__(self, shovel: Shovel, passage: ShovelPassage, dial: Dial) -> None:
        self._shovel = shovel
        self._passage = passage
        self._dial = dial
        self._random = random.Random()

    async def open(self, listener: Listener) -> RemotePublisher:
        """See Destination."""
        destination = self._shovel.destination
        address = self._random.choice(destination.addresses)
        connection = await self._dial(
            address, address.vhost or "", f"Shovel {self._shovel.link_id}", destination.authorities
        )
        try:
            await _prepare(connection, destination)
            publisher = RemotePublisher(
                connection,
                await connection.open_channel(),
                listener,
                self._passage.exchange,
                # To one queue, and it is gone: the next session makes it again.
                return_ends=destination.queue is not None,
            )
            await publisher.start()
        except BaseException:
            connection.leave()
            raise
        is_unlimited = not address.host and not address.user
        self._passage.introduce_destination(address.shown, None if is_unlimited else address.user)
        return publisher


class ShovelDestinationHere:
    """ends.Destination: one exchange of this cluster, published to without a connection."""

    def __init__(
        self, shovel: Shovel, passage: ShovelPassage, dial: Dial, topology: Topology
    ) -> None:
        self._shovel = shovel
        self._passage = passage
        self._dial = dial
        self._topology = topology
        self._random = random.Random()

    async def open(self, listener: Listener) -> Publisher:
        """See Destination; what is missing is made, or missed, as at any broker."""
        destination = self._shovel.destination
        address = self._random.choice(destination.addresses)
        vhost = address.vhost or ""
        connection = await self._dial(address, vhost, f"Shovel {self._shovel.link_id}", None)
        try:
            await _prepare(connection, destination)
        finally:
            connection.leave()
        if why := _refusal(self._topology, vhost, destination):
            raise ClientError(why)
        self._passage.introduce_destination(address.shown, None)
        return _PublisherHere(self._topology, vhost, destination, listener)


class _PublisherHere:
    """ports.Publisher; a destination that is deleted ends the session, which makes it again."""

    def __init__(
        self, topology: Topology, vhost: str, destination: End, listener: Listener
    ) -> None:
        self._topology = topology
        self._vhost = vhost
        self._destination = destination
        self._listener = listener
        exchange = "" if destination.queue is not None else destination.exchange or ""
        self._publisher = topology.open_publisher(
            vhost, exchange, self._answered, listener.returned
        )

    def publish(
        self,
        number: int,
        routing_key: str,
        header: bytes,
        bodies: list[bytes],
        exchange: str | None = None,
    ) -> None:
        """See Publisher; there is one exchange."""
        self._publisher.publish(number, routing_key, header, bodies)

    def flush(self) -> None:
        """See Publisher."""
        self._publisher.flush()

    def close(self) -> None:
        """See Publisher."""
        self._publisher.close()

    def _answered(self, answers: list[Answer]) -> None:
        is_refused = not all(is_taken for _, _, is_taken in answers)
        if is_refused and (why := _refusal(self._topology, self._vhost, self._destination)):
            self._listener.failed(ClientError(f"the destination takes nothing: {why}"))
        self._listener.answered(answers)


def _refusal(topology: Topology, vhost: str, to: End) -> str:
    """Return why a shovel may not publish to a destination, "" if it may."""
    if to.queue is not None:
        return topology.refusal("queue", vhost, to.queue)
    return topology.refusal("exchange", vhost, to.exchange or "")


async def _prepare(connection: Connection, destination: End) -> None:
    """Make a queue that is missing; an exchange that is is an error."""
    if destination.queue is not None:
        await declare_queue(connection, destination)
    elif destination.exchange:
        await _check_exchange(connection, destination.exchange)


async def declare_queue(connection: Connection, end: End) -> methods.QueueDeclareOk:
    """Return what is known of an end's queue, which is made durable if it is missing.

    One that is there may be of any kind, with any arguments.  One that is to be there
    (`is_predeclared`) is not made: raises ChannelClosed.
    """
    name = end.queue or ""
    channel = await connection.open_channel()
    try:
        answer = await channel.call(methods.QueueDeclare(queue=name, passive=True))
    except ChannelClosed as error:
        if error.code != spec.NOT_FOUND or end.is_predeclared:
            raise
        channel = await connection.open_channel()
        arguments: Table = dict(end.queue_arguments)
        answer = await channel.call(
            methods.QueueDeclare(queue=name, durable=True, arguments=arguments)
        )
    await channel.close()
    assert isinstance(answer, methods.QueueDeclareOk)
    return answer


async def _check_exchange(connection: Connection, name: str) -> None:
    """Messages for an exchange that is missing would only come and go."""
    channel = await connection.open_channel()
    await channel.call(methods.ExchangeDeclare(exchange=name, passive=True))
    await channel.close()
