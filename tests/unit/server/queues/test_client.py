"""What a member tells its queues: which command each operation is, and what its answer says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from brokerd.cluster.errors import GroupGone, GroupStuck, GroupUnavailable
from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.core.catalog.refusals import Refused
from brokerd.core.queue import queue_commands
from brokerd.core.queue.client_shapes import Checkout, Counts, Deleted
from brokerd.core.queue.effects import ConsumerId
from brokerd.server.catalog.catalog_writer import QueueStuck, Unavailable
from brokerd.server.queues.client import QueueClient
from brokerd.server.queues.turn import Turn
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.core.queue_driver import QueueDriver

UID = 70_000
CONSUMER = ConsumerId("n0", 1, 1, "c")
CHECKOUT = Checkout(CONSUMER, 1, False, False, 0, "guest")


class Leaders:
    """The queue's leader, with its machine; `error` in place of the next answer."""

    def __init__(self) -> None:
        self.driver = QueueDriver(queue_type="quorum")
        self.sent: list[bytes] = []
        self.are_once: list[bool] = []
        self.answers: list[Callable[[ReplyStatus, bytes], None]] = []
        self.pending = 0
        self.is_known = True
        self.error: Exception | None = None

    def send(
        self,
        uid: int,
        command: bytes,
        done: Callable[[ReplyStatus, bytes], None],
        once: bool = False,
        **_: Any,
    ) -> None:
        assert uid == UID
        self.sent.append(command)
        self.are_once.append(once)
        self.answers.append(done)

    async def request(self, uid: int, command: bytes, timeout_s: float, once: bool) -> bytes:
        assert (uid, timeout_s) == (UID, 2.5)
        self.sent.append(command)
        self.are_once.append(once)
        if self.error is not None:
            raise self.error
        return self.driver.send(command).reply

    def pending_bytes(self, uid: int) -> int:
        return self.pending

    def knows(self, uid: int) -> bool:
        return self.is_known


class Rig:
    """A client whose member's channels settle in turns that end when the test says so."""

    def __init__(self) -> None:
        self.leaders = Leaders()
        self.due: list[Callable[[], None]] = []
        groups: Any = self.leaders
        turn = Turn(groups, "n0", 1, self.due.append)
        self.settlements = turn.settlements
        self.client = QueueClient(turn, 2.5)


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_a_queue_is_declared_consumed_purged_and_deleted(rig: Rig) -> None:
    client, driver = rig.client, rig.leaders.driver
    await client.wait_for_leader(UID)
    driver.fill(3)
    assert not await client.has_takers(UID)
    assert await client.declared(UID) == Counts(3, 0)
    assert await client.check_out(UID, CHECKOUT) is None
    assert await client.declared(UID) == Counts(2, 1)
    await client.cancel(UID, CONSUMER)
    assert await client.declared(UID) == Counts(2, 0, holders=1)
    assert await client.delete(UID, if_empty=True, if_unused=False, cause="c") == Deleted(
        False, 2, 0
    )
    assert await client.purge(UID) == 2
    assert await client.delete(UID, if_empty=False, if_unused=True, cause="c") == Deleted(True)
    assert await client.declared(UID) is None


async def test_dead_letters_are_taken_settled_and_given_up(rig: Rig) -> None:
    driver = rig.leaders.driver
    terms = {"dead_letter_exchange": "dlx", "at_least_once": True, "overflow": "reject-publish"}
    driver.configure(queue_type="quorum", **terms)
    driver.fill(3)
    driver.consume(prefetch=3)
    driver.discard((0, 3))
    await rig.client.take_dead_letters(UID, 2)
    await rig.client.settle_dead_letters(UID, [(0, 1)])
    assert await rig.client.discard_dead_letters(UID) == 2
    assert (driver.count("dl_confirmed"), driver.count("dl_lost")) == (1, 2)


async def test_a_refused_consumer_learns_why(rig: Rig) -> None:
    rig.leaders.driver = QueueDriver()
    await rig.client.check_out(UID, CHECKOUT)
    exclusive = Checkout(CONSUMER._replace(tag="x"), 1, False, True, 0, "guest")
    refused = await rig.client.check_out(UID, exclusive)
    assert isinstance(refused, Refused)
    assert refused.code == 403


