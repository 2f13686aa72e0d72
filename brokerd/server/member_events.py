"""What the host tells of a member's groups and peers, brought to whom it concerns.

Implements HostEvents.  Decides nothing: which room hears of what stands here, and nowhere else.
Built by composition.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from brokerd.raft.messages import CATALOG_GROUP, NodeId

log = logging.getLogger(__name__)

#: Takes a payload from another member: sender, group, term, payload.
Receive = Callable[[NodeId, int, int, bytes], None]


class Leaders(Protocol):
    """Queues that are led here, and leaders elsewhere."""

    def realise(self, uid: int, term: int, todo: list[Any]) -> None:
        """Do what a queue's machine asked for."""
        ...

    def leader_changed(self, uid: int, leader: NodeId | None, term: int, is_local: bool) -> None:
        """A queue has a (new) leader, or none for now."""
        ...

    def node_changed(self, node: NodeId, incarnation: int, up: bool) -> None:
        """A member is heard again, or suspected."""
        ...

    def deliveries_lost(self, node: NodeId) -> None:
        """What was sent to a member may be lost."""
        ...


class Stuck(Protocol):
    """Queues that have no leader because of damage."""

    def leader_changed(self, uid: int, leader: NodeId | None) -> None:
        """A queue has a (new) leader, or none for now."""
        ...

    def node_changed(self, node: NodeId, up: bool) -> None:
        """A member is heard again, or suspected."""
        ...


class Alarms(Protocol):
    """The alarms of all members."""

    def set(self, node: str, on: frozenset[str]) -> None:
        """A member's alarms, as it says or as its death has it."""
        ...


@dataclass(slots=True, frozen=True)
class EventListeners:
    """Whom what concerns."""

    leaders: Leaders
    stuck: Stuck
    alarms: Alarms
    #: Changes of the catalog, in its order.
    catalog: Callable[[Sequence[Any]], None]
    #: A member is heard again, or suspected (False).
    node_changed: Sequence[Callable[[NodeId, bool], None]]
    #: Figures of another member: memory used, memory limit, free bytes of the disk, alarms.
    figures: dict[str, tuple[int, int, int, list[str]]]
    #: Completes a reply for another member: group, command, reply.
    complete: Callable[[int, bytes, bytes], bytes]
    #: By kind of delivery (deliveries.DeliveryKind).
    received: Mapping[int, Receive]
    #: The disk failed.
    failed: Callable[[BaseException], None]


class MemberEvents:
    """See HostEvents (cluster/groups/host_events.py)."""

    def __init__(self, rooms: EventListeners) -> None:
        self._rooms = rooms
        # Each batch of messages comes this way.
        self._received = rooms.received
        self.complete_reply = rooms.complete
        self.deliveries_lost = rooms.leaders.deliveries_lost
        self.failed = rooms.failed

    def realise(self, uid: int, term: int, effects: list[Any]) -> None:
        """Do what a machine asked for."""
        if uid == CATALOG_GROUP:
            self._rooms.catalog(effects)
        else:
            self._rooms.leaders.realise(uid, term, effects)

    def leader_changed(self, uid: int, leader: NodeId | None, term: int, is_local: bool) -> None:
        """A group has a (new) leader, or none for now."""
        if uid != CATALOG_GROUP:
            self._rooms.leaders.leader_changed(uid, leader, term, is_local)
            self._rooms.stuck.leader_changed(uid, leader)

    def node_changed(self, node: NodeId, incarnation: int, up: bool) -> None:
        """A member is heard again, or suspected."""
        log.info("member %s is %s", node, "up" if up else "not heard any more")
        if not up:
            self._rooms.alarms.set(node, frozenset())
        self._rooms.leaders.node_changed(node, incarnation, up)
        self._rooms.stuck.node_changed(node, up)
        for tell in self._rooms.node_changed:
            tell(node, up)

    def delivered(self, sender: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        """Another member sent something; of an unknown kind: one of a later version."""
        receive = self._received.get(kind)
        if receive is not None:
            receive(sender, uid, term, payload)

    def liveness_received(
        self,
        node: NodeId,
        alarms: Sequence[str],
        memory_used: int,
        memory_limit: int,
        disk_free: int,
    ) -> None:
        """Another member's alarms hold here too (R-ALM-1)."""
        self._rooms.figures[node] = (memory_used, memory_limit, disk_free, list(alarms))
        self._rooms.alarms.set(node, frozenset(alarms))
