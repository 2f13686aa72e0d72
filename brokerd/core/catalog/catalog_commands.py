"""Commands and replies of the catalog machine: a version byte and JSON.

All randomness (uids, cluster ids) and everything that depends on a node's libraries (whether a
regular expression compiles) is in the command, so that applying it gives the same on every member.

Pure; for all that propose to the catalog group: sessions, the Admin service, the node's start.

Reply to one command: {"code", "amqp", "text", "revision", "object"}; to a batch: {"results": […]}.
code: OK UNCHANGED NOT_FOUND PRECONDITION IMMUTABLE REFUSED.  amqp: the reply code that an AMQP
client is to get when code is none of OK and UNCHANGED, or null.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from brokerd.core.catalog import patterns
from brokerd.core.catalog.catalog_objects import ConnectionId, Owner, owner_json

VERSION = 1
#: admin.proto, ApplyRequest
BATCH_OPERATIONS_MAX = 256

Json = dict[str, Any]
OK, UNCHANGED, NOT_FOUND = "OK", "UNCHANGED", "NOT_FOUND"
PRECONDITION, IMMUTABLE, REFUSED = "PRECONDITION", "IMMUTABLE", "REFUSED"

_REGEX_FIELDS = {
    "policy": ("pattern",),
    "operator_policy": ("pattern",),
    "permission": ("configure", "write", "read"),
    "topic_permission": ("write", "read"),
}


def put(
    kind: str,
    vhost: str,
    name: str,
    spec: Json,
    *,
    cause: str,
    declare: bool = False,
    owner: Owner | None = None,
    precondition: Json | None = None,
    uid: int = 0,
    members: Sequence[str] = (),
    exclusive_owner: ConnectionId | None = None,
    dry_run: bool = False,
) -> Json:
    """Return the operation that makes or changes an object.

    cause: admin, amqp:<user>, … (goes into the topology event).
    declare: AMQP semantics: what exists is compared as a redeclaration, never changed.
    owner: None leaves the owner as it is.
    precondition: {"absent": true}, {"hash": …}, {"owner_uid": …}, any of them together.
    uid, members, exclusive_owner: queues only; ignored when the queue exists.
    name of a binding: may be ""; it follows from the spec.
    """
    operation: Json = {"do": "put", "kind": kind, "vhost": vhost, "name": name, "spec": spec}
    operation["cause"] = cause
    for field in _REGEX_FIELDS.get(kind, ()):
        pattern = spec.get(field)
        fault = patterns.error(pattern) if isinstance(pattern, str) else None
        if fault is not None:
            operation["verdict"] = f"{field}: {fault}"
            break
    _add(operation, declare=declare, precondition=precondition, dry_run=dry_run)
    if owner is not None:
        operation["owner"] = owner_json(owner)
    if kind == "queue":
        operation["uid"] = uid
        operation["members"] = list(members)
        _add(operation, exclusive_owner=exclusive_owner)
    return operation


def delete(
    kind: str,
    vhost: str,
    name: str,
    *,
    cause: str,
    if_unused: bool = False,
    uid: int = 0,
    precondition: Json | None = None,
    dry_run: bool = False,
) -> Json:
    """Return the operation that deletes an object.

    if_unused: of an exchange: no binding has it as source (R-EX-6).
    uid: of a queue: only if it is still that one; 0: whichever.
    """
    operation: Json = {"do": "delete", "kind": kind, "vhost": vhost, "name": name, "cause": cause}
    return _add(operation, if_unused=if_unused, uid=uid, precondition=precondition, dry_run=dry_run)


def set_owner(
    kind: str,
    vhost: str,
    name: str,
    owner: Owner | None,
    *,
    precondition: Json | None = None,
    dry_run: bool = False,
) -> Json:
    """Return the operation that sets or (None) clears an object's owner."""
    operation: Json = {"do": "set_owner", "kind": kind, "vhost": vhost, "name": name}
    operation["cause"] = "admin"
    operation["owner"] = None if owner is None else owner_json(owner)
    return _add(operation, precondition=precondition, dry_run=dry_run)


