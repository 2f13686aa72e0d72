"""The follower's side of RaftNode: entries, heartbeats and snapshots of a leader.

Whatever a leader says, what is known here to be committed stays: a leader without it was elected by
members whose disks have lost it, and then the node stops (RaftNode.contradiction) until somebody
decides.
A Following belongs to one node and changes its log.
"""

from __future__ import annotations

from brokerd.raft.messages import Contradiction, Entry, Message, MessageKind, Snapshot
from brokerd.raft.node_state import NodeState
from brokerd.raft.role import Role

#: Looked up once: the way through the class of kinds costs more, per message.
_APPEND_REPLY, _FOLLOWER = MessageKind.APPEND_REPLY, Role.FOLLOWER
_FROM_LEADER = (MessageKind.APPEND, MessageKind.HEARTBEAT, MessageKind.SNAPSHOT)


class Following:
    """What a member does with a leader's messages; keeps no state of its own."""

    __slots__ = ("_node",)

    def __init__(self, node: NodeState) -> None:
        self._node = node

    def accept_leader(self, message: Message) -> bool:
        """Take the sender for the leader of this term; False if that cannot be."""
        node = self._node
        if node.leader == message.sender and node.role is _FOLLOWER:
            node.election_elapsed = 0
            node.is_leader_suspect = False
            return True
        if node.leader is not None:
            # Two leaders in one term cannot be (Raft thesis §3.2); the sender is not believed.
            node.ignore()
            return False
        node.become_follower(node.term, message.sender)
        return True

    def on_append(self, message: Message) -> None:
        """The leader sends entries, or only its commit index."""
        node = self._node
        if not self.accept_leader(message):
            return
        log = node.log
        if log.installing is not None:
            return
        previous = message.index
        entries = message.entries
        if not self.matches_previous(message):
            # Even below the commit index: the leader goes back until both agree, and then its
            # entries say where they part.
            self._refuse(message)
            return
        if entries:
            previous = entries[-1].index
            if message.index < log.committed:
                if self._contradicts(message):
                    return
                entries = entries[log.committed - message.index :]
            if entries:
                self.take_entries(entries)
        commit = min(message.commit, previous)
        if commit > log.committed:
            log.committed = commit
        if message.entries or message.hint < message.index or not message.hint:
            reply = Message(_APPEND_REPLY, node.id, message.sender, node.term, previous)
            reply.force = not node.configuration.voters
            node.send_after_write(reply)

    def matches_previous(self, message: Message) -> bool:
        """The consistency check: the entry before the new ones is here, same term (§3.5).

        What is compacted away here, and from too long ago, cannot be compared; it was committed.
        """
        log = self._node.log
        if log.term(message.index) == message.log_term:
            return True
        own = log.known_term(message.index)
        return own == message.log_term or (own is None and message.index < log.committed)

    def _contradicts(self, message: Message) -> bool:
        """Whether the leader's entries are others than those known here to be committed."""
        log = self._node.log
        for entry in message.entries[: log.committed - message.index]:
            own = log.known_term(entry.index)
            if own is not None and own != entry.term:
                self.stop(message, entry.index)
                return True
        return False

    def hear(self, message: Message) -> None:
        """A member that has stopped knows who leads, for those who ask it, and no more."""
        if message.kind in _FROM_LEADER and message.term >= self._node.term:
            self._node.become_follower(message.term, message.sender)

    def stop(self, message: Message, first: int) -> None:
        """The leader would have `first` and what follows replaced: leave all as it is."""
        node = self._node
        log = node.log
        node.contradiction = Contradiction(
            first, log.known_term(first) or 0, log.committed, log.last, message.sender, message.term
        )

    def take_entries(self, entries: list[Entry]) -> None:
        """Append what is new, after removing what contradicts it (§3.5)."""
        node = self._node
        log = node.log
        position = log.find_conflict(entries)
        if position == len(entries):
            return
        fresh = entries[position:] if position else entries
        first = fresh[0].index
        if first <= log.last:
            node.truncate(first)
        log.append(fresh)
        node.configurations_appended(fresh)

    def _refuse(self, message: Message) -> None:
        node = self._node
        hint = node.log.find_conflict_by_term(message.index, message.log_term)
        node.send(
            Message(
                MessageKind.APPEND_REPLY,
                node.id,
                message.sender,
                node.term,
                message.index,
                node.log.term(hint) or 0,
                reject=True,
                hint=hint,
            )
        )

    def on_heartbeat(self, message: Message) -> None:
        """The leader lives."""
        node = self._node
        if not self.accept_leader(message):
            return
        log = node.log
        if log.installing is None:
            log.committed = max(log.committed, min(message.commit, log.last))
        node.send(Message(MessageKind.HEARTBEAT_REPLY, node.id, message.sender, node.term))

    def on_snapshot(self, message: Message) -> None:
        """The leader's log does not reach back to what is missing here."""
        node = self._node
        snapshot = message.snapshot
        if not self.accept_leader(message) or snapshot is None:
            return
        log = node.log
        if log.installing is not None:
            return
        own = log.term(snapshot.index)
        if snapshot.index > log.committed and own == snapshot.term:
            # Everything is here already; only the commit index was missing.
            log.committed = snapshot.index
        elif (first := self._difference(snapshot)) is not None:
            self.stop(message, first)
            return
        if snapshot.index > log.committed:
            node.install(snapshot)
        node.send_after_write(
            Message(MessageKind.SNAPSHOT_REPLY, node.id, message.sender, node.term, snapshot.index)
        )

    def _difference(self, snapshot: Snapshot) -> int | None:
        """Return where a snapshot covers other entries than those known here to be committed."""
        log = self._node.log
        first = log.first_difference(snapshot.terms, snapshot.index)
        own = log.known_term(snapshot.index)
        if first is None and snapshot.index <= log.committed and own not in (None, snapshot.term):
            # One without a history (of the release before): it may have begun anywhere.
            return 1
        return first
