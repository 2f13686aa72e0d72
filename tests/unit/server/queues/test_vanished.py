"""Messages that go with a queue which others deleted, with this member away or not."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.queue import enqueue_commands
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.raft.machine import Meta
from brokerd.server.messages.dropped import Dropped
from brokerd.server.queues.vanished import Vanished, VanishedQueues
from brokerd.storage.errors import DamagedEntry

LED, FOLLOWED, ON_DISK, DAMAGED, ELSEWHERE = 1, 2, 3, 4, 5


class Member:
    """One that leads queue 1, has opened queue 2, and has the logs of 2, 3 and 4."""

    def has_group(self, uid: int) -> bool:
        return uid in (LED, FOLLOWED)

    def leads(self, uid: int) -> bool:
        return uid == LED

    def messages_of(self, uid: int) -> int:
        assert uid == LED
        return 5

    def read_alone(self, uid: int, machine: Any) -> bool:
        if uid == DAMAGED:
            raise DamagedEntry(uid, 1, "000001.wal")
        if uid == ELSEWHERE:
            return False
        assert isinstance(machine, QueueMachine)
        content = (("", "q"), b"", b"body", b"")
        command = enqueue_commands.encode_enqueue("n0", 1, 1, 1, [content] * uid)
        machine.apply(Meta(1, 1, 1), command)
        return True


class Rig:
    """State: the books of a member; `told`, figures of queues that ended while it had them open."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool, int]] = []
        self.dropped = Dropped(lambda _vhost, *rest: self.told.append(rest))
        self.queues = VanishedQueues(Member(), Member(), self.dropped)

    def gone(self, uid: int, cause: str = "") -> None:
        self.queues.vanishing(Vanished(uid, "/", f"q{uid}", cause))

    def totals(self) -> dict[str, int]:
        return {cause: count for cause, count in self.dropped.totals.items() if count}


def record(uid: int) -> Queue:
    spec = {
        "type": "classic",
        "durable": True,
        "auto_delete": False,
        "arguments": {},
        "settings": {},
    }
    return Queue("/", f"q{uid}", spec, uid, ["n0"])


def test_what_is_led_here_is_counted_by_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.queues.loaded(())
    with caplog.at_level(logging.INFO):
        rig.gone(LED, "admin")
        rig.gone(LED, "home-down")
    assert rig.totals() == {"queue_deleted": 5, "home_down": 5}
    assert rig.told == [("q1", False, 5)] * 2
    assert [found.levelname for found in caplog.records] == ["INFO", "WARNING"]
    assert "which did not hear this one" in caplog.records[1].getMessage()


def test_what_has_no_leader_is_read_from_its_log(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with caplog.at_level(logging.INFO):
        rig.gone(FOLLOWED, "amqp:guest")
    assert rig.totals() == {"queue_deleted": 2}
    [line] = caplog.messages
    assert line.startswith("queue 'q2' in vhost '/' dropped 2 messages")
    assert "amqp:guest while this member was away" in line


def test_what_is_deleted_before_it_is_opened_is_read_once_all_others_are_open() -> None:
    rig = Rig()
    rig.gone(ON_DISK, "home-down")
    rig.gone(ELSEWHERE)
    assert rig.totals() == {}
    rig.queues.loaded((LED, FOLLOWED))
    assert rig.totals() == {"home_down": 3}
    # Figures of a queue that this process never had would be taken for another one's.
    assert rig.told == []
    rig.queues.loaded((LED, FOLLOWED))
    assert rig.totals() == {"home_down": 3}


def test_what_a_snapshot_no_longer_knows_is_read_too(caplog: pytest.LogCaptureFixture) -> None:
    """It tells of no deletions: names are those of this member's own catalog."""
    rig = Rig()
    rig.queues.remember([record(FOLLOWED), record(ON_DISK)])
    with caplog.at_level(logging.INFO):
        rig.queues.loaded((FOLLOWED,))
    assert rig.totals() == {"queue_deleted": 3}
    assert "queue 'q3' in vhost '/' dropped 3 messages" in caplog.text
    assert "deleted in the catalog while this member was away" in caplog.text


def test_while_the_member_runs_nothing_is_kept_of_queues_elsewhere() -> None:
    rig = Rig()
    rig.queues.loaded(())
    rig.queues.remember([record(ON_DISK)])
    rig.gone(ON_DISK)
    rig.queues.loaded(())
    assert rig.totals() == {}


def test_a_log_that_cannot_be_read_is_said(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.gone(DAMAGED)
    rig.queues.loaded(())
    assert rig.totals() == {}
    assert "queue 'q4' in vhost '/' went while this member was away" in caplog.text
