"""A command in an envelope changes the queue once, in the sender's order (design/replication.md
§2.6).
"""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core import queue_options
from brokerd.core.queue import client_sessions, effects, queue_commands, settling_gets
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.queue_commands import Kind, ReturnCause
from brokerd.core.queue.queue_machine import QueueMachine
from tests.unit.core.queue_driver import QueueDriver, consumer, delivered, only

OK = {"ok": True}
EARLY = {"early": True}
HOLDER = ConsumerId("n1", 7, 1, "")


class Sender:
    """One life of a member, as its group client numbers commands."""

    def __init__(self, driver: QueueDriver, incarnation: int = 7, node: str = "n1") -> None:
        self.driver = driver
        self.node = node
        self.incarnation = incarnation
        self.number = 100

    def wrap(self, command: bytes, *, after: int = 0, unanswered_from: int = 0) -> bytes:
        self.number += 1
        return client_sessions.encode(
            self.node, self.incarnation, self.number, after, unanswered_from, command
        )

    def checkout(self, tag: str = "c") -> bytes:
        who = consumer(tag, node=self.node, incarnation=self.incarnation)
        return queue_commands.encode_checkout(Checkout(who, 10, False, False, 0, "guest"))

    def down(self) -> bytes:
        return queue_commands.encode_channel_down(self.node, self.incarnation, 1)


def requeue(*numbers: int, who: ConsumerId | None = None) -> bytes:
    ranges = [(number, number + 1) for number in numbers]
    return queue_commands.encode_ranges(Kind.RETURN, who or consumer(), ranges, ReturnCause.REJECT)


@pytest.fixture
def driver() -> QueueDriver:
    return QueueDriver(queue_type="quorum", delivery_limit=5)


@pytest.fixture
def sender(driver: QueueDriver) -> Sender:
    return Sender(driver)


def test_a_return_that_goes_twice_counts_once_and_hands_out_once(
    driver: QueueDriver, sender: Sender
) -> None:
    """R-DL-2, G5: simulator seeds 676 and 471."""
    driver.consume(prefetch=1)
    driver.fill(1)
    command = sender.wrap(requeue(0))
    again = driver.send(command)
    assert again.reply == b""
    assert only(again, effects.Deliver).runs[0].delivery_count == 1
    repeated = driver.send(command)
    assert (repeated.reply, list(repeated.effects)) == (b"", [])
    assert driver.count("requeue") == 1
    assert driver.unacked == 1


def test_a_consumer_that_has_ended_does_not_begin_again_by_a_late_copy(
    driver: QueueDriver, sender: Sender
) -> None:
    """R-CH-5: simulator seed 20066; what it would hold nobody could settle."""
    begin, end = sender.wrap(sender.checkout()), sender.wrap(sender.down())
    for command in (begin, end, begin, end, begin):
        assert driver.reply(command) == OK
    driver.fill(3)
    assert (driver.ready, driver.unacked) == (3, 0)
    assert driver.machine.overview()["consumers"] == 0


def test_a_command_does_not_overtake_the_one_before_it(driver: QueueDriver, sender: Sender) -> None:
    """Of two on the way the first may be refused (overload) and the second not."""
    begin = sender.wrap(sender.checkout())
    end = sender.wrap(sender.down(), after=sender.number)
    assert driver.reply(end) == EARLY
    assert driver.reply(begin) == OK
    assert driver.reply(end) == OK
    assert driver.reply(begin) == OK
    assert driver.machine.overview()["consumers"] == 0
    # Nobody waits for the one in between any more, and it never came.
    lost = sender.wrap(sender.checkout("lost"))
    last = sender.wrap(sender.checkout("last"), after=sender.number)
    assert driver.reply(last) == EARLY
    # The sender's next try says that nothing is missing; the lost one comes after all, too late.
    sender.number -= 1
    assert driver.reply(sender.wrap(sender.checkout("last"))) == OK
    assert driver.reply(lost) == OK
    assert [row["consumer"].tag for row in driver.machine.consumer_rows()] == ["last"]


