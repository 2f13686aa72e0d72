"""Looks at a queue: in delivery order, page by page, and nothing of the queue changes by them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.core.queue import browse, ready_spans
from brokerd.core.queue.browse import Browsed, Place, Stage, Wanted
from brokerd.core.queue.queue_commands import ReturnCause
from brokerd.core.queue.queue_machine import QueueMachine
from tests.unit.core.queue_driver import QueueDriver, consumer, content

MANY = 10_000
KINDS: dict[str, dict[str, Any]] = {
    "classic": {"queue_type": "classic"},
    "classic with priorities": {"queue_type": "classic", "max_priority": 3},
    "quorum": {"queue_type": "quorum", "delivery_limit": 20},
    "quorum without a limit": {"queue_type": "quorum"},
    "quorum with delays": {
        "queue_type": "quorum",
        "delivery_limit": 20,
        "delayed_retry": "all",
        "delayed_retry_min_ms": 1_000,
        "delayed_retry_max_ms": 9_000,
    },
}


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ready_spans, "BLOCK_SPANS", 3)
        patch.setattr(ready_spans, "UNPACKED_MIN", 4)
        yield


def digest(machine: QueueMachine) -> str:
    return hashlib.sha256(machine.snapshot()).hexdigest()


def look(
    machine: QueueMachine,
    state: str = browse.READY,
    place: Place | None = None,
    count: int = MANY,
    spans_max: int = MANY,
    **wanted: int,
) -> list[Browsed]:
    """Return all pages of so many messages; a look leaves the machine as it was."""
    before = digest(machine)
    found: list[Browsed] = []
    while True:
        walked = browse.walk(machine, Wanted(state, **wanted), place, count, spans_max)
        assert len(walked.found) <= count
        found += walked.found
        assert walked.place is None or walked.place != place, "no way on"
        place = walked.place
        if place is None:
            break
    assert digest(machine) == before
    return found


def numbers(found: list[Browsed]) -> list[int]:
    return [each.number for each in found]


def test_an_empty_queue_has_nothing_to_show() -> None:
    q = QueueDriver()
    assert look(q.machine, browse.ALL) == []
    assert browse.tail(q.machine, Wanted(browse.ALL), 5, MANY) is None


def test_a_message_is_shown_as_the_queue_knows_it() -> None:
    q = QueueDriver(queue_type="quorum", delivery_limit=5)
    q.publish(content(b"one", ttl_ms=500), content(b"three"))
    first, second = look(q.machine)
    assert (first.number, first.state, first.consumer, first.due_ms) == (0, "ready", None, None)
    assert (first.enqueued_ms, first.expires_ms) == (q.now_ms, q.now_ms + 500)
    assert second.expires_ms is None
    assert second.size_bytes == len(b"\x00\x00three")
    assert first.size_bytes > second.size_bytes - 2
    assert (second.run.entry, second.run.position, second.run.length) == (q.index, 1, 1)


def test_what_a_consumer_holds_is_shown_with_it_and_with_its_returns() -> None:
    q = QueueDriver(queue_type="quorum", delivery_limit=5)
    q.fill(3)
    q.consume("c", prefetch=2)
    q.requeue((0, 1), cause=ReturnCause.REJECT)
    held = look(q.machine, browse.UNACKED)
    assert numbers(held) == [0, 1]
    assert {each.consumer for each in held} == {consumer("c")}
    assert [(h.run.acquired_count, h.run.delivery_count) for h in held] == [(1, 1), (0, 0)]
    assert numbers(look(q.machine, browse.ALL)) == [0, 1, 2]
    assert [each.state for each in look(q.machine, browse.ALL)] == ["unacked", "unacked", "ready"]


def test_what_several_consumers_hold_is_in_order_of_its_numbers() -> None:
    q = QueueDriver()
    q.consume("a", prefetch=2)
    q.consume("b", prefetch=2, channel=2)
    for _ in range(5):
        q.fill(1)
    assert numbers(look(q.machine, browse.UNACKED)) == [0, 1, 2, 3]
    assert numbers(look(q.machine, browse.UNACKED, count=1)) == [0, 1, 2, 3]
    place = browse.tail(q.machine, Wanted(browse.UNACKED), 3, MANY)
    assert numbers(look(q.machine, browse.UNACKED, place)) == [1, 2, 3]
    assert numbers(look(q.machine, browse.UNACKED, first_number=2)) == [2, 3]


def test_delayed_retries_are_shown_with_the_time_at_which_they_are_ready() -> None:
    q = QueueDriver(**KINDS["quorum with delays"])
    q.fill(3)
    q.consume("c", prefetch=3)
    q.requeue((1, 2))
    q.now_ms += 10
    q.requeue((0, 1))
    assert numbers(look(q.machine, browse.DELAYED)) == [1, 0]
    assert [d.due_ms for d in look(q.machine, browse.DELAYED)] == [q.now_ms + 990, q.now_ms + 1000]
    assert numbers(look(q.machine, browse.ALL)) == [2, 1, 0]
    place = browse.tail(q.machine, Wanted(browse.DELAYED), 1, MANY)
    assert place == Place(Stage.DELAYED, 0, 0, 1)
    assert numbers(look(q.machine, browse.DELAYED, place)) == [0]


def test_expired_messages_are_not_shown_before_they_go() -> None:
    q = QueueDriver()
    q.publish(content(b"stays"), content(b"goes", ttl_ms=100), content(b"stays"))
    assert numbers(look(q.machine)) == [0, 1, 2]
    assert numbers(look(q.machine, now_ms=q.now_ms + 100)) == [0, 2]
    q.tick(100)
    # It goes when it is at the head.
    assert q.ready == 3
    assert numbers(look(q.machine)) == [0, 2]


def test_what_is_held_is_shown_though_its_time_is_over() -> None:
    q = QueueDriver()
    q.publish(content(b"held", ttl_ms=100))
    q.consume("c", prefetch=1)
    assert numbers(look(q.machine, browse.UNACKED, now_ms=q.now_ms + 1_000)) == [0]


def test_priorities_are_in_delivery_order() -> None:
    q = QueueDriver(queue_type="classic", max_priority=3)
    for priority in (0, 2, 1, 2, 0):
        q.publish(content(b"x", priority=priority))
    assert numbers(look(q.machine)) == [1, 3, 2, 0, 4]
    assert numbers(look(q.machine, count=2)) == [1, 3, 2, 0, 4]
    place = browse.tail(q.machine, Wanted(), 3, MANY)
    assert numbers(look(q.machine, place=place)) == [2, 0, 4]


def test_a_look_may_begin_at_a_number_or_a_time() -> None:
    q = QueueDriver()
    for _ in range(40):
        q.now_ms += 10
        q.publish(b"a", b"b")
    assert numbers(look(q.machine, first_number=71)) == list(range(71, 80))
    assert numbers(look(q.machine, first_ms=q.now_ms - 15)) == [76, 77, 78, 79]
    assert numbers(look(q.machine, first_ms=q.now_ms + 1)) == []
    assert numbers(look(q.machine, first_number=1_000)) == []


def test_a_walk_looks_at_no_more_spans_than_it_may() -> None:
    q = QueueDriver()
    for _ in range(20):
        q.fill(1)
    walked = browse.walk(q.machine, Wanted(), None, MANY, 7)
    assert numbers(walked.found) == list(range(7))
    assert walked.place == Place(Stage.FRESH, 0, 7, 0)
    assert numbers(look(q.machine, spans_max=1)) == list(range(20))
    assert browse.tail(q.machine, Wanted(), 10, 4) == Place(Stage.FRESH, 0, 16, 0)


def test_the_next_page_goes_on_behind_what_has_left_meanwhile() -> None:
    q = QueueDriver()
    for _ in range(30):
        q.fill(1)
    place = browse.walk(q.machine, Wanted(), None, 5, MANY).place
    for _ in range(12):
        q.get(no_ack=True)
    assert numbers(look(q.machine, place=place)) == list(range(12, 30))
    q.fill(1)
    place = browse.walk(q.machine, Wanted(), None, 5, MANY).place
    assert numbers(look(q.machine, place=place)) == list(range(17, 31))


def test_the_next_page_begins_at_the_next_part_where_a_priority_has_gone() -> None:
    q = QueueDriver(queue_type="classic", max_priority=3)
    for priority in (2, 2, 1):
        q.publish(content(b"x", priority=priority))
    place = browse.walk(q.machine, Wanted(), None, 1, MANY).place
    assert place == Place(Stage.FRESH, 2, 1, 0)
    for _ in range(2):
        q.get(no_ack=True)
    assert numbers(look(q.machine, place=place)) == [2]


def test_a_message_that_came_back_meanwhile_is_no_place_any_more() -> None:
    q = QueueDriver(queue_type="quorum")
    for _ in range(3):
        q.fill(1)
    q.consume("c", prefetch=1)
    q.requeue((0, 1))
    # 1 is out by now, and 0 stands behind all others.
    assert numbers(look(q.machine)) == [2, 0]
    place = browse.walk(q.machine, Wanted(), None, 1, MANY).place
    assert place == Place(Stage.FRESH, 0, 0, 1)
    assert numbers(look(q.machine, place=place)) == [0]
    gone = Place(Stage.FRESH, 0, 0, 7)
    assert numbers(look(q.machine, place=gone)) == [2, 0]
    # A place with a number that is not there: all that is left was behind it.
    q.settle((1, 2))
    assert numbers(look(q.machine, place=place)) == [0]


def test_a_place_in_what_came_back_is_found_or_all_of_it_is_behind() -> None:
    q = QueueDriver(queue_type="quorum", delivery_limit=9)
    for _ in range(4):
        q.fill(1)
    q.consume("c", prefetch=3)
    q.channel_down()
    assert numbers(look(q.machine)) == [0, 1, 2, 3]
    place = browse.walk(q.machine, Wanted(), None, 2, MANY).place
    assert place == Place(Stage.RETURNS, 0, 2, 1)
    assert numbers(look(q.machine, place=place)) == [2, 3]
    assert numbers(look(q.machine, place=Place(Stage.RETURNS, 0, 2, 5))) == [0, 1, 2, 3]
    assert numbers(look(q.machine, place=browse.tail(q.machine, Wanted(), 3, MANY))) == [1, 2, 3]


def test_the_last_ones_are_counted_without_what_has_expired() -> None:
    q = QueueDriver()
    q.publish(content(b"x"), content(b"x"), content(b"x", ttl_ms=10), content(b"x"))
    wanted = Wanted(now_ms=q.now_ms + 10)
    assert browse.tail(q.machine, wanted, 2, MANY) == Place(Stage.FRESH, 0, 1, 0)


def test_a_place_in_what_came_back_to_where_it_was_is_found_by_number() -> None:
    q = QueueDriver(queue_type="classic")
    for _ in range(5):
        q.fill(1)
    for _ in range(4):
        q.get()
    q.requeue((0, 1), (2, 4), who=consumer(""))
    place = browse.walk(q.machine, Wanted(), None, 1, MANY).place
    assert place == Place(Stage.BACK, 0, 2, 1)
    assert numbers(look(q.machine, place=place)) == [2, 3, 4]
    assert numbers(look(q.machine, place=browse.tail(q.machine, Wanted(), 2, MANY))) == [3, 4]
    # Number 2 is taken again: what is left of that part and behind it.
    q.get()
    q.get()
    assert numbers(look(q.machine, place=place)) == [3, 4]


# ---- anything ------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4), st.integers(0, 3)),
        st.tuples(st.just("get"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("consume"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("requeue"), st.integers(0, 30), st.booleans()),
        st.tuples(st.just("settle"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("down"), st.integers(1, 3), st.just(0)),
    ),
    max_size=40,
)


def run(kind: str, steps: list[tuple[str, int, int]]) -> QueueDriver:
    q = QueueDriver(**KINDS[kind])
    for what, number, other in steps:
        q.now_ms += 5
        holders = [consumer(tag, n) for n in (1, 2, 3) for tag in ("", "c")]
        if what == "publish":
            # In entries of their own and together, of one size and of several.
            bodies = [content(b"x" * (other % 2 * each), priority=other) for each in range(number)]
            q.publish(*bodies)
        elif what == "get":
            q.get(channel=number, no_ack=bool(other))
        elif what == "consume":
            q.consume("c", prefetch=2, channel=number)
        elif what == "down":
            q.channel_down(number)
        else:
            for who in holders:
                span = (number, number + 2)
                if what == "settle":
                    q.settle(span, who=who)
                else:
                    cause = ReturnCause.REJECT if other else ReturnCause.UNWRITTEN
                    q.requeue(span, who=who, cause=cause)
    return q


@given(kind=st.sampled_from(sorted(KINDS)), steps=STEPS, size=st.integers(1, 5))
@settings(deadline=None, max_examples=60)
def test_ready_messages_are_shown_in_the_order_in_which_they_go(
    kind: str, steps: list[tuple[str, int, int]], size: int
) -> None:
    q = run(kind, steps)
    whole = look(q.machine)
    assert numbers(look(q.machine, count=size)) == numbers(whole)
    assert numbers(look(q.machine, spans_max=size)) == numbers(whole)
    place = browse.tail(q.machine, Wanted(), size, MANY)
    assert numbers(look(q.machine, place=place)) == numbers(whole)[-size:]
    for state in (browse.UNACKED, browse.DELAYED, browse.ALL):
        every = numbers(look(q.machine, state))
        assert numbers(look(q.machine, state, count=size)) == every
        place = browse.tail(q.machine, Wanted(state), size, MANY)
        assert numbers(look(q.machine, state, place)) == every[-size:]
    overview = q.machine.overview()
    held = overview["ready"], overview["unacked"], overview["delayed"]
    found = [len(look(q.machine, state)) for state in browse.STATES[:3]]
    assert found == list(held)
    assert len(look(q.machine, browse.ALL)) == sum(held)
    middle = sorted(numbers(whole))[len(whole) // 2] if whole else 0
    later = [number for number in numbers(whole) if number >= middle]
    assert numbers(look(q.machine, first_number=middle)) == later
    order = []
    copy = QueueMachine()
    copy.restore(q.machine.snapshot())
    assert numbers(look(copy)) == numbers(whole)
    while (head := copy.store.head()) is not None:
        order.append(head.first)
        copy.store.pop(1)
    assert numbers(whole) == order


def test_a_packed_queue_is_walked_as_any_other() -> None:
    q = QueueDriver(queue_type="quorum")
    for number in range(60):
        q.now_ms += 10
        q.publish(content(b"x" * (1 + number % 3)))
    assert any(isinstance(item, ready_spans.Block) for _, _, item in q.machine.store.items())
    assert numbers(look(q.machine)) == list(range(60))
    for size in (1, 2, 7):
        assert numbers(look(q.machine, count=size)) == list(range(60))
        place = browse.tail(q.machine, Wanted(), size, MANY)
        assert numbers(look(q.machine, place=place)) == list(range(60 - size, 60))
    for number in (0, 1, 5, 29, 30, 31, 55, 59, 60):
        assert numbers(look(q.machine, first_number=number)) == list(range(number, 60))
        since_ms = 1_010 + 10 * number
        assert numbers(look(q.machine, first_ms=since_ms)) == list(range(number, 60))
