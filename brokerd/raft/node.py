"""RaftNode: one member of one group, as a pure machine (after etcd-io/raft).

In: `step(message)`, `tick()`, `replication.propose(...)`, `campaign()`. Out: `ready()`; then
`advance_persisted(token)` and `advance_applied(index)` report back. Storage writes are
asynchronous: entries and terms count only once they are on disk, and what depends on the disk
(acknowledgements, votes, requests for votes, the leader's own copy) waits for it, while everything
else goes on. replica.py, which has the machine, replies and effects, and tests are the users.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar

from brokerd.raft import membership, validation
from brokerd.raft.config import RaftConfig
from brokerd.raft.election import Election
from brokerd.raft.errors import BrokenLogError, MisuseError
from brokerd.raft.folded import Folded
from brokerd.raft.following import Following
from brokerd.raft.membership import ConfigurationHistory
from brokerd.raft.messages import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    NodeId,
    Snapshot,
)
from brokerd.raft.node_state import NodeState, Randomness, Write
from brokerd.raft.ready import Ready
from brokerd.raft.replication import Replication
from brokerd.raft.role import Role
from brokerd.raft.storage import LogStorage

#: Looked up here rather than in the class of each: that costs three times as much, per message.
_COMMAND, _LEADER = EntryKind.COMMAND, Role.LEADER
_VOTES = (MessageKind.VOTE, MessageKind.PRE_VOTE)
_FROM_LEADER = (
    MessageKind.APPEND,
    MessageKind.HEARTBEAT,
    MessageKind.SNAPSHOT,
    MessageKind.TIMEOUT_NOW,
)
_REPLIES = (
    MessageKind.PRE_VOTE_REPLY,
    MessageKind.VOTE_REPLY,
    MessageKind.APPEND_REPLY,
    MessageKind.HEARTBEAT_REPLY,
    MessageKind.SNAPSHOT_REPLY,
)


class RaftNode(NodeState):
    """What a member does with what comes: the parts decide, and all change the one state."""

    _HANDLERS: ClassVar[dict[int, Callable[[RaftNode, Message], None]]]
    __deletable__: ClassVar = ["replication", "election", "following"]  # for Replica.close

    def __init__(
        self,
        node: NodeId,
        bootstrap: Configuration | None,
        storage: LogStorage,
        config: RaftConfig,
        rng: Randomness,
        *,
        is_prompt: bool = True,
        folded: Folded | None = None,
    ) -> None:
        super().__init__(node, bootstrap, storage, config, rng, is_prompt, folded)
        self.replication = Replication(self)
        self.election = Election(self, self.replication)
        self.following = Following(self)
        self._token = 0
        #: The commit index moved, and nothing on its way to the disk takes it along.
        self._is_commit_due = False
        if folded is not None:
            self._unfold(folded)

    def fold(self, state: bytes) -> Folded | None:
        """Return what a quiet node can be made of again; state: of whom it belongs to."""
        leader, history = self.leader, self._history
        is_at_rest = self.role is Role.FOLLOWER or self.role is _LEADER
        if leader is None or not is_at_rest or not self.replication.is_lazy_allowed:
            return None
        terms = self.log.terms
        return Folded(leader, self._saved, history.current, history.current_index, terms, state)

    def _unfold(self, folded: Folded) -> None:
        log, figures = self.log, folded.figures()
        if not log.last == log.committed == folded.saved.commit:
            raise BrokenLogError("the log has changed while its replica was folded", log.last)
        log.applied_to(log.last)
        log.terms = folded.terms
        self._history = ConfigurationHistory(folded.configuration, folded.configuration_index)
        self.leader = folded.leader
        self.term_start, self.ignored_count = figures.term_start, figures.ignored_count
        if folded.leader == self.id:
            self.role = _LEADER
            self.replication.resume_office()

    def is_quiet(self, down: Collection[NodeId] = ()) -> bool:
        """Nothing to do and nothing to wait for, while these members are down: no ticks needed
        (design/replication.md §2.1).
        """
        log = self.log
        # Under load it is the first line that says no.
        if (
            log.applied != log.last
            or self._writes
            or not log.last == log.stable == log.committed
            or self._after_write
            or self._saved.commit < log.committed
            or self.is_leader_suspect
            or self.transfer_to is not None
            or log.installing is not None
            or self.leader not in self._history.current.voters
        ):
            return False
        return self.role is not _LEADER or self.replication.is_settled(down)

    # ---- inputs ---------------------------------------------------------------------------------

    def step(self, message: Message) -> None:
        """Take a peer's message."""
        handler = self._HANDLERS.get(message.kind)
        if (
            handler is None
            or message.to != self.id
            or message.sender == self.id
            or validation.fault_of_message(message, self.config) is not None
        ):
            self.ignore()
            return
        if self.contradiction is not None:
            self.following.hear(message)
            return
        if message.term > self.term:
            if not self._accept_newer_term(message):
                return
        elif message.term < self.term:
            self._answer_older_term(message)
            return
        handler(self, message)

    def tick(self) -> None:
        """One tick of the clock passed."""
        self.election_elapsed += 1
        # Under load it goes along with what is written anyway.
        self._is_commit_due = not self._writes and self._commit_on_disk() > self._saved.commit
        if self.role is Role.LEADER:
            self._tick_leader()
        elif self.election_elapsed >= self._election_timeout:
            self.election_elapsed = 0
            self.campaign()

    def campaign(self) -> None:
        """Stand for election, beginning with a pre-vote."""
        self.transfer_to = None
        self.election.campaign(force=False)

    def fault_of_moment(self) -> str | None:
        """Return why no change of membership may be proposed here and now, None if one may."""
        if self.role is not Role.LEADER:
            return "not the leader"
        if self.transfer_to is not None:
            return "leadership is being transferred"
        if self._history.current_index > self.log.committed:
            return "another change is under way"
        # The leader must have committed an entry of its own term first, or two configurations that
        # do not overlap could both be in use (Raft thesis §4.1; the bug of 2015 in its first
        # version).
        if self.log.committed < self.term_start:
            return "the leader has not committed in its term yet"
        return None

    def propose_configuration(self, configuration: Configuration) -> int | str:
        """Append a change of membership; return its index, or why it is refused."""
        fault = self.fault_of_moment() or membership.fault_of_change(
            self.configuration, configuration
        )
        if fault := fault or self.replication.end_laziness():
            return fault
        return self._append_configuration(configuration)

    def tell_configuration(self, member: NodeId, known: int) -> None:
        """A member that holds the log up to an index does not know who belongs to the group: the
        log of the first members does not say so.
        """
        is_on_its_way = self.configuration_index > known
        if self._is_member(member) and not is_on_its_way and self.fault_of_moment() is None:
            self._append_configuration(self.configuration)

    def _append_configuration(self, configuration: Configuration) -> int:
        index = self.log.last + 1
        data = membership.encode_configuration(configuration)
        self.log.append([Entry(index, self.term, EntryKind.CONFIG, data)])
        self._history.append(index, configuration)
        self.replication.refresh_members()
        self.replication.broadcast()
        return index

    def transfer_leadership(self, to: NodeId) -> bool:
        """Hand leadership to a voter once it has caught up; return whether that was begun."""
        if self.role is not Role.LEADER or to == self.id or to not in self.configuration.voters:
            return False
        if self.transfer_to is not None:
            return False
        self.replication.transfer(to)
        return True

    def peer_unreachable(self, peer: NodeId) -> None:
        """Messages to `peer` were or may have been lost."""
        if self.role is Role.LEADER:
            self.replication.peer_unreachable(peer)
        elif peer == self.leader:
            self._doubt_leader()

    def leader_alive(self) -> None:
        """The leader's node was heard by other means."""
        # Hearsay only: the node lives, but it may have ceased to lead this group.  So it does not
        # count once there is doubt, and it is not the way to remove doubt.
        if (
            self.role is Role.FOLLOWER
            and not self.is_leader_suspect
            and self.leader in self.configuration.voters
        ):
            self.election_elapsed = 0

    def node_gone(self, node: NodeId) -> None:
        """A node's process has ended: its followers elect soon, after a short random wait."""
        if self.role is Role.FOLLOWER and node == self.leader:
            self.become_follower(self.term, None)
            self.hasten_campaign()

    # ---- output ---------------------------------------------------------------------------------

    def ready(self, may_wait: bool = False) -> Ready | None:
        """Return what is to be done now, or None; each piece of work is handed out once.

        may_wait: unless it is prompt, a follower may leave committed entries for a later call.
        """
        log = self.log
        token = 0
        hard_state = None
        entries: list[Entry] = []
        snapshot = None
        saved = self._saved
        term_changed = self.term != saved.term or self.vote != saved.vote
        has_snapshot = log.installing is not None and self._has_snapshot_to_hand_out()
        is_due = self._is_commit_due or self.replication.is_write_due
        if log.handed < log.urgent or term_changed or has_snapshot or is_due:
            self._is_commit_due = self.replication.is_write_due = False
            self._token = token = self._token + 1
            hard_state = self._hard_state_to_write(term_changed)
            if has_snapshot:
                snapshot = log.installing
            entries = log.handed_out()
            self._writes.append(Write(token, log.last, self._after_write, snapshot is not None))
            self._after_write = []
        elif self._after_write:
            # They depend on nothing newer than the newest write that is still under way.
            target = self._writes[-1].messages if self._writes else self._messages
            target.extend(self._after_write)
            self._after_write = []
        messages = self._messages
        committed: list[Entry] = []
        if (
            log.applied < log.committed
            and log.installing is None
            and not (may_wait and self._has_few_to_apply())
        ):
            committed = log.entries(
                log.applied + 1, log.committed + 1, self.config.apply_bytes_max, 1 << 16
            )
        if not token and not messages and not committed:
            return None
        if messages:
            self._messages = []
        return Ready(token, hard_state, entries, snapshot, messages, committed)

    def _has_few_to_apply(self) -> bool:
        """Whether what is committed and not applied may stay so until the tick."""
        log, config = self.log, self.config
        first, count = log.applied + 1 - log.offset, log.committed - log.applied
        if self.is_prompt or self.role is _LEADER or count >= config.apply_entries_min or first < 0:
            return False
        waiting = log.tail[first : first + count]
        return sum([len(entry.data) for entry in waiting]) < config.apply_bytes_min

    def _has_snapshot_to_hand_out(self) -> bool:
        return not any(write.is_snapshot for write in self._writes)

    def _hard_state_to_write(self, term_changed: bool) -> HardState | None:
        commit = self._commit_on_disk()
        if term_changed or self.log.installing is not None or commit > self._saved.commit:
            self._saved = HardState(self.term, self.vote, max(commit, self._saved.commit))
            return self._saved
        return None

    def _commit_on_disk(self) -> int:
        # What is on its way to the disk may be other entries after a crash.
        return min(self.log.committed, self.log.stable)

    def advance_persisted(self, token: int) -> Snapshot | None:
        """The writes up to `token` are on disk; return a snapshot that the machine must now
        restore.
        """
        if token > self._token:
            raise MisuseError(f"write {token} was acknowledged but never asked for")
        restored = None
        stable = self.log.stable
        while self._writes and self._writes[0].token <= token:
            write = self._writes.pop(0)
            if write.is_snapshot:
                restored = self.log.installed()
                self._history.settle(restored.index)
            stable = max(stable, write.last)
            for message in write.messages:
                if message.to == self.id:
                    self.election.on_vote_reply(message)
                else:
                    self._messages.append(message)
        if stable > self.log.stable:
            self.log.persisted_to(stable)
            if self.role is _LEADER:
                self.replication.maybe_commit()
        return restored

    def advance_applied(self, index: int) -> None:
        """Entries up to `index` were applied."""
        self.log.applied_to(index)
        self._history.settle(index)
        if (
            self.role is Role.LEADER
            and not self.replication.counts_self
            and self._history.current_index <= index
        ):
            # A leader that has been removed leaves once that is committed (§4.2.2) and answered.
            self.replication.hand_over_to_best()
            self.become_follower(self.term, None)

    # ---- terms and roles ------------------------------------------------------------------------

    def _is_in_lease(self, sender: NodeId) -> bool:
        # A candidate that we take for the leader evidently is none any more: it restarted.
        return (
            self.leader is not None
            and self.leader != sender
            and self.election_elapsed < self.config.election_ticks_min
        )

    def _accept_newer_term(self, message: Message) -> bool:
        kind = message.kind
        if kind in _VOTES and not message.force and self._is_in_lease(message.sender):
            # Disruptive servers (§4.2.3): a leader is there.  If it is us, say so.
            if self.role is Role.LEADER:
                self.replication.greet(message.sender)
            self._doubt_leader()
            return False
        if kind == MessageKind.PRE_VOTE and message.sender == self.leader:
            # It would not ask if it still led: it restarted, perhaps with less than we have.
            self.become_follower(self.term, None)
        if kind == MessageKind.PRE_VOTE or (
            kind == MessageKind.PRE_VOTE_REPLY and not message.reject
        ):
            return True
        if kind in _REPLIES and not self._is_member(message.sender):
            # An answer of a stranger (or of a member that was removed) must not depose anyone.
            self.ignore()
            return False
        self.become_follower(message.term, message.sender if kind in _FROM_LEADER else None)
        return True

    def _doubt_leader(self) -> None:
        # From now on only the leader's own messages prolong its lease.  It answers a PRE_VOTE by
        # making itself known, so ask it alone; who does not lead any more says nothing of use.
        if self.role is Role.FOLLOWER and self.leader is not None and not self.is_leader_suspect:
            self.is_leader_suspect = True
            self.election.ask(self.leader)

    def _is_member(self, node: NodeId) -> bool:
        configuration = self.configuration
        return node in configuration.voters or node in configuration.learners

    def _answer_older_term(self, message: Message) -> None:
        if message.kind in _FROM_LEADER:
            # A leader that was left behind would otherwise never learn of it, since it and we
            # refuse each other's messages.
            self.send(
                Message(MessageKind.APPEND_REPLY, self.id, message.sender, self.term, reject=True)
            )
        elif message.kind == MessageKind.PRE_VOTE and self.role is Role.LEADER:
            self.replication.greet(message.sender)
        elif message.kind == MessageKind.PRE_VOTE:
            self.send(
                Message(MessageKind.PRE_VOTE_REPLY, self.id, message.sender, self.term, reject=True)
            )

    def _tick_leader(self) -> None:
        config = self.config
        replication = self.replication
        if self.election_elapsed >= config.election_ticks_min:
            self.election_elapsed = 0
            if not replication.has_active_quorum():
                self.become_follower(self.term, None)
                return
            # A transfer that took this long has failed: serve again.
            self.transfer_to = None
        replication.tick_snapshots()
        # Before heartbeats, which say less: by these alone a damaged member knows that it is whole
        # again (cluster/groups/trust.py).
        replication.notify_commits()
        replication.hasten()
        replication.tick_heartbeats()