def test_what_an_earlier_life_of_a_member_sent_is_not_applied_any_more(
    driver: QueueDriver,
) -> None:
    """R-ACK-8: its channels are gone, and nobody would end what it begins."""
    old, new = Sender(driver, incarnation=7), Sender(driver, incarnation=8)
    driver.send(queue_commands.encode_node_up("n1", 8))
    assert driver.reply(old.wrap(old.checkout()))["refused"] == 400
    assert driver.machine.overview()["consumers"] == 0
    assert driver.reply(new.wrap(new.checkout())) == OK
    # A leader that has not heard of the restart.
    driver.send(queue_commands.encode_node_up("n1", 7))
    assert driver.reply(old.wrap(old.down()))["refused"] == 400
    assert driver.machine.overview()["consumers"] == 1
    # The new life's word is enough, without the news that it is up.
    newest = Sender(driver, incarnation=9)
    newest.number = 0
    assert driver.reply(newest.wrap(newest.checkout("d"))) == OK
    assert driver.reply(new.wrap(new.checkout("e")))["refused"] == 400
    assert driver.machine.overview()["consumers"] == 2


def test_the_first_command_of_a_life_that_has_another_before_it_waits(
    driver: QueueDriver, sender: Sender
) -> None:
    assert driver.reply(sender.wrap(sender.down(), after=100)) == EARLY
    driver.send(queue_commands.encode_node_up("n1", 7))
    assert driver.reply(sender.wrap(sender.down(), after=100)) == EARLY


def test_a_repeated_get_brings_the_same_message_until_its_answer_has_come(
    driver: QueueDriver, sender: Sender
) -> None:
    """R-CS-8: otherwise one stays with the channel that the client has never seen."""
    driver.fill(3)
    get = queue_commands.encode_get(consumer(""), False)
    command = sender.wrap(get)
    first = driver.reply(command)
    assert first["run"][0] == 0
    assert driver.reply(command) == first
    assert driver.unacked == 1
    other = sender.wrap(get, unanswered_from=sender.number + 1)
    assert driver.reply(other)["run"][0] == 1
    # Nobody asks for the first answer any more: it is not kept.
    assert driver.reply(command) == OK
    assert driver.reply(other)["run"][0] == 1


def test_the_answer_that_the_sender_still_waits_for_is_kept(
    driver: QueueDriver, sender: Sender
) -> None:
    """It says which number that is; all before it have arrived."""
    driver.fill(2)
    holder = consumer("g", node=sender.node, incarnation=sender.incarnation)
    get = queue_commands.encode_get(holder, False)
    first = sender.wrap(get)
    answer = driver.send(first).reply
    driver.send(sender.wrap(get, after=sender.number, unanswered_from=sender.number))
    assert driver.send(first).reply == answer
    assert driver.unacked == 2


def test_nothing_counts_as_applied_of_a_member_that_has_only_started(
    driver: QueueDriver, sender: Sender
) -> None:
    sender.number = 0
    driver.send(queue_commands.encode_node_up(sender.node, sender.incarnation))
    driver.send(sender.wrap(sender.checkout()))
    assert driver.machine.overview()["consumers"] == 1


@pytest.mark.plain
def test_answers_that_are_kept_have_a_bound(
    driver: QueueDriver, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_sessions, "ANSWERS_MAX", 2)
    driver.fill(5)
    get = queue_commands.encode_get(consumer(""), False)
    commands = [sender.wrap(get) for _ in range(3)]
    taken = [driver.reply(command)["run"][0] for command in commands]
    assert taken == [0, 1, 2]
    assert driver.reply(commands[0]) == OK
    assert [driver.reply(command)["run"][0] for command in commands[1:]] == [1, 2]


@pytest.mark.plain
def test_members_that_are_remembered_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_sessions, "SENDERS_MAX", 2)
    senders = client_sessions.Senders()
    for node in ("a", "b", "c"):
        senders.started(node, 1)
    assert list(senders.nodes()) == ["b", "c"]


def test_purge_and_delete_answer_a_repetition_as_they_did(
    driver: QueueDriver, sender: Sender
) -> None:
    """R-Q-12: the client hears how many messages there were."""
    driver.fill(3)
    purge = sender.wrap(queue_commands.encode_purge())
    assert driver.reply(purge) == {"messages": 3}
    driver.fill(2)
    assert driver.reply(purge) == {"messages": 3}
    assert driver.ready == 2
    delete = sender.wrap(queue_commands.encode_delete(False, False, "deleted"))
    gone = driver.reply(delete)
    assert (gone["deleted"], gone["messages"]) == (True, 2)
    assert driver.reply(delete) == gone
    # What comes now, even too early, meets the end of the queue.
    late = sender.wrap(sender.checkout(), after=sender.number + 1)
    assert driver.reply(late)["refused"] == 400
    late = sender.wrap(sender.checkout(), after=sender.number)
    assert driver.reply(late)["refused"] == 404
    assert driver.reply(sender.wrap(sender.checkout()))["refused"] == 404
    assert driver.send(queue_commands.encode_tick()).reply


