"""What the audit log says of a change: who, through which door, from where, what, with which
outcome.

A front door does what it does by objects that know for whom (`MemberObjects.by`), so a change is
noted in one place, for all doors; what the member does by itself (auto-delete, members that come
and go) has no author and is not noted.  Secrets never are: specs lose whatever may be one.

Here is what a record holds; server/audit_log.py writes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.server.catalog import sealed_parameters

#: A longer spec stands in a record by its size only.
SPEC_BYTES_MAX = 4096
TEXT_CHARACTERS_MAX = 500
#: Fields of specs that are left out wherever they stand.
_SECRET = re.compile(r"password|secret|token|credential|(^|[-_.])uri", re.IGNORECASE)
_DEPTH_MAX = 32


@dataclass(slots=True, frozen=True)
class Author:
    """Who asks for a change."""

    user: str
    #: amqp, amqps, grpc, http, https.
    door: str
    #: Address and port, as the door has them.
    address: str


class Audit(Protocol):
    """The audit log."""

    def write(self, author: Author, fields: Mapping[str, Any]) -> None:
        """Take a record; it goes to its file a little later."""
        ...


@dataclass(slots=True, frozen=True)
class Before:
    """An object as it was: what is shown of it, and the hash of a user's password."""

    shown: Any
    password_hash: Any


def before(operation: Mapping[str, Any], view: CatalogState) -> list[Before | None]:
    """Return the objects that an operation is about, as they are now."""
    found: list[Before | None] = []
    for each in _each(operation):
        there = view.get(each["kind"], each["vhost"], each["name"]) if "kind" in each else None
        if there is None:
            found.append(None)
        else:
            spec = there.spec()
            found.append(Before(shown(there.kind, there.name, spec), spec.get("password_hash")))
    return found


def records(
    operation: Mapping[str, Any],
    reply: Mapping[str, Any] | None,
    there: Sequence[Before | None],
) -> Iterator[dict[str, Any]]:
    """Yield what an operation did; nothing for what changed nothing.

    reply: the catalog's, None if no answer came in time: it may take effect later.
    """
    operations = _each(operation)
    answers = [reply] * len(operations) if reply is None else reply.get("results", [reply])
    for each, answer, old in zip(operations, answers, there, strict=True):
        if each.get("dry_run") or (answer or {}).get("code") == catalog_commands.UNCHANGED:
            continue
        fields = {"action": each["do"]}
        fields |= {key: each[key] for key in ("kind", "vhost", "name", "names") if key in each}
        fields |= _outcome(answer)
        if "spec" in each:
            fields["after"] = shown(each["kind"], each["name"], each["spec"])
        if old is not None:
            fields["before"] = old.shown
            if each["kind"] == "user" and "spec" in each:
                is_same = old.password_hash == each["spec"].get("password_hash")
                fields["password"] = "same" if is_same else "changed"
        yield fields


def purge(queue: Queue, messages: int) -> dict[str, Any]:
    """Return what is noted of a queue that somebody emptied."""
    fields = {"action": "purge", "kind": "queue", "vhost": queue.vhost, "name": queue.name}
    return fields | {"outcome": "ok", "messages": messages}


def look(action: str, vhost: str, name: str, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is noted of a look at a queue's messages: how many were shown or looked at, and
    whether it was let in.  Not by which filter: what stands in one is often personal.

    action: browse, triage, preview (of a job).
    """
    return {"action": action, "kind": "queue", "vhost": vhost, "name": name} | dict(outcome)


def job(
    vhost: str, name: str, action: str, number: int, order: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what is noted of a job on a queue's messages that somebody started or stopped, but for
    its filter: what stands in one is often personal.
    """
    fields = {"action": action, "kind": "queue", "vhost": vhost, "name": name, "job": number}
    shown = {key: value for key, value in order.items() if value and key not in _NOT_OF_JOBS}
    return fields | {"outcome": "ok"} | ({"order": shown} if shown else {})


_NOT_OF_JOBS = frozenset(("filter", "vhost", "queue"))


def job_ended(
    vhost: str, name: str, number: int, state: str, counts: Mapping[str, int]
) -> dict[str, Any]:
    """Return what is noted of a job that is over, by whom it was started."""
    fields = {"action": "end-job", "kind": "queue", "vhost": vhost, "name": name, "job": number}
    return fields | {"outcome": state} | dict(counts)


def closing(which: Mapping[str, str], count: int) -> dict[str, Any]:
    """Return what is noted of connections that somebody had closed.

    which: the vhost or name that they have, or as `connections_of` their user; count: how many.
    """
    fields = {"action": "close", "kind": "connection"} | dict(which)
    return fields | {"outcome": "ok", "connections": count}


def _each(operation: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = operation.get("operations", (operation,))
    return found


def _outcome(answer: Mapping[str, Any] | None) -> dict[str, Any]:
    if answer is None:
        return {"outcome": "unavailable"}
    code = answer.get("code") or catalog_commands.OK
    if code == catalog_commands.OK:
        return {"outcome": "ok"}
    return {"outcome": code.lower(), "text": (answer.get("text") or "")[:TEXT_CHARACTERS_MAX]}


def shown(kind: str, name: str, spec: Mapping[str, Any]) -> Any:
    """Return a spec without secrets, its size if it is long."""
    hidden = sealed_parameters.uri_keys(name) if kind == "parameter" else ()
    made = _without(spec, frozenset(hidden), _DEPTH_MAX)
    size = len(json.dumps(made, default=str))
    return made if size <= SPEC_BYTES_MAX else {"bytes": size}


def _without(value: Any, hidden: frozenset[str], depth: int) -> Any:
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {
            str(key): _without(item, hidden, depth - 1)
            for key, item in value.items()
            if key not in hidden and not _SECRET.search(str(key))
        }
    if isinstance(value, list | tuple):
        return [_without(item, hidden, depth - 1) for item in value]
    return value