def set_queue_members(
    vhost: str, name: str, uid: int, members: Sequence[str], *, revision: int = 0
) -> Json:
    """Return the operation that says which nodes hold a queue.

    revision: only if the record has not changed since; 0: in any case.
    """
    operation: Json = {"do": "set_queue_members", "kind": "queue", "vhost": vhost, "name": name}
    operation |= {"uid": uid, "members": list(members), "cause": "admin"}
    return _add(operation, revision=revision)


def want_queue_members(
    vhost: str,
    name: str,
    uid: int,
    *,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    is_automatic: bool = False,
    comes_back: bool = False,
) -> Json:
    """Return the operation that says which nodes are to come to hold a queue, and which not any
    more; its group's leader does the rest (R-QQ-23).

    is_automatic: no person asks for it.
    comes_back: those of `remove` are wanted again once they are out, with a new log (behind a
    feature flag).
    """
    operation: Json = {"do": "want_queue_members", "kind": "queue", "vhost": vhost, "name": name}
    operation |= {"uid": uid, "add": list(add), "remove": list(remove), "cause": "admin"}
    return _add(operation, automatic=is_automatic, comes_back=comes_back)


def put_member(name: str, peer_address: str) -> Json:
    """Return the operation that makes a node a member of the cluster, or changes its address."""
    return put("member", "", name, {"peer_address": peer_address}, cause="admin")


def remove_member(name: str) -> Json:
    """Return the operation that takes a node out of the cluster."""
    return delete("member", "", name, cause="admin")


def member_state(name: str) -> str:
    """Return the setting that says why a member takes nothing new: "maintenance" or "leaving"."""
    return f"member_state@{name}"


def member_domain(name: str) -> str:
    """Return the setting that says where a member runs: {"host", "zone"}, "" for what is unknown.

    A setting and no field of the member's record, so that every version can read it.
    """
    return f"member_domain@{name}"


#: Settings that begin so switch the firehose of a vhost.
TRACING = "tracing "


def tracing(vhost: str) -> str:
    """Return the setting that says whether the firehose of a vhost is on."""
    return f"{TRACING}{vhost}"


def set_setting(name: str, value: Any) -> Json:
    """Return the operation that sets (None: removes) a cluster-wide setting."""
    if value is None:
        return delete("setting", "", name, cause="admin")
    return put("setting", "", name, {"value": value}, cause="admin")


def bootstrap(
    cluster_id: str,
    cluster_name: str,
    users: Sequence[Json] = (),
    default_vhost: str = "/",
    features: Sequence[str] = (),
) -> Json:
    """Return the operation that makes a new cluster's first objects; the first one wins.

    users: {"name", "tags", "password_hash"}, each with all permissions in the default vhost.
    features: feature flags that are enabled from the start.
    """
    return {
        "do": "bootstrap",
        "cluster_id": cluster_id,
        "cluster_name": cluster_name,
        "default_vhost": default_vhost,
        "users": list(users),
        "features": list(features),
    }


def node_started(node: str, incarnation: int, features: Sequence[str] = ()) -> Json:
    """Return what a node proposes before it serves anyone: queues that died with its predecessor
    go (exclusive and transient ones on that node; R-Q-9, R-EX-9).

    features: the flags that its version understands; refused if one is enabled that it does not.
    """
    operation: Json = {"do": "node_started", "node": node, "incarnation": incarnation}
    return operation | {"features": list(features)}


def enable_features(names: Sequence[str]) -> Json:
    """Return the operation that enables feature flags, once all members understand them."""
    return {"do": "enable_features", "names": list(names)}


def connection_closed(connection: ConnectionId) -> Json:
    """Return the operation that removes the exclusive queues of a connection (R-Q-9)."""
    return {"do": "connection_closed", "connection": list(connection)}


