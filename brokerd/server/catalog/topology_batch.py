"""A request of ApplyTopology: its operations in order, runs of them in one proposal.

An operation goes into the run that waits, and the run into the catalog's log as one command
(`catalog_commands.batch`): one sync of the disks and one question to the other members for all of
them.  Each is judged by the catalog when its turn comes, so it finds what the ones before it made.
What has to be asked of this member's view beforehand (is the queue new, who is to hold it, is the
password the one that is stored) sends the run off first, if anything in it could change the answer;
so does an object that is in the run already.
The deletion of a queue takes more than one proposal, and that of a vhost that is traced: each is a
step by itself, in its place.

For admin_service.py, which has authenticated the caller.  AMQP's declares go through topology.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from brokerd.cluster.groups import placement
from brokerd.core.catalog import (
    arguments,
    catalog_commands,
    catalog_specs,
    declare,
    delayed_type,
    exchange_types,
    names,
)
from brokerd.core.catalog.catalog_objects import PREVIOUS_PASSWORD, Queue, User
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.rpc.v1 import admin_pb2
from brokerd.server.catalog import admin_objects, federation_parameters, ports, topology
from brokerd.server.catalog.audit import Author
from brokerd.server.catalog.catalog_writer import Unavailable

Operation, Result = admin_pb2.Operation, admin_pb2.OperationResult

log = logging.getLogger(__name__)

#: Specs of one proposal, and of the objects that its reply shows: a member does nothing else
#: while it applies them.  One operation always goes.
RUN_BYTES_MAX = 1024 * 1024
#: New queues of one proposal: each member opens their groups at once when it applies it.
RUN_QUEUES_MAX = 64

#: A day: longer is no rotation.
PASSWORD_OVERLAP_MS_MAX = 86_400_000

#: What this member's view is asked about before an operation goes into the run, beside the object
#: itself.
_LOOKS_AT: dict[tuple[int, str], frozenset[str]] = {
    # Policies say who is to lead it.
    (Operation.UPSERT, "queue"): frozenset({"vhost", "policy", "operator_policy"}),
    (Operation.DELETE, "queue"): frozenset({"vhost"}),
    # The alternate exchange of a queue stays (R-MQ-9).
    (Operation.DELETE, "exchange"): frozenset({"vhost", "queue", "policy", "operator_policy"}),
}


#: What says which links there are: the definitions of federation are checked against it.
_LINKS = frozenset({"vhost", "exchange", "policy", "parameter"})


def protection(vhost: str) -> str:
    """Return the setting that says whether a vhost is protected from deletion."""
    return f"deletion_protection {vhost}"


def is_protected(view: CatalogState, vhost: str) -> bool:
    """Tell whether a vhost is protected from deletion, until somebody ends that."""
    return bool(view.setting(protection(vhost)))


class Room(ports.Topology, federation_parameters.Room, Protocol):
    """What a request needs besides the making of queues."""

    def by(self, author: Author) -> Room:
        """Return one on this author's behalf, whose changes are noted in the audit log."""
        ...

    def note(self, fields: Mapping[str, Any]) -> None:
        """Note a change that is none of the catalog."""
        ...

    @property
    def checker(self) -> ports.Passwords:
        """Return who hashes passwords."""
        ...

    @property
    def tracer(self) -> ports.Traced:
        """Return which vhosts are traced."""
        ...


@dataclass(slots=True)
class _Step:
    #: In the request.
    place: int
    operation: admin_pb2.Operation
    command: dict[str, Any]


async def apply(
    room: Room, operations: Iterable[admin_pb2.Operation]
) -> list[admin_pb2.OperationResult]:
    """Apply operations in order; each has its own result, in the same order."""
    request = _Request(room)
    for operation in operations:
        await request.add(operation)
    await request.flush()
    assert all(result is not None for result in request.results)
    return [result for result in request.results if result is not None]


