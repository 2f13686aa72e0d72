"""What the delivery register lets through around a leader change (R-QQ-10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from brokerd.core.message import Content, Range
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.server.queues.deliveries import DeliveryHub, LocalConsumer, Part

CONSUMER = ConsumerId("n0", 1, 1, "tag")
CONTENT: Content = (("", "q"), b"\x00\x00", b"body", b"")


class Channel:
    """A sink that notes numbers; it holds what it was given."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.cancelled: list[str] = []
        self.failed: list[str] = []
        self.stranded: list[str] = []
        self.is_full = False

    def deliver(self, consumer: LocalConsumer, parts: Sequence[Part]) -> None:
        for run, _ in parts:
            self.numbers += range(run.first, run.first + run.length)

    def defer(self, consumer: LocalConsumer, runs: Sequence[Run]) -> bool:
        return self.is_full

    def consumer_cancelled(self, consumer: LocalConsumer, cause: str) -> None:
        self.cancelled.append(cause)

    def consumer_failed(self, consumer: LocalConsumer, reason: str) -> None:
        self.failed.append(reason)

    def consumer_stranded(self, consumer: LocalConsumer, reason: str) -> None:
        self.stranded.append(reason)

    def held(self, consumer: LocalConsumer) -> list[Range]:
        return [(number, number + 1) for number in self.numbers]


def hub_with_consumer() -> tuple[DeliveryHub, Channel, list[Callable[[bool], None]]]:
    answers: list[Callable[[bool], None]] = []
    hub = DeliveryHub(lambda *asked: answers.append(asked[3]))
    channel = Channel()
    hub.add(LocalConsumer(CONSUMER, 7, "/", "q", channel, False, 10, 0, False, "guest"))
    return hub, channel, answers


def run(first: int, length: int, acquired_count: int = 0) -> Part:
    return Run(first, length, 1, first, acquired_count, 0), [CONTENT] * length


async def test_a_delivery_sent_again_after_the_answer_to_resume_is_dropped() -> None:
    hub, channel, answers = hub_with_consumer()
    hub.deliver(CONSUMER, [run(0, 3)])
    hub.leader_changed(7)
    # Sent by the new leader before it applied RESUME, hence sent again afterwards.
    hub.deliver(CONSUMER, [run(3, 2)])
    answers[0](True)
    await asyncio.sleep(0)
    hub.deliver(CONSUMER, [run(2, 4)])
    assert channel.numbers == [0, 1, 2, 3, 4, 5]


async def test_a_message_that_was_given_back_is_delivered_again_after_a_leader_change() -> None:
    hub, channel, _ = hub_with_consumer()
    hub.deliver(CONSUMER, [run(0, 1)])
    hub.leader_changed(7)
    hub.deliver(CONSUMER, [run(0, 1, acquired_count=1)])
    assert channel.numbers == [0, 0]


async def test_what_came_again_is_not_delivered_twice_by_two_resumes() -> None:
    """R-QQ-10: two RESUMEs are answered with the same message, which was given back before."""
    hub, channel, _ = hub_with_consumer()
    hub.leader_changed(7)
    hub.leader_changed(7)
    hub.deliver(CONSUMER, [run(0, 2, acquired_count=1)])
    hub.deliver(CONSUMER, [run(0, 2, acquired_count=1)])
    assert channel.numbers == [0, 1]
    hub.deliver(CONSUMER, [run(1, 1, acquired_count=2)])
    assert channel.numbers == [0, 1, 1]


async def test_what_was_settled_between_two_leader_changes_is_not_delivered_again() -> None:
    """R-QQ-10: the first RESUME may reach the second leader; it knows nothing of later settles."""
    hub, channel, _ = hub_with_consumer()
    hub.leader_changed(7)
    hub.deliver(CONSUMER, [run(0, 2)])
    settled = list(channel.numbers)
    channel.numbers.clear()
    hub.leader_changed(7)
    hub.deliver(CONSUMER, [run(0, 3)])
    assert settled == [0, 1]
    assert channel.numbers == [2]


async def test_a_consumer_that_the_new_leader_does_not_know_is_cancelled() -> None:
    """Nobody waits for ever for messages that nobody sends."""
    hub, channel, answers = hub_with_consumer()
    hub.leader_changed(7)
    answers[0](False)
    assert channel.cancelled == ["lost by its queue"]
    assert len(hub) == 0


