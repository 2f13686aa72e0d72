"""The at-least-once worker: what it sends where, and how often it is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.core import annotations as message_annotations
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.message import Content
from brokerd.core.profiles import profile
from brokerd.core.queue import enqueue_commands, queue_commands
from brokerd.core.queue.effects import DeadLetter, Dropped, GivenUp, Run
from brokerd.core.queue.enqueue_commands import EnqueueStatus
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from brokerd.server.messages.dead_letter_publisher import (
    DISK_ALARM,
    DUE_PREFETCH,
    TARGET,
    Addressed,
    DeadLetterPublisher,
    Pending,
    Worker,
)
from brokerd.server.queues.client import QueueClient
from brokerd.telemetry.poison_rows import LOOKS_A_MINUTE
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.server.messages import fakes

DEAD: Content = (("dlx", "dead"), b"\0\0", b"letter", b"")


class Groups:
    """Answers each command as its group is told to: taken over, or refused."""

    def __init__(self) -> None:
        self.refusing: set[int] = set()
        #: How a group answers that is not there any more.
        self.gone: dict[int, tuple[ReplyStatus, EnqueueStatus]] = {}
        #: (group, messages) of each command.
        self.sent: list[tuple[int, list[Content]]] = []
        self.members: dict[int, list[str]] = {}

    def knows(self, uid: int) -> bool:
        return uid in self.members

    def set_members(self, uid: int, nodes: Iterable[str]) -> None:
        self.members[uid] = list(nodes)

    def refuses_lines(self, uid: int) -> bool:
        return False

    def send(self, uid: int, command: bytes, done: Any, once: bool = False, **_: object) -> None:
        view = enqueue_commands.EnqueueView(command)
        self.sent.append((uid, view.contents(0, view.count)))
        accepted = 0 if uid in self.refusing else view.count
        status, verdict = self.gone.get(uid, (ReplyStatus.OK, EnqueueStatus.OK))
        reply = enqueue_commands.encode_enqueue_reply(verdict, accepted)
        asyncio.get_running_loop().call_soon(done, status, reply)


@dataclass(slots=True)
class Sender:
    """Whose channel the worker's is."""

    node: str = "n0"
    incarnation: int = 1

    def next_uid(self) -> int:
        return 7


class Queues(fakes.Queues):
    """Notes which letters are settled."""

    def __init__(self, *queues: Queue) -> None:
        super().__init__(*queues)
        self.asked: list[bytes] = []
        #: The next answer is the last one: the replica here goes.
        self.is_moving = False
        self.is_gone = False

    def leads(self, uid: int) -> bool:
        return not self.is_gone

    def machine(self, uid: int) -> QueueMachine:
        if self.is_gone:
            raise KeyError(uid)
        return super().machine(uid)

    async def request(self, uid: int, command: bytes, timeout_s: float, once: bool) -> bytes:
        self.asked.append(command)
        self.is_gone = self.is_moving
        return b"{}"


class Rig:
    """A worker of a queue whose letters go to the fanout exchange `dlx`."""

    def __init__(self, version: str = "") -> None:
        self.catalog = CatalogDriver(profile(version) if version else None)
        self.catalog.exchange("dlx", "fanout")
        for name in ("a", "b"):
            self.catalog.queue(name)
            self.catalog.bind("dlx", name)
        self.routing = fakes.Routing(self.catalog)
        self.groups = Groups()
        groups: Any = self.groups
        self.queues = Queues(*self.catalog.view.queues())
        self.uids = [queue.uid for queue in self.catalog.route("dlx", "dead").queues]
        groups.request = self.queues.request
        self.client = QueueClient(fakes.turn(groups, "n0"), 1)
        self.worker = Worker(1, self.queues, self.client, 7, self.routing, self.addressed)
        self.letters = [Pending(Run(1, 1, 0, 0, 0, 0), "rejected", 0)]

    def addressed(self, letter: Pending, options: QueueOptions) -> Addressed:
        result = self.catalog.route("dlx", "dead")
        return Addressed("/", result, DEAD, result.queues)

    def publisher(self) -> DeadLetterPublisher:
        """Return what publishes letters at most once."""
        return DeadLetterPublisher(self.queues, self.client, self.routing, Sender(), print)

    async def round(self) -> None:
        """Let the worker publish what waits; it settles what every target has."""
        self.letters = await self.worker._round(self.letters)

    def counts(self) -> dict[str, Any]:
        """Return what was counted of the exchange since the last look."""
        rows = self.routing.counters.take(0, 1)
        found = [row for row in rows if row["k"] == "exchange" and row["exchange"] == "dlx"]
        return found[0] if found else {}


