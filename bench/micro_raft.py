"""Microseconds per proposal that the raft room itself costs, without disk, network or event loop.

One group of three, entries of 1 KiB, a machine that does nothing; the leader's and a follower's
`handle` are timed apart.  The best round counts: whatever else runs on the machine only adds.
Run: python -m bench.micro_raft
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from brokerd.raft.actions import Action, Persist, SaveSnapshot, Send
from brokerd.raft.config import RaftConfig
from brokerd.raft.inputs import Input, Persisted, Propose, Received, SnapshotSaved, Tick
from brokerd.raft.machine import Meta
from brokerd.raft.messages import Configuration, GroupUid, NodeId
from brokerd.raft.replica import Replica
from tests.simulation.disk import FakeDisk

NODES = (NodeId("a"), NodeId("b"), NodeId("c"))


class NullOutcome:
    """Nothing came of it."""

    reply = b""
    effects: ClassVar[list[Any]] = []


class NullMachine:
    """Applies nothing, so that only the room is measured."""

    realise_everywhere = False
    may_lose_last = False

    def __init__(self) -> None:
        self._outcome = NullOutcome()

    def apply(self, meta: Meta, command: bytes) -> NullOutcome:
        """Do nothing."""
        return self._outcome

    def became_leader(self, meta: Meta) -> list[Any]:
        """Return no effects."""
        return []

    def snapshot(self) -> bytes:
        """Return an empty state."""
        return b""

    def restore(self, data: bytes) -> None:
        """Do nothing."""

    def live_indexes(self) -> Sequence[tuple[int, int]]:
        """Return no entries."""
        return ()

    def next_deadline_ms(self) -> int | None:
        """Return no deadline."""
        return None

    def tick_command(self) -> bytes:
        """Return nothing to do."""
        return b""

    def overview(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def check_invariants(self) -> None:
        """Nothing can break."""


class Group:
    """Three replicas wired back to back; counts the time spent inside each one's handle()."""

    def __init__(self) -> None:
        configuration = Configuration(NODES)
        self.disks = {node: FakeDisk() for node in NODES}
        self.replicas = {
            node: Replica(
                GroupUid(7),
                node,
                configuration,
                NullMachine(),
                self.disks[node],
                RaftConfig(),
                random.Random(seed),
            )
            for seed, node in enumerate(NODES)
        }
        self.spent_ns = dict.fromkeys(NODES, 0)

    def feed(self, node: NodeId, event: Input) -> None:
        """Handle an input and everything that follows from it."""
        queue: list[tuple[NodeId, Input]] = [(node, event)]
        for to, item in queue:
            start = time.perf_counter_ns()
            actions = self.replicas[to].handle(item)
            self.spent_ns[to] += time.perf_counter_ns() - start
            for action in actions:
                self._execute(to, action, queue)

    def _execute(self, node: NodeId, action: Action, queue: list[tuple[NodeId, Input]]) -> None:
        if isinstance(action, Send):
            queue.append((action.message.to, Received(action.message)))
        elif isinstance(action, Persist):
            self.disks[node].submit(action)
            self.disks[node].complete(1)
            queue.append((node, Persisted(action.token)))
        elif isinstance(action, SaveSnapshot):
            self.disks[node].submit(action)
            self.disks[node].complete(1)
            queue.append((node, SnapshotSaved(action.snapshot.index)))


def measure(proposals: int, batch: int) -> tuple[float, float]:
    """Return µs per proposal at the leader and at a follower."""
    group = Group()
    leader = NODES[0]
    for _ in range(30):
        group.feed(leader, Tick(0))
    assert group.replicas[leader].is_leader
    command = bytes(1024)
    group.spent_ns = dict.fromkeys(NODES, 0)
    for first in range(0, proposals, batch):
        group.feed(leader, Propose(1, [(first + i, command) for i in range(batch)]))
    assert group.replicas[leader].pending_count == 0
    return (
        group.spent_ns[leader] / proposals / 1000,
        group.spent_ns[NODES[1]] / proposals / 1000,
    )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proposals", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("entries per Propose   leader µs/entry   follower µs/entry   (best of rounds)")
    for batch in (1, 16):
        rounds = [measure(arguments.proposals, batch) for _ in range(arguments.rounds)]
        at_leader = min(leader for leader, _ in rounds)
        at_follower = min(follower for _, follower in rounds)
        print(f"{batch:19d} {at_leader:17.1f} {at_follower:19.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
