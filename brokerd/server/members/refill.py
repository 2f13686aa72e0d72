"""A member whose disk is new in a cluster that is not: its replicas have no vote until refilled.

An earlier disk of this member may have acknowledged what this one does not hold; a vote given in
that state could elect a leader that does not hold it either (replication.md §1, G8).  So every
group that is opened before the member has started, and that somebody else can refill, is suspected,
but for those that came after this disk (ADR 36); the state outlives a crash.  Used by joining.py
and app.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from brokerd.server.members import cluster_file, ports

log = logging.getLogger(__name__)

POLL_S = 0.3
#: How long a start waits for the refill.
PATIENCE_S = 60.0
#: Groups that are reminded in one round.
NUDGES_MAX = 64


class SuspectedRegressions(Protocol):
    """Replicas that must not vote before they are refilled (cluster/groups/refilling.py)."""

    def suspect(self, uid: int) -> bool:
        """Take a replica's vote; False: there is none here, or no member could refill it."""
        ...


class Refill:
    """State: the groups that were suspected.  Idle unless `begin` was called."""

    def __init__(
        self,
        data_dir: Path,
        host: ports.Replicas,
        suspected_regressions: SuspectedRegressions,
        nudge: Callable[[int], None],
        spawn: ports.Spawn,
    ) -> None:
        """nudge(uid) has a group's leader send something."""
        self._data_dir = data_dir
        self._host = host
        self._suspecting = suspected_regressions
        self._send_nudge = nudge
        self._spawn = spawn
        self.is_on = False
        #: The catalog's revision when this disk was new; 0: not known.
        self._joined_at = 0
        self._suspected: set[int] = set()

    def begin(self, joined_at: int = 0) -> None:
        """Groups that are opened from now on are suspected, until the member has started.

        joined_at: a revision of the catalog of which somebody was sure after this disk was new.  No
        earlier disk can have held a replica that came later; two members that join at the same time
        would be no majority of a queue on both of them.  0: none is known.
        """
        self.is_on = True
        self._joined_at = joined_at

    def opened(self, uid: int, member_count: int, since: int = 0) -> None:
        """A group was opened.  One without other members cannot be refilled.

        since: the catalog's revision that put the replica here; 0: not known.
        """
        has_no_past = since > self._joined_at > 0
        if self.is_on and member_count != 1 and not has_no_past and self._suspecting.suspect(uid):
            self._suspected.add(uid)

    async def started(self, patience_s: float = PATIENCE_S) -> None:
        """What existed before this member came is open; what is created from now on is its own.

        Waits for the refill, since a member that counts as ready and has no vote could be what a
        majority was counted on; not for ever, since a group may have no member to refill from.
        """
        if not self.is_on:
            return
        self.is_on = False
        work = self._spawn(self._run())
        await asyncio.wait({work}, timeout=patience_s)
        if left := self.left():
            log.warning(
                "%d groups are not refilled yet, and have no vote here: they need a leader among "
                "their other members, which quorum_status names",
                len(left),
            )

    def left(self) -> list[int]:
        """Return the groups that are not refilled yet."""
        return [uid for uid in self._suspected if self._is_suspected(uid)]

    def _is_suspected(self, uid: int) -> bool:
        if not self._host.has_group(uid):
            return False
        status = self._host.status_of(uid)
        return status.is_suspected and not status.error

    async def _run(self) -> None:
        """Wait until all are refilled, and remember it."""
        while left := self.left():
            self.nudge(left)
            await asyncio.sleep(POLL_S)
        kept = cluster_file.load(self._data_dir)
        kept.is_refilling = False
        cluster_file.save(self._data_dir, kept)
        log.info("refilled: this member votes in all of its %d groups", len(self._suspected))
        self._suspected.clear()

    def nudge(self, uids: Sequence[int]) -> None:
        """A quiet group sends nothing; what its leader says of a command that changes nothing lets
        the replica here see that it holds everything (cluster/groups/replica_health.py).
        """
        for uid in uids[:NUDGES_MAX]:
            self._send_nudge(uid)
