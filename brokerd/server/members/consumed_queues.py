"""Which durable auto-delete queues have consumers, wherever these are: what decides whether such a
queue is kept when its home member goes down (core/catalog/down_homes.py).

Each member tells the others which of these queues have consumers of its own, at once after a
change.  What a member said last counts after its end.  Asked by home_members.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from typing import Protocol

from brokerd.cluster.errors import DeliveryFormatError
from brokerd.cluster.peer.deliveries import DeliveryKind
from brokerd.core.catalog import down_homes
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import CATALOG_GROUP, NodeId

#: Pause between two such lists: the first change goes out at once, those that follow together.
PAUSE_S = 0.1


class Peers(Protocol):
    """The other members, and the way to them."""

    node: NodeId

    def alive(self) -> Collection[NodeId]:
        """Return the members that are up, this one included."""
        ...

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        """Send to a member; what cannot be delivered is dropped."""
        ...


class ConsumedQueues:
    """State: the uids of these queues with consumers here, and what each other member said last."""

    def __init__(
        self, peers: Peers, queue_of: Callable[[int], Queue | None], absent: Collection[int]
    ) -> None:
        """absent: queues that went down with their home, as this member sees it."""
        self._peers = peers
        self._queue_of = queue_of
        self._absent = absent
        self._own: set[int] = set()
        self._others: dict[NodeId, frozenset[int]] = {}
        self._is_resting = False
        self._has_changed = False

    def has_consumers(self, uid: int) -> bool:
        """Tell whether some member said that this durable auto-delete queue has consumers."""
        return uid in self._own or any(uid in uids for uids in self._others.values())

    def changed(self, uid: int, has_consumers: bool) -> None:
        """A queue has its first consumer here, or has lost its last."""
        if not has_consumers:
            # The home's end has cancelled it: the others may not have judged the queue yet.
            if uid in self._own and uid not in self._absent:
                self._own.discard(uid)
                self._tell_soon()
            return
        queue = self._queue_of(uid)
        if queue is not None and queue.auto_delete and queue.durable and down_homes.has_home(queue):
            self._own.add(uid)
            self._tell_soon()

    def forget(self, uid: int) -> None:
        """The queue is gone."""
        if uid in self._own:
            self._own.discard(uid)
            self._tell_soon()

    def node_changed(self, node: NodeId, up: bool) -> None:
        """A member is heard again, and may have missed what was said meanwhile."""
        if up and node != self._peers.node:
            self._tell(node)

    def received(self, sender: NodeId, payload: bytes) -> None:
        """Take another member's list; it replaces what that member said before."""
        try:
            uids = json.loads(payload)
        except ValueError as error:
            raise DeliveryFormatError(f"bad list of {len(payload)} bytes") from error
        if not isinstance(uids, list) or not all(type(uid) is int for uid in uids):
            raise DeliveryFormatError("bad list of queues with consumers")
        self._others[sender] = frozenset(uids)

    def _tell_soon(self) -> None:
        self._has_changed = True
        if not self._is_resting:
            self._is_resting = True
            asyncio.get_running_loop().call_soon(self._tell_all)

    def _tell_all(self) -> None:
        self._is_resting = self._has_changed
        if not self._has_changed:
            return
        self._has_changed = False
        for node in self._peers.alive():
            if node != self._peers.node:
                self._tell(node)
        asyncio.get_running_loop().call_later(PAUSE_S, self._tell_all)

    def _tell(self, node: NodeId) -> None:
        payload = json.dumps(sorted(self._own), separators=(",", ":")).encode()
        self._peers.send_delivery(node, CATALOG_GROUP, 0, DeliveryKind.CONSUMED, payload)
