"""What the host tells those above it, and how it describes a group.

HostEvents is implemented by server/member_events.py, ClientEvents by group_client.py.  Import them
from host.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from brokerd.cluster.groups.driver import Driver
from brokerd.raft.messages import Configuration, Contradiction, NodeId


class HostEvents(Protocol):
    """What the host tells the broker; called on the event loop, must not block."""

    def realise(self, uid: int, term: int, effects: list[Any]) -> None:
        """Do these effects of an applied command, in order."""
        ...

    def leader_changed(self, uid: int, leader: NodeId | None, term: int, is_local: bool) -> None:
        """A group here has another leader or term; None: no leader is known."""
        ...

    def node_changed(self, node: NodeId, incarnation: int, up: bool) -> None:
        """A node is suspected (up False) or heard again.

        up True also comes each time the node's stream to here was made anew: what it had sent may
        be lost, deliveries among them.
        """
        ...

    def deliveries_lost(self, node: NodeId) -> None:
        """What was sent to a node may be lost: our stream to it broke, or stands anew."""
        ...

    def delivered(self, sender: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        """A leader's delivery for a consumer of this node (deliveries.py)."""
        ...

    def complete_reply(self, uid: int, command: bytes, reply: bytes) -> bytes:
        """A reply goes to another node: return it with what that node cannot look up itself."""
        ...

    def liveness_received(
        self,
        node: NodeId,
        alarms: Sequence[str],
        memory_used: int,
        memory_limit: int,
        disk_free: int,
    ) -> None:
        """A node's heartbeat."""
        ...

    def failed(self, error: BaseException) -> None:
        """The disk failed: nothing can be promised any more, the process must end."""
        ...


class ClientEvents(Protocol):
    """What the host tells the group client."""

    def reply_received(
        self, sender: NodeId, request_id: int, status: int, leader: NodeId | None, reply: bytes
    ) -> None:
        """A node answered a request."""
        ...

    def leader_changed(self, uid: int, leader: NodeId | None) -> None:
        """A replica here learnt who leads."""
        ...

    def peer_lost(self, node: NodeId) -> None:
        """Requests and answers on the way are lost."""
        ...

    def peer_connected(self, node: NodeId) -> None:
        """Requests can be sent."""
        ...


@dataclass(slots=True, frozen=True)
class GroupStatus:
    """A group as this node sees it."""

    leader: NodeId | None
    term: int
    is_leader: bool
    commit: int
    applied: int
    last: int
    members: Configuration
    #: At the leader: entries that each other member is behind; empty elsewhere.
    lag: Mapping[NodeId, int]
    snapshot: int
    is_damaged: bool
    error: str
    #: A leader lacks what is known here to be committed (keeping.py).
    contradiction: Contradiction | None
    #: What the log here calls the group; another number than before: it has begun another log.
    log_uid: int
    is_volatile: bool
    #: An earlier disk of this member may have held more (replica_health.py).
    is_suspected: bool
    #: Index of the entry that brought `members`; 0: they are the first ones, or a snapshot's.
    members_index: int = 0
    #: At the leader: the members may be changed now (Raft thesis §4.1).
    may_change: bool = False

    @property
    def is_contradicted(self) -> bool:
        """Whether the replica has stopped since a leader lacks what it knows to be committed."""
        return self.contradiction is not None


class Progress(NamedTuple):
    """How far a group is on this node: a fifth of the work of its status, for sums over all."""

    leader: NodeId | None
    is_leader: bool
    term: int
    commit: int
    applied: int
    last: int
    snapshot: int
    is_damaged: bool


def progress_of(driver: Driver) -> Progress:
    """Return how far a group is on this node."""
    replica = driver.replica
    return Progress(
        driver.leader,
        driver.is_leader,
        replica.term,
        replica.commit_index,
        replica.applied_index,
        replica.last_index,
        replica.snapshot_index,
        not driver.health.may_vote,
    )


def status_of(driver: Driver, node: NodeId) -> GroupStatus:
    """Return the state of a group on this node."""
    replica = driver.replica
    last = replica.last_index
    matches = {peer: replica.match_of(peer) for peer in driver.members if peer != node}
    return GroupStatus(
        driver.leader,
        replica.term,
        driver.is_leader,
        replica.commit_index,
        replica.applied_index,
        last,
        replica.configuration,
        {peer: last - match for peer, match in matches.items() if match is not None},
        replica.snapshot_index,
        not driver.health.may_vote,
        str(driver.error or ""),
        replica.contradiction,
        driver.log_uid,
        driver.is_volatile,
        driver.health.is_suspected,
        replica.configuration_index,
        replica.may_change_members,
    )
