"""The catalog's records: one object of the topology each.

Pure data with identity, owner and revision.  Made and changed only by `catalog_state.py`; read by
the router, policies, permissions, and through listings by the Admin service.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple

from brokerd.core.catalog import delayed_type, names, queue_membership
from brokerd.core.interner import INTERNED_MAX

Json = dict[str, Any]


class ConnectionId(NamedTuple):
    """A client connection anywhere in the cluster; owner of exclusive queues (R-Q-9)."""

    node: str
    #: Random per process start.
    incarnation: int
    #: Unique within the incarnation.
    connection: int


@dataclass(slots=True)
class Owner:
    """Who manages an object (design/operator.md §8); no part of its spec or hash."""

    managed_by: str = ""
    resource: str = ""
    uid: str = ""
    deletion_policy: str = ""
    #: True: AMQP clients may not delete or change it.
    protected: bool = False


OWNER_FIELDS = tuple(field.name for field in fields(Owner))


class Record:
    """What all objects have.  (kind, vhost, name) is the identity."""

    __slots__ = ("_hash", "kind", "name", "owner", "revision", "vhost")

    def __init__(self, kind: str, vhost: str, name: str) -> None:
        self.kind = kind
        self.vhost = vhost
        self.name = name
        self.owner: Owner | None = None
        #: Log index of the last change.
        self.revision = 0
        self._hash: str | None = None

    def spec(self) -> Json:
        """Return the full spec, secrets included."""
        raise AssertionError(f"{type(self).__name__} has no spec")

    def listed_spec(self) -> Json:
        """Return the spec as listings show it: without secrets."""
        return self.spec()

    def hash(self) -> str:
        """Return 16 hex characters that change when the spec does."""
        if self._hash is None:
            self._hash = names.digest(self.hashed_spec())
        return self._hash

    def hashed_spec(self) -> Json:
        """Return what the hash covers."""
        return self.listed_spec()

    def is_protected(self) -> bool:
        """Say whether AMQP clients must leave it alone."""
        return self.owner is not None and self.owner.protected

    def listing(self) -> Json:
        """Return the object as replies and listings show it."""
        owner = self.owner
        return {
            "kind": self.kind,
            "vhost": self.vhost,
            "name": self.name,
            "spec": self.listed_spec(),
            "hash": self.hash(),
            "owner": None if owner is None else owner_json(owner),
            "revision": self.revision,
        }


def owner_json(owner: Owner) -> Json:
    """Return an owner's fields."""
    return {
        "managed_by": owner.managed_by,
        "resource": owner.resource,
        "uid": owner.uid,
        "deletion_policy": owner.deletion_policy,
        "protected": owner.protected,
    }


def owner_of(fields: Json) -> Owner | None:
    """Return the owner that an operation or a stored object names."""
    owner = fields.get("owner")
    if owner is None:
        return None
    # By name, so that a field of a later version is no obstacle.
    return Owner(**{key: owner[key] for key in OWNER_FIELDS if key in owner})


class Entry(Record):
    """An object that needs no more than its spec: vhost, policy, permission, parameter, …"""

    __slots__ = ("value",)

    def __init__(self, kind: str, vhost: str, name: str, value: Json) -> None:
        super().__init__(kind, vhost, name)
        self.value = value

    def spec(self) -> Json:
        return self.value


#: Of a user's spec, in no listing and no export.
PREVIOUS_PASSWORD = ("previous_password_hash", "previous_until_ms")
_SECRETS_OF_USER = frozenset(("password_hash", *PREVIOUS_PASSWORD))


class User(Entry):
    """A user; the password hash is written, never listed (SEC-20).

    Nor is the hash before it (ADR 21), which does not count in the object's hash either: that it
    runs out is no change.
    """

    __slots__ = ()

    def listed_spec(self) -> Json:
        return {key: value for key, value in self.value.items() if key not in _SECRETS_OF_USER}

    def hashed_spec(self) -> Json:
        return self.listed_spec() | {"password_digest": names.digest(self.value["password_hash"])}

    @property
    def tags(self) -> list[str]:
        """Return tags such as administrator (R-PERM-9)."""
        tags: list[str] = self.value["tags"]
        return tags

    @property
    def password_hash(self) -> str:
        """Return the opaque hash; "" means that no password is right."""
        password_hash: str = self.value["password_hash"]
        return password_hash

    def accepted_hashes(self, now_ms: int) -> tuple[str, ...]:
        """Return the hashes of passwords that are right now: after a rotation, for a while two."""
        previous = self.value.get("previous_password_hash", "")
        is_over = self.value.get("previous_until_ms", 0) <= now_ms
        found = (self.password_hash,) if is_over else (self.password_hash, previous)
        return tuple(each for each in found if each)