def _leading(
    handle: Callable[[Replication, Message], None],
) -> Callable[[RaftNode, Message], None]:
    def handler(node: RaftNode, message: Message) -> None:
        if node.role is _LEADER:
            handle(node.replication, message)

    return handler


def _on_append_reply(node: RaftNode, message: Message) -> None:
    if node.role is _LEADER:
        node.replication.on_append_reply(message)
        if message.force and not message.reject:
            node.tell_configuration(message.sender, message.index)


RaftNode._HANDLERS = {
    MessageKind.PRE_VOTE: lambda node, message: node.election.on_pre_vote(message),
    MessageKind.PRE_VOTE_REPLY: lambda node, message: node.election.on_pre_vote_reply(message),
    MessageKind.VOTE: lambda node, message: node.election.on_vote(message),
    MessageKind.VOTE_REPLY: lambda node, message: node.election.on_vote_reply(message),
    MessageKind.TIMEOUT_NOW: lambda node, message: node.election.on_timeout_now(message),
    MessageKind.APPEND: lambda node, message: node.following.on_append(message),
    MessageKind.APPEND_REPLY: _on_append_reply,
    MessageKind.HEARTBEAT: lambda node, message: node.following.on_heartbeat(message),
    MessageKind.HEARTBEAT_REPLY: _leading(Replication.on_heartbeat_reply),
    MessageKind.SNAPSHOT: lambda node, message: node.following.on_snapshot(message),
    MessageKind.SNAPSHOT_REPLY: _leading(Replication.on_snapshot_reply),
}
