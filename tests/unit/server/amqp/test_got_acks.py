"""Acks of what basic.get took: they go with the channel's next command, or soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brokerd.amqp import errors
from brokerd.cluster.groups.asked import Asked, ReplyStatus
from brokerd.core.catalog import catalog_objects
from brokerd.core.message import Range
from brokerd.core.queue import queue_commands, settling_gets
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.queue_commands import Kind
from brokerd.server.amqp.channel_deliveries import GOT_ACKS_MAX, ChannelDeliveries
from brokerd.server.amqp.getting import Getting
from brokerd.server.amqp.transactions import Transaction
from brokerd.server.queues.stream import Settle
from tests.unit.server.amqp import fakes

GETTER = ConsumerId("n0", 1, 1, "")
CONSUMER = ConsumerId("n0", 1, 1, "tag")
CLASSIC = 9


class Groups:
    """A group client that notes what is settled, and how."""

    def __init__(self) -> None:
        self.settled: list[tuple[int, ConsumerId, list[Range]]] = []
        self.lazy: list[bool] = []
        self.asked: list[tuple[bytes, Asked]] = []

    def ask(
        self,
        uid: int,
        command: bytes,
        timeout_s: float,
        done: Callable[[ReplyStatus, bytes], None],
        once: bool,
        is_lazy: bool,
    ) -> Asked:
        asked = Asked(done)
        self.asked.append((command, asked))
        return asked

    def send(
        self,
        uid: int,
        command: bytes,
        done: Callable[..., None],
        once: bool = False,
        *,
        is_lazy: bool,
    ) -> None:
        assert once == (command[1] == Kind.RETURN)
        consumer, ranges, _ = queue_commands.decode_ranges(command)
        self.lazy.append(is_lazy)
        self.settled.append((uid, consumer, ranges))


class ClassicQueues(fakes.Queues):
    """Knows one queue."""

    def queue_of(self, uid: int) -> Any:
        spec: Any = {"type": "classic", "durable": True, "auto_delete": False, "replicas": None}
        spec |= {"arguments": {}, "settings": {}, "exclusive_owner": None}
        return catalog_objects.Queue("/", "q", spec, uid, ["n0"]) if uid == CLASSIC else None


class Catalog:
    """Of one revision."""

    topology_revision = 1

    @property
    def view(self) -> Catalog:
        return self


class Connection:
    """Whose user may do what it does."""

    access = "all"
    gate = None


def channel_with(*holders: tuple[int, ConsumerId]) -> tuple[ChannelDeliveries, Groups]:
    """Return a channel that holds a message of each, tags from 1 on, numbers from 10 on."""
    groups = Groups()
    connection: Any = Connection()
    catalog: Any = Catalog()
    services = fakes.channel_services(groups)
    services = replace(services, queues=ClassicQueues(groups), catalog=catalog)
    channel = ChannelDeliveries(services, connection, 1)
    for number, holder in enumerate(holders):
        channel.unacked.delivered(holder, 10 + number, 1)
    return channel, groups


async def until(check: Callable[[], object]) -> None:
    """Let the loop run until something is so."""
    deadline = time.monotonic() + 10
    while not check():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def test_acks_of_gets_are_one_command_with_what_follows() -> None:
    channel, groups = channel_with((7, GETTER), (7, GETTER), (8, GETTER), (7, GETTER))
    for tag in (1, 2, 3, 4):
        channel._acks([(tag, False)])
    assert groups.settled == []
    channel.send_got_acks()
    assert groups.settled == [(7, GETTER, [(10, 11), (11, 12), (13, 14)]), (8, GETTER, [(12, 13)])]
    channel.send_got_acks()
    assert len(groups.settled) == 2
    assert groups.lazy == [True, True]


async def test_acks_of_a_consumer_go_at_once() -> None:
    """Its prefetch waits for them; one `multiple` settles both kinds."""
    channel, groups = channel_with((7, GETTER), (7, CONSUMER))
    channel._acks([(2, True)])
    assert groups.settled == [(7, CONSUMER, [(11, 12)])]


async def test_an_ack_that_nothing_follows_goes_by_itself() -> None:
    channel, groups = channel_with((7, GETTER), (7, GETTER))
    channel._acks([(1, False)])
    await until(lambda: groups.settled)
    # And again: the timer is set anew.
    channel._acks([(2, False)])
    await until(lambda: len(groups.settled) == 2)


async def test_the_timer_of_acks_that_have_gone_lets_younger_ones_wait_their_time() -> None:
    channel, groups = channel_with((7, GETTER), (7, GETTER))
    channel._acks([(1, False)])
    channel.send_got_acks()
    channel._acks([(2, False)])
    channel._got_acks_due()
    assert len(groups.settled) == 1
    channel._got_acks_due()
    assert len(groups.settled) == 2


async def test_many_acks_do_not_wait() -> None:
    channel, groups = channel_with(*[(7, GETTER)] * (2 * GOT_ACKS_MAX))
    # Every other one, so that no two are one range.
    channel._acks([(tag, False) for tag in range(1, 2 * GOT_ACKS_MAX + 1, 2)])
    assert len(groups.settled) == 1
    assert len(groups.settled[0][2]) == GOT_ACKS_MAX


async def test_acks_before_a_wrong_one_count() -> None:
    """R-ACK-11."""
    channel, groups = channel_with((7, GETTER))
    with pytest.raises(errors.PreconditionFailed, match="unknown delivery tag 9"):
        channel._acks([(1, False), (9, False)])
    channel.send_got_acks()
    assert groups.settled == [(7, GETTER, [(10, 11)])]


async def test_acks_of_a_classic_queue_are_lazy_but_in_a_transaction() -> None:
    """ADR 23"""
    channel, groups = channel_with((CLASSIC, CONSUMER), (CLASSIC, CONSUMER), (7, CONSUMER))
    channel._acks([(1, False), (3, False)])
    assert groups.settled == [(CLASSIC, CONSUMER, [(10, 11)]), (7, CONSUMER, [(12, 13)])]
    assert groups.lazy == [True, False]
    channel.tx = Transaction(1000)
    channel._acks([(2, False)])
    channel.commit_settlements()
    assert groups.lazy == [True, False, False]


async def test_rejections_of_a_classic_queue_are_not_lazy() -> None:
    """ADR 23: they may dead-letter, which is not to happen twice."""
    channel, groups = channel_with((CLASSIC, CONSUMER), (CLASSIC, CONSUMER))
    channel.settle_tag(Settle.DISCARD, 1, False)
    channel.settle_tag(Settle.NACK, 2, False)
    assert groups.lazy == [False, False]


async def test_a_get_takes_the_acks_of_its_queue_along() -> None:
    channel, groups = channel_with((CLASSIC, GETTER), (CLASSIC, GETTER), (7, GETTER))
    channel._acks([(1, False), (2, False), (3, False)])
    assert channel.take_got_acks((CLASSIC, GETTER)) == [(10, 12)]
    assert groups.settled == [(7, GETTER, [(12, 13)])]
    assert channel.totals.of("classic").acknowledged == 2
    assert channel.take_got_acks((CLASSIC, GETTER)) == []
    channel.send_got_acks()
    assert len(groups.settled) == 1


async def test_more_acks_than_a_get_takes_along_go_before_it() -> None:
    """In ranges: every other one."""
    channel, groups = channel_with(*[(7, GETTER)] * 129)
    channel._acks([(tag, False) for tag in range(1, 130, 2)])
    assert channel.take_got_acks((7, GETTER)) == []
    assert len(groups.settled[0][2]) == 65


def getting_at(channel: Any) -> Getting:
    queue = channel.services.queues.queue_of(CLASSIC)
    return Getting(channel, queue, no_ack=False)


async def test_acks_that_a_get_took_along_are_sent_again_unless_it_is_answered() -> None:
    """It may never have arrived, or it was refused because the queue waits with damage."""
    channel, groups = channel_with()
    getting = getting_at(channel)
    getting.ask([(3, 5)])
    command, asked = groups.asked[0]
    assert settling_gets.decode(command)[1] == [(3, 5)]
    getting.withdraw()
    asked.answered(ReplyStatus.OK, b"")
    assert groups.settled == [(CLASSIC, getting.holder[1], [(3, 5)])]
    assert groups.lazy == [True]

    getting.ask([(6, 7)])
    with pytest.raises(errors.InternalError):
        groups.asked[1][1].answered(ReplyStatus.LATE, b"")
    getting.ask([(8, 9)])
    with pytest.raises(errors.NotFound):
        groups.asked[2][1].answered(ReplyStatus.REFUSED, b"damaged")
    assert [ranges for _, _, ranges in groups.settled] == [[(3, 5)], [(6, 7)], [(8, 9)]]
    getting.ask([])
    getting.withdraw()
    assert len(groups.settled) == 3


async def test_acks_that_a_get_took_along_are_not_sent_again_when_it_is_answered() -> None:
    channel, groups = channel_with()
    getting = getting_at(channel)
    getting.ask([(3, 5)])
    # Refused by the queue itself, which has settled them before.
    refusal = b'{"refused":405,"text":"not supported"}'
    with pytest.raises(errors.ProtocolError):
        groups.asked[0][1].answered(ReplyStatus.OK, refusal)
    getting.withdraw()
    assert groups.settled == []
