"""Driver: one Replica, its log and its machine; executes actions and reports back as inputs.

No decisions: what is written, sent or answered, and when, is the replica's business.  Used by
host.py only, which runs all drivers that have inputs in one flush.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeAlias

from brokerd.cluster.groups.liveness import Liveness
from brokerd.cluster.groups.replica_health import Action, Event, ReplicaHealth
from brokerd.core.queue import client_sessions
from brokerd.raft import actions, inputs
from brokerd.raft.machine import Machine
from brokerd.raft.messages import (
    Configuration,
    Contradiction,
    Entry,
    HardState,
    Message,
    NodeId,
    configuration_of,
)
from brokerd.raft.replica import Replica
from brokerd.raft.storage import LogStorage

logger = logging.getLogger(__name__)

#: (accepted, reply, leader): accepted False means that `leader` may know better.
Done: TypeAlias = Callable[[bool, bytes, NodeId | None], None]

#: Bytes of the time stamp before each command in an entry (raft/messages.py: Entry).
STAMP_BYTES = 8


class Ports(Protocol):
    """What a driver needs of its host."""

    def persist(
        self, driver: Driver, token: int, hard_state: HardState | None, entries: list[Entry]
    ) -> None:
        """Write; then call driver.persisted(token, entries)."""
        ...

    def send(self, uid: int, message: Message) -> None:
        """Send a Raft message."""
        ...

    def realise(self, driver: Driver, term: int, effects: list[Any]) -> None:
        """Have effects done."""
        ...

    def save_snapshot(self, driver: Driver, action: actions.SaveSnapshot) -> None:
        """Write a snapshot; then put SnapshotSaved."""
        ...

    def install_snapshot(self, driver: Driver, action: actions.InstallSnapshot) -> None:
        """Replace the log; then call driver.persisted."""
        ...

    def role_changed(self, driver: Driver) -> None:
        """Leader or term changed; see the driver's attributes."""
        ...

    @property
    def liveness(self) -> Liveness:
        """Return who is heard."""
        ...

    @property
    def keeper(self) -> Keeping:
        """Who puts aside what a leader contradicts."""
        ...

    @property
    def refilling(self) -> Refilling:
        """Who looks after replicas that have lost something."""
        ...


class Keeping(Protocol):
    """Implemented by keeping.py."""

    def contradicted(self, driver: Driver, found: Contradiction) -> None:
        """The replica has stopped, since a leader contradicts its log: keep that safe."""
        ...


class Refilling(Protocol):
    """Implemented by refilling.py."""

    def damaged(self, driver: Driver) -> None:
        """The replica has no vote; told at each event until it has one again."""
        ...


