"""Who is served next: service queues, capacities, the single active consumer (R-CS-7)."""

from __future__ import annotations

from brokerd.core.queue import queue_commands
from brokerd.core.queue.consumers import UNLIMITED, Consumer, Consumers
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.queue_spans import Entry, Span
from tests.unit.core.queue_driver import QueueDriver, consumer


def joined(
    consumers: Consumers, tag: str, *, priority: int = 0, prefetch: int = 0, channel: int = 1
) -> Consumer:
    """Register a consumer and return it."""
    consumer = consumers.hold(ConsumerId("n1", 7, channel, tag))
    consumers.set_priority(consumer, priority)
    consumer.prefetch = prefetch
    consumers.register(consumer)
    return consumer


def give(consumer: Consumer, first: int, count: int) -> None:
    """Let it hold messages."""
    entry = Entry.of_equal_sizes(1, 0, 0, 1_000, 1)
    consumer.held.add(Span(entry, first, first + count))


def served(consumers: Consumers, count: int) -> str:
    """Take the next ones out one by one, as a delivery of one message each does."""
    tags = []
    for _ in range(count):
        queue = consumers.service_queue()
        if queue is None:
            break
        consumer = queue.popleft()
        consumer.queued = False
        tags.append(consumer.id.tag)
        consumers.offer(consumer)
        consumers.check()
    return "".join(tags)


def test_everyone_gets_a_turn_and_higher_priorities_come_first() -> None:
    consumers = Consumers()
    for tag in "ab":
        joined(consumers, tag)
    assert served(consumers, 5) == "ababa"
    high = joined(consumers, "h", priority=5, prefetch=1)
    assert served(consumers, 2) == "hh"
    give(high, 1, 1)
    assert (high.capacity(), consumers.may_take(high)) == (0, False)
    assert served(consumers, 3) == "bab"
    high.held.take(1, 2)
    consumers.settled(high)
    assert served(consumers, 2) == "hh"


def test_whether_anyone_could_take_is_asked_without_changing_a_turn() -> None:
    """R-FQ-2: only looks, as it is asked of one replica only."""
    consumers = Consumers()
    assert not consumers.could_take(0)
    joined(consumers, "low", priority=-1)
    assert consumers.could_take(-1)
    assert not consumers.could_take(0)
    full = joined(consumers, "full", prefetch=1)
    joined(consumers, "high", priority=3, prefetch=1)
    assert consumers.could_take(3)
    give(full, 1, 1)
    before = consumers.service_queues()
    assert consumers.could_take(0)
    give(consumers.hold(ConsumerId("n1", 7, 1, "high")), 2, 1)
    assert not consumers.could_take(0)
    assert consumers.service_queues() == before


def test_capacity_is_what_the_prefetch_leaves() -> None:
    consumers = Consumers()
    consumer = joined(consumers, "a", prefetch=3)
    give(consumer, 1, 2)
    assert consumer.capacity() == 1
    consumer.no_ack = True
    assert consumer.capacity() == UNLIMITED
    consumer.no_ack, consumer.prefetch = False, 0
    assert consumer.capacity() == UNLIMITED


def test_who_moves_to_another_priority_leaves_its_old_queue() -> None:
    consumers = Consumers()
    first, second = joined(consumers, "a"), joined(consumers, "b")
    consumers.set_priority(first, 0)
    assert first.queued
    consumers.set_priority(first, -1)
    consumers.offer(first)
    assert consumers.service_queues() == [[first.id], [second.id]]
    assert served(consumers, 3) == "bbb"


def test_who_leaves_keeps_what_it_holds_and_is_forgotten_with_it() -> None:
    consumers = Consumers()
    consumer, other = joined(consumers, "a"), joined(consumers, "b", channel=2)
    give(consumer, 1, 2)
    consumers.unregister(consumer)
    consumers.unregister(consumer)
    assert (consumers.registered, list(consumers.rows())) == (1, [consumer, other])
    assert served(consumers, 2) == "bb"
    assert consumers.of_channel(consumer.id[:3]) == [consumer]
    consumer.held.take(1, 3)
    consumers.settled(consumer)
    assert consumers.get(consumer.id) is None
    assert consumers.of_channel(consumer.id[:3]) == []
    assert consumers.of_node("n1") == [other]
    assert consumers.of_node("n2") == []


def test_a_registration_counts_once() -> None:
    consumers = Consumers()
    consumer = joined(consumers, "a")
    consumers.register(consumer)
    assert (consumers.registered, consumer.order, consumers.next_order) == (1, 1, 2)
    assert joined(consumers, "b").order == 2
    assert served(consumers, 4) == "abab"
    consumer.exclusive = True
    assert consumers.exclusive_holder() is consumer
    consumer.registered = False
    assert consumers.exclusive_holder() is None
    consumer.registered = True
    assert [c.id.tag for c in consumers.clear()] == ["a", "b"]
    assert (consumers.registered, consumers.service_queue(), list(consumers.rows())) == (
        0,
        None,
        [],
    )


def test_a_consumer_on_a_suspected_node_is_passed_over() -> None:
    consumers = Consumers()
    first = joined(consumers, "a")
    joined(consumers, "b")
    consumers.suspect(first, True)
    assert served(consumers, 2) == "bb"
    consumers.suspect(first, False)
    assert sorted(served(consumers, 2)) == ["a", "b"]


