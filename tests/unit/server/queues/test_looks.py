"""How long a turn lasts: while each look at the sockets brings more (ADR 64)."""

from __future__ import annotations

from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.core.queue import enqueue_commands
from brokerd.core.queue.enqueue_commands import EnqueueStatus
from brokerd.server.queues.looks import LOOKS_BYTES_MAX, LOOKS_MAX, LOOKS_S
from tests.unit.server.queues.test_turn import Rig, offer


def test_who_awaits_each_confirm_does_not_wait_for_another_look() -> None:
    rig = Rig()
    first, _ = rig.publisher(1)
    offer(first, 8, 1)
    rig.look()
    assert rig.shares() == [(8, [(1, 1, 1)])]
    assert rig.due == []


def test_a_turn_lasts_while_each_look_brings_more() -> None:
    """Who has sent many at a time is waited for while more comes; nobody waits once none does."""
    rig = Rig()
    first, _ = rig.publisher(1)
    offer(first, 8, 1, 2)
    for number in (3, 4, 5):
        rig.look()
        assert rig.shares() == []
        offer(first, 8, number)
    rig.look()
    assert rig.shares() == []
    rig.look()
    assert rig.shares() == [(8, [(1, 1, 5)])]
    # It is known from then on; and so is one who has fallen back to single ones.
    offer(first, 8, 6)
    rig.look()
    assert len(rig.shares()) == 1
    rig.look()
    assert rig.shares()[1:] == [(8, [(1, 6, 1)])]
    rig.groups.sent[0][2](
        ReplyStatus.OK, enqueue_commands.encode_enqueue_reply(EnqueueStatus.OK, 5)
    )
    offer(first, 8, 7)
    rig.look()
    assert rig.shares()[2:] == [(8, [(1, 7, 1)])]


def test_several_publishers_are_a_reason_to_look_again() -> None:
    rig = Rig()
    (first, _), (second, _), (third, _) = (rig.publisher(n) for n in (1, 2, 3))
    offer(first, 8, 1)
    offer(second, 8, 1)
    rig.look()
    offer(third, 8, 1)
    rig.look()
    assert rig.shares() == []
    rig.look()
    assert rig.shares() == [(8, [(1, 1, 1), (2, 1, 1), (3, 1, 1)])]


def test_a_turn_ends_after_so_many_looks() -> None:
    rig = Rig()
    first, _ = rig.publisher(1)
    offer(first, 8, 1, 2)
    for look in range(LOOKS_MAX):
        rig.look()
        offer(first, 8, 3 + look)
    assert rig.shares() == []
    rig.look()
    assert rig.shares() == [(8, [(1, 1, 2 + LOOKS_MAX)])]
    # And the next one has as many.
    offer(first, 8, 3 + LOOKS_MAX)
    rig.look()
    assert len(rig.shares()) == 1


def test_a_turn_ends_after_a_millisecond() -> None:
    """A loop with much to do comes round slowly, and has much by then."""
    rig = Rig()
    first, _ = rig.publisher(1)
    rig.now = 5.0
    offer(first, 8, 1, 2)
    rig.now += LOOKS_S / 2
    rig.look()
    offer(first, 8, 3)
    rig.now += LOOKS_S / 2 + 1e-6
    rig.look()
    assert rig.shares() == [(8, [(1, 1, 3)])]


def test_a_turn_ends_with_enough_in_hand() -> None:
    """What has been read and not handed over is in nobody's account of what is on its way."""
    rig = Rig()
    (first, _), (second, _) = rig.publisher(1), rig.publisher(2)
    half = bytes(LOOKS_BYTES_MAX // 2)
    offer(first, 8, 1, 1, half)
    offer(second, 9, 1, 1, half)
    rig.look()
    assert len(rig.shares()) == 2


def test_who_has_enough_on_its_way_holds_up_no_turn() -> None:
    rig = Rig()
    (first, _), (second, _) = rig.publisher(1), rig.publisher(2)
    for number in (1, 3):
        offer(first, 8, number, 2)
        rig.end_turn()
    offer(first, 8, 5, 2)
    assert rig.due == []
    offer(second, 8, 1)
    rig.look()
    assert rig.shares()[2:] == [(8, [(2, 1, 1)])]
