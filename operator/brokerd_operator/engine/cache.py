"""The cache of resources, with the indexes that tell who must look again when something changes.

Filled by the shells from events (informer-like); it parses each body once per generation. Owned by
the engine; nothing else writes to it. Invariant: the indexes hold exactly what the parsed specs of
the cached bodies name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from brokerd_operator.engine import keys
from brokerd_operator.engine.keys import Body, Key
from brokerd_operator.engine.versions import Version, Versions, version_of
from brokerd_operator.specs import registry
from brokerd_operator.specs.model import (
    Identity,
    Inputs,
    Invalid,
    Meta,
    Reference,
    TopologySpec,
)
from brokerd_operator.specs.permission import OfUser
from brokerd_operator.specs.user import UserSpec

#: An object of a broker, that a resource wants to own or needs.
Claim = tuple[Reference, Identity]
Need = tuple[Reference, Identity]


@dataclass(slots=True)
class Entry:
    """A body and what was made of it."""

    body: Body
    meta: Meta
    spec: registry.Spec | Invalid
    signature: tuple[Any, ...]
    references: tuple[Reference, ...]
    claims: tuple[Claim, ...]
    needs: tuple[Need, ...]


class ResourceCache:
    """Owns all bodies that the operator watches."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        self._by_reference: dict[Reference, set[Key]] = {}
        self._by_claim: dict[Claim, set[Key]] = {}
        self._by_need: dict[Need, set[Key]] = {}
        #: Names in the broker of User resources, by namespace and name: every pass asks for them.
        self._users: dict[str, str] = {}
        self._versions = Versions()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Entry | None:
        return self._entries.get(key)

    def all_keys(self) -> list[Key]:
        return list(self._entries)

    def of_kind(self, kind: str) -> list[Key]:
        return [key for key in self._entries if key.kind == kind]

    def version(self, key: Key) -> Version | None:
        """The newest version known of a resource that is there."""
        return self._versions.present(key)

    def put(self, body: Body) -> tuple[bool, set[Key]]:
        """Take a body: whether a pass is needed, and who else must look again.

        A body that is older than what is known, or of a resource that is gone, changes nothing.
        """
        key, version = keys.key_of(body), version_of(body)
        if version.number is not None and version == self._versions.present(key):
            # Every resource comes twice at the start: listed, and told by a watch.
            return False, set()
        if not self._versions.takes(key, version):
            return False, set()
        before = self._entries.get(key)
        signature = keys.signature(body)
        if before is not None and before.signature == signature:
            before.body = body
            return False, set()
        woken = self._drop(key)
        entry = self._parse(key, body, signature)
        self._entries[key] = entry
        if isinstance(entry.spec, UserSpec):
            self._users[f"{key.namespace}/{key.name}"] = entry.spec.resolved_name(entry.meta)
        for reference in entry.references:
            self._by_reference.setdefault(reference, set()).add(key)
        for claim in entry.claims:
            self._by_claim.setdefault(claim, set()).add(key)
        for need in entry.needs:
            self._by_need.setdefault(need, set()).add(key)
        # A User's name in the broker is part of the rights that refer to it.
        for other in self._by_reference.get(key.reference, ()):
            self._refresh_claims(other)
        return True, (woken | self.referring_to(key.reference)) - {key}

    def remove(self, key: Key, version: Version | None = None) -> set[Key] | None:
        """A resource is gone: who must look again; None if that is no news.

        Without a version it is about whatever is there.
        """
        if not self._versions.takes_deletion(key, version) or key not in self._entries:
            return None
        woken = self._drop(key)
        del self._entries[key]
        return (woken | self.referring_to(key.reference)) - {key}

    def referring_to(self, reference: Reference) -> set[Key]:
        """Resources that name another resource or a Secret."""
        return set(self._by_reference.get(reference, ()))

    def claiming(self, broker: Reference, identity: Identity) -> set[Key]:
        """Resources that want to own an object."""
        return set(self._by_claim.get((broker, identity), ()))

    def depending_on(self, broker: Reference, identity: Identity) -> set[Key]:
        """Resources that need an object of somebody else's: bindings of a queue, for example."""
        return set(self._by_need.get((broker, identity), ()))

    def older_rival(self, key: Key) -> Key | None:
        """Another resource that wants the object and was there first (design/operator.md §8)."""
        entry = self._entries[key]
        for claim in entry.claims:
            for other in sorted(self._by_claim.get(claim, ())):
                if other != key and self._age(other) < self._age(key):
                    return other
        return None

    def users(self) -> Mapping[str, str]:
        """Names in the broker of User resources, as they are now and will be."""
        return MappingProxyType(self._users)

    def vhost_users(self, key: Key) -> Iterable[Key]:
        """Live resources in the virtual host of a Vhost resource."""
        mine = self._entries[key].spec
        assert isinstance(mine, TopologySpec)
        name = mine.resolved_name(self._entries[key].meta)
        broker = mine.broker_ref.reference(self._entries[key].meta)
        for other, entry in self._entries.items():
            if other == key or not isinstance(entry.spec, TopologySpec):
                continue
            if other.kind in ("Vhost", "User") or keys.is_deleting(entry.body):
                continue
            if entry.spec.vhost == name and entry.spec.broker_ref.reference(entry.meta) == broker:
                yield other

    def _age(self, key: Key) -> tuple[str, Key]:
        metadata = self._entries[key].body.get("metadata") or {}
        return (str(metadata.get("creationTimestamp") or ""), key)

    def _parse(self, key: Key, body: Body, signature: tuple[Any, ...]) -> Entry:
        meta = Meta.of(body)
        spec = registry.parse(body)
        references: tuple[Reference, ...] = ()
        needs: tuple[Need, ...] = ()
        if not isinstance(spec, Invalid):
            references = spec.references(meta)
        if isinstance(spec, TopologySpec):
            broker = spec.broker_ref.reference(meta)
            references = (*references, broker)
            needs = tuple((broker, item.identity) for item in spec.dependencies(meta))
        return Entry(body, meta, spec, signature, references, self._claims(meta, spec), needs)

    def _claims(self, meta: Meta, spec: registry.Spec | Invalid) -> tuple[Claim, ...]:
        if not isinstance(spec, TopologySpec):
            return ()
        broker = spec.broker_ref.reference(meta)
        identities = spec.identities(meta, Inputs(users=self.users()))
        return tuple((broker, identity) for identity in identities)

    def _refresh_claims(self, key: Key) -> None:
        entry = self._entries[key]
        if not isinstance(entry.spec, OfUser):
            return
        for claim in entry.claims:
            self._by_claim.get(claim, set()).discard(key)
        entry.claims = self._claims(entry.meta, entry.spec)
        for claim in entry.claims:
            self._by_claim.setdefault(claim, set()).add(key)

    def _drop(self, key: Key) -> set[Key]:
        """Take a resource out of the indexes; its rivals must look again."""
        entry = self._entries.get(key)
        if entry is None:
            return set()
        if key.kind == "User":
            self._users.pop(f"{key.namespace}/{key.name}", None)
        woken: set[Key] = set()
        for reference in entry.references:
            _discard(self._by_reference, reference, key)
        for claim in entry.claims:
            woken |= self._by_claim.get(claim, set())
            _discard(self._by_claim, claim, key)
        for need in entry.needs:
            _discard(self._by_need, need, key)
        return woken


def _discard(index: dict[Any, set[Key]], name: Any, key: Key) -> None:
    members = index.get(name)
    if members is not None:
        members.discard(key)
        if not members:
            del index[name]
