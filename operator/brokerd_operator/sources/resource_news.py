"""What a watch tells of resources, as calls of the engine. For `kubernetes.py`.

Called in the thread of the watch; the engine works in its loop, and gets news by the hand-over.
Most news are no news there, and are let go of here before thousands of them wait for their turn:
at the start what was listed before, later the echo of each write of the operator's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd_operator.engine import keys
from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.versions import version_of
from brokerd_operator.sources.api import Json, forget_managers
from brokerd_operator.sources.hand_over import HandOver


class ResourceNews:
    """Of one watch. Owns which resources it has told of."""

    def __init__(self, engine: Engine, events: HandOver, list_again: Callable[[], Any]) -> None:
        self._engine = engine
        self._events = events
        #: Called in the loop when a listing is necessary.
        self._list_again = list_again
        self._told_of: set[str] = set()

    def take(self, kind: str, type_: str | None, found: Json) -> None:
        """An event as kopf has it: without a type where kopf has listed."""
        # A copy: kopf goes on with its own.
        body = forget_managers({**found, "kind": kind, "metadata": {**found["metadata"]}})
        key, version = keys.key_of(body), version_of(body)
        if type_ is None and version.uid in self._told_of:
            # The API server has forgotten where the watch was (410), and kopf has listed anew. It
            # does not tell which resources went meanwhile: a listing does.
            self._events.give(self._list_again)
        if type_ == "DELETED":
            self._told_of.discard(version.uid)
            self._events.give(self._engine.remove, key, version)
            return
        self._told_of.add(version.uid)
        # A look into a dictionary of another thread. Were it a moment behind, the engine would find
        # the same when its turn comes.
        if version.number is None or self._engine.cache.version(key) != version:
            self._events.give(self._engine.put, body)