async def test_a_letter_that_is_sent_again_is_counted_once() -> None:
    """R-ALO-6: each round counted it anew, though only one target was still to have it."""
    rig = Rig()
    a, b = rig.uids
    rig.groups.refusing = {b}
    await rig.round()
    assert [uid for uid, _ in rig.groups.sent] == [a, b]
    assert rig.letters
    assert not rig.queues.asked
    counts = rig.counts()
    assert (counts["internal_in"], counts["routed"], counts["copies"]) == (1, 1, 2)
    assert counts["internal_in_bytes"] == len(b"letter")
    rig.groups.sent.clear()
    await rig.round()
    assert [uid for uid, _ in rig.groups.sent] == [b]
    rig.groups.refusing = set()
    await rig.round()
    assert not rig.letters
    assert rig.queues.asked == [queue_commands.encode_dead_letters_settle([(1, 2)])]
    assert not rig.counts()


@pytest.mark.parametrize(
    "answer",
    [(ReplyStatus.OK, EnqueueStatus.DELETED), (ReplyStatus.GONE, EnqueueStatus.OK)],
    ids=str,
)
async def test_a_target_that_is_being_deleted_has_not_taken_a_letter(
    answer: tuple[ReplyStatus, EnqueueStatus],
) -> None:
    """R-ALO-6, R-ALO-7: the queue knows of its end before the catalog does; letters were lost."""
    rig = Rig()
    a, b = rig.uids
    rig.catalog.unbind("dlx", "b")
    rig.groups.gone = {a: answer}
    await rig.round()
    assert rig.letters
    assert not rig.queues.asked
    rig.catalog.unbind("dlx", "a")
    rig.catalog.bind("dlx", "b")
    await rig.round()
    assert [uid for uid, _ in rig.groups.sent] == [a, b]
    assert not rig.letters
    assert rig.queues.asked == [queue_commands.encode_dead_letters_settle([(1, 2)])]


async def test_letters_are_told_apart_by_their_targets() -> None:
    """One answer of a queue confirms its own copies, whichever letters they are of."""
    rig = Rig()
    a, b = rig.uids
    rig.letters.append(Pending(Run(2, 1, 0, 1, 0, 0), "expired", 0))
    rig.groups.refusing = {a}
    await rig.round()
    assert [letter.confirmed for letter in rig.letters] == [{b}, {b}]
    assert rig.counts()["internal_in"] == 2


async def test_a_letter_without_a_route_is_counted_when_it_has_one() -> None:
    rig = Rig()
    for name in ("a", "b"):
        rig.catalog.unbind("dlx", name)
    await rig.round()
    assert rig.letters
    assert not rig.groups.sent
    assert not rig.counts()
    rig.catalog.bind("dlx", "a")
    await rig.round()
    assert not rig.letters
    assert rig.counts()["copies"] == 1


@pytest.mark.parametrize(("version", "is_marked"), [("", False), ("mrg", True)])
async def test_a_letter_that_goes_over_an_alternate_exchange_is_marked(
    version: str, is_marked: bool
) -> None:
    """R-MQ-7, O-7: as what clients publish is."""
    rig = Rig(version)
    for name in ("a", "b"):
        rig.catalog.unbind("dlx", name)
    rig.catalog.exchange("alt", "fanout")
    rig.catalog.bind("alt", "a")
    rig.catalog.exchange("main", "direct", arguments={"alternate-exchange": "alt"})
    result = rig.catalog.route("main", "dead")
    way = Addressed("/", result, DEAD, result.queues)
    await rig.worker._send([(rig.letters[0], way, result.queues)])
    ((_, contents),) = rig.groups.sent
    assert message_annotations.decode(contents[0][3]).rerouted is is_marked


async def test_a_replica_that_goes_while_letters_are_taken_ends_no_worker() -> None:
    """A queue that moves: the task ended with a KeyError (cluster seed 21001334)."""
    rig = Rig()
    rig.queues.is_moving = True
    assert await rig.worker._checkout([]) == []


async def test_a_letter_waits_for_a_queue_that_this_member_has_not_opened_yet() -> None:
    """R-DLX-19: at a start it was taken for one of a deleted queue, and was gone."""
    rig = Rig()
    publisher = DeadLetterPublisher(
        rig.queues, rig.client, rig.routing, Sender(), lambda work: None
    )
    source = rig.uids[0]
    publisher.publish(source, DeadLetter("expired", "dlx", "dead", [Run(1, 1, 0, 0, 0, 0)], 0))
    queues = {queue.uid: queue for queue in rig.catalog.view.queues()}
    assert [uid for uid, _ in rig.groups.sent] == [rig.uids[1]]
    assert rig.groups.members == {rig.uids[1]: queues[rig.uids[1]].members}