class _Request:
    """State: the results so far, and the run that waits.

    Invariant: operations take effect in the order in which they are added.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self.results: list[admin_pb2.OperationResult | None] = []
        self._clear()

    def _clear(self) -> None:
        self._steps: list[_Step] = []
        self._kinds: set[str] = set()
        self._touched: set[tuple[str, str, str]] = set()
        self._has_deletion = False
        self._bytes = 0
        self._new_queues = 0
        self._placement: topology.Placement | None = None

    async def add(self, operation: admin_pb2.Operation) -> None:
        """Take the next operation."""
        self.results.append(None)
        try:
            if operation.kind not in admin_objects.KINDS:
                raise admin_objects.BadOperation(f"unknown kind '{operation.kind}'")
            if operation.kind == "queue" and names.is_delayed_queue(operation.name):
                exchange = names.exchange_of(operation.name)
                raise admin_objects.BadOperation(
                    f"queue '{operation.name}' is kept by exchange '{exchange}'"
                )
            if self._must_wait(operation) or self._is_full(operation):
                await self.flush()
            if operation.action == Operation.DELETE:
                await self._delete(operation)
            elif operation.action == Operation.SET_OWNER:
                self._add(operation, _set_owner(operation))
            else:
                await self._upsert(operation)
        except admin_objects.BadOperation as error:
            self.results[-1] = admin_objects.failed(operation, Result.REFUSED, str(error))
        except federation_parameters.NeedsConfirmation as error:
            refused = admin_objects.failed(operation, Result.REFUSED, str(error))
            refused.needs_confirmation = True
            self.results[-1] = refused
        except Unavailable as error:
            self.results[-1] = admin_objects.failed(operation, Result.UNAVAILABLE, str(error))

    def _must_wait(self, operation: admin_pb2.Operation) -> bool:
        """Tell whether the run has to be done before this operation.

        The view may not say yet what it will find.  And a run has one revision, at which an
        object has one state for followers of the topology: no object is in it twice, and nothing
        that it deletes (with all that depends on it) is made again in it.
        """
        if (operation.kind, operation.vhost, operation.name) in self._touched:
            return True
        if self._has_deletion and operation.action != Operation.DELETE:
            return True
        looks_at = _LOOKS_AT.get((operation.action, operation.kind), frozenset())
        return not looks_at.isdisjoint(self._kinds)

    def _is_full(self, operation: admin_pb2.Operation) -> bool:
        """Tell whether the run is large enough without this operation."""
        return bool(self._steps) and (
            self._bytes + self._size(operation) > RUN_BYTES_MAX
            or (operation.kind == "queue" and self._new_queues >= RUN_QUEUES_MAX)
        )

    def _size(self, operation: admin_pb2.Operation) -> int:
        """Return the bytes of a spec, and of the present one, which the reply may show."""
        present = self._room.view.get(operation.kind, operation.vhost, operation.name)
        shown = 0 if present is None else len(names.canonical_json(present.spec()))
        return len(operation.spec.encode()) + shown

    def _add(self, operation: admin_pb2.Operation, command: dict[str, Any]) -> None:
        self._steps.append(_Step(len(self.results) - 1, operation, command))
        self._kinds.add(operation.kind)
        if operation.name:
            # That of a binding may follow from its spec.
            self._touched.add((operation.kind, operation.vhost, operation.name))
        self._has_deletion |= operation.action == Operation.DELETE
        self._bytes += self._size(operation)

    # ---- what goes into the run -----------------------------------------------------------------

    async def _upsert(self, operation: admin_pb2.Operation) -> None:
        spec = admin_objects.spec_of(operation)
        members: list[str] = []
        uid = 0
        if operation.kind == "user":
            spec = await self._hashed(operation.name, spec)
        elif operation.kind == "parameter":
            await self._check_parameter(operation, spec)
        elif operation.kind == "queue":
            if isinstance(spec.get("arguments"), dict):
                values = declare.without_empty_type(self._room.profile, spec["arguments"])
                spec = spec | {"arguments": values}
            present = self._room.view.queue(operation.vhost, operation.name)
            if present is None:
                spec, members = self._new_queue(operation, spec)
                uid = self._room.new_group_uid()
            elif not operation.owner.managed_by:
                spec = _as_declared(present, spec)
        elif operation.kind == "exchange" and spec.get("type") == delayed_type.TYPE:
            await self._make_delayed_queue(operation, spec)
        command = catalog_commands.put(
            operation.kind,
            operation.vhost,
            operation.name,
            spec,
            cause="admin",
            owner=admin_objects.owner_of(operation.owner),
            precondition=admin_objects.precondition_of(operation),
            uid=uid,
            members=members,
            dry_run=operation.dry_run,
        )
        self._add(operation, command)
        self._new_queues += uid != 0

    async def _make_delayed_queue(
        self, operation: admin_pb2.Operation, spec: dict[str, Any]
    ) -> None:
        """The queue of an exchange that keeps messages comes before it."""
        room, vhost, name = self._room, operation.vhost, operation.name
        if "vhost" in self._kinds:
            await self.flush()
        if operation.dry_run or room.view.spec("vhost", "", vhost) is None:
            return
        values = spec.get("arguments")
        if not isinstance(values, dict) or exchange_types.check_exchange(
            name, delayed_type.TYPE, values
        ):
            # The catalog says what is wrong.
            return
        if room.view.exchange(vhost, name) is None:
            await topology.make_delayed_queue(room, vhost, name, spec, cause="admin")

    async def _check_parameter(self, operation: admin_pb2.Operation, spec: dict[str, Any]) -> None:
        """BadOperation or NeedsConfirmation: it could not be used, or would lose messages."""
        vhost, name, value = operation.vhost, operation.name, spec.get("value")
        if federation_parameters.is_checked(name) and not _LINKS.isdisjoint(self._kinds):
            await self.flush()
        problem = federation_parameters.problem(self._room, vhost, name, value)
        if problem is not None:
            raise admin_objects.BadOperation(problem)
        if not operation.confirmed:
            federation_parameters.check_loss(self._room, vhost, name, value)

    def _new_queue(
        self, operation: admin_pb2.Operation, spec: dict[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        """Return a queue's whole spec, and its members, which are chosen by what stands in it."""
        vhost, name = operation.vhost, operation.name
        if self._room.view.spec("vhost", "", vhost) is None:
            raise admin_objects.BadOperation(f"vhost '{vhost}' does not exist")
        if names.is_too_long(name):
            raise admin_objects.BadOperation(f"name: longer than {names.NAME_BYTES_MAX} bytes")
        try:
            spec = catalog_specs.normalise("queue", vhost, name, {"type": "classic", **spec})
        except catalog_specs.SpecError as error:
            raise admin_objects.BadOperation(str(error)) from error
        if self._placement is None:
            self._placement = topology.Placement(self._room)
        # A resource's queue has no client yet: which member the operator asked says nothing.
        locator = placement.BALANCED if operation.owner.managed_by else ""
        return spec, self._placement.choose(vhost, name, spec, locator=locator)

    async def _hashed(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Replace a password by its hash; the same password keeps the stored hash (no change),
        but for one of a kind that is not made any more (auth.password_hashing).
        """
        overlap_ms = _overlap_ms(spec)
        password = spec.pop("password", None)
        present = self._room.view.user(name)
        before = present.password_hash if present is not None else ""
        if isinstance(password, str):
            checker = self._room.checker
            if before and checker.is_current(before) and await checker.check(before, password):
                spec["password_hash"] = before
            else:
                spec["password_hash"] = await checker.hash(password)
        elif "password_hash" not in spec and present is not None:
            spec["password_hash"] = before
        if present is not None:
            spec |= _previous(present, spec["password_hash"], overlap_ms)
        return spec

    async def _delete(self, operation: admin_pb2.Operation) -> None:
        room = self._room
        record = room.view.get(operation.kind, operation.vhost, operation.name)
        if operation.kind == "vhost" and is_protected(room.view, operation.name):
            raise admin_objects.BadOperation(f"vhost '{operation.name}' is protected from deletion")
        command = catalog_commands.delete(
            operation.kind,
            operation.vhost,
            operation.name,
            cause="admin",
            if_unused=operation.if_unused and operation.kind == "exchange",
            precondition=admin_objects.precondition_of(operation),
            dry_run=operation.dry_run,
        )
        if operation.if_unused and record is not None:
            await self.flush()
            if await topology.keeps_messages(room, record):
                raise admin_objects.BadOperation(
                    f"messages wait in exchange '{record.name}': delete it without if_unused"
                )
        if isinstance(record, Queue) and not operation.dry_run:
            await self.flush()
            self.results[-1] = await self._delete_queue(operation, record, command)
        elif operation.kind == "vhost" and operation.name in room.tracer.vhosts:
            await self.flush()
            self.results[-1] = await self._delete_traced(operation, command)
        else:
            self._add(operation, command)

    # ---- the run --------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Have the catalog apply the run, and wait for the leaders of its new queues.

        Without an answer each operation of the run is UNAVAILABLE: all of them may take effect
        later, or none.
        """
        steps = self._steps
        self._clear()
        if not steps:
            return
        room = self._room
        try:
            reply = await room.write(catalog_commands.batch([step.command for step in steps]))
        except Unavailable as error:
            for step in steps:
                self.results[step.place] = admin_objects.failed(
                    step.operation, Result.UNAVAILABLE, str(error)
                )
            return
        made = []
        for step, each in zip(steps, reply["results"], strict=True):
            self.results[step.place] = self._result(step.operation, each)
            is_done = each["code"] == catalog_commands.OK and not step.operation.dry_run
            if is_done and step.command.get("uid"):
                made.append((step, each["object"]["uid"]))
                command = step.command
                for line in declare.without_effect(
                    room.profile, command["vhost"], command["name"], command["spec"]
                ):
                    log.warning("%s", line)
        async with asyncio.TaskGroup() as tasks:
            for step, uid in made:
                tasks.create_task(self._wait_for_leader(step, uid))

    async def _wait_for_leader(self, step: _Step, uid: int) -> None:
        """A queue counts as made when its leader works."""
        try:
            await self._room.queues.wait_for_leader(uid)
        except Unavailable as error:
            self.results[step.place] = admin_objects.failed(
                step.operation, Result.UNAVAILABLE, str(error)
            )

    def _result(
        self, operation: admin_pb2.Operation, reply: dict[str, Any]
    ) -> admin_pb2.OperationResult:
        room = self._room
        return admin_objects.result(operation, reply, room.view.revision, room.keyring)

    # ---- steps by themselves --------------------------------------------------------------------

    async def _delete_traced(
        self, operation: admin_pb2.Operation, command: dict[str, Any]
    ) -> admin_pb2.OperationResult:
        room = self._room
        reply = await room.write(command)
        if reply["code"] == catalog_commands.OK and not operation.dry_run:
            # A vhost of this name that is made later is not traced.
            name = catalog_commands.tracing(operation.name)
            await room.write(catalog_commands.set_setting(name, None))
        return self._result(operation, reply)

    async def _delete_queue(
        self, operation: admin_pb2.Operation, queue: Queue, command: dict[str, Any]
    ) -> admin_pb2.OperationResult:
        room = self._room
        if command.get("precondition"):
            # The queue's own log decides about messages, the catalog about the record: the record
            # is checked first, so that a foreign queue is not emptied.
            reply = await room.write({**command, "dry_run": True})
            if reply["code"] != catalog_commands.OK:
                return self._result(operation, reply)
        outcome = await topology.delete_queue(
            room,
            queue,
            if_empty=operation.if_empty,
            if_unused=operation.if_unused,
            cause="admin",
        )
        answer = admin_objects.failed(
            operation,
            Result.OK if outcome.done else Result.REFUSED,
            outcome.unknown
            if outcome.done
            else f"queue '{queue.name}' has {outcome.messages} messages and "
            f"{outcome.consumers} consumers",
            None if outcome.done else admin_objects.listing(queue, room.keyring),
        )
        answer.messages, answer.consumers = outcome.messages, outcome.consumers
        answer.revision = room.view.revision
        return answer


def _as_declared(present: Queue, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec with the arguments of the queue that is there, if they say the same.

    The type may be among them or not, as it may in a declare (R-Q-4): an export of RabbitMQ 4.3
    has it always, one of 3.10 only where a client said it.
    """
    wanted = spec.get("arguments", {})
    if spec.get("type", "classic") != present.type or not isinstance(wanted, dict):
        return spec
    sides = (arguments.with_type(table, present.type) for table in (wanted, present.arguments))
    wanted, declared = map(names.canonical_json, sides)
    return spec if wanted != declared else spec | {"arguments": present.arguments}


def _overlap_ms(spec: dict[str, Any]) -> int:
    """Take out how long the password before is to be right still (ADR 21)."""
    for field in PREVIOUS_PASSWORD:
        # Those follow from the overlap; members before the feature flag would refuse them.
        spec.pop(field, None)
    found = spec.pop("password_overlap_ms", 0)
    if type(found) is not int or not 0 <= found <= PASSWORD_OVERLAP_MS_MAX:
        raise admin_objects.BadOperation(
            f"password_overlap_ms: expected an integer from 0 to {PASSWORD_OVERLAP_MS_MAX}"
        )
    return found


def _previous(present: User, password_hash: Any, overlap_ms: int) -> dict[str, Any]:
    """Return the fields of the password before: a new one without an overlap ends it at once."""
    if password_hash == present.password_hash:
        value = present.value
        return {field: value[field] for field in PREVIOUS_PASSWORD if field in value}
    if not overlap_ms or not present.password_hash:
        return {}
    until_ms = int(time.time() * 1000) + overlap_ms
    return dict(zip(PREVIOUS_PASSWORD, (present.password_hash, until_ms), strict=True))


def _set_owner(operation: admin_pb2.Operation) -> dict[str, Any]:
    return catalog_commands.set_owner(
        operation.kind,
        operation.vhost,
        operation.name,
        admin_objects.owner_of(operation.owner),
        precondition=admin_objects.precondition_of(operation),
        dry_run=operation.dry_run,
    )
