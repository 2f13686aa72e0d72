"""Elections: pre-vote, vote, and the counting of both (Raft thesis §3.4, §9.6).

An Election belongs to one node and changes its term and role; who wins takes office in its
Replication.
"""

from __future__ import annotations

from brokerd.raft import quorum
from brokerd.raft.messages import Message, MessageKind, NodeId
from brokerd.raft.node_state import NodeState
from brokerd.raft.replication import Replication
from brokerd.raft.role import Role


class Election:
    """This node's campaigns, and its answers to those of others."""

    __slots__ = ("_is_first_rival", "_is_forced", "_node", "_replication")

    def __init__(self, node: NodeState, replication: Replication) -> None:
        self._node = node
        self._replication = replication
        self._is_forced = False
        #: Another candidate of this term has asked for our vote, and is the one to wait.
        self._is_first_rival = False

    def campaign(self, *, force: bool) -> None:
        """Start a pre-vote (or, for a leader transfer, an election at once)."""
        node = self._node
        if not self._may_stand():
            return
        self._is_forced = force
        if force:
            self._stand()
            return
        node.role = Role.PRE_CANDIDATE
        node.leader = None
        node.draw_timeout()
        node.votes = {node.id: True}
        for voter in node.configuration.voters:
            if voter != node.id:
                node.send(self._request(MessageKind.PRE_VOTE, voter, node.term + 1))
        self._count()

    def _may_stand(self) -> bool:
        node = self._node
        if node.log.installing is not None or node.contradiction is not None:
            return False
        # Whose own removal is not committed yet may still be needed (Raft thesis §4.2.2): a leader
        # that restarted, and that the others take for their leader until they hear of this.
        settled = node.configuration_at(node.log.committed)
        return node.id in node.configuration.voters or node.id in settled.voters

    def ask(self, leader: NodeId) -> None:
        """Ask the leader to show itself, without campaigning (see RaftNode._doubt_leader)."""
        self._is_forced = False
        if self._node.contradiction is None:
            self._node.send(self._request(MessageKind.PRE_VOTE, leader, self._node.term + 1))

    def _stand(self) -> None:
        node = self._node
        node.role = Role.CANDIDATE
        node.term += 1
        node.vote = node.id
        node.leader = None
        node.election_elapsed = 0
        node.draw_timeout()
        node.votes = {}
        self._is_first_rival = False
        # The requests wait for the disk as well: a candidate that forgot its campaign in a crash
        # could campaign again in the same term with a shorter log, and win by answers to the first.
        for voter in node.configuration.voters:
            if voter != node.id:
                node.send_after_write(self._request(MessageKind.VOTE, voter, node.term))
        node.send_after_write(Message(MessageKind.VOTE_REPLY, node.id, node.id, node.term))

    def _request(self, kind: MessageKind, to: NodeId, term: int) -> Message:
        node = self._node
        return Message(
            kind, node.id, to, term, node.log.last, node.log.last_term, force=self._is_forced
        )

    def on_pre_vote(self, message: Message) -> None:
        """A member asks whether it could win an election in a coming term."""
        node = self._node
        if node.role is Role.LEADER and message.term <= node.term:
            self._replication.greet(message.sender)
            return
        # Nothing is promised by the answer, so nothing waits for the disk.
        granted = message.term > node.term and node.log.is_up_to_date(
            message.index, message.log_term
        )
        node.send(
            Message(
                MessageKind.PRE_VOTE_REPLY,
                node.id,
                message.sender,
                message.term if granted else node.term,
                reject=not granted,
            )
        )

    def on_vote(self, message: Message) -> None:
        """A candidate asks for this node's vote in the current term."""
        node = self._node
        may_vote = node.vote == message.sender or (node.vote is None and node.leader is None)
        granted = may_vote and node.log.is_up_to_date(message.index, message.log_term)
        if granted:
            node.vote = message.sender
            node.election_elapsed = 0
        elif node.role is Role.CANDIDATE:
            self._on_rival(message)
        node.send_after_write(
            Message(MessageKind.VOTE_REPLY, node.id, message.sender, node.term, reject=not granted)
        )

    def _on_rival(self, message: Message) -> None:
        """Another candidate of the same term: neither may win, above all where a third is down.

        One of the two tries again soon, the same in the eyes of both, so that they do not meet
        again; waiting for another time-out of both (Raft thesis §3.4) can go wrong repeatedly.
        """
        log = self._node.log
        ours = (log.last_term, log.last, self._node.id)
        if ours > (message.log_term, message.index, message.sender):
            self._is_first_rival = True
            self._node.hasten_campaign()

    def on_pre_vote_reply(self, message: Message) -> None:
        """Somebody answered a pre-vote; a grant carries the term that was asked about."""
        node = self._node
        expected = node.term if message.reject else node.term + 1
        if node.role is Role.PRE_CANDIDATE and message.term == expected:
            node.votes.setdefault(message.sender, not message.reject)
            self._count()

    def on_vote_reply(self, message: Message) -> None:
        """Somebody voted; or the own vote is on disk and may count."""
        node = self._node
        if node.role is Role.CANDIDATE and message.term == node.term:
            node.votes.setdefault(message.sender, not message.reject)
            self._count()

    def on_timeout_now(self, message: Message) -> None:
        """The leader hands over to this node (Raft thesis §3.10)."""
        node = self._node
        if node.role is Role.FOLLOWER and message.sender == node.leader:
            self.campaign(force=True)
        else:
            node.ignore()

    def _count(self) -> None:
        node = self._node
        result = quorum.vote_result(node.configuration.voters, node.votes)
        if result is quorum.VoteResult.WON:
            if node.role is Role.PRE_CANDIDATE:
                self._stand()
            else:
                self._replication.take_office()
        elif result is quorum.VoteResult.LOST:
            is_soon = node.role is Role.CANDIDATE and self._is_first_rival
            node.become_follower(node.term, None)
            if is_soon:
                node.hasten_campaign()
