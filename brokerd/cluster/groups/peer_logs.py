"""What the members remember of each other's logs, and what follows for this one.

A member whose directory was put back to an earlier state has forgotten what it had acknowledged,
and its checksums do not show it (storage/promises.py decides).  Each stream begins with what its
sender remembers of the receiver, before anything that could elect a leader, and heartbeats repeat
it.  Used by host.py only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from brokerd.cluster.groups import replica_health
from brokerd.cluster.groups.driver import Driver
from brokerd.cluster.groups.liveness import Liveness
from brokerd.cluster.groups.refilling import Refilling
from brokerd.cluster.groups.write_queue import WriteQueue
from brokerd.raft.inputs import TransferLeadership
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.rpc.v1 import peer_pb2
from brokerd.storage import records
from brokerd.storage.promises import RUNS_MAX, Promise, Promises, Run
from brokerd.storage.wal import WriteAheadLog

logger = logging.getLogger(__name__)

#: Looks without any damaged group after which a forgotten past concerns no group any more: those
#: that the catalog has named since are open by then.
QUIET_LOOKS = 6
#: Shortest time between two writes of what others say.
KEEP_INTERVAL_MS = 500


@dataclass(slots=True)
class KeepStep:
    """What is known of the own log and of others."""

    promises: Promises
    #: Called when that is on the disk.
    noted: Callable[[Promises], None]

    def run(self, wal: WriteAheadLog) -> None:
        wal.regressions.keep(self.promises)

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        self.noted(self.promises)
        return []


@dataclass(slots=True)
class SuspicionStep:
    """The log has forgotten what it had promised."""

    where: int
    promises: Promises
    #: Called when that is on the disk.
    noted: Callable[[Promises], None]

    def run(self, wal: WriteAheadLog) -> None:
        wal.regressions.write(self.where, self.promises)

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        self.noted(self.promises)
        return []


@dataclass(slots=True)
class TrustStep:
    """The suspicions are over: groups without other damage have their vote back."""

    places: list[int]
    #: Asked afterwards: groups may be opened meanwhile.
    without_vote: Callable[[], list[Driver]]

    def run(self, wal: WriteAheadLog) -> None:
        wal.regressions.write_end(self.places)

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        wal.regressions.ended(self.places)
        ended = replica_health.SuspicionEnded
        trusted = [
            driver
            for driver in self.without_vote()
            if driver.learn(ended(wal.log(driver.log_uid).damaged)) is replica_health.Action.RUN
        ]
        for driver in trusted:
            if len(driver.replica.configuration.voters) == 1:
                # No other member to wait for.
                driver.inputs.append(TransferLeadership(driver.replica.configuration.voters[0]))
        return trusted


@dataclass(slots=True)
class SettleStep:
    """The log is at rest: what is known of its last sync becomes durable."""

    def run(self, wal: WriteAheadLog) -> None:
        wal.settle()

    def finish(self, wal: WriteAheadLog) -> list[Driver]:
        return []


class Replicas(Protocol):
    """What this needs of the host."""

    @property
    def node(self) -> NodeId:
        """Return this node's name."""
        ...

    def drivers(self) -> list[Driver]:
        """Return the drivers of all replicas here."""
        ...

    def driver_of(self, uid: int) -> Driver | None:
        """Return a group's driver, None if no replica is here."""
        ...

    def schedule_flush(self) -> None:
        """Something is to be written."""
        ...