class Driver:
    """One group on this node.

    State: inputs not yet handled, callbacks of proposals by token, entries not yet on disk.
    Invariant: each callback is called exactly once, at the latest by `close`.

    In one piece: slots that every turn of a group touches, with one step to each.
    """

    __slots__ = (
        "_callbacks",
        "_first",
        "_last_proposal",
        "_ports",
        "_token",
        "_unwritten",
        "configuration",
        "deadline_ms",
        "error",
        "has_tick",
        "health",
        "inputs",
        "is_closed",
        "is_leader",
        "is_queued",
        "is_volatile",
        "leader",
        "log",
        "log_uid",
        "machine",
        "members",
        "replica",
        "requests_bytes",
        "term",
        "uid",
    )

    _ACTIONS: ClassVar[dict[type[Any], Callable[[Driver, Any], None]]]

    def __init__(
        self,
        uid: int,
        replica: Replica,
        log: LogStorage,
        machine: Machine,
        ports: Ports,
        *,
        is_volatile: bool,
        log_uid: int = 0,
    ) -> None:
        self.uid = uid
        #: What the log here calls the group: a member that comes again begins another log.
        self.log_uid = log_uid or uid
        self.replica = replica
        self.log = log
        self.machine = machine
        self.is_volatile = is_volatile
        self.inputs: list[inputs.Input] = []
        #: The host has this driver on its list for the next flush.
        self.is_queued = False
        #: A tick is among the inputs.
        self.has_tick = False
        self.is_closed = False
        #: What is lost here, and whether the replica may vote (G8); it learns by `learn`.
        self.health = ReplicaHealth()
        #: A broken invariant stopped this replica; the group goes on elsewhere.
        self.error: Exception | None = None
        self.leader: NodeId | None = None
        self.term = 0
        self.is_leader = False
        self.configuration = configuration_of(())
        self.members: frozenset[NodeId] = frozenset()
        #: When the host has a timer for the machine; None: it has none.
        self.deadline_ms: int | None = None
        #: Bytes of other nodes' commands that are not answered yet.
        self.requests_bytes = 0
        self._ports = ports
        self._token = 0
        self._callbacks: dict[int, Done] = {}
        self._last_proposal: inputs.Propose | None = None
        #: Proposals that go before the inputs that wait.
        self._first: list[inputs.Propose] = []
        #: Data of entries that are in memory only: the leader may deliver what its own disk does
        #: not hold yet.
        self._unwritten: dict[int, Entry] = {}

    @property
    def is_contradicted(self) -> bool:
        """A leader lacks what is committed here; the log stays as it is (keeping.py)."""
        return self.replica.contradiction is not None

    def learn(self, event: Event) -> Action | None:
        """Tell the replica's ReplicaHealth what has happened; return what is to be done."""
        action = self.health.handle(event)
        if not self.health.may_vote:
            self._ports.refilling.damaged(self)
        return action

    # ---- inputs ---------------------------------------------------------------------------------

    def propose(
        self,
        command: bytes,
        done: Done,
        now_ms: int,
        *,
        first: bool = False,
        is_lazy: bool = False,
    ) -> None:
        """Append a command to this flush's batch; `first`: put it before all that waits.

        By a listener that hears that this member leads, the latter is the first command of the
        term: whatever came before the term was refused, and leadership is not handed over yet.
        """
        self._token = token = self._token + 1
        self._callbacks[token] = done
        if client_sessions.is_look(command) and self._ports.liveness.hears_most(self.configuration):
            # One that was replaced and does not know it would answer with what was.
            self.inputs.append(inputs.Look(now_ms, token, command, is_lazy))
            return
        if first:
            self._first.append(inputs.Propose(now_ms, [(token, command)]))
            return
        proposal = self._last_proposal
        # Inputs keep their order: a batch is only continued while nothing came after it.
        if proposal is not None and self.inputs and self.inputs[-1] is proposal:
            proposal.commands.append((token, command))
            # The time of the last one: a delay or TTL that began before its command came would end
            # early.
            proposal.now_ms = max(proposal.now_ms, now_ms)
            proposal.is_lazy = proposal.is_lazy and is_lazy
            return
        proposal = self._last_proposal = inputs.Propose(now_ms, [(token, command)], is_lazy)
        self.inputs.append(proposal)

    def change_members(self, configuration: Configuration, done: Done) -> None:
        """Ask for another configuration."""
        self._token = token = self._token + 1
        self._callbacks[token] = done
        self.inputs.append(inputs.ChangeMembers(token, configuration))

    def persisted(self, token: int, entries: list[Entry]) -> None:
        """What a Persist (or InstallSnapshot) asked for is on disk."""
        unwritten = self._unwritten
        for entry in entries:
            # A later write may have replaced it.
            if unwritten.get(entry.index) is entry:
                del unwritten[entry.index]
        self.inputs.append(inputs.Persisted(token))

    def run(self) -> None:
        """Handle all inputs that are there."""
        events, self.inputs = self.inputs, []
        if not self.health.may_vote:
            # Here rather than where they come in: some came before the group was opened, or before
            # anybody knew of the damage.
            events = [event for event in events if self._admits(event)]
        self.has_tick = False
        self._last_proposal = None
        handle, act, first = self.replica.handle, self._ACTIONS, self._first
        if first:
            self._run_first()
        for event in events:
            for action in handle(event):
                act[type(action)](self, action)
            # Not before all actions of the event, whose writes and messages come before its own.
            if first:
                self._run_first()

    def _admits(self, event: inputs.Input) -> bool:
        return type(event) is not inputs.Received or self.health.admits(event.message.kind)

    def _run_first(self) -> None:
        while self._first:
            for action in self.replica.handle(self._first.pop(0)):
                self._ACTIONS[type(action)](self, action)

    def catch_up(self) -> None:
        """Have everything applied that is known to be committed, for somebody who looks."""
        replica = self.replica
        if replica.applied_index == replica.commit_index or self.is_closed or self.error:
            return
        act = self._ACTIONS
        for action in replica.handle(inputs.CatchUp()):
            act[type(action)](self, action)

    def entry_data(self, index: int) -> bytes | None:
        """Return a live entry's command without its time stamp."""
        entry = self._unwritten.get(index)
        data = self.log.entry_data(index) if entry is None else entry.data
        return None if data is None else data[STAMP_BYTES:]

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way to this driver or out of it, and nothing is wrong with it."""
        is_waited_for = self._callbacks or self._first or self.requests_bytes
        is_told = self.inputs or self.is_queued or self.deadline_ms is not None
        is_at_fault = self.error is not None or not self.health.may_vote
        return not (is_waited_for or is_told or is_at_fault or self._unwritten or self.is_volatile)

    def rest(self) -> None:
        """Nothing is on its way: what was full once lets go of its room."""
        if not self._callbacks:
            self._callbacks = {}
        if not self._unwritten:
            self._unwritten = {}

    def close(self) -> None:
        """Answer everything that waits; nothing is handled any more."""
        self.is_closed = True
        self.inputs.clear()
        self._first.clear()
        callbacks, self._callbacks = self._callbacks, {}
        for done in callbacks.values():
            self._answer(done, False, b"", None)

    # ---- actions --------------------------------------------------------------------------------

    def _on_persist(self, action: actions.Persist) -> None:
        for entry in action.entries:
            self._unwritten[entry.index] = entry
        self._ports.persist(self, action.token, action.hard_state, action.entries)

    def _on_send(self, action: actions.Send) -> None:
        self._ports.send(self.uid, action.message)

    def _on_reply(self, action: actions.Reply) -> None:
        done = self._callbacks.pop(action.token, None)
        if done is not None:
            self._answer(done, action.accepted, action.reply, action.leader)

    def _answer(self, done: Done, accepted: bool, reply: bytes, leader: NodeId | None) -> None:
        # A caller's fault is not the replica's: it must not stop the group.
        try:
            done(accepted, reply, leader)
        except Exception:
            logger.exception("the answer to a command was not taken group=%x", self.uid)

    def _on_realise(self, action: actions.Realise) -> None:
        try:
            self._ports.realise(self, action.term, action.effects)
        except Exception:
            logger.exception("effects failed group=%x index=%d", self.uid, action.index)

    def _on_save_snapshot(self, action: actions.SaveSnapshot) -> None:
        self._ports.save_snapshot(self, action)

    def _on_install_snapshot(self, action: actions.InstallSnapshot) -> None:
        self._unwritten.clear()
        self._ports.install_snapshot(self, action)

    def _on_role_changed(self, action: actions.RoleChanged) -> None:
        self.leader, self.term, self.is_leader = action.leader, action.term, action.is_leader
        self._ports.role_changed(self)

    def _on_contradicted(self, action: actions.Contradicted) -> None:
        self._ports.keeper.contradicted(self, action.contradiction)


Driver._ACTIONS = {
    actions.Persist: Driver._on_persist,
    actions.Send: Driver._on_send,
    actions.Reply: Driver._on_reply,
    actions.Realise: Driver._on_realise,
    actions.SaveSnapshot: Driver._on_save_snapshot,
    actions.InstallSnapshot: Driver._on_install_snapshot,
    actions.RoleChanged: Driver._on_role_changed,
    actions.Contradicted: Driver._on_contradicted,
}
