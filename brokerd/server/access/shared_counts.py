"""How many connections and channels vhosts and users have at all members together (R-CON-12).

Each member tells the others its counts of those that have a limit, soon after a change.  What two
members let in within that time may be one too many, as in RabbitMQ.  Asked by admission.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from brokerd.cluster.errors import DeliveryFormatError
from brokerd.cluster.peer.deliveries import DeliveryKind
from brokerd.raft.messages import CATALOG_GROUP, NodeId

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_effects import TopologyChanged
    from brokerd.core.catalog.catalog_state import CatalogState

#: Changes within this time go out together.
DELAY_S = 0.1
#: (kind of count, kind of object, its limit)
_KINDS = (
    ("vhost", "vhost", "max-connections"),
    ("user", "user", "max-connections"),
    ("channels", "user", "max-channels"),
)

#: By kind of count: count by name.
Counts: TypeAlias = dict[str, dict[str, int]]


class OwnCounts(Protocol):
    """The counts of this member."""

    def of(self, kind: str) -> Mapping[str, int]:
        """Return those of a kind by name."""
        ...

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after each change."""
        ...


class Peers(Protocol):
    """The other members, and the way to them."""

    def alive(self) -> Collection[NodeId]:
        """Return the members that are up, this one included."""
        ...

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        """Send to a member; what cannot be delivered is dropped."""
        ...


class SharedCounts:
    """Owns what the others last said; this member's are client_counts.py's."""

    def __init__(
        self,
        node: str,
        view: CatalogState,
        own_counts: OwnCounts,
        peers: Peers,
    ) -> None:
        self._node = node
        self._view = view
        self._own_counts = own_counts
        self._peers = peers
        self._others: dict[str, Counts] = {}
        self._said: Counts = {}
        self._is_scheduled = False
        own_counts.listen(self.changed)

    def count(self, kind: str, name: str) -> int:
        """Return the count of a vhost, a user, or a user's channels, everywhere."""
        own = self._own_counts.of(kind).get(name, 0)
        return own + sum(counts[kind].get(name, 0) for counts in self._others.values())

    def changed(self) -> None:
        """A count of this member has changed, or which ones have a limit."""
        if not self._is_scheduled and len(self._view.members()) > 1:
            self._is_scheduled = True
            asyncio.get_running_loop().call_later(DELAY_S, self._tell_all)

    def topology_changed(self, change: TopologyChanged) -> None:
        """Limits may have come or gone."""
        if change.kind in ("vhost", "user"):
            self.changed()

    def node_changed(self, node: NodeId, up: bool) -> None:
        """A member has come, and knows nothing of us; or it has gone with its connections."""
        if not up:
            self._others.pop(node, None)
        elif node != self._node:
            self._tell(node, self._own())

    def received(self, sender: NodeId, payload: bytes) -> None:
        """Another member's counts; they replace what it said before."""
        try:
            found = json.loads(payload)
        except ValueError as error:
            raise DeliveryFormatError(f"bad counts of {len(payload)} bytes") from error
        self._others[sender] = {kind: _checked(found, kind) for kind, _, _ in _KINDS}

    def _tell_all(self) -> None:
        self._is_scheduled = False
        own = self._own()
        if own == self._said:
            return
        self._said = own
        for node in self._peers.alive():
            if node != self._node:
                self._tell(node, own)

    def _tell(self, node: NodeId, counts: Counts) -> None:
        payload = json.dumps(counts, separators=(",", ":")).encode()
        self._peers.send_delivery(node, CATALOG_GROUP, 0, DeliveryKind.COUNTS, payload)

    def _own(self) -> Counts:
        counts: Counts = {}
        for kind, of, limit in _KINDS:
            counts[kind] = {
                name: count
                for name, count in self._own_counts.of(kind).items()
                if self._has_limit(of, name, limit)
            }
        return counts

    def _has_limit(self, kind: str, name: str, limit: str) -> bool:
        settings = self._view.spec(kind, "", name) or {}
        return int(settings.get("limits", {}).get(limit, -1)) >= 0


def _checked(found: Any, kind: str) -> dict[str, int]:
    counts = found.get(kind) if isinstance(found, Mapping) else None
    if not isinstance(counts, dict) or not all(type(n) is int and n >= 0 for n in counts.values()):
        raise DeliveryFormatError(f"bad counts: no table of '{kind}'")
    return counts