def test_a_repeated_resume_sends_nothing_again(driver: QueueDriver, sender: Sender) -> None:
    """R-QQ-10: it knows nothing of what came since."""
    driver.consume()
    driver.fill(2)
    command = sender.wrap(queue_commands.encode_resume(consumer(), [(0, 1)]))
    assert delivered(driver.send(command)) == {"c": [1]}
    assert not driver.send(command).effects
    unknown = sender.wrap(queue_commands.encode_resume(consumer("d"), []))
    refused = driver.reply(unknown)
    assert refused["refused"] == 404
    assert driver.reply(unknown) == refused


def test_a_snapshot_carries_what_was_seen(driver: QueueDriver, sender: Sender) -> None:
    driver.fill(2)
    commands = [
        sender.wrap(queue_commands.encode_get(consumer(""), False)),
        sender.wrap(sender.checkout()),
    ]
    before = [driver.reply(command) for command in commands]
    copy = QueueMachine()
    copy.restore(driver.machine.snapshot())
    assert copy.snapshot() == driver.machine.snapshot()
    driver.machine = copy
    assert [driver.reply(command) for command in commands] == before
    assert driver.count("dlv") == 2


@pytest.mark.parametrize(
    "command",
    [
        client_sessions.encode("n1", 7, 3, 0, 0, queue_commands.encode_tick()),
        client_sessions.encode(
            "n1", 7, 3, 0, 0, client_sessions.encode("n1", 7, 2, 0, 0, b"\x01\x0d{}")
        ),
        client_sessions.encode("n1", 7, 3, 3, 0, queue_commands.encode_purge()),
        client_sessions.encode("n1", 7, 3, 0, 4, queue_commands.encode_purge()),
        client_sessions.encode("n1", 7, 3, 0, 0, b"\x01\x09[}"),
        client_sessions.encode("n1", 7, 3, 0, 0, b"\x02\x09{}"),
        client_sessions.encode("n1", 7, 3, 0, 0, b"\x01"),
        b"\x01\x13\x02\x00",
        client_sessions.encode("\xe9", 7, 3, 0, 0, queue_commands.encode_purge()).replace(
            b"\xc3", b"\xff"
        ),
    ],
)
def test_what_is_no_envelope_is_refused(driver: QueueDriver, command: bytes) -> None:
    driver.fill(1)
    assert driver.reply(command)["refused"] == 400
    assert driver.ready == 1


def test_the_kind_of_a_command_is_seen_through_its_envelope(sender: Sender) -> None:
    plain: Any = queue_commands.encode_get(consumer(""), True)
    assert client_sessions.is_once(plain)
    assert client_sessions.kind_of(plain) == client_sessions.kind_of(sender.wrap(plain)) == Kind.GET
    assert client_sessions.inside(sender.wrap(plain)) == plain
    settle = queue_commands.encode_ranges(Kind.SETTLE, consumer(), [(0, 1)])
    assert not client_sessions.is_once(settle)


@pytest.mark.parametrize(
    ("command", "is_lazy"),
    [
        (queue_commands.encode_get(HOLDER, True), True),
        (queue_commands.encode_get(HOLDER, False), True),
        # What it settles would be lost with it, and its message stay with the channel.
        (settling_gets.encode(queue_commands.encode_get(HOLDER, False), [(1, 2)]), False),
        (queue_commands.encode_purge(), False),
        (queue_commands.encode_channel_down("n1", 1, 2), False),
    ],
)
def test_of_what_other_members_send_a_get_is_lazy(command: bytes, is_lazy: bool) -> None:
    assert client_sessions.is_lazy(client_sessions.encode("n1", 1, 2, 0, 1, command)) is is_lazy


@pytest.mark.parametrize(
    "command",
    [
        queue_commands.encode_ranges(queue_commands.Kind.SETTLE, HOLDER, [(1, 2)], 0),
        queue_commands.encode_get(HOLDER, True),
        b'{"kind":"of the catalog"}',
        b"",
        client_sessions.encode("n1", 1, 2, 0, 1, b"")[:3],
    ],
)
def test_nothing_else_of_other_members_is_lazy(command: bytes) -> None:
    """A settlement that is lost would leave its message with a channel that lives on."""
    assert not client_sessions.is_lazy(command)


@pytest.mark.parametrize(("queue_type", "may_lose"), [("classic", True), ("quorum", False)])
def test_only_a_classic_queue_may_forget_what_it_did_last(queue_type: str, may_lose: bool) -> None:
    options = queue_options.QueueOptions(queue_type=queue_type)
    assert QueueMachine(options).may_lose_last is may_lose
