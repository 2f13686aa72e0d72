"""Which durable auto-delete queues have consumers, wherever these are: what decides whether such a
queue is kept when its home member goes down (core/catalog/down_homes.py).

Each member tells the others which of these queues have consumers of its own, at once after a
change.  What a member said last counts after its end.  Asked by home_members.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from typing import Any, Protocol

from brokerd.cluster.errors import DeliveryFormatError
from brokerd.cluster.peer.deliveries import DeliveryKind
from brokerd.core.catalog import down_homes
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import CATALOG_GROUP, NodeId


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
    """State: the uids of these queues with consumers here, what of that is still to be told, and
    what each other member said.
    """

    def __init__(
        self, peers: Peers, queue_of: Callable[[int], Queue | None], absent: Collection[int]
    ) -> None:
        """absent: queues that went down with their home, as this member sees it."""
        self._peers = peers
        self._queue_of = queue_of
        self._absent = absent
        self._own: set[int] = set()
        #: By queue: whether it has consumers now.
        self._unreported: dict[int, bool] = {}
        self._others: dict[NodeId, set[int]] = {}

    def has_consumers(self, uid: int) -> bool:
        """Tell whether some member said that this durable auto-delete queue has consumers."""
        return uid in self._own or any(uid in uids for uids in self._others.values())

    def changed(self, uid: int, has_consumers: bool) -> None:
        """A queue has its first consumer here, or has lost its last."""
        if not has_consumers:
            # The home's end has cancelled it: the others may not have judged the queue yet.
            if uid not in self._absent:
                self.forget(uid)
            return
        queue = self._queue_of(uid)
        if queue is not None and queue.auto_delete and queue.durable and down_homes.has_home(queue):
            self._own.add(uid)
            self._tell_soon(uid, True)

    def forget(self, uid: int) -> None:
        """The queue is gone, or has no consumers here any more."""
        if uid in self._own:
            self._own.discard(uid)
            self._tell_soon(uid, False)

    def node_changed(self, node: NodeId, up: bool) -> None:
        """A member is heard again, and may have missed what was said meanwhile."""
        if up and node != self._peers.node:
            self._send(node, {"all": sorted(self._own)})

    def received(self, sender: NodeId, payload: bytes) -> None:
        """Take another member's word: all of its queues, or those that changed."""
        try:
            fields = json.loads(payload)
        except ValueError as error:
            raise DeliveryFormatError(f"bad word of {len(payload)} bytes") from error
        if not isinstance(fields, dict):
            raise DeliveryFormatError("bad word on queues with consumers")
        if "all" in fields:
            self._others[sender] = _uids(fields, "all")
            return
        known = self._others.setdefault(sender, set())
        known |= _uids(fields, "added")
        known -= _uids(fields, "gone")

    def _tell_soon(self, uid: int, has_consumers: bool) -> None:
        if not self._unreported:
            # What comes in one turn goes together.
            asyncio.get_running_loop().call_soon(self._tell_all)
        self._unreported[uid] = has_consumers

    def _tell_all(self) -> None:
        unreported, self._unreported = self._unreported, {}
        fields = {
            "added": [uid for uid, has_consumers in unreported.items() if has_consumers],
            "gone": [uid for uid, has_consumers in unreported.items() if not has_consumers],
        }
        for node in self._peers.alive():
            if node != self._peers.node:
                self._send(node, fields)

    def _send(self, node: NodeId, fields: dict[str, list[int]]) -> None:
        payload = json.dumps(fields, separators=(",", ":")).encode()
        self._peers.send_delivery(node, CATALOG_GROUP, 0, DeliveryKind.CONSUMED, payload)


def _uids(fields: dict[str, Any], name: str) -> set[int]:
    uids = fields.get(name, [])
    if not isinstance(uids, list) or not all(type(uid) is int for uid in uids):
        raise DeliveryFormatError(f"bad word on queues with consumers: '{name}' is no list")
    return set(uids)
