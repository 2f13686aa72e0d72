"""What the catalog holds, indexed for those who read it on every node.

Pure.  `CatalogState` is the node-local view that routing, policies, permissions and declares are
asked against; only `catalog_changes.py` and `catalog_machine.py` change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from brokerd.core.catalog import names
from brokerd.core.catalog.bindings import Bindings
from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.core.catalog.catalog_objects import (
    Binding,
    ConnectionId,
    Entry,
    Exchange,
    Queue,
    Record,
    User,
)
from brokerd.core.catalog.down_homes import DownHomes
from brokerd.core.catalog.past_changes import PastChanges

#: How many changes WatchTopology can resume over.
CHANGES_MAX = 10_000


class VhostTopology:
    """What is in one vhost.

    Invariants: the default exchanges are there; both ends of each binding are.
    """

    __slots__ = (
        "bindings",
        "effective",
        "exchanges",
        "name",
        "operator_policies",
        "policies",
        "queues",
        "revision",
    )

    def __init__(self, name: str, loose_headers: bool) -> None:
        self.name = name
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.bindings = Bindings(loose_headers)
        self.policies: dict[str, Entry] = {}
        self.operator_policies: dict[str, Entry] = {}
        #: Rises with every change that routing can see; only for this process, never compared
        #: between nodes.
        self.revision = 0
        #: Memory of `policy.py`: (kind, name) to what is effective; emptied when policies change.
        self.effective: dict[tuple[str, str], Any] = {}


class CatalogState:
    """All objects of the cluster by identity, and the log of their last changes."""

    __slots__ = (
        "_changes",
        "_entries",
        "_exclusive",
        "_loose_headers",
        "access_revision",
        "cluster_id",
        "cluster_name",
        "down_homes",
        "enabled_features",
        "incarnations",
        "revision",
        "understood_features",
        "vhosts",
    )

    def __init__(self, loose_headers: bool = False, changes_max: int = CHANGES_MAX) -> None:
        self._loose_headers = loose_headers
        #: Rises when users or permissions change; only for this process.
        self.access_revision = 0
        #: This member's own view, no part of the catalog: a snapshot neither has nor changes it.
        self.down_homes = DownHomes()
        self.vhosts: dict[str, VhostTopology] = {}
        self._changes = PastChanges(changes_max)
        self.reset()

    def reset(self) -> None:
        """Forget everything; whatever was derived from it is seen to be old."""
        for topology in self.vhosts.values():
            topology.revision += 1
        self.access_revision += 1
        #: "" until the bootstrap command.
        self.cluster_id = ""
        self.cluster_name = ""
        #: Log index of the last command that changed anything.
        self.revision = 0
        self.vhosts = {}
        #: Node to the incarnation that last said it started.
        self.incarnations: dict[str, int] = {}
        #: Node to the feature flags that it understands (features.py).
        self.understood_features: dict[str, list[str]] = {}
        self.enabled_features: frozenset[str] = frozenset()
        self._entries: dict[str, dict[tuple[str, str], Entry]] = {
            kind: {} for kind in names.KINDS if kind not in ("exchange", "queue", "binding")
        }
        self._exclusive: dict[ConnectionId, dict[tuple[str, str], Queue]] = {}
        self._changes.clear(0)

    # Reading.

    def get(self, kind: str, vhost: str, name: str) -> Record | None:
        """Return an object by identity."""
        entries = self._entries.get(kind)
        if entries is not None:
            return entries.get((vhost, name))
        topology = self.vhosts.get(vhost)
        if topology is None:
            return None
        if kind == "exchange":
            return topology.exchanges.get(name)
        if kind == "queue":
            return topology.queues.get(name)
        return topology.bindings.by_name.get(name) if kind == "binding" else None

    def exchange(self, vhost: str, name: str) -> Exchange | None:
        """Return an exchange."""
        topology = self.vhosts.get(vhost)
        return None if topology is None else topology.exchanges.get(name)

    def queue(self, vhost: str, name: str) -> Queue | None:
        """Return a queue."""
        topology = self.vhosts.get(vhost)
        return None if topology is None else topology.queues.get(name)

    def usable_queue(self, vhost: str, name: str) -> Queue | None:
        """Return a queue, None also for one that went down with its home member."""
        queue = self.queue(vhost, name)
        return None if queue is None or queue.uid in self.down_homes.absent else queue

    def homes_changed(self) -> None:
        """Other queues are in `down_homes`: routes that were derived are old."""
        for topology in self.vhosts.values():
            topology.revision += 1

    def user(self, name: str) -> User | None:
        """Return a user."""
        user = self._entries["user"].get(("", name))
        return user if isinstance(user, User) else None

    def spec(self, kind: str, vhost: str, name: str) -> dict[str, Any] | None:
        """Return the spec of an object that is an Entry, None if it is not there."""
        entry = self._entries[kind].get((vhost, name))
        return None if entry is None else entry.value

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a cluster-wide setting."""
        spec = self.spec("setting", "", name)
        return default if spec is None else spec["value"]

    def limit(self, vhost: str, limit: str) -> int | None:
        """Return a vhost's limit; negative or unset is none, 0 forbids (O-4)."""
        spec = self.spec("vhost", "", vhost)
        value = -1 if spec is None else spec["limits"].get(limit, -1)
        return None if value < 0 else int(value)

    def members(self) -> dict[str, str]:
        """Return the cluster's members: name to peer address, in order of name."""
        return {
            name: entry.value["peer_address"]
            for (_, name), entry in sorted(self._entries["member"].items())
        }

    def parameters(self, vhost: str, component: str) -> dict[str, Any]:
        """Return the runtime parameters of a component: name to value (R-POL-13)."""
        prefix = component + "/"
        return {
            name[len(prefix) :]: entry.value["value"]
            for (of_vhost, name), entry in sorted(self._entries["parameter"].items())
            if of_vhost == vhost and name.startswith(prefix)
        }

    def queues(self) -> Iterator[Queue]:
        """Yield the queues of all vhosts."""
        for topology in self.vhosts.values():
            yield from topology.queues.values()

    def exclusive_queues(self, connection: ConnectionId) -> list[Queue]:
        """Return the queues that end with a connection (R-Q-9)."""
        return list(self._exclusive.get(connection, {}).values())

    def records(self, kind: str, vhost: str | None = None) -> list[Record]:
        """Return the objects of a kind, in the order in which they were made."""
        entries = self._entries.get(kind)
        if entries is not None:
            return [entry for entry in entries.values() if vhost is None or entry.vhost == vhost]
        found: list[Record] = []
        for topology in self.vhosts.values():
            if vhost is None or topology.name == vhost:
                if kind == "exchange":
                    found.extend(topology.exchanges.values())
                elif kind == "queue":
                    found.extend(topology.queues.values())
                else:
                    assert kind == "binding"
                    found.extend(topology.bindings.by_name.values())
        return found

    def changes_since(self, revision: int) -> list[TopologyChanged] | None:
        """Return the changes after a revision, oldest first; None if the log no longer reaches
        back that far: list again.
        """
        return self._changes.since(revision)

    def removed_by(self, causes: frozenset[str]) -> list[TopologyChanged]:
        """Return what was removed for one of these causes and not made again, as far as the log of
        changes reaches back.
        """
        last: dict[tuple[str, str, str], TopologyChanged] = {}
        for change in self._changes.since(self._changes.compacted_revision) or ():
            last[change.kind, change.vhost, change.name] = change
        return [change for change in last.values() if change.deleted and change.cause in causes]

    # Changing; for catalog_changes.py and catalog_machine.py only.

    def add(self, record: Record) -> None:
        """Put a record that was not there."""
        if isinstance(record, Entry):
            self._entries[record.kind][record.vhost, record.name] = record
            if record.kind == "vhost":
                self.vhosts[record.name] = VhostTopology(record.name, self._loose_headers)
        else:
            topology = self.vhosts[record.vhost]
            if isinstance(record, Exchange):
                topology.exchanges[record.name] = record
            elif isinstance(record, Queue):
                topology.queues[record.name] = record
                if record.exclusive_owner is not None:
                    owned = self._exclusive.setdefault(record.exclusive_owner, {})
                    owned[record.vhost, record.name] = record
            else:
                assert isinstance(record, Binding)
                topology.bindings.add(record, topology.exchanges[record.source])
        self.touched(record, is_there=True)

    def discard(self, record: Record) -> None:
        """Remove a record that is there; what depends on it is the caller's concern."""
        if isinstance(record, Entry):
            del self._entries[record.kind][record.vhost, record.name]
            if record.kind == "vhost":
                del self.vhosts[record.name]
        else:
            topology = self.vhosts[record.vhost]
            if isinstance(record, Exchange):
                del topology.exchanges[record.name]
            elif isinstance(record, Queue):
                del topology.queues[record.name]
                self._discard_exclusive(record)
            else:
                assert isinstance(record, Binding)
                topology.bindings.remove(record)
        self.touched(record, is_there=False)

    def _discard_exclusive(self, queue: Queue) -> None:
        owner = queue.exclusive_owner
        if owner is not None:
            owned = self._exclusive[owner]
            del owned[queue.vhost, queue.name]
            if not owned:
                del self._exclusive[owner]

    def touched(self, record: Record, is_there: bool) -> None:
        """Bring what is derived from a record up to date after it was put or removed."""
        record._hash = None
        kind = record.kind
        if kind in ("user", "permission", "topic_permission", "vhost"):
            self.access_revision += 1
        topology = self.vhosts.get(record.vhost)
        if topology is None or kind in ("permission", "topic_permission", "parameter"):
            return
        topology.revision += 1
        if kind in ("policy", "operator_policy"):
            assert isinstance(record, Entry)
            policies = topology.policies if kind == "policy" else topology.operator_policies
            if is_there:
                policies[record.name] = record
            else:
                policies.pop(record.name, None)
            topology.effective.clear()
        elif kind != "binding":
            topology.effective.pop((kind, record.name), None)

    def log_change(self, change: TopologyChanged) -> None:
        """Remember a change for `changes_since`."""
        self._changes.add(change)
        self.revision = change.revision

    def forget_changes(self, revision: int) -> None:
        """Start the log of changes anew behind a snapshot."""
        self._changes.clear(revision)
        self.revision = revision

    def check_invariants(self) -> None:
        """Assert what must hold between the parts."""
        assert {name for _, name in self._entries["vhost"]} == self.vhosts.keys()
        exclusive = 0
        for topology in self.vhosts.values():
            assert all(name in topology.exchanges for name, _, _ in names.DEFAULT_EXCHANGES)
            topology.bindings.check_invariants()
            for binding in topology.bindings.by_name.values():
                assert binding.source in topology.exchanges
                ends = (
                    topology.queues if binding.destination_kind == "queue" else topology.exchanges
                )
                assert binding.destination in ends
            exclusive += sum(
                queue.exclusive_owner is not None for queue in topology.queues.values()
            )
            for queue in topology.queues.values():
                membership = queue.membership
                assert membership.joined.keys() <= set(queue.members)
                assert membership.wanted is None or set(membership.wanted) != set(queue.members)
                assert set(membership.returning) <= set(queue.members) - set(queue.wanted_members)
            for kind, policies in (
                ("policy", topology.policies),
                ("operator_policy", topology.operator_policies),
            ):
                stored = {name for vhost, name in self._entries[kind] if vhost == topology.name}
                assert policies.keys() == stored
        assert exclusive == sum(map(len, self._exclusive.values()))
        for kind in ("permission", "topic_permission", "policy", "operator_policy", "parameter"):
            assert all(vhost in self.vhosts for vhost, _ in self._entries[kind])