@pytest.mark.parametrize(
    ("error", "told"),
    [(GroupStuck(UID, "damaged"), QueueStuck), (GroupUnavailable(UID, 2.5), Unavailable)],
)
async def test_who_asks_in_vain_learns_why(
    rig: Rig, error: Exception, told: type[Exception]
) -> None:
    rig.leaders.error = error
    with pytest.raises(told, match=r"damaged|no leader"):
        await rig.client.purge(UID)


async def test_a_queue_without_a_leader_is_named(rig: Rig) -> None:
    catalog = CatalogDriver()
    catalog.queue("q")
    record = catalog.view.queue("/", "q")
    client = QueueClient(rig.client._turn, 2.5, {UID: record}.get)
    rig.leaders.error = GroupUnavailable(UID, 2.5)
    with pytest.raises(Unavailable, match=r"^no leader of queue 'q' in vhost '/' answered within"):
        await client.purge(UID)


async def test_a_queue_that_is_gone_has_ended_and_takes_no_consumer(rig: Rig) -> None:
    rig.leaders.error = GroupGone(UID)
    assert await rig.client.declared(UID) is None
    assert await rig.client.delete(UID, if_empty=True, if_unused=True, cause="c") is None
    assert (await rig.client.purge(UID), await rig.client.has_takers(UID)) == (0, False)
    await rig.client.cancel(UID, CONSUMER)
    with pytest.raises(GroupGone):
        await rig.client.check_out(UID, CHECKOUT)
    with pytest.raises(GroupGone):
        await rig.client.take_dead_letters(UID, 1)


async def test_what_was_settled_goes_before_each_operation(rig: Rig) -> None:
    """Within a channel and queue operations apply in the order of the calls."""
    client = rig.client
    settle = queue_commands.encode_ranges(queue_commands.Kind.SETTLE, CONSUMER, [(0, 1)])
    for operation in (
        lambda: client.declared(UID),
        lambda: client.purge(UID),
        lambda: client.cancel(UID, CONSUMER),
        lambda: client.check_out(UID, CHECKOUT),
        lambda: client.delete(UID, if_empty=False, if_unused=False, cause="c"),
    ):
        rig.leaders.sent.clear()
        rig.settlements.add(UID, settle, lambda *_: None, is_lazy=False)
        await operation()
        assert rig.leaders.sent[0] == settle
        assert len(rig.leaders.sent) == 2
    rig.leaders.sent.clear()
    rig.settlements.add(UID, settle, lambda *_: None, is_lazy=False)
    client.change_consumer(UID, CHECKOUT)
    rig.settlements.add(UID, settle, lambda *_: None, is_lazy=False)
    client.resume(UID, CONSUMER, [(1, 2)], lambda _: None)
    assert [command[1] for command in rig.leaders.sent] == [
        settle[1],
        queue_commands.Kind.CHECKOUT,
        settle[1],
        queue_commands.Kind.RESUME,
    ]


async def test_what_must_not_be_applied_twice_is_sent_once(rig: Rig) -> None:
    await rig.client.wait_for_leader(UID)
    await rig.client.purge(UID)
    rig.client.resume(UID, CONSUMER, [], lambda _: None)
    assert rig.leaders.are_once == [False, True, True]


def test_a_nudge_goes_only_where_nothing_is_on_its_way(rig: Rig) -> None:
    rig.leaders.pending = 7
    rig.client.nudge(UID)
    assert rig.leaders.sent == []
    rig.leaders.pending = 0
    rig.client.nudge(UID)
    assert rig.leaders.sent == [queue_commands.encode_tick()]


@pytest.mark.parametrize(
    ("reply", "is_known", "goes_on"),
    [({}, True, True), ({"refused": "gone"}, True, False), ({"refused": "gone"}, False, True)],
)
def test_a_consumer_ends_when_its_queue_refuses_it(
    rig: Rig, reply: dict[str, Any], is_known: bool, goes_on: bool
) -> None:
    """Unless the queue was deleted, which ends its consumers by itself."""
    outcome: list[bool] = []
    rig.client.resume(UID, CONSUMER, [], outcome.append)
    rig.leaders.is_known = is_known
    rig.leaders.answers[0](ReplyStatus.OK, json.dumps(reply).encode())
    assert outcome == [goes_on]