@pytest.mark.parametrize("reason", ["delivery_limit", "rejected"])
async def test_what_was_given_up_for_its_limit_is_told_once_with_its_kind(reason: str) -> None:
    """At least once: when its letter goes off, not when it is sent again; at most once: as it goes.
    What clients reject by themselves is no poison.
    """
    rig = Rig()
    worker = DeadLetterPublisher(rig.queues, rig.client, rig.routing, Sender(), print)
    rig.queues.contents = lambda uid, run: [(("x", "k"), b"\0\0", b"body", b"")]  # type: ignore[method-assign]
    run = Run(1, 1, 0, 0, 4, 3)
    letter = Pending(run, reason, 0)
    options = QueueOptions(dead_letter_exchange="dlx")
    for letter.is_sent in (False, True):
        worker._addressed(rig.uids[0], letter, options)
    worker.publish(rig.uids[1], DeadLetter(reason, "dlx", None, [run], 0))
    rows = [row for row in rig.routing.counters.take_events(0, 1) if row["k"] == "redel"]
    told = [
        (row["queue"], row["ended"], row["n"], row["tries"], row["redeliveries"]) for row in rows
    ]
    assert sorted(told) == (
        [("a", "routed", 1, 4, 3), ("b", "routed", 1, 4, 3)] if reason == "delivery_limit" else []
    )
    assert len({row["fp"] for row in rows}) <= 1


async def test_of_what_was_given_up_without_a_letter_no_more_is_read_than_looked_at() -> None:
    rig = Rig()
    worker = DeadLetterPublisher(rig.queues, rig.client, rig.routing, Sender(), print)
    read: list[int] = []

    def contents(uid: int, run: Run) -> list[Any]:
        read.append(run.length)
        return [(("x", "k"), b"\0\0", b"body", b"")] * run.length

    rig.queues.contents = contents  # type: ignore[method-assign]
    worker.given_up(rig.uids[0], GivenUp([Run(1, 1, 0, 0, 4, 3), Run(2, 150, 0, 0, 2, 1)]))
    worker.given_up(rig.uids[0], GivenUp([Run(200, 50, 0, 0, 2, 1)]))
    worker.given_up(99, GivenUp([Run(1, 1, 0, 0, 4, 3)]))
    assert read == [1, LOOKS_A_MINUTE - 1]
    rows = [row for row in rig.routing.counters.take_events(0, 1) if row["k"] == "redel"]
    told = sorted((row["fp"] == "", row["ended"], row["n"], row["redeliveries"]) for row in rows)
    assert told == [(False, "dropped", 100, 102), (True, "dropped", 101, 101)]


async def test_what_purges_settings_and_ends_take_is_counted_by_its_cause() -> None:
    rig = Rig()
    worker = DeadLetterPublisher(rig.queues, rig.client, rig.routing, Sender(), print)
    uid = rig.uids[0]
    for cause in ("purge", "policy", "expired", "auto-delete", "client"):
        worker.dropped(uid, Dropped(cause, 2, 1))
    worker.dropped(99, Dropped("admin", 1))
    counted = {cause: count for cause, count in rig.routing.dropped.totals.items() if count}
    assert counted == {"purge": 3, "policy": 3, "queue_expired": 6, "queue_deleted": 4}


async def test_what_an_exchange_keeps_waits_for_a_disk_alarm_to_end_and_says_so() -> None:
    rig = Rig()
    is_on = True
    tasks: list[asyncio.Task[None]] = []
    publisher = DeadLetterPublisher(
        rig.queues,
        rig.client,
        rig.routing,
        Sender(),
        lambda work: tasks.append(asyncio.create_task(work)),
        lambda: is_on,
    )
    spec = {"type": "quorum", "durable": True, "auto_delete": False, "arguments": {}}
    rig.catalog.put("queue", "amq.delayed.later", spec | {"settings": {}}, uid=8, members=["n1"])
    kept = rig.catalog.view.queue("/", "amq.delayed.later")
    assert kept is not None
    rig.queues.by_uid[kept.uid] = kept
    checked_out: list[int] = []

    async def checkout(uid: int, count: int) -> None:
        checked_out.append(count)

    rig.client.take_dead_letters = checkout  # type: ignore[method-assign]
    assert publisher.late_reason(kept.uid) == DISK_ALARM
    publisher.wake(kept.uid)
    for _ in range(5):
        await asyncio.sleep(0)
    assert checked_out == []
    is_on = False
    publisher.wake(kept.uid)
    for _ in range(5):
        await asyncio.sleep(0)
    assert checked_out == [DUE_PREFETCH]
    assert publisher.late_reason(kept.uid) == ""
    publisher._workers[kept.uid].is_held_up = True
    assert publisher.late_reason(kept.uid) == TARGET
    publisher.stop(kept.uid)
    await asyncio.gather(*tasks)
    assert publisher.late_reason(kept.uid) == ""


async def test_a_target_that_refuses_holds_a_worker_up() -> None:
    rig = Rig()
    rig.groups.refusing = set(rig.uids)
    rig.worker._checkout = lambda known: asyncio.sleep(0, rig.letters)  # type: ignore[method-assign]
    letters, has_room = await rig.worker._settle_some([])
    assert (letters, has_room, rig.worker.is_held_up) == (rig.letters, False, True)
    rig.groups.refusing = set()
    assert await rig.worker._settle_some(letters) == ([], True)
    assert not rig.worker.is_held_up
