"""The groups of a node: most stand still, and those are folded (ADR 61).

A group at rest is driver, replica, node and machine, some seven kilobytes of objects; folded it is
some three hundred bytes, and its log.  Code that needs its driver gets it, made again; code that
only looks at it gets what was kept, or a machine that is made for the look.  Used by host.py and
inbox.py only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple, Protocol

from brokerd.cluster.config import HostConfig
from brokerd.cluster.groups import replica_health
from brokerd.cluster.groups.driver import Driver, Ports
from brokerd.cluster.groups.folded_groups import FoldedGroups, Kept
from brokerd.cluster.groups.group_clock import GroupClock
from brokerd.raft.config import RaftConfig
from brokerd.raft.folded import Folded
from brokerd.raft.inputs import Input, TransferLeadership
from brokerd.raft.machine import Machine
from brokerd.raft.messages import Configuration, Contradiction, GroupUid, NodeId, members_of
from brokerd.raft.node_state import Randomness
from brokerd.raft.replica import Replica
from brokerd.raft.storage import LogStorage
from brokerd.storage.wal import WriteAheadLog

logger = logging.getLogger(__name__)

#: So many groups are folded in one turn of the loop, which takes a millisecond, and so long after
#: it some more: a tenth of the time where many come to rest.
FOLDS_PER_TURN = 16
FOLDS_APART_S = 0.01
#: So many that have inputs are made again in one turn: four milliseconds.
UNFOLDS_PER_TURN = 64


class Host(Ports, Protocol):
    """What this needs of the host."""

    def wake(self, driver: Driver) -> None:
        """The driver has inputs."""
        ...


class Closed(NamedTuple):
    """What a group was that is here no more."""

    log_uid: int
    members: frozenset[NodeId]
    is_volatile: bool


class HostedGroups:
    """State: the drivers of those that are awake, the others folded, each group in one of both; and
    what may happen to them: those that rest, the longest first (and some that do not any more), and
    folded ones that have inputs.
    """

    def __init__(
        self, node: NodeId, wal: WriteAheadLog, config: HostConfig, rng: Randomness, host: Host
    ) -> None:
        self.awake: dict[int, Driver] = {}
        self.clock = GroupClock(self.settled)
        self._node = node
        self._wal = wal
        self._config = config
        self._rng = rng
        self._host = host
        self.folded = FoldedGroups(node, wal)
        self._resting: dict[int, None] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[int, None] = {}

    # ---- which there are ------------------------------------------------------------------------

    def __contains__(self, uid: int) -> bool:
        return uid in self.awake or uid in self.folded

    def uids(self) -> list[int]:
        """Return all groups."""
        return [*self.awake, *self.folded.uids()]

    def log_uids(self) -> set[int]:
        """Return what the log calls them."""
        found = {driver.log_uid for driver in self.awake.values()}
        return found.union(self.folded.log_uids())

    def get(self, uid: int) -> Driver | None:
        """Return the driver of a group, None if it is not here; a folded one is made again."""
        driver = self.awake.get(uid)
        if driver is None and uid in self.folded:
            return self._unfold(uid)
        return driver

    def all(self) -> list[Driver]:
        """Return the drivers of all groups, which takes long where many are folded."""
        for uid in self.folded.uids():
            self._unfold(uid)
        return list(self.awake.values())

    def new(
        self,
        uid: int,
        log_uid: int,
        configuration: Configuration | None,
        machine: Machine,
        log: LogStorage,
        raft: RaftConfig,
        is_volatile: bool = False,
        contradiction: Contradiction | None = None,
        folded: Folded | None = None,
    ) -> Driver:
        """Make a group's replica and its driver, which `add` takes."""
        replica = Replica(
            GroupUid(uid),
            self._node,
            configuration,
            machine,
            log,
            raft,
            self._rng,
            contradiction=contradiction,
            folded=folded,
        )
        return Driver(
            uid, replica, log, machine, self._host, is_volatile=is_volatile, log_uid=log_uid
        )

    def add(self, driver: Driver) -> None:
        """A group was opened."""
        self.awake[driver.uid] = driver

    def close(self, uid: int) -> Closed | None:
        """Stop a group, and return what it was; None: there is none."""
        if (kept := self.folded.get(uid)) is not None:
            # No command waits for it, and ten thousand of them may go with their vhost.
            self.folded.forget(uid)
            self._waiting.pop(uid, None)
            return Closed(kept.log_uid, members_of(kept.folded.configuration), False)
        self._resting.pop(uid, None)
        driver = self.awake.pop(uid, None)
        if driver is None:
            return None
        driver.close()
        # It may be this driver's own run that leads here.
        self._loop.call_soon(driver.replica.close)
        return Closed(driver.log_uid, driver.members, driver.is_volatile)

    def end(self) -> None:
        """No group is here any more: what waits is answered."""
        if self._timer is not None:
            self._timer.cancel()
        self.folded.clear()
        while self.awake:
            self.awake.popitem()[1].close()

    # ---- folded, and made again -----------------------------------------------------------------

    def settled(self, uid: int) -> None:
        """The group has nothing to do and to wait for any more."""
        self._resting.pop(uid, None)
        self._resting[uid] = None
        self._fold_later()

    def _fold_later(self) -> None:
        if self._timer is None and len(self._resting) > self._config.rested_max:
            self._timer = self._loop.call_later(FOLDS_APART_S, self._fold_some)

    def _fold_some(self) -> None:
        """Fold some of those that rest longest, unless they are active again.

        What cannot be folded now stays awake until it settles once more.
        """
        self._timer = None
        count = min(len(self._resting) - self._config.rested_max, FOLDS_PER_TURN)
        for uid in list(islice(self._resting, max(0, count))):
            del self._resting[uid]
            if uid not in self.clock.active and self._fold(uid):
                self.clock.folded(uid)
        self._fold_later()

    def _fold(self, uid: int) -> bool:
        driver = self.awake.get(uid)
        if driver is None or not driver.is_idle:
            return False
        factory = driver.machine.factory()
        folded = None if factory is None else driver.replica.fold()
        if factory is None or folded is None:
            return False
        log = self._wal.log(driver.log_uid)
        if log.snapshot_index:
            # While it is folded it is not asked again for what it needs.
            self._wal.set_live(driver.log_uid, driver.machine.live_indexes())
        log.let_go()
        self.folded.put(uid, folded, driver.log_uid, *factory)
        del self.awake[uid]
        driver.close()
        driver.replica.close()
        return True

    def _unfold(self, uid: int) -> Driver:
        kept = self.folded.of(uid)
        self._waiting.pop(uid, None)
        try:
            driver = self._made_again(uid, kept)
        except Exception:
            logger.critical(
                "what was kept is of no use, a replica begins from its log group=%x", uid
            )
            logger.exception("it could not be made again")
            driver = self._from_log(uid, kept)
        driver.configuration = kept.folded.configuration
        driver.members = members_of(driver.configuration)
        self.folded.forget(uid)
        self.awake[uid] = driver
        # Perhaps somebody only looks.
        self.settled(uid)
        driver.inputs += kept.inputs or ()
        if driver.inputs:
            self._host.wake(driver)
        return driver

    def _made_again(self, uid: int, kept: Kept) -> Driver:
        folded, log = self.folded.whole(kept), self._wal.log(kept.log_uid)
        driver = self.new(
            uid,
            kept.log_uid,
            folded.configuration,
            kept.make(),
            log,
            self._config.raft,
            folded=folded,
        )
        driver.leader, driver.term = folded.leader, folded.saved.term
        driver.is_leader = folded.leader == self._node
        return driver

    def _from_log(self, uid: int, kept: Kept) -> Driver:
        """Begin as after a restart, knowing no leader; if this member led, it does not any more."""
        log, configuration = self._wal.log(kept.log_uid), kept.folded.configuration
        driver = self.new(uid, kept.log_uid, configuration, kept.make(), log, self._config.raft)
        driver.term = driver.replica.term
        driver.learn(replica_health.LogOpened(log.damaged))
        if configuration.voters == (self._node,):
            # No other member to wait for.
            driver.inputs.append(TransferLeadership(self._node))
        self.clock.active[uid] = None
        # Later, since this may be within a step of somebody who listens.
        self._loop.call_soon(self._host.role_changed, driver)
        return driver

    # ---- what concerns many ---------------------------------------------------------------------

    def led_with(self, uids: Iterable[int]) -> list[int]:
        """Return those of these groups that are led here and are not folded."""
        awake = self.awake
        return [uid for uid in uids if (driver := awake.get(uid)) is not None and driver.is_leader]

    def put_all(
        self, uids: Iterable[int], node: NodeId, event: Input, *, leaders_only: bool
    ) -> list[Driver]:
        """Tell these groups, of which a node is a member, what has happened to it; return the
        drivers that have got it.

        Folded ones hear of it when `wake_waiting` makes their drivers, and only where it makes a
        difference: where this node leads, or the other one does.
        """
        told = []
        for uid in uids:
            driver, kept = self.awake.get(uid), self.folded.get(uid)
            if driver is not None and (driver.is_leader or not leaders_only):
                driver.inputs.append(event)
                told.append(driver)
            elif kept is not None:
                leader = kept.folded.leader
                if leader == self._node or (leader == node and not leaders_only):
                    if kept.inputs is None:
                        kept.inputs = []
                    kept.inputs.append(event)
                    self._waiting[uid] = None
        return told

    @property
    def is_any_waiting(self) -> bool:
        """Whether folded groups have inputs."""
        return bool(self._waiting)

    def wake_waiting(self) -> None:
        """Make the drivers of some folded groups that have inputs, which run in this turn."""
        for uid in list(islice(self._waiting, UNFOLDS_PER_TURN)):
            try:
                self._unfold(uid)
            except Exception:
                # One group must not stop the others.
                logger.exception("a folded group cannot be opened group=%x", uid)

    # ---- looked at ------------------------------------------------------------------------------

    def leader_of(self, uid: int) -> NodeId | None:
        """Return who leads, as far as it is known here."""
        driver = self.awake.get(uid)
        return self.folded.leader_of(uid) if driver is None else driver.leader

    def term_of(self, uid: int) -> int | None:
        """Return the newest term that is known here; None: the group is not here."""
        driver = self.awake.get(uid)
        return self.folded.term_of(uid) if driver is None else driver.term
