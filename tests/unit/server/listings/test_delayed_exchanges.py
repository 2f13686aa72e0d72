"""What is told of messages that wait in exchanges."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from brokerd.core.queue.queue_summary import UNKNOWN
from brokerd.raft.messages import NodeId
from brokerd.server.listings.delayed_exchanges import NO_LEADER, Waiting, queue_of, waiting
from brokerd.server.queues.table import AT, COLUMNS, QueueTable
from tests.unit.core.catalog_driver import CatalogDriver


def row(**figures: int) -> array[int]:
    found = array("q", [0] * len(COLUMNS))
    for name, value in figures.items():
        found[AT[name]] = value
    return found


@dataclass
class Table(QueueTable):
    """One row for whoever asks."""

    found: array[int] | None

    def row_of(self, uid: int) -> array[int] | None:
        return self.found


@dataclass
class Groups:
    """A replica of queue 1."""

    leader: NodeId | None

    def has_group(self, uid: int) -> bool:
        return uid == 1

    def leader_of(self, uid: int) -> NodeId | None:
        return self.leader


@dataclass
class Queues:
    """Their figures."""

    table: QueueTable


@dataclass
class Sources:
    """What is needed of the member."""

    groups: Groups
    queues: Queues
    late_reason: Callable[[int], str]


def sources(found: array[int] | None, leader: str | None = "n0") -> Sources:
    node = None if leader is None else NodeId(leader)
    return Sources(Groups(node), Queues(Table(found)), lambda uid: "why")


@pytest.mark.parametrize(
    ("due_ms", "leader", "expected"),
    [
        (UNKNOWN, "n0", Waiting(7, None, 0, "")),
        (1_500, "n0", Waiting(7, 1_500, 0, "")),
        (1_000, "n0", Waiting(7, 1_000, 0, "")),
        (400, "n0", Waiting(7, 400, 600, "why")),
        (400, None, Waiting(7, 400, 600, NO_LEADER)),
    ],
)
def test_it_says_how_many_when_and_why_they_are_late(
    due_ms: int, leader: str | None, expected: Waiting
) -> None:
    found = row(messages=3, delayed=4, due_ms=due_ms)
    assert waiting(sources(found, leader), 1, 1_000) == expected
    assert expected.as_json()["messages_delayed"] == 7


def test_nothing_is_known_without_a_replica() -> None:
    assert waiting(sources(None), 1, 0) is None
    assert waiting(sources(row()), 2, 0) is None


def test_only_exchanges_of_this_type_keep_messages() -> None:
    catalog = CatalogDriver()
    spec = {"type": "quorum", "durable": True, "auto_delete": False, "arguments": {}}
    catalog.put("queue", "amq.delayed.later", spec | {"settings": {}}, uid=8, members=["n1"])
    catalog.exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    catalog.exchange("plain", "direct")
    view = catalog.view
    later, plain = view.exchange("/", "later"), view.exchange("/", "plain")
    assert later is not None
    assert plain is not None
    kept = queue_of(view, later)
    assert kept is not None
    assert kept.uid == 8
    assert queue_of(view, plain) is None