class PeerLogs:
    """State: the promises (the writer thread gets copies), and who has spoken in this life."""

    def __init__(
        self,
        host: Replicas,
        wal: WriteAheadLog,
        queue: WriteQueue,
        liveness: Liveness,
        refilling: Refilling,
    ) -> None:
        self._host = host
        self._liveness = liveness
        self._refilling = refilling
        self._wal = wal
        self._queue = queue
        self._promises = wal.regressions.promises()
        self._run = self._promises.runs[-1]
        #: Broken promises that the disk here knows of.  A member that hears of one forgets it: said
        #: sooner, none would know of it after a crash.
        self._admitted = dict(self._promises.admitted)
        self._heard: set[NodeId] = set()
        self._is_news = False
        self._keep_at_ms = 0
        self._is_ending = False
        self._quiet_looks = 0
        #: Syncs of the log when the clock was last looked at.
        self._syncs = 0

    # ---- what is said ---------------------------------------------------------------------------

    def said_to(self, node: NodeId) -> bytes:
        """Return a frame's part: this log, and what is remembered of that member's."""
        promises = self._promises
        position = peer_pb2.Position(
            log=promises.log,
            runs=[
                peer_pb2.LogRun(number=r.number, mark=r.mark, batch=r.batch) for r in promises.runs
            ],
            batch=self._wal.promised,
            admitted=[
                peer_pb2.LogRun(mark=mark, batch=batch) for mark, batch in self._admitted.items()
            ],
        )
        before = promises.others.get(node)
        if before is not None:
            position.remembered.CopyFrom(
                peer_pb2.LogPromise(
                    log=before.log, run=before.run, mark=before.mark, batch=before.batch
                )
            )
        return peer_pb2.PeerFrame(position=position).SerializeToString()

    def heard(self, node: NodeId, position: peer_pb2.Position) -> None:
        """A member says how far its log is, and what it remembers of this one."""
        if position.HasField("remembered"):
            claim = position.remembered
            promise = Promise(claim.log, claim.run, claim.mark, claim.batch)
            if self._promises.is_behind(promise):
                if promise.log != self._promises.log and self._promises.is_first_run:
                    # The disk is new, and joining.py has asked the others before it takes part.
                    self._promises.admit(promise)
                    self._queue.add(KeepStep(self._promises.copy(), self._noted))
                    self._host.schedule_flush()
                else:
                    self._fall_behind(node, promise)
        if position.log and 0 < len(position.runs) <= RUNS_MAX >= len(position.admitted):
            runs = [Run(run.number, run.mark, run.batch) for run in position.runs]
            admitted = {run.mark: run.batch for run in position.admitted}
            said = Promise(position.log, runs[-1].number, runs[-1].mark, position.batch)
            claims = Promises(position.log, runs, admitted)
            self._is_news |= self._promises.hear(node, said, claims)
            if node not in self._heard:
                self._heard.add(node)
                self._look_at_copy()

    def opens(self, driver: Driver, *, is_new: bool) -> None:
        """A replica starts; is_new: nothing of its group is on the disk here, and it was made after
        all that the catalog knew had been opened.

        Once the catalog is whole as well, this member knows all earlier groups: what comes now has
        no past that could be forgotten here.  A catalog alone does not say so: it may be whole
        before a start has opened what stands in it.
        """
        catalog = self._host.driver_of(CATALOG_GROUP)
        log = self._wal.log(driver.log_uid)
        if is_new and catalog is not None and catalog.health.may_vote:
            self._wal.regressions.pass_over(driver.log_uid)
        driver.learn(replica_health.LogOpened(log.damaged))

    # ---- what follows ---------------------------------------------------------------------------

    def _fall_behind(self, node: NodeId, promise: Promise) -> None:
        what = (
            f"it had synced write {promise.batch} of its run {promise.run} and has forgotten that"
            if promise.log == self._promises.log
            else "another disk had taken its place, and this one is the earlier one"
        )
        logger.error(
            "this member's data directory is older than what it had told %s: %s; its replicas give "
            "up their votes until their leaders have refilled them (docs/operations.md, a "
            "directory that was put back)",
            node,
            what,
        )
        wal, host = self._wal, self._host
        self._promises.admit(promise)
        self._quiet_looks = 0
        where = wal.regressions.begin()
        self._queue.add(SuspicionStep(where, self._promises.copy(), self._noted))
        for driver in host.drivers():
            if driver.is_volatile or driver.is_closed:
                continue
            replica = driver.replica
            committed = replica.commit_index
            is_settled = driver.is_leader and driver.log.term(committed) == replica.term
            self._refilling.tell(driver, replica_health.FellBehind(driver.is_leader, is_settled))
        host.schedule_flush()

    def _noted(self, promises: Promises) -> None:
        self._admitted = dict(promises.admitted)

    def _others(self) -> set[NodeId]:
        """Return everybody who may remember something of this member."""
        others = self._liveness.nodes()
        if CATALOG_GROUP in self._wal.groups():
            known = self._wal.log(CATALOG_GROUP).initial_state()[1]
            others.update(known.voters, known.learners)
        return others - {self._host.node}

    def _look_at_copy(self) -> None:
        """A copy of a directory is as good as the original once all others have spoken."""
        copied = [where for where in self._wal.regressions.places() if records.is_copy(where)]
        if copied and not self._is_ending and self._others() <= self._heard:
            logger.warning(
                "the copied data directory is not older than what the %d other members remember",
                len(self._heard),
            )
            self._end(copied)

    def _end(self, places: Iterable[int]) -> None:
        self._is_ending = True
        self._queue.add(TrustStep(list(places), self._refilling.without_vote))
        self._host.schedule_flush()

    def tick(self, now_ms: int) -> None:
        """Several times a second: news become durable, and the mark of a log at rest."""
        if self._is_news and now_ms >= self._keep_at_ms:
            self._is_news = False
            self._keep_at_ms = now_ms + KEEP_INTERVAL_MS
            self._queue.add(KeepStep(self._promises.copy(), self._noted))
        syncs = self._wal.stats.syncs
        if syncs == self._syncs and self._wal.is_loose:
            self._queue.add(SettleStep())
        self._syncs = syncs

    def look(self) -> None:
        """Every few seconds: see whether suspicions are over."""
        suspected_regressions = self._wal.regressions.places()
        if not suspected_regressions:
            self._is_ending = False
            return
        self._look_at_copy()
        is_quiet = not self._refilling.without_vote() and not any(
            self._wal.log(uid).damaged for uid in self._wal.groups()
        )
        self._quiet_looks = self._quiet_looks + 1 if is_quiet else 0
        if self._quiet_looks >= QUIET_LOOKS and not self._is_ending:
            self._end(suspected_regressions)
