"""Acks of what basic.get took: they go with the channel's next command, or soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from brokerd.amqp import errors
from brokerd.core.message import Range
from brokerd.core.queue import queue_commands
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.queue_commands import Kind
from brokerd.server.amqp.channel_deliveries import GOT_ACKS_MAX, ChannelDeliveries
from tests.unit.server.amqp.fakes import channel_services

GETTER = ConsumerId("n0", 1, 1, "")
CONSUMER = ConsumerId("n0", 1, 1, "tag")


class Groups:
    """A group client that notes what is settled."""

    def __init__(self) -> None:
        self.settled: list[tuple[int, ConsumerId, list[Range]]] = []

    def send(
        self, uid: int, command: bytes, done: Callable[..., None], once: bool, is_lazy: bool
    ) -> None:
        assert command[1] == Kind.SETTLE
        assert not once
        consumer, ranges, _ = queue_commands.decode_ranges(command)
        # Nobody minds if these come late; those of a consumer make room for the next messages.
        assert is_lazy == (not consumer.tag)
        self.settled.append((uid, consumer, ranges))


def channel_with(*holders: tuple[int, ConsumerId]) -> tuple[ChannelDeliveries, Groups]:
    """Return a channel that holds a message of each, tags from 1 on, numbers from 10 on."""
    groups = Groups()
    connection: Any = None
    channel = ChannelDeliveries(channel_services(groups), connection, 1)
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
