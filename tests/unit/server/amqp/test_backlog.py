"""Deliveries that wait for a consumer or its socket."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.message import Content
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.server.amqp.backlog import Backlog
from brokerd.server.queues.deliveries import LocalConsumer
from tests.unit.server.fakes import Nobody

CONTENT: Content = (("", "q"), b"\0\0", b"body", b"")


def consumer(tag: str = "t") -> LocalConsumer:
    """Return a consumer of group 1, to whom nothing is delivered."""
    sink: Any = Nobody()
    return LocalConsumer(ConsumerId("n", 1, 5, tag), 1, "/", "q", sink, False, 0, 0, False, "guest")


def run(first: int, length: int) -> Run:
    """Return a run of entry 7."""
    return Run(first, length, 7, first - 1, 0, 0)


class _Log:
    """A queue's messages as the backlog sees them."""

    def __init__(self, leads: bool) -> None:
        self.is_leader = leads
        self.reads: list[int] = []
        self.is_gone = False

    def leads(self, uid: int) -> bool:
        return self.is_leader

    def contents_if_here(self, uid: int, wanted: Run) -> list[Content] | None:
        self.reads.append(wanted.first)
        return None if self.is_gone else [CONTENT] * wanted.length


@pytest.mark.parametrize("leads", [True, False])
def test_waiting_deliveries_keep_their_order_and_are_read_again_where_they_can(
    leads: bool,
) -> None:
    """SEC-45."""
    log = _Log(leads)
    backlog = Backlog(log)
    held, free = consumer(tag="held"), consumer(tag="free")
    held.is_held = True
    backlog.add(held, [(run(1, 2), [CONTENT] * 2)])
    backlog.add(free, [(run(3, 1), [CONTENT]), (run(4, 1), [CONTENT])])
    order = []
    while (found := backlog.take()) is not None:
        order.append(found[1].first)
        assert found[2] == [CONTENT]
    assert order == [3, 4]
    assert log.reads == ([3, 4] if leads else [])
    assert backlog.numbers_of(held) == [(1, 3)]
    assert backlog.drop(held) == [(1, 3)]
    assert not backlog


@pytest.mark.parametrize("leads", [True, False])
def test_consumers_that_share_a_prefetch_get_what_there_is_room_for(leads: bool) -> None:
    """R-QOS-3: a longer part is cut; those who do not share pass by."""
    backlog = Backlog(_Log(leads))
    shares, quorum = consumer(tag="shares"), consumer(tag="quorum")
    quorum.has_counts = True
    backlog.add(shares, [(run(1, 5), [CONTENT] * 5)])
    backlog.add(quorum, [(run(9, 2), [CONTENT] * 2)])
    found = backlog.take(3)
    assert found is not None
    assert (found[1], found[2]) == (run(1, 3), [CONTENT] * 3)
    assert backlog.numbers_of(shares) == [(4, 6)]
    found = backlog.take(0)
    assert found is not None
    assert found[0] is quorum
    assert backlog.take(0) is None
    found = backlog.take(2)
    assert found is not None
    assert (found[1], found[2]) == (run(4, 2), [CONTENT] * 2)
    assert not backlog


def test_a_message_that_is_here_no_more_is_said_to_be_so() -> None:
    log = _Log(True)
    log.is_gone = True
    backlog = Backlog(log)
    backlog.add(consumer(), [(run(1, 1), [CONTENT])])
    found = backlog.take()
    assert found is not None
    assert found[2] is None


def test_numbers_are_read_when_their_turn_comes() -> None:
    queue = _Log(leads=True)
    backlog = Backlog(queue)
    backlog.add_numbers(consumer(), [run(1, 2), run(3, 1)])
    assert queue.reads == []
    found = backlog.take()
    assert found is not None
    assert found[1:] == (run(1, 2), [CONTENT] * 2)
    assert queue.reads == [1]
