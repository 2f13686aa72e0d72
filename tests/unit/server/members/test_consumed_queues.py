"""What members tell each other of durable auto-delete queues that have consumers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokerd.cluster.errors import DeliveryFormatError
from brokerd.cluster.peer.deliveries import DeliveryKind
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import NodeId
from brokerd.server.members.consumed_queues import ConsumedQueues
from tests.unit.server.members.fakes import SPEC

HERE, OTHER = NodeId("n1"), NodeId("n2")
AUTO, PLAIN, TRANSIENT = 1, 2, 3


class Rig:
    """A member with another one."""

    def __init__(self) -> None:
        self.node = HERE
        self.sent: list[tuple[NodeId, bytes]] = []
        self.absent: set[int] = set()
        classic: dict[str, Any] = SPEC | {"type": "classic"}
        specs: dict[int, dict[str, Any]] = {
            AUTO: classic | {"auto_delete": True},
            PLAIN: classic,
            TRANSIENT: classic | {"auto_delete": True, "durable": False},
        }
        self.queues = {uid: Queue("/", "q", spec, uid, [HERE]) for uid, spec in specs.items()}
        self.consumed = ConsumedQueues(self, self.queues.get, self.absent)

    def alive(self) -> list[NodeId]:
        return [HERE, OTHER]

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        assert kind == DeliveryKind.CONSUMED
        self.sent.append((node, payload))


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def turn() -> None:
    await asyncio.sleep(0)


async def test_others_hear_of_queues_that_would_go_with_their_home(rig: Rig) -> None:
    for uid in (AUTO, PLAIN, TRANSIENT, 99):
        rig.consumed.changed(uid, True)
    await turn()
    assert rig.sent == [(OTHER, b'{"added":[1],"gone":[]}')]
    assert rig.consumed.has_consumers(AUTO)
    assert not rig.consumed.has_consumers(PLAIN)
    rig.consumed.changed(AUTO, False)
    rig.consumed.changed(PLAIN, False)
    await turn()
    assert rig.sent[1:] == [(OTHER, b'{"added":[],"gone":[1]}')]


async def test_what_a_member_said_last_counts_after_its_end(rig: Rig) -> None:
    rig.consumed.received(OTHER, b'{"added":[2]}')
    rig.consumed.node_changed(OTHER, False)
    assert rig.consumed.has_consumers(PLAIN)
    rig.consumed.received(OTHER, b'{"all":[3]}')
    assert [rig.consumed.has_consumers(uid) for uid in (PLAIN, TRANSIENT)] == [False, True]
    rig.consumed.received(OTHER, b'{"gone":[3]}')
    assert not rig.consumed.has_consumers(TRANSIENT)


async def test_a_consumer_that_the_homes_end_has_cancelled_still_counts(rig: Rig) -> None:
    rig.consumed.changed(AUTO, True)
    rig.absent.add(AUTO)
    rig.consumed.changed(AUTO, False)
    assert rig.consumed.has_consumers(AUTO)
    rig.consumed.forget(AUTO)
    rig.consumed.forget(AUTO)
    assert not rig.consumed.has_consumers(AUTO)
    await turn()
    assert rig.sent == [(OTHER, b'{"added":[],"gone":[1]}')]


async def test_a_member_that_is_heard_again_is_told(rig: Rig) -> None:
    rig.consumed.node_changed(OTHER, True)
    rig.consumed.node_changed(HERE, True)
    assert rig.sent == [(OTHER, b'{"all":[]}')]


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b'{"all":["a"]}', b'{"added":[true]}', b'{"gone":1}', b"\xff"]
)
async def test_a_word_that_cannot_be_read_is_refused(rig: Rig, payload: bytes) -> None:
    with pytest.raises(DeliveryFormatError):
        rig.consumed.received(OTHER, payload)
