"""Damaged replicas: what leaders say and what the log holds goes to their ReplicaHealth.

replica_health.py decides; this module reports to it and does what it decides.  Built by host.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from brokerd.cluster.groups import replica_health
from brokerd.cluster.groups.driver import Driver
from brokerd.cluster.groups.replica_health import Action
from brokerd.cluster.groups.write_queue import RefillStep, WriteQueue
from brokerd.raft.messages import Message, MessageKind, NodeId
from brokerd.storage.wal import WriteAheadLog

logger = logging.getLogger(__name__)


class Replicas(Protocol):
    """What this needs of the host."""

    @property
    def node(self) -> NodeId:
        """Return this node's name."""
        ...

    def driver_of(self, uid: int) -> Driver | None:
        """Return a group's driver, None if no replica is here."""
        ...


class Refilling:
    """State: the damaged replicas among ten thousand; each has its ReplicaHealth.

    Invariant: all are there that are open and have no vote, and perhaps some that had none.
    """

    def __init__(
        self,
        host: Replicas,
        wal: WriteAheadLog,
        queue: WriteQueue,
        renew: Callable[[Driver, NodeId], None],
    ) -> None:
        """renew: has another member lead instead of a damaged one (leader_transfer.py)."""
        self._host = host
        self._renew = renew
        self._wal = wal
        self._queue = queue
        self._damaged: dict[Driver, None] = {}

    def damaged(self, driver: Driver) -> None:
        """A replica has learned something and has no vote."""
        self._damaged[driver] = None

    def without_vote(self) -> list[Driver]:
        """Return the open replicas here that have no vote."""
        for driver in [each for each in self._damaged if each.is_closed or each.health.may_vote]:
            del self._damaged[driver]
        return list(self._damaged)

    def heard(self, driver: Driver, message: Message) -> None:
        """A message is on its way to a damaged replica."""
        if not driver.health.needs_repair:
            self._look(driver, message.term)
        own_term = driver.replica.term
        if message.kind is MessageKind.APPEND:
            said = replica_health.LeaderSaid(message.term, own_term, message.commit)
        elif message.snapshot is not None:
            said = replica_health.LeaderSaid(message.term, own_term, message.snapshot.index, True)
        else:
            return
        self.tell(driver, said)

    def handled(self, driver: Driver) -> None:
        """A damaged replica has handled what came: perhaps it is whole now.

        A quiet group sends nothing more that would make us look.
        """
        if not (driver.health.needs_repair or driver.is_closed):
            driver.catch_up()
            self._look(driver, driver.replica.term)

    def lacking(self) -> list[int]:
        """Look at the groups here that lack entries which no command of a leader brings: their
        messages may have been settled.  Return those in which only another log would help.
        """
        lacking = [
            driver
            for driver in self.without_vote()
            if driver.health.needs_repair and driver.error is None
        ]
        for driver in lacking:
            self._look(driver, driver.replica.term)
        return [driver.uid for driver in lacking if driver.health.needs_repair]

    def waiting(self) -> list[int]:
        """Return the groups whose replica here has no vote until their leader says something."""
        return [
            driver.uid
            for driver in self.without_vote()
            if not (driver.health.needs_repair or driver.is_contradicted) and driver.error is None
        ]

    def contradicted(self) -> list[int]:
        """Return the groups whose replica here has stopped, since a leader contradicts it."""
        return [driver.uid for driver in self.without_vote() if driver.is_contradicted]

    def suspect(self, uid: int) -> bool:
        """The disk here is new and the group is not; False: no such group, or it has no past."""
        driver = self._host.driver_of(uid)
        if driver is None or driver.is_volatile:
            return False
        self.tell(driver, replica_health.RegressionSuspected())
        return True

    def release(self, uid: int) -> None:
        """Somebody has decided about the group's contradicted replica (keeping.py)."""
        driver = self._host.driver_of(uid)
        if driver is not None:
            self.tell(driver, replica_health.Released())

    def tell(self, driver: Driver, event: replica_health.Event) -> None:
        """Tell a replica's ReplicaHealth, and do what it asks."""
        action = driver.learn(event)
        if action is Action.COMPARE_LIVE:
            self._compare_live(driver)
        elif action is Action.RECORD_REFILL:
            self._queue.add(RefillStep(driver))
        elif action is Action.HAND_OVER:
            self._renew(driver, self._host.node)

    def _look(self, driver: Driver, term: int) -> None:
        replica = driver.replica
        self.tell(
            driver, replica_health.Progressed(term, replica.term, replica.applied_index, driver.log)
        )

    def _compare_live(self, driver: Driver) -> None:
        """Who asks for live entries that are lost is not this room's business
        (server/members/repair.py).
        """
        log = self._wal.log(driver.log_uid)
        live = driver.machine.live_indexes()
        # An unreadable entry that was settled since is no loss.
        self._wal.set_live(driver.log_uid, live)
        # Those behind it are on their way to the disk, and come there before what is added now.
        end = log.last_index() + 1
        on_disk = [(low, min(high, end)) for low, high in live if low < end]
        is_complete = log.holds(on_disk)
        if is_complete:
            logger.warning("replica holds everything, and votes from now on group=%x", driver.uid)
        self.tell(driver, replica_health.LiveCompared(is_complete))
