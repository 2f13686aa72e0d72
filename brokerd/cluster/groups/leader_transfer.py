"""Who leads instead, when this node's replica must not or cannot lead any more.

Raft notices a dead leader by silence, but a quiet group is silent anyway and trusts the liveness of
its leader's node (replication.md §2.1).  So a replica that stops on a living node has to say so.
For host.py only.
"""

from __future__ import annotations

import logging
from typing import Protocol

from brokerd.cluster.groups.driver import Driver
from brokerd.raft.inputs import TransferLeadership
from brokerd.raft.messages import Message, MessageKind, NodeId

logger = logging.getLogger(__name__)


class Replicas(Protocol):
    """What this needs of the host."""

    @property
    def node(self) -> NodeId:
        """Return this node's name."""
        ...

    def alive(self) -> set[NodeId]:
        """Return the nodes that are up, this one included."""
        ...

    def is_stalled(self, node: NodeId) -> bool:
        """Tell whether a node is up and its disk does not answer."""
        ...

    def driver_of(self, uid: int) -> Driver | None:
        """Return a group's driver, None if no replica is here."""
        ...

    def wake(self, driver: Driver) -> None:
        """The driver has inputs: it takes part in the next flush."""
        ...

    def send(self, uid: int, message: Message) -> None:
        """Send with the next flush."""
        ...

    def schedule_flush(self) -> None:
        """Something was sent."""
        ...


class LeaderTransfer:
    """State: replicas that stopped while they led, until somebody else is known to lead."""

    def __init__(self, host: Replicas) -> None:
        self._host = host
        #: How often each was told to others so far.
        self._orphans: dict[int, int] = {}

    def heirs(self, driver: Driver) -> list[NodeId]:
        """Return the other living voters, those with the longest log first; one whose disk does not
        answer cannot be elected, and comes last.
        """
        replica, host = driver.replica, self._host
        others = (set(driver.configuration.voters) - {host.node}) & host.alive()
        return sorted(
            others,
            key=lambda node: (host.is_stalled(node), -(replica.match_of(node) or 0), node),
        )

    def renew(self, driver: Driver, damaged: NodeId) -> None:
        """Let another member lead, so that a damaged one is refilled (replica_health.py)."""
        heir = next((node for node in self.heirs(driver) if node != damaged), None)
        logger.warning(
            "member lost acknowledged entries group=%x node=%s, new leader %s",
            driver.uid,
            damaged,
            heir,
        )
        if heir is not None:
            driver.inputs.append(TransferLeadership(heir))
            self._host.wake(driver)

    def stopped(self, driver: Driver) -> None:
        """This leader's replica has stopped."""
        self._orphans[driver.uid] = 0
        self._pass_on(driver)

    def heard(self, driver: Driver, message: Message) -> None:
        """A stopped replica got a message: a newer term means that others have taken over."""
        if message.term > driver.replica.term:
            self._orphans.pop(driver.uid, None)

    def remind(self) -> None:
        """The heir may have been the wrong one, or the message lost; called every few seconds."""
        for uid in list(self._orphans):
            driver = self._host.driver_of(uid)
            if driver is None:
                del self._orphans[uid]
            else:
                self._pass_on(driver)

    def _pass_on(self, driver: Driver) -> None:
        uid, heirs = driver.uid, self.heirs(driver)
        if not heirs:
            return
        heir = heirs[self._orphans[uid] % len(heirs)]
        self._orphans[uid] += 1
        logger.warning("a stopped leader is succeeded group=%x, new leader %s", uid, heir)
        # What a leader says that hands over (Raft thesis §3.10); in its own term it still may.
        told = Message(MessageKind.TIMEOUT_NOW, self._host.node, heir, driver.replica.term)
        self._host.send(uid, told)
        self._host.schedule_flush()
