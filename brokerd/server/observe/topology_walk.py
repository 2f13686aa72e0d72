"""When a member looks at all that is declared for telemetry, and how long it may take.

Only the leader of the catalog does: in the first interval of each hour, and in one after a change.
What the rows say is `telemetry/topology_rows.py`'s.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from brokerd.cluster.groups.host_events import GroupStatus
from brokerd.core.catalog.catalog_objects import Exchange, Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.raft.messages import CATALOG_GROUP
from brokerd.server.loop.chunks import in_turns
from brokerd.telemetry.topology_rows import Look, TopologyRows

#: Processor time of one look.  Ten thousand queues under ten policies took 0.6 s the first time and
#: 0.3 s later, when it is remembered who wins, on one of two busy cores; a pattern may be made to
#: take 50 ms for one name (patterns.MATCH_TIMEOUT_S).
LOOK_S_MAX = 10.0
#: Pause after a look, as a multiple of the time that it took, except at a new hour: one percent of
#: the processor at the most, however often queues are declared.
REST = 100


class Groups(Protocol):
    """The replicas of this member."""

    def has_group(self, uid: int) -> bool:
        """Say whether one is here."""
        ...

    def status_of(self, uid: int) -> GroupStatus:
        """Return the state of one that is here."""
        ...


class TopologyWalk:
    """Looks at the catalog's objects in slices.  State: when it did last, and what it said."""

    def __init__(self, view: CatalogState, groups: Groups) -> None:
        self._view = view
        self._groups = groups
        self._said = TopologyRows()
        self._revision = -1
        #: Not before then, by the clock of rows.
        self._rests_until_us = 0

    def _is_due(self, since_us: int, now_us: int) -> bool:
        if not self._said.is_told(since_us):
            return True
        return self._view.revision != self._revision and now_us >= self._rests_until_us

    async def rows(self, since_us: int, now_us: int) -> list[dict[str, Any]]:
        """Return the rows of an interval; none most times, and of many objects some each time."""
        groups = self._groups
        if not (groups.has_group(CATALOG_GROUP) and groups.status_of(CATALOG_GROUP).is_leader):
            self._said.forget()
            return []
        if self._is_due(since_us, now_us):
            await self._look(since_us, now_us)
        return self._said.rows(since_us, now_us)

    async def _look(self, since_us: int, now_us: int) -> None:
        self._revision = self._view.revision
        look, spent_s = Look(self._view), 0.0
        records: list[Exchange | Queue] = []
        for topology in self._view.vhosts.values():
            records += topology.exchanges.values()
            records += topology.queues.values()
        async for record in in_turns(records):
            began = time.thread_time()
            look.add(record)
            spent_s += time.thread_time() - began
            if spent_s > LOOK_S_MAX:
                look.is_whole = False
                break
        self._rests_until_us = now_us + int(REST * spent_s * 1e6)
        self._said.look_at(look, since_us)
