"""Publishes to a broker over AMQP, with publisher confirms: the destination of a shovel.

Implements `ports.Publisher` over one channel of `client.Connection`.  Confirms are collected and
reported once per read of the socket.  What is under way is bounded by the link (link_state.py
IN_FLIGHT_*), in every ack mode: nothing counts as taken over before the broker has said so.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.amqp import methods
from brokerd.federation.client import Channel, Connection
from brokerd.federation.ends import Listener
from brokerd.federation.errors import ClientError


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
        self._decided: list[tuple[int, bool]] = []

    async def start(self) -> None:
        """Ask for confirms, and listen.  Raises ClientError."""
        await self._channel.call(methods.ConfirmSelect())
        self._channel.on_confirm = self._confirmed
        self._channel.on_return = self._returned
        self._channel.on_ended = self._listener.failed
        self._connection.on_read = self._report
        self._connection.on_blocked = self._listener.blocked

    def publish(self, number: int, routing_key: str, header: bytes, body: bytes) -> None:
        """See Publisher."""
        self._sequence += 1
        self._numbers[self._sequence] = number
        self._channel.publish(self._exchange(), routing_key, header, body, self._mandatory)

    def flush(self) -> None:
        """See Publisher."""
        self._connection.flush()

    def close(self) -> None:
        """See Publisher: what was published before still goes out."""
        self._channel.on_confirm = self._channel.on_return = self._channel.on_ended = None
        self._connection.on_read = self._connection.on_blocked = None
        self._connection.leave()

    def _confirmed(self, sequence: int, multiple: bool, is_taken: bool) -> None:
        if not multiple:
            number = self._numbers.pop(sequence, None)
            if number is not None:
                self._decided.append((number, is_taken))
            return
        # 0 stands for all (AMQP 0-9-1 basic.ack.delivery-tag); nobody can confirm the future.
        last = min(sequence or self._sequence, self._sequence)
        for answered in range(self._oldest, last + 1):
            number = self._numbers.pop(answered, None)
            if number is not None:
                self._decided.append((number, is_taken))
        self._oldest = max(self._oldest, last + 1)

    def _returned(self, method: methods.BasicReturn) -> None:
        # Its confirm comes behind it, and must not count: the session is over now.
        self._channel.on_confirm = None
        text = f"no queue at the destination takes messages: {method.reply_text}"
        self._listener.failed(ClientError(text))

    def _report(self) -> None:
        if self._decided:
            decided, self._decided = self._decided, []
            self._listener.answered(decided)
