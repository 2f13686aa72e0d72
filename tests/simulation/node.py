"""One simulated member: drives a Replica as cluster/ does, with a fake disk, and can crash.

Decides nothing about Raft; when the world says so it emulates the host's quiescence (quiet groups
get no ticks, node-level liveness instead; design/replication.md §2).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from brokerd.raft.actions import (
    Contradicted,
    InstallSnapshot,
    Persist,
    Realise,
    Reply,
    RoleChanged,
    SaveSnapshot,
    Send,
)
from brokerd.raft.inputs import Input, LeaderAlive, Persisted, Received, SnapshotSaved, Tick
from brokerd.raft.messages import Configuration, GroupUid, Message, MessageKind, NodeId
from brokerd.raft.replica import Replica
from tests.simulation.checkers import require
from tests.simulation.disk import FakeDisk
from tests.simulation.machine import SimMachine

if TYPE_CHECKING:
    from tests.simulation.world import World

#: A node that was silent for so long is suspected (design/replication.md §2.1).
SUSPICION_MS = 1500
PING_MS = 250


class SimNode:
    """A member with its disk.  `replica` is None while it is down."""

    def __init__(self, world: World, node: NodeId, bootstrap: Configuration | None) -> None:
        self.world = world
        self.id = node
        self.bootstrap = bootstrap
        self.disk = FakeDisk()
        self.replica: Replica | None = None
        self.machine: SimMachine | None = None
        #: Counts starts; what was scheduled for an earlier life does not arrive.
        self.life = 0
        self.is_slow = False
        self._is_syncing = False
        self._seen_commit = 0
        self._realised: set[int] = set()
        self._led = False
        self.last_heard: dict[NodeId, int] = {}

    # ---- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Boot from the disk."""
        world = self.world
        self.life += 1
        self._is_syncing = False
        self._realised = set()
        self.machine = SimMachine(self._observe)
        self._seen_commit = self.disk.first_index() - 1
        self.last_heard = dict.fromkeys(world.node_ids, world.now_ms)
        rng = random.Random(world.rng.getrandbits(32))
        self.replica = Replica(
            GroupUid(7), self.id, self.bootstrap, self.machine, self.disk, world.config, rng
        )
        self.replica._node.is_prompt = world.is_prompt
        world.record("start", self.id, self.life, self.replica.last_index)
        phase_ms = world.rng.randrange(world.config.tick_ms)
        world.after(phase_ms, self._tick, self.life)
        if world.scenario.is_quiescing:
            world.after(phase_ms, self._ping, self.life)

    def crash(self) -> None:
        """Stop at once; the disk forgets what was not synced."""
        if self.replica is None:
            return
        self.world.record("crash", self.id, self.life, len(self.disk.waiting))
        self.replica = None
        self.life += 1
        self.disk.crash(self.world.rng)

    def _tick(self, life: int) -> None:
        replica = self.replica
        if life != self.life or replica is None:
            return
        world = self.world
        world.after(world.config.tick_ms, self._tick, life)
        if world.scenario.is_quiescing and self._needs_no_tick(replica):
            self._fold(replica)
            return
        self.handle(Tick(world.now_ms))

    def _fold(self, replica: Replica) -> None:
        """Go on with another replica, made of what this one is folded to; nobody notices."""
        before, machine = replica.overview(), self.machine
        folded = replica.fold()
        if folded is None or machine is None:
            return
        world, node = self.world, replica._node
        self.machine = SimMachine(self._observe)
        self.replica = Replica(
            *(GroupUid(7), self.id, None, self.machine, self.disk, world.config, node._rng),
            folded=folded,
        )
        self.replica._node.is_prompt = world.is_prompt
        replica.close()
        world.folds += 1
        require(self.replica.overview() == before, f"{self.id} is another after it was folded")
        require(self.machine.snapshot() == machine.snapshot(), f"{self.id} has another state")
        self.replica.check_invariants()

    def _needs_no_tick(self, replica: Replica) -> bool:
        """What group_clock.py asks, with the simulator's own notion of who is down."""
        now_ms = self.world.now_ms
        down = {
            peer
            for peer in replica.configuration.voters + replica.configuration.learners
            if peer != self.id and now_ms - self.last_heard.get(peer, 0) > SUSPICION_MS
        }
        return (
            replica.is_consensus_quiet(down)
            and replica.next_deadline_ms is None
            and replica.leader not in down
        )

    def _ping(self, life: int) -> None:
        if life != self.life or self.replica is None:
            return
        world = self.world
        world.after(PING_MS, self._ping, life)
        for peer in world.node_ids:
            if peer != self.id:
                world.send_ping(self.id, peer)

    def on_ping(self, sender: NodeId) -> None:
        """A peer's node was heard."""
        if self.replica is None:
            return
        self.last_heard[sender] = self.world.now_ms
        if self.replica.leader == sender:
            self.handle(LeaderAlive())

    # ---- driving the replica --------------------------------------------------------------------

    def deliver(self, message: Message) -> None:
        """A message arrives."""
        if self.replica is not None:
            self.handle(Received(message))

    def handle(self, event: Input) -> None:
        """Feed an input and execute what comes out."""
        replica = self.replica
        if replica is None:
            return
        life = self.life
        # A leader that is removed leaves in the course of the very input that it still answers.
        self._led = replica.is_leader
        actions = replica.handle(event)
        self._led = self._led or replica.is_leader
        self._check_commit(replica)
        replica.check_invariants()
        for action in actions:
            if self.life != life:
                return
            _EXECUTE[type(action)](self, action)

    def _check_commit(self, replica: Replica) -> None:
        commit = replica.commit_index
        require(commit >= self._seen_commit, f"{self.id} took its commit index back")
        if commit == self._seen_commit:
            return
        log = replica._node.log
        disks = [self.world.nodes[voter].disk for voter in replica.configuration.voters]
        for index in range(max(self._seen_commit + 1, log.first), commit + 1):
            self.world.checkers.on_commit(self.id, replica.term, index, log.term(index), disks)
        self._seen_commit = commit
        if replica.is_leader and self.world.strikes(self.world.scenario.crash_after_commit):
            self.world.crash_for(self.id, 300)

    def _observe(self, index: int, term: int, command: bytes, chain: str) -> None:
        self.world.checkers.on_applied(self.id, index, term, command, chain)

    def _persist(self, action: Persist) -> None:
        replica = self.replica
        assert replica is not None
        if action.entries:
            before = replica._node.log.term(action.entries[0].index - 1)
            self.world.checkers.on_entries(self.id, before, action.entries)
        self._submit(action)

    def _submit(self, action: Persist | InstallSnapshot | SaveSnapshot) -> None:
        self.disk.submit(action)
        if not self._is_syncing:
            self._sync()

    def _sync(self) -> None:
        self._is_syncing = True
        # One sync takes all that waits; what comes meanwhile goes with the next (group commit).
        count = len(self.disk.waiting)
        self.world.after(self.world.sync_ms(self), self._synced, self.life, count)

    def _synced(self, life: int, count: int) -> None:
        if life != self.life or self.replica is None:
            return
        self._is_syncing = False
        token = 0
        for write in self.disk.complete(count):
            if isinstance(write, SaveSnapshot):
                self.handle(SnapshotSaved(write.snapshot.index))
            else:
                token = write.token
        if token:
            self.handle(Persisted(token))
            if self.replica is not None:
                self._check_restored()
        if self.life == life and self.disk.waiting and not self._is_syncing:
            self._sync()

    def _check_restored(self) -> None:
        machine = self.machine
        assert machine is not None
        if machine.index:
            self.world.checkers.on_restored(self.id, machine.index, machine.chain)

    def _send(self, action: Send) -> None:
        message = action.message
        self.world.send(message)
        if (
            message.kind == MessageKind.VOTE_REPLY
            and not message.reject
            and self.world.strikes(self.world.scenario.crash_after_vote)
        ):
            self.world.crash_for(self.id, 1 + self.world.rng.randrange(100))

    def _reply(self, action: Reply) -> None:
        self.world.on_reply(self.id, action)

    def _realise(self, action: Realise) -> None:
        require(self._led, f"{self.id} realises effects without leading")
        require(action.index not in self._realised, f"{self.id} realised {action.index} twice")
        self._realised.add(action.index)

    def _contradicted(self, action: Contradicted) -> None:
        # No disk of this world loses what it has synced, so no leader may lack what is committed.
        require(False, f"{self.id} is contradicted: {action.contradiction}")

    def _role_changed(self, action: RoleChanged) -> None:
        world = self.world
        world.record("role", self.id, action.leader, action.term)
        if not action.is_leader or self.replica is None:
            return
        checkers = world.checkers
        checkers.on_leader(self.id, action.term)
        log = self.replica._node.log
        low = max(log.first, checkers.commit_max - 30)
        indexes = [i for i in range(low, checkers.commit_max + 1) if i in checkers.committed]
        checkers.on_new_leader_log(self.id, action.term, {i: log.term(i) for i in indexes})
        if world.strikes(world.scenario.mute_after_election):
            world.mute(self.id)


_EXECUTE: dict[type[Any], Callable[[SimNode, Any], None]] = {
    Persist: SimNode._persist,
    InstallSnapshot: SimNode._submit,
    SaveSnapshot: SimNode._submit,
    Send: SimNode._send,
    Reply: SimNode._reply,
    Realise: SimNode._realise,
    RoleChanged: SimNode._role_changed,
    Contradicted: SimNode._contradicted,
}
