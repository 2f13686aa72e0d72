"""Publishes to a broker over AMQP, with publisher confirms: the destination of a shovel.

Implements `ports.Publisher` over one channel of `client.Connection`.  Confirms are collected and
reported once per read of the socket.  What is under way is bounded by the link (link_state.py
IN_FLIGHT_*), in every ack mode: nothing counts as taken over before the broker has said so.  So is
what waits here while the broker has asked for a pause with channel.flow (R-OLD-1).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from brokerd.amqp import methods
from brokerd.federation.client import Channel, Connection
from brokerd.federation.ends import Listener
from brokerd.federation.errors import ClientError
from brokerd.federation.link_events import Answer

#: What a listing says of a broker that has sent channel.flow(active=false): it gives no reason.
PAUSED = "channel.flow"


class RemotePublisher:
    """ports.Publisher.  Owns the connection from `start` on.

    Invariant: `_numbers` holds the link's number per publish without an answer; none of them has a
    sequence number below `_oldest`.
    """

    def __init__(
        self,
        connection: Connection,
        channel: Channel,
        listener: Listener,
        exchange: Callable[[], str],
        *,
        mandatory: bool,
    ) -> None:
        """exchange() is asked at each publish.  mandatory: a message that no queue takes ends the
        session, so that whatever is missing is made again.
        """
        self._connection = connection
        self._channel = channel
        self._listener = listener
        self._exchange = exchange
        self._mandatory = mandatory
        self._sequence = 0
        self._oldest = 1
        self._numbers: dict[int, int] = {}
        self._decided: list[Answer] = []
        #: The reason of connection.blocked, "" without one.
        self._blocked = ""
        #: (number, exchange, routing key, header, bodies) of what came during a pause, in order.
        self._held: list[tuple[int, str, str, bytes, list[bytes]]] = []

    async def start(self) -> None:
        """Ask for confirms, and listen.  Raises ClientError."""
        # A broker that is short of memory may have said so since the channel is open.
        self._connection.on_blocked = self._blocks
        self._channel.on_flow = self._flow_changed
        if not self._channel.is_flowing:
            self._tell_blocked()
        await self._channel.call(methods.ConfirmSelect())
        self._channel.on_confirm = self._confirmed
        self._channel.on_return = self._returned
        self._channel.on_ended = self._listener.failed
        self._connection.on_read = self._report

    def publish(self, number: int, routing_key: str, header: bytes, bodies: list[bytes]) -> None:
        """See Publisher."""
        exchange = self._exchange()
        if self._channel.is_flowing:
            self._send(number, exchange, routing_key, header, bodies)
        else:
            self._held.append((number, exchange, routing_key, header, bodies))

    def flush(self) -> None:
        """See Publisher."""
        self._connection.flush()

    def close(self) -> None:
        """See Publisher: what was published before still goes out, but for what a pause holds."""
        channel = self._channel
        channel.on_confirm = channel.on_return = channel.on_ended = channel.on_flow = None
        self._connection.on_read = self._connection.on_blocked = None
        self._connection.leave()

    def _send(
        self, number: int, exchange: str, routing_key: str, header: bytes, bodies: list[bytes]
    ) -> None:
        first = self._sequence + 1
        self._sequence += len(bodies)
        self._numbers.update(zip(range(first, self._sequence + 1), count(number), strict=False))
        self._channel.publish_all(exchange, routing_key, header, bodies, self._mandatory)

    def _blocks(self, reason: str) -> None:
        self._blocked = reason
        self._tell_blocked()

    def _flow_changed(self) -> None:
        if self._channel.is_flowing:
            held, self._held = self._held, []
            for message in held:
                self._send(*message)
        self._tell_blocked()

    def _tell_blocked(self) -> None:
        """Either is enough for the link to stop consuming."""
        self._listener.blocked(self._blocked or ("" if self._channel.is_flowing else PAUSED))

    def _confirmed(self, sequence: int, multiple: bool, is_taken: bool) -> None:
        if not multiple:
            self._decide(sequence, is_taken)
            return
        # 0 stands for all (AMQP 0-9-1 basic.ack.delivery-tag); nobody can confirm the future.
        last = min(sequence or self._sequence, self._sequence)
        for answered in range(self._oldest, last + 1):
            self._decide(answered, is_taken)
        self._oldest = max(self._oldest, last + 1)

    def _decide(self, sequence: int, is_taken: bool) -> None:
        number = self._numbers.pop(sequence, None)
        if number is None:
            return
        if self._decided:
            first, length, was_taken = self._decided[-1]
            if number == first + length and is_taken == was_taken:
                self._decided[-1] = first, length + 1, is_taken
                return
        self._decided.append((number, 1, is_taken))

    def _returned(self, method: methods.BasicReturn) -> None:
        # Its confirm comes behind it, and must not count: the session is over now.
        self._channel.on_confirm = None
        text = f"no queue at the destination takes messages: {method.reply_text}"
        self._listener.failed(ClientError(text))

    def _report(self) -> None:
        if self._decided:
            decided, self._decided = self._decided, []
            self._listener.answered(decided)