async def test_a_consumer_that_is_asked_by_its_queues_leader_resumes() -> None:
    """R-QQ-10: a delivery of nothing says that the leader waits; one RESUME under way is enough."""
    hub, channel, answers = hub_with_consumer()
    hub.deliver(CONSUMER, [run(0, 1)])
    hub.deliver(CONSUMER, [])
    hub.deliver(CONSUMER, [])
    assert len(answers) == 1
    answers[0](True)
    hub.deliver(CONSUMER, [])
    assert len(answers) == 2
    hub.deliver(CONSUMER, [run(0, 2)])
    assert channel.numbers == [0, 1]


async def test_a_consumer_that_is_asked_while_it_resumes_does_not_ask_twice() -> None:
    hub, _, answers = hub_with_consumer()
    hub.leader_changed(7)
    hub.deliver(CONSUMER, [])
    hub.deliver(CONSUMER._replace(channel=2), [])
    assert len(answers) == 1


async def test_consumers_of_a_queue_that_waits_with_damage_are_told_why() -> None:
    """Nothing that a leader sends afterwards reaches them: their channels are gone."""
    hub, channel, _ = hub_with_consumer()
    hub.group_stuck(8, "another queue")
    hub.group_stuck(7, "is damaged")
    assert channel.failed == ["is damaged"]
    assert not hub.has_group(7)
    hub.deliver(CONSUMER, [run(0, 1)])
    assert channel.numbers == []


def test_what_a_new_leader_sends_again_is_dropped_until_it_has_answered() -> None:
    """R-QQ-10."""
    hub, channel, answers = hub_with_consumer()
    hub.deliver(CONSUMER, [run(1, 3)])
    hub.leader_changed(7)
    hub.deliver(CONSUMER, [run(2, 3)])
    assert channel.numbers == [1, 2, 3, 4]
    assert len(answers) == 1
    hub.group_gone(7)
    assert channel.cancelled == ["queue deleted"]
    assert (len(hub), hub.has_group(7)) == (0, False)


def test_numbers_are_enough_for_a_consumer_that_has_to_wait() -> None:
    hub, channel, answers = hub_with_consumer()
    run = Run(0, 1, 1, 0, 0, 0)
    assert not hub.defer(CONSUMER, [run])
    channel.is_full = True
    assert hub.defer(CONSUMER, [run])
    # What may have come already is looked at message by message.
    hub.leader_changed(7)
    assert answers
    assert not hub.defer(CONSUMER, [run])
    hub.remove(CONSUMER)
    assert not hub.defer(CONSUMER, [run])


async def test_consumers_end_when_the_home_of_their_queue_is_down() -> None:
    hub, channel, _ = hub_with_consumer()
    hub.home_down(8, "another queue's")
    hub.home_down(7, "home member n1 is down")
    assert channel.stranded == ["home member n1 is down"]
    assert not hub.has_group(7)


def test_the_first_and_the_last_consumer_of_a_queue_are_told_of() -> None:
    told: list[tuple[int, bool]] = []
    hub = DeliveryHub(lambda *_: None, lambda *change: told.append(change))
    ids = [CONSUMER, CONSUMER._replace(tag="other")]
    for consumer_id in ids:
        hub.add(LocalConsumer(consumer_id, 7, "/", "q", Channel(), False, 10, 0, False, "guest"))
    assert told == [(7, True)]
    for consumer_id in ids:
        hub.remove(consumer_id)
    assert told == [(7, True), (7, False)]


async def test_what_is_to_be_sent_again_is_let_through_once() -> None:
    """R-QQ-10: whether it was asked for within a change of leaders or not."""
    hub, channel, answers = hub_with_consumer()
    for _ in range(2):
        hub.deliver(CONSUMER, [run(0, 3)])
        channel.numbers.clear()
        [consumer] = hub.consumers()
        hub.send_again(consumer, [(0, 3)])
        hub.deliver(CONSUMER, [run(0, 3)])
        hub.deliver(CONSUMER, [run(0, 3)])
        assert channel.numbers == [0, 1, 2]
        channel.numbers.clear()
        hub.send_again(consumer, [(0, 3)])
    assert len(answers) == 4
