"""The leader's side of RaftNode: what to send to whom, and what their answers mean.

Most commands go to all members at once.  Lazy ones (what hands out or settles one message for a
client that waits for it) go to as many followers as make a majority, and to the others by the next
command that is not lazy, or by `hasten`, many in one message.  A leader without followers counts
them at once and writes them late, if their proposer says that they may be lost so.

A Replication belongs to one node and works on its state.
"""

from __future__ import annotations

from collections.abc import Collection

from brokerd.raft import quorum
from brokerd.raft.messages import Entry, EntryKind, Message, MessageKind, NodeId
from brokerd.raft.node_state import NodeState
from brokerd.raft.progress import Progress, ProgressState
from brokerd.raft.role import Role

_NO_ENTRIES: list[Entry] = []
#: Looked up once: the way through the classes costs more, per message.
_APPEND, _APPEND_REPLY = MessageKind.APPEND, MessageKind.APPEND_REPLY
_PROBE, _REPLICATE = ProgressState.PROBE, ProgressState.REPLICATE
_SNAPSHOT = ProgressState.SNAPSHOT
_COMMAND, _LEADER = EntryKind.COMMAND, Role.LEADER

#: Lazy commands that wait for the disk of a leader that is alone.
LATE_ENTRIES_MAX = 512
#: Entries not on that disk yet at which the leader waits for it: a disk that hangs.
UNWRITTEN_ENTRIES_MAX = 8 * LATE_ENTRIES_MAX


