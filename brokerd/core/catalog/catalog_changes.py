"""Changes of the catalog with all that follows from them, each with its effect.

Pure; used by `catalog_machine.py` while one command is applied.  Cascades: bindings go with their
ends (R-EX-7), auto-delete exchanges with their last binding (R-EX-8), everything with its vhost
(R-VH-2), permissions with their user.
"""

from __future__ import annotations

from typing import Any

from brokerd.core.catalog import names
from brokerd.core.catalog.catalog_effects import FeaturesEnabled, TopologyChanged
from brokerd.core.catalog.catalog_objects import Binding, Entry, Exchange, Queue, Record, User
from brokerd.core.catalog.catalog_state import CatalogState

Json = dict[str, Any]


def new_record(kind: str, vhost: str, name: str, spec: Json) -> Record:
    """Return a record of a kind; a queue's uid, members and owner are the caller's concern."""
    if kind == "exchange":
        return Exchange(vhost, name, spec)
    if kind == "queue":
        return Queue(vhost, name, spec, 0, [])
    if kind == "binding":
        return Binding(vhost, name, spec)
    if kind == "user":
        return User(kind, vhost, name, spec)
    return Entry(kind, vhost, name, spec)


class Changes:
    """The changes of one command at one log index."""

    __slots__ = ("_revision", "_state", "effects")

    def __init__(self, state: CatalogState, revision: int) -> None:
        self._state = state
        self._revision = revision
        #: In the order in which things happened.
        self.effects: list[TopologyChanged | FeaturesEnabled] = []

    @property
    def revision(self) -> int:
        """Return the log index of the command."""
        return self._revision

    def _log(self, record: Record, deleted: bool, cause: str) -> None:
        change = TopologyChanged(
            record.kind, record.vhost, record.name, deleted, self._revision, cause
        )
        if isinstance(record, Queue):
            change.uid = record.uid
        record.revision = self._revision
        self.effects.append(change)
        self._state.log_change(change)

    def add(self, record: Record, cause: str) -> None:
        """Put a new object; a vhost comes with its default exchanges (R-EX-1)."""
        self._state.add(record)
        self._log(record, False, cause)
        if record.kind != "vhost":
            return
        for name, exchange_type, internal in names.DEFAULT_EXCHANGES:
            spec = {
                "type": exchange_type,
                "durable": True,
                "auto_delete": False,
                "internal": internal,
                "arguments": {},
                "settings": {},
            }
            self.add(Exchange(record.name, name, spec), cause)

    def touch(self, record: Record, cause: str) -> None:
        """Say that an object was changed in place."""
        self._state.touched(record, is_there=True)
        self._log(record, False, cause)

    def remove(self, record: Record, cause: str) -> None:
        """Remove an object and what cannot be without it."""
        if isinstance(record, Queue):
            self._remove_bindings(
                self._topology(record).bindings.to_destination("queue", record.name), cause
            )
        elif isinstance(record, Exchange):
            self._remove_exchange(record, cause)
            return
        elif isinstance(record, Binding):
            self._remove_bindings([record], cause)
            return
        elif record.kind == "vhost":
            self._empty_vhost(record.name)
        elif record.kind == "user":
            self._remove_permissions(record.name, cause)
        self._discard(record, cause)

    def _topology(self, record: Record) -> Any:
        return self._state.vhosts[record.vhost]

    def _discard(self, record: Record, cause: str) -> None:
        self._state.discard(record)
        self._log(record, True, cause)

    def _remove_exchange(self, exchange: Exchange, cause: str) -> None:
        bindings = self._topology(exchange).bindings
        gone: list[Binding] = bindings.from_source(exchange.name)
        for binding in gone:
            self._discard(binding, cause)
        self._discard_exchange(exchange, cause)
        self._remove_bindings(bindings.to_destination("exchange", exchange.name), cause)

    def _discard_exchange(self, exchange: Exchange, cause: str) -> None:
        """What it delays goes with it."""
        self._discard(exchange, cause)
        queue = self._topology(exchange).queues.get(names.delayed_queue(exchange.name))
        if queue is not None:
            self._discard(queue, cause)

    def _remove_bindings(self, doomed: list[Binding], cause: str) -> None:
        """Remove bindings, then auto-delete sources that lost their last one, and so on.

        A worklist, not recursion: chains of exchanges may be long.
        """
        while doomed:
            sources: dict[tuple[str, str], None] = {}
            for binding in doomed:
                self._discard(binding, cause)
                sources[binding.vhost, binding.source] = None
            doomed = []
            cause = "auto-delete"
            for vhost, name in sources:
                topology = self._state.vhosts[vhost]
                source = topology.exchanges.get(name)
                if (
                    source is not None
                    and source.auto_delete
                    and not topology.bindings.has_source(name)
                ):
                    self._discard_exchange(source, cause)
                    doomed += topology.bindings.to_destination("exchange", name)

    def _empty_vhost(self, vhost: str) -> None:
        for kind in ("binding", "queue", "exchange"):
            for record in self._state.records(kind, vhost):
                self._discard(record, "vhost-deleted")
        for kind in ("policy", "operator_policy", "parameter", "topic_permission", "permission"):
            for record in self._state.records(kind, vhost):
                self._discard(record, "vhost-deleted")

    def _remove_permissions(self, user: str, cause: str) -> None:
        for record in self._state.records("permission"):
            if record.name == user:
                self._discard(record, cause)
        for record in self._state.records("topic_permission"):
            if record.name.startswith(user + "|"):
                self._discard(record, cause)
