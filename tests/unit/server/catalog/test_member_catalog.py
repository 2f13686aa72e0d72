"""The catalog at a member: changes from here that nobody waits for, and who hears of a snapshot."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from brokerd.cluster.errors import GroupUnavailable
from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.config import LimitConfig
from brokerd.core import profiles
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_objects import ConnectionId
from brokerd.raft.messages import NodeId
from brokerd.server.catalog.keyring import Keyring
from brokerd.server.catalog.member_catalog import MemberCatalog
from brokerd.server.loop.tasks import Tasks


class Alone:
    """A member without others, whose proposals are taken, or not."""

    node = NodeId("n0")

    def __init__(self) -> None:
        self.has_majority = True
        self.proposed: list[dict[str, Any]] = []

    def alive(self) -> set[NodeId]:
        return {self.node}

    def is_stalled(self, node: NodeId) -> bool:
        return False

    def connection_id(self, uid: int) -> ConnectionId:
        return ConnectionId("n0", 7, uid)

    async def request(self, uid: int, command: bytes, timeout_s: float) -> bytes:
        if not self.has_majority:
            raise GroupUnavailable(uid, timeout_s)
        operation = catalog_commands.decode(command)
        assert operation is not None
        self.proposed.append(operation)
        return b'{"code":"ok","revision":0}'


class Bench:
    def __init__(self) -> None:
        self.member = Alone()
        self.tasks = Tasks()
        profile = profiles.configured("rabbitmq-4.3", {})
        host, groups = cast(Host, self.member), cast(GroupClient, self.member)
        limits = LimitConfig(operation_timeout_ms=1000)
        self.catalog = MemberCatalog(
            profile, self.member, host, groups, limits, Keyring(()), self.tasks.spawn
        )


async def test_the_end_of_a_connection_is_told_under_its_name_in_the_cluster() -> None:
    """R-Q-9."""
    bench = Bench()
    await bench.catalog.exclusive_queues_end(3)
    assert bench.member.proposed == [
        catalog_commands.connection_closed(ConnectionId("n0", 7, 3)),
    ]


async def test_what_nobody_waits_for_is_logged_where_there_is_no_majority(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.member.has_majority = False
    await bench.catalog.exclusive_queues_end(3)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "no majority" in record.getMessage()


async def test_a_snapshot_is_told_to_all_who_asked_and_the_view_stays_the_same_object() -> None:
    bench = Bench()
    view, heard = bench.catalog.view, []
    for name in ("a", "b"):
        bench.catalog.restored_listeners.append(lambda name=name: heard.append(name))
    bench.catalog.machine.restore(bench.catalog.machine.snapshot())
    assert heard == ["a", "b"]
    assert bench.catalog.view is view
