"""What walks over all queues read of each is what the queue says of itself."""

from __future__ import annotations

from array import array

from brokerd.core.queue import queue_commands
from brokerd.core.queue.queue_commands import ReturnCause
from brokerd.core.queue.queue_summary import (
    FIGURES,
    NUMBER_MAX,
    SIZE,
    UNKNOWN,
    levels_of,
    messages_of,
    single_of,
)
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.queue_driver import QueueDriver, content


def numbers(q: QueueDriver) -> dict[str, int]:
    return dict(zip(FIGURES, array("q", q.machine.summary()[:SIZE]), strict=True))


def test_an_summary_has_the_figures_of_the_overview() -> None:
    q = QueueDriver(queue_type="quorum", delivery_limit=7)
    q.publish(b"one", b"two", b"three")
    q.consume("tag", prefetch=1)
    found, overview = numbers(q), q.machine.overview()
    same = (
        "ready",
        "unacked",
        "dl_pending",
        "dl_old_terms",
        "ready_bytes",
        "unacked_bytes",
        "consumers",
    )
    assert {name: found[name] for name in same} == {name: overview[name] for name in same}
    assert {name: found[name] for name in overview["counters"]} == overview["counters"]
    assert messages_of(q.machine.summary()) == 3
    assert (found["messages"], found["is_unattended"], found["delivery_limit"]) == (3, 0, 7)
    assert found["memory_bytes"] == q.machine.memory_bytes()
    assert found["head_ms"] == overview["head_enqueued_ms"]
    assert single_of(q.machine.summary()) is None


def test_what_is_delayed_is_in_the_queue() -> None:
    q = QueueDriver(
        queue_type="quorum", delayed_retry="all", delayed_retry_min_ms=9, delayed_retry_max_ms=9
    )
    q.consume(prefetch=1)
    q.publish(b"one", b"two")
    q.requeue((0, 1), cause=ReturnCause.REJECT)
    assert (numbers(q)["delayed"], messages_of(q.machine.summary())) == (1, 2)
    assert numbers(q)["due_ms"] == q.now_ms + 9


def test_what_an_exchange_keeps_is_late_until_it_is_handed_on() -> None:
    q = QueueDriver(
        queue_type="quorum", dead_letter_exchange="d", at_least_once=True, holds_delayed=True
    )
    assert numbers(q)["due_ms"] == UNKNOWN
    q.publish(content(delay_ms=100), content(delay_ms=900))
    first = q.now_ms + 100
    assert numbers(q)["due_ms"] == first
    q.now_ms = first
    q.send(q.machine.tick_command())
    q.now_ms += 300
    assert (numbers(q)["dl_pending"], numbers(q)["due_ms"]) == (1, first)
    q.send(queue_commands.encode_dead_letters_checkout(9))
    q.send(queue_commands.encode_dead_letters_settle([(0, 1)]))
    assert (numbers(q)["dl_pending"], numbers(q)["due_ms"]) == (0, first + 800)


def test_what_there_is_not_is_unknown() -> None:
    q = QueueDriver()
    q.machine.last_used_ms = None
    found = numbers(q)
    assert found["delivery_limit"] == found["head_ms"] == found["used_ms"] == UNKNOWN
    q.publish(b"one")
    assert numbers(q)["is_unattended"] == 1


def test_the_consumer_that_is_active_alone_is_named() -> None:
    q = QueueDriver(single_active_consumer=True)
    assert single_of(q.machine.summary()) is None
    q.consume("tag \udcff")
    q.consume("next")
    assert single_of(q.machine.summary()) == "tag \udcff"


def test_ready_messages_are_told_by_priority_but_for_those_that_came_back() -> None:
    """R-PRI-2, R-QQ-14."""
    q = QueueDriver(queue_type="quorum", delivery_limit=7, max_priority=31)
    q.publish(*(content(priority=priority) for priority in (9, 9, 1)))
    q.get()
    found, summary = numbers(q), q.machine.summary()
    assert (found["returned"], found["publishers"], found["priorities"]) == (0, 1, 2)
    assert levels_of(summary) == ((9, 1), (1, 1))
    assert single_of(summary) is None
    q.channel_down()
    found, summary = numbers(q), q.machine.summary()
    assert (found["ready"], found["returned"], found["priorities"]) == (3, 1, 2)
    assert levels_of(summary) == ((9, 1), (1, 1))


def test_a_tag_behind_priorities_is_read() -> None:
    q = QueueDriver(queue_type="quorum", single_active_consumer=True, max_priority=31)
    q.publish(content(priority=9), content(priority=9))
    q.consume("tag \udcff", prefetch=1)
    assert levels_of(q.machine.summary()) == ((9, 1),)
    assert single_of(q.machine.summary()) == "tag \udcff"


def test_a_counter_of_another_version_is_left_out() -> None:
    """A snapshot brings along what its writer counted."""
    q = QueueDriver()
    q.publish(b"one")
    before = numbers(q)
    q.machine.counters["of_another_version"] = 7
    assert numbers(q) == before


def test_a_limit_without_end_spoils_no_list() -> None:
    q = QueueDriver(queue_type="quorum")
    q.machine.options = QueueOptions(queue_type="quorum", delivery_limit=2**70)
    assert numbers(q)["delivery_limit"] == NUMBER_MAX