def test_classic_the_active_one_stays_whoever_comes() -> None:
    """R-CS-7: at classic queues a higher priority is no reason to replace it."""
    consumers = Consumers()
    consumers.configure(single_active=True, quorum=False)
    assert consumers.active is None
    first = joined(consumers, "a")
    joined(consumers, "b", priority=9)
    assert (consumers.active, consumers.draining) == (first, False)
    assert served(consumers, 3) == "aaa"
    consumers.unregister(first)
    assert served(consumers, 2) == "bb"


def test_quorum_a_higher_priority_takes_over_once_all_is_settled() -> None:
    """R-CS-7"""
    consumers = Consumers()
    consumers.configure(single_active=True, quorum=True)
    first = joined(consumers, "a", priority=1)
    joined(consumers, "same", priority=1)
    assert (consumers.active, consumers.draining) == (first, False)
    give(first, 1, 2)
    higher = joined(consumers, "h", priority=2)
    assert (consumers.active, consumers.draining) == (first, True)
    assert consumers.service_queue() is None
    first.held.take(1, 2)
    consumers.settled(first)
    assert (consumers.active, consumers.draining) == (first, True)
    first.held.take(2, 3)
    consumers.settled(first)
    assert (consumers.active, consumers.draining) == (higher, False)
    assert served(consumers, 2) == "hh"


def test_of_equal_priority_the_one_that_came_first_follows() -> None:
    consumers = Consumers()
    consumers.configure(single_active=True, quorum=True)
    first = joined(consumers, "a", priority=5)
    for tag, priority in (("b", 1), ("c", 2), ("d", 2)):
        joined(consumers, tag, priority=priority)
    consumers.unregister(first)
    assert consumers.active is not None
    assert consumers.active.id.tag == "c"


def test_a_suspected_active_one_is_replaced_only_when_that_is_asked_for() -> None:
    consumers = Consumers()
    consumers.configure(single_active=True, quorum=True)
    first, second = joined(consumers, "a"), joined(consumers, "b")
    consumers.suspect(first, True)
    assert consumers.active is first
    assert consumers.service_queue() is None
    consumers.elect(suspects_lose=True)
    assert consumers.active is second
    consumers.suspect(first, False)
    assert consumers.active is second


def test_switching_single_active_off_and_on_serves_everyone_and_one() -> None:
    consumers = Consumers()
    consumers.configure(single_active=True, quorum=True)
    joined(consumers, "a")
    joined(consumers, "b")
    assert served(consumers, 3) == "aaa"
    consumers.configure(single_active=False, quorum=True)
    assert consumers.active is None
    assert sorted(served(consumers, 4)) == ["a", "a", "b", "b"]
    consumers.configure(single_active=True, quorum=True)
    assert len(set(served(consumers, 3))) == 1


def test_a_snapshot_brings_everyone_back_in_place() -> None:
    consumers = Consumers()
    consumers.configure(single_active=True, quorum=True)
    first, second = joined(consumers, "a"), joined(consumers, "b", priority=3)
    give(second, 5, 2)
    consumers.unregister(second)
    rows = []
    for known in (first, second):
        copy = Consumer(known.id)
        copy.priority, copy.registered = known.priority, known.registered
        copy.order = known.order
        rows.append(copy)
    give(rows[1], 5, 2)
    restored = Consumers()
    restored.configure(single_active=True, quorum=True)
    restored.restore(rows, consumers.service_queues(), first.id, True, consumers.next_order)
    assert (restored.registered, restored.next_order, restored.draining) == (1, 3, True)
    assert restored.active is rows[0]
    assert restored.of_channel(first.id[:3]) == rows
    assert restored.service_queues() == consumers.service_queues()
    restored.elect()
    restored.check()
    assert served(restored, 2) == "aa"


def test_a_new_consumer_has_no_settings() -> None:
    consumer = Consumer(ConsumerId("n1", 7, 1, "a"))
    assert (consumer.prefetch, consumer.priority, consumer.order) == (0, 0, 0)
    assert (consumer.timeout_ms, consumer.user) == (None, "")
    flags = (consumer.no_ack, consumer.exclusive, consumer.registered, consumer.suspected)
    assert flags == (False, False, False, False)


def test_the_messages_of_a_second_lost_node_return_as_well() -> None:
    """R-QQ-16: one node was given up long ago, another one is lost later."""
    driver = QueueDriver(queue_type="quorum", disconnected_timeout_ms=60_000)
    for node in ("n2", "n3"):
        driver.consume(node, prefetch=2, node=node)
    driver.fill(4)
    driver.send(queue_commands.encode_node_down("n2"))
    driver.tick(60_000)
    assert (driver.ready, driver.unacked) == (2, 2)
    driver.send(queue_commands.encode_node_down("n3"))
    driver.tick(59_999)
    assert (driver.ready, driver.unacked) == (2, 2)
    driver.tick(1)
    assert (driver.ready, driver.unacked) == (4, 0)


def test_forgetting_a_consumer_twice_is_forgetting_it_once() -> None:
    known = Consumers()
    record = known.hold(consumer())
    known.drop_if_done(record)
    known.drop_if_done(record)
    known.check()
    assert known.get(consumer()) is None
