"""What stands in for the member around this room in its tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from brokerd.cluster.groups.host_events import GroupStatus, Progress
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.router import RouteResult
from brokerd.core.message import Content
from brokerd.core.queue import effects
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from brokerd.raft.messages import NodeId
from brokerd.server.messages.dropped import Dropped
from brokerd.server.queues.client import QueueClient
from brokerd.server.queues.deliveries import DeliveryHub, Part
from brokerd.server.queues.turn import Turn
from brokerd.telemetry.counters import Counters
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.core.queue_driver import QueueDriver
from tests.unit.server.members.fakes import status

Json = dict[str, Any]
CONTENT: Content = (("", "q"), b"\x00\x00", b"body", b"")
SPEC: Json = {
    "type": "quorum",
    "durable": True,
    "auto_delete": False,
    "arguments": {},
    "settings": {},
}


def queue(uid: int, vhost: str = "/", members: tuple[str, ...] = ("n0", "n1", "n2")) -> Queue:
    return Queue(vhost, f"q{uid}", SPEC, uid, list(members))


def turn(groups: Any, node: str = "n", incarnation: int = 1) -> Turn:
    """Return a turn that ends at once and sends each batch alone."""
    return Turn(groups, node, incarnation, lambda callback: callback(), lambda: False)


class Identity:
    """A member by its name; a test may start it anew."""

    def __init__(self, node: str, incarnation: int = 1) -> None:
        self.node = node
        self.incarnation = incarnation


class Queues:
    """Queues of the catalog, with one machine for all of them and one content for all messages."""

    def __init__(self, *queues: Queue) -> None:
        self.by_uid = {each.uid: each for each in queues}
        self.driver = QueueDriver(queue_type="quorum")

    def queue_of(self, uid: int) -> Queue | None:
        return self.by_uid.get(uid)

    def machine(self, uid: int) -> QueueMachine:
        return self.driver.machine

    def leads(self, uid: int) -> bool:
        return True

    def contents(self, uid: int, run: Run) -> list[Content]:
        return [CONTENT] * run.length

    async def request(self, uid: int, command: bytes, timeout_s: float, once: bool) -> bytes:
        await asyncio.sleep(0)
        return self.driver.send(command).reply

    @property
    def client(self) -> QueueClient:
        """Return what asks these queues."""
        groups: Any = self
        return QueueClient(turn(groups), 1)


class Routing:
    """A catalog's router; notes who was warned and what found no queue."""

    def __init__(self, catalog: CatalogDriver | None = None) -> None:
        self.catalog = catalog or CatalogDriver()
        self.router = self.catalog.router
        self.down_homes = self.catalog.view.down_homes
        self.profile = self.catalog.profile
        self.counters = Counters(lambda: 0, lambda: 0)
        self.warnings: list[str] = []
        self.dropped = Dropped()
        #: (exchange, messages)
        self.nowhere: list[tuple[str, int]] = []

    def unroutable(self, vhost: str, exchange: str, result: RouteResult, count: int) -> None:
        self.nowhere.append((exchange, count))

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Replicas:
    """One replica for all groups; notes what is proposed to it and sent to other members."""

    def __init__(self) -> None:
        #: In term 3, with nothing to catch up with.
        self.status: GroupStatus | None = status(term=3)
        self.others = {NodeId("n0")}
        self.proposed: list[bytes] = []
        #: What went before all that waits: options.
        self.went_first: list[bytes] = []
        self.answers: list[Callable[[bool, bytes, NodeId | None], None]] = []
        #: (member, term) of each delivery.
        self.sent: list[tuple[NodeId, int]] = []

    def alive(self) -> set[NodeId]:
        return self.others

    def has_group(self, uid: int) -> bool:
        return self.status is not None

    def progress_of(self, uid: int) -> Progress:
        found = self.status
        assert found is not None
        return Progress(
            *(found.leader, found.is_leader, found.term, found.commit, found.applied),
            *(found.last, found.snapshot, found.is_damaged),
        )

    def term_of(self, uid: int) -> int | None:
        return None if self.status is None else self.status.term

    def leader_of(self, uid: int) -> NodeId | None:
        return None

    def propose(
        self,
        uid: int,
        command: bytes,
        done: Callable[[bool, bytes, NodeId | None], None],
        *,
        first: bool,
    ) -> None:
        (self.went_first if first else self.proposed).append(command)
        self.answers.append(done)

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        self.sent.append((node, term))


class Hub(DeliveryHub):
    """Notes what consumers here are told, instead of telling them."""

    def __init__(self) -> None:
        super().__init__(lambda uid, command, done: None, turn(None).settlements)
        self.delivered: list[ConsumerId] = []
        self.reminded: list[ConsumerId] = []
        self.ended: list[ConsumerId] = []
        self.resumed: list[int] = []

    def has_group(self, uid: int) -> bool:
        return True

    def deliver(self, consumer_id: ConsumerId, parts: list[Part]) -> None:
        (self.delivered if parts else self.reminded).append(consumer_id)

    def cancelled(self, consumer_id: ConsumerId, cause: str) -> None:
        self.ended.append(consumer_id)

    def leader_changed(self, uid: int) -> None:
        self.resumed.append(uid)


class DeadLetters:
    """Nothing dies here; notes what was dropped."""

    def __init__(self) -> None:
        self.gone: list[tuple[int, effects.Dropped]] = []

    def publish(self, uid: int, effect: effects.DeadLetter) -> None:
        raise AssertionError(effect)

    def reroute(self, uid: int, effect: effects.Reroute) -> None:
        raise AssertionError(effect)

    def dropped(self, uid: int, effect: effects.Dropped) -> None:
        self.gone.append((uid, effect))

    def given_up(self, uid: int, effect: effects.GivenUp) -> None:
        raise AssertionError(effect)

    def wake(self, uid: int) -> None:
        raise AssertionError(uid)

    def stop(self, uid: int) -> None:
        """Nobody works here."""


class JobWorkers:
    """Notes which queues have a job to be worked on, by term."""

    def __init__(self) -> None:
        self.woken: list[tuple[int, int]] = []
        self.stopped: list[int] = []

    def wake(self, uid: int, term: int) -> None:
        self.woken.append((uid, term))

    def stop(self, uid: int) -> None:
        self.stopped.append(uid)


class Options:
    """The same options for all queues; notes who was looked at."""

    def __init__(self) -> None:
        self.options = QueueOptions(queue_type="quorum")
        self.looked: list[int] = []
        #: A queue that nobody can look at.
        self.broken: int | None = None

    def of(self, queue: Queue) -> QueueOptions:
        assert queue.uid != self.broken
        self.looked.append(queue.uid)
        return self.options

    def warn_of(self, queue: Queue) -> None:
        """Nothing is odd."""
