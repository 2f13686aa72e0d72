"""Changes of the topology that administrators ask for: the Admin service's operations, one way in.

What the catalog refuses is a 400 with its words, no majority a 503.  What the caller may do AMQP's
way (queues, exchanges, bindings) goes by objects.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from brokerd.core.catalog.catalog_objects import Record
from brokerd.rpc.v1 import admin_pb2
from brokerd.server.catalog import topology_batch
from brokerd.server.management.call import (
    Answer,
    Call,
    HttpError,
    Json,
    bad_request,
    created,
    no_content,
    not_authorised,
    not_found,
    unavailable,
)

Operation, Result = admin_pb2.Operation, admin_pb2.OperationResult

#: Changes of one field of an object go by what was read; somebody else may have been faster.
ATTEMPTS = 5
DONE = (Result.OK, Result.UNCHANGED)


def upsert(kind: str, vhost: str, name: str, spec: Json, **more: Any) -> admin_pb2.Operation:
    """Return the operation that makes or changes an object; HttpError: a name that is no text."""
    _check_names(vhost, name)
    return Operation(kind=kind, vhost=vhost, name=name, spec=json.dumps(spec), **more)


def deletion(kind: str, vhost: str, name: str) -> admin_pb2.Operation:
    """Return the operation that deletes an object."""
    _check_names(vhost, name)
    return Operation(action=Operation.DELETE, kind=kind, vhost=vhost, name=name)


def _check_names(*names: str) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise bad_request("a name that is no UTF-8") from error


async def apply(
    call: Call, operations: Sequence[admin_pb2.Operation]
) -> list[admin_pb2.OperationResult]:
    """Apply operations in order; each has its own result."""
    return await topology_batch.apply(call.objects, operations)


async def done(call: Call, *operations: admin_pb2.Operation) -> None:
    """Apply operations; HttpError for the first that is refused."""
    for result in await apply(call, operations):
        check(result)


async def put(call: Call, operation: admin_pb2.Operation, *also: admin_pb2.Operation) -> Answer:
    """Make or change an object: 201 if it is new, else 204.  also: what goes with it."""
    view = call.services.catalog.view
    is_there = view.get(operation.kind, operation.vhost, operation.name) is not None
    await done(call, operation, *also)
    return no_content() if is_there else created()


async def delete(call: Call, kind: str, vhost: str, name: str) -> Answer:
    """Delete an object: 204; HttpError: 404 if it is not there."""
    if call.services.catalog.view.get(kind, vhost, name) is None:
        raise not_found()
    await done(call, deletion(kind, vhost, name))
    return no_content()


async def modify(
    call: Call, kind: str, name: str, change: Callable[[Json], Json], *, vhost: str = ""
) -> None:
    """Change a part of an object's spec, by what it is now; HttpError: 404, 503.

    change(spec) returns the new spec; secrets are not in it, and stay.
    """
    for _ in range(ATTEMPTS):
        record = call.services.catalog.view.get(kind, vhost, name)
        if record is None:
            raise not_found()
        operation = upsert(kind, vhost, name, change(dict(record.listed_spec())))
        operation.precondition.hash = record.hash()
        [result] = await apply(call, [operation])
        if result.code != Result.PRECONDITION:
            check(result)
            return
    raise unavailable(f"{kind} '{name}' is being changed by somebody else")


def check(result: admin_pb2.OperationResult) -> None:
    """Raise what became of an operation, unless it is done."""
    if result.code in DONE:
        return
    if result.code == Result.NOT_FOUND:
        raise not_found()
    if result.code == Result.UNAVAILABLE:
        raise unavailable(result.message)
    if result.needs_confirmation:
        raise HttpError(400, "needs_confirmation", f"{result.message}; confirm it by ?confirm=true")
    raise bad_request(result.message)


def existing(call: Call, kind: str, vhost: str, name: str) -> Record:
    """Return an object; HttpError: 404."""
    record = call.services.catalog.view.get(kind, vhost, name)
    if record is None:
        raise not_found()
    return record


def tags(value: Any) -> list[str]:
    """Return tags of an array, or of the comma-separated text that older clients send; as given."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise bad_request("tags: expected an array of texts, or a text with commas")
    return list(dict.fromkeys(tag.strip() for tag in value if tag.strip()))


def not_administrator() -> HttpError:
    """Return the 401 of who would need to be an administrator."""
    return not_authorised("Not administrator user")
