"""The demo's clients: ordinary pika programs that publish orders and handle them.

Each runs in a thread of its own, survives the loss of the member it is connected to, and notes what
it saw; `demo.py` adds the notes up.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pika
import pika.exceptions

ORDER_BYTES = 1024
#: pika's ways to say that a connection is gone.
LOST = (pika.exceptions.AMQPError, OSError)
#: A client that cannot connect tries again after this long.
RECONNECT_S = 0.1


def connect(port: int, **settings: Any) -> pika.BlockingConnection:
    """Connect as guest on this machine."""
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port, heartbeat=10, **settings)
    )


@dataclass
class Notes:
    """What all clients saw; shared, under one lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Orders whose publish was confirmed.
    confirmed: set[int] = field(default_factory=set)
    #: Publishes that had to be repeated because the confirm did not come.
    repeated: int = 0
    #: (order, attempt) of everything handled, and how often it was delivered.
    handled: Counter[str] = field(default_factory=Counter)
    #: Deliveries of something handled before that were not flagged redelivered: must stay 0.
    unflagged: int = 0
    deliveries: int = 0
    nacked: int = 0
    #: When publishes were begun and confirmed, for the time after the kill.
    confirms: list[tuple[float, float]] = field(default_factory=list)

    def handled_orders(self) -> set[int]:
        """Return the orders that were handled at least once."""
        return {int(message_id.split("-")[0]) for message_id in self.handled}


@dataclass(frozen=True)
class Plan:
    """Which orders are special."""

    count: int

    def is_unroutable(self, order: int) -> bool:
        """1 %: nobody has bound their key."""
        return order % 100 == 7

    def is_poison(self, order: int) -> bool:
        """0.5 %: no consumer can handle them."""
        return order % 200 == 11

    def orders(self) -> range:
        """Return all order numbers."""
        return range(self.count)


class Publisher(threading.Thread):
    """Publishes its share of the orders, each confirmed before the next."""

    def __init__(self, ports: list[int], orders: list[int], plan: Plan, notes: Notes) -> None:
        super().__init__(daemon=True)
        self._ports = ports
        self._orders = orders
        self._plan = plan
        self._notes = notes

    def run(self) -> None:
        """Publish everything; after a lost connection go on at the next member."""
        pending = list(reversed(self._orders))
        attempt = turn = 0
        while pending:
            connection = None
            try:
                connection = connect(self._ports[turn % len(self._ports)])
                channel = connection.channel()
                channel.confirm_delivery()
                while pending:
                    self._publish(channel, pending[-1], attempt)
                    pending.pop()
                    attempt = 0
                connection.close()
            except LOST:
                # Whether the broker has the order is not known: it is sent again.
                attempt += 1
                turn += 1
                with self._notes.lock:
                    self._notes.repeated += 1
                time.sleep(RECONNECT_S)

    def _publish(self, channel: Any, order: int, attempt: int) -> None:
        plan = self._plan
        key = "return.request" if plan.is_unroutable(order) else f"order.{order % 7}"
        head = b"poison" if plan.is_poison(order) else b"order "
        began = time.monotonic()
        channel.basic_publish(
            "orders.in",
            key,
            head.ljust(ORDER_BYTES, b"."),
            pika.BasicProperties(
                message_id=f"{order}-{attempt}", delivery_mode=2, content_type="text/plain"
            ),
            mandatory=True,
        )
        with self._notes.lock:
            self._notes.confirmed.add(order)
            self._notes.confirms.append((began, time.monotonic()))


class Consumer(threading.Thread):
    """Handles orders until told to stop: acknowledges good ones, gives poison back."""

    def __init__(self, ports: list[int], notes: Notes) -> None:
        super().__init__(daemon=True)
        self._ports = ports
        self._notes = notes
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Finish what is there."""
        self._stopping.set()

    def run(self) -> None:
        """Consume; after a lost connection go on at the next member."""
        turn = 0
        while not self._stopping.is_set():
            try:
                connection = connect(self._ports[turn % len(self._ports)])
                channel = connection.channel()
                channel.basic_qos(prefetch_count=50)
                for method, properties, body in channel.consume("orders", inactivity_timeout=0.2):
                    if method is not None:
                        self._handle(channel, method, properties, body)
                    if self._stopping.is_set():
                        break
                with contextlib.suppress(*LOST):
                    connection.close()
            except LOST:
                turn += 1
                time.sleep(RECONNECT_S)

    def _handle(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        notes = self._notes
        with notes.lock:
            notes.deliveries += 1
        if body.startswith(b"poison"):
            with notes.lock:
                notes.nacked += 1
            channel.basic_nack(method.delivery_tag, requeue=True)
            return
        with notes.lock:
            seen = notes.handled[properties.message_id]
            if seen and not method.redelivered:
                notes.unflagged += 1
            notes.handled[properties.message_id] += 1
        channel.basic_ack(method.delivery_tag)


@dataclass
class Drained:
    """What was in a queue."""

    ids: list[str] = field(default_factory=list)
    headers: list[dict[str, Any]] = field(default_factory=list)


def drain(port: int, queue: str) -> Drained:
    """Take everything out of a queue."""
    connection = connect(port)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=200)
    found = Drained()
    for method, properties, _ in channel.consume(queue, inactivity_timeout=1.0):
        if method is None:
            break
        found.ids.append(properties.message_id)
        found.headers.append(properties.headers or {})
        channel.basic_ack(method.delivery_tag)
    connection.close()
    return found


class BlockedPublisher(threading.Thread):
    """Publishes while the alarm is on, and notes when the broker said blocked and unblocked."""

    def __init__(self, port: int, count: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._count = count
        self.blocked_at: float | None = None
        self.unblocked_at: float | None = None
        self.confirmed = 0
        self.failed: BaseException | None = None

    def run(self) -> None:
        """Publish one order, which the broker does not read; the others follow after unblocked."""
        try:
            connection = connect(self._port, blocked_connection_timeout=60)
            connection.add_on_connection_blocked_callback(self._note("blocked_at"))
            connection.add_on_connection_unblocked_callback(self._note("unblocked_at"))
            channel = connection.channel()
            self._publish(channel, 0)
            while self.unblocked_at is None:
                connection.process_data_events(0.1)
            confirming = connection.channel()
            confirming.confirm_delivery()
            for number in range(1, self._count + 1):
                self._publish(confirming, number)
                self.confirmed += 1
            connection.close()
        except LOST as error:
            self.failed = error

    @staticmethod
    def _publish(channel: Any, number: int) -> None:
        channel.basic_publish(
            "orders.in",
            "order.blocked",
            b"order ".ljust(ORDER_BYTES, b"."),
            pika.BasicProperties(message_id=f"{1_000_000 + number}-0", delivery_mode=2),
            mandatory=True,
        )

    def _note(self, name: str) -> Callable[..., None]:
        return lambda *_: setattr(self, name, time.monotonic())