class Replication:
    """Progress of every other member, meaningful while the node leads.

    Invariant: `peers` are exactly the members of the configuration in force, this node excepted.
    """

    __slots__ = (
        "_heartbeat_elapsed",
        "_is_transfer_sent",
        "_node",
        "_voter_peers",
        "counts_self",
        "is_behind",
        "is_lazy_allowed",
        "is_write_due",
        "peers",
        "prompt",
    )

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self.peers: dict[NodeId, Progress] = {}
        self._voter_peers: list[Progress] = []
        #: Whether this node is a voter; a leader that is being removed is not (Raft thesis §4.2.2).
        self.counts_self = True
        #: All may have entries up to here at once; what is above it is lazy.
        self.prompt = 0
        #: Somebody, or this member's disk, lacks what lazy commands have left behind.
        self.is_behind = False
        #: It is to be written now.
        self.is_write_due = False
        #: No node is to join this member's log, alone as it is.
        self.is_lazy_allowed = True
        #: Ticks since the last heartbeats.
        self._heartbeat_elapsed = 0
        #: Whether the one that shall take over was told to.
        self._is_transfer_sent = False

    def take_office(self) -> None:
        """Lead: an entry of the own term commits what earlier terms left (§3.6.2)."""
        node = self._node
        node.role = Role.LEADER
        node.leader = node.id
        node.is_leader_suspect = False
        node.transfer_to = None
        node.election_elapsed = 0
        node.votes = {}
        self._heartbeat_elapsed = 0
        self.reset()
        node.term_start = node.log.last + 1
        self.propose([b""], EntryKind.NOOP)

    def reset(self) -> None:
        """Start a term of office: nothing is known about anyone."""
        self.peers.clear()
        self.is_lazy_allowed = True
        self.refresh_members()

    def resume_office(self) -> None:
        """Lead on after a rest: all hold and know everything."""
        last = self._node.log.last
        self.reset()
        for progress in self.peers.values():
            progress.match = last
            progress.become_replicate()
            progress.commit_sent = last
        self.prompt = last

    def refresh_members(self) -> None:
        """Follow a change of the configuration in force."""
        node = self._node
        configuration = node.configuration
        members = [*configuration.voters, *configuration.learners]
        for gone in [peer for peer in self.peers if peer not in members]:
            del self.peers[gone]
        for member in members:
            if member != node.id and member not in self.peers:
                progress = Progress(member, node.log.last + 1, node.config.inflight_max)
                # A newcomer counts as heard, or adding one could cost the leader its quorum.
                progress.is_active = True
                self.peers[member] = progress
        self._voter_peers = [self.peers[v] for v in configuration.voters if v != node.id]
        self.counts_self = node.id in configuration.voters

    @property
    def may_write_late(self) -> bool:
        """Whether this leader, which is alone, may count what its disk does not hold yet."""
        log = self._node.log
        return self.is_lazy_allowed and log.last - log.stable < UNWRITTEN_ENTRIES_MAX

    # ---- sending --------------------------------------------------------------------------------

    def propose(self, data: list[bytes], kind: int = _COMMAND, *, is_lazy: bool = False) -> int:
        """Append entries; return the first one's index, or 0."""
        node = self._node
        if node.role is not _LEADER or node.transfer_to is not None:
            return 0
        log, term = node.log, node.term
        first = log.last + 1
        entries = [Entry(index, term, kind, item) for index, item in enumerate(data, first)]
        log.append(entries, may_be_late=is_lazy and not self.peers)
        if is_lazy:
            self.send_lazily()
        else:
            self.broadcast()
        return first

    def broadcast(self) -> None:
        """Send new entries to everyone who may get some."""
        self.prompt = self._node.log.last
        for progress in self.peers.values():
            self.send_all(progress)

    def send_lazily(self) -> None:
        """Send new entries to those who are furthest, as many as make a majority."""
        node = self._node
        self.is_behind = True
        if not self.peers:
            log = node.log
            self.is_write_due = log.last - log.handed >= LATE_ENTRIES_MAX
            self.maybe_commit()
            return
        found = [
            progress
            for progress in self._voter_peers
            if progress.state is _REPLICATE and not progress.is_suspect and not progress.is_paused
        ]
        needed = quorum.majority(len(node.configuration.voters)) - self.counts_self
        if len(found) < needed:
            self.broadcast()
            return
        # Who has answered fastest is furthest, and so stays the one that is asked.
        found.sort(key=_match, reverse=True)
        for progress in found[:needed]:
            self.send_all(progress)

    def hasten(self) -> None:
        """Send and write what lazy commands have left behind."""
        if not self.is_behind:
            return
        self.is_behind = False
        # Who has lost its office meanwhile must not be asked again and again.
        if self._node.role is _LEADER:
            self.is_write_due = self._node.log.handed < self._node.log.last
            self.broadcast()

    def end_laziness(self) -> str | None:
        """Somebody is to join: return why not yet.

        Who joins hears what is committed, so that must be on this member's disk; it soon is, since
        from now on nothing counts before.
        """
        log = self._node.log
        if self.peers or log.committed <= log.stable:
            return None
        self.is_lazy_allowed = False
        self.hasten()
        return "the disk does not hold what is committed yet"

    def send_all(self, progress: Progress) -> None:
        """Send entries until the follower has all that is there or its window is full."""
        last = self._node.log.last
        while progress.next <= last and self.send_append(progress):
            pass

    def send_append(self, progress: Progress) -> bool:
        """Send one APPEND, empty if there is nothing new (or, if the entries are gone, the
        snapshot); return whether more may follow.
        """
        if progress.is_paused:
            return False
        node = self._node
        log = node.log
        previous = progress.next - 1
        previous_term = log.term(previous)
        entries = _NO_ENTRIES
        if previous_term is not None and previous < log.last:
            config = node.config
            entries = log.entries(
                previous + 1, log.last + 1, config.append_bytes_max, config.append_entries_max
            )
            if not entries:
                previous_term = None
        if previous_term is None:
            self._send_snapshot(progress)
            return False
        node.send(
            Message(
                _APPEND,
                node.id,
                progress.node,
                node.term,
                previous,
                previous_term,
                log.committed,
                False,
                0,
                entries,
            )
        )
        if progress.state is _PROBE:
            progress.probe_sent = True
            return False
        if entries:
            last = entries[-1].index
            progress.next = last + 1
            progress.inflights.append(last)
            progress.commit_sent = min(log.committed, last)
        return True

    def _send_snapshot(self, progress: Progress) -> None:
        # Reading a snapshot is dear: not for a member that does not even answer heartbeats.
        if not progress.is_active:
            progress.probe_sent = True
            return
        snapshot = self._node.stored_snapshot()
        if snapshot is None:
            progress.probe_sent = True
            return
        node = self._node
        progress.become_snapshot(snapshot.index)
        node.send(
            Message(
                MessageKind.SNAPSHOT,
                node.id,
                progress.node,
                node.term,
                snapshot.index,
                snapshot.term,
                snapshot=snapshot,
            )
        )

    def tick_heartbeats(self) -> None:
        """Send heartbeats when it is time for them."""
        self._heartbeat_elapsed += 1
        if self._heartbeat_elapsed >= self._node.config.heartbeat_ticks:
            self._heartbeat_elapsed = 0
            self.send_heartbeats()

    def send_heartbeats(self) -> None:
        """Tell every member that the leader lives and what it may commit."""
        for progress in self.peers.values():
            self.send_heartbeat(progress)

    def send_heartbeat(self, progress: Progress) -> None:
        """Send a heartbeat; its commit index never exceeds what the follower is known to hold."""
        node = self._node
        commit = self.heartbeat_commit(progress)
        progress.commit_sent = max(progress.commit_sent, commit)
        node.send(Message(MessageKind.HEARTBEAT, node.id, progress.node, node.term, 0, 0, commit))

    def heartbeat_commit(self, progress: Progress) -> int:
        """Return the commit index that this follower may be told without entries."""
        return min(progress.match, self._node.log.committed)

    def notify_commits(self) -> None:
        """Tell the commit index to all idle followers that have not heard it."""
        for progress in self.peers.values():
            self._notify_commit(progress)

    def _notify_commit(self, progress: Progress) -> None:
        """Tell an idle follower the commit index; `hint` says that no answer is needed."""
        node = self._node
        log = node.log
        match = progress.match
        if (
            match == log.last == log.committed
            and progress.commit_sent < match
            and progress.state is _REPLICATE
        ):
            progress.commit_sent = match
            node.send(
                Message(
                    _APPEND,
                    node.id,
                    progress.node,
                    node.term,
                    match,
                    log.last_term,
                    match,
                    False,
                    match,
                )
            )

    # ---- answers --------------------------------------------------------------------------------

    def on_append_reply(self, message: Message) -> None:
        """A follower persisted entries, or refused because its log differs."""
        progress = self.peers.get(message.sender)
        if progress is None or message.index > self._node.log.last:
            self._node.ignore()
            return
        progress.is_active = True
        progress.is_suspect = False
        if message.reject:
            self._on_refusal(progress, message)
            return
        is_news = progress.acknowledge(message.index)
        if progress.state is _PROBE:
            # An answer from before the probe says nothing of what was sent with it.
            if message.index == progress.match:
                progress.become_replicate()
        elif progress.state is _SNAPSHOT:
            if progress.match < progress.snapshot_index:
                return
            progress.become_replicate()
        if not (is_news and self.maybe_commit()) and self._node.is_prompt:
            self._notify_commit(progress)
        if progress.next <= self.prompt:
            self.send_all(progress)
        self.maybe_hand_over(progress)

    def _on_refusal(self, progress: Progress, message: Message) -> None:
        hint = min(message.hint, message.index)
        if message.log_term > 0:
            # Skip all of the follower's entries of later terms at once (§5.3 of the Raft paper).
            hint = self._node.log.find_conflict_by_term(hint, message.log_term)
        if progress.state is not ProgressState.SNAPSHOT and progress.reject(message.index, hint):
            self.send_append(progress)

    def is_late_answer(self, message: Message) -> bool:
        """Whether a follower says that it holds what is committed without it, and nothing is left
        to be sent to it.
        """
        node = self._node
        if (
            message.kind is not _APPEND_REPLY
            or message.reject
            or message.index > node.log.committed
            or message.term != node.term
            or node.transfer_to is not None
        ):
            return False
        progress = self.peers.get(message.sender)
        return (
            progress is not None
            and progress.state is _REPLICATE
            and progress.next > node.log.last
            and not progress.is_suspect
        )

    def on_snapshot_reply(self, message: Message) -> None:
        """A follower installed a snapshot (or has more already), or could not."""
        progress = self.peers.get(message.sender)
        if progress is None or message.index > self._node.log.last:
            self._node.ignore()
            return
        if message.reject:
            progress.is_active = True
            progress.is_suspect = False
            if progress.state is ProgressState.SNAPSHOT:
                progress.become_probe()
                # Not at once again: after the next heartbeat's answer.
                progress.probe_sent = True
            return
        self.on_append_reply(message)

    def on_heartbeat_reply(self, message: Message) -> None:
        """A follower lives; if it is behind, something was lost: send on."""
        progress = self.peers.get(message.sender)
        if progress is None:
            self._node.ignore()
            return
        progress.is_active = True
        progress.is_suspect = False
        progress.probe_sent = False
        # A lost message must not hold its slot of the window for ever.
        if len(progress.inflights) >= progress.inflight_max:
            del progress.inflights[0]
        if progress.match < self._node.log.last or progress.state is ProgressState.PROBE:
            self.send_append(progress)

    def peer_unreachable(self, peer: NodeId) -> None:
        """Messages to `peer` were lost: wait for a heartbeat's answer, then probe."""
        progress = self.peers.get(peer)
        if progress is not None:
            progress.become_probe()
            progress.probe_sent = True
            progress.is_suspect = True

    def greet(self, peer: NodeId) -> None:
        """A member looks for a leader though one is here: it restarted; say so."""
        progress = self.peers.get(peer)
        if progress is not None:
            self.peer_unreachable(peer)
            self.send_heartbeat(progress)

    def transfer(self, to: NodeId) -> None:
        """Let this voter take over once it has caught up (Raft thesis §3.10)."""
        node = self._node
        node.transfer_to = to
        node.election_elapsed = 0
        self._is_transfer_sent = False
        self.maybe_hand_over(self.peers[to])

    def maybe_hand_over(self, progress: Progress) -> None:
        """Tell the chosen successor to start, once it holds the whole log."""
        node = self._node
        if (
            progress.node == node.transfer_to
            and not self._is_transfer_sent
            and progress.match == node.log.last
        ):
            self._is_transfer_sent = True
            node.send(Message(MessageKind.TIMEOUT_NOW, node.id, progress.node, node.term))

    def hand_over_to_best(self) -> None:
        """A leader that leaves lets the most complete voter start an election at once (§3.10)."""
        # There are others: no configuration is without a voter, and this node is none any more.
        best = max(self._voter_peers, key=lambda progress: progress.match)
        node = self._node
        node.send(Message(MessageKind.TIMEOUT_NOW, node.id, best.node, node.term))

    # ---- counting -------------------------------------------------------------------------------

    def maybe_commit(self) -> bool:
        """Advance the commit index to what a majority has persisted; return whether it moved."""
        node = self._node
        log = node.log
        if not self._voter_peers and self.counts_self:
            index = self.own_match()
        else:
            matches = [progress.match for progress in self._voter_peers]
            if self.counts_self:
                matches.append(self.own_match())
            index = quorum.committed_index(matches)
        if index <= log.committed or not self.may_commit(index):
            return False
        log.committed = index
        if index == log.last and node.is_prompt:
            self.notify_commits()
        return True

    def own_match(self) -> int:
        """Return what the leader itself holds: only what its own disk has (Raft thesis §10.2.1),
        and, while it is alone, what may be written late.
        """
        log = self._node.log
        return log.last if log.urgent <= log.stable and not self.peers else log.stable

    def may_commit(self, index: int) -> bool:
        """Only entries of the current term are committed by counting (§3.6.2, figure 8 of the
        paper).
        """
        return self._node.log.term(index) == self._node.term

    def has_active_quorum(self) -> bool:
        """Whether a majority was heard since the last call."""
        active = 1 if self.counts_self else 0
        active += sum(1 for progress in self._voter_peers if progress.is_active)
        for progress in self.peers.values():
            progress.is_active = False
        voter_count = len(self._voter_peers) + (1 if self.counts_self else 0)
        return active >= quorum.majority(voter_count)

    def tick_snapshots(self) -> None:
        """Give a snapshot up whose answer is overdue, so that it is sent again."""
        for progress in self.peers.values():
            if progress.state is ProgressState.SNAPSHOT:
                progress.snapshot_ticks += 1
                if progress.snapshot_ticks >= self._node.config.snapshot_resend_ticks:
                    progress.become_probe()

    def is_settled(self, down: Collection[NodeId]) -> bool:
        """Whether every member holds and knows everything, and none is suspected.

        Members that are `down` are not waited for where the others are a majority: the caller asks
        again when they are up.
        """
        log = self._node.log
        last = log.last
        committed = log.committed
        behind = [
            progress.node
            for progress in self.peers.values()
            if progress.match != last
            or progress.commit_sent < committed
            or progress.state is not _REPLICATE
            or progress.is_suspect
        ]
        if not behind:
            return True
        voters = self._node.configuration.voters
        up = sum(1 for voter in voters if voter not in down)
        return up >= quorum.majority(len(voters)) and all(node in down for node in behind)


def _match(progress: Progress) -> int:
    return progress.match
