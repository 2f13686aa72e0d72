"""Messages with x-opt-delivery-time: a queue of each type keeps them until then, as if new."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.catalog import delivery_time
from brokerd.core.queue import browse, effects, queue_commands
from brokerd.core.queue.browse import Wanted
from brokerd.core.queue.queue_decoders import AMOUNT_MAX
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue.ready_spans import BLOCK_SPANS, UNPACKED_MIN
from tests.unit.core.queue_driver import QueueDriver, content, dead, delivered

KINDS = [{"queue_type": "classic"}, {"queue_type": "quorum"}]
KINDS.append({"queue_type": "quorum", "delivery_limit": 3})


@pytest.fixture(params=KINDS, ids=["classic", "quorum", "limit"])
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def restarted(queue: QueueDriver) -> None:
    """Go on from a snapshot, as a member that starts."""
    again = QueueMachine()
    again.restore(queue.machine.snapshot())
    assert again.snapshot() == queue.machine.snapshot()
    queue.machine = again


def order(queue: QueueDriver) -> list[int]:
    """Return the ready messages in the order in which they would be handed out, page by page."""
    found: list[int] = []
    place = None
    while True:
        page = browse.walk(queue.machine, Wanted(now_ms=queue.now_ms), place, 1, 3)
        found += [each.number for each in page.found]
        place = page.place
        if place is None:
            return found


def test_the_header_is_an_integer_of_milliseconds_and_the_past_is_now() -> None:
    header = delivery_time.HEADER
    assert delivery_time.deliver_at_ms({header: 1_900_000_000_000}) == 1_900_000_000_000
    assert delivery_time.deliver_at_ms({header: -5}) == 0
    for other in ("1900000000000", 1.5, True, None, [1]):
        assert delivery_time.deliver_at_ms({header: other}) is None


def test_each_is_ready_at_its_time_behind_what_came_meanwhile(kind: dict[str, Any]) -> None:
    queue = QueueDriver(**kind)
    at = queue.now_ms
    queue.publish(content(deliver_at_ms=at + 200), b"1", content(deliver_at_ms=at + 100), b"3")
    assert (queue.ready, queue.machine.overview()["delayed"]) == (2, 2)
    assert queue.machine.next_deadline_ms() == at + 100
    queue.tick(100)
    assert order(queue) == [1, 3, 2]
    restarted(queue)
    queue.publish(b"4")
    queue.tick(100)
    restarted(queue)
    assert order(queue) == [1, 3, 2, 4, 0]
    outcome = queue.consume()
    assert delivered(outcome) == {"c": [1, 3, 2, 4, 0]}
    runs = [
        run for each in outcome.effects if isinstance(each, effects.Deliver) for run in each.runs
    ]
    assert not any(run.acquired_count or run.delivery_count for run in runs), "as if new"


def test_a_time_that_has_come_is_now(kind: dict[str, Any]) -> None:
    queue = QueueDriver(**kind)
    queue.publish(content(deliver_at_ms=queue.now_ms), content(deliver_at_ms=0))
    assert order(queue) == [0, 1]


def test_a_consumer_waits_for_it(kind: dict[str, Any]) -> None:
    queue = QueueDriver(**kind)
    queue.consume()
    assert delivered(queue.publish(content(deliver_at_ms=queue.now_ms + 50))) == {}
    assert delivered(queue.tick(49)) == {}
    assert delivered(queue.tick(1)) == {"c": [0]}
    queue.settle((0, 1))
    assert queue.machine.overview()["counters"]["ack"] == 1


def test_what_is_late_and_comes_back_stands_where_such_messages_do(kind: dict[str, Any]) -> None:
    queue = QueueDriver(**kind)
    queue.publish(content(deliver_at_ms=queue.now_ms + 10), b"1", b"2")
    queue.tick(10)
    queue.consume(prefetch=3)
    queue.requeue((0, 3))
    restarted(queue)
    queue.channel_down()
    assert sorted(order(queue)) == [0, 1, 2]
    queue.consume()
    assert (queue.ready, queue.unacked) == (0, 3)


def test_what_no_client_was_sent_stands_where_it_was(kind: dict[str, Any]) -> None:
    queue = QueueDriver(**kind)
    queue.publish(content(deliver_at_ms=queue.now_ms + 10), b"1", b"2")
    queue.tick(10)
    queue.consume(prefetch=3)
    queue.channel_down(written={"c": []})
    restarted(queue)
    assert sorted(order(queue)) == [0, 1, 2]
    queue.consume(prefetch=3)
    assert (queue.ready, queue.unacked) == (0, 3)


def test_its_ttl_begins_then(kind: dict[str, Any]) -> None:
    queue = QueueDriver(**kind, dead_letter_exchange="d", message_ttl_ms=100)
    queue.publish(
        content(deliver_at_ms=queue.now_ms + 500), content(ttl_ms=30, deliver_at_ms=1_800)
    )
    queue.tick(500)
    assert queue.ready == 1
    assert dead(queue.tick(99)) == []
    assert dead(queue.tick(1)) == [("expired", [0])]
    queue.tick(200)
    assert queue.ready == 1
    assert dead(queue.tick(30)) == [("expired", [1])]


def test_its_priority_is_kept() -> None:
    queue = QueueDriver(queue_type="classic", max_priority=5)
    queue.publish(content(deliver_at_ms=queue.now_ms + 10, priority=4), content(priority=1))
    queue.publish(content(priority=4))
    queue.tick(10)
    restarted(queue)
    assert order(queue) == [2, 0, 1]


def test_what_waits_counts_against_the_length(kind: dict[str, Any]) -> None:
    queue = QueueDriver(**kind, max_length=2, overflow="reject-publish")
    later = content(deliver_at_ms=queue.now_ms + 1_000)
    assert queue.accepted(later, later) == 2
    # A quorum queue takes the one that steps over (R-LEN-7).
    assert queue.accepted(b"x", b"x") == (kind["queue_type"] == "quorum")


def test_what_is_ready_makes_room_for_it(kind: dict[str, Any]) -> None:
    queue = QueueDriver(**kind, max_length=2)
    later = content(deliver_at_ms=queue.now_ms + 1_000)
    queue.publish(b"0", b"1", later, later, later)
    assert (queue.ready, queue.machine.overview()["delayed"]) == (0, 3)
    queue.tick(1_000)
    assert queue.ready == 2


def test_a_queue_with_what_waits_is_not_empty_and_does_not_expire(kind: dict[str, Any]) -> None:
    queue = QueueDriver(**kind, expires_ms=100, expiry_waits=True)
    queue.publish(content(deliver_at_ms=queue.now_ms + 1_000))
    refused = queue.reply(queue_commands.encode_delete(True, False, "test"))
    assert refused["text"] == "not empty"
    queue.tick(500)
    assert queue.machine.deleted is None
    queue.tick(500)
    assert queue.machine.deleted is not None


def test_a_purge_takes_what_waits_along(kind: dict[str, Any]) -> None:
    queue = QueueDriver(**kind)
    queue.publish(content(deliver_at_ms=queue.now_ms + 1_000), b"1")
    assert queue.reply(queue_commands.encode_purge())["messages"] == 2
    assert queue.machine.next_deadline_ms() is None


def test_a_time_beyond_all_clocks_is_kept_with_its_ttl(kind: dict[str, Any]) -> None:
    queue = QueueDriver(**kind)
    queue.publish(content(deliver_at_ms=AMOUNT_MAX, ttl_ms=AMOUNT_MAX))
    restarted(queue)
    assert queue.machine.overview()["delayed"] == 1


def test_late_ones_are_found_by_jobs_and_between_packed_blocks(kind: dict[str, Any]) -> None:
    queue = QueueDriver(**kind)
    queue.publish(
        content(deliver_at_ms=queue.now_ms + 10), content(deliver_at_ms=queue.now_ms + 20)
    )
    count = BLOCK_SPANS + UNPACKED_MIN + 10
    for _ in range(count):
        queue.publish(b"x")
    queue.tick(10)
    for _ in range(count):
        queue.publish(b"x")
    queue.tick(10)
    restarted(queue)
    first = list(range(2, 2 + count))
    everything = [*first, 0, *range(2 + count, 2 + 2 * count), 1]
    assert order(queue) == everything
    queue.reply(queue_commands.encode_job_start("{}", "guest"))
    taken = queue.reply(queue_commands.encode_job_take(1, queue.term, [(0, 2), (700, 900)]))
    assert taken["taken"] == [[0, 2], [700, 900]]
    assert order(queue) == [n for n in everything if n > 1 and not 700 <= n < 900]
    restarted(queue)
    queue.send(queue_commands.encode_job_settle(1, queue.term, [], [(0, 2), (700, 900)], None))
    queue.machine.check_invariants()
    assert sorted(order(queue)) == sorted(everything)
    assert queue.consume().effects
    assert (queue.ready, queue.unacked) == (0, len(everything))
