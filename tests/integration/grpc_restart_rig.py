"""Members stopped one after the other under load of the Messages service: what is published, and
what a consumer sees of it.

A publisher gives each message a body of its own, and publishes it again until it is confirmed.
"""

from __future__ import annotations

import collections
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from tests.integration.members import Member, eventually, select_nothing, wait_acquainted
from tests.integration.messages_client import Client, batch, credit, publication, settle

QUEUE = "restarted"
IN_FLIGHT_MAX = 500
PER_REQUEST = 50
CREDIT = 1000
#: All that was published has its confirm.
END_SECONDS = 120.0


class Worker(threading.Thread, ABC):
    """A client that goes to the next member when its call ends; a failure of it is kept."""

    def __init__(self, members: list[Member], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._ports = itertools.cycle([member.grpc_port for member in members])
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        #: Statuses that calls ended with.
        self.statuses: collections.Counter[tuple[str, str]] = collections.Counter()

    def run(self) -> None:
        """Work at one member after the other."""
        try:
            done = False
            while not done:
                client = Client(next(self._ports))
                try:
                    done = self.work(client)
                except grpc.RpcError as error:
                    failed: Any = error
                    self.statuses[failed.code().name, failed.details()] += 1
                    if failed.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    select_nothing(0.05)
                finally:
                    client.channel.close()
        except BaseException as failure:
            self.failure = failure

    @abstractmethod
    def work(self, client: Client) -> bool:
        """Do it until a call fails; True: all is done."""

    def finish(self) -> None:
        """Wait for its end."""
        self.stopping.set()
        self.join(END_SECONDS)
        assert not self.is_alive(), f"{self.name} has not ended: {self.statuses}"
        if self.failure is not None:
            raise self.failure


class Unary(Worker):
    """Publishes message by message with PublishBatch; count: how many are confirmed."""

    def __init__(self, members: list[Member], name: str) -> None:
        super().__init__(members, name)
        self.count = 0

    def work(self, client: Client) -> bool:
        while not self.stopping.is_set():
            request = batch(publication(1, QUEUE, f"{self.name}-{self.count}".encode()))
            answer = client.publish_batch(request)
            assert [(each.first, each.last) for each in answer.confirmed] == [(1, 1)]
            self.count += 1
        return True


class Stream(Worker):
    """Publishes with Publish, up to IN_FLIGHT_MAX at once."""

    def __init__(self, members: list[Member], name: str) -> None:
        super().__init__(members, name)
        self.made = 0
        self._unconfirmed: list[int] = []

    @property
    def count(self) -> int:
        """Return how many are confirmed, once it has ended."""
        return self.made

    def work(self, client: Client) -> bool:
        call = client.publish()
        waiting = dict(enumerate(self._unconfirmed, 1))
        last, unsent = len(waiting), sorted(waiting)
        try:
            while waiting or not self.stopping.is_set():
                while not self.stopping.is_set() and len(waiting) < IN_FLIGHT_MAX:
                    last += 1
                    waiting[last] = self.made
                    self.made += 1
                    unsent.append(last)
                for at in range(0, len(unsent), PER_REQUEST):
                    some = unsent[at : at + PER_REQUEST]
                    bodies = [f"{self.name}-{waiting[n]}".encode() for n in some]
                    call.send(batch(*map(publication, some, [QUEUE] * len(some), bodies)))
                unsent = []
                for span in call.next().confirmed:
                    for n in range(span.first, span.last + 1):
                        del waiting[n]
            assert call.rest() == []
            return True
        finally:
            self._unconfirmed = sorted(waiting.values())
            call.half_close()


class Consumer(Worker):
    """Takes and settles all; notes how often each body came for the first time."""

    def __init__(self, members: list[Member], name: str) -> None:
        super().__init__(members, name)
        self.seen: collections.Counter[str] = collections.Counter()
        self.again: set[str] = set()

    def work(self, client: Client) -> bool:
        call = client.consume(queue=QUEUE, credit=CREDIT)
        try:
            while not self.stopping.is_set():
                delivered = call.next().deliveries
                for each in delivered:
                    if each.redelivered:
                        self.again.add(each.body.decode())
                    else:
                        self.seen[each.body.decode()] += 1
                call.send(settle("ACCEPT", delivered[-1].delivery_tag, multiple=True))
                call.send(credit(len(delivered)))
            return True
        finally:
            call.half_close()

    def bodies(self) -> set[str]:
        """Return what has come."""
        return self.again | set(self.seen)

    def doubled(self) -> list[str]:
        """Return what came twice and was not said to."""
        return [body for body, count in self.seen.items() if count > 1]


def roll(members: list[Member], is_under_load: Callable[[], object]) -> None:
    """Stop and start each member; is_under_load() is polled until true before each stop."""
    for member in members:
        eventually(is_under_load, "messages are being published")
        assert member.stop() == 0
        member.start()
        member.wait_ready()
        wait_acquainted(members)


def make_queue(member: Member) -> None:
    """Declare the queue."""
    connection = member.connect()
    arguments = {"x-queue-type": "quorum"}
    connection.channel().queue_declare(QUEUE, durable=True, arguments=arguments)
    connection.close()


def expected(name: str, count: int) -> Iterator[str]:
    """Return the bodies of a publisher."""
    return (f"{name}-{n}" for n in range(count))


def end(consumer: Consumer, member: Member, bodies: set[str]) -> None:
    """Wait until all is consumed, then check that nothing more is, and nothing came twice."""
    eventually(lambda: len(consumer.bodies()) >= len(bodies), "all are received")
    assert consumer.bodies() == bodies
    assert consumer.doubled() == []
    # Wakes the consumer: it waits for a message.
    consumer.stopping.set()
    client = Client(member.grpc_port)
    client.publish_batch(batch(publication(1, QUEUE, b"the last")))
    client.channel.close()
    consumer.finish()
