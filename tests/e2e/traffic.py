"""Load that notices every loss: publishers with confirms and a consumer with acknowledgements.

Ordinary pika programs in threads; each survives the loss of the member it is connected to by
connecting to the next one. A body may come twice (it was sent again because its confirm was lost),
but what was confirmed must come.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pika

from tests.e2e.namespace import until
from tests.e2e.reach import LOST, Reach

BODY_BYTES = 1024
RECONNECT_S = 0.1
PUBLISHERS = 2
DRAIN_TIMEOUT_S = 90.0
ENDLESS = float("inf")
#: The bound that users are promised, on a machine of two cores with all of Kubernetes on it.
GAP_S = 5.0
#: `make test` has other parts on the same two cores; `make e2e-nightly` has not.
BOUND_S = GAP_S if os.environ.get("E2E_NIGHTLY") else 3 * GAP_S


@dataclass
class Notes:
    """What the clients saw."""

    confirmed: set[str] = field(default_factory=set)
    consumed: set[str] = field(default_factory=set)
    reconnects: int = 0
    #: The longest time that one publisher was without a confirm, reconnecting included: no publish
    #: was refused or unconfirmed for longer.
    longest_gap_s: float = 0.0
    #: When something was confirmed, in the order of the clock.
    confirmed_at: list[float] = field(default_factory=list)

    def longest_silence_s(self, since: float) -> float:
        """Return the longest time without any confirm between a moment and the last one."""
        times = [since, *(at for at in self.confirmed_at if at > since)]
        return max((later - at for at, later in pairwise(times)), default=float("inf"))

    @property
    def lost(self) -> set[str]:
        return self.confirmed - self.consumed

    def figures(self) -> dict[str, float]:
        """For the table in docs/reliability.md."""
        return {
            "confirmed": len(self.confirmed),
            "lost": len(self.lost),
            "longest gap, s": round(self.longest_gap_s, 2),
        }


@dataclass(frozen=True, slots=True)
class Habits:
    """How the clients of a load connect."""

    is_tls: bool = False
    #: A publisher connects anew after so many, with the login that its Secret holds then.
    messages_per_connection: float = ENDLESS
    #: Whose login the second publisher has; that of all others if None.
    second: Reach | None = None


STEADY = Habits()


class Load:
    """Two publishers and a consumer on one queue, until stopped."""

    def __init__(
        self, reach: Reach, exchange: str, key: str, queue: str, members: int, habits: Habits
    ) -> None:
        self.notes = Notes()
        self._reach = reach
        self._habits = habits
        self._route = exchange, key
        self._queue = queue
        self._members = members
        self._is_publishing = True
        self._is_consuming = True
        self._pause = threading.Event()
        names = range(PUBLISHERS)
        self._publishers = [threading.Thread(target=self._publish, args=(n,)) for n in names]
        self._consumer = threading.Thread(target=self._consume)

    def start(self) -> None:
        for thread in (*self._publishers, self._consumer):
            thread.start()

    def wait_confirmed(self, more: int, timeout_s: float = 120.0) -> None:
        """Wait until so many further messages are confirmed."""
        target = len(self.notes.confirmed) + more
        until(lambda: len(self.notes.confirmed) >= target, f"{more} more confirms", timeout_s)

    def stop(self) -> Notes:
        """End publishing, take out what is left, and say what was seen."""
        self._is_publishing = False
        for thread in self._publishers:
            thread.join(DRAIN_TIMEOUT_S)
        try:
            until(lambda: not self.notes.lost, "all that was confirmed comes", DRAIN_TIMEOUT_S)
        finally:
            self._is_consuming = False
            self._consumer.join(DRAIN_TIMEOUT_S)
        return self.notes

    def _publish(self, publisher: int) -> None:
        number, turn = 0, publisher
        confirmed_at = time.monotonic()
        while self._is_publishing:
            try:
                with self._connected(publisher, turn) as channel:
                    channel.confirm_delivery()
                    sent = 0
                    while self._is_publishing and sent < self._habits.messages_per_connection:
                        self._publish_one(channel, f"{publisher}-{number}")
                        number, sent = number + 1, sent + 1
                        gap_s = time.monotonic() - confirmed_at
                        confirmed_at += gap_s
                        self.notes.longest_gap_s = max(self.notes.longest_gap_s, gap_s)
                turn += 1
            except LOST:
                turn += 1
                self.notes.reconnects += 1
                self._pause.wait(RECONNECT_S)

    @contextmanager
    def _connected(self, publisher: int, turn: int) -> Iterator[Any]:
        reach = (self._habits.second if publisher else None) or self._reach
        if self._habits.messages_per_connection < ENDLESS:
            reach.read_login()
        connection = reach.connect_once(turn % self._members, self._habits.is_tls)
        yield connection.channel()
        connection.close()

    def _publish_one(self, channel: Any, name: str) -> None:
        exchange, key = self._route
        channel.basic_publish(
            exchange,
            key,
            name.encode().ljust(BODY_BYTES, b"."),
            pika.BasicProperties(delivery_mode=2, message_id=name),
            mandatory=True,
        )
        self.notes.confirmed.add(name)
        self.notes.confirmed_at.append(time.monotonic())

    def _consume(self) -> None:
        turn = 0
        while self._is_consuming:
            try:
                connection = self._reach.connect_once(turn % self._members)
                channel = connection.channel()
                channel.basic_qos(prefetch_count=50)
                for method, properties, _ in channel.consume(self._queue, inactivity_timeout=0.2):
                    if method is not None:
                        self.notes.consumed.add(properties.message_id)
                        channel.basic_ack(method.delivery_tag)
                    if not self._is_consuming:
                        break
                connection.close()
            except LOST:
                turn += 1
                self.notes.reconnects += 1
                self._pause.wait(RECONNECT_S)


@contextmanager
def load(
    reach: Reach,
    exchange: str,
    key: str,
    queue: str,
    members: int,
    habits: Habits = STEADY,
) -> Iterator[Load]:
    """Load that is stopped whatever happens."""
    running = Load(reach, exchange, key, queue, members, habits)
    running.start()
    try:
        yield running
    finally:
        running._is_publishing = running._is_consuming = False


def take(reach: Reach, queue: str, count: int, timeout_s: float = 90.0) -> list[Any]:
    """Take `count` messages out of a queue, as (properties, body)."""
    connection = reach.connect()
    channel = connection.channel()
    taken: list[Any] = []

    def check() -> bool:
        while len(taken) < count:
            method, properties, body = channel.basic_get(queue)
            if method is None:
                return False
            channel.basic_ack(method.delivery_tag)
            taken.append((properties, body))
        return True

    until(check, f"{count} messages in {queue}", timeout_s)
    connection.close()
    return taken
