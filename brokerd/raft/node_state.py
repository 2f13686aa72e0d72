"""What a member of a group knows and has to send, on which all parts of its node work.

Term, vote and role, the log with the configurations in it, what may leave at once and what waits
for the disk.  It decides nothing: node.py has the inputs, election.py, following.py and
replication.py what they lead to, and they alone use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from brokerd.raft import membership
from brokerd.raft.config import RaftConfig
from brokerd.raft.folded import Folded
from brokerd.raft.log import RaftLog
from brokerd.raft.membership import ConfigurationHistory
from brokerd.raft.messages import (
    Configuration,
    Contradiction,
    Entry,
    Message,
    NodeId,
    Snapshot,
    configuration_of,
)
from brokerd.raft.role import Role
from brokerd.raft.storage import LogStorage


class Randomness(Protocol):
    """The one thing this room asks of a random generator; random.Random fits."""

    def randrange(self, start: int, stop: int) -> int:
        """Return a number in [start, stop)."""
        ...


@dataclass(slots=True)
class Write:
    """A write on its way to the disk."""

    token: int
    #: The disk holds the log up to here once it is done; lowered when a later truncation cuts into
    #: it.
    last: int
    #: To be sent when it is done.
    messages: list[Message]
    is_snapshot: bool


class NodeState:
    """State of one member.

    Invariants: the term never falls; at most one vote per term; the commit index never falls; a
    leader never truncates its own log.
    """

    def __init__(
        self,
        node: NodeId,
        bootstrap: Configuration | None,
        storage: LogStorage,
        config: RaftConfig,
        rng: Randomness,
        is_prompt: bool,
        folded: Folded | None,
    ) -> None:
        self.id = node
        #: Followers hear at once what is committed, and apply it at once: each member has effects
        #: of its own (the catalog).  Elsewhere no client waits for a follower's machine, only for
        #: its disk: what is committed is sent with the next entries or the tick, and applied with
        #: the tick, many entries at a time.
        self.is_prompt = is_prompt
        self.config = config
        self._storage = storage
        self._rng = rng
        if folded is None:
            hard_state, stored = storage.initial_state()
        else:
            # Its log need not be read for that.
            hard_state, stored = folded.saved, folded.configuration
        self.log = RaftLog(storage, hard_state.commit)
        # A torn write may have brought entries without their term.  No vote was given in it (votes
        # wait for the disk), so going on in it is safe.
        self.term = max(hard_state.term, self.log.last_term)
        self.vote = hard_state.vote if self.term == hard_state.term else None
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self._history = membership.recover(
            self.log, storage, stored, bootstrap or configuration_of(()), config.apply_bytes_max
        )
        #: Who answered the running campaign, and whether they granted; empty unless one runs.
        self.votes: dict[NodeId, bool] = {}
        #: Messages that came and were not understood or not credible.
        self.ignored_count = 0
        #: Messages that may leave at once, and those that wait for the disk.
        self._messages: list[Message] = []
        self._after_write: list[Message] = []
        self._writes: list[Write] = []
        self._saved = hard_state
        #: A leader would have what is committed here replaced: from then on this member neither
        #: votes nor stands, and its log stays as it is (following.py).
        self.contradiction: Contradiction | None = None
        #: Ticks since a leader was heard; at the leader, since it last checked its quorum.
        self.election_elapsed = 0
        self._election_timeout = 0
        #: Somebody doubts the leader (the host, a candidate), and nothing was heard of it since.
        self.is_leader_suspect = False
        #: Leader: who shall take over (Raft thesis §3.10).
        self.transfer_to: NodeId | None = None
        #: Index of the first entry of the own term of office.
        self.term_start = 0
        self.draw_timeout()

    # ---- what others may know -------------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        """The configuration in force: the newest in the log."""
        return self._history.current

    @property
    def configuration_index(self) -> int:
        """Index of the entry that brought the configuration in force; 0 if none is known."""
        return self._history.current_index

    def configuration_at(self, index: int) -> Configuration:
        """Return the configuration that held at an applied index."""
        return self._history.at(index)

    @property
    def is_leader(self) -> bool:
        """Whether this node leads in its term."""
        return self.role is Role.LEADER

    def stored_snapshot(self) -> Snapshot | None:
        """Return the snapshot for a follower that needs one."""
        return self._storage.snapshot()

    # ---- what leaves, and the log ---------------------------------------------------------------

    def ignore(self) -> None:
        """Count a message that is dropped."""
        self.ignored_count += 1

    def send(self, message: Message) -> None:
        """Queue a message that depends on nothing that is not on disk."""
        self._messages.append(message)

    def send_after_write(self, message: Message) -> None:
        """Queue a message that may leave only when everything before it is on disk."""
        self._after_write.append(message)

    def truncate(self, first: int) -> None:
        """Remove the log from index `first` on; writes under way no longer vouch for it."""
        self.log.truncate(first)
        for write in self._writes:
            write.last = min(write.last, first - 1)
        self._history.truncate(first)

    def configurations_appended(self, entries: list[Entry]) -> None:
        """Put configurations in force that stand in newly appended entries (§4.1)."""
        self._history.extend(entries)

    def install(self, snapshot: Snapshot) -> None:
        """Replace the log by a snapshot, once that is on disk."""
        self.log.install(snapshot)
        for write in self._writes:
            write.last = 0
        self._history = ConfigurationHistory(snapshot.configuration, snapshot.index)

    # ---- terms and roles ------------------------------------------------------------------------

    def draw_timeout(self) -> None:
        """Choose the next election time-out at random, against split votes (Raft thesis §3.4)."""
        config = self.config
        self._election_timeout = self._rng.randrange(
            config.election_ticks_min, config.election_ticks_max + 1
        )

    def hasten_campaign(self) -> None:
        """Campaign after a short random wait, if nothing else happens."""
        wait = self._rng.randrange(1, self.config.gone_leader_ticks_max + 1)
        self._election_timeout = min(self._election_timeout, self.election_elapsed + wait)

    def become_follower(self, term: int, leader: NodeId | None) -> None:
        """Follow `leader` (None: not yet known) in `term`."""
        if term > self.term:
            self.term = term
            self.vote = None
        self.role = Role.FOLLOWER
        self.leader = leader
        self.transfer_to = None
        self.is_leader_suspect = False
        self.votes = {}
        self.election_elapsed = 0
        self.draw_timeout()
