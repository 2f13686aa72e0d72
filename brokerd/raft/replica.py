"""Replica: RaftNode + machine + the ordering rules, still without I/O.

The rules: persist before a reply or a vote leaves, apply after commit, effects on the leader only.
The driver (cluster/groups/driver.py) executes the actions and reports back as inputs; it decides
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from brokerd.raft.actions import (
    Action,
    Contradicted,
    InstallSnapshot,
    Persist,
    Realise,
    Reply,
    RoleChanged,
    SaveSnapshot,
    Send,
)
from brokerd.raft.config import RaftConfig
from brokerd.raft.folded import Figures, Folded
from brokerd.raft.inputs import (
    CatchUp,
    ChangeMembers,
    DeadlineReached,
    Hasten,
    Input,
    LeaderAlive,
    Look,
    NodeGone,
    PeerUnreachable,
    Persisted,
    Propose,
    Received,
    SnapshotSaved,
    Tick,
    TransferLeadership,
)
from brokerd.raft.machine import Machine, Meta
from brokerd.raft.messages import (
    Configuration,
    Contradiction,
    Entry,
    EntryKind,
    GroupUid,
    Message,
    NodeId,
    Snapshot,
)
from brokerd.raft.node import RaftNode
from brokerd.raft.node_state import Randomness
from brokerd.raft.role import Role
from brokerd.raft.storage import LogStorage
from brokerd.raft.validation import STAMP_BYTES

#: Looked up once: the way through the class of kinds costs more, per entry.
_COMMAND = EntryKind.COMMAND
_LEADER = Role.LEADER

#: The group's budget of bytes or commands in flight is used up, or leadership is being handed over:
#: nothing was proposed, try again later.
REFUSED_OVERLOADED = b"overloaded"
#: The command exceeds RaftConfig.command_bytes_max: it will never be accepted.
REFUSED_TOO_LARGE = b"too large"


@dataclass(slots=True)
class _Pending:
    """A proposal whose entry has not been applied yet."""

    index: int
    term: int
    token: int
    size_bytes: int


class Replica:
    """One member's part in a group: consensus, machine, and the order between them.

    State changes only in `handle`; the properties are for looking. Invariants: every token given
    in Propose or ChangeMembers comes back in exactly one Reply; the machine sees each index once,
    in order.
    """

    _HANDLERS: ClassVar[dict[type[Any], Callable[[Replica, Any], None]]]

    def __init__(
        self,
        uid: GroupUid,
        node: NodeId,
        bootstrap: Configuration | None,
        machine: Machine,
        storage: LogStorage,
        config: RaftConfig,
        rng: Randomness,
        *,
        contradiction: Contradiction | None = None,
        folded: Folded | None = None,
    ) -> None:
        """Recover from `storage`, or go on as what was `folded`.

        `bootstrap` is the first configuration of a new group, the same on all its first members; it
        counts only while neither snapshot nor log has one.  None: wait to be added.
        `contradiction`: this log was found contradicted before; it stays as it is.
        """
        config.validate()
        self.uid = uid
        self.machine = machine
        self._config = config
        snapshot = None if folded is not None else storage.snapshot_state()
        self._snapshot_index = 0
        if snapshot is not None:
            machine.restore(snapshot.data)
            self._snapshot_index = snapshot.index
        if bootstrap is None and snapshot is not None:
            bootstrap = snapshot.configuration
        is_prompt = machine.realise_everywhere
        self._node = RaftNode(
            node, bootstrap, storage, config, rng, is_prompt=is_prompt, folded=folded
        )
        self._node.contradiction = contradiction
        log = self._node.log
        if snapshot is not None:
            log.terms = snapshot.terms
        #: Effects of entries up to here were the business of an earlier life (or of
        #: `became_leader`).
        self._realise_above = log.committed if machine.realise_everywhere else log.last
        self._actions: list[Action] = []
        self._pending: list[_Pending] = []
        self._pending_bytes = 0
        #: Index of the tick command on its way, 0 if none.
        self._tick_index = 0
        self._applied_bytes = 0
        #: Size of the last snapshot's state.
        self._saved_bytes = 0 if snapshot is None else len(snapshot.data)
        self._is_saving = False
        #: The machine is to be saved as soon as the disk holds what it has applied.
        self._is_save_due = False
        #: Newest time heard of, for effects that no command caused.
        self._now_ms = 0
        self._announced: tuple[NodeId | None, int, bool] = (None, self._node.term, False)
        self._is_contradiction_told = contradiction is not None
        if folded is not None:
            self._unfold(folded)

    def fold(self) -> Folded | None:
        """Return what this replica can be made of again, None while it has something to do or to
        wait for; it must get no input afterwards.
        """
        node = self._node
        if (
            not self.is_quiet
            or self._pending
            or self._tick_index
            or self._is_saving
            or self._is_save_due
            or node.contradiction is not None
        ):
            return None
        figures = Figures(
            self._snapshot_index,
            node.term_start,
            self._applied_bytes,
            self._saved_bytes,
            self._now_ms,
            node.ignored_count,
        )
        return node.fold(figures.pack() + self.machine.snapshot())

    def _unfold(self, folded: Folded) -> None:
        self.machine.restore(folded.machine_state())
        figures = folded.figures()
        self._snapshot_index = figures.snapshot_index
        self._applied_bytes, self._saved_bytes = figures.applied_bytes, figures.saved_bytes
        self._now_ms = figures.now_ms
        self._announced = (folded.leader, folded.saved.term, self._node.is_leader)

    # ---- read-only ------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Whether this member leads."""
        return self._node.is_leader

    @property
    def leader(self) -> NodeId | None:
        """The leader as far as known."""
        return self._node.leader

    @property
    def term(self) -> int:
        """The current term."""
        return self._node.term

    @property
    def commit_index(self) -> int:
        """Highest index known to be committed."""
        return self._node.log.committed

    @property
    def applied_index(self) -> int:
        """Highest index that the machine has seen."""
        return self._node.log.applied

    @property
    def last_index(self) -> int:
        """Highest index in the log, persisted or not."""
        return self._node.log.last

    @property
    def snapshot_index(self) -> int:
        """Index of the newest snapshot on disk; 0 if there is none."""
        return self._snapshot_index

    @property
    def is_installing(self) -> bool:
        """Whether a leader's snapshot is on its way to the disk."""
        return self._node.log.installing is not None

    @property
    def contradiction(self) -> Contradiction | None:
        """What a leader would have had replaced; None while all agree."""
        return self._node.contradiction

    @property
    def configuration(self) -> Configuration:
        """The configuration in force."""
        return self._node.configuration

    @property
    def configuration_index(self) -> int:
        """Index of the entry that brought the configuration in force; 0 if none is known."""
        return self._node.configuration_index

    @property
    def may_change_members(self) -> bool:
        """Whether this member leads and no other change is under way."""
        return self._node.fault_of_moment() is None

    def is_consensus_quiet(self, down: Collection[NodeId]) -> bool:
        """No ticks needed as far as consensus goes while these members are down;
        `next_deadline_ms` may still ask for one.
        """
        return self._node.is_quiet(down)

    @property
    def is_quiet(self) -> bool:
        """No ticks needed at all (design/replication.md §2.1)."""
        return self._node.is_quiet() and self.next_deadline_ms is None

    @property
    def next_deadline_ms(self) -> int | None:
        """When the leader's machine wants to hear of the time; None at other members, and while it
        is about to.
        """
        is_wanted = self._node.is_leader and not self._tick_index
        return self.machine.next_deadline_ms() if is_wanted else None

    @property
    def is_behind(self) -> bool:
        """Whether lazy commands have left something behind: Hasten is due soon."""
        return self._node.replication.is_behind

    @property
    def pending_count(self) -> int:
        """Proposals that have no Reply yet."""
        return len(self._pending)

    def match_of(self, peer: NodeId) -> int | None:
        """Return the index up to which `peer` is known to hold the log; None unless this member
        leads.
        """
        if not self._node.is_leader:
            return None
        if peer == self._node.id:
            return self._node.log.stable
        progress = self._node.replication.peers.get(peer)
        return None if progress is None else progress.match

    def may_wait(self, message: Message) -> bool:
        """Whether a message brings nothing to do: then the next input is soon enough for it.

        That is the last follower's answer, when the others' have decided.
        """
        node = self._node
        return not node.is_prompt and node.is_leader and node.replication.is_late_answer(message)

    def overview(self) -> dict[str, int | str | None]:
        """Return counts for listings and telemetry."""
        log = self._node.log
        return {
            "role": self._node.role.name.lower(),
            "leader": self._node.leader,
            "term": self._node.term,
            "commit_index": log.committed,
            "applied_index": log.applied,
            "last_index": log.last,
            "snapshot_index": self._snapshot_index,
            "pending": len(self._pending),
            "pending_bytes": self._pending_bytes,
            "ignored_messages": self._node.ignored_count,
        }

    def check_invariants(self) -> None:
        """Assert what must hold between any two inputs; for tests and the simulator."""
        log = self._node.log
        assert log.applied <= log.committed <= log.last, "indexes out of order"
        assert log.stable <= log.handed <= log.last, "written more than there is"
        assert log.urgent <= log.last, "urgent beyond the log"
        assert len(log.tail) == log.last - log.offset + 1, "tail does not fit its bounds"
        assert log.offset <= log.stable + 1, "a gap between disk and memory"
        assert self._pending_bytes == sum(p.size_bytes for p in self._pending)
        assert not self._pending or self._node.is_leader, "proposals pending without leadership"
        self.machine.check_invariants()

    # ---- the entry method -----------------------------------------------------------------------

    def handle(self, event: Input) -> list[Action]:
        """Take an input; return what the driver must do, in this order."""
        actions: list[Action] = []
        self._actions = actions
        if type(event) is Received:
            self._node.step(event.message)
            self._drain(may_wait=True)
            if self._node.contradiction is not None and not self._is_contradiction_told:
                self._is_contradiction_told = True
                actions.append(Contradicted(self._node.contradiction))
        else:
            self._HANDLERS[type(event)](self, event)
            self._drain(may_wait=type(event) is Persisted)
        return actions

    def _on_tick(self, event: Tick) -> None:
        self._now_ms = max(self._now_ms, event.now_ms)
        self._node.tick()
        self._tick_machine(event.now_ms)

    def _on_deadline(self, event: DeadlineReached) -> None:
        self._now_ms = max(self._now_ms, event.now_ms)
        self._tick_machine(event.now_ms)

    def _tick_machine(self, now_ms: int) -> None:
        """Propose the machine's tick if its time has come and none is on its way."""
        deadline_ms = self.next_deadline_ms
        if deadline_ms is not None and deadline_ms <= now_ms:
            stamp = now_ms.to_bytes(STAMP_BYTES, "little")
            command = self.machine.tick_command()
            self._tick_index = self._node.replication.propose([stamp + command])

    def _on_propose(self, event: Propose) -> None:
        node = self._node
        if not node.is_leader:
            for token, _ in event.commands:
                self._actions.append(Reply(token, False, b"", node.leader))
            return
        if event.now_ms > self._now_ms:
            self._now_ms = event.now_ms
        stamp = event.now_ms.to_bytes(STAMP_BYTES, "little")
        config = self._config
        pending = self._pending
        index = node.log.last
        data = []
        for token, command in event.commands:
            size = len(command)
            if size > config.command_bytes_max:
                self._actions.append(Reply(token, False, REFUSED_TOO_LARGE, node.id))
            elif (
                node.transfer_to is not None
                or len(pending) >= config.proposals_max
                or (pending and self._pending_bytes + size > config.proposals_bytes_max)
            ):
                self._actions.append(Reply(token, False, REFUSED_OVERLOADED, node.id))
            else:
                index += 1
                data.append(stamp + command)
                pending.append(_Pending(index, node.term, token, size))
                self._pending_bytes += size
        if data:
            is_lazy = event.is_lazy and self._may_be_lazy()
            node.replication.propose(data, is_lazy=is_lazy)

    def _on_look(self, event: Look) -> None:
        node = self._node
        # Raft thesis §6.4: an entry of its own term is committed, and nothing is on its way.
        is_current = node.is_leader and not self._pending and node.log.last == self.applied_index
        if is_current and node.log.last >= node.term_start:
            reply = self.machine.look(event.command, event.now_ms)
            if reply is not None:
                self._actions.append(Reply(event.token, True, reply, node.id))
                return
        self._on_propose(Propose(event.now_ms, [(event.token, event.command)], event.is_lazy))

    def _may_be_lazy(self) -> bool:
        replication = self._node.replication
        if replication.peers:
            return True
        # What is to be saved must be on the disk: it would never be, with one after the other.
        is_allowed = replication.may_write_late and not self._is_save_due
        return is_allowed and self.machine.may_lose_last

    def _on_hasten(self, event: Hasten) -> None:
        self._node.replication.hasten()

    def _on_persisted(self, event: Persisted) -> None:
        snapshot = self._node.advance_persisted(event.token)
        if snapshot is not None:
            self.machine.restore(snapshot.data)
            self._snapshot_index = snapshot.index
            self._applied_bytes = 0
            self._saved_bytes = len(snapshot.data)

    def _on_snapshot_saved(self, event: SnapshotSaved) -> None:
        self._is_saving = False
        self._snapshot_index = max(self._snapshot_index, event.index)

    def _on_peer_unreachable(self, event: PeerUnreachable) -> None:
        self._node.peer_unreachable(event.peer)

    def _on_leader_alive(self, event: LeaderAlive) -> None:
        self._node.leader_alive()

    def _on_catch_up(self, event: CatchUp) -> None:
        """Nothing but what follows every input of this kind."""

    def _on_node_gone(self, event: NodeGone) -> None:
        self._node.node_gone(event.node)

    def _on_transfer(self, event: TransferLeadership) -> None:
        node = self._node
        if node.is_leader:
            node.transfer_leadership(event.to)
        elif event.to == node.id:
            node.campaign()

    def _on_change_members(self, event: ChangeMembers) -> None:
        node = self._node
        result = node.propose_configuration(event.configuration)
        if isinstance(result, str):
            self._actions.append(Reply(event.token, False, result.encode(), node.leader))
        else:
            self._pending.append(_Pending(result, node.term, event.token, 0))

    # ---- turning Ready into actions -------------------------------------------------------------

    def _drain(self, may_wait: bool) -> None:
        """Make actions of what is to be done.

        may_wait: a follower need not apply now (RaftNode.is_prompt): messages and writes bring only
        what the disk needs, and the next input of any other kind brings the rest.  That is the tick
        at the latest: a group with something left to apply is not quiet.
        """
        node = self._node
        actions = self._actions
        self._announce()
        while (ready := node.ready(may_wait)) is not None:
            if ready.snapshot is not None:
                assert ready.hard_state is not None
                actions.append(InstallSnapshot(ready.token, ready.snapshot, ready.hard_state))
            elif ready.token:
                actions.append(Persist(ready.token, ready.hard_state, ready.entries))
            for message in ready.messages:
                actions.append(Send(message))
            if not ready.committed:
                # Only applying can bring further work.
                return
            self._apply(ready.committed)
            self._maybe_save_snapshot()
            # A leader that was removed has left office with this.
            self._announce()

    def close(self) -> None:
        """No input comes any more: let go of the parts that refer back to the node, so that all of
        it goes with its last user and not when somebody looks for cycles.
        """
        node = self._node
        del node.replication, node.election, node.following

    def _announce(self) -> None:
        node = self._node
        before = self._announced
        if (
            node.leader == before[0]
            and node.term == before[1]
            and (node.role is _LEADER) == before[2]
        ):
            return
        state = (node.leader, node.term, node.is_leader)
        self._announced = state
        self._actions.append(RoleChanged(*state))
        if before[2] and (not state[2] or state[1] != before[1]):
            # What was proposed may or may not be committed by the next leader: the client must ask.
            for pending in self._pending:
                self._actions.append(Reply(pending.token, False, b"", node.leader))
            self._pending.clear()
            self._pending_bytes = 0
            self._tick_index = 0

    def _apply(self, entries: list[Entry]) -> None:
        node = self._node
        machine = self.machine
        is_leader = node.is_leader
        is_realising = is_leader or machine.realise_everywhere
        actions = self._actions
        pending, answered = self._pending, 0
        for entry in entries:
            index = entry.index
            reply = b""
            effects: list[Any] = []
            if entry.kind == _COMMAND:
                data = entry.data
                now_ms = int.from_bytes(data[:STAMP_BYTES], "little")
                outcome = machine.apply(Meta(index, entry.term, now_ms), data[STAMP_BYTES:])
                reply = outcome.reply
                if is_realising and index > self._realise_above:
                    effects = outcome.effects
                self._applied_bytes += len(data)
                if now_ms > self._now_ms:
                    self._now_ms = now_ms
            elif is_leader and index == node.term_start:
                effects = machine.became_leader(Meta(index, entry.term, self._now_ms))
            # The answer goes before the effects: consume-ok before the first delivery.
            if answered < len(pending) and pending[answered].index == index:
                done = pending[answered]
                answered += 1
                self._pending_bytes -= done.size_bytes
                is_mine = done.term == entry.term
                actions.append(Reply(done.token, is_mine, reply if is_mine else b"", node.leader))
            if effects:
                actions.append(Realise(index, entry.term, effects))
        del pending[:answered]
        node.advance_applied(entries[-1].index)
        if 0 < self._tick_index <= entries[-1].index:
            self._tick_index = 0

    def _maybe_save_snapshot(self) -> None:
        log = self._node.log
        applied = log.applied
        config = self._config
        self._is_save_due = not (
            self._is_saving
            or (
                applied - self._snapshot_index < config.snapshot_entries
                and self._applied_bytes < config.snapshot_bytes
            )
            or self._applied_bytes < self._saved_bytes - config.snapshot_state_bytes
        )
        # The leader may have applied what its own disk does not hold yet.
        if not self._is_save_due or applied > log.stable:
            return
        term = log.term(applied)
        assert term is not None
        self._is_saving = True
        self._is_save_due = False
        self._applied_bytes = 0
        data = self.machine.snapshot()
        self._saved_bytes = len(data)
        log.terms = log.terms_to(applied, config.snapshot_terms)
        configuration = self._node.configuration_at(applied)
        snapshot = Snapshot(applied, term, configuration, data, terms=log.terms)
        self._actions.append(SaveSnapshot(snapshot, list(self.machine.live_indexes())))


Replica._HANDLERS = {
    Tick: Replica._on_tick,
    DeadlineReached: Replica._on_deadline,
    Propose: Replica._on_propose,
    Look: Replica._on_look,
    Hasten: Replica._on_hasten,
    Persisted: Replica._on_persisted,
    SnapshotSaved: Replica._on_snapshot_saved,
    PeerUnreachable: Replica._on_peer_unreachable,
    LeaderAlive: Replica._on_leader_alive,
    CatchUp: Replica._on_catch_up,
    NodeGone: Replica._on_node_gone,
    TransferLeadership: Replica._on_transfer,
    ChangeMembers: Replica._on_change_members,
}
