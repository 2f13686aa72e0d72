"""A toy machine and an event recorder for the tests and benches of brokerd/cluster.

The machine is a list of numbered commands: it sees what was lost, doubled or out of order.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerd.cluster.config import HostConfig
from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.raft.config import RaftConfig
from brokerd.raft.machine import Meta
from brokerd.raft.membership import decode_configuration
from brokerd.raft.messages import NodeId
from brokerd.storage.wal import WalConfig, WriteAheadLog


@dataclass(slots=True)
class ToyOutcome:
    """Reply and effects of a toy command."""

    reply: bytes
    effects: list[Any]


class ToyMachine:
    """Counts commands and remembers the last of each key.

    Command: b"key=value".  Reply: the count so far.  The effect of each is the key.
    """

    realise_everywhere = False
    may_lose_last = False

    def __init__(self) -> None:
        self.count = 0
        self.values: dict[str, str] = {}
        #: Index of the entry that holds each key's value.
        self.entries: dict[str, int] = {}
        self.deadline_ms: int | None = None

    def apply(self, meta: Meta, command: bytes) -> ToyOutcome:
        key, _, value = command.decode("latin-1").partition("=")
        if key == "deadline":
            self.deadline_ms = int(value)
        elif key == "tick":
            self.deadline_ms = None
        self.count += 1
        self.values[key] = value[:64]
        self.entries[key] = meta.index
        return ToyOutcome(str(self.count).encode(), [key])

    def became_leader(self, meta: Meta) -> list[Any]:
        return ["leader"]

    def snapshot(self) -> bytes:
        return json.dumps([self.count, self.values, self.entries]).encode()

    def restore(self, data: bytes) -> None:
        self.count, self.values, self.entries = json.loads(data)

    def live_indexes(self) -> Sequence[tuple[int, int]]:
        return [(index, index + 1) for index in sorted(set(self.entries.values()))]

    def look(self, command: bytes, now_ms: int) -> None:
        """Every command is applied."""
        return

    def factory(self) -> None:
        return None

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def tick_command(self) -> bytes:
        return b"tick="

    def overview(self) -> dict[str, Any]:
        return {"count": self.count}

    def check_invariants(self) -> None:
        assert self.count >= len(self.values)


@dataclass(slots=True)
class Recorder:
    """HostEvents that remember."""

    effects: list[tuple[int, Any]] = field(default_factory=list)
    leaders: list[tuple[int, NodeId | None, bool]] = field(default_factory=list)
    nodes: list[tuple[NodeId, int, bool]] = field(default_factory=list)
    deliveries: list[tuple[NodeId, int, int, int, bytes]] = field(default_factory=list)
    liveness: list[tuple[NodeId, tuple[str, ...], int, int, int]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def realise(self, uid: int, term: int, effects: list[Any]) -> None:
        self.effects += [(uid, effect) for effect in effects]

    def leader_changed(self, uid: int, leader: NodeId | None, term: int, is_local: bool) -> None:
        self.leaders.append((uid, leader, is_local))

    def deliveries_lost(self, node: NodeId) -> None:
        """The toy's deliveries are counted, not awaited."""

    def node_changed(self, node: NodeId, incarnation: int, up: bool) -> None:
        self.nodes.append((node, incarnation, up))

    def delivered(self, sender: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        self.deliveries.append((sender, uid, term, kind, payload))

    def complete_reply(self, uid: int, command: bytes, reply: bytes) -> bytes:
        return reply

    def liveness_received(
        self,
        node: NodeId,
        alarms: Sequence[str],
        memory_used: int,
        memory_limit: int,
        disk_free: int,
    ) -> None:
        self.liveness.append((node, tuple(alarms), memory_used, memory_limit, disk_free))
        del self.liveness[:-100]

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)


class Member:
    """A node of a toy cluster: log, host, client, machines."""

    def __init__(
        self, name: str, directory: Path, config: HostConfig, incarnation: int, disk: Any = None
    ) -> None:
        self.node = NodeId(name)
        self.wal = WriteAheadLog.open(
            directory,
            WalConfig(node_id=name, segment_bytes=4 << 20, in_background=False),
            disk=disk,
            decode_configuration=decode_configuration,
        )
        self.events = Recorder()
        rng = random.Random(f"{name}{incarnation}")
        self.host = Host(self.node, incarnation, self.wal, config, rng)
        self.host.serve(self.events)
        self.client = GroupClient(self.host, rng)
        self.machines: dict[int, ToyMachine] = {}

    def open_group(
        self, uid: int, members: Sequence[str], *, volatile: bool = False, log_uid: int = 0
    ) -> ToyMachine:
        machine = self.machines[uid] = ToyMachine()
        nodes = [NodeId(name) for name in members]
        self.host.open_group(uid, nodes, machine, volatile=volatile, log_uid=log_uid)
        self.client.set_members(uid, nodes or [self.node])
        return machine

    async def close(self) -> None:
        await self.host.stop()
        self.wal.close()


def toy_config(**changes: Any) -> HostConfig:
    """Return a configuration with quick elections, for tests only."""
    raft = RaftConfig(tick_ms=20, election_ticks_min=10, election_ticks_max=20, heartbeat_ticks=3)
    for name in [name for name in changes if hasattr(raft, name)]:
        setattr(raft, name, changes.pop(name))
    config = HostConfig(cluster_id="toy", raft=raft, heartbeat_ms=50, suspicion_ms=600)
    for name, value in changes.items():
        setattr(config, name, value)
    return config


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait for a condition; AssertionError when it does not come true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


def leader_of(members: Sequence[Member], uid: int) -> Member | None:
    """Return the member that leads, if there is one of the newest term."""
    leading = [m for m in members if m.host.has_group(uid) and m.host.status_of(uid).is_leader]
    return max(leading, key=lambda m: m.host.status_of(uid).term, default=None)