def _add(operation: Json, **fields: Any) -> Json:
    """Add the fields that say something."""
    operation.update((key, value) for key, value in fields.items() if value)
    return operation


def encode(operation: Json) -> bytes:
    """Encode one operation as a command."""
    return bytes((VERSION,)) + json.dumps(operation, separators=(",", ":")).encode()


def batch(operations: Sequence[Json]) -> Json:
    """Return the operation that does several; each stands for itself, in order, and has its own
    result.
    """
    return {"do": "batch", "operations": list(operations)}


def encode_batch(operations: Sequence[Json]) -> bytes:
    """Encode several operations as one command."""
    return encode(batch(operations))


_OBJECT: dict[str, type] = {"kind": str, "vhost": str, "name": str, "cause": str}
_SHAPES: dict[str, dict[str, type]] = {
    "put": _OBJECT | {"spec": dict},
    "delete": _OBJECT,
    "set_owner": _OBJECT,
    "set_queue_members": _OBJECT | {"uid": int, "members": list},
    "want_queue_members": _OBJECT | {"uid": int, "add": list, "remove": list},
    "bootstrap": {"cluster_id": str, "cluster_name": str, "default_vhost": str, "users": list},
    "node_started": {"node": str, "incarnation": int},
    "enable_features": {"names": list},
    "connection_closed": {"connection": list},
}

_OPTIONAL_SHAPES: dict[str, type] = {
    "precondition": dict,
    "owner": dict,
    "exclusive_owner": list,
    "uid": int,
    "revision": int,
    "features": list,
}
#: Where JSON has halves of characters: as escapes, or raw.  Those that stand for a byte that is no
#: UTF-8 are welcome (keys are bytes), others have no bytes at all.
_SURROGATES = (b"\\ud", b"\\uD", b"\xed")
#: Lists of names.
_NAMES = ("members", "add", "remove", "names", "features")


def malformed(operation: Any) -> str | None:
    """Return what is wrong with an operation's shape, None if it can be applied."""
    if not isinstance(operation, dict):
        return "an operation must be an object"
    shape = _SHAPES.get(str(operation.get("do")))
    if shape is None:
        return f"unknown operation '{operation.get('do')}'"
    if operation.get("kind") == "queue" and operation["do"] == "put":
        shape = shape | {"uid": int, "members": list}
    for field, kind in shape.items():
        if not isinstance(operation.get(field), kind):
            return f"operation {operation['do']}: {field} is missing or wrong"
    for field, kind in _OPTIONAL_SHAPES.items():
        if operation.get(field) is not None and not isinstance(operation[field], kind):
            return f"operation {operation['do']}: {field} is wrong"
    for field in _NAMES:
        if operation.get(field) is not None and not _are_names(operation[field]):
            return f"operation {operation['do']}: {field} is wrong"
    connection = operation.get("connection", operation.get("exclusive_owner"))
    if connection is not None and len(connection) != len(ConnectionId._fields):
        return f"operation {operation['do']}: not a connection"
    if not all(_is_user(user) for user in operation.get("users") or ()):
        return f"operation {operation['do']}: a user needs a name"
    return None


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(type(name) is str for name in value)


def _is_user(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and type(value.get("name")) is str
        and type(value.get("password_hash", "")) is str
        and _are_names(value.get("tags", []))
    )


def decode(command: bytes) -> Json | None:
    """Return the operation, None for what is not a command of this version."""
    if not command or command[0] != VERSION:
        return None
    try:
        operation = json.loads(command[1:])
        if any(sign in command for sign in _SURROGATES):
            json.dumps(operation, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except (ValueError, RecursionError):
        return None
    return operation if isinstance(operation, dict) else None


def decode_reply(reply: bytes) -> Json:
    """Return a reply's fields."""
    fields: Json = json.loads(reply)
    return fields
