"""Rows of what is declared: policies and what they hold for, exchanges and what leads from them
(design/telemetry.md §6.5, kinds `policy` and `topo`).

Written by the member that leads the catalog.  Every row is written once an hour, and again when it
says something else than before; what is gone says so.  Some in each interval: what is declared
must not take the place of what happens.  Pure; the server says when to look.
"""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

from brokerd.core.catalog import policy, policy_coverage
from brokerd.core.catalog.catalog_objects import Exchange, Queue
from brokerd.core.catalog.catalog_state import CatalogState

Row: TypeAlias = dict[str, Any]
#: (kind of row, kind of object, vhost, name)
Key: TypeAlias = tuple[str, str, str, str]

HOUR_US = 3_600_000_000
#: Rows of an hour; policies go first, and exchanges beyond are left out of it.
ROWS_HOUR_MAX = 20_000
#: Rows of an interval; the others wait for the next one.  All of them at once would fill the buffer
#: of segments.py, which then drops the rows of queues.
ROWS_ONCE_MAX = 2_000


class Look:
    """One look at all that is declared; objects may come and go while it lasts."""

    __slots__ = ("_coverage", "_exchanges", "_targets", "_view", "is_whole")

    def __init__(self, view: CatalogState) -> None:
        self._view = view
        self._coverage = policy_coverage.PolicyCoverage(view)
        #: By vhost and name: type, bindings, has an alternate exchange, is bound to another one.
        self._exchanges: dict[tuple[str, str], tuple[str, int, bool, bool]] = {}
        #: Alternate exchanges, by vhost and name.
        self._targets: set[tuple[str, str]] = set()
        #: False: it took too long, and ended before all was seen.
        self.is_whole = True

    def add(self, record: Exchange | Queue) -> None:
        """Look at one object, unless it has gone meanwhile."""
        vhost, name = record.vhost, record.name
        current = self._view.get(record.kind, vhost, name)
        if not isinstance(current, Exchange | Queue):
            return
        self._coverage.look(current)
        if not isinstance(current, Exchange):
            return
        alternate = policy.effective_exchange(self._view, current).alternate_exchange
        if alternate is not None:
            self._targets.add((vhost, alternate))
        if not policy_coverage.is_built_in(name):
            leading, led_to = self._view.vhosts[vhost].bindings.degree(name)
            self._exchanges[vhost, name] = (
                current.type,
                leading,
                alternate is not None,
                led_to > 0,
            )

    def rows(self) -> dict[Key, Row]:
        """Return what was seen, by what it is about, without times."""
        found: dict[Key, Row] = {}
        by_vhost: dict[str, dict[str, policy_coverage.Objects]] = {}
        for (vhost, kind), objects in self._coverage.objects.items():
            by_vhost.setdefault(vhost, {})[kind] = objects
        for vhost, kinds in by_vhost.items():
            found["topo", "vhost", vhost, ""] = {
                "objects": {kind: each.count for kind, each in kinds.items()},
                "without_policy": {kind: each.without_policy for kind, each in kinds.items()},
                "whole": self.is_whole,
            }
        for (vhost, kind, name), use in self._coverage.policies.items():
            found["policy", kind, vhost, name] = {
                "policy": name,
                "apply_to": use.apply_to, "priority": use.priority,
                "matched": use.matched, "won": use.won, "overridden": use.overridden,
                "lost_to": use.lost_to, "whole": self.is_whole,
            }  # fmt: skip
        for (vhost, name), (xtype, bindings, has_alternate, is_bound) in self._exchanges.items():
            found["topo", "exchange", vhost, name] = {
                "exchange": name, "xtype": xtype, "bindings": bindings,
                "has_alternate": has_alternate,
                # What comes to it from another exchange is counted there, at the first one.
                "is_target": is_bound or (vhost, name) in self._targets,
            }  # fmt: skip
        return found


class TopologyRows:
    """Remembers what the rows of this hour have said, and what is still to be said."""

    __slots__ = ("_hour", "_said", "_waiting", "_written")

    def __init__(self) -> None:
        self._hour = -1
        self._said: dict[Key, Row] = {}
        #: None: it is gone.
        self._waiting: dict[Key, Row | None] = {}
        self._written = 0

    def is_told(self, since_us: int) -> bool:
        """Say whether the hour that an interval begins in was looked at."""
        return self._hour == since_us // HOUR_US

    def forget(self) -> None:
        """Another member tells now."""
        self._hour = -1
        self._waiting.clear()

    def look_at(self, look: Look, since_us: int) -> None:
        """Take a look: what is new, has changed or is gone since what was said in the hour that an
        interval begins in is to be said; in the first look of an hour all of it.
        """
        if not self.is_told(since_us):
            self._hour, self._written = since_us // HOUR_US, 0
            self._said.clear()
        found = look.rows()
        self._waiting = {key: said for key, said in found.items() if self._said.get(key) != said}
        if look.is_whole:
            self._waiting |= dict.fromkeys(key for key in self._said if key not in found)

    def rows(self, since_us: int, now_us: int) -> list[Row]:
        """Return the rows of an interval: some of what is to be said."""
        room = min(ROWS_ONCE_MAX, ROWS_HOUR_MAX - self._written)
        rows = []
        for key in list(itertools.islice(self._waiting, room)):
            said = self._waiting.pop(key)
            if said is None:
                last = self._said.pop(key)
                said = {"state": "deleted"}
                said |= {name: last[name] for name in ("policy", "exchange") if name in last}
            else:
                self._said[key] = said
            rows.append(_row(key, since_us, now_us, said))
        self._written += len(rows)
        return rows


def _row(key: Key, since_us: int, now_us: int, said: Row) -> Row:
    return {"k": key[0], "t0": since_us, "t1": now_us, "kind": key[1], "vhost": key[2], **said}
