"""A group wired by hand: nothing moves unless the test says so (deliver, sync, tick).

For unit tests and the transcripts; the simulator (tests/simulation) has its own, automatic world.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from brokerd.raft.actions import (
    Action,
    InstallSnapshot,
    Persist,
    Realise,
    Reply,
    SaveSnapshot,
    Send,
)
from brokerd.raft.config import RaftConfig
from brokerd.raft.inputs import (
    ChangeMembers,
    Input,
    Persisted,
    Propose,
    Received,
    SnapshotSaved,
    Tick,
    TransferLeadership,
)
from brokerd.raft.machine import Meta
from brokerd.raft.messages import (
    Configuration,
    Entry,
    EntryKind,
    GroupUid,
    Message,
    MessageKind,
    NodeId,
)
from brokerd.raft.node import RaftNode
from brokerd.raft.replica import Replica
from tests.simulation.disk import FakeDisk


@dataclass(slots=True)
class EchoOutcome:
    """What applying brought."""

    reply: bytes
    effects: list[Any] = field(default_factory=list)


class EchoMachine:
    """Remembers what it applied; answers with the command in capitals; one effect per command."""

    may_lose_last = False

    def __init__(self, *, realise_everywhere: bool = False) -> None:
        self.realise_everywhere = realise_everywhere
        self.applied: list[tuple[int, str]] = []
        self.metas: list[Meta] = []
        self.offices: list[Meta] = []
        self.deadline_ms: int | None = None

    def apply(self, meta: Meta, command: bytes) -> EchoOutcome:
        """Remember the command."""
        text = command.decode()
        self.applied.append((meta.index, text))
        self.metas.append(meta)
        if text == "tick":
            self.deadline_ms = None
        return EchoOutcome(text.upper().encode(), [text])

    def became_leader(self, meta: Meta) -> list[Any]:
        """Say so."""
        self.offices.append(meta)
        return ["again"]

    def snapshot(self) -> bytes:
        """Return all that was applied."""
        return json.dumps(self.applied).encode()

    def restore(self, data: bytes) -> None:
        """Take over all that was applied."""
        self.applied = [(index, text) for index, text in json.loads(data)]

    def live_indexes(self) -> Sequence[tuple[int, int]]:
        """Keep the newest command's entry."""
        return [(index, index + 1) for index, _ in self.applied[-1:]]

    def look(self, command: bytes, now_ms: int) -> bytes | None:
        """Say how much was applied, where a question for it came in time."""
        return b"%d" % len(self.applied) if command == b"count" and now_ms < 100 else None

    def factory(self) -> None:
        """Return None: it stays."""
        return

    def next_deadline_ms(self) -> int | None:
        """Return what the test has set."""
        return self.deadline_ms

    def tick_command(self) -> bytes:
        """Return the tick command."""
        return b"tick"

    def overview(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def check_invariants(self) -> None:
        """Indexes ascend."""
        indexes = [index for index, _ in self.applied]
        assert indexes == sorted(set(indexes))


class Cluster:
    """Replicas, their disks, and the messages on the wire."""

    def __init__(
        self,
        voters: str = "abc",
        *,
        learners: str = "",
        joining: str = "",
        config: RaftConfig | None = None,
        realise_everywhere: bool = False,
        is_prompt: bool = True,
    ) -> None:
        """is_prompt: followers hear and apply at once, as in the catalog; False: with the tick."""
        self.is_prompt = is_prompt
        self.config = config or RaftConfig()
        self.bootstrap = Configuration(
            tuple(NodeId(n) for n in voters), tuple(NodeId(n) for n in learners)
        )
        self.joining = joining
        self.realise_everywhere = realise_everywhere
        self.disks = {NodeId(n): FakeDisk() for n in voters + learners + joining}
        self.replicas: dict[NodeId, Replica] = {}
        self.machines: dict[NodeId, EchoMachine] = {}
        self.wire: list[Message] = []
        self.replies: dict[int, Reply] = {}
        self.realised: list[tuple[str, int, Any]] = []
        self.token = 0
        self.watch: Callable[[NodeId, Action], None] | None = None
        for node in self.disks:
            self.start(node)

    def start(self, name: str) -> Replica:
        """Boot a member from its disk."""
        node = NodeId(name)
        self.machines[node] = EchoMachine(realise_everywhere=self.realise_everywhere)
        self.replicas[node] = Replica(
            GroupUid(7),
            node,
            None if name in self.joining else self.bootstrap,
            self.machines[node],
            self.disks[node],
            self.config,
            random.Random(ord(name)),
        )
        self.replicas[node]._node.is_prompt = self.is_prompt
        return self.replicas[node]

    def crash(self, name: str) -> None:
        """Stop a member; what was not synced is lost."""
        self.disks[NodeId(name)].waiting.clear()
        del self.replicas[NodeId(name)]

    def roll_back(self, name: str, last: int) -> None:
        """The disk of a member that is down has lost what came behind this entry."""
        disk = self.disks[NodeId(name)]
        disk.log = [entry for entry in disk.log if entry.index <= last]
        commit = min(disk.hard_state.commit, last)
        disk.hard_state = replace(disk.hard_state, commit=commit)

    def restart(self, name: str) -> Replica:
        """Crash and boot."""
        self.crash(name)
        return self.start(name)

    def feed(self, name: str, event: Input) -> list[Action]:
        """Handle an input; messages go to the wire, writes to the disk's queue."""
        node = NodeId(name)
        replica = self.replicas[node]
        actions = replica.handle(event)
        replica.check_invariants()
        for action in actions:
            if self.watch is not None:
                self.watch(node, action)
            if isinstance(action, Send):
                self.wire.append(action.message)
            elif isinstance(action, Persist | InstallSnapshot | SaveSnapshot):
                self.disks[node].submit(action)
            elif isinstance(action, Reply):
                assert action.token not in self.replies, "answered twice"
                self.replies[action.token] = action
            elif isinstance(action, Realise):
                self.realised += [(name, action.index, effect) for effect in action.effects]
        return actions

    def sync(self, name: str, count: int | None = None) -> bool:
        """Let a member's writes (only the oldest `count`) reach its disk."""
        disk = self.disks[NodeId(name)]
        done = disk.complete(len(disk.waiting) if count is None else count)
        for write in done:
            if isinstance(write, SaveSnapshot):
                self.feed(name, SnapshotSaved(write.snapshot.index))
            else:
                self.feed(name, Persisted(write.token))
        return bool(done)

    def deliver(self, *names: str) -> bool:
        """Deliver what is on the wire now (to the named members only)."""
        now, self.wire = self.wire, []
        moved = False
        for message in now:
            if names and message.to not in names:
                self.wire.append(message)
            elif message.to in self.replicas:
                self.feed(message.to, Received(message))
                moved = True
        return moved

    def drop(self) -> None:
        """Lose everything on the wire."""
        self.wire.clear()

    def stabilize(self, *names: str) -> None:
        """Sync and deliver (among the named members; the rest is cut off) until nothing moves."""
        members = [n for n in self.replicas if not names or n in names]
        for _ in range(1000):
            self.wire = [m for m in self.wire if m.to in members and m.sender in members]
            moved = self.deliver()
            for name in members:
                moved = self.sync(name) or moved
            if not moved:
                return
        raise AssertionError("messages without end")

    def elect(self, name: str, *among: str) -> None:
        """Make a member the leader."""
        self.feed(name, TransferLeadership(NodeId(name)))
        self.stabilize(*among)
        assert self.replicas[NodeId(name)].is_leader

    def propose(
        self, name: str, *commands: str, now_ms: int = 5, is_lazy: bool = False
    ) -> list[int]:
        """Propose commands; return their tokens."""
        tokens = []
        for _ in commands:
            self.token += 1
            tokens.append(self.token)
        pairs = [(token, text.encode()) for token, text in zip(tokens, commands, strict=True)]
        self.feed(name, Propose(now_ms, pairs, is_lazy))
        return tokens

    def change(self, name: str, voters: str, learners: str = "") -> int:
        """Propose a configuration; return the token."""
        self.token += 1
        configuration = Configuration(
            tuple(NodeId(n) for n in voters), tuple(NodeId(n) for n in learners)
        )
        self.feed(name, ChangeMembers(self.token, configuration))
        return self.token

    def tick(self, name: str, count: int = 1, now_ms: int = 5) -> None:
        """Let time pass at one member."""
        for _ in range(count):
            self.feed(name, Tick(now_ms))

    def rest(self) -> None:
        """Let the tick come with which a group at rest writes its commit index down."""
        for name in self.replicas:
            self.tick(name)
        self.stabilize()

    def applied(self, name: str) -> list[str]:
        """Return the commands that a member's machine has seen."""
        return [text for _, text in self.machines[NodeId(name)].applied]


def elected(voters: str = "abc", **settings: int) -> Cluster:
    """Return a quiet group that `a` leads in term 1, with these settings of RaftConfig."""
    cluster = Cluster(voters, config=replace(RaftConfig(), **settings))
    cluster.elect("a")
    cluster.stabilize()
    return cluster


def hand_over(cluster: Cluster, leader: str, heir: str) -> None:
    """Let another member lead."""
    cluster.feed(leader, TransferLeadership(NodeId(heir)))
    cluster.stabilize()
    assert cluster.replicas[NodeId(heir)].is_leader


def kinds(cluster: Cluster, to: str) -> list[MessageKind]:
    """Return the kinds of the messages on the wire to a member."""
    return [message.kind for message in cluster.wire if message.to == to]


def command(index: int, term: int) -> Entry:
    """Return an entry as it stands in a log: a time stamp before the command."""
    return Entry(index, term, EntryKind.COMMAND, bytes(8) + b"x")


@dataclass(slots=True)
class Dice:
    """A generator that remembers what it was asked for, and gives the least."""

    asked: list[tuple[int, int]] = field(default_factory=list)

    def randrange(self, start: int, stop: int) -> int:
        """Return `start`."""
        self.asked.append((start, stop))
        return start


def one_node(disk: FakeDisk | None = None, voters: Configuration | None = None) -> RaftNode:
    """Return member `a` of a group, without a replica around it."""
    return RaftNode(
        NodeId("a"),
        voters or Configuration(tuple(map(NodeId, "abc"))),
        disk or FakeDisk(),
        RaftConfig(),
        Dice(),
    )