class Exchange(Record):
    """An exchange.  `settings` are mutable and no part of declare equivalence."""

    __slots__ = (
        "arguments",
        "auto_delete",
        "durable",
        "internal",
        "routing_type",
        "settings",
        "type",
    )

    def __init__(self, vhost: str, name: str, spec: Json) -> None:
        super().__init__("exchange", vhost, name)
        self.type: str = spec["type"]
        self.durable: bool = spec["durable"]
        self.auto_delete: bool = spec["auto_delete"]
        self.internal: bool = spec["internal"]
        self.arguments: Json = spec["arguments"]
        self.settings: Json = spec["settings"]
        #: The type by which it routes: another one where it delays messages.
        self.routing_type = delayed_type.routing_type(self.type, self.arguments)

    def spec(self) -> Json:
        return {
            "type": self.type,
            "durable": self.durable,
            "auto_delete": self.auto_delete,
            "internal": self.internal,
            "arguments": self.arguments,
            "settings": self.settings,
        }


def kept_names(names: Iterable[str]) -> list[str]:
    """Return names of nodes that a queue is to keep: one list for all queues that have the same,
    which is never changed.
    """
    return _list_of(tuple(names))


@lru_cache(INTERNED_MAX)
def _list_of(names: tuple[str, ...]) -> list[str]:
    return [sys.intern(name) for name in names]


def kept_json(value: Json) -> Json:
    """Return what a queue is to keep, one for all that have the same, which is never changed."""
    # As text, since 1 and true are equal and not the same.
    return _dict_of(json.dumps(value))


@lru_cache(INTERNED_MAX)
def _dict_of(text: str) -> Json:
    return {
        sys.intern(name): sys.intern(value) if type(value) is str else value
        for name, value in json.loads(text).items()
    }


class Queue(Record):
    """A queue: uid names its group, `members` the nodes that hold a replica."""

    __slots__ = (
        "arguments",
        "auto_delete",
        "durable",
        "exclusive_owner",
        "members",
        "membership",
        "replicas",
        "settings",
        "type",
        "uid",
    )

    def __init__(self, vhost: str, name: str, spec: Json, uid: int, members: list[str]) -> None:
        super().__init__("queue", vhost, name)
        self.uid = uid
        self.members = members
        self.membership = queue_membership.Membership()
        self.type = sys.intern(spec["type"])
        self.durable: bool = spec["durable"]
        self.auto_delete: bool = spec["auto_delete"]
        self.arguments = kept_json(spec["arguments"])
        self.settings = kept_json(spec["settings"])
        self.replicas: int | None = spec.get("replicas")
        self.exclusive_owner: ConnectionId | None = None

    def spec(self) -> Json:
        spec: Json = {
            "type": self.type,
            "durable": self.durable,
            "auto_delete": self.auto_delete,
            "arguments": self.arguments,
            "settings": self.settings,
        }
        if self.replicas is not None:
            spec["replicas"] = self.replicas
        if self.exclusive_owner is not None:
            spec["exclusive"] = True
        return spec

    @property
    def wanted_members(self) -> list[str]:
        """Return the nodes that are to hold a replica."""
        wanted = self.membership.wanted
        return self.members if wanted is None else wanted

    def listing(self) -> Json:
        owner = self.exclusive_owner
        return super().listing() | {
            "uid": self.uid,
            "members": list(self.members),
            "wanted_members": list(self.wanted_members),
            "exclusive_owner": None if owner is None else list(owner),
        }


class Binding(Record):
    """A binding.  destination_kind is queue or exchange; the name is made of all of it."""

    __slots__ = ("arguments", "destination", "destination_kind", "routing_key", "source")

    def __init__(self, vhost: str, name: str, spec: Json) -> None:
        super().__init__("binding", vhost, name)
        self.source: str = spec["source"]
        self.destination_kind: str = spec["destination_kind"]
        self.destination: str = spec["destination"]
        self.routing_key: str = spec["routing_key"]
        self.arguments: Json = spec["arguments"]

    def spec(self) -> Json:
        return {
            "source": self.source,
            "destination_kind": self.destination_kind,
            "destination": self.destination,
            "routing_key": self.routing_key,
            "arguments": self.arguments,
        }
