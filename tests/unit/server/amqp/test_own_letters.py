"""What a channel rejected is in its dead letter queue when the channel looks there next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brokerd.amqp import events, methods
from brokerd.cluster.groups.group_client import ReplyStatus
from brokerd.core.queue import queue_commands
from brokerd.core.queue.effects import ConsumerId
from brokerd.server.amqp import session as session_module
from brokerd.server.amqp.session import Session
from tests.unit.server.amqp import fakes

HOLDER = (9, ConsumerId("n0", 1, 1, "tag"))


class Groups:
    """A group client whose answers the test gives."""

    def __init__(self) -> None:
        self.sent: list[tuple[queue_commands.Kind, Callable[..., None]]] = []

    def send(
        self, uid: int, command: bytes, done: Callable[..., None], once: bool = False, **_: object
    ) -> None:
        self.sent.append((queue_commands.Kind(command[1]), done))

    def answer(self) -> None:
        _, done = self.sent.pop(0)
        done(ReplyStatus.OK, b"")


class Gate:
    is_held = True

    def hold(self, _: str) -> None:
        """Nothing is read."""

    def release(self, _: str) -> None:
        """It is read again."""


class Connection:
    """Collects what is to be called once all groups have run."""

    gate = Gate()
    author = unconfirmed = None
    is_lost = False

    def __init__(self) -> None:
        self.after_flush: list[Callable[[], None]] = []

    def call_after_flush(self, callback: Callable[[], None]) -> None:
        self.after_flush.append(callback)

    def groups_ran(self) -> None:
        called, self.after_flush = self.after_flush, []
        for callback in called:
            callback()

    def flush_soon(self) -> None:
        """Nothing is written."""

    def session_idle(self) -> None:
        """The channel has done what it had."""

    def channel_ended(self, _: int) -> None:
        """The channel is gone."""


class Others:
    """Parts of a member that a channel asks for at its birth and does not use here."""

    counters = None

    @property
    def view(self) -> Others:
        return self

    def by(self, _: object) -> Others:
        return self


class Rig:
    """A channel that holds two messages, tags 1 and 2, and what it has come to look at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups, self.connection = Groups(), Connection()
        connection: Any = self.connection
        others: Any = Others()
        services = replace(
            fakes.channel_services(self.groups), objects=others, messages=others, catalog=others
        )
        self.session = Session(services, connection, 1)
        self.session.unacked.delivered(HOLDER, 10, 2)
        self.looks: list[str] = []
        self.has_looked = asyncio.Event()
        monkeypatch.setattr(self.session, "_get", self._get)

    def _get(self, name: str, no_ack: bool) -> None:
        self.looks.append(name)
        self.has_looked.set()

    def method(self, method: methods.Method) -> None:
        self.session.handle(events.MethodReceived(1, method))

    def get(self, name: str = "dead") -> None:
        self.method(methods.BasicGet(0, name, True))


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


async def test_a_look_waits_until_what_was_rejected_is_answered_and_sent_on(rig: Rig) -> None:
    rig.method(methods.BasicNack(1, False, False))
    rig.method(methods.BasicReject(2, False))
    rig.get()
    rig.get("next")
    rig.groups.answer()
    rig.connection.groups_ran()
    assert rig.looks == []
    rig.groups.answer()
    # The letters go out behind the answer, in the same run of the group.
    assert rig.looks == []
    rig.connection.groups_ran()
    assert rig.looks == ["dead", "next"]
    rig.get("third")
    assert rig.looks == ["dead", "next", "third"]


async def test_a_look_waits_for_nothing_that_has_no_letters(rig: Rig) -> None:
    rig.method(methods.BasicNack(1, False, True))
    rig.session.handle(events.AcksReceived(1, [(2, False)]))
    rig.get()
    assert rig.looks == ["dead"]


async def test_settlements_do_not_wait_for_letters(rig: Rig) -> None:
    rig.method(methods.BasicNack(1, False, False))
    rig.method(methods.BasicNack(2, False, False))
    assert [kind for kind, _ in rig.groups.sent] == [queue_commands.Kind.DISCARD] * 2


async def test_answers_to_earlier_rejections_are_not_taken_for_those_of_later_ones(
    rig: Rig,
) -> None:
    rig.method(methods.BasicNack(1, False, False))
    rig.groups.answer()
    rig.method(methods.BasicNack(2, False, False))
    rig.get()
    rig.connection.groups_ran()
    assert rig.looks == []
    rig.groups.answer()
    rig.connection.groups_ran()
    assert rig.looks == ["dead"]


async def test_a_queue_that_does_not_answer_holds_the_others_up_for_a_second(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "LETTERS_WAIT_S", 0.0)
    rig.method(methods.BasicNack(1, False, False))
    rig.get()
    async with asyncio.timeout(60):
        await rig.has_looked.wait()
    assert rig.looks == ["dead"]
    # It is waited for once: its home may be down for days.
    rig.get()
    assert rig.looks == ["dead", "dead"]
    rig.groups.answer()
    rig.connection.groups_ran()
    assert (rig.looks, rig.session.discards) == (["dead", "dead"], 0)


async def test_a_channel_that_has_ended_looks_no_more(rig: Rig) -> None:
    rig.method(methods.BasicNack(1, False, False))
    rig.get()
    rig.session.ended()
    rig.groups.answer()
    rig.connection.groups_ran()
    assert rig.looks == []
