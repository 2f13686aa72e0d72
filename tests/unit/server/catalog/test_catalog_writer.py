"""A change of the catalog is answered when all members that are up have it (catalog_writer.py)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from brokerd.cluster.groups.host_events import GroupStatus
from brokerd.cluster.peer import deliveries
from brokerd.config import LimitConfig
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.catalog import catalog_writer
from brokerd.server.catalog.catalog_writer import CatalogWriter
from tests.unit.core.catalog_driver import StepMeta
from tests.unit.server.members.fakes import status

HERE, NEAR, FAR = NodeId("here"), NodeId("near"), NodeId("far")


class Network:
    """Host and group client in one.  State: who is up, and who answers after how many questions."""

    node = HERE

    def __init__(self, **answers_after: int) -> None:
        self.up = {HERE, *map(NodeId, answers_after)}
        self.stalled: set[NodeId] = set()
        self.answers_after = answers_after
        self.asked: list[NodeId] = []
        self.answered: list[NodeId] = []
        #: The catalog's group is open here.
        self.has_catalog = False
        machine = CatalogMachine()
        self.view = machine.state
        members = [catalog_commands.put_member(node, f"{node}:1") for node in self.up]
        machine.apply(StepMeta(1), catalog_commands.encode_batch(members))
        self.writer = CatalogWriter(self, self, self.view, LimitConfig())  # type: ignore[arg-type]

    def alive(self) -> set[NodeId]:
        return set(self.up)

    def is_stalled(self, node: NodeId) -> bool:
        return node in self.stalled

    def has_group(self, uid: int) -> bool:
        return uid == CATALOG_GROUP and self.has_catalog

    def status_of(self, uid: int) -> GroupStatus:
        return status(HERE)

    async def request(self, uid: int, command: bytes, timeout_s: float) -> bytes:
        return b'{"revision": 0}'

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        if kind == deliveries.DeliveryKind.SYNCED:
            self.answered.append(node)
            return
        assert kind == deliveries.DeliveryKind.SYNC
        self.asked.append(node)
        if self.asked.count(node) > self.answers_after[node]:
            token, _ = deliveries.decode_sync(payload)
            asyncio.get_running_loop().call_soon(self.writer.synced, node, token)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_writer, "ASK_AGAIN_S", 0.001)


async def write(network: Network) -> None:
    await network.writer.write(catalog_commands.set_setting("x", "1"))


async def test_a_member_that_has_not_heard_the_question_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A delivery is lost where no stream stands yet; who has answered is left alone."""
    network = Network(near=0, far=3)
    await write(network)
    assert network.asked.count(FAR) == 4
    assert network.asked.count(NEAR) == 1
    assert not caplog.records


async def test_a_member_that_is_down_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(catalog_writer, "SYNC_S", 600.0)
    network = Network(far=1 << 30)
    asyncio.get_running_loop().call_later(0.05, network.up.discard, FAR)
    await write(network)
    assert not caplog.records


async def test_who_is_a_member_no_more_is_not_waited_for() -> None:
    """It is heard until it knows, and each change would take SYNC_S (seed 17003050)."""
    network = Network(near=0)
    network.up.add(FAR)
    await write(network)
    assert network.asked == [NEAR]


async def test_a_member_that_never_answers_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(catalog_writer, "SYNC_S", 0.05)
    caplog.set_level(logging.WARNING)
    await write(Network(near=0, far=1 << 30))
    [record] = caplog.records
    assert record.getMessage() == "members {'far'} lag behind revision 0"


async def test_nobody_else_means_no_question() -> None:
    network = Network()
    await write(network)
    assert network.asked == []


async def test_nobody_waits_for_a_member_that_still_looks_for_its_cluster() -> None:
    """It is up and has no catalog: who asks it would wait for SYNC_S, at each change."""
    network = Network()
    await network.writer.sync(NEAR, 1, revision=7)
    assert network.answered == [NEAR]


async def test_whoever_asks_waits_for_a_member_that_has_not_applied_a_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network()
    network.has_catalog = True
    revision = network.view.revision + 1
    waiting = asyncio.create_task(network.writer.sync(NEAR, 1, revision))
    await asyncio.sleep(0)
    assert network.answered == []
    network.view.revision = revision
    network.writer.applied()
    await waiting
    assert network.answered == [NEAR]


async def test_a_revision_that_came_with_a_snapshot_is_noticed() -> None:
    """Nothing tells of it: whoever started meanwhile waited for the next change (seed 12000540)."""
    network = Network()
    network.has_catalog = True
    revision = network.view.revision + 1
    waiting = asyncio.create_task(network.writer.sync(NEAR, 1, revision))
    await asyncio.sleep(0)
    network.view.revision = revision
    await waiting
    assert network.answered == [NEAR]


async def test_who_only_catches_up_asks_nobody() -> None:
    """Each member that starts has all others catch up: with thirty of them these were 841 questions
    and as many answers.
    """
    network = Network(near=0, far=0)
    await network.writer.catch_up()
    assert network.asked == []


async def test_a_member_whose_disk_does_not_answer_is_not_waited_for() -> None:
    """ADR 68: it takes no more than its leader has on the way to it, and each change would take
    SYNC_S.
    """
    network = Network(near=0, far=1 << 30)
    network.stalled.add(FAR)
    await write(network)
    assert network.asked == [NEAR]


async def test_a_member_whose_own_disk_does_not_answer_says_so_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ADR 68: it may have been sent all that it is sent, and its clients waited for 20 s."""
    monkeypatch.setattr(catalog_writer, "SYNC_S", 0.01)
    network = Network()
    waiting = network.writer._wait_applied(network.view.revision + 1, 600.0)
    network.stalled.add(HERE)
    with pytest.raises(catalog_writer.Unavailable, match="the disk of member 'here' does not"):
        await waiting
