"""What follows on this member from changes of the catalog, and from all of it after a start.

Notified by the host as the catalog is applied here, whichever member was asked.  Decides nothing:
which component receives which event stands here, and nowhere else.  Built by composition.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from brokerd.core.catalog.catalog_effects import FeaturesEnabled, TopologyChanged

_POLICIES = ("policy", "operator_policy")


class Catalog(Protocol):
    """The catalog at this member."""

    topology_revision: int
    topology_listeners: list[Callable[[TopologyChanged], None]]
    watchers: set[asyncio.Queue[TopologyChanged]]
    restored_listeners: list[Callable[[], None]]


@dataclass(slots=True, frozen=True)
class Listeners:
    """The callbacks of each event, called in order."""

    #: A queue came, went, or has other members.
    queue: Callable[[TopologyChanged], None]
    #: Policies of a vhost changed; None: whatever depends on the enabled features.
    policies: Callable[[str | None], None]
    #: The list of members changed.
    members: Sequence[Callable[[], None]]
    #: A vhost was deleted; its name.
    vhost_deleted: Callable[[str], None]
    #: Any change, behind those above; of many policies of one command and vhost, one.
    each: Sequence[Callable[[TopologyChanged], None]]
    #: All changes of one command were reported.
    applied: Sequence[Callable[[], None]]
    #: The catalog is to be read anew: after a start or an installed snapshot.
    loaded: Sequence[Callable[[], None]]
    #: The same, behind `loaded`, for what only changes while the member runs.
    restored: Sequence[Callable[[], None]]


class CatalogEvents:
    """State: whether the catalog has been read."""

    def __init__(self, catalog: Catalog, listeners: Listeners) -> None:
        self._catalog = catalog
        self._listeners = listeners
        self._is_loaded = False
        catalog.restored_listeners.append(self._restored)

    def load(self) -> None:
        """Do what the catalog says after a start or an installed snapshot."""
        self._is_loaded = True
        self._catalog.topology_revision += 1
        for tell in self._listeners.loaded:
            tell()

    def realise(self, changes: Sequence[Any]) -> None:
        """Do what follows from one command; its effects, in their order."""
        self._catalog.topology_revision += 1
        looked: set[tuple[str, str]] = set()
        for change in changes:
            if isinstance(change, TopologyChanged):
                self._tell_watchers(change)
                if change.kind in _POLICIES:
                    # Each has all queues of its vhost looked at: once for all of one command.
                    if (change.kind, change.vhost) in looked:
                        continue
                    looked.add((change.kind, change.vhost))
                self._changed(change)
            elif isinstance(change, FeaturesEnabled):
                self._listeners.policies(None)
        for tell in self._listeners.applied:
            tell()

    def _changed(self, change: TopologyChanged) -> None:
        listeners = self._listeners
        if change.kind == "queue":
            listeners.queue(change)
        elif change.kind in _POLICIES:
            listeners.policies(change.vhost)
        elif change.kind == "member":
            for tell in listeners.members:
                tell()
        elif change.kind == "vhost" and change.deleted:
            listeners.vhost_deleted(change.name)
        for listener in (*listeners.each, *self._catalog.topology_listeners):
            listener(change)

    def _tell_watchers(self, change: TopologyChanged) -> None:
        for watcher in self._catalog.watchers:
            # One that does not keep up starts again with a list.
            if not watcher.full():
                watcher.put_nowait(change)

    def _restored(self) -> None:
        """This member was far behind: its leader's snapshot says what is, not what changed."""
        if self._is_loaded:
            # Not from within the machine, which is not done with its snapshot yet.
            asyncio.get_running_loop().call_soon(self._reload)

    def _reload(self) -> None:
        self.load()
        for tell in (*self._listeners.restored, *self._listeners.applied):
            tell()
