"""What stands in for the member around this room in its tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from brokerd.cluster.groups.driver import Done
from brokerd.cluster.groups.host_events import GroupStatus
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import Configuration, NodeId

SPEC: dict[str, Any] = {
    "type": "quorum",
    "durable": True,
    "auto_delete": False,
    "arguments": {},
    "settings": {},
}


def queue(
    uid: int, name: str, *members: str, vhost: str = "/", queue_type: str = "quorum"
) -> Queue:
    return Queue(vhost, name, SPEC | {"type": queue_type}, uid, list(members))


def status(*voters: NodeId, last: int = 9, log_uid: int = 0, **fields: Any) -> GroupStatus:
    """Return the state of a replica that has nothing to catch up with and no damage."""
    whole = GroupStatus(
        leader=None,
        term=1,
        is_leader=False,
        commit=last,
        applied=last,
        last=last,
        members=Configuration(voters),
        lag={},
        snapshot=0,
        is_damaged=False,
        error="",
        contradiction=None,
        log_uid=log_uid,
        is_volatile=False,
        is_suspected=False,
    )
    return replace(whole, **fields)


class Replicas:
    """A member's replicas, and who is up; what is asked of them is noted."""

    def __init__(self, node: NodeId, *others: NodeId) -> None:
        self.node = node
        self.up = {node, *others}
        self.stalled: set[NodeId] = set()
        self.by_uid: dict[int, GroupStatus] = {}
        #: (group, to)
        self.transfers: list[tuple[int, NodeId]] = []
        #: (group, configuration)
        self.changes: list[tuple[int, Configuration]] = []

    def alive(self) -> set[NodeId]:
        return self.up

    def is_stalled(self, node: NodeId) -> bool:
        return node in self.stalled

    def groups(self) -> list[int]:
        return list(self.by_uid)

    def has_group(self, uid: int) -> bool:
        return uid in self.by_uid

    def leader_of(self, uid: int) -> NodeId | None:
        return self.by_uid[uid].leader if uid in self.by_uid else None

    def status_of(self, uid: int) -> GroupStatus:
        return self.by_uid[uid]

    def transfer_leadership(self, uid: int, to: NodeId) -> None:
        self.transfers.append((uid, to))

    def change_members(self, uid: int, configuration: Configuration, done: Done) -> None:
        self.changes.append((uid, configuration))


class Tasks:
    """What was begun in the background."""

    def __init__(self) -> None:
        self.begun: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.begun.append(task)
        return task

    async def wait(self) -> None:
        await asyncio.gather(*self.begun)
