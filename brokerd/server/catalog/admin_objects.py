"""Topology objects between the catalog's JSON and the Admin service's messages."""

from __future__ import annotations

import json
from typing import Any

from brokerd.core.catalog import arguments, catalog_commands
from brokerd.core.catalog.catalog_objects import PREVIOUS_PASSWORD, Owner, Queue, Record
from brokerd.rpc.v1 import admin_pb2
from brokerd.server.catalog import sealed_parameters
from brokerd.server.catalog.keyring import Keyring

_CODES = {
    catalog_commands.OK: admin_pb2.OperationResult.OK,
    catalog_commands.UNCHANGED: admin_pb2.OperationResult.UNCHANGED,
    catalog_commands.NOT_FOUND: admin_pb2.OperationResult.NOT_FOUND,
    catalog_commands.PRECONDITION: admin_pb2.OperationResult.PRECONDITION,
    catalog_commands.IMMUTABLE: admin_pb2.OperationResult.IMMUTABLE,
    catalog_commands.REFUSED: admin_pb2.OperationResult.REFUSED,
}

#: Kinds that outsiders may see and change; members and settings have calls of their own.
KINDS = frozenset(
    {
        "vhost",
        "exchange",
        "queue",
        "binding",
        "policy",
        "operator_policy",
        "user",
        "permission",
        "topic_permission",
        "parameter",
    }
)
SPEC_BYTES_MAX = 1024 * 1024
SPEC_DEPTH_MAX = 32


class BadOperation(ValueError):
    """An operation cannot be understood; the text says why."""


def listing(record: Record, keyring: Keyring) -> admin_pb2.TopologyObject:
    """Return a record as listings show it, without secrets (SEC-20)."""
    return _of_json(record.listing(), keyring)


def _of_json(fields: dict[str, Any], keyring: Keyring) -> admin_pb2.TopologyObject:
    """Return a listing's JSON as a message."""
    owner = fields.get("owner")
    spec = fields["spec"]
    if fields["kind"] == "parameter":
        # The hash tells of changes of what is not shown.
        value = sealed_parameters.listed(
            fields["name"], fields["vhost"], spec.get("value"), keyring
        )
        spec = {**spec, "value": value}
    return admin_pb2.TopologyObject(
        kind=fields["kind"],
        vhost=fields["vhost"],
        name=fields["name"],
        spec=json.dumps(spec, sort_keys=True, separators=(",", ":")),
        hash=fields["hash"],
        owner=admin_pb2.Owner(**owner) if owner else None,
        revision=fields["revision"],
    )


def owner_of(message: admin_pb2.Owner) -> Owner | None:
    """Return an owner token; an empty managed_by means none."""
    if not message.managed_by:
        return None
    return Owner(
        message.managed_by,
        message.resource,
        message.uid,
        message.deletion_policy,
        message.protected,
    )


def precondition_of(operation: admin_pb2.Operation) -> dict[str, Any] | None:
    """Return the catalog's form of a precondition."""
    if not operation.HasField("precondition"):
        return None
    wanted = operation.precondition
    fields: dict[str, Any] = {}
    if wanted.absent:
        fields["absent"] = True
    if wanted.hash:
        fields["hash"] = wanted.hash
    if wanted.owner_uid:
        fields["owner_uid"] = wanted.owner_uid
    return fields or None


def spec_of(operation: admin_pb2.Operation) -> dict[str, Any]:
    """Parse a spec within its bounds (SEC-49)."""
    text = operation.spec
    if len(text) > SPEC_BYTES_MAX:
        raise BadOperation(f"spec is larger than {SPEC_BYTES_MAX} bytes")
    try:
        spec = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise BadOperation(f"spec is not JSON: {error}") from error
    if not _has_bytes(text, spec):
        raise BadOperation("spec: text that is no Unicode")
    if not isinstance(spec, dict):
        raise BadOperation("spec must be a JSON object")
    if _depth(spec) > SPEC_DEPTH_MAX:
        raise BadOperation(f"spec is nested deeper than {SPEC_DEPTH_MAX}")
    return spec


def _has_bytes(text: str, spec: Any) -> bool:
    """Tell whether the texts of a spec are text: the catalog refuses a whole command otherwise.

    Halves of characters come as escapes only; those that stand for a byte are welcome
    (catalog_commands.decode).
    """
    if "\\ud" not in text and "\\uD" not in text:
        return True
    try:
        json.dumps(spec, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except (ValueError, RecursionError):
        return False
    return True


def _depth(value: Any) -> int:
    depth, layer = 0, [value]
    while layer and depth <= SPEC_DEPTH_MAX:
        depth += 1
        inner: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        layer = inner
    return depth


def result(
    operation: admin_pb2.Operation, reply: dict[str, Any], revision: int, keyring: Keyring
) -> admin_pb2.OperationResult:
    """Return the answer to one operation."""
    current = reply.get("object")
    return admin_pb2.OperationResult(
        id=operation.id,
        code=_CODES[reply["code"]],
        message=reply.get("text") or "",
        current=_of_json(current, keyring) if current else None,
        revision=revision,
    )


def failed(
    operation: admin_pb2.Operation,
    code: admin_pb2.OperationResult.Code,
    message: str,
    current: admin_pb2.TopologyObject | None = None,
) -> admin_pb2.OperationResult:
    """Return an answer that did not come from the catalog."""
    return admin_pb2.OperationResult(
        id=operation.id,
        code=code,
        message=message,
        current=current,
    )


def exported(
    record: Record, keyring: Keyring, *, with_passwords: bool, with_types: bool
) -> dict[str, Any]:
    """Return what an export says of an object (SEC-20).

    with_types: the type of a queue is among its arguments (switch `management.as_4_3`).
    """
    if isinstance(record, Queue) and with_types:
        spec = record.spec()
        return spec | {"arguments": arguments.with_type(spec["arguments"], record.type)}
    if record.kind != "parameter":
        # A password that runs out by itself is nothing to be imported elsewhere.
        return {k: v for k, v in record.spec().items() if k not in PREVIOUS_PASSWORD}
    return sealed_parameters.exported(
        record.name, record.vhost, record.spec(), keyring, with_passwords=with_passwords
    )
