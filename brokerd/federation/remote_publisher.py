"""Publishes to a broker over AMQP, mandatory and with publisher confirms: the destination of a
shovel.

Implements `ports.Publisher` over one channel of `client.Connection`.  Confirms are collected and
reported once per read of the socket.  What is under way is bounded by the link (link_state.py
IN_FLIGHT_*), in every ack mode: nothing counts as taken over before the broker has said so.  So is
what waits here while the broker has asked for a pause with channel.flow (R-OLD-1).

A message that comes back has no number: it is known by exchange, key, properties and body, and by
the order, as a broker gives messages back in the order in which they were published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count

from brokerd.amqp import methods
from brokerd.federation.client import Channel, Connection
from brokerd.federation.ends import Listener
from brokerd.federation.errors import ClientError
from brokerd.federation.link_events import Answer, Unrouted

#: First sequence number, exchange, routing key, header and bodies of messages alike.
_Sent = tuple[int, str, str, bytes, list[bytes]]
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
        return_ends: bool,
    ) -> None:
        """exchange() is asked at each publish.  return_ends: a message that no queue takes ends the
        session, so that whatever is missing is made again.
        """
        self._connection = connection
        self._channel = channel
        self._listener = listener
        self._exchange = exchange
        self._return_ends = return_ends
        self._sequence = 0
        self._oldest = 1
        self._numbers: dict[int, int] = {}
        self._decided: list[Answer] = []
        #: What may come back, in order.
        self._sent: deque[_Sent] = deque()
        #: Came back, by sequence number; its confirm, which follows, says no more than that it did.
        self._returned_at: dict[int, Unrouted] = {}
        #: What comes back next has this sequence number or a higher one.
        self._next_return = 1
        self._unrouted: list[Unrouted] = []
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

    def publish(
        self,
        number: int,
        routing_key: str,
        header: bytes,
        bodies: list[bytes],
        exchange: str | None = None,
    ) -> None:
        """See Publisher."""
        if exchange is None:
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
        if not self._return_ends:
            self._sent.append((first, exchange, routing_key, header, bodies))
        self._channel.publish_all(exchange, routing_key, header, bodies, mandatory=True)

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
        # 0 stands for all (AMQP 0-9-1 basic.ack.delivery-tag); what was not sent is not confirmed.
        last = min(sequence or self._sequence, self._sequence)
        for answered in range(self._oldest, last + 1):
            self._decide(answered, is_taken)
        self._oldest = max(self._oldest, last + 1)

    def _decide(self, sequence: int, is_taken: bool) -> None:
        number = self._numbers.pop(sequence, None)
        if number is None:
            return
        back = self._returned_at.pop(sequence, None)
        if back is not None:
            self._unrouted.append(back)
            return
        if self._decided:
            first, length, was_taken = self._decided[-1]
            if number == first + length and is_taken == was_taken:
                self._decided[-1] = first, length + 1, is_taken
                return
        self._decided.append((number, 1, is_taken))

    def _returned(self, method: methods.BasicReturn, header: bytes, body: bytes) -> None:
        where = (method.exchange, method.routing_key)
        found = None if self._return_ends else self._sequence_of(*where, header, body)
        if found is None:
            # Its confirm comes behind it, and must not count: the session is over now.
            self._channel.on_confirm = None
            text = f"no queue at the destination takes messages: {method.reply_text}"
            self._listener.failed(ClientError(text))
            return
        self._next_return = found[0] + 1
        self._returned_at[found[0]] = Unrouted(self._numbers[found[0]], *where, found[1], body)

    def _sequence_of(
        self, exchange: str, routing_key: str, header: bytes, body: bytes
    ) -> tuple[int, bytes] | None:
        """Return the sequence number and the header of a message that came back; None if it may be
        one of several.
        """
        # A broker may write properties anew: then the first one with this body, if all that have it
        # are alike, by header.
        others: dict[bytes, int] = {}
        numbers, start = self._numbers, self._next_return
        for first, to, key, sent_header, bodies in self._sent:
            if first + len(bodies) <= start or to != exchange or key != routing_key:
                continue
            for sequence, sent in enumerate(bodies, first):
                if sequence >= start and sent == body and sequence in numbers:
                    if sent_header == header:
                        return sequence, header
                    others.setdefault(sent_header, sequence)
        if len(others) != 1:
            return None
        ((known, sequence),) = others.items()
        return sequence, known

    def _report(self) -> None:
        if self._sent:
            oldest = next(iter(self._numbers), self._sequence + 1)
            while self._sent and self._sent[0][0] + len(self._sent[0][4]) <= oldest:
                self._sent.popleft()
        if self._unrouted:
            unrouted, self._unrouted = self._unrouted, []
            self._listener.returned(unrouted)
        if self._decided:
            decided, self._decided = self._decided, []
            self._listener.answered(decided)
