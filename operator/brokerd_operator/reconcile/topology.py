"""What a broker holds, as the operator has seen it: the observed side of the planner. PURE.

A `Topology` is a mirror, filled from a listing and kept up by watch events and by the answers to
our own operations; older news never overwrites newer. Owned by one engine session; read by the
planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from brokerd_operator.reconcile.ownership import Token
from brokerd_operator.specs.model import Identity, JsonObject


@dataclass(frozen=True, slots=True)
class ObservedObject:
    """One object of a broker. `revision` is the catalog index of its last change."""

    kind: str
    vhost: str
    name: str
    spec: JsonObject = field(repr=False)
    hash: str = ""
    owner: Token | None = None
    revision: int = 0

    @property
    def identity(self) -> Identity:
        return Identity(self.kind, self.vhost, self.name)


class Topology:
    """Mirror of one broker. Invariant: `_by_owner` names exactly the objects with that token."""

    def __init__(self) -> None:
        self._objects: dict[Identity, ObservedObject] = {}
        self._by_owner: dict[str, dict[Identity, None]] = {}
        #: Revisions of removals, so that late news of an object that went does not revive it.
        self._removed: dict[Identity, int] = {}
        #: What was removed by its own terms before the listing, and did not come again.
        self.ended: set[Identity] = set()
        self.revision = 0

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[ObservedObject]:
        return iter(list(self._objects.values()))

    def get(self, identity: Identity) -> ObservedObject | None:
        return self._objects.get(identity)

    def has(self, identity: Identity) -> bool:
        return identity in self._objects

    def owned_by(self, resource: str) -> list[ObservedObject]:
        """Objects whose token names a resource (Kind/namespace/name), whatever its uid."""
        return [self._objects[identity] for identity in self._by_owner.get(resource, ())]

    def put(self, item: ObservedObject) -> bool:
        """Take news of an object; False when it was known already or is old."""
        identity = item.identity
        present = self._objects.get(identity)
        if present is not None and (present.revision > item.revision or present == item):
            return False
        if self._removed.get(identity, -1) >= item.revision:
            return False
        self._forget(identity)
        self._removed.pop(identity, None)
        self.ended.discard(identity)
        self._objects[identity] = item
        if item.owner is not None:
            self._by_owner.setdefault(item.owner.resource, {})[identity] = None
        self.revision = max(self.revision, item.revision)
        return True

    def remove(self, identity: Identity, revision: int) -> ObservedObject | None:
        """Take news of a removal; what was there, or None when it was known already or is old."""
        present = self._objects.get(identity)
        if present is None or present.revision > revision:
            return None
        self._forget(identity)
        self._removed[identity] = revision
        self.revision = max(self.revision, revision)
        return present

    def replace(
        self, items: Iterable[ObservedObject], revision: int, ended: Iterable[Identity] = ()
    ) -> None:
        """Take a full listing."""
        self.ended = set(ended)
        self._objects.clear()
        self._by_owner.clear()
        self._removed.clear()
        for item in items:
            self.put(item)
        self.revision = revision

    def _forget(self, identity: Identity) -> None:
        present = self._objects.pop(identity, None)
        if present is None or present.owner is None:
            return
        owned = self._by_owner.get(present.owner.resource)
        if owned is not None:
            owned.pop(identity, None)
            if not owned:
                del self._by_owner[present.owner.resource]

    def check_invariants(self) -> None:
        for resource, identities in self._by_owner.items():
            for identity in identities:
                owner = self._objects[identity].owner
                assert owner is not None
                assert owner.resource == resource
        owned = sum(len(identities) for identities in self._by_owner.values())
        assert owned == sum(1 for item in self._objects.values() if item.owner is not None)
